"""Are files of runtimes right? NCCL's graphs, MSCCL's algorithms, MSCCL++'s plans."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from blinksim.answers.checks.file_verdict import FileVerdict
from blinksim.errors import FileError, InputError
from blinksim.textio.text_table import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blinksim.nccl.files.graph_rules import Judgement
    from blinksim.question import Question


def xml(file: str, question: Question, release: str, root: int, slots: int) -> FileVerdict:
    """The answer for an XML file: an algorithm of MSCCL by its outermost element, everything else a graph of NCCL."""
    from blinksim.textio.safe_xml import file_text, outermost

    text = file_text(file)
    if outermost(text) == "algo":
        return _algorithm(file, text, question, root, slots)
    if outermost(text) == "system":
        raise FileError(file, f"is a topology file, no graph; check it with `blinksim topo check {shlex.quote(file)}`")
    return _graph(file, text, question, release)


def plan(file: str, document: object, question: Question, root: int) -> FileVerdict:
    """The answer for an execution plan of MSCCL++, parsed; question: the machine to run on, if one is named."""
    from blinksim.formats.msccl.mscclpp_check import check

    try:
        counted = check(document, file, root=root)
    except FileError as error:
        return _wrong("an MSCCL++ plan", error)
    facts = [f"up to {counted.blocks} thread blocks a GPU, {counted.operations} operations each"]
    facts += _on_machine(file, question, root)
    return FileVerdict(True, "right: an MSCCL++ plan, carried out in several orders", (), tuple(facts))


def _on_machine(file: str, question: Question, root: int) -> list[str]:
    """What its loads allow on the links of the machine, if one is named; raises if it cannot run there."""
    if not question.machine:
        return []
    from blinksim.formats.schedule_files import read
    from blinksim.schedule.loads import rate
    from blinksim.units import format_rate

    part = question.part()
    allowed = rate(read(file, part, root).schedule)
    return [] if allowed is None else [f"on {part.name} its loads allow {format_rate(allowed)} algbw"]


def _algorithm(file: str, text: str, question: Question, root: int, slots: int) -> FileVerdict:
    from blinksim.formats.msccl.msccl_check import RCCL_STEPS, check_text

    try:
        counted = check_text(text, file, root=root, slots=slots)
    except FileError as error:
        return _wrong("an MSCCL algorithm", error)
    blocks, channels = count(counted.blocks, "thread block"), count(counted.channels, "channel")
    facts = [f"up to {blocks} a GPU, {count(counted.steps, 'step')} each, {channels}"]
    if counted.steps > RCCL_STEPS:
        facts.append(f"more steps than RCCL takes ({RCCL_STEPS})")
    facts += _on_machine(file, question, root)
    summary = "right: an MSCCL algorithm, carried out in several orders"
    return FileVerdict(True, summary, (), tuple(facts))


def _wrong(what: str, error: FileError) -> FileVerdict:
    return FileVerdict(False, f"wrong: {what}", (str(error),))


def _families(found: Judgement, nodes: int) -> Iterator[str]:
    """The channels of every family that is in force, and what the names of their paths mean."""
    from blinksim.nccl.families import PATH_TYPES, PATH_WORDS

    kinds: set[str] = set()
    for name, graph in found.graphs.items():
        if graph.in_force:
            shown = " ".join("-".join(map(str, channel)) for channel in graph.channels[:8])
            more = " …" if len(graph.channels) > 8 else ""
            # Paths to the network count where there is one.
            types = graph.types if nodes > 1 else graph.types[:1]
            yield f"{name}: {shown}{more} at {graph.speeds[0]:g} GB/s a channel, over {'/'.join(types)} paths"
            kinds.update(types)
    if kinds:
        yield "; ".join(f"{kind}: {PATH_WORDS[kind]}" for kind in sorted(kinds, key=PATH_TYPES.index))


def _graph(file: str, text: str, question: Question, release: str) -> FileVerdict:
    """What NCCL does with a graph file, in words."""
    from blinksim.nccl.export.lines import communicator
    from blinksim.nccl.files.graph_rules import judge
    from blinksim.nccl.files.nccl_xml import Release

    if not question.machine:
        raise InputError(f"{file}: a graph file only makes sense for a machine; name it with machine=")
    rules = Release.parse(release)
    # All links: a graph file may be for GPUs without NVLinks between them.
    topology = replace(question, links="all").part()
    judged = communicator(topology)
    if judged.nodes != topology.nodes:
        raise InputError(
            f"members={question.members} are on {count(judged.nodes, 'node')} of "
            f"{topology.nodes}: name the GPUs of each node, such as n[0-{topology.nodes - 1}].gpu0, or leave nodes= out"
        )
    found = judge(text, judged, rules)
    facts = list(_families(found, judged.nodes))
    if found.channels is not None:
        facts.append(f"the communicator has {count(found.channels, 'channel')}, unless NCCL_MAX_NCHANNELS says less")
    reasons = [] if found.ok else [found.reason, *(f"not as written: {text}" for text in found.accidents)]
    return FileVerdict(
        found.ok,
        f"{found.verdict} by NCCL {release} on {topology.ranks} GPUs of {topology.name}",
        tuple(reasons),
        tuple(facts) if found.verdict == "used" else (),
        details={"verdict": found.verdict, "log": found.log},
    )
