"""Machines as link graphs: devices, links, who takes part, edits, clusters, symmetries, rules."""
