"""Schedules in time on shared links."""

from __future__ import annotations

from blinksim.callable import make_callable
from blinksim.simulate.simulator import simulate
from blinksim.simulate.timeline import Timeline

__all__ = ["Timeline", "simulate"]

make_callable(__name__)
