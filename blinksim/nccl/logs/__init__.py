"""Logs of nccl-tests."""
