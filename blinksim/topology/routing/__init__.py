"""What routes are found among: links of neighbours taken together, and the devices between two nodes."""
