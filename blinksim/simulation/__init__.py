"""Schedules in time on shared links."""

from __future__ import annotations

from blinksim.simulation.simulator import simulate
from blinksim.simulation.timeline import Timeline

__all__ = ["Timeline", "simulate"]
