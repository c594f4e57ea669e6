"""File formats that are read or written, one module each."""
