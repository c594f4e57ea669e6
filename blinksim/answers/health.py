"""Is a machine whole: what it lacks of its like in the catalogue, what that costs, and what to do.

What is missing becomes edits of the machine in the catalogue, for which `project` and `place` answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blinksim.answers.logs.faults import classes
from blinksim.answers.place import place
from blinksim.answers.project import meanwhile
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.formats.shipped.known_gpus import UNTOLD, Twin, adapters, model, twin_of
from blinksim.machines import MachineLike, Question, as_topology, check, remarks
from blinksim.results import Result, keyed, names
from blinksim.timing.library_model import Library
from blinksim.timing.measured.library_rates import PREDICTED, catalogued
from blinksim.timing.projection_result import Projection, guesses, labelled
from blinksim.topology.elements import RCCL
from blinksim.topology.graph import Topology
from blinksim.topology.rules import Finding
from blinksim.units import format_rate, format_size, format_time

_SLOWER = "uneven-class", "pcie-port"
_ASKED, SIZE = Collective("allreduce"), 256 * 2**20


@dataclass(frozen=True, repr=False)
class Health(Result):
    """A machine beside its like in the catalogue.

    Attributes
    ----------
    machine : Topology
        As it was read.
    twin : Twin, optional
        Its like in the catalogue, and what it lacks of that.
    takes, healthy : Projection
        What the library takes for an allreduce of 256 MiB: as the machine is, and if nothing were missing.
    meanwhile : Projection, optional
        The same on the best GPUs to take until it is mended, or without the adapters to leave out.
    findings : tuple of Finding
        What else rules find.
    missing : tuple of str
        What is missing, each in words such as ``gpu5 has 12 of 18 lanes``, or slower than its likes.
    asked : Question, optional
        About the machine as it is; if that is not connected, about the GPUs to take meanwhile, if there
        are any.

    Examples
    --------
    >>> import blinksim as bs
    >>> broken = bs.load("hgx-h200", edits="degrade gpu5-nvswitch lanes=12")
    >>> print(bs.health(broken).sentence())
    hgx-h200: like hgx-h200 (8 x H200), but gpu5 has 12 of 18 lanes
    """

    machine: Topology
    twin: Twin | None
    takes: Projection | None
    healthy: Projection | None
    meanwhile: Projection | None
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    asked: Question | None

    @property
    def status(self) -> int:
        """1 if something is missing or wrong, 5 if no machine of the catalogue is like it, else 0."""
        wrong = any(one.severity == "error" for one in self.findings)
        return 1 if wrong or self.missing else 0 if self.twin else 5

    @property
    def unseen(self) -> list[str]:
        """What could not be compared, as nothing is said of it."""
        untold = UNTOLD.get(self.machine.source.partition(" in ")[0] + " in ", "").split()
        nics = any(adapters(self.machine).values())
        found = ("NVLinks", "nvlink" not in untold), ("NICs", nics), ("PCIe", "pcie" not in untold)
        return [what for what, seen in found if not (seen or catalogued(self.machine))]

    def sentence(self) -> str:
        """The answer in one line."""
        first = self.machine.device(self.machine.members[0])
        # Of PCIe the table says nothing, and of GPUs on PCIe alone not what they are.
        told = "PCIe" not in self.unseen or "nvlink" in self.machine.link_classes
        sm = first.attributes.get("sm") if told else None
        units = f"{sm} compute units" if first.library == RCCL else f"compute capability {int(sm or 0) / 10}"
        unnamed = f"{self.machine.unit} of {units}" if sm else self.machine.unit
        gpus = f"{self.machine.ranks} x {model(first) or unnamed}"
        less = f", but {names(self.missing, ', ', 5)}" if self.missing else ""
        if self.twin is None:
            return f"{self.machine.name}: {gpus}{less}; cannot tell, none of the catalogue has these GPUs and links"
        seen = ", ".join(what for what in ("GPUs", "NVLinks", "NICs") if what not in self.unseen)
        none = f"as many {seen}; not compared: {', '.join(self.unseen)}" if self.unseen else "nothing missing"
        return f"{self.machine.name}: like {self.twin.name} ({gpus}){less or f', {none}'}"

    @property
    def check(self) -> str:
        """The commands that show what is missing; empty for makers of whose no command is known."""
        fewer = self.twin or Twin("")
        fault = "nvlink" if fewer.lanes else "nic" if fewer.nics and not fewer.gpus else "gone"
        known = classes(self.machine.device(self.machine.members[0]).library, self.machine.inter_node_links)
        return next((kind.check for kind in known if kind.name == fault), "")

    def text(self) -> str:
        """The sentence, what is lost, and what to do: at most nine lines."""
        lines, was, now, other = list[tuple[str, str]](), self.healthy, self.takes, self.meanwhile
        if now is not None:
            between = f" on {self.twin.nodes} such nodes" if self.twin and self.twin.nodes > 1 else ""
            asked = f"{_ASKED} of {format_size(SIZE)}{between}: {format_time(now.time_s)}"
            if was and (longer := f"{now.time_s / was.time_s:.3g}") != "1":
                asked += f" in place of {format_time(was.time_s)}, {longer} times as long"
            asked += f", busbw {format_rate(now.busbw)}"
            first = self.machine.device(self.machine.members[0])
            unnamed = (self.asked, model(first), now.details["basis"]) == (None, "", PREDICTED)
            asked += "; by NCCL's own model, as the GPUs are not named" * unnamed
            lines.append((f"{now.details['library']} takes", asked))
            most = [format_rate(of.bound.rate * (of.busbw / of.algbw)) for of in (now, was) if of and of.bound]
            assumed = guesses(now.details["bound_rates"])
            lines.append(("bound", f"busbw {' in place of '.join(dict.fromkeys(most))}{assumed}"))
        if other is not None and now is not None:
            lines.append(("meanwhile", meanwhile(other, now)))
        lines += [("check", self.check)] * bool(self.missing)
        lines += zip(("note",), remarks(self.machine, assumed=False), strict=False)
        lines += [(one.severity, f"{one.message}; {one.cure}") for one in self.findings[:2]]
        return "\n".join((self.sentence(), *labelled(lines)))

    def rows(self) -> list[dict[str, Any]]:
        """One row for each link that lacks lanes."""
        keys, fewer = "src dst kind lanes of=lanes", self.twin.lanes if self.twin else {}
        return [keyed(link, keys) | {"lanes": link.lanes - few} for link, few in fewer.items()]

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        said = [keyed(one, "rule severity message cure") for one in self.findings]
        return keyed(self, "@Health", rows=self.rows(), size_bytes=SIZE, findings=said)


def health(machine: MachineLike) -> Health:
    """Compare a machine with its like in the catalogue.

    Parameters
    ----------
    machine : str, path or Topology
        As for `load`: text of nvidia-smi, NCCL's topology file, its debug log, or any machine.

    Returns
    -------
    Health
        What is missing, what that costs, and which GPUs to take meanwhile.

    Raises
    ------
    InputError
        As `load` does.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.health("dgx1-v100").status
    0
    """
    recorded = as_topology(machine)
    twin = Twin(name) if (name := catalogued(recorded)) else twin_of(recorded)
    # Links that are missing are named by what the machine of the catalogue has.
    said, every = ("as-in-catalogue", "missing-link", "isolated-device") if twin else (), check(recorded)
    findings = tuple(one for one in every if one.rule not in (*said, *_SLOWER))
    lack = twin or Twin("")
    missing = *lack.missing, *(one.message for one in every if one.rule in _SLOWER)
    broken = Question(lack.name or recorded, nodes=lack.nodes, edits=lack.edits)
    shown = Question(recorded) if lack.shown else broken
    takes, best, healthy, part = _takes(shown), _takes(shown, spared=True), None, None
    # GPUs of unknown model take what NCCL's own model says, and are no question of the catalogue, unless it
    # is their like that shows what is lost.
    known, asked = any((not lack.shown, model(recorded.device(recorded.members[0])))), None
    if lack.edits:
        healthy = _takes(Question(lack.name, nodes=lack.nodes), known)
        if lack.lanes and recorded.ranks > 2:
            # As many of its best GPUs as lack nothing, or half of them.
            hurt, whole = {end for link in lack.lanes for end in (link.src, link.dst)}, broken.whole()
            few = max(len({*whole.members} - hurt), whole.ranks // 2, 2)
            part = Question.of(lack.name, members=place(whole, few)[0].members, edits=lack.edits)
            best = _takes(part, known)
        if known:
            asked = broken if _takes(broken) else part if best else None
    return Health(recorded, twin, takes, healthy, best, findings, missing, asked)


def _takes(question: Question, known: bool = True, spared: bool = False) -> Projection | None:
    """What the library takes; None where its GPUs are not connected, or alone.

    known: as measured, and not by a model. spared: without adapters that it waits for, if that is less.
    """
    try:
        model, where = Library(published=lambda _: known, constants=known).at(question)
        return model.spared(_ASKED, [SIZE])[0] if spared else model.times(where, _ASKED, [SIZE])[0]
    except BlinksimError:
        return None
