"""Collective algorithms: each module is one, so that adding one is adding a file; `registry` finds them."""
