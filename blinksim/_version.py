"""The version of blinksim."""

__version__ = "0.1.0.dev0"
