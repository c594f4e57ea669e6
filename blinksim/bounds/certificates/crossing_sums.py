"""The sums that certificates are made of: what links carry together, and what must leave a set of devices.

A cut's capacity in the sense of Ford and Fulkerson (1956), with shared buses and device capacities counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import gcd

from blinksim.collective import COLLECTIVES, EVERY, OWN, ROOT, Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Link, Topology

# Collectives with a block of every rank on one side; the blocks may be unequal.
_WITH_SHARES = sorted(name for name in COLLECTIVES if Collective(name).block_sides == 1)
# Links from which on arrays are quicker.
_MANY_LINKS = 2000


def known_devices(topology: Topology, names: Iterable[str]) -> set[str]:
    """`names` as a set; raises `InputError` for one that is no device, and for one that stands there twice."""
    found = set[str]()
    for name in names:
        if name not in topology.index:
            raise InputError(f"{name} is no device of {topology.name}")
        if name in found:
            raise InputError(f"{name} is listed twice")
        found.add(name)
    return found


def check_shares(collective: Collective, ranks: int, shares: Sequence[int]) -> tuple[int, ...]:
    """The weights of the ranks' blocks in lowest terms, empty where they are equal.

    Raises `InputError` for weights that do not fit the ranks, that leave all blocks but one empty, or for a collective
    without blocks.
    """
    if not shares:
        return ()
    if collective.name not in _WITH_SHARES:
        raise InputError(f"{collective.name} has no shares; they are for {', '.join(_WITH_SHARES)}")
    if len(shares) != ranks or min(shares) < 0 or not any(shares):
        raise InputError(f"shares: give {ranks} whole numbers, none negative and not all 0")
    if max(shares) == sum(shares):
        raise InputError("shares: one rank has everything; that is a broadcast or a reduce")
    common = gcd(*shares)
    return () if len(set(shares)) == 1 else tuple(share // common for share in shares)


def crossing_links(topology: Topology, part: Mapping[str, int], *, leaving: int | None = None) -> list[Link]:
    """The links between different parts; with `leaving`, only those out of that part. part: its number by device."""
    if len(topology.links) < _MANY_LINKS:
        return [
            link
            for link in topology.links
            if part[link.src] != part[link.dst] and (leaving is None or part[link.src] == leaving)
        ]
    import numpy as np

    number = np.fromiter((part[device.name] for device in topology.devices), dtype=np.int64)
    a, b = (number[ends] for ends in topology.ends)
    chosen = a != b if leaving is None else (a == leaving) & (b != leaving)
    return [topology.links[link] for link in np.flatnonzero(chosen).tolist()]


def capacity(topology: Topology, links: Iterable[Link], limits: Iterable[str] = ()) -> Fraction:
    """Bytes/s that `links` carry together: a shared bus counts once.

    limits: device capacities that count instead of the links they limit, as ``gpu0 out`` (what leaves gpu0) or
    ``gpu0 in``. Raises `InputError` for a device without a capacity.
    """
    total = Fraction(0)
    covered_out, covered_in = set[str](), set[str]()
    for limit in limits:
        name, _, way = limit.rpartition(" ")
        own = topology.device(name).capacity
        if own is None or way not in ("in", "out"):
            raise InputError(f"{limit!r} names no device capacity")
        covered = covered_out if way == "out" else covered_in
        if name in covered:
            raise InputError(f"{limit!r} is counted twice")
        covered.add(name)
        total += own
    # Sums of whole numbers are far quicker than sums of fractions, and most bandwidths are whole.
    buses: dict[str, Fraction] = {}
    whole = 0
    for link in links:
        if link.src in covered_out or link.dst in covered_in:
            continue
        lane = link.lane_bandwidth
        if link.bus is not None:
            buses[link.bus] = max(buses.get(link.bus, Fraction(0)), link.bandwidth)
        elif lane.denominator == 1:
            whole += lane.numerator * link.lanes
        else:
            total += link.bandwidth
    return total + whole + sum(buses.values())


def tight_limits(topology: Topology, links: Sequence[Link], part: Mapping[str, int]) -> tuple[str, ...]:
    """Device capacities that bind on the crossing `links`; any choice is valid, this one is greedy."""
    chosen: list[str] = []
    rest = list(links)
    for device in topology.devices:
        if device.capacity is None:
            continue
        for way in ("out", "in"):
            own = [link for link in rest if (link.src if way == "out" else link.dst) == device.name]
            if not own or capacity(topology, own) <= device.capacity:
                continue
            others = [link for link in rest if link not in own]
            # A bus that other links use as well counts anyway: the limit does not save it.
            paid = {link.bus for link in others}
            if capacity(topology, [link for link in own if link.bus is None or link.bus not in paid]) > device.capacity:
                chosen.append(f"{device.name} {way}")
                rest = others
    return tuple(chosen)


def must_leave(collective: Collective, topology: Topology, inside: set[str], shares: Sequence[int] = ()) -> Fraction:
    """The part of the size that has to leave the devices `inside`; 0 if nothing has to.

    shares: weights of the ranks' parts where they are unequal (allgather, reducescatter, gather, scatter).
    """
    members = topology.members
    within = [name in inside for name in members]
    if not shares:
        sources = [rank for rank, here in enumerate(within) if here]
        return collective.between(sources, [rank for rank, here in enumerate(within) if not here], len(members))
    held, total = sum(weight for weight, here in zip(shares, within, strict=True) if here), sum(shares)
    root = within[collective.root] if collective.rooted else False
    inner = {EVERY: Fraction(any(within)), ROOT: Fraction(root), OWN: Fraction(held, total)}
    outer = {EVERY: Fraction(not all(within)), ROOT: Fraction(not root), OWN: Fraction(total - held, total)}
    return inner[collective.starts] * outer[collective.ends]
