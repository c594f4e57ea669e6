"""Untrusted text in, clean text out: strict readers of XML, JSON and YAML, and files written whole or not at all."""
