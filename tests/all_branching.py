"""The best rate of small machines whose switches multicast and reduce, by search over what moves where; no trees.

A state says which GPU or switch holds a sum of whose contributions (or which GPUs know an element), a move sends one
message over one link, or carries out one operation of a switch that reduces into readers. The cheapest moves from the
first state to the last one are found by Dijkstra's algorithm; a linear program (CLP) weighs them, and asks again at its
prices. Nothing of `blinksim.bounds` is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from heapq import heappop, heappush
from itertools import chain, combinations
from typing import Any

from ortools.linear_solver import pywraplp  # type: ignore[attr-defined]

from blinksim.topology.graph import Topology

Move = tuple[Any, tuple[int, ...]]  # the state that follows, and the links that are used


class Machine:
    """A selected topology as numbers, and what its switches may do by `grants`."""

    def __init__(self, topology: Topology, grants: frozenset[str]) -> None:
        self.topology = topology
        index = {device.name: i for i, device in enumerate(topology.devices)}
        self.gpus = [index[name] for name in topology.members]
        self.bit = {gpu: 1 << rank for rank, gpu in enumerate(self.gpus)}
        self.full = (1 << len(self.gpus)) - 1
        can = [device.can & grants for device in topology.devices]
        self.group = {v for v, device in enumerate(topology.devices) if "reduce_into_reader" in device.can}
        self.adds = {v for v in range(len(can)) if "reduce" in can[v]} - {*self.gpus}
        self.copies = {v for v in range(len(can)) if "multicast" in can[v]} - {*self.gpus} - self.group
        self.reading = {v for v in self.group if "reduce_into_reader" in can[v]}
        self.storing = {v for v in self.group if "multicast" in can[v]}
        # The adders that have a rate, as resources behind the links.
        rated = [v for v, device in enumerate(topology.devices) if device.reduction_rate is not None]
        self.adders = {v: len(topology.links) + place for place, v in enumerate(rated)}
        self.out: dict[int, list[tuple[int, int]]] = {v: [] for v in range(len(can))}
        self.link: dict[tuple[int, int], list[int]] = {}
        for number, link in enumerate(topology.links):
            a, b = index[link.src], index[link.dst]
            self.out[a].append((b, number))
            self.link.setdefault((a, b), []).append(number)

    def operations(self, switches: set[int], owner: int, *, turned: bool) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The groups (as bits) that an owner can read (turned) or write through these switches, and the links used."""

        def way(a: int, b: int) -> list[int]:
            return self.link.get((b, a) if turned else (a, b), [])

        for first in switches:
            for start in way(owner, first):
                for back in way(first, owner):
                    # Grow a tree of switches from the first; every GPU then hangs on one of them.
                    for tree, inner in self._switch_trees(first, switches, turned):
                        others = [gpu for gpu in self.gpus if gpu != owner]
                        for chosen in chain.from_iterable(combinations(others, k) for k in range(1, len(others) + 1)):
                            for legs in self._legs(chosen, tree, turned):
                                bits = self.bit[owner] | sum(self.bit[gpu] for gpu in chosen)
                                adding = [self.adders[v] for v in tree if turned and v in self.adders]
                                yield bits, (start, back, *inner, *legs, *adding)

    def _switch_trees(self, first: int, switches: set[int], turned: bool) -> Iterator[tuple[set[int], tuple[int, ...]]]:
        todo: list[tuple[frozenset[int], tuple[int, ...]]] = [(frozenset((first,)), ())]
        while todo:
            tree, inner = todo.pop()
            yield set(tree), inner
            for a in tree:
                for b in switches - tree:
                    for number in self.link.get((b, a) if turned else (a, b), []):
                        todo.append((tree | {b}, (*inner, number)))

    def _legs(self, gpus: tuple[int, ...], tree: set[int], turned: bool) -> Iterator[tuple[int, ...]]:
        if not gpus:
            yield ()
            return
        for switch in tree:
            for number in self.link.get((gpus[0], switch) if turned else (switch, gpus[0]), []):
                for rest in self._legs(gpus[1:], tree, turned):
                    yield (number, *rest)

    # --- sums: a state is a sorted tuple of (device, contributions); -1 - device for a sum formed there -----

    def sums(self) -> Any:
        return tuple(sorted((gpu, self.bit[gpu]) for gpu in self.gpus))

    def sum_moves(self, state: Any) -> Iterator[Move]:
        for place, (at, bits) in enumerate(state):
            rest = state[:place] + state[place + 1 :]
            for to, number in self.out[at if at >= 0 else -1 - at]:
                after, adding = self._put(rest, to, bits)
                yield after, (number, *adding)
        here = {at: bits for at, bits in state if at in self.bit}
        for owner in self.gpus if self.reading else ():
            for group, links in self._reads(owner):
                members = [gpu for gpu in self.gpus if self.bit[gpu] & group]
                if all(gpu in here or gpu == owner for gpu in members):
                    read = sum(here.get(gpu, 0) for gpu in members)
                    rest = tuple(token for token in state if token[0] not in members)
                    yield self._put(rest, owner, read)[0], links

    @cache  # noqa: B019 - machines are few and small
    def _reads(self, owner: int) -> list[tuple[int, tuple[int, ...]]]:
        return list(self.operations(self.reading, owner, turned=True))

    @cache  # noqa: B019
    def _stores(self, owner: int) -> list[tuple[int, tuple[int, ...]]]:
        return list(self.operations(self.storing, owner, turned=False))

    def _put(self, state: Any, to: int, bits: int) -> tuple[Any, tuple[int, ...]]:
        adding: tuple[int, ...] = ()
        if to in self.bit or to in self.adds:
            # What adds has one sum, which uses its adders once.
            there = [token for token in state if token[0] in (to, -1 - to)]
            state = tuple(token for token in state if token not in there)
            bits |= sum(other for _, other in there)
            if to in self.adds and there:
                adding = (self.adders[to],) if to in self.adders and there[0][0] == to else ()
                to = -1 - to
        return tuple(sorted((*state, (to, bits)))), adding

    # --- copies: a state is (GPUs that know, switches that keep giving it, a sorted tuple of messages under way) -----

    def copy_moves(self, state: Any) -> Iterator[Move]:
        known, giving, under_way = state
        for at in [*(gpu for gpu in self.gpus if known & self.bit[gpu]), *giving]:
            for to, number in self.out[at]:
                yield self._reach(known, giving, under_way, to), (number,)
        for place, at in enumerate(under_way):
            for to, number in self.out[at]:
                yield self._reach(known, giving, under_way[:place] + under_way[place + 1 :], to), (number,)
        for owner in self.gpus if self.storing else ():
            if known & self.bit[owner]:
                for group, links in self._stores(owner):
                    yield (known | group, giving, under_way), links

    def _reach(self, known: int, giving: Any, under_way: Any, to: int) -> Any:
        if to in self.bit:
            return known | self.bit[to], giving, under_way
        if to in self.copies:
            return known, tuple(sorted({*giving, to})), under_way
        # More messages than GPUs are for nothing.
        return known, giving, tuple(sorted((*under_way, to))[: len(self.gpus)])

    # --- the least moves ------------------------------------------------------------------------------------------

    def gathered(self, lengths: list[float]) -> dict[int, tuple[float, Counter[int]]]:
        """For every GPU, and every switch that adds and copies, the least length that brings the whole sum there."""
        ends = {((v, self.full),): v for v in (*self.gpus, *(self.adds & self.copies))}
        ends |= {((-1 - v, self.full),): v for v in self.adds & self.copies}
        found: dict[int, tuple[float, Counter[int]]] = _least(self.sums(), self.sum_moves, ends, lengths)
        return found

    def spread(self, root: int, lengths: list[float]) -> tuple[float, Counter[int]]:
        """The least length that brings an element from a GPU, or from such a switch, to all GPUs."""
        start = (self.bit[root], (), ()) if root in self.bit else (0, (root,), ())
        found = _least(start, self.copy_moves, None, lengths, done=lambda state: state[0] == self.full)
        least: tuple[float, Counter[int]] = found[0]
        return least

    def least(self, name: str, root: int, lengths: list[float]) -> tuple[float, Counter[int]]:
        """The least length, and how often each link is used, in 1/n of the size for allgather and its dual."""
        if name == "allreduce":
            ways = []
            for v, (length, used) in self.gathered(lengths).items():
                more, others = self.spread(v, lengths)
                ways.append((length + more, used + others))
            return min(ways, key=lambda way: way[0])
        roots = [self.gpus[root]] if name in ("broadcast", "reduce") else self.gpus
        inward = self.gathered(lengths) if name in ("reduce", "reducescatter") else {}
        parts = [inward[v] if inward else self.spread(v, lengths) for v in roots]
        total: Counter[int] = Counter()
        for _, used in parts:
            total.update(used)
        return sum(length for length, _ in parts), total


def _least(start: Any, moves: Any, ends: Mapping[Any, int] | None, lengths: list[float], done: Any = None) -> Any:
    best: dict[Any, float] = {}
    before: dict[Any, tuple[Any, tuple[int, ...]]] = {}
    far = {start: 0.0}
    queue, number = [(0.0, 0, start)], 0
    found: dict[Any, tuple[float, Counter[int]]] = {}
    while queue:
        length, _, state = heappop(queue)
        if state in best:
            continue
        best[state] = length
        end = 0 if done is not None and done(state) else ends.get(state) if ends is not None else None
        if end is not None:
            used: Counter[int] = Counter()
            at = state
            while at != start:
                at, links = before[at]
                used.update(links)
            found.setdefault(end, (length, used))
            if ends is None or len(found) == len({*ends.values()}):
                break
        for after, links in moves(state):
            total = length + sum(lengths[link] for link in links)
            if after not in best and total < far.get(after, float("inf")):
                far[after], before[after] = total, (state, links)
                number += 1
                heappush(queue, (total, number, after))
    return found


def best_rate(topology: Topology, name: str, root: int, grants: frozenset[str]) -> float:
    """algbw in bytes/s of the best schedule; of links without buses, devices without capacities, and adders."""
    machine = Machine(topology, grants)
    capacity = [float(link.bandwidth) for link in topology.links]
    capacity += [float(topology.devices[v].reduction_rate or 0) for v in machine.adders]
    per = 1 if name in ("allreduce", "broadcast", "reduce") else len(machine.gpus)
    # Prices of links at which every way costs 1 at least; the less they are worth together, the better.
    scale = max(capacity)
    solver = pywraplp.Solver.CreateSolver("CLP")
    prices = [solver.NumVar(0, solver.infinity(), "") for _ in capacity]
    solver.Minimize(sum(price * (rate / scale) for price, rate in zip(prices, capacity, strict=True)))
    lengths, value = [1.0 / rate for rate in capacity], 0.0
    while True:
        _, used = machine.least(name, root, [length + 1e-10 for length in lengths])
        column = {link: times / per for link, times in used.items()}
        if value and sum(times * lengths[link] for link, times in column.items()) >= 1 - 1e-8:
            return value
        solver.Add(sum(prices[link] * times for link, times in column.items()) >= 1)
        assert solver.Solve() == pywraplp.Solver.OPTIMAL
        lengths, value = [max(price.solution_value(), 0.0) for price in prices], solver.Objective().Value() * scale
