"""How much each link carries, in shares of the size: what bandwidth bounds follow from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from blinksim.schedule.model import Schedule
from blinksim.schedule.switch_work import sums_at
from blinksim.structures.arrays import expand, per_topology
from blinksim.topology.elements import Link
from blinksim.topology.graph import Topology


@dataclass(frozen=True, eq=False)
class Resources:
    """What sends share: every link (or bus), every device with a capacity of its own, once per direction, and adders.

    Each is counted by link and name. Flows and programs divide the capacities of arcs instead
    (`blinksim.graphs.programs`).

    names and kinds (resource): for people. rate (resource): bytes/s, exact. starts and members: the resource numbers
    of each link; link i uses members[starts[i]:starts[i + 1]]. adders: the resource number of the adders of a switch,
    by device.
    """

    names: Sequence[str]
    kinds: tuple[str, ...]
    rate: tuple[Fraction, ...]
    starts: npt.NDArray[np.int32]
    members: npt.NDArray[np.int32]
    adders: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def rates(self) -> npt.NDArray[np.float64]:
        """`rate` as numbers of machine precision."""
        number, different = self.classes
        return np.array([float(rate) for rate in different], dtype=np.float64)[number]

    @cached_property
    def classes(self) -> tuple[npt.NDArray[np.int64], tuple[Fraction, ...]]:
        """The number of every resource's rate among the different ones, and these."""
        objects = {id(rate): rate for rate in self.rate}
        known = {rate: number for number, rate in enumerate(dict.fromkeys(objects.values()))}
        number_of = {key: known[rate] for key, rate in objects.items()}
        return np.array([number_of[id(rate)] for rate in self.rate], dtype=np.int64), tuple(known)

    @cached_property
    def of_link(self) -> npt.NDArray[np.int32]:
        """The number of each link, or of its bus: the first of the resources that it uses."""
        return self.members[self.starts[:-1]]

    def longest(self, amounts: npt.NDArray[np.int64]) -> Fraction:
        """The most seconds that any resource takes for these bytes, one amount for each."""
        number, rates = self.classes
        most = np.zeros(len(rates), dtype=np.int64)
        np.maximum.at(most, number, amounts)
        return max((amount / rate for amount, rate in zip(most.tolist(), rates, strict=True)), default=Fraction(0))

    @cached_property
    def plain(self) -> bool:
        """True if every link is a resource of its own, the first of which are the links."""
        count = len(self.starts) - 1
        return len(self.members) == count and np.array_equal(self.members, np.arange(count))

    def of_links(self, amounts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What passes every resource, from what passes every link."""
        found = np.zeros(len(self.names), dtype=np.int64)
        if self.plain:
            found[: len(amounts)] = amounts
            return found
        np.add.at(found, self.members, np.repeat(amounts, np.diff(self.starts)))
        return found


@per_topology
def resources(topology: Topology) -> Resources:
    """The shared resources of a topology: links, buses, and devices with a capacity (in and out)."""
    adders, sums, rates_of_sums = _adders(topology)
    if not topology.link_columns.shared and not any(d.capacity is not None for d in topology.devices):
        # Large machines are of this sort: every link is a resource of its own.
        links, counted = topology.links, np.arange(len(topology.links) + 1, dtype=np.int32)
        columns = topology.link_columns
        kinds_of_links = [figures[2] for figures in columns.figures]
        return Resources(
            _Names(links, sums),
            (*map(kinds_of_links.__getitem__, columns.figure.tolist()), *(topology.devices[x].kind for x in adders)),
            (*map(columns.bandwidths.__getitem__, columns.figure.tolist()), *rates_of_sums),
            counted,
            counted[:-1],
            {place: len(links) + count for count, place in enumerate(adders)},
        )
    names: list[str] = []
    kinds: list[str] = []
    rates: list[Fraction] = []
    number: dict[str, int] = {}

    def resource(key: str, name: str, kind: str, rate: Fraction) -> int:
        if key not in number:
            number[key] = len(names)
            names.append(name)
            kinds.append(kind)
            rates.append(rate)
        return number[key]

    starts, members = [0], list[int]()
    for link in topology.links:
        key, name = (f"bus {link.bus}", f"bus {link.bus}") if link.bus else (f"link {link.name}", link.name)
        members.append(resource(key, name, link.kind, link.bandwidth))
        for end, way in ((link.src, "out of"), (link.dst, "into")):
            device = topology.device(end)
            if device.capacity is not None:
                members.append(resource(f"{way} {end}", f"{way} {end}", device.kind, device.capacity))
        starts.append(len(members))
    for place, name, rate in zip(adders, sums, rates_of_sums, strict=True):
        resource(name, name, topology.devices[place].kind, rate)
    listed = np.array(starts, np.int32), np.array(members, np.int32)
    own = {place: number[name] for place, name in zip(adders, sums, strict=True)}
    return Resources(tuple(names), tuple(kinds), tuple(rates), *listed, own)


class _Names(Sequence[str]):
    """The names of links and then of adders; those of the many links are put together when asked for."""

    def __init__(self, links: Sequence[Link], sums: Sequence[str]) -> None:
        self._links, self._sums = links, sums

    def __len__(self) -> int:
        return len(self._links) + len(self._sums)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        return self._links[place].name if place < len(self._links) else self._sums[place - len(self._links)]


def _adders(topology: Topology) -> tuple[list[int], list[str], list[Fraction]]:
    """The devices whose adders have a rate, what their sums are called, and that rate."""
    stated = ((place, device) for place, device in enumerate(topology.devices) if "reduction_rate" in device.attributes)
    found = [(place, device.name, device.reduction_rate) for place, device in stated]
    known = [(place, f"sums at {name}", rate) for place, name, rate in found if rate is not None]
    return [place for place, _, _ in known], [name for _, name, _ in known], [rate for _, _, rate in known]


def uses(schedule: Schedule, shared: Resources) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """(send, resource) for every resource that a send occupies."""
    send, link = expand(schedule.route_start, schedule.route_links, schedule.route)
    position, resource = expand(shared.starts, shared.members, link)
    added, adder = sums_formed(schedule, shared)
    return np.concatenate((send[position], added)), np.concatenate((resource, adder))


def sums_formed(schedule: Schedule, shared: Resources) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """(send, resource) for every sum that adders with a rate form: a send that brings a part of it."""
    found = list(sums_at(schedule, shared.adders)) if shared.adders else []
    number = [shared.adders[switch] for _, switch in found]
    return np.array([send for send, _ in found], np.int64), np.array(number, np.int32)


def link_loads(schedule: Schedule) -> list[Fraction]:
    """The exact share of the size that each link of the topology carries."""
    send, link = expand(schedule.route_start, schedule.route_links, schedule.route)
    total = np.zeros(len(schedule.topology.links), dtype=np.int64)
    np.add.at(total, link, schedule.share_num[schedule.chunk[send]])
    return [Fraction(int(value), schedule.share_den) for value in total]


def resource_loads(schedule: Schedule, shared: Resources) -> list[Fraction]:
    """The exact share of the size that passes each resource."""
    return [Fraction(value, schedule.share_den) for value in _whole_loads(schedule, shared).tolist()]


def _whole_loads(schedule: Schedule, shared: Resources) -> npt.NDArray[np.int64]:
    """What passes each resource, in parts of the size of which `share_den` are the whole."""
    send, resource = uses(schedule, shared)
    total = np.zeros(len(shared.names), dtype=np.int64)
    np.add.at(total, resource, schedule.share_num[schedule.chunk[send]])
    return total


def rate(schedule: Schedule) -> Fraction | None:
    """algbw in bytes/s that the loads allow: the least rate / load of any resource; None if nothing is sent."""
    shared = resources(schedule.topology)
    longest = shared.longest(_whole_loads(schedule, shared))
    return schedule.share_den / longest if longest else None
