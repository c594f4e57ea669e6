"""The parts of a topology: what they must be, and how topologies are made of parts that are known to be right.

Checks go over all links at once, as clusters have hundreds of thousands; only a fault is looked up one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from blinksim.errors import InputError, unknown
from blinksim.topology.elements import check_machine_name

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

# Cached properties of a topology that its members and relays do not change.
_OF_DEVICES_AND_LINKS = ("index", "link_columns", "out_links", "in_network", "device_nodes")


def check_devices(topology: Topology) -> None:
    """Raises `InputError` for a name that no machine has, and for devices of one name."""
    check_machine_name(topology.name)
    if len(topology.index) != len(topology.devices):
        twice = next(name for name, times in Counter(d.name for d in topology.devices).items() if times > 1)
        raise InputError(f"{topology.name}: two devices are called {twice!r}; names must be unique")


def check_links(topology: Topology) -> None:
    """Raises `InputError` for a link of an unknown device, and for one that is given twice."""
    known = topology.index.keys()
    ends = {link.src for link in topology.links} | {link.dst for link in topology.links}
    keys = {(link.src, link.dst, link.kind) for link in topology.links}
    if ends <= known and len(keys) == len(topology.links):
        return
    seen: set[tuple[str, str, str]] = set()
    for link in topology.links:
        for end in (link.src, link.dst):
            if end not in known:
                raise unknown(f"device in link {link.name}:", end, known)
        if link.key in seen:
            raise InputError(f"{topology.name}: link {link.name} is given twice; use lanes for parallel links")
        seen.add(link.key)


def check_roles(topology: Topology) -> None:
    """Members and relays: known, able, and each in one role once; raises `InputError`."""
    members, relays, index = topology.members, topology.relays, topology.index
    for name in (*members, *relays):
        if name not in index:
            raise unknown("device", name, index)
    both = set(members) & set(relays)
    if both:
        raise InputError(f"{', '.join(sorted(both))} cannot be member and relay at once")
    for name in members:
        device = topology.devices[index[name]]
        if not device.holds:
            raise InputError(f"{name} is a {device.kind}; only GPUs and tiles can hold a rank")
    for names, role in ((members, "holds at most one rank"), (relays, "relays once")):
        if len(set(names)) < len(names):
            doubled = sorted(name for name, times in Counter(names).items() if times > 1)
            raise InputError(f"{', '.join(doubled)} named more than once; each device {role}")


def regarded(topology: Topology, **changes: Any) -> Topology:
    """`dataclasses.replace` where devices and links stay: these are neither checked nor read again.

    Raises `InputError` for members and relays as `check_roles` does.
    """
    kept = {name: topology.__dict__[name] for name in _OF_DEVICES_AND_LINKS if name in topology.__dict__}
    made = _with(topology, kept, changes)
    if made.members is not topology.members or made.relays != topology.relays:
        check_roles(made)
    return made


def put_together(topology: Topology, known: Mapping[str, Any], **changes: Any) -> Topology:
    """`dataclasses.replace` with devices and links that are right by how they were made; only roles are checked.

    known: cached properties of the result.
    """
    made = _with(topology, known, changes)
    check_roles(made)
    return made


def _with(topology: Topology, known: Mapping[str, Any], changes: Mapping[str, Any]) -> Topology:
    made: Topology = object.__new__(type(topology))
    made.__dict__.update({field.name: getattr(topology, field.name) for field in fields(topology)}, **known, **changes)
    return made


def bandwidths(topology: Topology) -> tuple[Fraction, ...]:
    """Bytes/s of every link; equal ones of equal lanes are one object, so that they are worked out once."""
    if "link_columns" in topology.__dict__:
        rates = topology.link_columns.bandwidths
        return tuple(map(rates.__getitem__, topology.link_columns.figure.tolist()))
    known: dict[tuple[int, int], Fraction] = {}
    found = []
    for link in topology.links:
        key = id(link.lane_bandwidth), link.lanes
        if key not in known:
            known[key] = link.bandwidth
        found.append(known[key])
    return tuple(found)
