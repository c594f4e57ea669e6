"""Certificates: the sums that prove a bound, checked with the machine and a pocket calculator."""
