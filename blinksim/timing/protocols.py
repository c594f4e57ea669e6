"""Protocols of NCCL: the share of traffic that is data (SISCI-NCCL thesis, Cubedo 2021, section 3.3.3).

Simple sends plain data and a flag for the whole piece. LL sends 4 bytes of data and 4 of flag in every 8-byte
store, so the receiver needs no barrier; LL128 sends 120 bytes of data in 128, and needs links that keep
stores in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from blinksim.errors import unknown

PROTOCOLS: Mapping[str, Fraction] = {"simple": Fraction(1), "ll": Fraction(4, 8), "ll128": Fraction(120, 128)}
"""Data bytes per byte sent."""


def efficiency(name: str) -> Fraction:
    """The share of data of the protocol called `name`, in any case; raises `InputError` for another name."""
    if name.lower() not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name.lower()]
