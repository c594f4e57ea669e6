"""NCCL's search for channels: the bandwidths, kinds of paths and patterns tried, in order, and when it stops.

A first pass relaxes one demand after the other (equal channels, balanced trees, NVLink only, near ports, one
port per channel, bandwidth) until the channels found are nearly optimal; a second doubles wide channels and
tries to raise the bandwidth of those found (NCCL 2.28.3, graph/search.cc).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from blinksim.nccl.families import DIS, LOC, PATH_TYPES, PIX, PXN, SYS, Pattern
from blinksim.nccl.files.graph_file import Graph
from blinksim.nccl.search.channel_search import GB, VISITS, VISITS_SAME_CHANNELS, Attempt, Found, Target
from blinksim.nccl.search.paths import Paths
from blinksim.nccl.search.system import GRAIN

ALL_VISITS = 1 << 19
MOST_CHANNELS = 32
MOST_HEADS = 32
NO_SOLUTION = Fraction(100_000_000)
"""Bytes/s that NCCL writes for a channel where it found none."""


@dataclass(frozen=True)
class Rules:
    """What differs between versions of the search.

    bandwidths: bytes/s of a channel that are tried, (least compute capability, inside a node, on several nodes),
    highest capability first. any_port_below: compute capability below which ports of any distance may be tried.
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
        outward = [path.kind for path in paths.to_ports()]
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
        self._failed: dict[object, int] = {}

    @property
    def budget(self) -> int:
        """The visits that an attempt gets."""
        return VISITS_SAME_CHANNELS if self.now.same else VISITS

    def attempt(self) -> None:
        """Searches for what is wanted now; `visits` is what is left of its budget, -1 if no more can be found."""
        self.left -= self.budget
        # Attempts of the same signature can use the same paths, so one that failed need not be repeated.
        intra = max((kind for kind in self.kinds if kind <= self.now.type_intra), default=0)
        inter = max((kind for kind in self.port_kinds if kind <= self.now.type_inter), default=0)
        key = replace(self.now, type_intra=intra, type_inter=inter)
        if key in self._failed:
            self.visits = self._failed[key]
            return
        attempt = Attempt(self.paths, self.now, self.best, self.budget)
        channels = attempt.run()
        self.visits = attempt.visits
        if channels is None:
            self._failed[key] = attempt.visits
        else:
            self.best = channels

    def may_improve(self) -> bool:
        """False if no channels that meet what is wanted now can be worth more than the best.

        A channel leaves all GPUs but one, and a ring on a single node all of them. On several nodes it enters
        by a port, and leaves by one, balanced trees by two.
        """
        now, paths, inter = self.now, self.paths, self.inter
        steps = self.gpus - 1 + (now.pattern == Pattern.RING and not inter)
        most = paths.room(paths.gpus, now.bw_intra) // max(1, steps)
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
        index = self.start(self.now.least)
        preset = self.now
        self.now = replace(self.now, bw_intra=self.rates[index], bw_inter=self.rates[index])
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
            none = count == 0
            if now.type_intra < last_intra and (none or now.type_intra < best.type_intra) and now.type_intra + 1 < DIS:
                self.now = replace(now, type_intra=now.type_intra + 1)
                continue
            now = replace(now, type_intra=self.first_intra)
            nearer = none or now.type_inter < best.type_inter or now.type_inter < PXN
            if self.inter and now.type_inter < self.last_inter and nearer and now.type_inter + 1 < DIS:
                self.now = replace(now, type_inter=now.type_inter + 1)
                continue
            now = replace(now, type_inter=self.first_inter)
            if self.may_cross and now.cross == 0 and best.pattern in (Pattern.RING, Pattern.BALANCED_TREE):
                self.now = replace(now, cross=2)
                continue
            now = replace(now, cross=0)
            if index + 1 == len(self.rates) or (count and self.rates[index + 1] * 100 <= best.bw_inter * 49):
                return True
            index += 1
            self.now = replace(now, bw_intra=self.rates[index], bw_inter=self.rates[index])

    # --- second pass ----------------------------------------------------------------------------------------------

    def double(self) -> None:
        """Cuts wide channels in two."""
        best, nchannels = self.best.target, self.best.nchannels
        if not nchannels or best.pattern == Pattern.NVLS or best.bw_intra < 25 * GB:
            return
        if self.sm > 80 and best.bw_intra < 50 * GB and nchannels > 4:
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
        return Graph(
            pattern=best.pattern,
            nchannels=self.best.nchannels,
            bw_intra=Fraction(best.bw_intra * GRAIN),
            bw_inter=Fraction(best.bw_inter * GRAIN),
            type_intra=PATH_TYPES[best.type_intra],
            type_inter=PATH_TYPES[best.type_inter],
            same_channels=best.same,
            latency_inter=self.best.latency,
            wider=self.best.wider if best.bw_intra <= best.bw_inter else Fraction(1),
            cross_nic=best.cross,
            channels=tuple(tuple(gpus[gpu] for gpu in channel) for channel in self.best.channels),
            nets=tuple((ports[entry], ports[leave]) for entry, leave in self.best.nets),
        )


def search(paths: Paths, rules: Rules, pattern: int, least: int = 1, most: int = MOST_CHANNELS) -> Graph | None:
    """The channels that NCCL finds for a pattern: at least `least` and at most `most` of them.

    None for NVLS where none is found; for others one channel in listed order at `NO_SOLUTION`.
    """
    for exact in (False, True):
        state = _Search(paths, rules, pattern, least, most)
        if state.first_pass(exact):
            break
    state.double()
    state.second_pass()
    return state.graph()
