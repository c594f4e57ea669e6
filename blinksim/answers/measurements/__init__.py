"""Measurements of others, beside what the models say."""
