"""Contention: a limit on what the kernels of a GPU drive together, below the rate of its links.

Blink+ launches one collective per tree on a stream of its own; with a fourth channel the total stays at about
60 GB/s although the links would give 80 (Blink+ report, section 4.4: scheduling of CUDA kernels; its logs
have 66.6 GB/s with three channels and 61.8 with four). A cap per GPU, in each direction, shows that. It is a
property of the machine that no data sheet has: without it links alone count, which is the theory.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from blinksim.errors import InputError
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology
from blinksim.units import parse_rate

# Blink+ report, section 4.4, for a V100.
BLINKPLUS_CAP = Fraction(60 * 10**9)
ATTRIBUTE = "channels_together"
"""The attribute of a GPU in a machine file: what several channels reach together, such as 62GB/s."""


def machine_cap(topology: Topology) -> Fraction | None:
    """The least cap in bytes/s that a machine's GPUs state, None if none does; raises `InputError` if it is no rate."""
    stated = [device.attributes[ATTRIBUTE] for device in topology.devices if ATTRIBUTE in device.attributes]
    return min((parse_rate(str(text)) for text in stated), default=None)


def with_cap(schedule: Schedule, cap: Fraction | None = BLINKPLUS_CAP) -> Schedule:
    """The same schedule where no GPU sends or receives more than `cap` bytes/s; a lower capacity stays.

    cap: None for what the machine states (`machine_cap`); if it states nothing, nothing changes. The schedule loses its
    bound, which does not know the cap.
    """
    if cap is None:
        cap = machine_cap(schedule.topology)
        if cap is None:
            return schedule
    if cap <= 0:
        raise InputError("a cap must be a positive rate")
    devices = tuple(
        replace(d, capacity=cap if d.capacity is None else min(cap, d.capacity)) if d.holds or "reduce" in d.can else d
        for d in schedule.topology.devices
    )
    return replace(schedule, topology=replace(schedule.topology, devices=devices), bound={})
