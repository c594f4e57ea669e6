"""The quickest schedule of a few rounds for one size, on up to 8 GPUs joined by links or switches.

With links, every link sends one message a round, of what its source got in the rounds before. Linear programs
divide the data among trees of rounds so that the last message ends early: latency, overhead and bandwidth
count together (`blinksim.packing.rounds`), latency as in the postal model (Bar-Noy and Kipnis 1992). Column
generation as in Gilmore and Gomory, Operations Research 1961. For small sizes, constraint programming orders
all messages of one or a few equal parts, over routes of one and two links.

Where up to 32 ranks all send alike (behind switches, on rails, on a torus that is a cube), there are exchanges along
the bits of rank numbers: halving, then doubling (Thakur, Rabenseifner and Gropp, IJHPCA 2005) in any order of bits,
such as inside the nodes before the rails between them. An allreduce may stop halving and exchange what is left in full,
which saves steps. A linear program divides the data among orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from fractions import Fraction
from functools import partial
from time import monotonic

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import Algorithm
from blinksim.budget import asked_to_stop
from blinksim.collective import COLLECTIVES, OWN, ROOT, SHARDED, Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.arrays import Bools, Ints
from blinksim.graphs.programs import DENOMINATORS
from blinksim.packing import cubes
from blinksim.packing.choose import Limits
from blinksim.packing.rounds import Column, Paths, Pricing, Rounds, Search, Solved, Sums, Trees, round_robin
from blinksim.packing.undivided_messages import best_order, far_first, takes
from blinksim.packing.wires import MOST_RANKS, Wires, joined_directly
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

# Ranks up to which the data is divided, and rounds for every bit.
_MOST_RANKS, _ROUNDS_A_BIT = 32, 4
# Rounds after which what came over long latencies goes on.
_DELAYS = (1, 2, 3)
# Latencies that are longer than this many times the shortest are long.
_SLOW = 2.0
# Shares of the size are multiples of one in about this many.
_DIVISOR = 2**24


def along_bits(
    topology: Topology, collective: Collective, name: str, size: int, search: Search
) -> tuple[float, Schedule] | None:
    """The best division that is found until it is over, with its seconds; None where there is none of this kind."""
    n = topology.ranks
    if collective.name not in SHARDED or n & (n - 1) or not 2 < n <= _MOST_RANKS:
        return None
    wires = Wires.of(topology, size)
    numbers = [*range(n)]
    if joined_directly(topology):
        to = [{b for a, b in zip(wires.src.tolist(), wires.dst.tolist(), strict=True) if a == rank} for rank in numbers]
        numbers = cubes.labels(to)
    backwards = collective.name == "reducescatter"
    given = cubes.cube(wires.reversed() if backwards else wires, numbers)
    best = None if given is None else _best(*given, "allgather" if backwards else collective.name, search)
    if best is None:
        return None
    solved, rounds = best
    plan = Plan(topology, collective, name, "steps")
    for column, share in _exact_shares(solved, [1.0]):
        assert isinstance(column, cubes.CubeColumn)
        _add(plan, column.events, share, np.argsort(numbers), rounds if backwards else 0)
    return solved.microseconds / 1e6, plan.finish()


def _exact_shares(solved: Solved, dues: Sequence[float]) -> list[tuple[Column, Fraction]]:
    """The columns with shares of the size that add up exactly to what is due of each item.

    Short fractions where all of an item are so near to some as rounding would bring them, as equal parts are.
    """
    exact = []
    for item, due in enumerate(dues):
        left = Fraction(due).limit_denominator(2**12)
        parts = max(1, _DIVISOR // left.denominator) * left.denominator
        mine = sorted((share, place) for place, (one, share) in enumerate(solved.columns) if one.item == item)
        for most in DENOMINATORS:
            shares = [Fraction(share).limit_denominator(most) for share, _ in mine]
            off = max(abs(exactly - share) for exactly, (share, _) in zip(shares, mine, strict=True))
            if sum(shares) == left and off <= 1 / parts:
                break
        else:
            shares = [Fraction(round(share * parts), parts) for share, _ in mine[:-1]]
            shares.append(left - sum(shares))
        exact += [(solved.columns[place][0], part) for (_, place), part in zip(mine, shares, strict=True) if part]
    return exact


def _best(wires: Wires, groups: Sequence[list[int]], name: str, search: Search) -> tuple[Solved, int] | None:
    """The best of few rounds or many, and how many it has. wires, groups: of a cube."""
    best: tuple[Solved, int] | None = None
    slow, bits = wires.latency > _SLOW * wires.latency.min(), len(wires.routes)
    for rounds in range(bits, _ROUNDS_A_BIT * bits + 1):
        if search.over() or (best is not None and rounds > best[1] + _IN_VAIN):
            break
        # (K, bits): in every round each group of bits sends along the next of them, the highest first.
        allowed = np.zeros((rounds, bits), dtype=bool)
        for group in groups:
            for now in range(rounds):
                allowed[now, group[-1 - now % len(group)]] = True
        for delay in _DELAYS if slow.any() else _DELAYS[:1]:
            # (K, bits): from which round on what a message brings may go on; later where latency is long.
            seen = np.arange(rounds)[:, None] + np.where(slow, delay, 1)[None, :]
            trial = Rounds(wires, cubes.Cubes(name, allowed, seen), allowed, search, seen).solve()
            if trial is not None and (best is None or trial.microseconds < best[0].microseconds):
                best = trial, rounds
                search.report(trial.microseconds / 1e6)
    return best


def _add(plan: Plan, events: Sequence[cubes.Event], share: Fraction, rank: Ints, span: int = 0) -> None:
    """A part of the data that goes along the bits. rank: of every number. span: the rounds, if it goes backwards.

    An allgather, or a reducescatter backwards, has a chunk of every rank; an allreduce one for every number,
    which ranks that agree with it in the halved bits add up.
    """
    n, collective, mask = plan.n, plan.collective, 0
    chunk = np.array([plan.add_chunk(share / n, *collective.labels(own, own)) for own in rank.tolist()])
    if collective.name != "allreduce":
        now, bit, holder = np.array([(e.now, 1 << e.bit, sender) for e in events for sender in e.holders]).T
        here = np.arange(n)[:, None] ^ holder
        src, dst = rank[here], rank[here ^ bit]
        if span:
            src, dst, now = dst, src, span - 1 - now
        plan.send(src, dst, chunk=chunk[:, None], op=REDUCE if span else COPY, step=now)
        return
    for event in events:
        bit = 1 << event.bit
        after, flip = (mask | bit, bit) if event.kind == cubes.HALVE else (mask, 0)
        here, number = np.nonzero((np.arange(n)[:, None] ^ flip) & after == np.arange(n) & after)
        op = COPY if event.kind == cubes.DOUBLE else REDUCE
        plan.send(rank[here], rank[here ^ bit], chunk=chunk[number], op=op, step=event.now)
        mask = after if event.kind == cubes.HALVE else mask & ~bit


ENTRY = Algorithm(
    COLLECTIVES,
    "the quickest messages of a few rounds for one size, by linear programs",
    solver=True,
    most_ranks=32,
    routes=True,
)


_NAME = "few_rounds"
Timed = tuple[float, Schedule]
# Rounds that are tried at the most: on links, and round-robin, where each rank sends one message a round.
_MOST_ROUNDS, _MOST_ROTATIONS = 14, 16
# Numbers of rounds in a row after which no more are tried, if none brings a time that is better by this part: some
# collectives gain from every second one only.
_IN_VAIN, _BETTER = 2, 2e-3
# Into how many equal parts everything is cut for the search of the best order, and within how many steps that is; and
# how long the bytes of a part may take there, in overheads and latencies of a message.
_PARTS, _MOST_STEPS, _SHORT = (1, 2, 3, 4), 4, 2.0
# CP-SAT's effort for that, for each second of the time limit: about half a second on an idle computer. And the least
# that it takes for each part, step and wire: a search that takes more than is left is not begun.
_EFFORT, _A_PLACE = 0.2, 1e-4


def build(
    topology: Topology,
    collective: Collective,
    *,
    size: int = 2**20,
    time_limit: float = 10.0,
    report: Callable[[float], None] | None = None,
    pieces: int | None = None,
) -> Schedule:
    """The schedule for `size` bytes, in steps; of as many rounds as are best within `time_limit` seconds.

    report: called with the seconds of the best so far. pieces: of every message, which go on one by one;
    default, as many as are best. Raises `InfeasibleError` for more than 8 ranks that do not form a cube.
    """
    if size < 1:
        raise InputError(f"a size of {size} bytes moves nothing; give at least 1 byte")
    if collective.data is not None:
        raise InfeasibleError(f"few_rounds has blocks of equal size, which {collective.name} has not; take packed")
    end = monotonic() + time_limit
    search = Search(lambda: asked_to_stop() or monotonic() > end, report or (lambda seconds: None), pieces)
    if topology.ranks <= MOST_RANKS and joined_directly(topology):
        return _on_links(topology, collective, size, search, Limits(time_limit, seed=1, effort=_EFFORT * time_limit))
    # All ranks alike, along the bits of their numbers.
    divided = along_bits(topology, collective, _NAME, size, search)
    candidates = [] if divided is None else [divided]
    if not joined_directly(topology) and topology.ranks <= MOST_RANKS:
        # Every rank sends to another one in every round; which data, is up to the program. What is for one rank only
        # may go there by itself, which takes a round for every distance.
        job = _Job(Wires.of(topology, size), collective)
        for every in (False, True) if OWN in (collective.starts, collective.ends) else (False,):
            with suppress(InfeasibleError):
                found = job.best(partial(round_robin, job.wires, every), _MOST_ROTATIONS, search)
                candidates.append(job.written(topology, *found))
    if not candidates:
        slow = f"few_rounds is too slow for {collective} of {topology.ranks} ranks that are no cube"
        raise InfeasibleError(f"{slow} (at most {MOST_RANKS}); take another algorithm")
    return min(candidates, key=lambda timed: timed[0])[1]


def _on_links(topology: Topology, collective: Collective, size: int, search: Search, limits: Limits) -> Schedule:
    now, given = monotonic(), limits.time_limit or 0.0
    job = _Job(Wires.of(topology, size), collective)
    relayed = job.over(Wires.of(topology, size, relays=True))
    # Half of the time is for parts, where few may be best.
    end = now + given / (2 if relayed.numbers_of_parts(limits.effort) else 1)
    first = replace(search, over=lambda: search.over() or monotonic() > end)
    found = job.best(lambda rounds: np.ones((rounds, len(job.wires.src)), dtype=bool), _MOST_ROUNDS, first)
    best = job.written(topology, *found)
    if (at_once := _in_one_step(topology, collective, job.wires, best[0])) is not None:
        search.report(at_once[0])
        best = at_once
    better = relayed.in_parts(best[0] * 1e6, search, replace(limits, time_limit=now + given - monotonic()))
    return best[1] if better is None else relayed.written(topology, *better)[1]


def _in_one_step(topology: Topology, collective: Collective, wires: Wires, most: float) -> Timed | None:
    """Every rank to every other itself, if that takes less than `most` seconds."""
    n, root = wires.ranks, collective.root
    if collective.name == "reducescatter":
        # Links serve chunks in their order, and no order has the far ranks first for all.
        return None
    sources = [root] if collective.starts == ROOT else range(n)
    sinks = [root] if collective.ends == ROOT else range(n)
    routes = far_first(wires, [(a, b) for a in sources for b in sinks if a != b])
    share = Fraction(1, n) if OWN in (collective.starts, collective.ends) else Fraction(1)
    if routes is None:
        return None
    if (seconds := takes(wires, routes, float(share)) / 1e6) >= most:
        return None
    plan, chunks = Plan(topology, collective, _NAME, "steps"), dict[tuple[int, int], int]()
    index = topology.member_places.tolist()
    for (source, sink), route in routes:
        if (label := collective.labels(source, sink)) not in chunks:
            chunks[label] = plan.add_chunk(share, *label)
        links = tuple(link for wire in route for link in wires.routes[wire])
        op = REDUCE if collective.reduces else COPY
        plan.add_edges(chunks[label], [(index[source], index[sink], links)], op, 0, 0)
    plan.add_own(Fraction(1, n))
    return seconds, plan.finish()


class _Job:
    """A collective on wires; what collects goes backwards, as what spreads does forwards."""

    def __init__(self, wires: Wires, collective: Collective) -> None:
        self.wires, self.collective, self.backwards = wires, collective, collective.collects
        self.work = wires.reversed() if self.backwards else wires
        given, ranks = collective.dual if self.backwards else collective, [*range(wires.ranks)]
        sources = [given.root] if given.starts == ROOT else ranks
        self.pricing: Pricing
        if given.name == "allreduce":
            self.pricing = Sums(self.work)
        elif given.ends == OWN:
            self.pricing = Paths([(a, b) for a in sources for b in ranks if a != b], 1 / wires.ranks)
        else:
            self.pricing = Trees([(root, -1) for root in sources], 1 / len(sources))
        # Where one rank has all data, others wait for it; else links have enough to do.
        self.in_pieces = ROOT in (collective.starts, collective.ends) and bool(wires.overhead.any())

    def over(self, wires: Wires) -> _Job:
        """The same collective on other wires between the same ranks."""
        other = copy(self)
        other.wires, other.work = wires, wires.reversed() if self.backwards else wires
        return other

    def best(self, allowed: Callable[[int], Bools], most: int, search: Search) -> tuple[Solved, int]:
        """The best of 1 to `most` rounds, in which these wires may send, and how many it has."""
        best: tuple[Solved, int] | None = None
        last: Solved | None = None
        vain, pieces = 0, 1
        for rounds in range(1, most + 1):
            solve = partial(self._solved, allowed(rounds), search)
            if (solved := solve(last, pieces)) is None:
                continue
            if self.in_pieces and search.pieces is None and not search.over():
                # More of them, or fewer than before, as long as that is quicker.
                while (number := int(pieces * (0.5 if last else 2))) >= 1:
                    other = solve(solved, number)
                    if other is None or other.microseconds >= solved.microseconds * (1 - _BETTER):
                        break
                    solved, pieces = other, number
            last = solved
            if best is None or solved.microseconds < best[0].microseconds * (1 - _BETTER):
                best, vain = (solved, rounds), 0
                search.report(solved.microseconds / 1e6)
            else:
                vain += 1
            if search.over() or vain >= _IN_VAIN:
                break
        if best is None:
            raise InfeasibleError(f"few_rounds: {most} rounds do not reach every rank; take packed")
        return best

    def _solved(self, allowed: Bools, search: Search, known: Solved | None, pieces: int) -> Solved | None:
        columns = [column for column, _ in known.columns] if known else []
        cut = search.pieces or (pieces if self.in_pieces else None)
        return Rounds(self.work, self.pricing, allowed, replace(search, pieces=cut)).solve(columns)

    def numbers_of_parts(self, effort: float) -> list[int]:
        """Into how many parts to cut everything, such that bytes take no longer than the rest of a message.

        effort: of CP-SAT, for two steps or more.
        """
        apart = float((self.wires.overhead + self.wires.latency).mean())
        alone = float(self.wires.whole.mean() * self.pricing.shares.max())
        return [parts for parts in _PARTS if alone <= _SHORT * parts * apart and self._least_effort(parts, 2) <= effort]

    def _least_effort(self, parts: int, steps: int) -> float:
        """What the search for the best order of so many parts takes at least."""
        return _A_PLACE * len(self.pricing.labels) * parts * steps * len(self.wires.src)

    def in_parts(self, most: float, search: Search, limits: Limits) -> tuple[Solved, int] | None:
        """A few equal parts of everything in the best order that is found, and its steps.

        most: microseconds that it must take less than.
        """
        end, effort = monotonic() + (limits.time_limit or 0.0), limits.effort
        best: tuple[Solved, int] | None = None
        for parts in self.numbers_of_parts(effort):
            before = best
            for steps in range(best[1] if best else 1, _MOST_STEPS + 1):
                if search.over() or effort <= 0:
                    return best
                if self._least_effort(parts, steps) > effort:
                    break
                left = replace(limits, time_limit=max(0.0, end - monotonic()), effort=effort)
                solved, spent = best_order(self.work, self.pricing, parts, steps, most * (1 - _BETTER), left)
                effort -= spent
                if solved is not None:
                    idle = np.zeros((steps, len(self.wires.src)), dtype=bool)
                    solved = Rounds(self.work, self.pricing, idle, search).alone(solved)
                    best, most = (solved, steps), solved.microseconds
                    search.report(most / 1e6)
                elif best is not before:
                    break
        return best

    def written(self, topology: Topology, solved: Solved, rounds: int) -> Timed:
        """As a schedule, with its seconds."""
        plan = Plan(topology, self.collective, _NAME, "steps")
        for column, share in _exact_shares(solved, self.pricing.shares.tolist()):
            label = self.pricing.labels[column.item]
            # The number of rounds, if it goes backwards.
            span = rounds if self.backwards else 0
            ends = label[::-1] if span else label
            now, wire, adds = np.array(column.sends, dtype=np.int64).reshape(-1, 3).T
            plan.add_sends(
                chunk=plan.add_chunk(share, *self.collective.labels(*ends)),
                src=topology.member_places[self.wires.src[wire]],
                dst=topology.member_places[self.wires.dst[wire]],
                op=np.where((adds > 0) | bool(span and self.collective.reduces), REDUCE, COPY),
                step=span - 1 - now if span else now,
                route=plan.add_routes(self.wires.routes[number] for number in wire.tolist()),
            )
        plan.add_own(Fraction(1, topology.ranks))
        return solved.microseconds / 1e6, plan.finish()
