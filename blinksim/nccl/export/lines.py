"""A schedule as the lines that NCCL can run: chains through GPUs, used up and down, and rings.

NCCL's tree allreduce makes every channel a chain, up and then down; everything else runs on rings (NCCL 2.28.3
graph/connect.cc; Broadcast and Reduce follow a ring from or to the root). Anything else has no graph file; it is
refused, with what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import pairwise

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.nccl.files.graph_file import MOST_CHANNELS
from blinksim.nccl.files.topo_elements import GPU_KINDS
from blinksim.schedule.model import REDUCE, Schedule
from blinksim.structures.arrays import distinct

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Line:
    """A chain (from its root, where it has one at an end) or a ring of devices, with its share of the data."""

    devices: tuple[str, ...]
    share: Fraction
    ring: bool = False

    @property
    def words(self) -> str:
        return "-".join(self.devices)


def lines(schedule: Schedule) -> list[Line]:
    """The chains or rings of a schedule, GPUs on the way included; raises `InfeasibleError` if it is neither.

    An allreduce in forest form gives the chains of its trees, a rooted collective the chain from or to its root, a
    schedule around rings the rings.
    """
    name = schedule.collective.name
    if schedule.collective.personalized:
        raise InfeasibleError(f"NCCL runs {name} as single sends, which no graph changes; take the format msccl-xml")
    if schedule.topology.ranks < 2:
        raise InfeasibleError("a collective needs at least two ranks; there is no graph to write")
    if schedule.form == "forest" and name in ("allreduce", "broadcast", "reduce"):
        return [_chain(schedule, chunk) for chunk in range(schedule.chunks) if schedule.share_num[chunk]]
    return list(_rings(schedule))


def steps_between(schedule: Schedule, sends: Iterator[int] | list[int]) -> list[Pair]:
    """The hops from GPU to GPU of some sends, with those GPUs that a route passes."""
    topology = schedule.topology
    found = []
    for send in sends:
        ends = [topology.devices[int(ends[send])] for ends in (schedule.src, schedule.dst)]
        stops = [ends[0].name]
        for link in schedule.links_of(int(schedule.route[send])):
            at = topology.device(topology.links[link].dst)
            # Between nodes NCCL itself relays through GPUs on the way to a NIC (PXN).
            if at.kind in GPU_KINDS and (at.name == ends[1].name or ends[0].node == ends[1].node):
                stops.append(at.name)
            elif at.name == ends[1].name:
                raise InfeasibleError(f"{at.name} computes in the network; NCCL's rings and chains are of GPUs only")
        found += list(pairwise(stops))
    return found


def _chain(schedule: Schedule, chunk: int) -> Line:
    mine = np.flatnonzero(schedule.chunk == chunk).tolist()
    up = steps_between(schedule, [i for i in mine if schedule.op[i] == REDUCE])
    down = steps_between(schedule, [i for i in mine if schedule.op[i] != REDUCE])
    if up and down and sorted(up) != sorted((b, a) for a, b in down):
        raise InfeasibleError(
            f"chunk {chunk} comes down another tree than it goes up; NCCL's chains are used both ways"
        )
    edges = down or [(b, a) for a, b in up]
    near: dict[str, list[str]] = {}
    for a, b in edges:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    for device, others in near.items():
        if len(others) > 2:
            raise InfeasibleError(
                f"the tree of chunk {chunk} branches at {device}, which is next to {', '.join(others)}; NCCL runs "
                "chains only. Build the schedule with algorithm=chains, or take the format msccl-xml, which can branch"
            )
    if len(near) != len(edges) + 1:
        raise InfeasibleError(f"the tree of chunk {chunk} passes a GPU twice; NCCL's chains pass each once")
    children = {b for _, b in edges}
    ends = [device for device, others in near.items() if len(others) == 1]
    start = next((device for device in ends if device not in children), min(ends))
    if schedule.collective.rooted and start in children:
        raise InfeasibleError(
            f"the chain of chunk {chunk} has its root in the middle; NCCL's {schedule.collective.name} follows a ring "
            "from one end. Build it with algorithm=chain or algorithm=rings"
        )
    order, before = [start], ""
    while len(order) < len(near):
        after = next(other for other in near[order[-1]] if other != before)
        before = order[-1]
        order.append(after)
    if schedule.collective.name == "reduce":
        # A reduction runs along the ring to the root, so the root is last.
        order.reverse()
    return Line(tuple(order), schedule.share(chunk))


def _rings(schedule: Schedule) -> Iterator[Line]:
    ranks = set(schedule.topology.members)
    for channel in distinct(schedule.channel).tolist():
        mine = np.flatnonzero(schedule.channel == channel).tolist()
        after: dict[str, set[str]] = {}
        ways = np.stack([schedule.src[mine], schedule.dst[mine], schedule.route[mine]])
        _, first = np.unique(ways, axis=1, return_index=True)
        for a, b in steps_between(schedule, [mine[place] for place in first.tolist()]):
            after.setdefault(a, set()).add(b)
        order = [min(after)] if schedule.topology.members[0] not in after else [schedule.topology.members[0]]
        while len(order) <= len(after) and len(after.get(order[-1], ())) == 1:
            order.append(next(iter(after[order[-1]])))
        if len(order) != len(after) + 1 or order[0] != order[-1] or len(set(order)) != len(after):
            raise InfeasibleError(
                f"channel {channel} of this schedule is no ring: its sends do not lead once around the GPUs. A graph "
                "file holds rings (algorithm=ring, algorithm=rings) and chains (algorithm=chains), msccl-xml anything"
            )
        chunks = distinct(schedule.chunk[mine])
        share = Fraction(int(schedule.share_num[chunks].sum()), schedule.share_den)
        n = len(ranks)
        expected = n * (n - 1) * (2 if schedule.collective.name == "allreduce" else 1)
        shares = schedule.share_num[chunks]
        if len(chunks) % n or (shares != shares[0]).any() or len(mine) != expected * (len(chunks) // n):
            raise InfeasibleError(
                f"channel {channel} is a ring, but not used as NCCL uses one: {n} equal blocks that each go all the way"
            )
        yield Line(tuple(order[:-1]), share, ring=True)


def _common_divisor(share: Fraction, other: Fraction) -> Fraction:
    while other:
        share, other = other, share % other
    return share


def repeated(found: list[Line], most: int) -> list[Line]:
    """The lines with equal shares: each as often as its share needs, since NCCL splits the data evenly over channels.

    Raises `InfeasibleError` if that takes more than `most` channels.
    """
    unit = reduce(_common_divisor, (line.share for line in found))
    total = int(sum((line.share for line in found), start=Fraction(0)) / unit)
    if total > most:
        more = f"give channels={total}, which NCCL 2.25 and later load, or " if total <= MOST_CHANNELS else ""
        raise InfeasibleError(
            f"the shares of these {len(found)} chains need {total} equal channels, and {most} are allowed; {more}build "
            "the schedule with algorithm=chains, which keeps to few equal channels, or take the format nccl-graph-set"
        )
    return [line for line in found for _ in range(int(line.share / unit))]
