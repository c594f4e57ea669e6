"""Models that reproduce what one source document says; no command uses them."""
