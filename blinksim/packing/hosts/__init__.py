"""Clusters of alike hosts: one host is packed, and its trees are used in every host like it."""
