"""How sweeps are drawn: as lines, bars or maps."""
