"""Collective algorithms: each module has a builder, its traffic and its closed form."""
