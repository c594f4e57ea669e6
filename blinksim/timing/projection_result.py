"""Projections: a time with its terms, its bottleneck, and the bound for any algorithm."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf, isclose, nextafter
from typing import Any

from blinksim.bounds.bound_result import BY_SUMS
from blinksim.collective import Collective, busbw_factor
from blinksim.formats.shipped.known_gpus import UNTOLD
from blinksim.graphs.connectivity import grouped
from blinksim.results import Rate, Rates, Result, Term, count, keyed, names, table
from blinksim.textio.link_rates import RATES
from blinksim.textio.text_files import read_words
from blinksim.topology.cluster import on_every_node
from blinksim.topology.elements import ON_NODE, taking_part, titled
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, format_rate, format_size, format_size_about, format_time


@dataclass(frozen=True)
class Ceiling(Rate):
    """An upper bound on algbw, bytes/s (`blinksim.bounds.quick`): why it holds, and for what.

    assumes: what schedules and switches may do; empty if it holds for every schedule. scope: the kind of
    certificate. granted: what the bound lets the machine do beyond its description, because the answer beside
    it takes it so. in_network: what no algorithm exceeds that has switches do what they can, if that is more;
    and what they then may. searched: false if sums alone gave it, so that a search might find a tighter one.
    rates: of the links that it holds for.
    """

    rate: Fraction
    words: str
    assumes: str = ""
    scope: str = ""
    granted: tuple[str, ...] = ()
    in_network: tuple[Fraction, str] | None = None
    searched: bool = True
    rates: str = ""


# Details of timed programs in a projection that hold for all sizes, as `keyed` takes them.
OF_RUNS = "calls? constants?"


# What models of links alone count, as `Projection.basis` says it.
_COUNTED = read_words("model")


@dataclass(frozen=True)
class LeastTime:
    """Seconds that any schedule takes at least on the links alone (`blinksim.bounds.time`): why, and what it assumes.

    kind: the theorem that gives it.
    """

    time_s: float
    words: str
    assumes: str
    kind: str


_BUSY = "bottleneck_busy", "bottleneck_starts"
# What terms are limited by that are not of links.
NO_LINKS = ("alpha", "gamma", "launch")
# What is busy for more of the time than this would be the bottleneck if nothing else were.
_TIED = 0.9
# Algorithms that are left out for the same reason and listed by name.
_MOST_NAMES = 6


@dataclass(frozen=True)
class Projection(Rates, Result):
    """The projected time of one collective on one machine, for one size.

    Attributes
    ----------
    machine, members, relays, links, rates
        The machine and who takes part.
    collective, size, algorithm
        What runs; the size in bytes.
    model : str
        What timed it.
    terms : tuple of Term
        Seconds that add up to ``time_s``, each with its limit.
    bottleneck : str
        What sets the time.
    details : mapping
        What the model has to add (steps, pieces, presets), with units in the keys.
    bound : Ceiling, optional
        What no algorithm exceeds.
    least : LeastTime, optional
        What no algorithm falls below, where the model counts the links alone.
    grants : tuple of str
        What switches may do beside forwarding, because the algorithm has them do some of it.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.project("dgx1-v100", "allreduce", "256MiB", algorithm="ring")
    >>> sum(term.time_s for term in found.terms) == found.time_s
    True
    >>> found.busbw_GBps < found.bound.rate_GBps * 7 / 4
    True
    """

    machine: str
    collective: Collective
    members: tuple[str, ...]
    relays: tuple[str, ...]
    links: tuple[str, ...]
    rates: str
    size: int
    model: str
    algorithm: str
    terms: tuple[Term, ...]
    bottleneck: str
    details: Mapping[str, Any] = field(default_factory=dict)
    bound: Ceiling | None = None
    least: LeastTime | None = None
    grants: tuple[str, ...] = ()

    @property
    def time_s(self) -> float:
        return sum(term.time_s for term in self.terms)

    @property
    def algbw(self) -> float:
        return self.size / self.time_s

    @property
    def busbw(self) -> float:
        return self.algbw * float(busbw_factor(self.collective.name, len(self.members)))

    def longer(self, *terms: Term) -> Projection:
        """This projection with further terms, in which its links are idle."""
        more, details = replace(self, terms=(*self.terms, *terms)), dict(self.details)
        part = self.time_s / more.time_s if terms else 1.0
        if "busy_by_class" in details:
            details |= {key: part * details[key] for key in _BUSY if key in details}
            details["busy_by_class"] = {kind: busy * part for kind, busy in details["busy_by_class"].items()}
        return replace(more, details=details)

    def raised(self, time_s: float, why: str, limit: str = "") -> Projection:
        """This projection with no less than so many seconds. why, limit: of the term that is added for it."""
        # The sum may be rounded down.
        missing = max(0.0, nextafter(time_s, inf) - self.time_s)
        *others, last = self.terms
        if missing <= 1e-9 * time_s:  # but rounding
            return replace(self, terms=(*others, replace(last, time_s=last.time_s + missing)))
        return self.longer(Term(why, missing, limit))

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints; every key with a unit carries it."""
        found = keyed(self, "machine collective=collective.name")
        found |= {"root": self.collective.root} if self.collective.rooted else {}
        found |= keyed(self, "@Projection") | {"terms": [keyed(term, "name time_s limit") for term in self.terms]}
        found["bottleneck"] = self.bottleneck
        if self.bound is not None:
            found |= keyed(self.bound, "@Projection.bound")
            if self.bound.in_network:
                found["ceiling_in_network_exact"] = exact_GBps(self.bound.in_network[0])
        if self.least is not None:
            found |= keyed(self.least, "@Projection.least")
        return found | dict(self.details)

    def rows(self) -> list[dict[str, Any]]:
        """The terms: name, time_s, limit, share."""
        whole = self.time_s or 1.0
        return [keyed(term, "name time_s limit share", share=term.time_s / whole) for term in self.terms]

    @property
    def pick(self) -> str:
        """NCCL's algorithm and protocol; empty unless the projection is by NCCL's tuner."""
        return f"{self.details.get('nccl_algorithm', '')} {self.details.get('nccl_protocol', '')}".strip()

    @property
    def expects(self) -> str:
        """The times that NCCL's tuner expects of all that it could take, of which it takes the least."""
        expected = self.details.get("nccl_expects_s", {})
        return "; ".join(f"{name} {format_time(time_s)}" for name, time_s in expected.items())

    @property
    def launches(self) -> bool:
        """True if the time counts that a program is launched on the GPUs."""
        return bool(self.executor) or any(term.limit == "launch" and term.time_s > 0 for term in self.terms)

    @property
    def runs_as(self) -> str:
        """What the time counts, and what runs it, in words."""
        return "as a program on the GPUs" if self.launches else "on the links, no launches counted"

    @property
    def executor(self) -> str:
        """How the timed program is cut; empty for models that time no programs."""
        return ""

    @property
    def basis(self) -> list[tuple[str, str]]:
        """Contents of the model and the data it rests on, as labels and texts."""
        return [("model", self.model + _COUNTED.get(self.model, ""))]

    @property
    def conditions(self) -> list[tuple[str, str]]:
        """Conditions for all sizes, as labels and texts; none if the model's name says it all."""
        return []

    @property
    def limit(self) -> tuple[str, float, str]:
        """What sets the time, for which share, and what counts: link classes, or a term of no links."""
        top, classes = max(self.terms, key=lambda term: term.time_s), self.details.get("busy_by_class")
        if not classes or (top.limit in NO_LINKS and 2 * top.time_s > self.time_s):
            return top.name, top.time_s / self.time_s, ""
        most = max(classes.values())
        # Of as many per cent as are said.
        tied = (kind for kind, share in classes.items() if round(100 * share) == round(100 * most))
        starts = round(100 * self.details.get("bottleneck_starts", 0.0))
        counts = f" ({starts} % for starts of messages)" if starts else ""
        return " and ".join(tied), most, " by data sheets" if "busy_rates" in self.details else counts

    @property
    def bottleneck_words(self) -> str:
        """The bottleneck, and the share of the time that it is busy."""
        busy = self.details.get("bottleneck_busy")
        if busy is None or not self.time_s:
            return self.bottleneck
        words = f"{self.bottleneck}, busy {100 * busy:.0f} % of the time"
        what, share, counts = self.limit
        if what in (term.name for term in self.terms if term.limit in NO_LINKS):
            return f"{what}, {100 * share:.0f} % of the time; of the links, {words}"
        if "busy_rates" in self.details:
            return f"{what}, busy {100 * share:.0f} % of the time{counts}; at {self.rates} rates {words}"
        words += counts
        _, *others = self.details.get("busy_by_class", {}).items() or [()]
        tied = [f"{kind} {100 * share:.0f} %" for kind, share in others if share > _TIED]
        return f"{words}, and {' and '.join(tied)}: all must be faster" if tied else words

    def row(self) -> dict[str, Any]:
        """The projection as a row of a table that compares several."""
        found = keyed(self, "algorithm time_s algbw_GBps=algbw busbw_GBps=busbw bottleneck rates")
        return found | ({"time_bound_s": self.least.time_s} if self.least else {})

    @property
    def taking_part(self) -> str:
        """As `Topology.taking_part`, of an answer that knows its nodes."""
        nodes, unit = self.details["nodes"], self.details.get("unit", "GPU")
        return taking_part(len(self.members), self.machine, nodes, unit, self.members[0])

    def sentence(self) -> str:
        """The answer in one line."""
        nodes = len({found[1] for name in self.members if (found := ON_NODE.match(name))})
        what = f"{self.collective} of {format_size_about(self.size)} on {titled(self.machine, nodes)}"
        rates = f"algbw {format_rate(self.algbw)}, busbw {format_rate(self.busbw)}"
        return f"{what} takes {format_time(self.time_s)}: {rates} ({self.algorithm}, {self.model})"

    def text(self) -> str:
        """The sentence, the terms as a table, and what else is known."""
        return "\n".join((self.sentence(), "", self.terms_table(), "", *labelled(self.facts())))

    def terms_table(self) -> str:
        """The terms with their shares, and their sum."""
        time = self.time_s or 1.0
        rows = [(term.name, format_time(term.time_s), f"{100 * term.time_s / time:.1f} %") for term in self.terms]
        return table(("term", "time", "share"), [*rows, ("total", format_time(self.time_s), "100.0 %")])

    def facts(
        self, edits: Sequence[str] = (), rivals: int | None = None, left_out: Mapping[str, str] | None = None
    ) -> list[tuple[str, str]]:
        """The lines below the table of terms, as labels and texts.

        edits: of the machine. rivals: how many algorithms were compared to find this one, None if it was
        named. left_out: the reasons of those that were not.
        """
        lines = [("bottleneck", self.bottleneck_words), *self._at_most(), *self.floor()]
        lines.append(("ranks", f"{len(self.members)}: {names(self.members)}"))
        lines += [("relays", names(self.relays))] if self.relays else []
        lines.append(("links", f"{', '.join(self.links)} at {rates_of_links(self.rates, self.links)} rates"))
        for edit in edits:
            idle = [kind for kind in self.details.get("links_left_out", ()) if kind in edit.split()]
            lines.append(("edited", f"{edit}; changes nothing: no term has {idle[0]}" if idle else edit))
        if rivals is not None and "holds_from_bytes" not in self.details:
            others = f", best of {rivals}; algorithm=all ranks them" if rivals > 1 else ""
            lines.append(("algorithm", f"{self.algorithm}{others}"))
            lines += [("left out" if not place else "", words) for place, words in enumerate(left_out_words(left_out))]
        if "loads_s" in self.details:
            alone = format_time(self.details["loads_s"])
            lines.append(("model", f"every piece at every link; the loads alone need {alone}"))
        if least := self.details.get("holds_from_bytes"):
            lines.append(("model", f"bandwidths only, no latencies: for {format_size(least)} and more"))
        if self.details.get("pieces", 1) > 1:
            deep = count(self.details["steps"], "hop")
            lines.append(("pieces", f"{self.details['pieces']} per chunk, {deep} deep"))
        return [*lines, *self.own_facts]

    @property
    def own_facts(self) -> list[tuple[str, str]]:
        """What a model adds to `facts`, as labels and texts."""
        return []

    def _at_most(self) -> list[tuple[str, str]]:
        """The bound, why it holds, and what it assumes."""
        if self.bound is None:
            return []
        reached = 100 * self.algbw / float(self.bound.rate)
        if round(reached, 1) > 100:  # at rates that were measured of links, which programs may exceed
            return []
        at = f" at {rates_of_links(self.bound.rates, self.links)} rates" * (self.rates != "nominal")
        most = f"{format_rate(self.bound.rate)} algbw{at}, of which this is {reached:.1f} %:"
        lines = [("at most", most), ("", self.bound.words)]
        lines += [("", f"it assumes: {self.bound.assumes}")] if self.bound.assumes else []
        lines += [] if self.bound.searched else [("", BY_SUMS)]
        if self.bound.in_network:
            rate, words = self.bound.in_network
            lines.append(("", f"where {words}, at most {format_rate(rate)}"))
        return lines

    def floor(self) -> list[tuple[str, str]]:
        """The least time for this size, its reason and its assumptions, each with a label; else empty."""
        if self.least is None:
            return []
        share = 100 * self.least.time_s / (self.time_s or 1.0)
        short = ", which leaves something out" * (round(share, 1) > 100)
        words = f"{format_time(self.least.time_s)}, {share:.1f} % of this time{short}:"
        lines = [("at least", words), ("", self.least.words)]
        said = not self.least.assumes or (self.bound is not None and self.least.assumes == self.bound.assumes)
        return [*lines, *([] if said else [("", f"it assumes: {self.least.assumes}")])]

    def __repr__(self) -> str:
        return f"<Projection {self.sentence()}\n  bottleneck: {self.bottleneck}; rates: {self.rates}>"


def rates_of_links(rates: str, links: Collection[str]) -> str:
    """A table of rates, and which of these links it leaves out, such as ``measured (efa: nominal)``."""
    table, _, left_out = rates.removesuffix(": nominal)").partition(" (")
    nominal = [kind for kind in left_out.split(", ") if kind in links]
    return f"{table} ({', '.join(nominal)}: nominal)" if nominal else table


def rates_of(part: Topology) -> str:
    """As `rates_of_links`, and which are guessed: no file says how fast CPUs are joined, nvidia-smi not PCIe."""
    untold = next((kinds.split() for source, kinds in UNTOLD.items() if part.source.startswith(source)), [])
    guessed = [kind for kind in part.link_classes if kind in untold]
    if guessed and part.rates in RATES:
        return f"{part.rates} ({', '.join(guessed)}: guessed)"
    return rates_of_links(part.rates, part.link_classes)


# What is assumed of links of which a recorded machine does not say how fast they are, and what does.
_GUESSED = read_words("guess")


def guesses(rates: str) -> str:
    """What a bound rests on where links are guessed (`rates_of`), and which file tells; else empty."""
    kinds = rates.partition(" (")[2].removesuffix(": guessed)").split(", ")
    assumed = ", ".join(_GUESSED[kind] for kind in kinds if rates.endswith("guessed)"))
    return f", if what is assumed is right: {assumed}" if assumed else ""


def links_at(part: Topology) -> str:
    """The links that take part, and at which rates."""
    return f"{', '.join(part.link_classes)} at {rates_of(part)} rates"


def of_part(part: Topology, nodes: int = 1, **more: Any) -> dict[str, Any]:
    """Attributes of a `Projection` that a topology gives, and `more` of them, also in place of these.

    nodes: how many nodes like this one its fabric joins.
    """
    own = {name: getattr(part, name) for name in ("members", "relays", "rates")}
    own |= {"machine": part.name, "links": part.link_classes, **more}
    if nodes > 1 and part.fabric is not None:
        own["members"] = on_every_node(own["members"], nodes)
        own["links"] = tuple(dict.fromkeys((*own["links"], part.fabric.kind)))
    return own


class NcclProjection(Projection):
    """The prediction of NCCL's tuner for one of its algorithms and protocols."""

    @property
    def own_facts(self) -> list[tuple[str, str]]:
        """What NCCL runs, over which channels, how long it takes, and what was assumed."""
        details, orders = self.details, self.details["channel_orders"]
        takes = f"{details['nccl_algorithm']}, {details['nccl_protocol']} protocol"
        expected_s = details.get("nccl_expects_s", {}).get(self.pick, self.time_s)
        planned = "; at the rates that it plans by, not these" * (not isclose(expected_s, self.time_s))
        return [
            ("weakest", details.get("weakest", "")),
            (f"{details['library']} takes", f"{takes}, by figures of NCCL {details['nccl_version']}"),
            ("expects", self.expects + planned),
            ("channel 0", names(orders[0]) if orders else ""),
            *(("assumed", text) for text in details["assumed"]),
        ]


def left_out_words(left_out: Mapping[str, str] | None) -> list[str]:
    """Who was left out and why, those with the same reason together."""
    by_reason = grouped((reason, name) for name, reason in (left_out or {}).items())
    found = (
        (reason, ", ".join(listed[:_MOST_NAMES]), len(listed) - _MOST_NAMES) for reason, listed in by_reason.items()
    )
    return [f"{first}{f' and {more} more' * (more > 0)} ({reason})" for reason, first, more in found]


def labelled(lines: Iterable[tuple[str, str]], width: int = 11) -> list[str]:
    """Labels and texts in two columns; no line for an empty text."""
    return [f"  {label:<{width}} {text}" for label, text in lines if text]


def part_lines(topology: Topology, more: str = "", edits: Sequence[str] = (), rates: str = "") -> list[str]:
    """Who takes part, over which links at which rates, after which edits: the lines under a table.

    rates: in words, where they are not the topology's.
    """
    links = f"{', '.join(topology.link_classes)} at {rates}" if rates else links_at(topology)
    return [
        f"  ranks {topology.ranks}: {names(topology.members)}",
        *([f"  relays {names(topology.relays)}"] if topology.relays else []),
        f"  links {links}{more}",
        *(f"  edited {edit}" for edit in edits),
    ]
