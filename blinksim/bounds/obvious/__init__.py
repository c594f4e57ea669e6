"""What the bound without a search adds up in arrays."""
