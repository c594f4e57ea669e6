"""Channels by depth-first search: one attempt with fixed bandwidth, kinds of paths and pattern.

A channel is a walk over all GPUs of the node that takes its bandwidth from every link on the way; a ring
closes, and on several nodes a channel enters and leaves by a network port. Channel after channel is placed
until nothing is left. The search does not look for all solutions: it tries a listed order first, then
neighbours by preference, and gives up after a number of visits (NCCL 2.28.3, graph/search.cc). What was
explored without finding a channel is remembered with the visits that it took, so that the budget runs out at
the same point of the search as NCCL's, in less time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from blinksim.nccl.families import PATTERN_BALANCED_TREE, PATTERN_NVLS, PATTERN_RING, PATTERN_SPLIT_TREE, PATTERN_TREE
from blinksim.nccl.search.paths import Paths
from blinksim.nccl.search.reach import GB, Demand, Found, Reach, Target

VISITS = 1 << 14
VISITS_SAME_CHANNELS = 1 << 8
VISITS_LISTED_ORDER = 1 << 10


class Attempt:
    """One depth-first search for channels of `target`; `run` returns what it found if that is better than `best`.

    visits: what is left of the budget; -1 once the maximum of channels is placed.
    """

    def __init__(self, paths: Paths, target: Target, best: Found, visits: int) -> None:
        self.target, self.best, self.visits = target, best, visits
        self.paths = paths
        self.reach = Reach(paths, target)
        self.count = self.reach.count
        self.improved = False
        self.free = [wire.bandwidth for wire in paths.system.wires]
        # NCCL counts what is left of a port apart from the links behind it, in whole GB/s.
        self.port_free = self.reach.port_bandwidth()
        self.channels: list[list[int]] = []
        self.nets: list[list[int]] = []
        self.used = 0
        self.hops = target.hops
        self.latency = 0.0
        self._failed: dict[object, int] = {}

    def run(self) -> Found | None:
        # A frame for every GPU of every channel, and some for the turn from one channel to the next.
        depth, limit = self.target.most * (self.count + 13), sys.getrecursionlimit()
        sys.setrecursionlimit(limit + depth)
        try:
            self._next_channel()
        finally:
            sys.setrecursionlimit(limit)
        return self.best if self.improved else None

    def _take(self, demand: Demand) -> bool:
        """Takes the amounts from the links, or nothing if one has too little left."""
        free = self.free
        for i, amount in demand:
            if free[i] < amount:
                return False
        for i, amount in demand:
            free[i] -= amount
        return True

    def _give(self, demand: Demand) -> None:
        for i, amount in demand:
            self.free[i] += amount

    def _once(self, key: object, explore: Callable[[], None]) -> None:
        """Explores, or only spends the visits if the same state found nothing before: better ones only get rarer."""
        known = self._failed.get(key)
        if known is not None:
            if self.visits > 0:
                self.visits = max(0, self.visits - known)
            return
        before, improved = self.visits, self.improved
        self.improved = False
        explore()
        if not self.improved and self.visits > 0:
            self._failed[key] = before - self.visits
        self.improved |= improved

    # --- channels -------------------------------------------------------------------------------------------------

    def _next_channel(self) -> None:
        target, laid = self.target, len(self.channels)
        if self.reach.ports:
            back = (
                self.count - 1 if target.pattern == PATTERN_RING else 1 if target.pattern == PATTERN_SPLIT_TREE else 0
            )
            if not laid or target.pattern == PATTERN_NVLS:
                self._from_ports(back)
                return
            last = tuple(self.channels[-1]) if target.same else ()
            key = (laid, self.hops, last, tuple(self.nets[-1]), *self.port_free, *self.free)
            self._once(key, lambda: self._from_ports(back))
            return
        close = self.count - 1 if target.pattern == PATTERN_RING else -1
        if target.pattern == PATTERN_NVLS:
            self._begin(laid, -1, close, None)
            return
        last = tuple(self.channels[-1]) if laid else tuple(range(self.count))
        self._begin(last[0], -1, close, last)
        if not (target.same and laid):
            self._once((laid, self.hops, *self.free), lambda: self._from_any(close))

    def _from_any(self, close: int) -> None:
        for gpu in range(self.count):
            self._begin(gpu, -1, close, None)

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
                self.best = Found(self.target, tuple(map(tuple, self.channels)), nets, self.hops, self.latency)
                self.improved = True
                if laid == self.target.most:
                    self.visits = -1
            if laid < self.target.most:
                self._next_channel()
            return
        self.channels[-1][step] = gpu
        if step == back:
            self._leave_by_port(gpu, step, close, order)
        elif self.target.pattern == PATTERN_NVLS:
            self._head(gpu)
        elif step < self.count - 1:
            go, free = self.reach.go[gpu], self.free
            for there in order[step + 1 : step + 2] if order is not None else self._following(gpu, step, back):
                demand = go[there]
                if demand is None:
                    continue
                for i, amount in demand:
                    if free[i] < amount:
                        break
                else:
                    for i, amount in demand:
                        free[i] -= amount
                    hops = len(demand)
                    self.hops += hops
                    self.used ^= 1 << there
                    self._visit(there, step + 1, back, close, order)
                    self.used ^= 1 << there
                    self.hops -= hops
                    for i, amount in demand:
                        free[i] += amount
        else:
            self._end(gpu, step, back, close, order)

    def _following(self, gpu: int, step: int, back: int) -> Sequence[int]:
        """The GPUs to try next, best first; those near the port come first where the channel has yet to leave by it."""
        towards = 0 if back == -1 else 1 if back == step + 1 else -1
        return self.reach.following(gpu, self.used, towards, self.nets[-1][0] if towards else -1)

    def _end(self, gpu: int, step: int, back: int, close: int, order: tuple[int, ...] | None) -> None:
        """Goes on from the last GPU of a channel: back to the first if it has to close there."""
        if step != close:
            self._visit(gpu, self.count, -1, -1, order)
            return
        first = self.channels[-1][0]
        demand = self.reach.go[gpu][first] if first != gpu else ()
        if demand is not None and self._take(demand):
            self.hops += len(demand)
            self._visit(first, step + 1, back, -1, order)
            self.hops -= len(demand)
            self._give(demand)

    def _head(self, gpu: int) -> None:
        """Places an NVLS channel: every GPU sends to the switches and hears from them once, the head twice."""
        switch, reach, target = self.paths.switches[0], self.reach, self.target
        taken: list[Demand] = []
        hops = 0
        for number, other in enumerate(reach.gpus):
            times = 2 if number == gpu else 1
            for ends in ((switch, other), (other, switch)):
                path = self.paths[ends]
                demand = reach.amounts(ends[0], path, target.bw_intra * times)
                allowed = bool(path.wires) and (times == 2 or path.kind <= target.type_intra)
                if not allowed or not self._take(demand):
                    for earlier in taken:
                        self._give(earlier)
                    return
                taken.append(demand)
                hops += times * path.hops
        self.channels[-1][:] = [gpu, *(other for other in range(self.count) if other != gpu)]
        self.hops += hops
        self._visit(gpu, self.count, -1, -1, None)
        self.hops -= hops
        for demand in taken:
            self._give(demand)

    # --- network ports --------------------------------------------------------------------------------------------

    def _from_ports(self, back: int) -> None:
        """Begins a channel at every port that has the bandwidth left, the preferred one first."""
        target, reach, laid = self.target, self.reach, len(self.channels)
        ports = reach.ports_for(None)
        needed = target.bw_inter // GB * GB
        for offset in range(len(ports)):
            port = ports[(laid + offset) % len(ports)]
            if self.port_free[port] < needed:
                continue
            if target.pattern == PATTERN_RING and target.cross == 2 and laid & 1 and port != self.nets[-1][1]:
                continue
            self.nets.append([port, port])
            self.latency = reach.latency[port]
            for other in reach.same_card[port]:
                self.port_free[other] -= needed
            headed = False
            if target.pattern == PATTERN_NVLS:
                headed = self._enter_as_head(port, len(ports), back)
            elif laid and target.same:
                last = tuple(self.channels[-1])
                self._enter(port, last[0], back, last)
            else:
                if not laid and not self.paths.switches:
                    # The listed order sets a reference; it has a budget of its own.
                    visits, self.visits = self.visits, VISITS_LISTED_ORDER
                    self._enter(port, 0, back, tuple(range(self.count)))
                    self.visits = -1 if self.visits == -1 else visits
                for gpu in self.reach.starts(port):
                    self._enter(port, gpu, back, None)
            for other in reach.same_card[port]:
                self.port_free[other] += needed
            self.nets.pop()
            if headed:
                return

    def _enter_as_head(self, port: int, ports: int, back: int) -> bool:
        gpu = self.reach.local[port]
        if len(self.channels) >= ports or gpu is None or any(channel[0] == gpu for channel in self.channels):
            return False
        self._enter(port, gpu, back, None)
        return True

    def _enter(self, port: int, gpu: int, back: int, order: tuple[int, ...] | None) -> None:
        demand = self.reach.between(gpu, port, True, self.target.bw_inter)
        if demand is None or self.visits <= 0 or not self._take(demand):
            return
        hops = self.reach.port_hops(gpu, port, True)
        self.hops += hops
        self._begin(gpu, back, -1, order)
        self.hops -= hops
        self._give(demand)

    def _leave_by_port(self, gpu: int, step: int, close: int, order: tuple[int, ...] | None) -> None:
        target, reach, laid = self.target, self.reach, len(self.channels)
        entry = self.nets[-1][0]
        for port in reach.ports_for(gpu):
            if target.pattern == PATTERN_TREE and port != entry:
                continue
            if target.pattern == PATTERN_RING and target.cross == 2:
                # Of two channels the second leaves where the first entered.
                if laid % 2 == 0 and port != self.nets[-2][0]:
                    continue
            elif target.cross == 0 and port not in reach.same_card[entry]:
                continue
            back, bandwidth = -1, target.bw_inter
            if target.pattern == PATTERN_BALANCED_TREE:
                # Half of the traffic leaves from each of the first two GPUs.
                if step == 0:
                    back = 1
                elif port != self.nets[-1][1]:
                    continue
                bandwidth //= 2
            demand = reach.between(gpu, port, False, bandwidth)
            if demand is None or not self._take(demand):
                continue
            hops = reach.port_hops(gpu, port, False)
            before, self.nets[-1][1] = self.nets[-1][1], port
            self.hops += hops
            self._visit(gpu, step, back, close, order)
            self.hops -= hops
            self.nets[-1][1] = before
            self._give(demand)
