"""The version of blinksim."""

__version__ = "1.0.0"
