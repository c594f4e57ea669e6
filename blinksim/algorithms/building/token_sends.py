"""Schedules of dispatch and combine, a chunk for every class of tokens that start and end alike.

A token goes straight to every rank that wants it; or once to every node, to the rank there that is on the
sender's rail, which hands it on (DeepEP's normal kernels). Where some rails, or links inside, have more to
carry than others, the sender gives some tokens to ranks of its own node on other rails first. A combine goes
these ways backwards, and whoever hands on adds first what it has.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.bounds.bound_result import BoundResult
from blinksim.bounds.experts import rail_peers
from blinksim.bounds.lengths import Lengths
from blinksim.collective import DISPATCH, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints, occurrences, places, scattered
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.loads import RouteUses, equal_routes, in_turns, rate, resources, single_routes
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

# Sends up to which a schedule is written out, verified and saved within a minute.
MOST_SENDS = 4_000_000
# The part of the rate of divided classes that whole ones in turn must reach to be taken.
_ENOUGH = Fraction(99, 100)
# Chunks of a class where links are to carry the same.
_MOST_PARTS = 8
_GOLDEN = (5**0.5 - 1) / 2
# Parts of the tokens that choose one after the other, and how fast the price of a load grows: the least gaps
# of four of each on seven drawn routings (`benchmarks/bench_experts.py`).
_TURNS, _STEEP = 4000, 60.0


def token_schedule(
    topology: Topology, collective: Collective, algorithm: str, *, by_node: bool = True, even: bool = False
) -> Schedule:
    """The schedule in steps form: one step, or two where a copy a node is handed on, three from rail to rail.

    even: over all rails and links evenly. Raises `InfeasibleError` for tokens that need more than `MOST_SENDS`
    sends.
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
    many = classes.tokens[over]
    leaves = lightest_rails(topology, collective, many, own, node, which, end) if even else own
    entry, moved = peers[leaves, node], 1 * (leaves != own)
    sends = [(over, own, leaves, 0 * over), (over, leaves, entry, moved)]
    sends.append((chunk, entry[which], end, ((leaves != entry) + moved)[which]))
    number, src, dst, step = (np.concatenate(column) for column in zip(*sends, strict=True))
    # Nobody sends to itself, nor twice what is wanted there and handed on as well.
    _, once = np.unique((number * routing.ranks + src) * routing.ranks + dst, return_index=True)
    once = once[src[once] != dst[once]]
    number, src, dst, step = (column[once] for column in (number, src, dst, step))
    found = _finished(plan, number, src, dst, step)
    # Over equal routes, such as several NICs of a GPU, classes go in turn: parts of each would be more messages.
    if (spread := equal_routes(found)) is None:
        return found
    turns, divided = in_turns(found, spread, occurrences(found.route)), Candidate.of(found)
    return turns if (rate(turns) or 0) >= _ENOUGH * (divided.rate or 0) else divided.schedule


def tree_schedule(known: BoundResult) -> Schedule:
    """The schedule of the trees of the bound, which tokens take in turn, in the ratio of their rates.

    Raises `InputError` where these are too many to find, `InfeasibleError` where they are too long to write.
    """
    # Loads the solvers.
    from blinksim.bounds.optimum import best_trees

    topology, collective = known.topology, known.collective
    plan, routing = Plan(topology, collective, "packed", "steps"), collective.routed
    classes, there = routing.classes, collective.name == DISPATCH
    guess = Lengths.like(known.bounds[-1].certificate, topology, collective)
    _, sets, _ = best_trees(topology, collective, (), guess)
    parts = np.cumsum([rate for rate, _ in sets])
    # Every stretch of this sequence is spread evenly (Weyl).
    turn = np.searchsorted(parts / parts[-1], np.arange(int(classes.tokens.sum())) * _GOLDEN % 1)
    key, tokens = np.unique(
        np.repeat(np.arange(len(classes.own)), classes.tokens) * len(sets) + turn, return_counts=True
    )
    sends = list[tuple[int, int, int, int]]()
    for number, which, many in zip(*(a.tolist() for a in (*np.divmod(key, len(sets)), tokens)), strict=True):
        own, wanted = int(classes.own[number]), int(classes.which[number])
        ends = classes.sets[wanted]
        bits = sum(1 << rank for rank in ends[ends >= 0].tolist() if rank != own)
        share = Fraction(many * routing.token_size, routing.size)
        chunk = plan.add_chunk(share, *((own, wanted) if there else (wanted, own)))
        depth = {own: 0}
        for a, b in sets[which][1].hops(own, bits) if bits else ():
            depth[b] = depth[a] + 1
            sends.append((chunk, a, b, depth[a]))
        if len(sends) > MOST_SENDS:
            raise InfeasibleError(f"trees of more than {MOST_SENDS:,} sends")
    return _finished(plan, *np.array(sends).T)


def _finished(plan: Plan, chunk: Ints, src: Ints, dst: Ints, step: Ints) -> Schedule:
    """The schedule of a dispatch that sends so, or of a combine that goes backwards and adds up."""
    if plan.collective.name == DISPATCH:
        plan.send(src, dst, chunk=chunk, op=COPY, step=step)
    else:
        plan.send(dst, src, chunk=chunk, op=REDUCE, step=int(step.max(initial=0)) - step)
    return plan.finish()


def lightest_rails(
    topology: Topology, collective: Collective, tokens: Ints, own: Ints, node: Ints, which: Ints, end: Ints
) -> Ints:
    """The ranks that tokens leave their nodes from: each in turn by the way that is least loaded then.

    tokens, own, node: how many of one rank go to a node. which, end: the ranks there that want them, by the
    number of these. A link's price grows exponentially with its load, against that of the busiest (J. Aspnes
    et al., On-line routing of virtual circuits, 1997). Raises `InfeasibleError` for more than `MOST_SENDS`
    pairs of ranks.
    """
    ranks, (host, peers) = topology.ranks, rail_peers(topology)
    inner = np.nonzero((host[:, None] == host) & ~np.eye(ranks, dtype=np.bool_))
    rail = np.nonzero(host[:, None] != np.arange(peers.shape[1]))
    if len(inner[0]) + len(rail[0]) > MOST_SENDS:
        raise InfeasibleError(f"ways between {ranks:,} ranks")
    ends = np.concatenate([inner[0], rail[0]]), np.concatenate([inner[1], peers[rail]])
    messages, none = Plan(topology, collective, "packed", "steps"), np.zeros_like(ends[0])
    messages.add_chunk(1, 0, 0)
    made, shared = _finished(messages, none, *ends, none), resources(topology)
    uses = RouteUses(equal_routes(made) or single_routes(made), shared)
    # The route of each message, and a last one for what does not move.
    route, tall = np.full((ranks, ranks + 1), len(uses.count)), np.bincount(host).max()
    route[ends] = made.route
    members = np.stack([np.resize(np.flatnonzero(host == number), tall) for number in range(peers.shape[1])])
    place = occurrences(which)
    wanted = scattered((which, place), end, (len(own), int(place.max()) + 1), ranks)
    leaves, amounts = own.copy(), np.zeros(len(uses.count) + 1)

    def move(some: Ints, sign: int) -> None:
        entry = peers[leaves[some], node[some]]
        over, inside = route[leaves[some], entry], route[entry, wanted[some].T]
        for taken in (route[own[some], leaves[some]], over, *inside):
            np.add.at(amounts, taken, sign * tokens[some])

    move(np.arange(len(own)), 1)
    crossing = np.flatnonzero(host[own] != node)
    for some in (crossing[first::_TURNS] for first in range(min(_TURNS, len(crossing)))):
        move(some, -1)
        busy = uses.loads(amounts[:-1]) / shared.rates
        price = np.append(uses.prices(np.exp(_STEEP * (busy / busy.max() - 1)) / shared.rates), 0)
        leave, entry = members[host[own[some]]], peers[members[host[own[some]]], node[some, None]]
        cost = price[route[own[some, None], leave]] + price[route[leave, entry]]
        cost += price[route[entry[:, :, None], wanted[some, None, :]]].sum(axis=2)
        leaves[some] = leave[np.arange(len(some)), cost.argmin(axis=1)]
        move(some, 1)
    return leaves
