"""Alltoall and alltoallv on many ranks: cuts for a traffic matrix, and flows over rails that attain them."""
