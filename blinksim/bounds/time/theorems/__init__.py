"""Theorems that compare what can be done by a time with what must be done, one class each."""
