"""The documents that blinksim builds on, one module each: their tables beside what blinksim computes."""
