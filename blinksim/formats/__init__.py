"""One file per file format that is read or written."""
