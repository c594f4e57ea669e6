"""Is a machine whole: what it lacks of its like in the catalogue, what that costs, and what to do.

What is missing becomes edits of the machine in the catalogue, for which `project` and `place` answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blinksim.answers.place import place
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.formats.shipped.known_gpus import Twin, model, twin_of
from blinksim.machines import MachineLike, as_topology, check
from blinksim.question import Question
from blinksim.results import Result, keyed
from blinksim.textio.text_table import count, names
from blinksim.timing.library_model import Library
from blinksim.timing.projection_result import Projection, labelled
from blinksim.topology.graph import Topology
from blinksim.topology.rules import Finding
from blinksim.units import format_rate, format_size, format_time

_ASKED, SIZE = Collective("allreduce"), 256 * 2**20
_NVLINKS = "nvidia-smi nvlink -s; nvidia-smi nvlink -e (errors); dmesg | grep -i xid"
_CARDS = "lspci | grep -i nvidia; dmesg | grep -i xid; ibstat and rdma link for NICs"


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
        The same on the best GPUs to take until it is mended.
    findings : tuple of Finding
        What else rules find.

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

    @property
    def status(self) -> int:
        """1 if something is missing or wrong, 5 if no machine of the catalogue is like it, else 0."""
        wrong = any(one.severity == "error" for one in self.findings)
        return 1 if wrong or (self.twin and self.twin.less) else 0 if self.twin else 5

    @property
    def missing(self) -> list[str]:
        """What is missing, each in words such as ``gpu5 has 12 of 18 lanes``."""
        if self.twin is None:
            return []
        lanes = []
        for link, fewer in self.twin.lanes.items():
            ends = link.src if link.dst not in self.machine.members else f"{link.src}-{link.dst}"
            lanes.append(f"{ends} has {link.lanes - fewer} of {count(link.lanes, 'lane')}")
        counts = {"GPU": self.twin.gpus, "NIC": self.twin.nics}
        return lanes + [f"{count(many, what)} fewer" for what, many in counts.items() if many > 0]

    def sentence(self) -> str:
        """The answer in one line."""
        first = self.machine.device(self.machine.members[0])
        capability = f" of compute capability {int(sm) / 10}" if (sm := first.attributes.get("sm")) else ""
        gpus = f"{self.machine.ranks} x {model(first) or f'GPU{capability}'}"
        if self.twin is None:
            return f"{self.machine.name}: {gpus}; cannot tell, none of the catalogue has these GPUs and links"
        less = f"but {names(self.missing, ', ', 5)}" if self.missing else "nothing missing"
        return f"{self.machine.name}: like {self.twin.name} ({gpus}), {less}"

    def text(self) -> str:
        """The sentence, what is lost, and what to do: at most nine lines."""
        lines, was, now, other = list[tuple[str, str]](), self.healthy, self.takes, self.meanwhile
        if now is not None:
            asked = f"{_ASKED} of {format_size(SIZE)}: {format_time(now.time_s)}"
            longer, factor = now.time_s / (was or now).time_s, now.busbw / now.algbw
            instead = f" in place of {format_time(was.time_s)}, {longer:.3g} times as long" if was else ""
            library, rate = now.details["library"], format_rate(now.busbw)
            lines.append((f"{library} takes", f"{asked}{instead}, busbw {rate}"))
            most = [format_rate(one.bound.rate * factor) for one in (now, was) if one and one.bound]
            lines.append(("bound", f"busbw {' in place of '.join(dict.fromkeys(most))}"))
        if other is not None and now is not None:
            few, rate = count(len(other.members), "GPU"), format_rate(other.busbw)
            visible = f"CUDA_VISIBLE_DEVICES={','.join(name.strip('gpu') for name in other.members)}"
            better = f"take {few}, {visible}: busbw {rate}" if other.busbw > now.busbw else ""
            lines.append(("meanwhile", better or f"take all: no {few} do better (busbw {rate})"))
        if self.missing and self.twin is not None:
            lines.append(("check", _NVLINKS if self.twin.lanes else _CARDS))
        for one in self.findings[:2]:
            lines.append((one.severity, f"{one.message}; {one.cure}"))
        return "\n".join((self.sentence(), *labelled(lines)))

    def rows(self) -> list[dict[str, Any]]:
        """One row for each link that lacks lanes."""
        lanes = self.twin.lanes.items() if self.twin else ()
        keys = "src dst kind lanes of=lanes"
        return [keyed(link, keys) | {"lanes": link.lanes - fewer} for link, fewer in lanes]

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        keys = "machine=machine.name source=machine.source ranks=machine.ranks like=twin.name status missing"
        keys += " rows gpus_fewer=twin.gpus nics_fewer=twin.nics edits=twin.edits size_bytes"
        keys += " time_s=takes.time_s busbw_GBps=takes.busbw healthy_time_s=healthy.time_s"
        keys += " healthy_busbw_GBps=healthy.busbw bound_exact=takes.bound.rate"
        keys += " healthy_bound_exact=healthy.bound.rate take=meanwhile.members"
        keys += " take_busbw_GBps=meanwhile.busbw findings"
        said = [keyed(one, "rule severity message cure") for one in self.findings]
        return keyed(self, keys, rows=self.rows(), size_bytes=SIZE, findings=said)


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
    twin = twin_of(recorded)
    # Links that are missing are named by what the machine of the catalogue has.
    known = ("as-in-catalogue", "missing-link") if twin else ()
    findings = tuple(one for one in check(recorded) if one.rule not in known)
    broken = Question(twin.name, edits=twin.edits) if twin else Question(recorded)
    takes, healthy, meanwhile = _takes(broken), None, None
    if twin is not None and twin.edits:
        healthy = _takes(Question(twin.name))
        hurt = {end for link in twin.lanes for end in (link.src, link.dst)}
        sound = sum(name not in hurt for name in recorded.members)
        if hurt and recorded.ranks > 2:
            best = place(broken.whole(), max(sound, recorded.ranks // 2, 2))[0]
            meanwhile = _takes(Question.of(twin.name, members=best.members, edits=twin.edits))
    return Health(recorded, twin, takes, healthy, meanwhile, findings)


def _takes(question: Question) -> Projection | None:
    """What the library takes; None where its GPUs are not connected, or alone."""
    try:
        model, where = Library().at(question)
        return model.times(where, _ASKED, [SIZE])[0]
    except BlinksimError:
        return None
