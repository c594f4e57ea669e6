"""A schedule whose links are single lanes: each send gets its lane before anything runs.

A link of several lanes passes several messages at once, each at the rate of a lane. Where lanes are things of their own
(wires, or the thread blocks that stand for them), the load has to be dealt out to them; equal parts of every chunk, one
after another in turn, load all lanes of a link alike, whatever the shares are (Blink, 2018 short paper, section 2,
counts lanes as links of their own for the same reason).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.schedule.model import Builder, Schedule
from blinksim.topology.graph import Link, Topology

# Chunks are cut to one common share as long as no more than this many come of it.
MOST_CHUNKS = 96


def lane_links(topology: Topology) -> tuple[Topology, list[list[int]]]:
    """The same machine with one link per lane, and for each old link the numbers of its lanes in the new one.

    A lane's class is that of its link with ``.0``, ``.1`` … behind it.
    """
    links: list[Link] = []
    lanes: list[list[int]] = []
    for link in topology.links:
        lanes.append(list(range(len(links), len(links) + link.lanes)))
        links += [replace(link, lanes=1, kind=f"{link.kind}.{lane}") for lane in range(link.lanes)]
    kinds = tuple(dict.fromkeys(link.kind for link in links))
    chosen = tuple(kind for kind in kinds if kind.rpartition(".")[0] in topology.collective_links)
    return replace(topology, links=tuple(links), collective_links=chosen, fabric=None, inter_node_links=()), lanes


def lanes_apart(schedule: Schedule, least: int = 1) -> Schedule:
    """The same collective over the same paths, every send on one lane.

    Chunks are cut into equal parts, as many as the lanes of every link on their way can share evenly, and, where that
    takes at most 96 chunks, all to the same share. least: cut on until there are about this many. The result is in
    forest form: dependencies are kept, common steps are not. It carries no bound. Raises
    `InfeasibleError` for sends that cross several links.
    """
    if schedule.sends and int(np.diff(schedule.route_start)[schedule.route].max()) > 1:
        raise InfeasibleError(f"{schedule.algorithm}: a send crosses several links, so it has no lane of its own")
    topology, lanes = lane_links(schedule.topology)
    link_of = schedule.route_links[schedule.route_start[schedule.route]].tolist()
    cuts = _cuts(schedule, link_of, least)
    builder = Builder(topology, schedule.collective, schedule.algorithm, "forest")
    parts: list[list[int]] = []
    for chunk, cut in enumerate(cuts):
        ends = int(schedule.origin[chunk]), int(schedule.target[chunk])
        parts.append([builder.add_chunk(schedule.share(chunk) / cut, *ends) for _ in range(cut)])
    load = [[0] * len(numbers) for numbers in lanes]
    taken: dict[tuple[int, int], int] = {}
    columns = (schedule.chunk, schedule.src, schedule.dst, schedule.op, schedule.step, schedule.channel)
    for link, (chunk, src, dst, op, step, channel) in zip(
        link_of, zip(*(column.tolist() for column in columns), strict=True), strict=True
    ):
        for part in parts[chunk]:
            if (part, link) not in taken:
                taken[part, link] = load[link].index(min(load[link]))
            lane = taken[part, link]
            load[link][lane] += int(schedule.share_num[chunk])
            route = builder.add_route([lanes[link][lane]])
            builder.add_sends(chunk=part, src=src, dst=dst, op=op, step=step, route=route, channel=channel)
    return builder.finish()


def _cuts(schedule: Schedule, link_of: list[int], least: int) -> list[int]:
    """Into how many parts each chunk is cut."""
    width = [1] * schedule.chunks
    for chunk, link in zip(schedule.chunk.tolist(), link_of, strict=True):
        width[chunk] = lcm(width[chunk], schedule.topology.links[link].lanes)
    shares = schedule.share_num.tolist()
    unit = gcd(*shares) or 1
    equal = [share // unit * lcm(*width) for share in shares]
    cuts = [max(1, count) for count in equal] if sum(equal) <= MOST_CHUNKS else width
    further = min(least // sum(cuts), MOST_CHUNKS // sum(cuts)) if cuts else 1
    return [count * max(1, further) for count in cuts]


def lane_loads(schedule: Schedule) -> dict[str, Fraction]:
    """The share of the size on every link that carries something, by name."""
    from blinksim.schedule.loads import link_loads

    loads = link_loads(schedule)
    return {link.name: load for link, load in zip(schedule.topology.links, loads, strict=True) if load}
