"""Programs of thread blocks (MSCCL, MSCCL++): run symbolically in any order, and converted to schedules.

Every unit of data is the counted set of contributions in it (a `Value`), and of what arrived (`Parts`). In
the end every rank must have in its output what the collective promises. Files know ranks, not links: rank i
is the i-th member of the machine, and its messages take the machine's routes.

A program may keep several values of the same data on a rank: its own contribution, received ones, sums of
these. A schedule has one value of each chunk per device, which a send replaces or adds to; `stories` brings
the program's sends into such an order. A runtime has no common steps; those of the schedule are as early as
the dependences of each send allow, or one per message of a connection, or pipelined trees, whichever takes
the least time for large sizes.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from blinksim.collective import EVERY, OWN, ROOT, Collective
from blinksim.errors import FileError, InfeasibleError, InputError, blamed_on
from blinksim.graphs.connectivity import grouped
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.loads import moves_along_trees
from blinksim.schedule.model import COPY, REDUCE, Builder, Schedule
from blinksim.timing.alpha_beta import cost
from blinksim.topology.graph import Topology

# (GPU, number of the thread block on it)
BlockId = tuple[int, int]
# How often the unit (rank, unit of its input) is in a place.
Value = Counter[tuple[int, int]]

# Contributions carried, and looks at a block that may go on: together some seconds.
_MOST_EFFORT = 10_000_000
_ORDERS = 3
# What it costs to fill one unit of an input buffer.
FILL = 10


class Effort:
    """What carrying out a file has cost so far; files that cost more than some seconds are refused.

    runs: how often it is carried out, for each of which there is one of these.
    """

    def __init__(self, path: object = "this program", runs: int = 1) -> None:
        self.path, self.left = path, _MOST_EFFORT // runs

    def spend(self, amount: int) -> None:
        """Raises `InfeasibleError` if that was too much."""
        self.left -= amount
        if self.left < 0:
            cure = "Build it with fewer chunks, as algorithm=halving_doubling does, or for fewer GPUs"
            raise InfeasibleError(f"{self.path}: moves more data than can be followed chunk by chunk. {cure}")


OWN_DATA = -1
# The rank that a unit comes from (-1 where ranks add to it) and its place in the input.
Unit = tuple[int, int]
# What is in a place: arrivals by number, and `OWN_DATA` for the rank's own data.
Parts = frozenset[int]
# What ranks must have in the end, by rank and unit.
Needed = dict[tuple[int, Unit], Parts]


class Held(NamedTuple):
    """What a rank holds of a unit."""

    value: Value
    unit: Unit
    parts: Parts


class Arrival(NamedTuple):
    """A unit that came over a connection. message: of the units that went together. parts: what the sender read."""

    message: int
    src: int
    dst: int
    channel: int
    unit: Unit
    parts: Parts


@dataclass
class Trace:
    """The contents of places while blocks run, and all arrivals in order. reduces: ranks add to the same units.

    mixed: whether units of different places in the vector were added to each other.
    """

    reduces: bool
    mixed: bool = False
    arrivals: list[Arrival] = field(default_factory=list)
    messages: int = 0
    _open: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def own(self, rank: int, unit: int) -> Held:
        """A unit of a rank's input."""
        return Held(Counter({(rank, unit): 1}), (-1 if self.reduces else rank, unit), frozenset((OWN_DATA,)))

    def added(self, first: Held, second: Held) -> Held:
        """The sum of two units."""
        self.mixed |= first.unit != second.unit
        return Held(first.value + second.value, first.unit, first.parts | second.parts)

    def sent(self, src: int, dst: int, channel: int, values: list[Held], more: bool) -> list[Held]:
        """What arrives at rank `dst` when rank `src` sends these units; more: others go on in the same message."""
        held, connection = [], (src, dst, channel)
        if connection not in self._open:
            self._open[connection] = self.messages
            self.messages += 1
        message = self._open[connection]
        for value in values:
            held.append(Held(value.value, value.unit, frozenset((len(self.arrivals),))))
            self.arrivals.append(Arrival(message, src, dst, channel, value.unit, value.parts))
        if not more:
            del self._open[connection]
        return held


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """A step of a thread block. where: its place in the file."""

    where: str


S = TypeVar("S", bound=ProgramStep)


@dataclass(frozen=True)
class Program(Generic[S]):
    """A file's content. units: of the vector. sizes: units of every rank's buffers, by their letter."""

    name: str
    collective: str
    units: int
    sizes: tuple[Mapping[str, int], ...]
    steps: Mapping[BlockId, tuple[S, ...]]

    @property
    def ranks(self) -> int:
        return len(self.sizes)

    @property
    def most_blocks(self) -> int:
        """The most thread blocks of a GPU."""
        return max(Counter(rank for rank, _ in self.steps).values(), default=0)

    @property
    def most_steps(self) -> int:
        """The most steps of a thread block."""
        return max(map(len, self.steps.values()), default=0)


class WrongStepError(Exception):
    """What is wrong with a step, as a sentence."""


class Machine(ABC, Generic[S]):
    """The memory of all GPUs while the blocks of a program run: each format adds its connections or signals.

    inputs: units of every GPU's input, which the ranks that start with data have. effort: what is left.
    """

    # What is said of a block that waits forever: {0} is its GPU, {1} its number there.
    stuck = "waits forever"

    def __init__(self, program: Program[S], effort: Effort, root: int, inputs: Iterable[int]) -> None:
        self.program, self.steps, self.effort = program, program.steps, effort
        self.collective = Collective(program.collective, root)
        self.trace = Trace(self.collective.reduces)
        self.memory: dict[tuple[int, str, int], Held] = {}
        for rank, length in enumerate(inputs):
            if self.collective.starts != ROOT or rank == self.collective.root:
                self.effort.spend(FILL * length)
                for unit in range(length):
                    self.memory[self.place(rank, "i", unit)] = self.trace.own(rank, unit)

    def place(self, rank: int, buffer: str, unit: int) -> tuple[int, str, int]:
        """The key of a unit in `memory`."""
        return rank, buffer, unit

    @abstractmethod
    def ready(self, block: BlockId, position: int) -> bool:
        """True if the block's step at `position` can be carried out now."""

    @abstractmethod
    def carry_out(self, block: BlockId, position: int) -> None:
        """Carries the step out; raises `WrongStepError`."""

    def run(self, seed: int | None = None) -> str:
        """Runs all blocks; what goes wrong, as a sentence.

        seed: decides which block goes first where several can; None for their order in the file. Raises
        `InfeasibleError` if the effort is used up.
        """
        steps, order = self.steps, random.Random(seed)
        at, blocks = dict.fromkeys(steps, 0), [block for block, own in steps.items() if own]
        while blocks:
            if seed is not None:
                order.shuffle(blocks)
            self.effort.spend(len(blocks))
            before = sum(at.values())
            for block in blocks:
                while at[block] < len(steps[block]) and self.ready(block, at[block]):
                    try:
                        self.carry_out(block, at[block])
                    except WrongStepError as wrong:
                        return f"{steps[block][at[block]].where}: {wrong}"
                    at[block] += 1
            if sum(at.values()) == before:
                first = min(blocks)
                return f"{steps[first][at[first]].where}: {self.stuck.format(*first)}"
            blocks = [block for block in blocks if at[block] < len(steps[block])]
        return ""

    def read(self, rank: int, buffer: str, start: int, count: int, whose: str = "") -> list[Held]:
        """Units of a buffer; raises `WrongStepError` where nothing is."""
        values = [self.memory.get(self.place(rank, buffer, start + k)) for k in range(count)]
        if len(present := [value for value in values if value is not None]) < count:
            raise WrongStepError(f"reads {buffer}[{start}]{whose}, where nothing is")
        return present

    def carry(self, values: Iterable[Held]) -> None:
        """Uses up what it takes to carry these units."""
        self.effort.spend(sum(len(held.value) for held in values))

    def write(self, rank: int, buffer: str, start: int, values: Iterable[Held]) -> None:
        """Units into a buffer."""
        for k, value in enumerate(values):
            self.memory[self.place(rank, buffer, start + k)] = value


def outcome(machine: Machine[Any], seed: int | None) -> str:
    """What goes wrong when the blocks run, or the first promise not kept, as a sentence; empty if all is well.

    seed: as `Machine.run` takes it.
    """
    if wrong := machine.run(seed):
        return wrong
    for rank, unit, contents in promised(machine.collective, machine.program.ranks, machine.program.units):
        expected = dict.fromkeys(contents, 1)
        machine.effort.spend(len(expected))
        held = machine.memory.get(machine.place(rank, "o", unit))
        actual = Counter() if held is None else held.value
        if actual != expected:
            # The first contributions, each as often as it is there.
            missing, extra = (
                list(islice((place for place, times in sorted(some.items()) for _ in range(min(times, 4))), 3))
                for some in (Counter(expected) - actual, actual - Counter(expected))
            )
            what = f"lacks {missing}" if missing else f"has {extra} too much"
            return f"GPU {rank} ends with the wrong o[{unit}]: it {what} (rank, chunk)"
    return ""


def check(path: str | Path, machines: Mapping[str, Callable[[Effort], Machine[Any]]]) -> None:
    """Carries a program out with its blocks in several orders; raises `FileError` for what goes wrong.

    machines: makers of what carries it out, by what stands behind the message. Raises `InfeasibleError` for a
    program too large to follow.
    """
    for label, seed in product(machines, (None, *range(_ORDERS - 1))):
        if wrong := outcome(machines[label](Effort(path, len(machines) * _ORDERS)), seed):
            raise FileError(path, f"{wrong}{label}")


def promised(collective: Collective, ranks: int, units: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """(rank, output unit, contents) of everything that must be there after a collective on vectors of `units`."""
    block = units // ranks
    _, output = collective.buffers(units, ranks)
    for rank in range(ranks):
        if collective.ends == ROOT and rank != collective.root:
            continue
        # Of a sender's input, a rank with a block of its own gets that block.
        first = rank * block if collective.ends == OWN else 0
        for unit in range(output):
            if collective.starts == EVERY:
                contents = [(sender, first + unit) for sender in range(ranks)]
            elif collective.starts == ROOT:
                contents = [(collective.root, first + unit)]
            else:
                contents = [(unit // block, first + unit % block)] if block else []
            yield rank, unit, contents


@dataclass(frozen=True, slots=True)
class Send:
    """A send of one unit, over the ranks of `stops`. arrivals: one for every hop, by number. reads: at the source."""

    stops: tuple[int, ...]
    arrivals: tuple[int, ...]
    reads: Parts


@dataclass(frozen=True, slots=True)
class State:
    """A value that a rank has of a unit. writes: (send, COPY or REDUCE) that make it from the one before. reads: the
    sends that carry it on. Both by the number of a send's last arrival."""

    writes: tuple[tuple[int, int], ...]
    reads: tuple[int, ...]


def sends(trace: Trace, needed: Needed) -> dict[int, Send]:
    """All sends, by the number of their last arrival.

    What a rank passes on once, unchanged, while it has another value of the same unit, is one send over that
    rank. needed: what ranks must have in the end, by rank and unit.
    """
    readers: dict[tuple[int, Unit], dict[Parts, list[int]]] = {}
    for number, arrival in enumerate(trace.arrivals):
        readers.setdefault((arrival.src, arrival.unit), {}).setdefault(arrival.parts, []).append(number)
    passed: dict[int, int] = {}  # the next arrival of what is passed on
    for number, arrival in enumerate(trace.arrivals):
        place = arrival.dst, arrival.unit
        known = readers.get(place, {})
        uses = [parts for parts in {*known, *([needed[place]] if place in needed else [])} if number in parts]
        others = len(known) > 1 or needed.get(place) not in (None, *known)
        alone = uses == [frozenset((number,))] and needed.get(place) != uses[0]
        if alone and others and len(known[uses[0]]) == 1:
            passed[number] = known.pop(uses[0])[0]
    sent = {number: Send((a.src, a.dst), (number,), a.parts) for number, a in enumerate(trace.arrivals)}
    for number, following in passed.items():
        first, second = sent.pop(number), sent[following]
        sent[following] = Send((*first.stops, *second.stops[1:]), (*first.arrivals, *second.arrivals), first.reads)
    return sent


def stories(
    sent: dict[int, Send], trace: Trace, needed: Needed, starts: set[tuple[int, Unit]]
) -> Iterator[list[State]]:
    """For every rank and unit the values that there are one after another.

    starts: where there is data at first. Raises `InfeasibleError` where no order serves all that was sent on.
    """
    readers: dict[tuple[int, Unit], dict[Parts, list[int]]] = {}
    for number, send in sorted(sent.items()):
        place = send.stops[0], trace.arrivals[number].unit
        readers.setdefault(place, {}).setdefault(send.reads, []).append(number)
    for place, parts in needed.items():
        readers.setdefault(place, {}).setdefault(parts, [])
    arrived = {number for known in readers.values() for parts in known for number in parts if number != OWN_DATA}
    if lost := sent.keys() - arrived:
        arrival = trace.arrivals[min(lost)]
        raise InfeasibleError(f"GPU {arrival.dst} makes no use of what it receives from GPU {arrival.src}")
    for (rank, unit), known in readers.items():
        now: Parts | None = frozenset((OWN_DATA,)) if (rank, unit) in starts else None
        applied: set[int] = set()
        states = []
        for parts in _ordered(known, needed.get((rank, unit))):
            if now is not None and now <= parts:
                new = [(number, REDUCE) for number in sorted(parts - now)]
            elif OWN_DATA in parts:
                raise InfeasibleError(f"GPU {rank} keeps several sums of the same data, and a schedule has one")
            else:
                first, *rest = sorted(parts)
                new = [(first, COPY), *((number, REDUCE) for number in rest)]
            if applied & dict(new).keys():
                raise InfeasibleError(f"GPU {rank} uses the same data in several sums, and a schedule has one")
            applied |= dict(new).keys()
            now = parts
            states.append(State(tuple(new), tuple(known[parts])))
        yield states


def _ordered(known: Iterable[Parts], last: Parts | None) -> list[Parts]:
    """Sums after what they are made of, what has the rank's own data in it first, and otherwise as they came."""
    left = sorted(known, key=lambda parts: parts == last)
    order = []
    while left:
        least = [parts for parts in left if not any(other < parts for other in left)]
        # A sum with the rank's own data waits for nothing but smaller sums of this kind.
        chosen = next((parts for parts in (*least, *left) if OWN_DATA in parts), least[0])
        left.remove(chosen)
        order.append(chosen)
    return order


# Bytes for which the steps are to be the best.
_LARGE = 2**30
Sends = dict[int, Send]
# The messages that the hops of a send are part of; what has the same is sent in the same step.
Messages = tuple[int, ...]
Levels = dict[Messages, int]
# (before, after, steps between them at least).
Waits = set[tuple[Messages, Messages, int]]
# A send as (step, message, ranks that it passes, COPY or REDUCE, channel).
Travel = tuple[int, int, tuple[int, ...], int, int]


def to_schedule(path: str | Path, machine: Machine[Any], topology: Topology, root: int) -> Candidate:
    """The schedule of a program that is right, on the members of a selected topology.

    machine: what carries it out. Raises `InputError` if the topology has another number of ranks, `FileError`
    for unequal shares, and `InfeasibleError` for what a schedule cannot say.
    """
    program, trace = machine.program, machine.trace
    collective, ranks, units = Collective(program.collective), program.ranks, program.units
    if collective.rooted:
        collective = Collective(program.collective, root)
    if topology.ranks != ranks:
        has = f"{topology.name} has {topology.ranks} members here"
        raise InputError(f"{path} is for {ranks} ranks, and {has}; choose {ranks} with members= or nodes=")
    collective.check_ranks(ranks)
    if collective.block_sides and units % ranks:
        raise FileError(path, f"cuts the vector into {units} chunks, which {ranks} ranks cannot share equally")
    here = "right for its runtime, but no schedule here"
    with blamed_on(lambda why: InfeasibleError(f"{path}: {here}: {why}"), InfeasibleError):
        machine.run()
        if trace.mixed:
            raise InfeasibleError("it adds different parts of the vector to each other")
        # What must be there in the end; sums are of no rank in particular.
        needed: Needed = {}
        for rank, place, ((source, unit), *_) in promised(collective, ranks, units):
            parts = machine.memory[machine.place(rank, "o", place)].parts
            needed[rank, (-1 if collective.reduces else source, unit)] = parts
        return _schedule(machine, needed, topology, collective)


def _schedule(machine: Machine[Any], needed: Needed, topology: Topology, collective: Collective) -> Candidate:
    trace, ranks, units = machine.trace, topology.ranks, machine.program.units
    # All units of the vector, or of all vectors of an alltoall; those that ranks add to are of no rank.
    sources = range(ranks) if collective.starts == OWN else [-1 if collective.reduces else collective.root]
    everything = list(product(sources, range(collective.buffers(units, ranks)[0])))
    starts = {(rank, unit) for unit in everything for rank in (range(ranks) if unit[0] < 0 else [unit[0]])}
    sent = sends(trace, needed)
    states = list(stories(sent, trace, needed, starts))
    ops = {number: op for story in states for state in story for number, op in state.writes}
    labels = {unit: collective.labels(unit[0], unit[1] // max(1, units // ranks)) for unit in everything}
    waits = _waits(trace, sent, states)
    if (levels := _levels(trace, sent, waits)) is None:
        raise InfeasibleError("its ranks wait for each other in a way that steps cannot say")

    def built(levels: Levels) -> Schedule:
        travels: dict[Unit, list[Travel]] = defaultdict(list)
        for number, send in sorted(sent.items()):
            first, messages = trace.arrivals[send.arrivals[0]], _messages(trace, send)
            travels[first.unit].append((levels[messages], messages[-1], send.stops, ops[number], first.channel))
        # Units that always travel together are one chunk.
        together = Counter((label, tuple(travels.get(unit, ()))) for unit, label in labels.items())
        builder, rows = Builder(topology, collective, machine.program.name, "steps"), []
        for (label, travel), alike in together.items():
            chunk = builder.add_chunk(Fraction(collective.vectors(ranks) * alike, len(labels)), *label)
            rows += [(step, message, chunk, stops, op, channel) for step, message, stops, op, channel in travel]
        for step, _, chunk, stops, op, channel in sorted(rows):
            ends = topology.member_places[[*stops]].tolist()
            route = builder.add_routes([[link for a, b in pairwise(ends) for link in topology.router.route(a, b)]])[0]
            builder.add_sends(chunk=chunk, src=ends[0], dst=ends[-1], op=op, step=step, route=route, channel=channel)
        return builder.finish()

    candidates = [built(levels)]
    # One message of a connection after another.
    firsts = ((trace.arrivals[send.arrivals[0]], send) for _, send in sorted(sent.items()))
    lines = grouped(((first.src, first.dst, first.channel), _messages(trace, send)) for first, send in firsts)
    following = {(before, after, 1) for line in lines.values() for before, after in pairwise(line) if before != after}
    candidates += map(built, filter(None, [_levels(trace, sent, waits | following)]))
    # Trees send every chunk as a message of its own.
    trees = candidates[0].sends == len(levels) and moves_along_trees(candidates[0])
    candidates += [replace(candidates[0], form="forest")] if trees else []
    # Of those that are as quick, a pipeline is one that pieces make quicker.
    candidates.sort(key=lambda one: (one.form == "forest") != (cost(one, _LARGE).pieces > 1))
    return min(map(Candidate.of, candidates), key=lambda one: float(f"{cost(one, _LARGE).time_s:.3e}"))


# --- steps ----------------------------------------------------------------------------------------------------------


def _messages(trace: Trace, send: Send) -> Messages:
    return tuple(trace.arrivals[number].message for number in send.arrivals)


def _waits(trace: Trace, sent: Sends, states: Iterable[list[State]]) -> Waits:
    """What the values of ranks demand."""
    of = {number: _messages(trace, send) for number, send in sent.items()}
    waits: Waits = set()
    for story in states:
        earlier: State | None = None
        for state in story:
            copies = [number for number, op in state.writes if op == COPY]
            for number, op in state.writes:
                waits |= {(of[copy], of[number], 1) for copy in copies if op == REDUCE}
                if earlier is not None:
                    # What is read in a step is what was there when it began.
                    waits |= {(of[read], of[number], 0) for read in earlier.reads}
                    waits |= {(of[copy], of[number], 1) for copy, way in earlier.writes if way == COPY}
            waits |= {(of[number], of[read], 1) for number, _ in state.writes for read in state.reads}
            earlier = state
    return {wait for wait in waits if wait[0] != wait[1] or wait[2]}


def _levels(trace: Trace, sent: Sends, waits: Waits) -> Levels | None:
    """The earliest step of every send; None if one waits for a later one."""
    import networkx as nx

    graph: nx.DiGraph[Messages] = nx.DiGraph()
    graph.add_nodes_from(_messages(trace, send) for send in sent.values())
    graph.add_edges_from((before, after) for before, after, _ in waits)
    rooms = nx.condensation(graph)
    room: dict[Messages, int] = rooms.graph["mapping"]
    least: dict[tuple[int, int], int] = defaultdict(int)
    for before, after, between in waits:
        if room[before] == room[after] and between:
            return None
        key = room[before], room[after]
        least[key] = max(least[key], between)
    level = dict.fromkeys(rooms, 0)
    for number in nx.topological_sort(rooms):
        for later in rooms.successors(number):
            level[later] = max(level[later], level[number] + least[number, later])
    return {messages: level[number] for messages, number in room.items()}
