"""A second opinion on schedules, written without looking at the first.

It imports nothing of blinksim but the descriptions of machines and schedules, and uses other means than
`blinksim.schedule.verify`: it carries a schedule out on exact numbers (random integers to add, primes to multiply),
lets the arrivals of a step come in two orders, adds loads up send by send in fractions, and plays bounded queues
through until nothing moves.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import groupby
from math import prod

from blinksim.schedule.model import REDUCE, Schedule
from blinksim.topology.graph import Topology

State = dict[tuple[str, int], int]
REDUCING = ("allreduce", "reduce", "reducescatter", "combine")
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "min": min,
    "max": max,
}
TOTALS: dict[str, Callable[[list[int]], int]] = {"sum": sum, "prod": prod, "min": min, "max": max}


def check(schedule: Schedule) -> list[str]:
    """What is wrong with a schedule; empty if nothing is."""
    wrong = wrong_shares(schedule) + wrong_ways(schedule) + wrong_reads(schedule)
    names = OPERATIONS if schedule.collective.name in REDUCING else ("sum",)
    for name in names:
        for backwards in (False, True):
            wrong += wrong_results(schedule, name, backwards)
    return wrong


def primes(count: int) -> list[int]:
    found: list[int] = []
    candidate = 2
    while len(found) < count:
        if all(candidate % p for p in found):
            found.append(candidate)
        candidate += 1
    return found


def who(schedule: Schedule, chunk: int) -> tuple[list[int], list[int]]:
    """The ranks that start with data of a chunk, and those that must end with it, by the collective's definition."""
    everybody, root = list(range(schedule.topology.ranks)), [schedule.collective.root]
    origin, target = [int(schedule.origin[chunk])], [int(schedule.target[chunk])]
    if schedule.collective.name in ("dispatch", "combine"):
        ends = ranks_of(schedule, *target) if schedule.collective.name == "dispatch" else target
        return (origin if schedule.collective.name == "dispatch" else ranks_of(schedule, *origin)), ends
    return {
        "allreduce": (everybody, everybody),
        "reduce": (everybody, root),
        "reducescatter": (everybody, target),
        "broadcast": (root, everybody),
        "allgather": (origin, everybody),
        "gather": (origin, root),
        "scatter": (root, target),
        "alltoall": (origin, target),
    }[schedule.collective.name]


def ranks_of(schedule: Schedule, number: int) -> list[int]:
    """The set of ranks that the label of a chunk of tokens stands for; one that is no rank for no set."""
    assert schedule.collective.routing is not None
    sets = schedule.collective.routing.classes.sets
    return [rank for rank in sets[number].tolist() if rank >= 0] if number >= 0 else [-1]


def tokens(schedule: Schedule) -> dict[tuple[int, tuple[int, ...]], int]:
    """Bytes of the tokens of every rank for every set of ranks, counted token by token."""
    routing = schedule.collective.routing
    assert routing is not None
    found: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
    for source, rows in enumerate(routing.wanted.tolist()):
        for row in rows:
            if wanted := tuple(sorted({*row} - {-1})):
                found[source, wanted] += routing.token_size
    return found


def wrong_results(schedule: Schedule, operation: str, backwards: bool) -> list[str]:
    """Where the numbers that a run leaves differ from the ones computed directly."""
    combine, total = OPERATIONS[operation], TOTALS[operation]
    reducing = schedule.collective.name in REDUCING
    numbers = random.Random(7)
    first = primes(schedule.topology.ranks)
    members = schedule.topology.members
    state: State = {}
    expected: list[int] = []
    for chunk in range(schedule.chunks):
        starts, _ = who(schedule, chunk)
        values = [first[r] if operation == "prod" else numbers.randrange(1, 10**9) for r in starts]
        state |= {(members[r], chunk): value for r, value in zip(starts, values, strict=True) if r >= 0}
        expected.append(total(values))

    def rubbish() -> int:
        return -numbers.randrange(10**12, 10**13)

    sends = range(schedule.sends)
    for _, group in groupby(sends, key=lambda i: int(schedule.step[i])):
        moving = []
        for i in summands(schedule, group):
            place = (schedule.topology.devices[schedule.src[i]].name, int(schedule.chunk[i]))
            moving.append((i, state.get(place, None if reducing else rubbish())))
        for i, value in reversed(moving) if backwards else moving:
            place = (schedule.topology.devices[schedule.dst[i]].name, int(schedule.chunk[i]))
            if schedule.op[i] == REDUCE:
                old = state.get(place, None if reducing else rubbish())
                # None is the neutral element.
                value = old if value is None else value if old is None else combine(old, value)
            if value is None:
                state.pop(place, None)
            else:
                state[place] = value
    wrong = []
    for chunk in range(schedule.chunks):
        for r in who(schedule, chunk)[1]:
            if r < 0 or state.get((members[r], chunk)) != expected[chunk]:
                wrong.append(f"{operation}: rank {r} ends with the wrong chunk {chunk}")
    return wrong


def summands(schedule: Schedule, sends: Iterable[int]) -> list[int]:
    """The sends of a step; a copy that a switch reads once for every one of several readers is one summand."""
    first: dict[tuple[int, ...], int] = {}
    for i in sends:
        read = schedule.op[i] == REDUCE and "reduce_into_reader" in schedule.topology.devices[schedule.dst[i]].can
        columns = (schedule.src, schedule.dst, schedule.chunk)
        first.setdefault(tuple(int(column[i]) for column in columns) if read else (i,), i)
    return list(first.values())


def wrong_shares(schedule: Schedule) -> list[str]:
    """Where the parts that the ranks give or get are not equal, or do not make the whole."""
    n = schedule.topology.ranks
    parts: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for chunk in range(schedule.chunks):
        parts[int(schedule.origin[chunk]), int(schedule.target[chunk])] += schedule.share(chunk)
    if (routing := schedule.collective.routing) is not None:
        held: dict[tuple[int, tuple[int, ...]], Fraction] = defaultdict(Fraction)
        for (origin, target), share in parts.items():
            own, number = (origin, target) if schedule.collective.name == "dispatch" else (target, origin)
            held[own, tuple(ranks_of(schedule, number))] += share
        due = {ends: Fraction(amount, routing.size) for ends, amount in tokens(schedule).items()}
        return [] if held == due else ["the shares are not those of the tokens"]
    one_each = {
        "allgather": {(r, -1): Fraction(1, n) for r in range(n)},
        "reducescatter": {(-1, r): Fraction(1, n) for r in range(n)},
        "gather": {(r, -1): Fraction(1, n) for r in range(n)},
        "scatter": {(-1, r): Fraction(1, n) for r in range(n)},
        "alltoall": {(a, b): Fraction(1, n) for a in range(n) for b in range(n)},
    }.get(schedule.collective.name, {(-1, -1): Fraction(1)})
    # The root may be named where nobody needs to be.
    root = schedule.collective.root
    named: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for (origin, target), share in parts.items():
        if schedule.collective.name in ("broadcast", "scatter") and origin == root:
            origin = -1
        if schedule.collective.name in ("reduce", "gather") and target == root:
            target = -1
        named[origin, target] += share
    # Of a chunk without data, too, the labels are those of the collective.
    found = {ends: share for ends, share in named.items() if share or ends not in one_each}
    return [] if found == one_each else ["the shares are not those of the collective"]


def wrong_ways(schedule: Schedule) -> list[str]:
    """Sends whose links do not lead from their source to their destination, or through somebody who takes no part."""
    topology = schedule.topology
    part = {*topology.members, *topology.relays}
    wrong = []
    for i in range(schedule.sends):
        place, end = (topology.devices[x[i]].name for x in (schedule.src, schedule.dst))
        route = [topology.links[link] for link in schedule.links_of(int(schedule.route[i]))]
        fine = place != end and bool(route)
        for name in (place, end):
            device = topology.device(name)
            fine &= name in part if "hold" in device.can else bool(device.can - {"forward"})
        for position, link in enumerate(route):
            fine &= link.src == place
            place = link.dst
            inside = position < len(route) - 1
            device = topology.device(place)
            fine &= not inside or ("forward" in device.can and ("hold" not in device.can or place in part))
        if not fine or place != end:
            wrong.append(f"send {i} has no way")
    return wrong


def wrong_reads(schedule: Schedule) -> list[str]:
    """What passes a switch that reduces into readers otherwise than by whole reads and stores, own copies included."""
    topology = schedule.topology
    wrong = []
    for switch in [d.name for d in topology.devices if "reduce_into_reader" in d.can]:
        place = topology.index[switch]
        for chunk in range(schedule.chunks):
            steps: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
            for i in range(schedule.sends):
                if schedule.chunk[i] == chunk and place in (schedule.src[i], schedule.dst[i]):
                    steps[int(schedule.step[i])][int(schedule.src[i] == place)].append(i)
            inside: list[int] = []
            for _, (arriving, leaving) in sorted(steps.items()):
                if bool(leaving) != bool(inside):
                    wrong.append(f"{switch} keeps chunk {chunk}, or gives out what it has not")
                if inside and leaving:
                    sources, ends = ({int(ends[i]) for i in some} for ends, some in
                                     ((schedule.src, inside), (schedule.dst, leaving)))  # fmt: skip
                    added = [schedule.op[i] == REDUCE for i in inside]
                    each = [sum(int(schedule.src[i]) == source for i in inside) for source in sources]
                    read = all(added) and ends <= sources and len(leaving) == len(ends) and {*each} == {len(ends)}
                    stored = not any(added) and len(sources) == 1 and sources <= ends
                    if not read and not stored:
                        wrong.append(f"{switch} neither reads nor stores chunk {chunk}")
                inside = arriving
            if inside:
                wrong.append(f"{switch} ends with chunk {chunk}")
    return wrong


# --- loads ----------------------------------------------------------------------------------------------------------


def loads(schedule: Schedule) -> dict[str, Fraction]:
    """The share of the size that passes every link, bus and limited device, by a name of its own."""
    carried: dict[str, Fraction] = defaultdict(Fraction)
    for i in range(schedule.sends):
        share = Fraction(int(schedule.share_num[schedule.chunk[i]]), schedule.share_den)
        for link in schedule.links_of(int(schedule.route[i])):
            for resource in shared(schedule.topology, link):
                carried[resource] += share
    return carried


def shared(topology: Topology, number: int) -> dict[str, Fraction]:
    """What a link needs: itself or its bus, and the ways out of and into devices with a capacity; with their rates."""
    link = topology.links[number]
    needs = {f"link {link.key}" if link.bus is None else f"bus {link.bus}": link.lane_bandwidth * link.lanes}
    for word, name in (("out", link.src), ("in", link.dst)):
        limit = topology.device(name).capacity
        if limit is not None:
            needs[f"{word} {name}"] = limit
    return needs


def rate(schedule: Schedule) -> Fraction:
    """algbw in bytes/s that the loads allow; some link must be loaded."""
    limits: dict[str, Fraction] = {}
    for number in range(len(schedule.topology.links)):
        limits |= shared(schedule.topology, number)
    return min(limits[name] / load for name, load in loads(schedule).items() if load)


# --- bounded queues -------------------------------------------------------------------------------------------------


def stuck(schedule: Schedule, slots: int) -> set[int]:
    """The sends that are not finished when bounded queues, each worked off in order, have come to a halt."""
    queues: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for i in range(schedule.sends):
        queues[int(schedule.src[i]), int(schedule.dst[i]), int(schedule.channel[i])].append(i)
    put, taken = set[int](), set[int]()

    def ready_to_put(i: int) -> bool:
        return all(
            j in taken
            for j in range(schedule.sends)
            if schedule.step[j] < schedule.step[i]
            and (schedule.dst[j], schedule.chunk[j]) == (schedule.src[i], schedule.chunk[i])
        )

    def ready_to_take(i: int) -> bool:
        here = (schedule.dst[i], schedule.chunk[i])
        for j in range(schedule.sends):
            reads = (schedule.src[j], schedule.chunk[j]) == here and schedule.step[j] <= schedule.step[i]
            writes = (schedule.dst[j], schedule.chunk[j]) == here and schedule.step[j] < schedule.step[i]
            if (reads and j not in put) or (writes and j not in taken):
                return False
        return True

    filling = {key: deque(queue) for key, queue in queues.items()}
    holding: dict[tuple[int, int, int], deque[int]] = {key: deque() for key in queues}
    moved = True
    while moved:
        moved = False
        for key in queues:
            if filling[key] and len(holding[key]) < slots and ready_to_put(filling[key][0]):
                holding[key].append(filling[key].popleft())
                put.add(holding[key][-1])
                moved = True
            if holding[key] and ready_to_take(holding[key][0]):
                taken.add(holding[key].popleft())
                moved = True
    return set(range(schedule.sends)) - taken


# --- one buffer for input and output --------------------------------------------------------------------------------


def wrong_in_place(schedule: Schedule) -> list[str]:
    """Where an alltoall that runs in one buffer a rank, element by element, ends with the wrong elements."""
    n, topology = schedule.topology.ranks, schedule.topology
    block = schedule.share_den // n
    places: dict[int, int] = {}
    filled: dict[tuple[int, int], int] = defaultdict(int)
    for chunk in range(schedule.chunks):
        pair = (int(schedule.origin[chunk]), int(schedule.target[chunk]))
        places[chunk] = filled[pair]
        filled[pair] += int(schedule.share_num[chunk])
    memory = {name: [(r, e // block, e % block) for e in range(n * block)] for r, name in enumerate(topology.members)}
    aside: dict[tuple[str, int], list[tuple[int, int, int]]] = {}

    def span(other: int, chunk: int) -> slice:
        start = other * block + places[chunk]
        return slice(start, start + int(schedule.share_num[chunk]))

    for _, group in groupby(range(schedule.sends), key=lambda i: int(schedule.step[i])):
        moving = []
        for i in group:
            chunk, name = int(schedule.chunk[i]), topology.devices[schedule.src[i]].name
            origin, target = int(schedule.origin[chunk]), int(schedule.target[chunk])
            if name == topology.members[origin]:
                moving.append((i, memory[name][span(target, chunk)]))
            elif name == topology.members[target]:
                moving.append((i, memory[name][span(origin, chunk)]))
            else:
                moving.append((i, list(aside[name, chunk])))
        for i, elements in moving:
            chunk, name = int(schedule.chunk[i]), topology.devices[schedule.dst[i]].name
            if name == topology.members[int(schedule.target[chunk])]:
                memory[name][span(int(schedule.origin[chunk]), chunk)] = elements
            else:
                aside[name, chunk] = elements
    return [
        f"rank {r} has {found} where {(e // block, r, e % block)} belongs"
        for r, name in enumerate(topology.members)
        for e, found in enumerate(memory[name])
        if found != (e // block, r, e % block)
    ]
