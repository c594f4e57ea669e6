"""MXNet's tree allreduce (2018, wiki page): its trees, and the quickest way to add keys by size and number.

A push-pull is the allreduce of one key (an array of parameters); a program issues some before it waits, and
those overlap. A host thread issues the copies of a key one after another, and trees and servers move an array
whole, level by level. So many small keys want few copies, and few large ones want all links busy (figures 2,
6 and 7). What issuing a copy takes is an assumption, `OPERATION_S`.

Several collectives on the same links at once, a tenant and its neighbour or the keys of a training step: each
keeps its own pieces; forests take turns, steps do not. Links serve whatever comes first, ties by piece, then
in the order of the list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property

import numpy as np

from blinksim import data_files
from blinksim.algorithms import mxnet
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InputError, one_of
from blinksim.graphs.connectivity import grouped
from blinksim.machines import load
from blinksim.packing import balanced
from blinksim.papers.tables import Figure, Table, published_rows
from blinksim.results import count
from blinksim.schedule.model import Schedule
from blinksim.textio.text_files import read_rows
from blinksim.timing import event_graph
from blinksim.timing.alpha_beta import cost
from blinksim.timing.event_graph import ScheduleGraph, Work
from blinksim.timing.events import first_come
from blinksim.timing.simulation_options import Options, ProtocolName
from blinksim.topology.graph import Topology
from blinksim.units import format_time

Part = tuple[ScheduleGraph, int]
# Pieces at servers, all together: more take minutes, and gigabytes to hold.
MOST_TRANSFERS = 50_000_000


@dataclass(frozen=True, eq=False)
class Job:
    """One collective among several. size: bytes. pieces: of each chunk (default: the alpha-beta model's choice).

    start_s: seconds.
    """

    schedule: Schedule
    size: int
    pieces: int | None = None
    start_s: float = 0.0


@dataclass(frozen=True)
class Together:
    """Several collectives, each timed from its own start.

    finish_s: seconds that each took. alone_s: each on an idle machine. busiest: the link with the most to
    carry, and busy: the share of the whole time in which it was.
    """

    finish_s: tuple[float, ...]
    alone_s: tuple[float, ...]
    busiest: str
    busy: float

    @property
    def time_s(self) -> float:
        """Seconds of the job that took longest."""
        return max(self.finish_s)

    @property
    def slowdown(self) -> tuple[float, ...]:
        """For each job its time among the others over its time alone, both from its own start."""
        return tuple(a / b for a, b in zip(self.finish_s, self.alone_s, strict=True))

    def __repr__(self) -> str:
        return f"<Together: {len(self.finish_s)} collectives in {format_time(self.time_s)}; {self.busiest} is busiest>"


def together(
    jobs: Sequence[Job], *, protocol: ProtocolName = "simple", gamma: float = 0.0, alone: bool = True
) -> Together:
    """Runs all jobs on the links that they share by name.

    alone: True to run each on its own too; otherwise alone_s repeats finish_s. Raises `InputError` without
    jobs, for sizes and pieces below 1, and where two machines give the same link different rates.
    """
    if not jobs:
        raise InputError("no collectives to simulate; give at least one")
    options = Options(protocol=protocol, gamma=gamma)
    parts = _parts(jobs, options)
    work, numbers = _merged(jobs, parts, options)
    in_turn = [graph.schedule.form == "forest" for graph, _ in parts for _ in range(graph.count)]
    amounts = np.array([pieces for graph, pieces in parts for _ in range(graph.count)], dtype=np.int64)
    if int(amounts.sum()) > MOST_TRANSFERS:
        raise InputError(f"{int(amounts.sum()):,} transfers are too many to simulate at once; take fewer pieces")
    run = first_come(work, amounts.tolist(), turns=in_turn)
    load = np.zeros(len(work.load), dtype=np.int64)
    np.add.at(load, work.graph.resource, work.hold * amounts)
    busiest = int(np.argmax(load))
    if run.finish < max(int(load[busiest]), work.critical):
        raise BlinksimError("simulated less than the loads or the longest path need; this is a fault of blinksim")
    # When the last piece of each part is delivered.
    assert run.start is not None
    rows = np.arange(len(run.start))[:, None] < amounts
    done = np.where(rows & ~work.graph.timeless, run.start + work.lag, 0)
    ends = np.cumsum([graph.count for graph, _ in parts])[:-1]
    finish = [work.seconds(int(own.max(initial=0))) for own in np.split(done, ends, axis=1)]
    by_itself = finish
    if alone:
        own = [Job(job.schedule, job.size, pieces) for job, (_, pieces) in zip(jobs, parts, strict=True)]
        by_itself = [together([job], protocol=protocol, gamma=gamma, alone=False).finish_s[0] for job in own]
    elapsed = tuple(end - job.start_s for job, end in zip(jobs, finish, strict=True))
    name = next(name for (_, name), number in numbers.items() if number == busiest)
    return Together(elapsed, tuple(by_itself), name, float(load[busiest]) / max(1, run.finish))


def _parts(jobs: Sequence[Job], options: Options) -> list[Part]:
    """The event graph and the pieces of each job; jobs with one schedule share its graph."""
    graph_of = cache(lambda schedule: event_graph.event_graph(schedule, options))
    parts = list[Part]()
    for job in jobs:
        if job.size < 1 or (job.pieces is not None and job.pieces < 1) or job.start_s < 0:
            raise InputError("a collective needs at least 1 byte and 1 piece, and starts at 0 s or later")
        parts.append((graph_of(job.schedule), job.pieces or cost(job.schedule, job.size).pieces))
    return parts


def _merged(jobs: Sequence[Job], parts: Sequence[Part], options: Options) -> tuple[Work, dict[tuple[str, str], int]]:
    """The work of all jobs, whose stages follow each other, and the number of each resource by class and name.

    Resources of the same name, and reducers of devices of the same name, are the same.
    """
    pairs = list(zip(jobs, parts, strict=True))
    transfers = [event_graph.transfer_times(graph, job.size, pieces, options) for job, (graph, pieces) in pairs]
    most_s = sum(
        job.start_s + event_graph.longest(graph, times, pieces)
        for (job, (graph, pieces)), times in zip(pairs, transfers, strict=True)
    )
    unit = event_graph.unit_of((time for times in transfers for time in times), most_s)
    numbers: dict[tuple[str, str], int] = {}
    rates: dict[tuple[str, str], Fraction | None] = {}
    works, resource, waits, first, joints = [], [], [], 0, 0
    for (job, (graph, _)), times in zip(pairs, transfers, strict=True):
        works.append(event_graph.in_ticks(graph, times, unit, Fraction(job.start_s)))
        shared = graph.shared
        names = map(shared.name, range(len(shared.rate)))
        known: list[tuple[str, str, Fraction | None]] = [*zip(shared.kinds, names, shared.rate, strict=True)]
        known += [("", f"reduction at {device.name}", None) for device in graph.schedule.topology.devices]
        for kind, name, rate in known:
            if rates.setdefault((kind, name), rate) != rate:
                raise InputError(f"{name} has another rate in one of the collectives than in the others")
        here = [numbers.setdefault((kind, name), len(numbers)) for kind, name, _ in known]
        resource.append(np.array([*here, *[0] * int(graph.timeless.sum())])[graph.resource])
        waits.append((graph.before + first, graph.after + first))
        first, joints = first + graph.count, joints + int(graph.timeless.sum())
    timeless = np.concatenate([graph.timeless for graph, _ in parts])
    resources = np.concatenate(resource)
    resources[timeless] = len(numbers) + np.arange(joints)
    before, after = (np.concatenate(ends) for ends in zip(*waits, strict=True))
    columns = zip(*((work.hold, work.lag, work.release) for work in works), strict=True)
    hold, lag, release = (np.concatenate(column) for column in columns)
    return Work(event_graph.EventGraph(resources, timeless, before, after), hold, lag, release, unit), numbers


TITLE = "MXNet's multi-tree allreduce, 2018"
WAYS = ("single_tree", "multi_tree", "parameter_server", "ring")
FLOAT32 = 4
OPERATION_S = 10e-6
"""Seconds in which a host thread issues one copy or kernel with its dependencies, assumed: 5 to 50 us put the crossover
of single and multi-tree where the page has it (1M to 10M float32)."""
_MOST_ELEMENTS = 2**30


def push_pulls(
    schedules: Schedule | Sequence[Schedule],
    sizes: Sequence[int],
    *,
    before_wait: int = 1,
    launch: float = 0.0,
    pieces: int | None = None,
) -> float:
    """Seconds for one allreduce per key of `sizes` bytes, with `before_wait` of them issued before the program waits.

    schedules: what runs; several take turns (parameter servers on different ranks). launch: seconds that
    issuing one takes; they are issued one after another. pieces: of every chunk, as in `Job`. Raises
    `InputError` for no keys or less than one before a wait.
    """
    if not sizes or before_wait < 1:
        raise InputError("give at least one key, and at least one push-pull before a wait")
    order = [schedules] if isinstance(schedules, Schedule) else list(schedules)
    total = 0.0
    known: dict[tuple[int, int], float] = {}
    for first in range(0, len(sizes), before_wait):
        key = (first % len(order), sizes[first])
        if before_wait > 1 or key not in known:
            starts = {k: (k - first + 1) * launch for k in range(first, min(first + before_wait, len(sizes)))}
            jobs = [Job(order[k % len(order)], sizes[k], pieces, start_s) for k, start_s in starts.items()]
            run = together(jobs, alone=False)
            known[key] = max(end + job.start_s for end, job in zip(run.finish_s, jobs, strict=True))
        total += known[key]
    return total


@dataclass(frozen=True)
class KeyValueStore:
    """The GPUs that add up gradients. topology: a selected machine of two ranks or more.

    operation_s: seconds of the host thread for each copy or kernel.
    """

    topology: Topology
    operation_s: float = OPERATION_S

    @cached_property
    def schedules(self) -> Mapping[str, tuple[Schedule, ...]]:
        """By way: what runs, in turns; the keys of the parameter server are spread over all GPUs."""
        wanted = Collective("allreduce")
        names = list(self.topology.members)
        tree = algorithm("mxnet").build
        server = algorithm("parameter_server").build
        # A server of each key: the ranks in another order, so that rank 0 is another GPU.
        servers = tuple(server(self.topology.select(names[r:] + names[:r]), wanted) for r in range(len(names)))
        return {
            "single_tree": (tree(self.topology, wanted, trees="single"),),
            "multi_tree": (tree(self.topology, wanted, trees="multi"),),
            "parameter_server": servers,
            "ring": (algorithm("ring").build(self.topology, wanted),),
        }

    def operations(self, way: str) -> int:
        """What a host thread issues for a key: a copy for every send; one kernel on every GPU for the ring (NCCL)."""
        one_of("way", way, WAYS)
        return self.topology.ranks if way == "ring" else self.schedules[way][0].sends

    def time(self, way: str, elements: Sequence[int], before_wait: int = 1) -> float:
        """Seconds to push and pull keys of these numbers of float32, `before_wait` of them before the program waits.

        Raises `InputError` for another way, no keys, or keys without an element.
        """
        if any(count < 1 for count in elements):
            raise InputError("a key has 1 element or more")
        sizes = [FLOAT32 * count for count in elements]
        launch = self.operation_s * self.operations(way)
        # But for the ring, copies are of whole arrays or of whole slices.
        pieces = None if way == "ring" else 1
        return push_pulls(self.schedules[way], sizes, before_wait=before_wait, launch=launch, pieces=pieces)

    def times(self, elements: Sequence[int], before_wait: int = 1) -> dict[str, float]:
        """`time` by every way, quickest first."""
        times = {way: self.time(way, elements, before_wait) for way in WAYS}
        return dict(sorted(times.items(), key=lambda item: item[1]))

    def crossover(
        self, low: str = "single_tree", high: str = "multi_tree", *, keys: int = 1, before_wait: int = 1
    ) -> int:
        """Elements of a key from which `high` is quicker for `keys` equal keys, to within 1 %.

        Raises `InputError` if it is quicker for 1 element already, or never up to 2^30.
        """

        def gains(count: int) -> bool:
            return self.time(high, [count] * keys, before_wait) < self.time(low, [count] * keys, before_wait)

        small, large = 1, _MOST_ELEMENTS
        if gains(small) or not gains(large):
            raise InputError(f"{low} and {high} do not cross between 1 and {large:,} elements")
        while large - small > max(1, small // 100):
            # Halfway on a logarithmic scale.
            middle = min(max(round((small * large) ** 0.5), small + 1), large - 1)
            small, large = (small, middle) if gains(middle) else (middle, large)
        return large


def network_keys() -> dict[str, list[int]]:
    """Elements of every key of ResNet-50 and VGG-16."""
    keys = read_rows(data_files.folder("models") / "mxnet_keys.csv", dict, "key of a network")
    return grouped((row["network"], int(row["elements"])) for row in keys)


def tables() -> Iterator[Table]:
    """The trees, where many overtake one, whom keys suit, and what training gained."""
    machine = load("p3.16xlarge").select()
    weights, trees = mxnet.weighted(mxnet.link_matrix(machine)), []
    for penalty, links, most, total in ((0.7, 16, 5, 145), (1.0, 12, 8, 160)):
        grown = mxnet.grow(weights, range(machine.ranks), penalty=penalty, backtrack=True)
        uses = Counter(frozenset(send[1:]) for tree in grown for send in balanced.sends(tree))
        weight = balanced.tree_weights(weights, np.array(grown)).sum()
        name = f"penalty {penalty}"
        trees.append(Figure(f"{name}: links used", links, len(uses)))
        trees.append(Figure(f"{name}: most uses", most, max(uses.values())))
        trees.append(Figure(f"{name}: weight of all trees", total, float(weight)))
    yield Table("Trees of a p3.16xlarge", "from comm_tree.h by exhaustive search, a tree from every GPU", tuple(trees))
    store, crossings = KeyValueStore(machine), []
    for keys, before_wait in ((1, 1), (12, 1), (12, 150)):
        elements = store.crossover(keys=keys, before_wait=before_wait)
        name = f"{count(keys, 'key')}, {before_wait} before a wait"
        crossings.append(Figure(name, (1e6, 1e7), elements, "float32", f"with {1e6 * OPERATION_S:.0f} us a copy"))
    yield Table("Many trees overtake one from", "figures 6 and 7", tuple(crossings))
    networks = network_keys()
    times = {
        name: {way: push_pulls(store.schedules[way], [FLOAT32 * n for n in keys], before_wait=150) for way in WAYS}
        for name, keys in networks.items()
    }
    many, few = times.values()
    issued = "150 before a wait, by links alone"
    yield Table(
        "Which keys suit whom",
        "figure 2",
        (
            Figure("ResNet-50: push-pulls", (157, None), len(networks["ResNet-50"])),
            Figure("ResNet-50: largest key", (0, 2.4e6), max(networks["ResNet-50"]), "float32", "'not exceeding 2M'"),
            Figure("ResNet-50: ring over server", (1, None), many["ring"] / many["parameter_server"], "times", issued),
            Figure("VGG-16: push-pulls", (0, 32), len(networks["VGG-16"])),
            Figure("VGG-16: largest key", (1e7, None), max(networks["VGG-16"]), "float32"),
            Figure("VGG-16: server over ring", (1, None), few["parameter_server"] / few["ring"], "times", issued),
        ),
    )
    gains = []
    for row in published_rows("mxnet_speedups.csv"):
        values = times.get(row["network"])
        note = "communication alone, by links alone" if values else "not modelled layer by layer"
        for way, column, words in (("parameter_server", "vs_parameter_server", "server"), ("ring", "vs_nccl", "NCCL")):
            ours = None if values is None else values[way] / values["multi_tree"]
            gains.append(Figure(f"{row['network']}, over {words}", float(row[column]), ours, "times", note))
    yield Table("Speedup of training by trees", "whole steps on synthetic data", tuple(gains))
