"""The order of a machine's GPUs in a device mesh: which groups of ranks the mesh makes of them.

Branch and bound (Land and Doig, 1960) over the orders, one GPU after another. A group that is only begun counts
with the best rate of all groups that it may become; orders that only rename the parts of an axis make the same
groups, and one of them is tried. Groups whose parts have links in common are bounded together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import inf
from typing import Any

from blinksim.answers.bound import together
from blinksim.answers.expect import VISIBLE
from blinksim.answers.place import of_ranks, place
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import MachineLike, as_topology, mesh_groups
from blinksim.results import Result, keyed
from blinksim.textio.text_table import table
from blinksim.topology.graph import Topology
from blinksim.topology.selection import neighbours
from blinksim.topology.symmetry import searched
from blinksim.units import exact_GBps, format_time, in_GBps, size_of

# Orders begun and sets of groups bounded together, up to which a search for better ones goes on: each takes about 10 s.
# A tenth of the steps for the others as good.
_MOST_STEPS, _MOST_SHARED = 300_000, 100
# Images of a set of groups under the machine's symmetries.
_MOST_IMAGES = 5_000


@dataclass(frozen=True)
class Order:
    """GPUs in the order of a mesh, whose last axis is the innermost.

    rates: algbw in bytes/s of the slowest group along each axis, all groups of the axis at once; 0 where links do not
    connect one.
    """

    members: tuple[str, ...]
    rates: tuple[Fraction, ...]


@dataclass(frozen=True, repr=False)
class MeshOrder(Result):
    """The best order of a machine's GPUs in a device mesh.

    Attributes
    ----------
    machine : Topology
        Whose GPUs they are.
    mesh : str
        Its sides, such as ``2x4``.
    collective : Collective
        What the groups of every axis run, one axis after the other.
    sizes : tuple of int
        Bytes of a group of each axis; empty where none are given, and then a byte of each counts alike.
    best, default : Order
        The best order, and that of the machine file.
    alike : int
        How many other orders with other groups are as good; of as many as were tried if not `counted`.
    counted, exact : bool
        False if the search for more of these, or for better ones, was cut short.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.place_mesh("dgx1-v100", "4x2")
    >>> found.best.members[:2], round(found.slowdown, 2)
    (('gpu0', 'gpu3'), 1.67)
    """

    machine: Topology
    mesh: str
    collective: Collective
    sizes: tuple[int, ...]
    best: Order
    default: Order
    alike: int
    counted: bool
    exact: bool

    @property
    def axes(self) -> list[int]:
        """The sides of the mesh."""
        return [int(side) for side in self.mesh.split("x")]

    def times(self, order: Order) -> list[float]:
        """Seconds that every axis takes for its size, or for one byte; infinite without links."""
        each = zip(self.sizes or [1] * len(order.rates), order.rates, strict=True)
        return [float(size / rate) if rate else inf for size, rate in each]

    @property
    def slowdown(self) -> float:
        """How many times as long the axes take, one after another, in the order of the machine file."""
        return sum(self.times(self.default)) / sum(self.times(self.best))

    @property
    def numbers(self) -> list[int]:
        """The best order as numbers of GPUs in the machine file."""
        return [self.machine.members.index(name) for name in self.best.members]

    def setting(self) -> str:
        """What makes this the order of the ranks of a job."""
        named = [re.fullmatch("gpu([0-9]+)", name) for name in self.best.members]
        if all(named):
            variable = VISIBLE.get(self.machine.device(self.best.members[0]).library.upper(), VISIBLE["NCCL"])
            return f"{variable}={','.join(name[1] for name in named if name)} before init_device_mesh"
        rows: list[Any] = self.numbers
        for side in self.axes[:0:-1]:
            rows = [rows[at : at + side] for at in range(0, len(rows), side)]
        return f"DeviceMesh(device, {str(rows).replace(' ', '')})"

    def _time(self, order: Order) -> float | None:
        """Seconds of all axes one after another; None without sizes, or if links do not connect a group."""
        return sum(self.times(order)) if self.sizes and all(order.rates) else None

    def rows(self) -> list[dict[str, Any]]:
        """A row for the best order and for that of the machine file."""
        rows = list[dict[str, Any]]()
        for name, one in (("best", self.best), ("default", self.default)):
            exact, rounded = ([said(rate) for rate in one.rates] for said in (exact_GBps, in_GBps))
            more = {"order": name, "rates_exact": exact, "algbw_GBps": rounded, "time_s": self._time(one)}
            rows.append(keyed(one, "order members rates_exact algbw_GBps time_s?", **more))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        keys = "mesh sizes_bytes=sizes alike counted proved=exact slowdown? setting"
        slower = self.slowdown if all(self.default.rates) else None
        return keyed(self, keys, slowdown=slower, setting=self.setting()) | super().to_dict()

    def sentence(self) -> str:
        """The answer in one line."""
        members = "that of the machine file" if self.best == self.default else ",".join(map(str, self.numbers))
        others = f"{'' if self.counted else 'at least '}{self.alike:,} other{'s' * (self.alike != 1)} as good"
        reach = "the best order" if self.exact else "the best order found"
        return f"mesh {self.mesh} of {self.machine.name} for {self.collective}: {reach} is {members}, {others}"

    def text(self) -> str:
        """The sentence, the rates of both orders, and what to set."""
        cells = list[list[str]]()
        for name, order in (("best", self.best), ("as in the file", self.default)):
            rates = (f"{in_GBps(rate):.4g}" if rate else "not connected" for rate in order.rates)
            time_s = self._time(order)
            cells.append([name, *rates, *["-" if time_s is None else format_time(time_s)] * bool(self.sizes)])
        header = ["order", *(f"axis {number}, GB/s" for number in range(len(self.axes)))]
        lines = [self.sentence(), "", table([*header, *["one after another"] * bool(self.sizes)], cells, left=(0,))]
        lines += [f"  links {', '.join(self.machine.default_links())} at {self.machine.rates} rates"]
        return "\n".join([*lines, f"  set {self.setting()}"])


def place_mesh(
    machine: MachineLike,
    mesh: str,
    collective: CollectiveLike = "allreduce",
    size: int | float | str | Sequence[int | float | str] | None = None,
) -> MeshOrder:
    """The order of a machine's GPUs in a device mesh in which the groups of all axes take the least time.

    The groups of one axis run at once, one axis after the other.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology, all of whose members take part.
    mesh : str
        The sides, such as ``"2x4"``; the last axis is the innermost.
    collective : str or Collective
        What the groups run, one without a root that trees carry.
    size : int, str, or a sequence of these, optional
        Bytes of each group, or text such as ``"64MiB"``, or one for every axis. Default: a byte of each axis counts
        alike.

    Returns
    -------
    MeshOrder
        The best order with the rates of its axes, those of the order in the machine file, and what to set.

    Raises
    ------
    InputError
        For a mesh of other than the machine's ranks, sizes of some axes only, and collectives with a root or without
        trees.
    InfeasibleError
        If the links connect the groups of no order.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.place_mesh("dgx1-v100", "4x2").setting()
    'CUDA_VISIBLE_DEVICES=0,3,1,2,4,7,5,6 before init_device_mesh'
    """
    topology, wanted = as_topology(machine), Collective.of(collective)
    if wanted.rooted or wanted.personalized:
        raise InputError(f"groups of a mesh have collectives without a root that trees carry, not {wanted.name}")
    mesh_groups(mesh, topology.ranks)
    sides = [int(side) for side in mesh.split("x")]
    if 1 in sides:
        raise InputError(f"mesh={mesh}: leave sides of 1 out")
    given = [size] * len(sides) if isinstance(size, (int, float, str)) else list(size or ())
    if len(given) not in (0, len(sides)):
        raise InputError(f"size: give one for all axes of mesh={mesh}, or {len(sides)}")
    sizes = tuple(map(size_of, given))
    search = _Search(topology, wanted, mesh, sizes or (1,) * len(sides))
    best, exact = search.best()
    if best is None:
        raise InfeasibleError(f"mesh={mesh} of {topology.name}: the links connect the groups of no order")
    alike, counted = search.alike(best)
    ordered = (Order(tuple(topology.members[i] for i in one), search.rates(one)) for one in (best, range(len(best))))
    return MeshOrder(topology, mesh, wanted, sizes, next(ordered), next(ordered), alike - 1, counted, exact)


class _Search:
    """Orders of the ranks of a machine in a mesh.

    weights: the time of an axis is its weight over its rate. axes: of each, the places in an order that are a group.
    alone: the rate of every group, a number whose bits are ranks. most: of each axis, the best rate of the groups that
    one may become which has these ranks so far. limit: orders that take as long are of no interest. steps, shared: how
    many more may be begun, and bounded together; cut: if one of these ran out.
    """

    def __init__(self, topology: Topology, collective: Collective, mesh: str, weights: Sequence[int]) -> None:
        self.topology, self.collective, self.weights = topology, collective, weights
        self.axes, self.alone, self.most = list[list[list[int]]](), dict[int, Fraction](), list[dict[int, float]]()
        bits = {name: 1 << number for number, name in enumerate(topology.members)}
        for axis in range(len(weights)):
            groups = mesh_groups(mesh, topology.ranks, axis)
            self.axes.append([[int(place) for place in group.split(",")] for group in groups])
            side = len(self.axes[-1][0])
            found = place(topology, side, collective)
            if not found.whole:
                raise InfeasibleError(f"mesh={mesh}: {topology.name} has too many groups of {side} GPUs to try")
            rates = {sum(bits[name] for name in row.members): row.rate or Fraction(0) for row in found}
            self.alone |= rates
            self.most.append({})
            level = {group: float(rate) for group, rate in rates.items()}
            while level:
                self.most[-1] |= level
                above, level = level, {}
                for group, rate in above.items():
                    for bit in bits.values():
                        if group & bit:
                            level[group ^ bit] = max(rate, level.get(group ^ bit, 0.0))
        self.together, self.links = dict[frozenset[int], Fraction](), dict[int, set[str]]()
        self.moves = [image.tolist() for image in of_ranks(topology, searched(topology))]
        self.limit, self.steps, self.shared, self.cut = inf, _MOST_STEPS, _MOST_SHARED, False

    def best(self) -> tuple[list[int] | None, bool]:
        """The best order, None if links connect the groups of none, and whether it is sure that none is better."""
        found, least = None, self._time([most[0] for most in self.most])
        for order in self._orders():
            if (time := self.time(order)) < self.limit:
                # Less than rounding is no difference.
                found, self.limit = order, time * (1 - 1e-9)
                if self.limit <= least:
                    break
        return found, not self.cut or self.limit <= least

    def alike(self, best: Sequence[int]) -> tuple[int, bool]:
        """How many orders take as little time as this one, itself included, and whether all of them are counted."""
        self.limit, self.steps, self.shared = self.time(best) * (1 + 1e-9), _MOST_STEPS // 10, _MOST_SHARED
        self.cut = False
        return sum(self.time(order) < self.limit for order in self._orders()), not self.cut

    def time(self, order: Sequence[int]) -> float:
        """The time of all axes; only a lower bound where that is `limit` or more."""
        rates = [float(min(self.alone[group] for group in axis)) for axis in self._groups(order)]
        for number, axis in enumerate(self._groups(order)):
            if self._time(rates) < self.limit:
                rates[number] = float(self.rate(axis))
        return self._time(rates)

    def rates(self, order: Sequence[int]) -> tuple[Fraction, ...]:
        """The rates of the axes in this order."""
        return tuple(map(self.rate, self._groups(order)))

    def rate(self, groups: Sequence[int]) -> Fraction:
        """The rate of the slowest of some groups at once, 0 where links do not connect one."""
        key, alone = frozenset(groups), min(self.alone[group] for group in groups)
        if alone and key not in self.together:
            members = [[name for i, name in enumerate(self.topology.members) if one >> i & 1] for one in groups]
            for one, names in zip(groups, members, strict=True):
                self.links[one] = self.links.get(one) or _on_the_way(self.topology.select(names))
            own = [self.links[one] for one in groups]
            if len(set[str]().union(*own)) < sum(map(len, own)):
                self.shared -= 1
                alone = min(one.rate for one in together(self.topology, map(",".join, members), self.collective).groups)
                self.together |= dict.fromkeys(self._images(key), alone)
            self.together[key] = alone
        return self.together.get(key, alone)

    def _images(self, groups: frozenset[int]) -> list[frozenset[int]]:
        """These groups, and those that symmetries make of them."""
        images, seen = [groups], {groups}
        for one in images:
            for move in self.moves:
                image = frozenset(sum(1 << move[i] for i in range(len(move)) if group >> i & 1) for group in one)
                if image not in seen and len(seen) < _MOST_IMAGES:
                    seen.add(image)
                    images.append(image)
        return images

    def _time(self, rates: Sequence[float]) -> float:
        """The time of axes with these rates, one after another."""
        return sum(weight / rate if rate else inf for weight, rate in zip(self.weights, rates, strict=True))

    def _groups(self, order: Sequence[int]) -> list[list[int]]:
        """The groups of every axis."""
        return [[sum(1 << order[place] for place in group) for group in axis] for axis in self.axes]

    def _orders(self) -> Iterator[list[int]]:
        """Orders of other groups each, those that may take less than `limit`, which may fall meanwhile."""
        ranks, order = self.topology.ranks, list[int]()
        # The first GPU comes first, and the parts of every axis in the order of the GPUs beside it.
        after = {b: a for axis in self.axes for group in axis if group[0] == 0 for a, b in pairwise(group)}
        numbers = [{place: n for n, group in enumerate(axis) for place in group} for axis in self.axes]
        at = [[number[place] for number in numbers] for place in range(ranks)]
        begun = [[0] * len(axis) for axis in self.axes]

        def extend(rates: Sequence[float]) -> Iterator[list[int]]:
            place, choices = len(order), list[tuple[float, int, list[float]]]()
            if place == ranks:
                yield order.copy()
                return
            self.steps -= 1
            mine = list(zip(begun, at[place], self.most, strict=True))
            for rank in range(order[after[place]] + 1 if place in after else 0, ranks if place else 1):
                if rank not in order:
                    both = zip(rates, (most.get(axis[n] | 1 << rank, 0.0) for axis, n, most in mine), strict=True)
                    now = [min(pair) for pair in both]
                    choices.append((self._time(now), rank, now))
            for time, rank, now in sorted(choices):
                if self.steps < 0 or self.shared < 0:
                    self.cut = True
                    return
                if time < self.limit:
                    order.append(rank)
                    for axis, n, _ in mine:
                        axis[n] |= 1 << rank
                    yield from extend(now)
                    order.pop()
                    for axis, n, _ in mine:
                        axis[n] ^= 1 << rank

        yield from extend([most[0] for most in self.most])


def _on_the_way(part: Topology) -> set[str]:
    """Links, buses and switches between the members of a part, for which groups may compete."""
    near, members = neighbours(part), {*part.members}
    while ends := [name for name, others in near.items() if len(others) < 2 and name not in members]:
        for name in ends:
            for other in near.pop(name):
                near[other].discard(name)
    found = {link.name for link in part.links if link.src in near and link.dst in near}
    found |= {link.bus for link in part.links if link.bus and link.src in near and link.dst in near}
    return found | {name for name in near if part.device(name).capacity is not None}
