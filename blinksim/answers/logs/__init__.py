"""Judgement of measured times: whether a log is normal, and which rates it shows."""
