"""Devices and links: what a link graph is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from blinksim.errors import InputError, unknown

DEVICE_KINDS = ("gpu", "tile", "switch", "pcie", "cpu", "nic", "fabric")
ABILITIES = ("hold", "forward", "multicast", "reduce")
# '-' and '>' separate the two ends of a link in edits, ',' separates names in lists.
_NAME = re.compile(r"[A-Za-z0-9_.:/]{1,80}")
_KIND = re.compile(r"[A-Za-z0-9_.:/+-]{1,80}")


@dataclass(frozen=True, slots=True)
class Device:
    """A vertex of the link graph.

    name: unique in its topology. kind: one of `DEVICE_KINDS`. node: index of the host it sits in; fabric switches that
    belong to no host have -1. capacity: bytes/s that may enter it, and as many that may leave it, None for no limit.
    can: a subset of `ABILITIES`; by default GPUs and tiles can do everything and all others only forward.
    attributes: facts that no computation needs (bus id, sm, ...).
    """

    name: str
    kind: str
    node: int = 0
    capacity: Fraction | None = None
    can: frozenset[str] = frozenset()
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(f"{self.name!r} cannot name a device: use letters, digits and _ . : / only")
        if self.kind not in DEVICE_KINDS:
            raise unknown("device kind", self.kind, DEVICE_KINDS)
        if self.capacity is not None and self.capacity <= 0:
            raise InputError(f"device {self.name}: its capacity must be positive")
        if not self.can:
            everything = self.kind in ("gpu", "tile")
            object.__setattr__(self, "can", frozenset(ABILITIES if everything else ("forward",)))
        for ability in self.can:
            if ability not in ABILITIES:
                raise unknown("ability", ability, ABILITIES)

    @property
    def holds(self) -> bool:
        """True if the device can hold a rank's data."""
        return "hold" in self.can


@dataclass(frozen=True, slots=True)
class Link:
    """A directed edge.

    kind: the link class. lanes: parallel lanes, each of `lane_bandwidth` bytes/s. latency: seconds from the last byte
    sent to its arrival, overlaps with the next chunk. overhead: seconds that each chunk occupies the sender.
    bus: links with the same bus share one capacity (half duplex); None for a link of its own.
    """

    src: str
    dst: str
    kind: str
    lane_bandwidth: Fraction
    lanes: int = 1
    latency: float = 0.0
    overhead: float = 0.0
    bus: str | None = None

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise InputError(f"{self.kind!r} cannot name a link class: use letters, digits and _ . : / + - only")
        if self.src == self.dst:
            raise InputError(f"link {self.name}: joins a device with itself")
        if self.lanes < 1:
            raise InputError(f"link {self.name}: has {self.lanes} lanes; leave the link out if it has none")
        if self.lane_bandwidth <= 0:
            raise InputError(f"link {self.name}: its bandwidth must be positive")
        if not (0 <= self.latency <= 3600 and 0 <= self.overhead <= 3600):
            raise InputError(f"link {self.name}: latency and overhead must lie between 0 and 3600 s")

    @property
    def bandwidth(self) -> Fraction:
        """Bytes/s in this direction, all lanes together."""
        return self.lane_bandwidth * self.lanes

    @property
    def name(self) -> str:
        """``src->dst (kind)``, unique in a topology."""
        return f"{self.src}->{self.dst} ({self.kind})"

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.src, self.dst, self.kind)
