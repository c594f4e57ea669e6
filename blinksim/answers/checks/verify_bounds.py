"""Is what `bound --json` printed right? Everything is derived anew from the machine and the certificates' witnesses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from blinksim import budget
from blinksim.answers.checks.file_verdict import FileVerdict
from blinksim.answers.checks.verify_times import judge_times
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, FileError, InputError
from blinksim.question import Question
from blinksim.textio.text_files import STDIN
from blinksim.textio.text_table import count
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps

if TYPE_CHECKING:
    from fractions import Fraction

    from blinksim.bounds import Bound
    from blinksim.traffic import Traffic

# Seconds that a schedule may take which shows that a bound is attained.
_PATIENCE = 20.0
_NAMES = ("members", "relays", "links", "edits")


def about_part(topology: Topology, collective: Collective) -> dict[str, Any]:
    """The part of a machine and the collective that a file is about, as JSON has them."""
    return {
        "machine": topology.name,
        "collective": collective.name,
        "members": list(topology.members),
        "relays": list(topology.relays),
        "links": list(topology.default_links()),
        "rates": topology.rates,
    }


def verify_bounds(file: str, document: dict[str, Any], question: Question) -> FileVerdict:
    """The answer for what `bound --json` printed; raises `FileError` for what cannot be such an answer."""
    from blinksim.bounds import BoundResult
    from blinksim.bounds.certificates import shown
    from blinksim.bounds.claims import compare, judge

    topology, wanted, shares = _problem(file, document, question)
    entries = document["bounds"]
    if not isinstance(entries, list) or not entries:
        raise FileError(file, "bounds is not a list of bounds")
    wrong, unproved, facts, bounds = list[str](), list[str](), list[str](), list["Bound"]()
    attained = _attained(topology, wanted)
    for entry in entries:
        if not isinstance(entry, dict) or not {"scope", "rate_exact", "certificate"} <= set(entry):
            raise FileError(file, "an entry of bounds lacks scope, rate_exact or certificate")
        found = judge(entry, topology, wanted, shares)
        name = found.bound.scope if found.bound else shown(entry["scope"]).strip("'")
        wrong += [f"{name}: {text}" for text in found.wrong]
        unproved += [f"{name}: {text}" for text in found.unproved]
        if found.bound is None:
            continue
        bounds.append(found.bound)
        rate, reached = exact_GBps(found.bound.rate), ""
        if found.bound.exact and not found.wrong:
            if not shares and attained(found.bound):
                reached = ", attained"
            else:
                unproved.append(f"{name}: not proved: that some schedule attains {rate} GB/s ({_why(topology)})")
        facts.append(f"{name}: {rate} GB/s{reached}; {found.bound.certificate.words(topology)}")
    times, more_facts, more_wrong, more_unproved = judge_times(file, document, topology, wanted)
    wrong += more_wrong
    unproved += more_unproved
    facts += more_facts
    if len(bounds) == len(entries):
        result = BoundResult(
            topology, wanted, tuple(bounds), shares, searched=_searched(document, topology, wanted, bounds)
        )
        own = {
            "trees_per_root": result.trees_per_root,
            **result.to_dict(),
            **times,
            **_asked(document, question, topology),
        }
        claimed = {key: value for key, value in document.items() if key not in ("bounds", "time_bounds", *_NAMES)}
        more, open_claims = compare(claimed, {key: value for key, value in own.items() if key != "bounds"})
        wrong += more
        unproved += open_claims
    state = "wrong" if wrong else "right"
    return FileVerdict(
        not wrong,
        f"{state}: {count(len(entries), 'bound')} of {wanted} on {topology.name}",
        tuple(wrong),
        () if wrong else tuple(facts),
        about_part(topology, wanted),
        {"rate_exact": exact_GBps(bounds[0].rate) if bounds and not wrong else None},
        tuple(unproved),
    )


def _searched(document: dict[str, Any], topology: Topology, wanted: Collective, bounds: Sequence[Bound]) -> bool:
    """What the document must say of a search. That none was made claims less than that one was, and always may be."""
    from blinksim.bounds.compute import by_sums_alone

    if document.get("searched") is False:
        return False
    return bounds[0].exact or not by_sums_alone(topology, wanted, document.get("shares", ()))


def _asked(document: dict[str, Any], question: Question, topology: Topology) -> dict[str, Any]:
    """What the document must say of itself and of its machine; what only puts the question is as it stands there."""
    asked = {"schema_version": 1, "command": "bound"}
    asked |= {key: document[key] for key in ("source", "nodes", "rates_source", "relays_reduce") if key in document}
    if question.machine:
        return asked | {key: document[key] for key in ("machine", "rates") if key in document}
    return asked | {"machine": topology.name, "rates": topology.rates}


def _problem(file: str, document: dict[str, Any], question: Question) -> tuple[Topology, Collective, tuple[int, ...]]:
    """Machine, collective and shares that the bounds are about."""
    from blinksim.bounds.certificate_sums import check_shares

    name, root = document["collective"], document.get("root")
    if not isinstance(name, str):
        raise FileError(file, "collective is not a name")
    if root is not None and type(root) is not int:
        raise FileError(file, "root is not the number of a rank")
    shares = document.get("shares", [])
    if not isinstance(shares, list) or not all(type(share) is int for share in shares):
        raise FileError(file, "shares is not a list of whole numbers")
    wanted = Collective.parse(name, root, _traffic(file, document))
    topology = _machine_of(file, document, question, wanted)
    wanted.check_ranks(topology.ranks)
    return topology, wanted, check_shares(wanted, topology.ranks, shares)


def _traffic(file: str, document: dict[str, Any]) -> Traffic | None:
    """The traffic matrix of an alltoallv."""
    if "traffic" not in document:
        return None
    from blinksim.formats.traffic_files import from_lines

    lines = document["traffic"]
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise FileError(file, "traffic is not a list of lines")
    return from_lines(f"{file} (traffic)", lines)


def _machine_of(file: str, document: dict[str, Any], question: Question, wanted: Collective) -> Topology:
    """The part of the machine that the bound is about, loaded anew: nothing in the file is trusted."""
    listed: dict[str, list[str]] = {}
    for key in _NAMES:
        value = document.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise FileError(file, f"{key} is not a list of names")
        listed[key] = value
    nodes, reduce = document.get("nodes", 1), document.get("relays_reduce", False)
    if type(nodes) is not int or not 1 <= nodes <= 100_000:
        raise FileError(file, "nodes is not a number of nodes")
    if type(reduce) is not bool:
        raise FileError(file, "relays_reduce is not true or false")
    source = question.machine or document.get("source", document.get("machine"))
    if source == STDIN and not question.machine:
        raise FileError(file, "is of a machine that came through standard input; say which one with machine=")
    if not isinstance(source, str):
        raise FileError(file, "names no machine; give one with machine=")
    rates = question.table if question.machine else document.get("rates_source", "nominal")
    if not isinstance(rates, str):
        raise FileError(file, "rates_source is not the name of a table of rates")
    asked = Question(source, nodes=nodes, rates=rates, edits=(*listed["edits"], *question.edits))
    whole = asked.whole() if question.machine else _named(file, asked)
    return whole.select(
        listed["members"], listed["relays"], listed["links"] or None, relays_reduce=reduce, collective=wanted
    )


def _named(file: str, asked: Question) -> Topology:
    """The machine that a file names. It is a stranger's: no pipe is opened, and no error quotes what it points to."""
    places = [place for place in (str(asked.machine), asked.table) if os.path.lexists(place)]
    for place in places:
        if not os.path.isfile(place):
            raise FileError(file, f"names {place!r}, which is no ordinary file; say which machine with machine=")
    try:
        return asked.whole()
    except InputError:
        if not places:
            raise
        why = f"names {' and '.join(map(repr, places))}, which cannot be used"
        raise FileError(file, f"{why}; say which machine with machine=") from None


# --- is it attained? ----------------------------------------------------------------------------------------------


def _named_like(collective: Collective, name: str) -> Collective:
    """A collective, or a phase of it by its name."""
    return collective if name == collective.name else Collective(name, collective.root)


def _attained(topology: Topology, collective: Collective) -> Callable[[Bound], bool]:
    """A test whether some schedule attains a bound and keeps what it assumes: one is built, and interpreted.

    Where that takes long, a theorem on the trees of an allreduce's two phases says so without the trees.
    """
    from blinksim.answers.checks.verify_schedule import attained_in_network, keeps
    from blinksim.answers.synthesize import synthesize
    from blinksim.bounds import Phases
    from blinksim.bounds.compute import packed_phases
    from blinksim.schedule.model import Schedule

    long = _takes(topology) > _PATIENCE

    @cache
    def by_theorem() -> Fraction | None:
        found = packed_phases(topology) if collective.name == "allreduce" else None
        return None if found is None else found.rate

    @cache
    def best(name: str) -> tuple[Schedule, Fraction] | None:
        if long:
            return None
        try:
            made = synthesize(topology, _named_like(collective, name), "packed", time_limit=_PATIENCE)
        except BlinksimError:
            return None
        return (made.schedule, made.rate) if made.verdict.ok else None

    def attains(bound: Bound) -> bool:
        if long and not bound.grants and bound.rate == by_theorem():
            return True
        if isinstance(bound.certificate, Phases):
            return all((found := best(name)) and found[1] == cut.rate for name, cut in bound.certificate.phases)
        if bound.grants:
            return attained_in_network(topology, collective, bound)
        found = best(collective.name)
        return found is not None and found[1] == bound.rate and keeps(found[0], bound.assumes)

    return attains


def _takes(topology: Topology) -> float:
    """About the seconds of building a schedule."""
    return budget.of_trees(topology, topology.ranks)


def _why(topology: Topology) -> str:
    if _takes(topology) > _PATIENCE:
        return f"building one for these {topology.ranks:,} ranks would take about {budget.words(_takes(topology))}"
    return "none was found that does"
