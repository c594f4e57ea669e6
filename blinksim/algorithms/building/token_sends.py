"""Schedules of dispatch and combine, a chunk for every class of tokens that start and end alike.

A token goes straight to every rank that wants it; or once to every node, to the rank there that is on the
sender's rail, which hands it on (DeepEP's normal kernels). A combine goes these ways backwards, and whoever
hands on adds first what it has.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.bounds.experts import rail_peers
from blinksim.collective import DISPATCH, Collective
from blinksim.errors import InfeasibleError
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

# Sends up to which a schedule is written out, verified and saved within a minute.
MOST_SENDS = 4_000_000


def token_schedule(topology: Topology, collective: Collective, algorithm: str, *, by_node: bool) -> Schedule:
    """The schedule in steps form: one step, or two where a copy a node is handed on.

    Raises `InfeasibleError` for tokens that need more than `MOST_SENDS` sends.
    """
    plan, routing = Plan(topology, collective, algorithm, "steps"), collective.routing
    assert routing is not None
    classes, there = routing.classes, collective.name == DISPATCH
    wanted = classes.sets[classes.which]
    least = int((wanted >= 0).sum()) - len(wanted)
    if least > MOST_SENDS:
        fit = routing.experts.shape[1] * MOST_SENDS // least
        raise InfeasibleError(
            f"{collective} of {int(classes.tokens.sum()):,} tokens takes {least:,} sends or more, and at most "
            f"{MOST_SENDS:,} are written out: take some {fit:,} tokens a rank; project has the time of any number, by "
            "what links carry"
        )
    for own, which, tokens in zip(*(a.tolist() for a in (classes.own, classes.which, classes.tokens)), strict=True):
        share = Fraction(tokens * routing.token_size, routing.size)
        plan.add_chunk(share, *((own, which) if there else (which, own)))
    chunk, place = np.nonzero(wanted >= 0)
    end, own = wanted[chunk, place], classes.own[chunk]
    start = own
    if by_node:
        host, peers = rail_peers(topology)
        start = peers[own, host[end]]
    # What crosses to a node goes once, whoever wants it there; nobody sends to itself.
    across = np.unique(chunk * routing.ranks + start)
    over, entry = np.divmod(across, routing.ranks)
    sends = [(chunk, start, end, (start != own) * 1), (over, classes.own[over], entry, 0 * over)]
    number, src, dst, step = (np.concatenate(column) for column in zip(*sends, strict=True))
    number, src, dst, step = (column[src != dst] for column in (number, src, dst, step))
    if there:
        plan.send(src, dst, chunk=number, op=COPY, step=step)
    else:
        plan.send(dst, src, chunk=number, op=REDUCE, step=int(step.max(initial=0)) - step)
    return Candidate.of(plan.finish()).schedule
