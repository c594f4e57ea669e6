"""Faults of a machine as edits of it, and how many times as long jobs take with each of them.

One table says which classes of fault there are, which links each slows, and which command checks it. Times with
a fault and without are those of the library (`blinksim.timing.library_model`), as in every answer. A job on
several nodes is as slow as its slowest hop, so the ratio is that of the node with the fault and one more.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain

import numpy as np

from blinksim import data_files
from blinksim.answers.logs.expectation import USUAL, Expectation, Expected, Ran
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Floats, Ints
from blinksim.graphs.connectivity import distances, grouped
from blinksim.machines import MachineLike, Question, at_nominal
from blinksim.textio.text_files import read_rows
from blinksim.topology.edits import in_ranges
from blinksim.topology.elements import RCCL, Device
from blinksim.topology.symmetry import encoded, orbit_labels, searched

ASKED, SIZE = Collective("allreduce"), 2**28
# A link, rail or direction of two that is down: by which factor a typical fault lowers the bandwidth.
TYPICAL = 2
ALL = "all"
Gpus = tuple[int, ...]
Words = tuple[str, ...]
# The GPUs of each node, and beside the numbers of nodes.
Job = Sequence[Gpus]
Placed = Sequence[tuple[int, Gpus]]
# GPUs of a node, and the adapters that it takes, none for all.
Part = tuple[Gpus, Words]
LINK, GPU, NODE, RAIL, LEAF, EVERY = "link", "gpu", "node", "rail", "leaf", "every"
# Between shares that are nearer in the list times are interpolated, and where they grow by less than this
# share of what is slow, or more than the rest of it.
_FINEST, _STEADY = 3, 0.06
_JOINS, _HOST, _PORT = "between GPUs", "to the host", "to the fabric"
_CPUS, _UP = "between CPUs", "above a leaf"


@dataclass(frozen=True)
class FaultClass:
    """One class of fault.

    slow: the sorts of links that it slows, none of what is on all nodes; at: at once on one link, one GPU, one node,
    a port of every node, or on every node alike, or `gone`, what the machine lacks;
    shares: of the bandwidth that is left, the largest first; check: commands that show it; told: a pattern of
    what NCCL says of a host that has it; unless: what a log shows that excludes it, as `Diagnosis.shown`.
    """

    name: str
    words: str
    slow: tuple[str, ...]
    at: str
    shares: tuple[float, ...]
    check: str
    told: str = ""
    unless: tuple[str, ...] = ()


@cache
def classes(library: str, networks: Words) -> tuple[FaultClass, ...]:
    """The classes of fault in ``models/faults.csv`` that slow runs of a library, as its GPUs and networks have them."""
    found, columns = list[FaultClass](), networks + ("amd",) * (library == RCCL)
    for row in read_rows(data_files.folder("models") / "faults.csv", dict, "class of fault"):
        if library in row["libraries"].split():
            slow, shares = tuple(row["slow"].split("; ")), tuple(map(float, row["shares"].split()))
            words = row["words"].replace("NVLink", "xGMI") if library == RCCL else row["words"]
            check = next((row[name] for name in columns if row.get(name)), row["check"])
            unless = tuple(row["unless"].split("; "))
            found.append(FaultClass(row["name"], words, slow, row["at"], shares, check, row["told"], unless))
    return tuple(found)


@dataclass(frozen=True)
class Target:
    """A fault of one class at one place of a node. pairs: the devices that its slow links join."""

    kind: FaultClass
    name: str
    pairs: tuple[tuple[str, str], ...]


def sort_of(first: Device, second: Device) -> str:
    """What a link between these devices is for."""
    both, ends = (first, second), {first.kind, second.kind}
    if "nic" in ends and not ends & {"gpu", "tile", "card", "cpu", "pcie"}:
        return _PORT
    if all(one.holds or one.kind == "switch" for one in both):
        return _JOINS
    return _CPUS if ends == {"cpu"} else _UP if ends == {"fabric"} else _HOST


class Faults:
    """The faults that a machine can have in one node, and what each does to jobs.

    Parameters
    ----------
    machine : str, path or Topology
        As for `blinksim.load`; one node.
    several : bool
        Jobs may span several nodes of it.
    edits : sequence of str
        What it has that the catalogue's has not, such as another fabric.
    ran : Ran
        How the library runs.
    more : sequence of Target
        Faults besides those of the table, such as several of its links at once.

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

    def __init__(
        self, machine: MachineLike, several: bool, edits: Words = (), ran: Ran = USUAL, more: Sequence[Target] = ()
    ) -> None:
        self.ran = ran
        self.machine, self.given, self.node = machine, edits, Question(machine, edits=edits).whole()
        self.gpus = self.node.ranks
        self.several = several and self.node.nodes == 1
        self.cluster = Question(machine, nodes=2, edits=edits).whole() if self.several else self.node
        # How many nodes a leaf switch joins.
        tiers = self.node.fabric.tiers() if self.several and self.node.fabric else ()
        self.width = tiers[0].nodes or sys.maxsize if tiers else sys.maxsize
        self._expected: dict[tuple[object, ...], Expectation] = {}
        self.targets = (*self._targets(), *more)
        self.uplinks = [one for one in self.targets if one.kind.at == LEAF]
        self.columns = [(place, share) for place, one in enumerate(self.targets) for share in one.kind.shares]
        self.places = np.array([place for place, _ in self.columns])
        # Links by their ends in a node.
        every = dict.fromkeys(chain(*(one.pairs for one in self.targets)))
        self._links = grouped((frozenset(pair).intersection(self.node.index), pair) for pair in every)
        self._known: dict[tuple[object, ...], Floats] = {}
        self._parted = cache(self._parted_of)
        self._done: dict[tuple[object, ...], list[float]] = {}
        self._orbits: dict[Part, tuple[Part, Ints]] = {}
        # Which adapters a job takes is a choice where a node has several.
        nics = [device.name for device in self.node.devices if device.kind == "nic"] if self.several else []
        self.nics = tuple(nics) if len(nics) > 1 else ()

    def lost(self, said: Iterable[str], adapters: Mapping[str, str]) -> tuple[Target, ...]:
        """As one fault the adapters, if several, that NCCL says that a host leaves out; see `named_by`."""
        found = dict[tuple[tuple[str, str], ...], Target]()
        for words in said:
            named = (self.targets[number] for number in self.named_by(words, adapters))
            down = [one for one in named if not any(one.kind.shares)]
            pairs = tuple(chain(*(one.pairs for one in down)))
            own = ",".join(in_ranges(nic for nic in self.nics if nic in chain(*pairs)))
            found |= {pairs: replace(down[0], name=own, pairs=pairs)} if down[1:] else {}
        return tuple(found.values())

    def _local(self, name: str) -> str:
        return name.removeprefix("n0.") if self.several else name

    def _targets(self) -> Iterator[Target]:
        links: dict[str, list[tuple[str, str]]] = {}
        for link in self.cluster.links:
            ends = self.cluster.device(link.src), self.cluster.device(link.dst)
            pair = self._local(link.src), self._local(link.dst)
            first = not self.several or ends[0].node == 0 or pair[0].endswith(".leaf0")
            listed = links.setdefault(sort_of(*ends), [])
            if first and pair not in listed and pair[::-1] not in listed:
                listed.append(pair)
        for kind in classes(self.node.device(self.node.members[0]).library, self.node.inter_node_links):
            pairs = [pair for sort in kind.slow for pair in links.get(sort, ())]
            groups: dict[str, list[tuple[str, str]]] = {}
            for pair in pairs:
                holders = [name for name in map(self._local, self.cluster.members) if name in pair]
                whole = ["-".join(pair)]
                for name in {LINK: whole, LEAF: whole, RAIL: pair[:1], GPU: holders, NODE: [ALL]}[kind.at]:
                    groups.setdefault(name, []).append(pair)
            # A node of one link is the link itself.
            if kind.at in (LINK, GPU, LEAF) or len(pairs) > 1:
                yield from (Target(kind, name, tuple(found)) for name, found in groups.items())

    def named_by(self, words: str, adapters: Mapping[str, str]) -> tuple[int, ...]:
        """The numbers of the targets that NCCL may mean by what it says that a host lacks.

        adapters: those of a node by what NCCL calls them; where the words name some, these alone.
        """
        nics, found = {adapters.get(name) for name in re.findall(r"[\w-]+", words)} - {None}, list[int]()
        for number, one in enumerate(self.targets):
            own = {*chain(*one.pairs)} & {*self.nics}
            fits = own <= nics if one.kind.at == LINK else own & nics
            found += [number] * bool(one.kind.told and re.search(one.kind.told, words) and (fits or not nics))
        return tuple(found)

    def named(self, name: str, node: int) -> str:
        """The name of a device or link at a node; that of the first leaf stands for the node's own."""
        return re.sub(r"(?<=\.)(leaf|group)0(?=-|$)", rf"\g<1>{node // self.width}", name)

    def edits(self, target: Target, share: float, nodes: Sequence[int] = ()) -> Words:
        """The fault as edits: of a node, or of these nodes of a cluster."""
        found = []
        for pair in target.pairs:
            for before, node in [(f"n{node}.", node) for node in nodes] or [("", 0)]:
                names = [f"{before * (name in self.node.index)}{self.named(name, node)}" for name in pair]
                seen = [f"n0.{name}" if self.several and name in self.node.index else name for name in pair]
                ends = self.cluster.links_between(*seen), self.cluster.links_between(*seen[::-1])
                rate = float(min(link.lane_bandwidth for way in ends for link in way)) * share / 1e9
                edit = f"degrade {{}} bandwidth={rate:.6g}GB/s" if share else "without {}"
                found.append(edit.format("-".join(names)))
        return tuple(found)

    def _without(self, nodes: int, nics: Words) -> tuple[str, ...]:
        """Edits that leave each of so many nodes no adapters but these."""
        return tuple(f"without n[0-{nodes - 1}].{name}" for name in self.nics if nics and name not in nics)

    def projection(
        self, local: Job, collective: Collective, size: int, edits: Words = (), nics: Words = ()
    ) -> Expected:
        """What the library takes for a job on these GPUs of each node.

        nics: the adapters that it may take on each of several nodes; none for all.
        """
        model = self.expectation(local, collective, edits, nics).takes
        return Expected.of(model.times(model.machine, collective, [size])[0])

    def expectation(self, local: Job, collective: Collective, edits: Words = (), nics: Words = ()) -> Expectation:
        """What is expected of such a job."""
        key = tuple(map(tuple, local)), collective, edits, nics
        if key not in self._expected:
            members = [node * self.gpus + gpu for node, gpus in enumerate(local) for gpu in gpus]
            less = *self.given, *edits, *self._without(len(local), nics)
            question = Question.of(self.machine, nodes=len(local), members=members, edits=less)
            whole = question.whole()
            self._expected[key] = Expectation(at_nominal(question.part(whole)), whole, collective, self.ran)
        return self._expected[key]

    def nearest(self) -> Iterator[tuple[str, int]]:
        """Each adapter and a GPU: of those nearest to it the one whose turn it is."""
        near = grouped((self.node.index[link.src], self.node.index[link.dst]) for link in self.node.links)
        for place, name in enumerate(self.nics):
            hops = distances(self.node.index[name], lambda at: near.get(at, ()))
            turn, gpus = place * self.gpus // len(self.nics), self.node.member_places
            far = [(hops.get(int(at), math.inf), (gpu - turn) % self.gpus) for gpu, at in enumerate(gpus)]
            yield name, far.index(min(far))

    def alike(self, local: Gpus, nics: Words = ()) -> tuple[Part, Ints]:
        """GPUs and adapters of a node that stand for these, and a symmetry that takes those to these."""
        part = local, nics
        if part not in self._orbits:
            identity, count = np.arange(len(self.node.devices)), len(local)
            gpus = list(self.node.member_places)
            number = {place: gpu for gpu, place in enumerate(gpus)}
            self._orbits[part] = part, identity
            order = [part] if math.comb(self.gpus, count) <= 2000 else []
            for here in order:
                for move in searched(self.node):
                    moved = (self.node.devices[int(move[self.node.index[name]])].name for name in here[1])
                    there = tuple(sorted(number[int(move[gpus[gpu]])] for gpu in here[0])), tuple(sorted(moved))
                    if there not in self._orbits:
                        self._orbits[there] = part, move[self._orbits[here][1]]
                        order.append(there)
        return self._orbits[part]

    def placed(self, job: Placed, nics: Words = (), first: int = -1) -> tuple[Job, Words]:
        """The GPUs of each node, or none, and the adapters of a job that takes as long.

        Nodes are alike, and so are leaf switches, of which the one with the number `first` comes first.
        """
        alike = {self.alike(local, nics)[0] for _, local in job}
        # Other GPUs at the other end are on another rail, and which of several uplinks a rail has is its own.
        if len(alike) == len({own for _, own in job}) == 1 and (first < 0 or len(self.uplinks) < 2):
            [(local, nics)] = alike
            job = [(node, local) for node, _ in job]
        leaves, found = grouped((node // self.width, local) for node, local in job), list[Gpus]()
        for _, _, own in sorted((leaf != first, -len(own), sorted(own)) for leaf, own in leaves.items()):
            found += [()] * (-len(found) % self.width) + own
        return tuple(found), nics

    def above(self, job: Placed, leaf: int, collective: Collective, size: int, nics: Words) -> Floats:
        """As `effects`, of the links above a leaf switch alone; none where the job stays below one leaf."""
        key = *self.placed(job, nics, leaf), collective, size
        if key not in self._known:
            crossed = self.uplinks if len(key[0]) > self.width else []
            rows = [self._by_share(one, key[0], collective, size, key[1]) for one in crossed]
            self._known[key] = np.array([effect for row in rows for effect in row])
        return self._known[key]

    def effects(
        self, local: Gpus, other: Gpus | None = None, collective: Collective = ASKED, size: int = SIZE, nics: Words = ()
    ) -> Floats:
        """For each of `columns` (target and share) the logarithm of the time with the fault over that without.

        local: the GPUs of the job on the node with the fault; other: those on another node, None without one;
        nics: the adapters that it takes, none for all.
        """
        asked = (local, nics), other, collective, size
        if asked not in self._known:
            identity = np.arange(len(self.node.devices))
            first, move = self.alike(local, nics) if other in (None, local) else ((local, nics), identity)
            where = first, first[0] if other == local else other
            self._known[asked] = self._effects(*where, (collective, size), move)
        return self._known[asked]

    def _moved(self, target: Target, back: Mapping[str, str]) -> Target:
        """The fault where a symmetry of the node takes it; what joins the nodes is none of its devices."""
        pairs = list[tuple[str, str]]()
        for pair in target.pairs:
            own = frozenset(pair).intersection(back)
            pairs.append(self._links[frozenset(map(back.__getitem__, own))][self._links[own].index(pair)])
        return replace(target, name=back.get(target.name, target.name), pairs=tuple(pairs))

    def _effects(self, part: Part, other: Gpus | None, of: tuple[Collective, int], move: Ints) -> Floats:
        """of: a collective and its size; move: the symmetry that takes the devices of the part to those asked of."""
        local, nics = part
        job, found, devices = (local,) if other is None else (local, other), list[float](), self.node.devices
        labels, idle, spared = self._parted(job, nics)
        back = {devices[int(image)].name: devices[place].name for place, image in enumerate(move)}
        # Links of a sort that change nothing if all of a node are slow need not be asked for one by one.
        sound: set[Words] = {(_UP,)} if other is not None else {(_PORT,), (_UP,)}
        for target in map(partial(self._moved, back=back), self.targets):
            kind, orbits = target.kind, sorted(labels.get(frozenset(pair), -1) for pair in target.pairs)
            unseen = kind.slow in sound or target.name in idle
            unseen |= kind.at == LINK and all(idle.intersection(pair) for pair in target.pairs)
            unseen |= kind.slow == (_PORT,) and len(orbits) == 1 and not spared.isdisjoint(orbits)
            key = part, other, of, kind.name, unseen, *orbits
            if key not in self._done:
                asked = [0.0] * len(kind.shares) if unseen else self._by_share(target, job, *of, nics)
                self._done[key] = asked
            sound |= {kind.slow} if kind.at == NODE and not any(self._done[key]) else set()
            found += self._done[key]
        return np.array(found)

    def _by_share(self, target: Target, job: Job, collective: Collective, size: int, nics: Words) -> list[float]:
        """The effects of a fault by the share that is left: asked at the least one, at one half-way, and so on.

        Not between two of which what is slow decides all of the time, or none of what one has more.
        """
        # Where nothing is left a thousandth counts, if there is no way past it.
        slow, nodes = [-math.log(x or 1e-3) for x in target.kind.shares], () if len(job) == 1 else (0,)
        healthy, last = self.projection(job, collective, size, nics=nics).time_s, len(slow) - 1
        known, asked = {-1: 0.0}, [(-1, last, last)]
        for low, high, place in asked:
            edits = self.edits(target, target.kind.shares[place], (0, 1) if nodes and target.kind.at == RAIL else nodes)
            try:
                time_s = self.projection(job, collective, size, edits, nics).time_s
                known[place] = max(0.0, math.log(time_s / healthy))
            except InfeasibleError:
                known[place] = slow[place]
            for start, end in {(low, place), (place, high)}:
                grows = (known[end] - known[start]) / (slow[end] - slow[start] * (start >= 0)) if end > start else 0
                if end - start > _FINEST and _STEADY < grows < 1 - _STEADY:
                    asked.append((start, end, (start + end) // 2))
        places = sorted(known)
        found = np.interp(slow, [slow[at] * (at >= 0) for at in places], [known[at] for at in places])
        return [float(one) for one in found]

    def _parted_of(self, job: tuple[Gpus, ...], nics: Words) -> tuple[dict[frozenset[str], int], set[str], set[int]]:
        """The pairs of linked devices by orbit, of what keeps a job's GPUs among themselves.

        And GPUs and adapters that it leaves out, and the orbits of ports of which NCCL takes some.
        """
        whole = self.cluster if len(job) > 1 else self.node
        if nics:
            edits = *self.given, *self._without(len(job), nics)
            whole = Question(self.machine, nodes=len(job), edits=edits).whole()
        names = [whole.members[node * self.gpus + gpu] for node, gpus in enumerate(job) for gpu in gpus]
        part = replace(whole, members=tuple(names), relays=())
        images = map(encoded(part).image, searched(part))
        orbits = orbit_labels(len(part.links), [image for image in images if image is not None])
        ends = [frozenset(map(self._local, (link.src, link.dst))) for link in part.links]
        labels, taken = dict(zip(ends, orbits.tolist(), strict=True)), {*nics, *(self.node.members[x] for x in job[0])}
        plan = self.expectation(job, ASKED, nics=nics).takes.prediction if len(job) > 1 else None
        spare = plan.idle_ports(*plan.graphs) if plan else frozenset[str]()
        idle = {*self.node.members, *(self.nics if nics else ())} - taken
        return labels, idle, {labels[pair] for pair in labels if pair & spare}
