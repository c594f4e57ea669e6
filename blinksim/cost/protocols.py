"""What share of the traffic is data: the protocols of NCCL (SISCI-NCCL thesis, Cubedo 2021, section 3.3.3).

Simple sends plain data and a flag for the whole piece. LL sends 4 bytes of data and 4 of flag in every 8-byte store,
so the receiver needs no barrier; LL128 sends 120 bytes of data in 128, and needs links that keep stores in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from blinksim.errors import InputError, unknown


@dataclass(frozen=True, slots=True)
class Protocol:
    """efficiency: data bytes per byte sent. unit: bytes that arrive together. ordered: needs stores kept in order."""

    name: str
    efficiency: Fraction
    unit: int
    ordered: bool = False

    def sent(self, size: int) -> int:
        """Bytes on the wire for `size` bytes of data: whole units."""
        if self.efficiency == 1:
            return size
        return -(-size // int(self.unit * self.efficiency)) * self.unit


PROTOCOLS: Mapping[str, Protocol] = {
    "simple": Protocol("simple", Fraction(1), 1),
    "ll": Protocol("ll", Fraction(1, 2), 8),
    "ll128": Protocol("ll128", Fraction(120, 128), 128, ordered=True),
}


def efficiency(name: str) -> Fraction:
    """The share of data of the protocol called `name`; raises `InputError` for another name."""
    return protocol(name).efficiency


def protocol(name: str) -> Protocol:
    """The protocol called `name`, in any case."""
    if name.lower() not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name.lower()]


def choose(size: int, bandwidth: float, latencies: Mapping[str, float], *, in_order: bool = True) -> Protocol:
    """The quickest protocol for a message of `size` bytes.

    bandwidth: bytes/s of the link. latencies: seconds of each protocol that is offered. in_order: True if the link
    keeps stores in order; LL128 is not offered otherwise. Raises `InputError` if none is left.
    """
    offered = [protocol(name) for name in latencies if in_order or not protocol(name).ordered]
    if not offered:
        raise InputError("no protocol is left: LL128 needs a link that keeps stores in order; offer simple or ll too")
    return min(offered, key=lambda p: (latencies[p.name] + p.sent(size) / bandwidth, p.name))
