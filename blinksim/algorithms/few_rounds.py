"""The quickest schedule of a few rounds for one size, on up to 8 GPUs with links between them, or behind switches.

With links, every link sends one message a round, of what its source got in the rounds before. Linear programs divide
the data among trees of rounds so that the last message ends early: latency, overhead and bandwidth count together
(`blinksim.packing.rounds`). Column generation as in Gilmore and Gomory, Operations Research 1961.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from time import monotonic

from blinksim.algorithms import direct
from blinksim.algorithms.building.bit_exchanges import patterns, step_seconds
from blinksim.collective import OWN, ROOT, Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.packing.rounds.columns import Column, Paths, Pricing, Sums, Trees
from blinksim.packing.rounds.far_first import far_first, takes
from blinksim.packing.rounds.rounds_program import Rounds, Solved
from blinksim.packing.rounds.wires import Wires, joined_directly
from blinksim.schedule.model import COPY, REDUCE, Builder, Schedule
from blinksim.topology.graph import Topology

# Shares of the size are multiples of one in this many.
_PARTS = 2**24
_MOST_ROUNDS = 9
# Numbers of rounds in a row after which no more are tried, if none brings a time that is better by this part: two while
# there are few, as some collectives gain from every second one only.
_FEW, _IN_VAIN, _BETTER = 4, 2, 2e-3


def build(topology: Topology, collective: Collective, *, size: int = 2**20, time_limit: float = 10.0) -> Schedule:
    """The schedule for `size` bytes, in steps; of as many rounds as are best within `time_limit` seconds.

    Behind switches ranks exchange along the bits of their numbers, or all at once where there is no such pattern.
    Raises `InfeasibleError` for more than 8 ranks with links between them.
    """
    if size < 1:
        raise InputError(f"a size of {size} bytes moves nothing; give at least 1 byte")
    if not joined_directly(topology):
        return _exchange(topology, collective, size)
    backwards = collective.collects
    wires = Wires.of(topology, size)
    work = wires.turned() if backwards else wires
    pricing = _pricing(work, collective.dual if backwards else collective)
    end = monotonic() + time_limit

    def over() -> bool:
        return monotonic() > end

    solved, rounds = _best(work, pricing, over)
    at_once = _in_one_step(topology, collective, wires, solved.microseconds)
    if at_once is not None:
        return at_once
    builder = Builder(topology, collective, "few_rounds", "steps")
    for column, share in _whole_shares(solved, pricing):
        _add(builder, wires, pricing.labels[column.item], column, share, rounds if backwards else 0)
    _add_own(builder)
    return builder.finish()


def _exchange(topology: Topology, collective: Collective, size: int) -> Schedule:
    """Behind switches: the quickest of the patterns that are known to do well there, or all at once."""
    found = min(
        (
            (step_seconds(one, size), place, one)
            for place, one in enumerate(patterns(topology, collective, "few_rounds"))
        ),
        default=None,
    )
    return replace(direct.build(topology, collective), algorithm="few_rounds") if found is None else found[2]


def _in_one_step(topology: Topology, collective: Collective, wires: Wires, most: float) -> Schedule | None:
    """Every rank to every other itself, if that takes less than `most` microseconds."""
    n, root = wires.ranks, collective.root
    if collective.name == "reducescatter":
        # Links serve chunks in their order, and no order has the far ranks first for all.
        return None
    sources = [root] if collective.starts == ROOT else range(n)
    sinks = [root] if collective.ends == ROOT else range(n)
    routes = far_first(wires, [(a, b) for a in sources for b in sinks if a != b])
    share = Fraction(1, n) if OWN in (collective.starts, collective.ends) else Fraction(1)
    if routes is None or takes(wires, routes, float(share)) >= most:
        return None
    builder, chunks = Builder(topology, collective, "few_rounds", "steps"), dict[tuple[int, int], int]()
    index = [topology.index[name] for name in topology.members]
    for (source, sink), route in routes:
        label = collective.labels(source, sink)
        if label not in chunks:
            chunks[label] = builder.add_chunk(share, *label)
        builder.add_sends(
            chunk=chunks[label],
            src=index[source],
            dst=index[sink],
            op=REDUCE if collective.reduces else COPY,
            step=0,
            route=builder.add_route([int(wires.link[wire]) for wire in route]),
        )
    _add_own(builder)
    return builder.finish()


def _pricing(wires: Wires, collective: Collective) -> Pricing:
    n, every = wires.ranks, list(range(wires.ranks))
    if collective.name == "allreduce":
        return Sums(wires)
    if collective.starts == OWN and collective.ends == OWN:
        return Paths(wires, [(a, b) for a in every for b in every if a != b], 1 / n)
    if collective.ends == OWN:
        return Paths(wires, [(collective.root, b) for b in every if b != collective.root], 1 / n)
    roots, share = ([collective.root], 1.0) if collective.starts == ROOT else (every, 1 / n)
    return Trees(wires, roots, share)


def _best(wires: Wires, pricing: Pricing, over: Callable[[], bool]) -> tuple[Solved, int]:
    best: tuple[Solved, int] | None = None
    vain = 0
    for rounds in range(1, _MOST_ROUNDS + 1):
        found = Rounds(wires, pricing, rounds, over).solve()
        if found is None:
            continue
        if best is None or found.microseconds < best[0].microseconds * (1 - _BETTER):
            best, vain = (found, rounds), 0
        else:
            vain += 1
        if over() or vain == (_IN_VAIN if rounds <= _FEW else 1):
            break
    if best is None:
        raise InfeasibleError(f"few_rounds: {_MOST_ROUNDS} rounds do not reach every rank; take packed")
    return best


def _whole_shares(solved: Solved, pricing: Pricing) -> list[tuple[Column, Fraction]]:
    """The ways with shares that add up exactly."""
    found = []
    for item, (due, _) in enumerate(zip(pricing.shares.tolist(), pricing.labels, strict=True)):
        left = Fraction(due).limit_denominator(2**12)
        mine = sorted((share, place) for place, (one, share) in enumerate(solved.columns) if one.item == item)
        for share, place in mine[:-1]:
            part = min(left, Fraction(round(share * _PARTS), _PARTS))
            left -= part
            found += [(solved.columns[place][0], part)] if part else []
        found.append((solved.columns[mine[-1][1]][0], left))
    return found


def _add(builder: Builder, wires: Wires, label: tuple[int, int], column: Column, share: Fraction, turned: int) -> None:
    """A chunk that takes this way; turned: the number of rounds, if the way is one back."""
    collective, topology = builder.collective, builder.topology
    ends = label[::-1] if turned else label
    chunk = builder.add_chunk(share, *collective.labels(*ends))
    index = [topology.index[name] for name in topology.members]
    for now, wire, adds in column.sends:
        builder.add_sends(
            chunk=chunk,
            src=index[int(wires.src[wire])],
            dst=index[int(wires.dst[wire])],
            op=REDUCE if adds or (turned and collective.reduces) else COPY,
            step=turned - 1 - now if turned else now,
            route=builder.add_route([int(wires.link[wire])]),
        )


def _add_own(builder: Builder) -> None:
    """What a rank has for itself is part of the vector too."""
    collective, n = builder.collective, builder.topology.ranks
    if collective.name == "alltoall":
        for rank in range(n):
            builder.add_chunk(Fraction(1, n), *collective.labels(rank, rank))
    elif collective.name in ("scatter", "gather"):
        builder.add_chunk(Fraction(1, n), *collective.labels(collective.root, collective.root))
