"""Measured times of one collective on part of a machine, and the time that NCCL should take there.

Measured times come from logs of nccl-tests that name their GPUs; expected ones from NCCL's tuner model,
or from alpha and beta of rings.

NCCL predicts a time for every algorithm and protocol and takes the least (NCCL 2.28.3, graph/tuning.cc); on 8
x H200 that prediction and the measured times of large allreduces differ by a percent.

Machines without a model of its tuner have alpha and beta of rings: NCCL moves large messages along rings that
share no lane (Blink, 2018 short paper, section 2): allreduce, allgather and reduce-scatter in shards,
broadcast and reduce as chains along them; the rest are sends and receives. Between nodes those of an alltoall
go through the member of the sender's node that is on the receiver's rail (PXN, since NCCL 2.12).
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, cast

import numpy as np

from blinksim.algorithms import ring
from blinksim.algorithms.building.plan import Plan, add_chains, ring_orders
from blinksim.algorithms.registry import algorithm
from blinksim.answers.measurements.public import grouped
from blinksim.bounds.bound_result import NVLS_GRANTS, BoundResult
from blinksim.bounds.compute import bound
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import BlinksimError, FileError, InputError
from blinksim.formats import traces
from blinksim.formats.shipped.known_gpus import model, named
from blinksim.graphs.arrays import Floats, Ints, Ints32
from blinksim.machines import MachineLike, Question, as_topology, preferring
from blinksim.nccl import tests_log
from blinksim.nccl.tests_log import UNSAID, Launch, RankPlace, Row, Run
from blinksim.nccl.tuner.tuner import COLLECTIVES, Prediction, nearest, predict
from blinksim.results import count
from blinksim.schedule.loads import Paths, Resources, RouteUses, resource_loads, resources, single_routes
from blinksim.schedule.model import Schedule
from blinksim.textio.text_files import read_words
from blinksim.timing.alpha_beta import Starts, crossed, step_kinds
from blinksim.timing.library_model import Library, sent_by
from blinksim.timing.measured.public_tables import LAUNCHED, SetUpName
from blinksim.timing.measured_constants import NVLS as ADDS
from blinksim.timing.projection_result import Projection
from blinksim.topology.elements import Device
from blinksim.topology.graph import Topology

NVLS = "NCCL_NVLS_ENABLE"


class Ran(NamedTuple):
    """How the library ran: with switches that may add (NVLS), its version, how calls and tests were started."""

    multicast: bool = True
    version: str = ""
    set_up: SetUpName = "graph"
    launch: Launch = UNSAID

    @classmethod
    def of(cls, runs: Sequence[Run], multicast: bool = True, version: str = "", set_up: str | None = None) -> Ran:
        """What is given, else what the first of the logs says that says it."""
        settings = dict(chain.from_iterable(run.launch.settings for run in reversed(runs)))
        multicast = multicast and settings.get(NVLS) != "0"
        settings |= {} if multicast else {NVLS: "0"}
        launch = next((run.launch for run in runs if run.launch.options), UNSAID)
        version = version or next((run.nccl for run in runs if run.nccl), "")
        set_up = set_up or next((run.set_up for run in runs if run.set_up), "graph")
        return cls(multicast, version, cast("SetUpName", set_up), launch._replace(settings=(*settings.items(),)))


USUAL = Ran()


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time. size: bytes; time_s: seconds; line: its place in a log, 0 if it comes from none."""

    size: int
    time_s: float
    line: int = 0


@dataclass(frozen=True)
class Series:
    """Measured times of one collective on one selected topology.

    Parameters
    ----------
    topology : Topology
        The part of the machine that was measured.
    collective : Collective
        What was measured.
    samples : tuple of Sample
        Sizes in bytes with times in seconds.
    ran : Ran
        How the library ran, as far as it is known.

    Examples
    --------
    >>> import blinksim as bs
    >>> from blinksim.answers.logs.expectation import Sample
    >>> pair = bs.load("dgx1-v100").select([0, 1])
    >>> times = tuple(Sample(size, 5e-6 + size / 20e9) for size in (2**10, 2**20, 2**30))
    >>> found = bs.calibrate(bs.Series(pair, bs.Collective("broadcast"), times))
    >>> round(found.parameter("nvlink", "bandwidth").value / 1e9, 1)
    20.0
    """

    topology: Topology
    collective: Collective
    samples: tuple[Sample, ...]
    ran: Ran = field(default_factory=Ran)

    @classmethod
    def of(cls, run: Run, topology: Topology) -> Series:
        """All measurements of a test with more than 0 bytes, out of place and in place.

        Raises `InputError` where data were wrong, or the run failed: such a run says nothing of others.
        """
        if run.spoilt:
            raise InputError(f"{run.path}: {run.spoilt}; its times calibrate nothing, run the test again")
        samples = tuple(Sample(row.size, row.time_s, row.line) for row in run.rows if row.size)
        return cls(topology, Collective(run.collective, max(0, run.rows[0].root)), samples, Ran.of([run]))


def read_series(
    path: str | os.PathLike[str], machine: MachineLike, collective: CollectiveLike = ""
) -> tuple[Series, ...]:
    """The series in a log of nccl-tests, each on the members of `machine` that the log names.

    Parameters
    ----------
    path : str or path
        Text that nccl-tests printed, or its JSON.
    machine : str, path or Topology
        The machine that it was measured on: a name of the catalogue, a machine file, or a topology.
    collective : str or Collective, optional
        Which tests to take, or what they are of if the log does not say.

    Returns
    -------
    tuple of Series
        A topology, a collective and its measured times for each test; `calibrate` takes them.

    Raises
    ------
    FileError
        For a file that is no log of nccl-tests.
    InputError
        For a log of several collectives, of another machine, or of wrong data.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("log.txt").write_text('''# Collective test starting: all_reduce_perf
    ... #      size      count   type  redop  root     time   algbw   busbw  #wrong
    ... #       (B)                                    (us)  (GB/s)  (GB/s)
    ...       16384       4096  float    sum    -1    23.73    0.69    1.21       0
    ...    16777216    4194304  float    sum    -1   121.13  138.51  242.39       0
    ...  1073741824  268435456  float    sum    -1  5227.44  205.40  359.46       0
    ... ''')
    >>> import blinksim as bs
    >>> (series,) = bs.read_series("log.txt", "hgx-h200")
    >>> series.topology.ranks, series.samples[-1].time_s
    (8, 0.00522744)
    """
    whole = as_topology(machine)
    runs = tests_log.select(read_runs(path), Collective.of(collective).name if collective else "")
    return tuple(Series.of(run, whole.select(members_of(run, whole))) for run in runs)


# The first that a name holds, without its underscores: _allgather_base, nccl:all_reduce, ReduceScatter.
_NAMES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter")


def read_runs(path: str | os.PathLike[str]) -> tuple[Run, ...]:
    """The tests in a log of nccl-tests or of MPI, or the calls in a job's log, by group and collective.

    Raises `FileError` as `tests_log.read` and `traces.read` do, and for jobs without calls of known size.
    """
    calls, step_s = traces.read(path), 0.0
    if calls is None:
        return tests_log.read(path)
    by_job = defaultdict[tuple[str, tuple[int, ...], int, str], list[Row]](list)
    for group, ranks, number, name, size, time_s, call in calls:
        plain, listed = re.sub("[^a-z]", "", name.lower()), tuple(map(int, re.findall("[0-9]{1,7}", ranks)))
        collective = next((one for one in _NAMES if one in plain), "")
        step_s += time_s if name == traces.STEP else 0.0
        if collective and 0 < size < 2**62 and time_s and number != 1:
            # Long lists of ranks are cut in the middle. Calls without a number get a negative one.
            rows = by_job[group, listed if len(listed) == number else (), number, collective]
            call = call or len(rows) - 2**40
            rows.append(Row(size, 0, "", "none", -1, False, time_s, size / time_s, 0.0, None, call))
    if not by_job:
        raise FileError(path, "holds no calls of collectives with their size and time")
    runs = []
    for (group, listed, number, collective), rows in by_job.items():
        places = tuple(RankPlace(own, "", rank, "", "") for own, rank in enumerate(listed))
        runs.append(Run(os.fspath(path), collective, number, tuple(rows), places, group=group, step_s=step_s))
    return tuple(runs)


def of_one_job(runs: Iterable[Run]) -> list[Run]:
    """The runs of the logs of several ranks of one job, each group and collective as one.

    The last to come to a call does not wait for others, so a call takes what its quickest rank took; in a
    gather and a scatter, whose root alone has all blocks, what its slowest one took. Of numbered calls count
    those in all logs. Raises `InputError` for logs that are not of one job: their calls differ.
    """
    found, job = list[Run](), attrgetter("group", "places", "ranks", "collective")
    for (*_, name), same in grouped(runs, job):
        paths = [run.path for run in same]
        told = [{(row.line, row.size): row for row in run.rows} for run in same]
        shared = set(told[0]).intersection(*told)
        alone = set(told[0]).union(*told) - shared
        if not all((same[0].group, shared, min(alone, default=(0,))[0] >= 0, len({*paths}) == len(paths))):
            why = "not of the ranks of one job, as their calls differ"
            raise InputError(f"{' '.join(paths)}: {why}; judge each log by itself")
        own, rows = Collective(name), [[one[call] for call in sorted(shared)] for one in told]
        pick = max if own.personalized and own.rooted else min
        calls = tuple(pick(each, key=attrgetter("time_s")) for each in zip(*rows, strict=True))
        taken = {path: sum(row.time_s for row in each) for path, each in zip(paths, rows, strict=True)}
        waited = max(0.0, max(taken.values()) - sum(row.time_s for row in calls))
        late, steps = min(taken, key=taken.__getitem__) if waited else "", max(run.step_s for run in same)
        found.append(replace(same[0], path=", ".join(paths), rows=calls, step_s=steps, waited_s=waited, late=late))
    return found


def members_of(run: Run, machine: Topology) -> tuple[str, ...]:
    """The members of `machine` (all its nodes) that the test ran on, in rank order.

    A job's log numbers them. A log that does not list its ranks is assumed to cover all members. If it covers
    fewer, its device numbers name them; they count the GPUs of a node in file order. Raises `InputError`
    where ranks, hosts or numbers do not fit.
    """
    if run.group and run.places:
        numbers = [place.device for place in run.places]
        if max(numbers) >= machine.ranks:
            there = f"{machine.name} has {machine.ranks} GPUs"
            raise InputError(f"{run.path}: names rank {max(numbers)}, but {there}; for a cluster give nodes=")
        return tuple(machine.members[number] for number in numbers)
    ranks = run.ranks or machine.ranks
    hosts = list(dict.fromkeys(place.host for place in run.places))
    if len(hosts) > max(1, machine.nodes):
        raise InputError(f"{run.path}: comes from {len(hosts)} hosts; add nodes={len(hosts)}")
    if ranks == machine.ranks:
        return machine.members
    if 0 < len(hosts) < machine.nodes:
        cure = f"give nodes={len(hosts)}, or ranks_per_node={ranks // machine.nodes} if hosts share a name"
        there = f"not on {machine.taking_part}"
        raise InputError(f"{run.path}: has {ranks} ranks on {count(len(hosts), 'host')}, {there}; {cure}")
    if ranks > machine.ranks:
        there, nodes = f"{machine.name} has {machine.ranks}", -(-ranks * machine.nodes // machine.ranks)
        cure = f"is it this machine? For a cluster give nodes={nodes}"
        raise InputError(f"{run.path}: has {ranks} ranks, but {there}; {cure}")
    hint = f"{run.path}: comes from {ranks} of the {machine.ranks} GPUs of {machine.name}; name them with members="
    if len(run.places) != ranks:
        raise InputError(hint)
    gpus, chosen = dict(grouped((x for x in machine.devices if x.holds), attrgetter("node"))), list[str]()
    for place in sorted(run.places, key=attrgetter("rank")):
        node = gpus.get(hosts.index(place.host), [])
        if place.device >= len(node):
            raise InputError(f"{hint}: there is no device {place.device} on a node")
        chosen.append(node[place.device].name)
    if len(set(chosen)) < len(chosen):
        raise InputError(f"{hint}: ranks share a device number")
    return tuple(chosen)


def other_gpus(run: Run, machine: Topology) -> str:
    """What to say if the log names GPUs of another model than the machine's; empty if not, or none is known."""
    own = {model(machine.device(name)) for name in machine.members} - {""}
    for name, gpu in {place.name: named(place.name) for place in run.places}.items():
        if own and gpu and model(Device("gpu", "gpu", attributes={"model": name})) not in own:
            words = f"{run.path} ran on {name}, and the GPUs of {machine.name} are {', '.join(sorted(own))}"
            return f"{words}; those of the log are as in {gpu.machine}"
    return ""


def check_ranks(run: Run, topology: Topology) -> None:
    """Raises `InputError` if the log says that it has another number of ranks than the chosen members."""
    if run.ranks and run.ranks != topology.ranks:
        raise InputError(f"{run.path}: has {run.ranks} ranks, and {topology.ranks} members are chosen")


# --- what is expected --------------------------------------------------------------------------------------

# Bytes beside which overheads count for nothing.
_MANY = 2.0**50
# A class that this many times its time per byte makes the limit is as likely to be slow as the limit is.
_NEAR = 1.1


def ring_schedule(topology: Topology, collective: Collective) -> Schedule:
    """The rings' schedule of `collective` on a selected topology.

    Raises `InfeasibleError` if the links do not connect the members, `InputError` for a single rank.
    """
    if topology.ranks < 2:
        raise InputError("a collective needs at least two ranks; choose at least two members")
    collective.check_ranks(topology.ranks)
    if algorithm("ring").supports(collective.name):
        return ring.build(topology, collective)
    if collective.name not in ("broadcast", "reduce"):
        return algorithm(sent_by(topology, collective)[-1]).build(topology, collective)
    plan = Plan(topology, collective, "ring", "forest")
    add_chains(plan, ring_orders(topology))
    return plan.finish()


@dataclass(frozen=True)
class RingModel:
    """T = alpha + size x beta of the rings of a collective; link classes can be scaled.

    The alphas of the longest chain of sends add up, and the busiest link passes its whole load: pieces count
    as so small that a pipeline fills in no time, as in NCCL's own model (NCCL 2.28.3, graph/tuning.cc).
    """

    topology: Topology
    collective: Collective

    @cached_property
    def schedule(self) -> Schedule:
        """Built once, at the machine's own rates."""
        return ring_schedule(self.topology, self.collective)

    @cached_property
    def _figures(self) -> tuple[Resources, Ints32, RouteUses, Starts, Floats]:
        """Resources and their seconds per byte, where messages start, and what they use."""
        shared, spread = resources(self.topology), single_routes(self.schedule)
        seconds = 1 / np.array([float(rate) for rate in shared.rate])
        occupied, starts = RouteUses.of(spread, shared), Starts.of(self.schedule, spread, shared)
        return shared, spread.links[spread.start[:-1]], occupied, starts, seconds

    @cached_property
    def _kinds(self) -> tuple[list[tuple[Ints32, Floats, Ints]], list[int], Floats]:
        """The steps that differ (`blinksim.timing.alpha_beta.step_kinds`), and how many there are of each; of a
        pipeline the loads of the resources instead."""
        if self.schedule.form != "steps":
            return [], [], np.array([float(load) for load in resource_loads(self.schedule, self._figures[0])])
        kinds, numbers = step_kinds(self.schedule)
        return kinds, np.bincount(numbers, minlength=len(kinds)).tolist(), np.array([])

    @cached_property
    def own(self) -> tuple[float, dict[str, float]]:
        """Seconds that do not depend on the size, and seconds per byte by what limits, which add up.

        That is a link class, or a kind of device with a capacity.
        """
        return self.terms({}, {})

    def terms(self, alphas: Mapping[str, float], betas: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """As `own` where link classes have their alpha, or their beta (time per byte), times a factor."""
        shared, first, occupied, starts, seconds = self._figures
        links, schedule = self.topology.links, self.schedule
        scale, slower = np.array([alphas.get(link.kind, 1.0) for link in links]), np.ones(len(shared.rate))
        slower[shared.of_link] = [betas.get(link.kind, 1.0) for link in links]
        starts, seconds = replace(starts, overhead=starts.overhead * scale[first]), seconds * slower
        routes = single_routes(schedule).alphas(schedule.topology.link_columns, scale)
        kinds, counts, loads = self._kinds
        if kinds:
            # Each step waits for the overheads of all messages on the link that is busy longest, of many
            # bytes: what a byte takes does not depend on the overheads then.
            alpha, found = 0.0, defaultdict[str, float](float)
            for count, (used, carried, _) in zip(counts, kinds, strict=True):
                load, waits = crossed(occupied, routes, used, carried, len(seconds))
                each, longest = starts.overheads(used, len(seconds))
                waits += each - longest
                time = load * seconds * _MANY + waits
                worst = len(time) - 1 - int(np.argmax(time[::-1]))
                alpha += count * float(waits[worst])
                found[shared.kinds[worst]] += count * float(load[worst] * seconds[worst])
            return alpha, dict(found)
        # A send waits for what its source gets of the same chunk.
        busy, paths = loads * seconds, Paths(schedule)
        alpha = paths.longest(routes[schedule.route[paths.order]])
        if self.collective.exchanges:
            # The last of the blocks waits for the overheads of those that leave before it.
            used, times = np.unique(schedule.route, return_counts=True)
            each, longest = starts.overheads(used.astype(np.int32), len(busy), times)
            alpha += float((each - longest).max())
        worst = int(np.argmax(busy))
        return alpha, {shared.kinds[worst]: float(busy[worst])}

    def time(self, size: int) -> float:
        """Seconds for `size` bytes."""
        alpha, betas = self.own
        return alpha + size * sum(betas.values())

    @cached_property
    def limits(self) -> tuple[str, ...]:
        """The link class (or kind of device) that sets the bandwidth, and those that do if they are a tenth slower.

        Times of one collective do not tell them apart: any of them may be slow where it is behind. What joins
        the nodes comes first.
        """
        betas = self.own[1]
        usual, worst = sum(betas.values()), max(betas, key=betas.__getitem__)
        near = [kind for kind in self.classes if sum(self.terms({}, {kind: _NEAR})[1].values()) > usual * (1 + 1e-9)]
        nodes = {device.name: device.node for device in self.topology.devices}
        leaving = {link.kind for link in self.topology.links if nodes[link.src] != nodes[link.dst]}
        return tuple(sorted(dict.fromkeys((worst, *near)), key=lambda kind: kind not in leaving))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The link classes that the schedule's sends cross, in the machine's order."""
        used = {self.topology.links[int(i)].kind for i in self.schedule.route_links}
        return tuple(kind for kind in self.topology.link_classes if kind in used)


@dataclass(frozen=True, slots=True)
class Expected:
    """A predicted time in seconds, the part of it that no bandwidth shortens, and what NCCL would run.

    origin, basis: where it comes from (`blinksim.timing.library_model`); empty for the time that NCCL predicts
    for itself. low_s, high_s: the interval that 8 in 10 published times lie in. least_s: of any schedule.
    """

    time_s: float
    latency_s: float
    choice: str
    origin: str = ""
    low_s: float = 0.0
    high_s: float = math.inf
    basis: str = ""
    least_s: float = 0.0

    @classmethod
    def of(cls, found: Projection, latency: float = 0.0, choice: str = "") -> Expected:
        """What a projection says; latency: its share of the time."""
        of, least_s = found.details, found.least.time_s if found.least else 0.0
        ends = of["interval_low_s"], of["interval_high_s"]
        return cls(found.time_s, latency * found.time_s, choice, of["origin"], *ends, of["basis"], least_s)


@dataclass(frozen=True)
class Expectation:
    """A model of one collective on one part of a machine.

    part: the selection. whole: the machine that it is of, as it was loaded. rates: the table of NCCL's model.
    Default: the one that NCCL computes with, if the machine has it. ran: how the library ran.
    """

    part: Topology
    whole: Topology
    collective: Collective
    ran: Ran = field(default_factory=Ran)
    rates: str | None = None

    @cached_property
    def machine(self) -> Topology:
        """The whole machine, at the rates that NCCL computes with where it has them."""
        return Question(self.whole, rates=self.rates).node() if self.rates else preferring(self.whole, "nccl")

    @cached_property
    def rings(self) -> RingModel:
        """The rings over the part's links, at the machine's rates; they show what limits."""
        part = self.machine.select(self.part.members, self.part.relays, self.part.link_classes)
        return RingModel(part, self.collective)

    @cached_property
    def prediction(self) -> Prediction | None:
        """NCCL's prediction; None where it does not run, or has no model of the collective."""
        if self.collective.name in COLLECTIVES:
            with suppress(BlinksimError):
                version, multicast = nearest(self.ran.version), self.ran.multicast
                return predict(self.machine, self.part.members, version=version, multicast=multicast)
        return None

    @property
    def name(self) -> str:
        """The model's name in answers."""
        if not (found := self.prediction):
            return f"alpha-beta of {self.rings.schedule.algorithm} at {self.rings.topology.rates} rates"
        other = f" (the log is of NCCL {self.ran.version})" if self.ran.version not in ("", found.version) else ""
        fork = "" if self.takes.library == "NCCL" else f"; {self.takes.library} is a fork of it"
        return f"NCCL {found.version}'s own model at {self.machine.rates} rates{other}{fork}"

    @property
    def launched(self) -> str:
        """How the calls are launched that times are expected of; empty on several nodes: not told there."""
        return f" launched {LAUNCHED[self.ran.set_up]}" if self.part.nodes == 1 else ""

    @cached_property
    def takes(self) -> Library:
        """What the library takes on the part."""
        ran, question = self.ran, Question.of_part(self.part, self.machine)
        return Library(version=nearest(ran.version), multicast=ran.multicast, set_up=ran.set_up).at(question)[0]

    def taken(self, size: int) -> Expected:
        """What the library takes, as `blinksim.project` says; latency has the share that it has in `at`."""
        [found] = self.takes.times(self.takes.machine, self.collective, [size])
        own = self.at(size)
        return Expected.of(found, own.latency_s / own.time_s, own.choice)

    def at(self, size: int) -> Expected:
        """The expected time for `size` bytes."""
        if (found := self.prediction) is None:
            return Expected(self.rings.time(size), self.rings.own[0], self.rings.schedule.algorithm)
        best = found.best(self.collective.name, size)
        # NCCL does not know all that makes a link slow.
        held = self.bounds.holding(NVLS_GRANTS if best.algorithm.startswith(ADDS) else ())
        least = size / float(held.rate) if self.part.rates == self.machine.rates else 0.0
        return Expected(max(best.time_s, least), best.latency_s, f"{best.algorithm} {best.protocol}")

    @cached_property
    def bounds(self) -> BoundResult:
        """All bounds of the collective on the part, where switches may add also that for those that do."""
        return bound(self.part, self.collective, in_network=self.ran.multicast)

    def others(self, size: int) -> dict[str, float]:
        """Seconds for `size` bytes of what might run instead of NCCL's choice, by its cause."""
        found, result, chosen = self.prediction, dict[str, float](), [self.at(size).choice]
        if chosen[0].startswith(ADDS):
            without = replace(self, ran=self.ran._replace(multicast=False))
            chosen.append(without.at(size).choice)
            result["NVLS off (NCCL_NVLS_ENABLE=0?)"] = without.taken(size).time_s
        others = found.expects(self.collective.name, size) if found else {}
        set_to = "(NCCL_ALGO or NCCL_PROTO set?)"
        return result | {f"{name} {set_to}": time_s for name, time_s in others.items() if name not in chosen}

    @cached_property
    def detour(self) -> tuple[str, float]:
        """What the library takes in place of the links that limit, and its share of their rate at most.

        Between nodes sockets, which reach less than one adapter; inside them what else leaves a GPU, or the way
        through the host.
        """
        machine, limit = self.machine, self.rings.limits[0]
        ports = [link for link in machine.links if link.kind == limit and machine.device(link.src).kind == "nic"]
        if adapters := sum(link.lanes for link in ports) // machine.nodes:
            seen = read_words("sockets").get(self.takes.library, "tcp as the provider in the library's log")
            unloaded = "; EFA plugin not loaded" if limit == "efa" else ""
            return f"sockets in place of {limit} ({seen}{unloaded}?)", (adapters > 1) / adapters
        out = [link for link in machine.links if link.src == self.part.members[0]]
        spare = [link for link in out if link.kind not in self.part.link_classes]
        carried = sum(link.bandwidth for link in spare)
        ways = " or ".join((*dict.fromkeys(link.kind for link in spare), "the host"))
        switch = read_words("peers").get(self.takes.library, "")
        words = f"traffic over {ways} (peer access off{switch}, or {limit} down?)"
        return words, float(carried / (sum(link.bandwidth for link in out) - carried))
