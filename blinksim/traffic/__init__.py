"""Who sends how much to whom: traffic matrices, and those of mixtures of experts."""
