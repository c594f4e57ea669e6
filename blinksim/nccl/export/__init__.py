"""Schedules as files that stock NCCL loads."""
