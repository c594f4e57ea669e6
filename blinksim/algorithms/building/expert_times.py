"""The time of a dispatch or combine by the ways that libraries go, beside the floor, and what would save."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blinksim.bounds.bound_result import BoundResult
from blinksim.bounds.experts import A_NODE, Way, draw_routing
from blinksim.collective import DISPATCH, Collective, busbw_factor
from blinksim.errors import InputError
from blinksim.results import Result, Term, keyed
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology
from blinksim.traffic import Routing
from blinksim.units import format_rate, format_time


@dataclass(frozen=True, repr=False)
class ExpertTimes(Result):
    """A dispatch or a combine: with libraries, on the links (bytes, latencies, starts of messages), and at least.

    Attributes
    ----------
    bound : BoundResult
        What no schedule exceeds, with its certificate.
    takes : mapping
        What libraries take by published figures: ``time_s``, between ``interval_low_s`` and ``interval_high_s`` in 8 of
        10 runs, with which ``library``, and of which ``origin`` that is.
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
        keys = "way=name time_s bandwidth_s=time_s limited_by=limit bytes"
        return [keyed(way, keys, time_s=self.seconds(way)) for way in self.ways]

    def to_dict(self) -> dict[str, Any]:
        """JSON: the times, the ways with the bytes on their busiest links, what would save, and the bound."""
        first, (_, tokens, top_k) = self.ways[0], self.routing.experts.shape
        values: dict[str, Any] = {"model": "links", "algorithm": first.name, "bottleneck": first.limit}
        values["terms"] = [keyed(term, "name time_s limit") for term in self.terms[first.name]]
        values |= {"ways": self.rows(), "saved": dict(self.saved), "tokens": tokens, "top_k": top_k}
        values |= {"experts": len(self.routing.placement), "bound": self.bound.to_dict()}
        algbw, factor = self.routing.size / self.time_s, busbw_factor(DISPATCH, self.routing.ranks)
        values |= {"algbw_GBps": algbw / 1e9, "busbw_GBps": algbw * float(factor) / 1e9}
        keys = "collective=bound.collective.name size_bytes=routing.size time_s cannot_take_less_s=floor_s"
        keys += " logical_GBps=logical wire_GBps=wire token_bytes=routing.token_size could_take_s=could_s"
        return keyed(self, keys) | dict(self.takes) | values

    def sentence(self) -> str:
        """The answer in one line."""
        routing, topology = self.routing, self.bound.topology
        tokens, k = routing.experts.shape[1:]
        nodes = f"{topology.nodes} x " if topology.nodes > 1 else ""
        where = f"{topology.ranks} GPUs of {nodes}{topology.name}"
        each = f"{tokens:,} token{'s' * (tokens > 1)} a GPU"
        what = f"{each} of {routing.token_size:,} B, top {k} of {len(routing.placement)}"
        return f"{self.bound.collective} of {what}, {where}: {format_time(self.time_s)} with {self.takes['library']}"

    def text(self) -> str:
        """What libraries take, the ways on the links, the floor, and what limits and would save: in a dozen lines."""
        topology, first, takes = self.bound.topology, self.ways[0], self.takes
        terms, others = self.terms[first.name], list[tuple[str, str]]()
        for way in self.ways:
            loads = ", ".join(f"{kind} {most / 1e6:.4g} MB" for kind, most in way.bytes.items())
            if way is first:
                others.append(("busiest links", loads))
            elif (way.bytes, self.terms[way.name]) != (first.bytes, terms):
                others.append((way.name, f"{format_time(self.seconds(way))}; busiest links {loads}"))
        worst = max(terms, key=lambda term: term.time_s)
        limit = worst.limit if worst.limit in first.bytes else worst.name
        floor = f"{format_time(self.floor_s)}, whatever the schedule"
        rates = f"logical {format_rate(self.logical)} a GPU, wire {format_rate(self.wire)} of {first.port}"
        ends = (
            f"{format_time(takes['interval_low_s'])} to {format_time(takes['interval_high_s'])}, 8 in 10 runs; {rates}"
        )
        by = f"{format_time(self.could_s)} by {first.name} at {topology.rates} rates, on the links"
        facts = [("interval", ends), ("from", takes["origin"])]
        facts.append(("could take", f"{by}, no launches, no sorting of tokens"))
        facts.append(("", ", ".join(f"{term.name} {format_time(term.time_s)}" for term in terms)))
        facts += [("cannot take less", floor), ("", self.bound.certificate.words(topology)), *others]
        saved = ", ".join(f"{what} {100 * part:.3g} %" for what, part in self.saved.items())
        facts += [("limited by", limit), ("would save", saved)]
        return "\n".join((self.sentence(), *(f"  {what:<17} {words}" for what, words in facts if words)))


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
