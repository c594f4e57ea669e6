"""Faults of a machine as edits of it, and how many times as long jobs take with each of them.

One table says which classes of fault there are, which links each slows, and which command checks it. Times with
a fault and without are those of the library (`blinksim.timing.library_model`), as in every answer. A job on
several nodes is as slow as its slowest hop, so the ratio is that of the node with the fault and one more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import comb

import numpy as np

from blinksim import data_files
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Floats, Ints
from blinksim.machines import MachineLike, Question
from blinksim.textio.text_files import read_rows
from blinksim.timing.library_model import Library
from blinksim.timing.projection_result import Projection
from blinksim.topology.elements import Device
from blinksim.topology.symmetry import encoded, orbit_labels, searched

ASKED, SIZE = Collective("allreduce"), 2**28
ALL = "all"
LINK, GPU, NODE, RAIL = "link", "gpu", "node", "rail"
# A change of a time that nobody sees.
_NOTHING = 1e-3
# A time that grows with at least this power of what is slow.
_DECIDES = 0.75
_JOINS, _HOST, _PORT, _CPUS = "between GPUs", "to the host", "to the fabric", "between CPUs"


@dataclass(frozen=True)
class FaultClass:
    """One class of fault.

    slow: the sorts of links that it slows; at: at once on one link, one GPU, one node, or a port of every node;
    shares: of the bandwidth that is left, the largest first; check: commands that show it.
    """

    name: str
    words: str
    slow: tuple[str, ...]
    at: str
    shares: tuple[float, ...]
    check: str

    @classmethod
    def of(cls, row: dict[str, str]) -> FaultClass:
        """The class of a row of ``models/faults.csv``."""
        slow, shares = tuple(row["slow"].split("; ")), tuple(map(float, row["shares"].split()))
        return cls(row["name"], row["words"], slow, row["at"], shares, row["check"])


@cache
def classes() -> tuple[FaultClass, ...]:
    """All classes of fault."""
    return tuple(read_rows(data_files.folder("models") / "faults.csv", FaultClass.of, "class of fault"))


@dataclass(frozen=True)
class Target:
    """A fault of one class at one place of a node. pairs: the devices that its slow links join, by local name."""

    kind: FaultClass
    name: str
    pairs: tuple[tuple[str, str], ...]


def _sort_of(first: Device, second: Device) -> str:
    """What a link between these devices is for."""
    both, ends = (first, second), {first.kind, second.kind}
    if "nic" in ends and not ends & {"gpu", "tile", "card", "cpu", "pcie"}:
        return _PORT
    if all(one.holds or one.kind == "switch" for one in both):
        return _JOINS
    return _CPUS if ends == {"cpu"} else _HOST


class Faults:
    """The faults that a machine can have in one node, and what each does to jobs.

    Parameters
    ----------
    machine : str, path or Topology
        As for `blinksim.load`; one node.
    several : bool
        Jobs may span several nodes of it.

    Raises
    ------
    InputError, InfeasibleError
        As `blinksim.load` raises them.

    Examples
    --------
    >>> from blinksim.answers.logs.faults import Faults
    >>> found = Faults("hgx-h200", several=False)
    >>> found.targets[0].name, round(float(found.effects((0, 1))[2]), 1)
    ('gpu0-nvswitch', 0.7)
    """

    def __init__(self, machine: MachineLike, several: bool) -> None:
        self.machine, self.node = machine, Question(machine).whole()
        self.gpus = self.node.ranks
        self.several = several and self.node.nodes == 1
        self.cluster = Question(machine, nodes=2).whole() if self.several else self.node
        self.targets = tuple(self._targets())
        self.columns = [(place, share) for place, one in enumerate(self.targets) for share in one.kind.shares]
        self.places = np.array([place for place, _ in self.columns])
        self._known: dict[tuple[object, ...], Floats] = {}
        self._healthy: dict[tuple[object, ...], Projection] = {}
        self._orbits: dict[tuple[int, ...], tuple[tuple[int, ...], Ints]] = {}

    def _local(self, name: str) -> str:
        return name.removeprefix("n0.") if self.several else name

    def _targets(self) -> Iterator[Target]:
        whole = self.cluster
        links: dict[str, list[tuple[str, str]]] = {}
        for link in whole.links:
            ends = whole.device(link.src), whole.device(link.dst)
            pair = self._local(link.src), self._local(link.dst)
            first = not self.several or ends[0].node == 0
            listed = links.setdefault(_sort_of(*ends), [])
            if first and pair not in listed and pair[::-1] not in listed:
                listed.append(pair)
        for kind in classes():
            pairs = [pair for sort in kind.slow for pair in links.get(sort, ())]
            groups: dict[str, list[tuple[str, str]]] = {}
            for pair in pairs:
                holders = [name for name in map(self._local, self.cluster.members) if name in pair]
                at = {LINK: ["-".join(pair)], RAIL: pair[:1], GPU: holders, NODE: [ALL]}[kind.at]
                for name in at:
                    groups.setdefault(name, []).append(pair)
            # A node of one link is the link itself.
            if kind.at in (LINK, GPU) or len(pairs) > 1:
                yield from (Target(kind, name, tuple(found)) for name, found in groups.items())

    def edits(self, target: Target, share: float, nodes: Sequence[int] = ()) -> list[str]:
        """The fault as edits: of a node, or of these nodes of a cluster."""
        found = []
        for pair in target.pairs:
            for node in nodes or (-1,):
                before = f"n{node}." * (node >= 0)
                names = [f"{before * (name in self.node.index)}{name}" for name in pair]
                seen = [f"n0.{name}" if self.several and name in self.node.index else name for name in pair]
                ends = self.cluster.links_between(*seen), self.cluster.links_between(*seen[::-1])
                rate = min(link.lane_bandwidth for way in ends for link in way)
                found.append(f"degrade {'-'.join(names)} bandwidth={float(rate) * share / 1e9:.6g}GB/s")
        return found

    def projection(
        self, local: Sequence[Sequence[int]], collective: Collective, size: int, edits: Sequence[str] = ()
    ) -> Projection:
        """What the library takes for a job on these GPUs of each node; kept where nothing is edited."""
        key = tuple(map(tuple, local)), collective, size
        if edits or key not in self._healthy:
            members = [node * self.gpus + gpu for node, gpus in enumerate(local) for gpu in gpus]
            asked = Question.of(self.machine, nodes=len(local), members=members, edits=edits)
            model, where = Library().at(asked)
            found = model.times(where, collective, [size])[0]
            if edits:
                return found
            self._healthy[key] = found
        return self._healthy[key]

    def alike(self, local: tuple[int, ...]) -> tuple[tuple[int, ...], Ints]:
        """GPUs of a node that stand for these, and a symmetry of the node that takes those to these."""
        if local not in self._orbits:
            identity, count = np.arange(len(self.node.devices)), len(local)
            gpus = list(self.node.member_places)
            number = {place: gpu for gpu, place in enumerate(gpus)}
            self._orbits[local] = local, identity
            order = [local] if comb(self.gpus, count) <= 2000 else []
            for here in order:
                for move in searched(self.node):
                    there = tuple(sorted(number[int(move[gpus[gpu]])] for gpu in here))
                    if there not in self._orbits:
                        self._orbits[there] = local, move[self._orbits[here][1]]
                        order.append(there)
        return self._orbits[local]

    def effects(
        self,
        local: tuple[int, ...],
        other: tuple[int, ...] | None = None,
        collective: Collective = ASKED,
        size: int = SIZE,
    ) -> Floats:
        """For each of `columns` (target and share) the logarithm of the time with the fault over that without.

        local: the GPUs of the job on the node with the fault; other: those on another node, None without one.
        """
        identity = np.arange(len(self.node.devices))
        first, move = self.alike(local) if other in (None, local) else (local, identity)
        key = first, first if other == local else other, collective, size
        if key not in self._known:
            self._known[key] = self._effects(*key)
        return self._known[key][self._moved(move)]

    def _moved(self, move: Ints) -> Ints:
        """For each column the one that the symmetry takes to it."""
        names = [device.name for device in self.node.devices]
        goes = {names[place]: names[int(image)] for place, image in enumerate(move)}
        came, own = dict[tuple[object, ...], int](), list[tuple[object, ...]]()
        for place, target in enumerate(self.targets):
            # What joins the nodes is none of a node's devices.
            pairs = [frozenset(name for name in pair if name in goes) for pair in target.pairs]
            own.append((target.kind.name, frozenset(pairs)))
            moved = frozenset(frozenset(goes[name] for name in pair) for pair in pairs)
            came[target.kind.name, moved] = place
        starts = np.searchsorted(self.places, np.arange(len(self.targets)))
        many = [len(target.kind.shares) for target in self.targets]
        return np.concatenate([starts[came[key]] + np.arange(n) for key, n in zip(own, many, strict=True)])

    def _effects(
        self, local: tuple[int, ...], other: tuple[int, ...] | None, collective: Collective, size: int
    ) -> Floats:
        job = (local,) if other is None else (local, other)
        healthy = self.projection(job, collective, size).time_s
        members = {self.node.members[gpu] for gpu in local}
        idle = set(self.node.members) - members
        labels, found, done = self._labels(job), list[list[float]](), dict[tuple[object, ...], list[float]]()
        # Links of a sort that change nothing if all of a node are slow need not be asked for one by one.
        sound = set[tuple[str, ...]]() if other is not None else {(_PORT,)}
        for target in self.targets:
            kind, ends = target.kind, {name for pair in target.pairs for name in pair}
            unseen = kind.slow in sound or (kind.at == LINK and bool(ends & idle)) or target.name in idle
            key = (kind.name, unseen, *sorted(labels.get(frozenset(pair), -1) for pair in target.pairs))
            if key not in done:
                share = [0.0] * len(kind.shares)
                done[key] = share if unseen else self._by_share(target, job, collective, size, healthy)
                sound |= {kind.slow} if kind.at == NODE and not any(done[key]) else set()
            found.append(done[key])
        return np.array([effect for row in found for effect in row])

    def _by_share(
        self, target: Target, job: Sequence[tuple[int, ...]], collective: Collective, size: int, healthy: float
    ) -> list[float]:
        """The effects of a fault by the share that is left, from times at the least one and at one half-way.

        What is slow decides all of the time in between (which then grows as it slows), or none of it.
        """
        slow, nodes = [-math.log(share) for share in target.kind.shares], () if len(job) == 1 else (0,)
        effects = list[float]()
        for share in (target.kind.shares[-1], target.kind.shares[len(slow) // 2]):
            edits = self.edits(target, share, (0, 1) if nodes and target.kind.at == RAIL else nodes)
            try:
                time_s = self.projection(job, collective, size, edits).time_s
                effects.append(max(0.0, math.log(time_s / healthy)))
            except InfeasibleError:
                effects.append(-math.log(share))
            if effects[0] < _NOTHING or effects[0] > _DECIDES * slow[-1]:
                return [min(effects[0], each) for each in slow]
        most, middle, half = *effects, slow[len(slow) // 2]
        if most - middle < (slow[-1] - half) / 2:
            # Another way is quicker from some share on.
            return [min(middle, each) if each <= half else min(most, middle + each - half) for each in slow]
        return [max(0.0, most - slow[-1] + each) for each in slow]

    def _labels(self, job: Sequence[tuple[int, ...]]) -> dict[frozenset[str], int]:
        """The pairs of linked devices by orbit, of what keeps the job's GPUs among themselves."""
        several = len(job) > 1
        whole = self.cluster if several else self.node
        names = [whole.members[node * self.gpus + gpu] for node, gpus in enumerate(job) for gpu in gpus]
        part = replace(whole, members=tuple(names), relays=())
        known = encoded(part)
        images = [known.image(move) for move in searched(part)]
        labels = orbit_labels(len(part.links), [image for image in images if image is not None])
        ends = [frozenset(map(self._local, (link.src, link.dst))) for link in part.links]
        return dict(zip(ends, labels.tolist(), strict=True))
