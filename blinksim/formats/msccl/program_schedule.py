"""Programs of MSCCL and MSCCL++ as schedules: carried out once, and what every rank sent put into steps.

The files know ranks, not links: rank i is the i-th member of the machine, and what it sends takes the machine's routes.
A runtime has no steps that all ranks begin together; the steps here are as early as what each send waits for allows,
or one for each message of a connection, or pipelined trees, whichever takes the least time for large sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from blinksim.collective import EVERY, OWN, ROOT, Collective
from blinksim.cost.alpha_beta import cost
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.formats.msccl import msccl_check, mscclpp_check
from blinksim.formats.msccl.thread_blocks import Effort
from blinksim.formats.msccl.trace import Held, Parts, Send, State, Trace, Unit, sends, stories
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import COPY, REDUCE, Builder, Schedule
from blinksim.topology.graph import Topology

# Bytes for which the steps are to be the best.
_LARGE = 2**30
Sends = dict[int, Send]
Messages = tuple[int, ...]
"""The messages that the hops of a send are part of; what has the same is sent in the same step."""
Levels = dict[Messages, int]
Waits = set[tuple[Messages, Messages, int]]
"""(before, after, steps between them at least)."""
Travel = tuple[int, int, tuple[int, ...], int, int]
"""A send as (step, message, ranks that it passes, COPY or REDUCE, channel)."""


def from_xml(text: str, path: str | Path, topology: Topology, root: int = 0) -> Candidate:
    """The schedule of an algorithm file of MSCCL on the members of a selected topology.

    Raises `FileError` for a file that the runtimes refuse or that is wrong, `InputError` if the machine has another
    number of ranks, and `InfeasibleError` for what a schedule cannot say.
    """
    msccl_check.check_text(text, path, root=root)
    algorithm = msccl_check.read_text(text, path)
    collective = _collective(path, algorithm.collective, root, topology, len(algorithm.gpus), algorithm.units)
    trace = Trace(collective.reduces)
    machine = msccl_check.Buffers(algorithm, trace, Effort(path), root=root, in_place=not algorithm.out_of_place)
    return _traced(path, machine, trace, Builder(topology, collective, algorithm.name, "steps"), algorithm.units)


def from_plan(document: object, path: str | Path, topology: Topology, root: int = 0) -> Candidate:
    """The schedule of the execution plan of MSCCL++ in a JSON document; raises as `from_xml` does."""
    mscclpp_check.check(document, path, root=root)
    plan = mscclpp_check.read(document, path)
    collective = _collective(path, plan.collective, root, topology, len(plan.blocks), plan.units)
    trace = Trace(collective.reduces)
    machine = mscclpp_check.Memory(plan, trace, Effort(path), root=root)
    return _traced(path, machine, trace, Builder(topology, collective, plan.name, "steps"), plan.units)


def _collective(path: str | Path, name: str, root: int, topology: Topology, ranks: int, units: int) -> Collective:
    collective = Collective(name, root if Collective(name).rooted else 0)
    if topology.ranks != ranks:
        raise InputError(
            f"{path} is for {ranks} ranks, and {topology.name} has {topology.ranks} members here; choose {ranks} with "
            "members= or nodes="
        )
    collective.check_ranks(ranks)
    if collective.block_sides and units % ranks:
        raise FileError(path, f"cuts the vector into {units} chunks, which {ranks} ranks cannot share equally")
    return collective


def _traced(
    path: str | Path,
    machine: msccl_check.Buffers[Held] | mscclpp_check.Memory[Held],
    trace: Trace,
    builder: Builder,
    units: int,
) -> Candidate:
    try:
        machine.run()
        kept = {
            (rank, unit): machine.memory[machine.place(rank, "o", place)].parts
            for rank, place, unit in _kept(builder.collective, builder.topology.ranks, units)
        }
        return _schedule(trace, kept, builder.topology, builder.collective, builder.algorithm, units)
    except InfeasibleError as error:
        raise InfeasibleError(f"{path}: right for its runtime, but no schedule here: {error}") from None


def _units(collective: Collective, ranks: int, units: int) -> Iterator[Unit]:
    """All units of the vector, or of all vectors of an alltoall."""
    if collective.starts != OWN:
        yield from ((-1 if collective.reduces else collective.root, unit) for unit in range(units))
    else:
        own, _ = collective.buffers(units, ranks)
        yield from ((rank, unit) for rank in range(ranks) for unit in range(own))


def _target(collective: Collective, unit: Unit, ranks: int, units: int) -> int:
    """The rank that a unit ends at, -1 where that is every rank or the root."""
    return unit[1] // (units // ranks) if collective.ends == OWN else -1


def _kept(collective: Collective, ranks: int, units: int) -> Iterator[tuple[int, int, Unit]]:
    """(rank, place in its output, unit) of everything that must be there in the end."""
    block = units // ranks
    for unit in _units(collective, ranks, units):
        target = _target(collective, unit, ranks, units)
        inside = unit[1] % block if collective.ends == OWN else unit[1]
        place = inside + (unit[0] * block if collective.starts == OWN else 0)
        holders = [target] if collective.ends == OWN else [collective.root]
        for rank in range(ranks) if collective.ends == EVERY else holders:
            yield rank, place, unit


def _schedule(
    trace: Trace,
    kept: dict[tuple[int, Unit], Parts],
    topology: Topology,
    collective: Collective,
    name: str,
    units: int,
) -> Candidate:
    ranks = topology.ranks
    everything = list(_units(collective, ranks, units))
    if collective.starts == EVERY:
        starts = {(rank, unit) for rank in range(ranks) for unit in everything}
    elif collective.starts == ROOT:
        starts = {(collective.root, unit) for unit in everything}
    else:
        starts = {(unit[0], unit) for unit in everything}
    found = sends(trace, kept)
    states = list(stories(found, trace, kept, starts))
    ops = {number: op for story in states for state in story for number, op in state.writes}
    labels = {
        unit: collective.labels(max(unit[0], 0), max(_target(collective, unit, ranks, units), 0)) for unit in everything
    }
    waits = _waits(trace, found, states)
    levels = _levels(trace, found, waits)
    if levels is None:
        raise InfeasibleError("its ranks wait for each other in a way that steps cannot say")

    def built(levels: Levels) -> Schedule:
        travels: dict[Unit, list[Travel]] = defaultdict(list)
        for number, send in sorted(found.items()):
            first, messages = trace.arrivals[send.arrivals[0]], _messages(trace, send)
            travels[first.unit].append((levels[messages], messages[-1], send.stops, ops[number], first.channel))
        return _built(Builder(topology, collective, name, "steps"), labels, travels)

    entrants = [built(levels)]
    one_by_one = _levels(trace, found, waits | _in_order(trace, found))
    entrants += [] if one_by_one is None else [built(one_by_one)]
    entrants += [replace(entrants[0], form="forest")] if is_forest(entrants[0]) else []
    return min(map(Candidate.of, entrants), key=_time_of)


def _time_of(entrant: Candidate) -> float:
    return round(cost(entrant.compact, _LARGE, spread=entrant.spread).time_s, 9)


# --- steps ----------------------------------------------------------------------------------------------------------


def _messages(trace: Trace, send: Send) -> Messages:
    return tuple(trace.arrivals[number].message for number in send.arrivals)


def _waits(trace: Trace, found: Sends, states: Iterable[list[State]]) -> Waits:
    """What the values of ranks demand."""
    of = {number: _messages(trace, send) for number, send in found.items()}
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


def _in_order(trace: Trace, found: Sends) -> Waits:
    """One message of a connection after another."""
    last: dict[tuple[int, int, int], Messages] = {}
    waits: Waits = set()
    for _, send in sorted(found.items()):
        arrival, messages = trace.arrivals[send.arrivals[0]], _messages(trace, send)
        connection = arrival.src, arrival.dst, arrival.channel
        before = last.get(connection, messages)
        waits |= {(before, messages, 1)} if before != messages else set()
        last[connection] = messages
    return waits


def _levels(trace: Trace, found: Sends, waits: Waits) -> Levels | None:
    """The earliest step of every send; None if one waits for a later one."""
    import networkx as nx

    graph: nx.DiGraph[Messages] = nx.DiGraph()
    graph.add_nodes_from(_messages(trace, send) for send in found.values())
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


# --- chunks ---------------------------------------------------------------------------------------------------------


def _built(builder: Builder, labels: Mapping[Unit, tuple[int, int]], travels: Mapping[Unit, list[Travel]]) -> Schedule:
    """The schedule; units that always travel together are one chunk.

    labels: origin and target of each unit.
    """
    topology = builder.topology
    device = topology.member_places.tolist()
    together: dict[tuple[tuple[int, int], tuple[Travel, ...]], list[Unit]] = defaultdict(list)
    for unit, label in labels.items():
        together[label, tuple(travels.get(unit, ()))].append(unit)
    share = Fraction(builder.collective.vectors(topology.ranks), len(labels))
    rows = []
    for (label, travel), alike in together.items():
        chunk = builder.add_chunk(share * len(alike), *label)
        rows += [(step, message, chunk, stops, op, channel) for step, message, stops, op, channel in travel]
    for step, _, chunk, stops, op, channel in sorted(rows):
        ends = [device[stop] for stop in stops]
        links = [link for a, b in pairwise(ends) for link in topology.router.route(a, b)]
        builder.add_sends(
            chunk=chunk, src=ends[0], dst=ends[-1], op=op, step=step, route=builder.add_route(links), channel=channel
        )
    return builder.finish()


def is_forest(schedule: Schedule) -> bool:
    """True if every chunk comes together on one tree and spreads on one, as in a schedule in forest form."""
    ends: dict[tuple[int, int], dict[int, int]] = {}
    for chunk, src, dst, op in zip(schedule.chunk, schedule.src, schedule.dst, schedule.op, strict=True):
        # Each device passes a sum on once, and gets the whole once.
        own, other = (int(src), int(dst)) if op == REDUCE else (int(dst), int(src))
        known = ends.setdefault((int(chunk), int(op)), {})
        if own in known:
            return False
        known[own] = other
    tops: dict[int, set[int]] = {}
    for (chunk, _), edges in ends.items():
        found = {other for other in edges.values() if other not in edges}
        tops.setdefault(chunk, set()).update(found)
        if not found:
            return False
    return all(len(found) == 1 for found in tops.values())
