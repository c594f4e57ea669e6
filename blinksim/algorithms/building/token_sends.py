"""Schedules of dispatch and combine, a chunk for every class of tokens that start and end alike.

A token goes straight to every rank that wants it; or once to every node, to the rank there that is on the
sender's rail, which hands it on (DeepEP's normal kernels). Where some rails have more to carry than others,
the sender gives what is too much to ranks of its own node on other rails first. A combine goes these ways
backwards, and whoever hands on adds first what it has.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.bounds.experts import rail_peers
from blinksim.collective import DISPATCH, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints, occurrences, places
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.loads import equal_routes, rate
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology
from blinksim.traffic import TokenClasses

# Sends up to which a schedule is written out, verified and saved within a minute.
MOST_SENDS = 4_000_000
# The part of the rate of divided classes that whole ones in turn must reach to be taken.
_ENOUGH = Fraction(99, 100)
# Chunks of a class where rails are to carry the same.
_MOST_PARTS = 8


def token_schedule(
    topology: Topology, collective: Collective, algorithm: str, *, by_node: bool = True, even: bool = False
) -> Schedule:
    """The schedule in steps form: one step, or two where a copy a node is handed on, three from rail to rail.

    even: over all rails evenly. Raises `InfeasibleError` for tokens that need more than `MOST_SENDS` sends.
    """
    plan, routing = Plan(topology, collective, algorithm, "steps"), collective.routed
    classes, there = routing.classes, collective.name == DISPATCH
    if even:
        # Of many tokens that go alike, each rail of a node can have some.
        parts = np.minimum(classes.tokens, _MOST_PARTS)
        of = np.repeat(np.arange(len(parts)), parts)
        tokens = classes.tokens[of] // parts[of] + (places(parts) < (classes.tokens % parts)[of])
        classes = replace(classes, own=classes.own[of], which=classes.which[of], tokens=tokens)
    wanted = classes.sets[classes.which]
    if (least := int((wanted >= 0).sum()) - len(wanted)) > MOST_SENDS:
        takes = f"{collective} of {int(classes.tokens.sum()):,} tokens takes {least:,} sends or more"
        fit = f"take some {routing.experts.shape[1] * MOST_SENDS // least:,} tokens a rank"
        rest = "project has the time of any number, by what links carry"
        raise InfeasibleError(f"{takes}, and at most {MOST_SENDS:,} are written out: {fit}; {rest}")
    for own, which, tokens in zip(*(a.tolist() for a in (classes.own, classes.which, classes.tokens)), strict=True):
        share = Fraction(tokens * routing.token_size, routing.size)
        plan.add_chunk(share, *((own, which) if there else (which, own)))
    # Straight to all is what a single node does.
    one_node = np.zeros(routing.ranks, dtype=np.int64), np.arange(routing.ranks)[:, None]
    host, peers = rail_peers(topology) if by_node else one_node
    chunk, place = np.nonzero(wanted >= 0)
    end = wanted[chunk, place]
    # What goes to a node goes once, whoever wants it there: from the rank that has it, or another of its node.
    pair, which = np.unique(chunk * len(host) + host[end], return_inverse=True)
    over, node = np.divmod(pair, len(host))
    own = classes.own[over]
    leaves = even_rails(classes, host, peers, over, node) if even else own
    entry, moved = peers[leaves, node], 1 * (leaves != own)
    sends = [(over, own, leaves, 0 * over), (over, leaves, entry, moved)]
    sends.append((chunk, entry[which], end, ((leaves != entry) + moved)[which]))
    number, src, dst, step = (np.concatenate(column) for column in zip(*sends, strict=True))
    # Nobody sends to itself, nor twice what is wanted there and handed on as well.
    _, once = np.unique((number * routing.ranks + src) * routing.ranks + dst, return_index=True)
    once = once[src[once] != dst[once]]
    number, src, dst, step = (column[once] for column in (number, src, dst, step))
    if there:
        plan.send(src, dst, chunk=number, op=COPY, step=step)
    else:
        plan.send(dst, src, chunk=number, op=REDUCE, step=int(step.max(initial=0)) - step)
    found = plan.finish()
    # Over equal routes, such as several NICs of a GPU, classes go in turn: parts of each would be more messages.
    if (spread := equal_routes(found)) is None:
        return found
    path = spread.first[found.route] + occurrences(found.route) % spread.count[found.route]
    turns = replace(found, route=path.astype(np.int32), route_start=spread.start, route_links=spread.links)
    divided = Candidate.of(found)
    return turns if (rate(turns) or 0) >= _ENOUGH * (divided.rate or 0) else divided.schedule


def even_rails(classes: TokenClasses, host: Ints, peers: Ints, over: Ints, node: Ints) -> Ints:
    """The ranks that tokens leave their nodes from, so that all rails of a node carry about as much.

    over, node: the class of tokens, and the node that it goes to, mostly from its own rank.
    """
    own, many, nodes = classes.own[over], classes.tokens[over], peers.shape[1]
    leaves, load = own.copy(), np.zeros((2, len(host)), dtype=np.int64)
    pair = host[own] * nodes + node
    crossing = np.flatnonzero(host[own] != node)
    crossing = crossing[np.argsort(pair[crossing], kind="stable")]
    for mine in np.split(crossing, np.flatnonzero(np.diff(pair[crossing])) + 1):
        start, to = host[own[mine[0]]], node[mine[0]]
        ranks = np.flatnonzero(host == start)
        into, place = peers[ranks, to], np.searchsorted(ranks, own[mine])
        # As much for every rail, what is over for those that carry least so far.
        each, rest = divmod(int(many[mine].sum()), len(ranks))
        due = np.full(len(ranks), each)
        due[np.argsort(load[0, ranks] + load[1, into], kind="stable")[:rest]] += 1
        sums, have = np.cumsum(many[mine]), np.bincount(place, many[mine], len(ranks)).astype(np.int64)
        spare = np.flatnonzero(sums - (np.cumsum(have) - have)[place] > due[place])
        lacks = np.cumsum(np.maximum(due - have, 0))
        filled = np.cumsum(many[mine][spare])
        place[spare] = np.minimum(np.searchsorted(lacks, filled), len(ranks) - 1)
        leaves[mine] = ranks[place]
        carried = np.bincount(place, many[mine], len(ranks)).astype(np.int64)
        np.add.at(load[0], ranks, carried)
        np.add.at(load[1], into, carried)
    return leaves
