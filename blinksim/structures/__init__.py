"""Data structures without a subject: tables in arrays, disjoint sets, the garbage collector."""
