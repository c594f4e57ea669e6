"""How long a dispatch or a combine of tokens takes with libraries, on the links by their ways, and at least."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blinksim import data_files
from blinksim.bounds.bound_result import BoundResult
from blinksim.bounds.compute import bound
from blinksim.bounds.experts import A_NODE, A_RANK, DIRECT, Way, draw_routing, hops, read_routing, token_bytes
from blinksim.collective import DISPATCH, Collective, CollectiveLike, busbw_factor
from blinksim.errors import InputError
from blinksim.machines import MachineLike, as_topology
from blinksim.results import Result, Term, keyed
from blinksim.schedule.loads import StepLoads, resources, step_row, uses_of_messages
from blinksim.textio.text_files import read_rows
from blinksim.timing.alpha_beta import cost
from blinksim.timing.measured.library_rates import AGAIN, EVERY, scope_of, spread_at
from blinksim.timing.projection_result import labelled
from blinksim.topology.cluster import nodes_of
from blinksim.topology.elements import titled
from blinksim.topology.graph import Topology
from blinksim.traffic import Routing
from blinksim.units import format_rate, format_time


@dataclass(frozen=True, repr=False)
class ExpertTimes(Result):
    """A dispatch or a combine: with libraries, on the links (bytes, latencies, starts), and at least.

    Attributes
    ----------
    bound : BoundResult
        What no schedule exceeds, with its certificate.
    takes : mapping
        What libraries take by published figures: ``time_s``, between ``interval_low_s`` and
        ``interval_high_s`` in 8 of 10 runs, with which ``library``, and of which ``origin`` that is.
    ways : tuple of Way
        What libraries do, quickest first: a copy of a token for every node that wants it, one for every rank on the
        same rails, and one that goes straight to every rank.
    terms : mapping
        What the time of each of the ways is made of, by its name.
    saved : mapping
        What would take less time, in words, and the part of the time that it saves, of a sample of tokens.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.project_experts(bs.load("hgx-h100", nodes=2), "dispatch", tokens=512)
    >>> found.floor_s <= found.could_s <= found.time_s, found.ways[0].limit
    (True, 'ib')
    """

    bound: BoundResult
    takes: Mapping[str, Any]
    ways: tuple[Way, ...]
    terms: Mapping[str, tuple[Term, ...]]
    saved: Mapping[str, float]

    @property
    def routing(self) -> Routing:
        """The experts of every token."""
        return self.bound.collective.routed

    @property
    def time_s(self) -> float:
        """Seconds with libraries."""
        return float(self.takes["time_s"])

    @property
    def could_s(self) -> float:
        """Seconds by the quickest way on the links."""
        return self.seconds(self.ways[0])

    def seconds(self, way: Way) -> float:
        """Of one of the ways: of its bytes, latencies and starts."""
        return sum(term.time_s for term in self.terms[way.name])

    @property
    def floor_s(self) -> float:
        """Seconds that no schedule falls below."""
        return self.bound.time(self.routing.size)

    @property
    def logical(self) -> float:
        """Bytes/s that ranks end with, on average: a copy for every rank, also of what it keeps."""
        routing = self.routing
        return float(routing.tokens.sum()) * routing.token_size / routing.ranks / self.time_s

    @property
    def wire(self) -> float:
        """Bytes/s on the busiest port of a node, or of a GPU on a single node."""
        return self.ways[0].bytes[self.ways[0].port] / self.time_s

    def rows(self) -> list[dict[str, Any]]:
        """One row for every way."""
        return [keyed(way, "@ExpertTimes.rows", time_s=self.seconds(way)) for way in self.ways]

    def to_dict(self) -> dict[str, Any]:
        """JSON: the times, the ways with the bytes on their busiest links, what would save, and the bound."""
        first, (_, tokens, top_k) = self.ways[0], self.routing.experts.shape
        values: dict[str, Any] = {"model": "links", "algorithm": first.name, "bottleneck": first.limit}
        values["terms"] = [keyed(term, "name time_s limit") for term in self.terms[first.name]]
        values |= {"ways": self.rows(), "saved": dict(self.saved), "tokens": tokens, "top_k": top_k}
        values |= {"experts": len(self.routing.placement), "bound": self.bound.to_dict()}
        algbw, factor = self.routing.size / self.time_s, busbw_factor(DISPATCH, self.routing.ranks)
        values |= {"algbw_GBps": algbw / 1e9, "busbw_GBps": algbw * float(factor) / 1e9}
        return keyed(self, "@ExpertTimes") | dict(self.takes) | values

    def sentence(self) -> str:
        """The answer in one line."""
        routing, topology = self.routing, self.bound.topology
        tokens, k = routing.experts.shape[1:]
        nodes = f"{topology.nodes} x " if topology.nodes > 1 else ""
        where = f"{topology.ranks} GPUs of {nodes}{topology.name}"
        each = f"{tokens:,} token{'s' * (tokens > 1)} a GPU"
        what = f"{each} of {routing.token_size:,} B, top {k} of {len(routing.placement)}"
        return f"{self.bound.collective} of {what}, {where}: {format_time(self.time_s)} with {self.takes['library']}"

    def text(self, why: bool = False) -> str:
        """What libraries take, the quickest way on the links, the floor, what limits and would save.

        why: also the terms of that way, and the certificate of the floor.
        """
        topology, first, takes = self.bound.topology, self.ways[0], self.takes
        terms, by = self.terms[first.name], f"by {first.name} at {topology.rates} rates, on the links"
        worst = max(terms, key=lambda term: term.time_s)
        limit = worst.limit if worst.limit in first.bytes else worst.name
        busiest = ", ".join(f"{kind} {most / 1e6:.4g} MB" for kind, most in first.bytes.items())
        apart = [way for way in self.ways if (way.bytes, self.terms[way.name]) != (first.bytes, terms)]
        others = ", ".join(f"{way.name} {format_time(self.seconds(way))}" for way in apart)
        rates = f"logical {format_rate(self.logical)} a GPU, wire {format_rate(self.wire)} of {first.port}"
        low, high = (format_time(takes[f"interval_{end}_s"]) for end in ("low", "high"))
        facts = [("interval", f"{low} to {high}, 8 in 10 runs; {rates}"), ("from", takes["origin"])]
        facts.append(("could take", f"{format_time(self.could_s)} {by}, no launches, no sorting of tokens"))
        facts.append(("", ", ".join(f"{term.name} {format_time(term.time_s)}" for term in terms) * why))
        facts.append(("cannot take less", f"{format_time(self.floor_s)}, whatever the schedule"))
        facts += [("", self.bound.certificate.words(topology) * why), ("other ways", others)]
        saved = ", ".join(f"{what} {100 * part:.3g} %" for what, part in self.saved.items())
        facts += [("limited by", f"{limit}; busiest links {busiest}"), ("would save", saved)]
        return "\n".join((self.sentence(), *labelled(facts, 17)))


# So many published figures of one node, or of several, the nearest in floor, tell of others: between the least
# and the most of their ratios to it are 8 in 10 of left-out ones (tests/test_expert_figures).
_NEAR = 10
_JOB = "what", "machine", "nodes", "gpus", "tokens", "top_k", "token_bytes"


def taken(
    topology: Topology,
    wanted: Collective,
    floor_s: float,
    again: tuple[float, float],
    told: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """`ExpertTimes.takes`: the floor times what published figures of this job, or near ones, are above it.

    Near ones are carried to this floor along a line, of logarithms; fewer tokens than any figure is of take
    as long beyond their floor as those. again: what other rigs take for the same job, of what one does.
    told: in place of all figures, by the columns of ``models/experts.csv``.
    """
    told = told or read_rows(data_files.folder("models") / "experts.csv", dict, "figure of experts")
    routing, nodes = wanted.routed, topology.nodes
    job = wanted.name, topology.name, nodes, topology.ranks, *routing.experts.shape[1:], routing.token_size
    known = [row for row in told if (row["nodes"] == "1") == (nodes == 1)]
    same = [row for row in known if [row[key] for key in _JOB] == [*map(str, job)] and not topology.edits]
    floors = np.array([1e-6 * float(row["floor_us"]) for row in known])
    nearest = np.argsort(abs(np.log(floors / floor_s)), kind="stable")[:_NEAR]
    near = same or [known[place] for place in nearest]
    there, above = np.log([[float(row["floor_us"]), float(row["published_us"])] for row in near]).T
    above, held = above - there, max(floor_s, floors.min())
    if not same:
        above += np.polyfit(there, above, 1)[0] * (np.log(1e6 * min(held, floors.max())) - there)
    low, time_s, high = np.quantile(floor_s + np.expm1(np.maximum(above, 0)) * held, (0, 0.5, 1)).tolist()
    library, first = "libraries", near[0]
    such = f"{first['what']} with {first['library']} on {titled(first['machine'], int(first['nodes']))}"
    origin = f"an estimate: the floor times what {_NEAR} published figures are above theirs, such as {such}"
    if same:
        low, high = min(low, again[0] * time_s), max(high, again[1] * time_s)
        library = " or ".join(row["library"] for row in same)
        shown = " and ".join(f"{float(row['published_us']):,.0f} us" for row in same)
        origin = f"published for as many tokens on this machine: {shown}"
    ends = {"interval_low_s": max(floor_s, low), "interval_high_s": high}
    return {"time_s": time_s, **ends, "library": library, "origin": origin}


# Tokens of all ranks that savings are judged by, and the limit of nodes a token that is tried.
_SAMPLED, _NODES, _DRAWN = 2**16, 4, ("experts", "top_k", "skew", "hot", "seed")


def savings(topology: Topology, wanted: Collective, settings: Mapping[str, Any]) -> dict[str, float]:
    """The parts of the time that fewer nodes a token and more replicas save, of a sample of the tokens.

    settings: what the routing was drawn with, if it was.
    """
    routing, each = wanted.routed, len(nodes_of(topology, topology.members)[0])
    if topology.nodes == 1 or topology.ranks % each:
        return {}
    ids = routing.experts[:, : max(1, _SAMPLED // topology.ranks)]
    alike: Any = {"token_size": routing.token_size, "ranks_per_node": each}
    cases = {"": Routing(ids, routing.placement, **alike)}
    if settings.get("routing") is None and not settings.get("node_limit") and topology.ranks > _NODES * each:
        drawn: Any = {name: settings[name] for name in _DRAWN if settings.get(name) is not None}
        with suppress(InputError):  # experts that are not equally many in every node
            drawn |= {"tokens": ids.shape[1], "node_limit": _NODES}
            cases[f"at most {_NODES} nodes a token"] = draw_routing(topology.ranks, **alike, **drawn)
    # One more expert on every rank: the most wanted on every node.
    placement = [*map(list, routing.placement)]
    hottest = np.argsort(-np.bincount(ids[ids >= 0], minlength=len(placement)))[:each]
    for place, expert in enumerate(hottest.tolist()):
        placement[expert] += range(place, topology.ranks, each)
    cases[f"the {each} hottest experts on every node"] = Routing(ids, placement, **alike)
    ways = {what: Way.of(topology, replace(wanted, routing=case), A_NODE) for what, case in cases.items()}
    return {what: 1 - way.time_s / ways[""].time_s for what, way in ways.items() if what}


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
