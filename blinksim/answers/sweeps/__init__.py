"""What-if studies over edits, nodes, sizes and algorithms."""
