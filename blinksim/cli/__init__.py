"""The command line; no command does what the Python interface cannot."""
