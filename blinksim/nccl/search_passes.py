"""NCCL's search for channels: the bandwidths, kinds of paths and patterns tried, in order, and when it stops.

A first pass relaxes one demand after the other (equal channels, balanced trees, NVLink only, near ports, one
port per channel, bandwidth) until the channels found are nearly optimal; a second doubles wide channels and
tries to raise the bandwidth of those found (NCCL 2.28.3, graph/search.cc).

One attempt has fixed bandwidth, kinds of paths and pattern. A channel is a walk over all GPUs of the node
that takes its bandwidth from every link on the way; a ring closes, and on several nodes a channel enters and
leaves by a network port. Channel after channel is placed until nothing is left. The search does not look for
all solutions: it tries a listed order first, then neighbours by preference, and gives up after a number of
visits (NCCL 2.28.3, graph/search.cc).

Neighbours are tried by bandwidth, then by nearness; behind NVSwitches only the GPUs next to each other in
index order are. Through an Intel root complex peer-to-peer traffic takes 6/5 of its bandwidth, and what a GPU
older than sm80 receives costs it an eighth in the other direction.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from operator import itemgetter
from typing import Any

from blinksim.nccl.families import DIS, FAMILY_PATTERNS, LOC, PATH_TYPES, PIX, PXN, SYS, TREE, Pattern
from blinksim.nccl.files.graph_file import Graph
from blinksim.nccl.paths import GRAIN, Demand, Paths


@dataclass(frozen=True, slots=True)
class Target:
    """The demands of one attempt; the search relaxes them one after another.

    type_intra, type_inter: the worst kinds of paths allowed, between GPUs and to a port. bw_intra, bw_inter:
    of a channel, in `system.GRAIN`. same: True if all channels must be copies of the first. cross: 2 if two
    channels may exchange their ports, else 0. least, most: number of channels. hops: where the count of links
    crossed starts; NCCL's second pass goes on from that of the first.
    """

    pattern: int
    type_intra: int
    type_inter: int
    bw_intra: int
    bw_inter: int
    same: bool
    cross: int
    least: int
    most: int
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """The channels that meet a target; at first none.

    channels: GPUs by index, for each channel. nets: ports by index, by which each channel enters and leaves.
    hops: links crossed. latency: of the last port, seconds. left: what links have left, at first and after
    each one.
    """

    target: Target
    channels: tuple[tuple[int, ...], ...] = ()
    nets: tuple[tuple[int, int], ...] = ()
    hops: int = 0
    latency: float = 0.0
    left: tuple[tuple[int, ...], ...] = ()

    @property
    def nchannels(self) -> int:
        return len(self.channels)

    @property
    def wider(self) -> list[Fraction]:
        """How many times as much each of the first one, two, ... channels could carry, all at once."""
        every = [[*zip(self.left[0], left, strict=True)] for left in self.left[1:]]
        widths = [[Fraction(most, most - free) for most, free in links if free < most] for links in every]
        rooms = [min(some, default=Fraction(1)) for some in widths]
        # Copies of channels share what these have.
        copies = -(-self.nchannels // len(rooms))
        return [copies * room for room in rooms] + rooms[-1:] * (self.nchannels - len(rooms))

    def beaten_by(self, target: Target, nchannels: int, hops: int, gpus: int) -> bool:
        """True if `nchannels` channels that meet `target`, over `hops` links, are worth more than these."""
        if nchannels < target.least:
            return False
        mine = self.target
        if target.pattern == Pattern.NVLS:
            return self.nchannels < nchannels <= gpus or nchannels * target.bw_inter > self.nchannels * mine.bw_inter
        gain = nchannels * target.bw_intra - self.nchannels * mine.bw_intra
        if gain:
            return gain > 0
        return target.pattern == mine.pattern and target.cross == mine.cross and hops < self.hops


GB = 10**9 // GRAIN


class Reach:
    """The paths of a system that a target allows; GPUs and ports are counted by index."""

    def __init__(self, paths: Paths, target: Target) -> None:
        self.paths, self.target = paths, target
        self.gpus, self.ports = paths.gpus, paths.ports
        self.count = len(self.gpus)
        self.both_ways = both = target.pattern in FAMILY_PATTERNS[TREE]
        self.go = paths.demands(target.bw_intra, target.type_intra, both)
        vertices = paths.system.vertices
        nearest = [paths.local_gpu[vertex] for vertex in self.ports]
        self.local = [-1 if gpu is None else self.gpus.index(gpu) for gpu in nearest]
        self.latency = [vertices[port].latency for port in self.ports]
        cards = [vertices[port].card for port in self.ports]
        self.same_card = [[b for b, card in enumerate(cards) if card == mine] for mine in cards]
        # The GPUs that a channel may begin with behind a port: the one that it serves, then the others near
        # it.
        first = [[own, *paths.nearest(port, self.gpus)] for own, port in zip(nearest, self.ports, strict=True)]
        self.starts = [[self.gpus.index(gpu) for gpu in dict.fromkeys(those) if gpu is not None] for those in first]
        # Where switches join the GPUs, those next in number are tried.
        trees, n = dict.fromkeys((Pattern.SPLIT_TREE, Pattern.BALANCED_TREE), (1, -1)), self.count
        steps = {Pattern.RING: (-1, 1), **trees}.get(Pattern(target.pattern), (1,))
        self.beside = [tuple(dict.fromkeys((gpu + step) % n for step in steps)) for gpu in range(n)]
        self.following = self._following if paths.switches else cache(self._following)
        self.order, self.crossing = cache(self._order), cache(self.between)

    def between(self, gpu: int, port: int, entering: bool, bandwidth: int) -> tuple[Demand | None, int]:
        """What a channel takes between a GPU and a port, None if too far; and how many links it crosses."""
        a, b = self.gpus[gpu], self.ports[port]
        ends = (b, a) if entering else (a, b)
        return self.paths.demand(*ends, bandwidth, self.target.type_inter, self.both_ways), self.paths[ends].hops

    # --- GPUs -----------------------------------------------------------------------------------------------------

    def _following(self, gpu: int, used: int, towards: int, entry: int) -> Sequence[int]:
        """The GPUs to try after `gpu`, best first, without those in the bit set `used`.

        towards: 1 if the next GPU leads to a port, -1 if a later one does, 0 on a single node. entry: the
        port by which the channel entered, -1 for none.
        """
        if self.paths.switches:
            return [there for there in self.beside[gpu] if not used >> there & 1]
        left = [there for there in self.order(gpu, entry) if not used >> there & 1]
        paths = [self.paths[self.gpus[gpu], self.gpus[there]] for there in left] if towards == -1 else []
        if towards == -1 and len({(path.bandwidth // GB, path.hops) for path in paths}) <= 1:
            left.reverse()
        return left

    def _order(self, gpu: int, entry: int) -> tuple[int, ...]:
        """All other GPUs: by bandwidth to the port `entry`, then by bandwidth, nearness and index from `gpu`."""
        system, scores = self.paths.system, []
        for distance in range(1, self.count):
            there = (gpu + distance) % self.count
            path = self.paths[self.gpus[gpu], self.gpus[there]]
            if not path.wires:
                continue
            outside = (0, 0, 0)
            if entry >= 0:
                port = self.paths[self.ports[entry], self.gpus[there]]
                wires = ((i, system.back[i]) for i in system.out[self.gpus[there]] if system.wires[i].kind == PIX)
                pcie = next((min(system.wires[i].bandwidth for i in both) for both in wires), -GB)
                outside = (-(port.bandwidth // GB), -(pcie // GB), port.hops)
            scores.append(((*outside, -(path.bandwidth // GB), path.hops, distance), there))
        return tuple(there for _, there in sorted(scores))


VISITS = 1 << 14
VISITS_SAME_CHANNELS = 1 << 8
VISITS_LISTED_ORDER = 1 << 10


class Attempt:
    """One depth-first search for channels of `target`; `run` returns what it found if better, else `best`.

    visits: what is left of the budget; -1 once the maximum of channels is placed.
    """

    def __init__(self, paths: Paths, target: Target, best: Found, visits: int) -> None:
        self.target, self.best, self.visits = target, best, visits
        self.paths = paths
        self.reach = Reach(paths, target)
        self.count = self.reach.count
        wires, out = paths.system.wires, paths.system.out
        self.free = [wire.bandwidth for wire in wires]
        # NCCL counts what is left of a port apart from the links behind it, in whole GB/s.
        self.port_free = [sum(wires[i].bandwidth for i in out[port]) for port in paths.ports]
        # What links and ports have left before each channel.
        self.left: list[tuple[tuple[int, ...], ...]] = []
        self.channels: list[list[int]] = []
        self.nets: list[list[int]] = []
        self.used = 0
        self.hops = target.hops
        self.heads = target.pattern == Pattern.NVLS
        self.latency = 0.0
        # The visits that it took to find nothing better from where so much was left.
        self.vain: dict[tuple[object, ...], int] = {}

    def run(self) -> Found:
        # A frame for every GPU of every channel, and some for the turn from one channel to the next.
        depth, limit = self.target.most * (self.count + 13), sys.getrecursionlimit()
        sys.setrecursionlimit(limit + depth)
        try:
            self._next_channel()
        finally:
            sys.setrecursionlimit(limit)
        return self.best

    def _take(self, demand: Demand) -> bool:
        """Takes the amounts from the links, or nothing if one has too little left."""
        free = self.free
        for i, amount in demand:
            if free[i] < amount:
                return False
        for i, amount in demand:
            free[i] -= amount
        return True

    def _give(self, demand: Iterable[tuple[int, int]]) -> None:
        for i, amount in demand:
            self.free[i] += amount

    def _cross(self, demand: Demand | None, hops: int, on: Callable[..., None], *given: Any) -> None:
        """Goes on behind `hops` links that have the demand left, and gives it back."""
        if demand is not None and self._take(demand):
            self.hops += hops
            on(*given)
            self.hops -= hops
            self._give(demand)

    # --- channels -------------------------------------------------------------------------------------------------

    def _next_channel(self) -> None:
        """Lays the next channel in every way that the budget allows.

        Where other channels before it leave as much of every link, it finds nothing better a second time,
        in as many visits.
        """
        target, laid, close = self.target, len(self.channels), self.count - 1
        heads = [channel[0] for channel in self.channels]
        last = self.channels[-1] if laid and (target.same or not self.reach.ports) else ()
        state = tuple(map(tuple, (heads if self.heads else last, *self.nets[-1:], self.free, self.port_free)))
        if (known := self.vain.get((laid, self.hops, state))) is not None:
            self.visits = max(0, self.visits - known)
            return
        before = self.visits
        self.left.append(state[-2:])
        if self.reach.ports:
            # Which GPU visits a port: the last of a ring, the second of a split tree, the first of others.
            self._from_ports({Pattern.RING: close, Pattern.SPLIT_TREE: 1}.get(Pattern(target.pattern), 0))
        elif self.heads:
            self._begin(laid, -1, close, None)
        else:
            close = close if target.pattern == Pattern.RING else -1
            order = tuple(last or range(self.count))
            self._begin(order[0], -1, close, order)
            for gpu in () if target.same and laid else range(self.count):
                self._begin(gpu, -1, close, None)
        self.left.pop()
        if self.visits > 0:
            self.vain[laid, self.hops, state] = before - self.visits

    def _begin(self, gpu: int, back: int, close: int, order: tuple[int, ...] | None) -> None:
        if self.visits <= 0:
            return
        self.channels.append([0] * self.count)
        used, self.used = self.used, 1 << gpu
        self._visit(gpu, 0, back, close, order)
        self.used = used
        self.channels.pop()

    def _visit(self, gpu: int, step: int, back: int, close: int, order: tuple[int, ...] | None) -> None:
        """GPU number `step` of a channel; GPU number `back` visits a port, number `close` returns to the first.

        order: the GPUs to go to, None to try them by preference.
        """
        if self.visits <= 0:
            return
        self.visits -= 1
        if step == self.count:
            laid = len(self.channels)
            if self.best.beaten_by(self.target, laid, self.hops, self.count):
                nets = tuple((entry, leave) for entry, leave in self.nets)
                channels = tuple(map(tuple, self.channels))
                left = tuple((*links, *ports) for links, ports in (*self.left, (self.free, self.port_free)))
                self.best = Found(self.target, channels, nets, self.hops, self.latency, left)
                if laid == self.target.most:
                    self.visits = -1
            if laid < self.target.most:
                self._next_channel()
            return
        self.channels[-1][step] = gpu
        if step == back:
            self._leave_by_port(gpu, step, close, order)
        elif self.heads:
            self._head(gpu)
        elif step < self.count - 1:
            go = self.reach.go[gpu]
            for there in order[step + 1 : step + 2] if order is not None else self._following(gpu, step, back):
                if (demand := go[there]) is not None and self._take(demand):
                    self.hops += len(demand)
                    self.used ^= 1 << there
                    self._visit(there, step + 1, back, close, order)
                    self.used ^= 1 << there
                    self.hops -= len(demand)
                    self._give(demand)
        elif step != close:
            self._visit(gpu, self.count, -1, -1, order)
        else:
            first = self.channels[-1][0]
            demand = self.reach.go[gpu][first] if first != gpu else ()
            self._cross(demand, len(demand or ()), self._visit, first, step + 1, back, -1, order)

    def _following(self, gpu: int, step: int, back: int) -> Sequence[int]:
        """The GPUs to try next, best first; those near the port come first where the channel has yet to leave by it."""
        towards = 0 if back == -1 else 1 if back == step + 1 else -1
        return self.reach.following(gpu, self.used, towards, self.nets[-1][0] if towards else -1)

    def _head(self, gpu: int) -> None:
        """Places an NVLS channel: every GPU sends to the switches and hears from them once, the head twice."""
        switch, reach, target = self.paths.switches[0], self.reach, self.target
        taken: list[tuple[int, int]] = []
        hops = 0
        for number, other in enumerate(reach.gpus):
            times = 2 if number == gpu else 1
            for ends in ((switch, other), (other, switch)):
                path = self.paths[ends]
                demand = self.paths.amounts(ends[0], path, target.bw_intra * times)
                allowed = bool(path.wires) and (times == 2 or path.kind <= target.type_intra)
                if not allowed or not self._take(demand):
                    self._give(taken)
                    return
                taken += demand
                hops += times * path.hops
        self.channels[-1][:] = [gpu, *(other for other in range(self.count) if other != gpu)]
        self.hops += hops
        self._visit(gpu, self.count, -1, -1, None)
        self.hops -= hops
        self._give(taken)

    # --- network ports --------------------------------------------------------------------------------------------

    def _from_ports(self, back: int) -> None:
        """Begins a channel at every port that has the bandwidth left, the preferred one first."""
        target, reach, laid = self.target, self.reach, len(self.channels)
        ports = self.paths.ports_for(None, target.type_inter)
        needed = target.bw_inter // GB * GB
        for offset in range(len(ports)):
            port = ports[(laid + offset) % len(ports)]
            if self.port_free[port] < needed:
                continue
            if target.pattern == Pattern.RING and target.cross == 2 and laid & 1 and port != self.nets[-1][1]:
                continue
            self.nets.append([port, port])
            self.latency = reach.latency[port]
            for other in reach.same_card[port]:
                self.port_free[other] -= needed
            headed = False
            if self.heads:
                head = reach.local[port]
                if headed := head not in (-1, *map(itemgetter(0), self.channels)):
                    self._enter(port, head, back, None)
            elif laid and target.same:
                last = tuple(self.channels[-1])
                self._enter(port, last[0], back, last)
            else:
                if not laid and not self.paths.switches:
                    # The listed order sets a reference; it has a budget of its own.
                    visits, self.visits = self.visits, VISITS_LISTED_ORDER
                    self._enter(port, 0, back, tuple(range(self.count)))
                    self.visits = -1 if self.visits == -1 else visits
                for gpu in reach.starts[port]:
                    self._enter(port, gpu, back, None)
            for other in reach.same_card[port]:
                self.port_free[other] += needed
            self.nets.pop()
            if headed:
                return

    def _enter(self, port: int, gpu: int, back: int, order: tuple[int, ...] | None) -> None:
        crossing = self.reach.crossing(gpu, port, True, self.target.bw_inter)
        self._cross(*crossing, self._begin, gpu, back, -1, order)

    def _leave_by_port(self, gpu: int, step: int, close: int, order: tuple[int, ...] | None) -> None:
        target, reach, laid = self.target, self.reach, len(self.channels)
        entry = self.nets[-1][0]
        for port in self.paths.ports_for(reach.gpus[gpu], target.type_inter):
            if target.pattern == Pattern.TREE and port != entry:
                continue
            if target.pattern == Pattern.RING and target.cross == 2:
                # Of two channels the second leaves where the first entered.
                if laid % 2 == 0 and port != self.nets[-2][0]:
                    continue
            elif target.cross == 0 and port not in reach.same_card[entry]:
                continue
            back, bandwidth = -1, target.bw_inter
            if target.pattern == Pattern.BALANCED_TREE:
                # Half of the traffic leaves from each of the first two GPUs.
                if step == 0:
                    back = 1
                elif port != self.nets[-1][1]:
                    continue
                bandwidth //= 2
            demand, hops = reach.crossing(gpu, port, False, bandwidth)
            before, self.nets[-1][1] = self.nets[-1][1], port
            self._cross(demand, hops, self._visit, gpu, step, back, close, order)
            self.nets[-1][1] = before


ALL_VISITS = 1 << 19
MOST_CHANNELS = 32
MOST_HEADS = 32
# Bytes/s that NCCL writes for a channel where it found none.
NO_SOLUTION = Fraction(100_000_000)


@dataclass(frozen=True)
class Rules:
    """What differs between versions of the search.

    bandwidths: bytes/s of a channel that are tried, (least compute capability, inside a node, on several
    nodes), highest capability first. any_port_below: compute capability below which ports of any distance may
    be tried.
    """

    bandwidths: tuple[tuple[int, tuple[Fraction, ...], tuple[Fraction, ...]], ...]
    any_port_below: int = 0

    def tried(self, sm: int, inside: bool) -> list[int]:
        row = next(row for row in self.bandwidths if sm >= row[0])
        return [round(rate / GRAIN) for rate in (row[1] if inside else row[2])]


class _Search:
    """The state of the search for one pattern: the best channels so far, and what is tried now."""

    def __init__(self, paths: Paths, rules: Rules, pattern: int, least: int, most: int) -> None:
        self.paths, system = paths, paths.system
        self.gpus, self.sm = len(paths.gpus), min(system.vertices[gpu].sm for gpu in system.gpus)
        self.inter = bool(paths.ports)
        self.total = paths.total()
        self.widest = paths.widest()
        self.rates = rules.tried(self.sm, not self.inter)
        if self.gpus == 1 and pattern != Pattern.RING:
            pattern = Pattern.TREE
        if pattern == Pattern.NVLS:
            most = min(MOST_HEADS, self.gpus)
            least = least if self.inter else most
        if pattern == Pattern.RING and least == 1 and paths.split_by_nvlink():
            least = 2
        ends = [(gpu, port) for gpu in paths.gpus for port in paths.ports]
        between, outside = paths.between_gpus(), [paths[way] for a, b in ends for way in ((a, b), (b, a))]
        self.kinds, self.port_kinds = ({path.kind for path in some} for some in (between, outside))
        # The fewest links between two GPUs, and between one and a port.
        self.hops = [min((one.hops for one in some if one.wires), default=0) for some in (between, outside)]
        outward = [paths[way].kind for way in ends]
        self.first_intra, self.last_intra = (min(self.kinds), max(self.kinds)) if between else (LOC, SYS)
        self.first_inter, self.last_inter = (min(outward), max(outward)) if outward else (PIX, SYS)
        if outward and self.sm < rules.any_port_below:
            self.last_inter = SYS
        self.may_cross = len(paths.ports) > 1 and pattern in (Pattern.RING, Pattern.BALANCED_TREE)
        self.same = pattern != Pattern.NVLS
        # Equal channels are pointless to vary where AMD's CPUs are between the GPUs.
        self.amd = system.arch == "x86_64" and system.vendor == "AuthenticAMD"
        self.now = Target(pattern, self.first_intra, self.first_inter, 0, 0, self.same, 0, least, most)
        self.best = Found(self.now)
        self.visits = 0
        self.left = ALL_VISITS
        self.known: dict[object, tuple[Found, int]] = {}

    @property
    def budget(self) -> int:
        """The visits that an attempt gets."""
        return VISITS_SAME_CHANNELS if self.now.same else VISITS

    def attempt(self) -> None:
        """Searches for what is wanted now; `visits` is what is left of its budget, -1 if no more can be found."""
        self.left -= self.budget
        # Attempts of the same signature can use the same paths, so none need be repeated.
        intra = max((kind for kind in self.kinds if kind <= self.now.type_intra), default=0)
        inter = max((kind for kind in self.port_kinds if kind <= self.now.type_inter), default=0)
        key = replace(self.now, type_intra=intra, type_inter=inter), self.best
        if key not in self.known:
            attempt = Attempt(self.paths, self.now, self.best, self.budget)
            self.known[key] = attempt.run(), attempt.visits
        self.best, self.visits = self.known[key]

    def may_improve(self) -> bool:
        """False if no channels that meet what is wanted now can be worth more than the best.

        A channel leaves all GPUs but one, and a ring on a single node all of them. On several nodes it enters
        by a port, and leaves by one, balanced trees by two.
        """
        now, paths, inter = self.now, self.paths, self.inter
        steps = self.gpus - 1 + (now.pattern == Pattern.RING and not inter)
        most = paths.room(paths.gpus, now.bw_intra, now.type_intra) // steps if steps else now.most
        most = min(now.most, most, paths.room(paths.ports, now.bw_inter) if inter else most)
        hops = steps * self.hops[0] + (2 + (now.pattern == Pattern.BALANCED_TREE)) * self.hops[1]
        return self.best.beaten_by(now, most, most * hops, self.gpus)

    # --- first pass -----------------------------------------------------------------------------------------------

    def start(self, least: int) -> int:
        """Index of the first bandwidth that a path can carry, and one GPU `least` times."""
        # Only a ring has every GPU both receive and send all data.
        top, parts = (self.gpus, self.gpus - 1) if self.gpus > 1 and self.now.pattern != Pattern.RING else (1, 1)
        most = min(self.widest, self.total * top // (least * parts)) if least else self.widest
        return next((i for i, rate in enumerate(self.rates) if rate <= most), len(self.rates) - 1)

    def first_pass(self, exact: bool) -> bool:
        """Relaxes what is wanted step by step.

        exact: False to leave out attempts that find nothing better, as if they used up their budget; returns
        False if the channels depend on what those leave of it.
        """
        skipped = late = False
        index, rates, preset = self.start(self.now.least), self.rates, self.now
        self.now = replace(self.now, bw_intra=rates[index], bw_inter=rates[index])
        while True:
            if exact or self.may_improve():
                if late:
                    return False
                self.attempt()
            else:
                self.visits, skipped = 0, True
                self.left -= self.budget
            if self.visits == -1 or self.best.nchannels * self.best.target.bw_inter >= self.total:
                return True
            now, best, count = self.now, self.best.target, self.best.nchannels
            if now.same and not (self.amd and now.type_intra == SYS):
                self.now = replace(now, same=False)
                continue
            now = replace(now, same=self.same)
            self.left = self.left + self.visits if self.visits != -1 else ALL_VISITS
            if self.left < 0 and count:
                if not skipped:
                    return True
                late = True
            if self.sm >= 90 and now.pattern == Pattern.BALANCED_TREE:
                self.now = replace(now, pattern=Pattern.TREE)
                continue
            now = replace(now, pattern=best.pattern if count else preset.pattern)
            last_intra = now.type_inter if self.inter else self.last_intra
            none, near = count == 0, replace(now, type_intra=self.first_intra)
            nearer = none or now.type_inter < best.type_inter or now.type_inter < PXN
            if now.type_intra < last_intra and (none or now.type_intra < best.type_intra) and now.type_intra + 1 < DIS:
                self.now = replace(now, type_intra=now.type_intra + 1)
            elif self.inter and now.type_inter < self.last_inter and nearer and now.type_inter + 1 < DIS:
                self.now = replace(near, type_inter=now.type_inter + 1)
            elif self.may_cross and now.cross == 0 and best.pattern in (Pattern.RING, Pattern.BALANCED_TREE):
                self.now = replace(near, type_inter=self.first_inter, cross=2)
            elif index + 1 == len(rates) or (count and rates[index + 1] * 100 <= best.bw_inter * 49):
                return True
            else:
                index, rate = index + 1, rates[index + 1]
                self.now = replace(near, type_inter=self.first_inter, cross=0, bw_intra=rate, bw_inter=rate)

    # --- second pass ----------------------------------------------------------------------------------------------

    def double(self) -> None:
        """Cuts wide channels in two."""
        best, nchannels = self.best.target, self.best.nchannels
        wide = (50 if self.sm > 80 and nchannels > 4 else 25) * GB
        if not nchannels or best.pattern == Pattern.NVLS or best.bw_intra < wide:
            return
        count = min(2 * nchannels, best.most)
        parts = -(-count // nchannels)
        channels, nets = (self.best.channels * 2)[:count], (self.best.nets * 2)[:count]
        halved = replace(best, bw_intra=best.bw_intra // parts, bw_inter=best.bw_inter // parts)
        self.best = replace(self.best, target=halved, channels=channels, nets=nets)

    def second_pass(self) -> None:
        """Raises the bandwidth of the channels found."""
        target = self.best.target
        index = next((i for i, rate in enumerate(self.rates) if rate <= target.bw_inter), len(self.rates) - 1)
        rate = self.rates[index]
        self.now = replace(target, bw_intra=rate, bw_inter=rate, least=self.best.nchannels, hops=self.best.hops)
        self.visits = -1
        while self.visits != 0 and index > 0:
            now, best = self.now, self.best.target
            if best.pattern == Pattern.RING:
                self.now = replace(now, bw_intra=self.rates[index - 1], bw_inter=self.rates[index - 1])
            elif best.pattern == Pattern.NVLS and now.bw_inter == best.bw_inter and now.bw_inter < 2 * now.bw_intra:
                count = self.best.nchannels
                self.now = replace(now, bw_inter=self.rates[index - 1], least=count, most=count)
            elif now.bw_intra == best.bw_intra and now.bw_intra < 2 * now.bw_inter:
                self.now = replace(now, bw_intra=self.rates[index - 1])
            else:
                return
            index -= 1
            self.attempt()

    def graph(self) -> Graph | None:
        """The best channels, by the numbers of GPUs and ports."""
        best, vertices = self.best.target, self.paths.system.vertices
        gpus = [vertices[gpu].number for gpu in self.paths.gpus]
        ports = [vertices[port].number for port in self.paths.ports]
        if not self.best.channels and best.pattern == Pattern.NVLS:
            return None
        if not self.best.channels:
            # NCCL then names port 0, whichever ports there are.
            listed, nets, far = (tuple(gpus),), ((0, 0),) if ports else (), PATH_TYPES[SYS]
            return Graph(best.pattern, 1, NO_SOLUTION, NO_SOLUTION, far, far, best.same, channels=listed, nets=nets)
        speeds = Fraction(best.bw_intra * GRAIN), Fraction(best.bw_inter * GRAIN)
        types = PATH_TYPES[best.type_intra], PATH_TYPES[best.type_inter]
        found = Graph(best.pattern, self.best.nchannels, *speeds, *types, best.same, self.best.latency, best.cross)
        channels = tuple(tuple(gpus[gpu] for gpu in channel) for channel in self.best.channels)
        used = tuple((ports[entry], ports[leave]) for entry, leave in self.best.nets)
        held = Fraction(1) if best.bw_intra <= best.bw_inter else self.best.wider[-1]
        wider = tuple(room / held for room in self.best.wider)
        return replace(found, channels=channels, nets=used, wider=wider)


def search(paths: Paths, rules: Rules, pattern: int, least: int = 1, most: int = MOST_CHANNELS) -> Graph | None:
    """The channels that NCCL finds for a pattern: at least `least` and at most `most` of them.

    None for NVLS where none is found; for others one channel in listed order at `NO_SOLUTION`.
    """
    start = _Search(paths, rules, pattern, least, most)
    for exact in (False, True):
        # What one pass has tried, the other knows.
        state = copy(start)
        if state.first_pass(exact):
            break
    state.double()
    state.second_pass()
    return state.graph()
