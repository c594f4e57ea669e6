"""Packings by columns: trees, chains and rings are enumerated or priced, and a program chooses among them."""
