"""What overlaps: steps in pieces, and the longest path of a piece."""
