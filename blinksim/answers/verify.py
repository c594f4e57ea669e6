"""Verification of schedules, bounds and files; schedules from files, on their own machine or another.

Files are schedules, the output of `bound --json`, and files for a runtime. Of bounds, everything is derived
anew from the machine and the certificates' witnesses.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, partial
from math import lcm
from typing import Any, cast

from blinksim import budget
from blinksim.answers.bound import attained_in_network
from blinksim.bounds.bound_result import Bound, BoundResult
from blinksim.bounds.certificates import Phases, check_shares, shown
from blinksim.bounds.claims import bound_here, compare, judge, judge_schedule, shared_lengths, unknown_bound
from blinksim.bounds.compute import bound as find_bound, by_sums_alone, keeps, packed_phases
from blinksim.bounds.together import Group, SharedLengths, Together
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, FileError, InfeasibleError, InputError, blamed_on
from blinksim.formats import schedule_json
from blinksim.formats.schedule_json import FORMAT, MOST_BYTES, compact_from_document, located
from blinksim.formats.traffic_files import from_lines
from blinksim.machines import MachineLike, Question
from blinksim.nccl.families import PATH_TYPES, PATH_WORDS
from blinksim.results import Result, count, keyed
from blinksim.schedule.candidate import SymmetricSchedule, as_compact
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule, ScheduleLike, as_schedule, rebase
from blinksim.schedule.verify import Verdict, verify as verify_schedule
from blinksim.textio.safe_xml import file_text, outermost
from blinksim.textio.strict_json import parse, unpack
from blinksim.textio.text_files import STDIN, read_bytes
from blinksim.topology.graph import Topology
from blinksim.units import exact_algbw, exact_GBps, format_rate, parse_exact


def read_schedule(
    path: str | os.PathLike[str], machine: Question | MachineLike | None = None, *, root: int = 0
) -> Schedule:
    """Read a schedule: blinksim's file, an MSCCL algorithm (.xml), or an MSCCL++ plan (.json).

    What the schedule of blinksim's own file does is not checked here: `blinksim.verify` does that.

    Parameters
    ----------
    path : str or path
        A file, or the name of a schedule that comes with blinksim, such as ``dgx1-v100-8-allreduce``. A file
        of that name goes first.
    machine : Question, str, path or Topology, optional
        The machine to run on. Files of MSCCL and MSCCL++ need it: they name ranks, which are the members in
        order, and no links. Default: the machine in the file.
    root : int
        For a rooted collective of MSCCL or MSCCL++, whose files do not name the root.

    Returns
    -------
    Schedule
        On the machine; with the bound and the certificate that the file holds, as far as they hold there.

    Raises
    ------
    FileError
        If the file is none of these, or wrong; the message names the key or the line.
    InputError
        If the file needs a machine, or one with another number of members.
    InfeasibleError
        If the machine lacks devices or links of the schedule.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write(bs.synthesize("dgx1-v100", "allgather", "ring").schedule, "ring.json")
    >>> schedule = bs.read_schedule("ring.json")
    >>> bs.write(bs.export(schedule, "msccl-xml"), "ring.xml")
    >>> again = bs.read_schedule("ring.xml", "dgx1-v100")
    >>> again.collective, again.sends == schedule.sends
    (Collective(name='allgather', root=0), True)
    """
    if machine is None:
        return schedule_json.read(path).schedule
    question = machine if isinstance(machine, Question) else Question(machine)
    if question.machine and schedule_json.with_format(path)[1]:
        return schedule_json.read(path, question.part(), root).schedule
    moved = moved_to(schedule_json.read(path).schedule, question)
    if isinstance(moved, tuple):
        where = "on this machine" if question.machine else "after this edit"
        raise InfeasibleError(f"{os.fspath(path)} does not run {where}: {moved[0]}")
    return moved


def moved_to(schedule: Schedule, question: Question) -> Schedule | tuple[str, ...]:
    """A schedule on the machine of a question, or in its own after the edits; or what is missing there.

    The schedule keeps its members and relays. Raises `InputError` if the question chooses others.
    """
    if question.members is not None or question.nodes != 1:
        raise InputError("members= and nodes= are for files of runtimes; a schedule names its own members")
    own, nodes = schedule.topology, schedule.topology.nodes
    target = replace(question, nodes=nodes, edits=()).whole() if question.machine else own
    for edit in question.edits:
        target = target.edit(edit)
    moved = rebase(schedule, target)
    if isinstance(moved, tuple) or moved.bound or not schedule.bound:
        return moved
    # The figures of its bound are those of another machine, but its witness may prove something about this
    # one.
    here = bound_here(schedule.bound, moved.topology, moved.collective, moved.groups)
    return moved.with_bound(here.to_dict(moved.topology, moved.collective)) if here else moved


def verify(
    schedule: ScheduleLike | str | os.PathLike[str],
    *,
    slots: int = 1,
    in_place: bool = False,
    shares: Sequence[Fraction] | None = None,
) -> Verdict:
    """Check that a schedule does what its collective promises, chunk by chunk.

    Parameters
    ----------
    schedule : Schedule, Synthesis, str or path
        A schedule, or the file of one.
    slots : int
        Buffers of each connection; more let a sender run further ahead.
    in_place : bool
        Input and output are one buffer.
    shares : sequence of Fraction, optional
        The part of the size that each rank's block has, if not 1/n.

    Returns
    -------
    Verdict
        ``ok``, the reasons if it is wrong, and what was counted on the way. The bound that the schedule comes
        with is derived anew from the witness in its certificate; what is claimed without proof is listed in
        ``unproved``.

    Raises
    ------
    InputError
        For slots below 1, shares that do not fit the ranks, and anything that is no schedule. Faults of the
        schedule itself are in the verdict.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.verify(bs.synthesize("dgx1-v100", "allgather", "ring").schedule).ok
    True
    """
    found = as_compact(schedule_json.read(schedule) if isinstance(schedule, (str, os.PathLike)) else schedule)
    verdict = verify_schedule(found, slots=slots, in_place=in_place, shares=shares)
    if not found.bound:
        return verdict
    # What the bound is worth; of a schedule by symmetry, its base says that too.
    base = found.base if isinstance(found, SymmetricSchedule) else found
    common = lcm(*(Fraction(share).denominator for share in shares or ()))
    facts, rate = verdict.facts, verdict.facts.rate
    parts = tuple(int(share * common) for share in shares or ())
    told = _claims(base.bound), base.topology, base.collective, rate
    claim = judge_schedule(*told, parts, base.groups, keeps=lambda assumed: verdict.ok and keeps(base, assumed))
    if claim.bound is not None and rate is not None and claim.bound.rate:
        facts = replace(facts, bound=claim.bound.rate, gap=1 - rate / claim.bound.rate)
    reasons = (*verdict.reasons, *(f"its bound: {reason}" for reason in claim.wrong))
    return Verdict(not reasons, reasons, facts, claim.unproved)


def _claims(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a file states, without its sentences."""
    return {key: value for key, value in told.items() if key not in _SENTENCES}


# --- files -------------------------------------------------------------------------------------------------

# Seconds that a schedule may take which shows that a bound is attained.
_PATIENCE = 20.0
_NAMES = ("members", "relays", "links", "edits")
# For people: no claim, as another version may put them otherwise.
_SENTENCES = "assumes", "words"
# What only puts the question, beside these.
_ASKED = "source", "nodes", "rates_source", "relays_reduce", "routing"


@dataclass(frozen=True)
class FileVerdict(Result):
    """The result of checking a file.

    Parameters
    ----------
    ok : bool
        Nothing in the file is wrong.
    summary : str
        The verdict in a line.
    reasons : tuple of str
        What is wrong.
    facts : tuple of str
        What else was found.
    unproved : tuple of str
        What the file claims without proof; it may be true.
    about : mapping
        Machine, collective and members, where the file names them.
    details : mapping
        Exact rates and the like, as ``--json`` prints them.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.FileVerdict(False, "wrong: 1 bound", ("cut: the sum is 7, not 8",))
    <FileVerdict wrong: 1 bound
      cut: the sum is 7, not 8>
    """

    ok: bool
    summary: str
    reasons: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    unproved: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """True if nothing is wrong and every claim of the file is proved."""
        return self.ok and not self.unproved

    def rows(self) -> list[dict[str, Any]]:
        """The faults, or the facts of a correct file."""
        return [{"reason": text} for text in self.reasons] or [{"fact": text} for text in self.facts]

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        return {**self.about, **keyed(self, "ok summary reasons unproved facts"), **self.details}

    def text(self) -> str:
        """The verdict, the reasons, what is not proved, and the facts, a line each."""
        return "\n".join([self.summary, *(f"  {line}" for line in (*self.reasons, *self.unproved, *self.facts))])

    def __repr__(self) -> str:
        return f"<FileVerdict {self.text()}>"


def verify_file(
    path: str | os.PathLike[str],
    question: Question | None = None,
    *,
    in_place: bool = False,
    slots: int | None = None,
    root: int = 0,
    release: str = "2.28.3",
) -> FileVerdict:
    """Check a file without trusting anything in it.

    Parameters
    ----------
    path : str or path
        A schedule, what ``blinksim bound --json`` printed, a graph file of NCCL, an algorithm of MSCCL (.xml)
        or an execution plan of MSCCL++ (.json); or the name of a schedule that comes with blinksim.
    question : Question, optional
        The machine to check against, its rates and edits; members and nodes for a graph file. Without a
        machine, the one in the file counts.
    in_place, slots
        For a schedule, as `blinksim.verify` takes them, 1 slot by default; `slots` also for an algorithm of
        MSCCL, by default those of its protocol.
    root : int
        For the file of a runtime: the root's rank.
    release : str
        For a graph file: the release of NCCL.

    Returns
    -------
    FileVerdict
        ``ok``, a summary, the reasons if it is wrong, and the facts if it is right. ``unproved`` lists what
        the file claims and does not prove.

    Raises
    ------
    FileError
        If the file is none of these kinds.
    InputError
        If the question does not fit the kind of file.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write(bs.synthesize("dgx1-v100", "allgather", "ring").schedule, "ring.json")
    >>> bs.verify_file("ring.json").ok
    True
    """
    file, asked = os.fspath(located(path)), question or Question()
    if schedule_json.is_xml(file):
        text = file_text(file)
        kind = outermost(text)
        if kind == "system":
            what = "is a topology file, no graph; check it with"
            raise FileError(file, f"{what} `blinksim topo check {shlex.quote(file)}`")
        if kind != "algo":
            return _graph(file, text, asked, release)

        def algorithm() -> list[str]:
            from blinksim.formats.runtimes.msccl_xml import RCCL_STEPS, check_text

            counted = check_text(text, file, root=root, slots=slots)
            blocks, channels = count(counted.most_blocks, "thread block"), count(counted.channels, "channel")
            more = [f"needs {count(counted.buffers, 'buffer')} a connection"]
            more += [f"more steps than RCCL takes ({RCCL_STEPS})"] if counted.most_steps > RCCL_STEPS else []
            more += [f"RCCL wants {', '.join(counted.lacks)} too"] if counted.lacks else []
            return [f"up to {blocks} a GPU, {count(counted.most_steps, 'step')} each, {channels}", *more]

        return _of_runtime(file, "an MSCCL algorithm", algorithm, asked, root)
    document = parse(file, unpack(file, read_bytes(file, MOST_BYTES), MOST_BYTES))
    if isinstance(document, dict) and document.get("format") != FORMAT:
        from blinksim.formats.runtimes.mscclpp_json import check, is_plan

        def plan() -> list[str]:
            counted = check(document, file, root=root)
            return [f"up to {counted.most_blocks} thread blocks a GPU, {counted.most_steps} operations each"]

        if is_plan(document):
            return _of_runtime(file, "an MSCCL++ plan", plan, asked, root)
    if asked.members is not None or asked.nodes != 1:
        raise InputError("members= and nodes= are for files of runtimes; a schedule names its own members")
    if isinstance(document, dict) and document.get("format") == FORMAT:
        return _judged(compact_from_document(file, document), asked, in_place, slots or 1)
    if isinstance(document, dict) and "bounds" in document and "collective" in document:
        return _bounds(file, document, asked)
    if isinstance(document, dict) and {"rows", "certificates", "rates_source"} <= document.keys():
        return _groups(file, document, asked)
    raise FileError(file, "is neither a schedule file nor a bound in JSON")


def about_part(topology: Topology, collective: Collective) -> dict[str, Any]:
    """The part of a machine and the collective that a file is about, as JSON has them."""
    keys, links = "machine=name collective members relays links rates", topology.default_links()
    return keyed(topology, keys, collective=collective.name, links=links)


def _judged(schedule: Schedule | SymmetricSchedule, question: Question, in_place: bool, slots: int) -> FileVerdict:
    """The answer for a schedule, on its own machine or on that of the question."""
    about = about_part(schedule.topology, schedule.collective)
    if question.machine or question.edits:
        moved = moved_to(as_schedule(schedule), question)
        if isinstance(moved, tuple):
            return FileVerdict(False, "does not run on this machine", moved, (), about)
        schedule = moved
    verdict = verify(schedule, slots=slots, in_place=in_place)
    part, facts, lines = schedule.topology, verdict.facts, list[str]()
    if facts.rate is not None:
        busy = f"{facts.busiest} carries {'all' if facts.busiest_load == 1 else facts.busiest_load} of the data"
        busy += f", as busy as {count(facts.busiest_count - 1, 'other')}" if facts.busiest_count > 1 else ""
        lines.append(f"loads allow {exact_algbw(facts.rate)}: {busy}")
    if facts.bound is not None:
        gap = f", gap {100 * float(cast('Fraction', facts.gap)):.3g} %"
        lines.append(f"bound {exact_GBps(facts.bound)} GB/s" + gap * verdict.ok)
        lines += _reworded(schedule)
    elif verdict.ok:
        lines.append(unknown_bound(facts.rate))
    if facts.scratch:
        most = max(facts.scratch, key=facts.scratch.__getitem__)
        among = f", the most of {len(facts.scratch)} devices" if len(facts.scratch) > 1 else ""
        lines.append(f"{most} needs scratch for {facts.scratch[most]} of the size{among}")
    lines += [f"in place: {'possible' if facts.in_place else 'not possible'}", f"all at {part.rates} rates"]
    lines += [f"edited {edit}" for edit in part.edits]
    base = schedule.base if isinstance(schedule, SymmetricSchedule) else schedule
    does = base.does if base.groups else f"{base.algorithm} {base.does}"
    promise = f"{does} on {part.name}, {part.ranks} ranks"
    summary, about = f"{'right' if verdict.ok else 'wrong'}: {promise}", about_part(part, schedule.collective)
    about |= {"groups": [*map(str, base.groups)]} if base.groups else {}
    exact = None if facts.gap is None else str(facts.gap)
    details = keyed(facts, "rate_exact=rate bound_exact=bound gap_exact", gap_exact=exact)
    return FileVerdict(verdict.ok, summary, verdict.reasons, tuple(lines), about, details, verdict.unproved)


def _reworded(schedule: Schedule | SymmetricSchedule) -> list[str]:
    """What a bound is in the words of this version, where its file has others."""
    part, said, base = schedule.topology, schedule.bound, schedule if isinstance(schedule, Schedule) else schedule.base
    here = bound_here(said, part, schedule.collective, base.groups)
    now = here.to_dict(part, schedule.collective) if here else dict[str, Any]()
    same = all(said.get(key) in (None, now[key]) for key in _SENTENCES if key in now)
    return [] if same else [f"its bound in words of now: {now['words']}; it assumes {now['assumes']}"]


# --- bounds -----------------------------------------------------------------------------------------------------------


@dataclass
class _Findings:
    """Errors, unproved claims, and other findings, as lines of the answer."""

    wrong: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    def add(self, name: str, wrong: Iterable[str], unproved: Iterable[str] = (), fact: str = "") -> None:
        """Adds what was found of a bound, by its name."""
        self.wrong += [f"{name}: {text}" for text in wrong]
        self.unproved += [f"{name}: {text}" for text in unproved]
        self.facts += [f"{name}: {fact}"] if fact else []


def _bounds(file: str, document: dict[str, Any], question: Question) -> FileVerdict:
    """The answer for what `bound --json` printed; raises `FileError` for what cannot be such an answer."""
    topology, wanted, shares = _problem(file, document, question)
    entries = _entries(file, document, "bounds", "scope", "rate_exact", "certificate")
    findings, bounds = _Findings(), list[Bound]()
    # Whether some schedule attains a bound and keeps what it assumes: one is built, and interpreted. Where
    # that takes long, a theorem on the trees of an allreduce's two phases says so without the trees.
    takes = budget.of_trees(topology, topology.ranks)
    long = takes > _PATIENCE
    phases = packed_phases(topology) if long and wanted.name == "allreduce" else None

    @cache
    def best(name: str) -> tuple[Schedule, Fraction] | None:
        if long:
            return None
        from blinksim.answers.synthesize import synthesize

        phase = wanted if name == wanted.name else Collective(name, wanted.root)
        try:
            made = synthesize(topology, phase, "packed", time_limit=_PATIENCE)
        except BlinksimError:
            return None
        return (made.schedule, made.rate) if made.verdict.ok else None

    def attained(bound: Bound) -> bool:
        if phases is not None and not bound.grants and bound.rate == phases.rate:
            return True
        if isinstance(bound.certificate, Phases):
            return all((found := best(name)) and found[1] == cut.rate for name, cut in bound.certificate.phases)
        if bound.grants:
            return attained_in_network(topology, wanted, bound)
        if wanted.routing is not None:
            # Trees take tokens in any parts; a schedule has whole ones.
            return any(one.exact and one.rate == bound.rate for one in find_bound(topology, wanted).bounds)
        found = best(wanted.name)
        return found is not None and found[1] == bound.rate and keeps(found[0], bound.assumes)

    late = f"building one for these {topology.ranks:,} ranks would take about {budget.words(takes)}"
    why = late if long else "none was found that does"
    for entry in entries:
        found = judge(_claims(entry), topology, wanted, shares)
        if found.bound is None:
            findings.add(shown(entry["scope"]).strip("'"), found.wrong, found.unproved)
            continue
        bounds.append(found.bound)
        rate, reached, open_claims = exact_GBps(found.bound.rate), "", list(found.unproved)
        if found.bound.exact and not found.wrong:
            if not shares and attained(found.bound):
                reached = ", attained"
            else:
                open_claims.append(f"not proved: that some schedule attains {rate} GB/s ({why})")
        words = f"{rate} GB/s{reached}; {found.bound.certificate.words(topology)}"
        findings.add(found.bound.scope, found.wrong, open_claims, words)
    times = _judge_times(file, document, topology, wanted, findings)
    if len(bounds) == len(entries):
        # That no search was made claims less than that one was, and always may be.
        sums_alone = by_sums_alone(topology, wanted, document.get("shares", ()))
        searched = document.get("searched") is not False and (bounds[0].exact or not sums_alone)
        result = BoundResult(topology, wanted, tuple(bounds), shares, searched=searched)
        own = {"trees_per_root": result.trees_per_root, **result.to_dict(), **times}
        # What the document must say of itself and of its machine; what only puts the question is as it stands
        # there.
        own |= {"schema_version": 1, "command": "bound", "machine": topology.name, "rates": topology.rates}
        asked = [*_ASKED, *["machine", "rates"] * bool(question.machine)]
        own |= {key: document[key] for key in asked if key in document}
        claimed = {key: value for key, value in document.items() if key not in ("bounds", "time_bounds", *_NAMES)}
        wrong, unproved = compare(claimed, {key: value for key, value in own.items() if key != "bounds"})
        findings.wrong += wrong
        findings.unproved += unproved
    ok, about = not findings.wrong, about_part(topology, wanted)
    summary = f"{'right' if ok else 'wrong'}: {count(len(entries), 'bound')} of {wanted} on {topology.name}"
    facts = tuple(findings.facts) if ok else ()
    details = {"rate_exact": exact_GBps(bounds[0].rate) if bounds and ok else None}
    return FileVerdict(ok, summary, tuple(findings.wrong), facts, about, details, tuple(findings.unproved))


def _entries(file: str, document: dict[str, Any], key: str, *needed: str) -> list[dict[str, Any]]:
    """The entries of a list of bounds; raises `FileError` if it is none, or if one lacks something."""
    entries = document[key]
    if not isinstance(entries, list) or not entries:
        raise FileError(file, f"{key} is not a list of bounds")
    if not all(isinstance(entry, dict) and entry.keys() >= {*needed} for entry in entries):
        raise FileError(file, f"an entry of {key} lacks {' or '.join(needed)}")
    return entries


def _groups(file: str, document: dict[str, Any], question: Question) -> FileVerdict:
    """The answer for what `bound --json` printed of several groups."""
    entries, wrong, proofs = _entries(file, document, "certificates"), list[str](), list[SharedLengths]()
    machine, groups = _sharing(file, document, question)
    for entry in entries:
        try:
            proofs.append(shared_lengths(entry, machine, groups))
        except InputError as error:
            wrong.append(str(error))
    unproved, facts = list[str](), tuple(proof.words(groups) for proof in proofs)
    if not wrong:
        of = document.get("command")
        of = of if of in ("project groups", "synth groups") else "bound groups"
        own = {"schema_version": 1, "command": of, **Together(machine, groups, tuple(proofs)).to_dict()}
        own |= {key: document[key] for key in (*_ASKED, *_NAMES, "simulated_s", "output") if key in document}
        wrong, unproved = map(list, compare(_claims(document), own))
        if min(group.rate / group.weight for group in groups) > proofs[0].rate:
            wrong.append("the groups have more than the first certificate allows")
    if not wrong and not _together_attain(machine, groups):
        unproved.append("not proved: that schedules attain this")
    summary = f"{'wrong' if wrong else 'right'}: {count(len(groups), 'group')} on {machine.name} at once"
    about = {"machine": machine.name, "rates": machine.rates}
    return FileVerdict(not wrong, summary, tuple(wrong), () if wrong else facts, about, {}, tuple(unproved))


def _sharing(file: str, document: dict[str, Any], question: Question) -> tuple[Topology, tuple[Group, ...]]:
    """The machine that groups share, loaded anew, and the groups with the rates that the file claims."""
    needed, groups = ("collective", "members", "relays", "size_bytes", "alone_exact", "rate_exact"), list[Group]()
    for row in _entries(file, document, "rows", *needed):
        part, wanted, _ = _problem(file, {**document, **row}, question)
        with blamed_on(partial(FileError, file)):
            alone, each = (parse_exact(row[key]) * 10**9 for key in ("alone_exact", "rate_exact"))
        size, sized = row["size_bytes"], type(row["size_bytes"]) is int and row["size_bytes"] > 0
        if not (sized or size is None) or not 0 < each <= alone:
            raise FileError(file, "a group has no number of bytes, or no rate up to the one that it has alone")
        groups.append(Group(part, wanted, size, alone, each))
    if len({group.size is None for group in groups}) > 1:
        raise FileError(file, "some groups have a size and some have none")
    # The members of all in the order of the machine, whether links connect them or not.
    every = {**document, "collective": "allgather", "relays": [], "relays_reduce": False}
    machine, _, _ = _problem(file, every, question, connected=False)
    if {*machine.members} != {name for group in groups for name in (*group.part.members, *group.part.relays)}:
        raise FileError(file, "members are not those of the groups and their relays")
    return machine, tuple(groups)


def _together_attain(machine: Topology, groups: Sequence[Group]) -> bool:
    """True if schedules that are built and interpreted give all groups their rates, and each its rate alone."""
    from blinksim.algorithms.building.joint_trees import fair

    if budget.SECONDS_A_SUM * sum(group.work for group in groups) > _PATIENCE:
        return False
    try:
        found = fair(machine, groups)
    except BlinksimError:
        return False
    pairs = zip(found.groups, groups, strict=True)
    return all(new.rate >= old.rate and new.alone >= old.alone for new, old in pairs) and not found.faults()


def _problem(
    file: str, document: dict[str, Any], question: Question, *, connected: bool = True
) -> tuple[Topology, Collective, tuple[int, ...]]:
    """The part of the machine, loaded anew, collective and shares that the bounds are about."""
    root, nodes, reduce = document.get("root"), document.get("nodes", 1), document.get("relays_reduce", False)
    rates = question.table if question.machine else document.get("rates_source", "nominal")
    lists: dict[str, list[Any]] = {key: document.get(key, []) for key in ("shares", "traffic", *_NAMES)}

    def holds(key: str, item: type) -> bool:
        return isinstance(lists[key], list) and all(type(value) is item for value in lists[key])

    for key, right, what in (
        ("collective", isinstance(document["collective"], str), "a name"),
        ("root", root is None or type(root) is int, "the number of a rank"),
        ("nodes", type(nodes) is int and 1 <= nodes <= 100_000, "a number of nodes"),
        ("relays_reduce", type(reduce) is bool, "true or false"),
        ("rates_source", isinstance(rates, str), "the name of a table of rates"),
        ("shares", holds("shares", int), "a list of whole numbers"),
        ("traffic", holds("traffic", str), "a list of lines"),
        *((key, holds(key, str), "a list of names") for key in _NAMES),
    ):
        if not right:
            raise FileError(file, f"{key} is not {what}")
    traffic = from_lines(f"{file} (traffic)", lists["traffic"]) if "traffic" in document else None
    source = question.machine or document.get("source", document.get("machine"))
    if source == STDIN and not question.machine:
        raise FileError(file, "is of a machine that came through standard input; say which one with machine=")
    if not isinstance(source, str):
        raise FileError(file, "names no machine; give one with machine=")
    asked = Question(source, nodes=nodes, rates=rates, edits=(*lists["edits"], *question.edits))
    whole = asked.whole() if question.machine else _named(file, asked)
    members, relays, links = lists["members"], lists["relays"], lists["links"] or None
    with blamed_on(partial(FileError, file)):
        if isinstance(drawn := document.get("routing"), dict):
            # A dispatch or combine: its routing is drawn or read anew, and has to be the same.
            settings = {key: value for key, value in drawn.items() if key != "digest"}
            refused = "nothing is drawn with these settings"
            with blamed_on(lambda why: InputError(f"{refused}: {why[:80]}"), (TypeError, ValueError)):
                if not all(os.path.isfile(drawn[key]) for key in ("routing", "placement") if key in drawn):
                    raise InputError("the routing is in no ordinary file")
                part = whole.select(members, relays, links)
                from blinksim.timing.experts import expert_collective

                wanted = expert_collective(part, document["collective"], **settings)
            if wanted.routing is None or drawn.get("digest", wanted.routing.digest) != wanted.routing.digest:
                raise InputError("the routing is another one than the bound is of")
        else:
            wanted = Collective.parse(document["collective"], root, traffic)
        given: dict[str, Any] = {"relays_reduce": reduce, "collective": wanted, "connected": connected}
        topology = whole.select(members, relays, links, **given)
        wanted.check_ranks(topology.ranks)
        return topology, wanted, check_shares(wanted, topology.ranks, lists["shares"])


def _named(file: str, asked: Question) -> Topology:
    """The machine that a file names. It is a stranger's: no pipe is opened, and no error quotes what it points to."""
    places = [place for place in (str(asked.machine), asked.table) if os.path.lexists(place)]
    if odd := [place for place in places if not os.path.isfile(place)]:
        raise FileError(file, f"names {odd[0]!r}, which is no ordinary file; say which machine with machine=")
    try:
        return asked.whole()
    except InputError as error:
        if not places:
            raise FileError(file, str(error)) from None
        why = f"names {' and '.join(map(repr, places))}, which cannot be used"
        raise FileError(file, f"{why}; say which machine with machine=") from None


def _judge_times(
    file: str, document: dict[str, Any], topology: Topology, collective: Collective, findings: _Findings
) -> dict[str, Any]:
    """What the document must say of its times; adds what their certificates show.

    Raises `FileError` for what `bound --size` cannot have printed.
    """
    if "time_bounds" not in document:
        return {}
    from blinksim.bounds.time.certificates import in_words
    from blinksim.bounds.time.delays import SECOND
    from blinksim.bounds.time.time_bound import stated, time_certificate_from_dict

    entries = _entries(file, document, "time_bounds", "certificate")
    size, latest = document.get("size_bytes"), 0
    if type(size) is not int or not 0 < size < 2**60:
        raise FileError(file, "time_bounds without size_bytes, a whole number of bytes")
    for entry in entries:
        kind = entry["certificate"].get("kind") if isinstance(entry["certificate"], dict) else None
        name = shown(kind).strip("'")
        try:
            found = time_certificate_from_dict(entry["certificate"], topology, collective, size)
        except InputError as error:
            findings.add(name, [str(error)])
            continue
        words = f"at least {in_words(found.time)} on the links alone; {found.words(topology)}"
        findings.add(name, *compare(_claims(entry), stated(found, topology, collective)), words)
        latest = latest or found.time
    return {"size_bytes": size, "time_bound_s": latest / SECOND}


# --- files of runtimes ------------------------------------------------------------------------------------------------


def _of_runtime(
    file: str, what: str, carried_out: Callable[[], list[str]], question: Question, root: int
) -> FileVerdict:
    """The answer for a program of a runtime. carried_out: facts of it, where it raises no `FileError`."""
    try:
        facts = carried_out()
    except FileError as error:
        return FileVerdict(False, f"wrong: {what}", (str(error),))
    if question.machine:
        # What its loads allow on the links of the machine; raises if it cannot run there.
        part = question.part()
        allowed = rate(schedule_json.read(file, part, root).schedule)
        facts += [] if allowed is None else [f"on {part.name} its loads allow {format_rate(allowed)} algbw"]
    return FileVerdict(True, f"right: {what}, carried out in several orders", (), tuple(facts))


def _graph(file: str, text: str, question: Question, release: str) -> FileVerdict:
    """NCCL's use of a graph file, in words."""
    from blinksim.nccl.files.graph_rules import Release, judge
    from blinksim.nccl.graph_export import communicator

    if not question.machine:
        raise InputError(f"{file}: a graph file only makes sense for a machine; name it with machine=")
    rules = Release.parse(release)
    # All links: a graph file may be for GPUs without NVLinks between them.
    topology = replace(question, links="all").part()
    judged = communicator(topology)
    if judged.nodes != topology.nodes:
        there = f"{count(judged.nodes, 'node')} of {topology.nodes}"
        cure = f"name the GPUs of each node, such as n[0-{topology.nodes - 1}].gpu0, or leave nodes= out"
        raise InputError(f"members={question.members} are on {there}: {cure}")
    found = judge(text, judged, rules)
    # The channels of every family that is in force, and what the names of their paths mean.
    facts, kinds = list[str](), set[str]()
    for name, graph in found.graphs.items():
        if graph.in_force:
            orders = Counter("-".join(map(str, channel)) for channel in graph.channels)
            alike = (f"{many} x {order}" if many > 1 else order for order, many in orders.most_common(8))
            shown = " ".join(alike) + " …" * (len(orders) > 8)
            # Paths to the network count where there is one.
            types = graph.types if judged.nodes > 1 else graph.types[:1]
            facts.append(f"{name}: {shown} at {graph.speeds[0]:g} GB/s a channel, over {'/'.join(types)} paths")
            kinds.update(types)
    if kinds:
        facts.append("; ".join(f"{kind}: {PATH_WORDS[kind]}" for kind in sorted(kinds, key=PATH_TYPES.index)))
    if found.channels is not None:
        facts.append(f"the communicator has {count(found.channels, 'channel')}, unless NCCL_MAX_NCHANNELS says less")
    reasons = () if found.ok else (found.reason, *(f"not as written: {text}" for text in found.accidents))
    summary = f"{found.verdict} by NCCL {release} on {topology.ranks} GPUs of {topology.name}"
    said, details = tuple(facts) if found.verdict == "used" else (), keyed(found, "verdict log")
    return FileVerdict(found.ok, summary, reasons, said, details=details)
