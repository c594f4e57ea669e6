"""Other machines on the GPUs at hand: links as lanes, and what one GPU moves to another."""
