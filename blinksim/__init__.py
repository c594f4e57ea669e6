"""blinksim: how fast can a collective be on this machine, how fast will it be, why, and what to load to get it."""
