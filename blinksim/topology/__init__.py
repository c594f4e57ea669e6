"""Machines as link graphs: devices, links, members, edits, clusters, symmetries, rules."""
