"""Untrusted text in, clean text out: strict readers of XML, JSON and YAML, and atomic writing of files."""
