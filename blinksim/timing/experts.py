"""How long a dispatch or a combine of tokens takes on the links: routings as asked for, and the answer."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from blinksim.algorithms.building.expert_times import ExpertTimes, savings, taken
from blinksim.bounds.compute import bound
from blinksim.bounds.experts import A_NODE, A_RANK, DIRECT, Way, draw_routing, hops, read_routing, token_bytes
from blinksim.collective import DISPATCH, Collective, CollectiveLike
from blinksim.errors import InputError
from blinksim.machines import MachineLike, as_topology
from blinksim.results import Term
from blinksim.schedule.loads import StepLoads, resources, step_row, uses_of_messages
from blinksim.timing.alpha_beta import cost
from blinksim.timing.measured.library_rates import AGAIN, EVERY, scope_of, spread_at
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology
from blinksim.traffic import Routing


def routing_of(
    ranks: int | None,
    ranks_per_node: int = 8,
    *,
    default_each: int | None = None,
    routing: Routing | str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Routing:
    """A routing as it is, one in a file, or one that is drawn with what `draw_routing` takes or None.

    default_each: experts of a rank, unless settings say. settings: also placement, hidden and dtype, or
    token_size in place of these; and experts_per_rank in place of experts.
    """
    found = {name: value for name, value in settings.items() if value is not None}
    each, placement = found.pop("experts_per_rank", default_each), found.pop("placement", None)
    size = found.pop("token_size", token_bytes(found.pop("hidden", 7168), found.pop("dtype", "bf16")))
    if isinstance(routing, Routing):
        return routing
    if routing is None:
        if placement is not None or ranks is None:
            raise InputError("name a file, or say how many ranks have experts, such as ranks=64")
        found = {"experts": ranks * each, **found} if each else found
        return draw_routing(ranks, token_size=size, ranks_per_node=ranks_per_node, **found)
    held = placement or found.pop("experts", None)
    if found:
        raise InputError(f"{min(found)} is of experts that are drawn, and {routing} has them recorded: leave it out")
    return read_routing(routing, held, ranks=ranks, token_size=size, ranks_per_node=ranks_per_node)


def expert_collective(topology: Topology, name: str, **settings: Any) -> Collective:
    """A dispatch or combine of a selected topology; settings: see `project_experts`."""
    settings["dtype"] = settings.get("dtype") or ("fp8" if name == DISPATCH else "bf16")
    each = len(nodes_of(topology, topology.members)[0])
    return Collective(name, routing=routing_of(topology.ranks, each, **settings))


def project_experts(machine: MachineLike, wanted: CollectiveLike = DISPATCH, **settings: Any) -> ExpertTimes:
    """Project the time of a dispatch or a combine: with libraries, on the links alone, and at least.

    Parameters
    ----------
    machine : str, path or Topology
        As for `project`.
    wanted : str or Collective
        ``dispatch`` or ``combine``.
    settings
        ``routing``: the experts of every token, or a file that `read_routing` reads; by default drawn.
        ``hidden`` and ``dtype``: elements of a token, 7,168, and ``fp8``, ``bf16``, ``fp16`` or ``fp32``; by default
        fp8 for a dispatch, with a scale in 32 bits for every 128 elements, and bf16 for a combine.
        ``placement``: of the experts in a file. Of what is drawn, ``tokens``, ``experts``, ``top_k``,
        ``skew``, ``hot``, ``node_limit`` and ``seed``, as `draw_routing` takes them.

    Returns
    -------
    ExpertTimes
        What libraries take by published figures, a copy a node and other ways on the links, the floor with
        its certificate, and what would save.

    Raises
    ------
    InputError
        For a routing of another number of ranks, and what cannot be drawn.

    Examples
    --------
    >>> import blinksim as bs
    >>> limited = bs.project_experts(bs.load("hgx-h100", nodes=8), tokens=256, node_limit=4)
    >>> limited.time_s < bs.project_experts(bs.load("hgx-h100", nodes=8), tokens=256).time_s
    True
    """
    topology = as_topology(machine).selected()
    if isinstance(wanted, str):
        wanted = expert_collective(topology, wanted, **settings)
    terms = {name: terms_of(topology, wanted, name) for name in (A_NODE, A_RANK, DIRECT)}
    quickest = sorted(terms, key=lambda name: sum(term.time_s for term in terms[name]))
    ways = tuple(Way.of(topology, wanted, name) for name in quickest)
    most, size = bound(topology, wanted), wanted.routed.size
    again = spread_at(EVERY, EVERY, "", AGAIN, scope_of(topology.nodes, topology.ranks), size)
    takes = taken(topology, wanted, most.time(size), (again.low, again.high))
    return ExpertTimes(most, takes, ways, terms, savings(topology, wanted, settings))


def terms_of(topology: Topology, wanted: Collective, name: str) -> tuple[Term, ...]:
    """What the time of a way is made of, by `blinksim.timing.alpha_beta`: its steps, with a message a pair of ranks."""
    routing, places, rows = wanted.routed, topology.member_places, []
    for sent in hops(topology, wanted, name):
        if sent.any():
            src, dst = np.nonzero(sent)
            ends = places[src], places[dst]
            use, messages = (uses_of_messages(topology, *ends, often)[0].on() for often in (sent[src, dst], None))
            rows.append(step_row(topology, use, routing.token_size / routing.size, messages.whole))
    load, alpha, each, longest = zip(*rows, strict=True)
    return cost(StepLoads(wanted, 0, resources(topology), load, alpha, each, longest), routing.size).terms
