"""Collective algorithms: each module builds the schedule of one; `registry` lists them."""
