"""The published cell to hold a log against, of the same machine or of one that is linked alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blinksim.collective import Collective
from blinksim.formats.shipped import machine_names
from blinksim.machines import load
from blinksim.results import keyed
from blinksim.textio import text_files
from blinksim.timing.measured import public_tables
from blinksim.timing.measured.public_tables import Cell
from blinksim.topology.graph import Topology
from blinksim.units import format_rate, format_size

_SUMS = frozenset(("reduce", "reduce_into_reader"))
_FURTHEST = 2
"""By what factor the size of a published cell may differ from the log's."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """A published cell beside the measured size nearest to it.

    cell: what was published. size: the measured size, in bytes. busbw: what was measured there, in bytes/s.
    same: True if the cell is of the same machine, False if of another one whose GPUs are linked in the same
    way.
    """

    cell: Cell
    size: int
    busbw: float
    same: bool

    @property
    def percent(self) -> float:
        """The measured bus bandwidth as a share of the published one."""
        return 100 * self.busbw / self.cell.busbw

    @property
    def words(self) -> str:
        """The comparison in one line."""
        one = self.cell.set
        whose = "for the same machine" if self.same else f"for {one.machine}, whose GPUs are linked in the same way"
        ran = f" ({one.library} {one.version})" if one.version else ""
        here = "" if self.size == self.cell.size else f" at {format_size(self.size)}"
        return (
            f"{whose}{ran}: {format_rate(self.cell.busbw)} busbw at {format_size(self.cell.size)}; "
            f"this log has {self.percent:.0f} % of it{here}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        keys = "machine=cell.set.machine same_machine=same set=cell.set.name quality=cell.set.quality"
        keys += " library=cell.set.library version=cell.set.version size_bytes=cell.size busbw_GBps=cell.busbw"
        return keyed(self, f"{keys} compared_size_bytes=size percent_of_published=percent source=cell.set.source")


def yardstick(
    part: Topology, collective: Collective, measured: Sequence[tuple[int, float]], multicast: bool
) -> Yardstick | None:
    """The published cell to hold a log against, None if there is none of this job.

    The same machine goes before others, large sizes before small ones, equal sizes before near ones, whole
    tables before excerpts, and new versions of the library before old ones. Tables of runs with a forced
    algorithm are left out.

    part: where the log was measured. measured: sizes in bytes with their bus bandwidths in bytes/s,
    ascending. multicast: whether NCCL could use NVLS.
    """
    best = None
    for same, cell in _cells_of_the_job(part, collective, multicast):
        sizes = [one for one in measured if max(one[0], cell.size) <= _FURTHEST * min(one[0], cell.size)]
        near = [(abs(size - cell.size), -size, busbw) for size, busbw in sizes]
        if not near:
            continue
        apart, size, busbw = min(near)
        words = cell.set.version.split(".")
        version = tuple(int(word) if word.isascii() and word.isdigit() else 0 for word in words)
        rank = (same, -size, not apart, -ord(cell.set.quality), version, cell.busbw)
        if best is None or rank > best[0]:
            best = rank, Yardstick(cell, -size, busbw, same)
    return None if best is None else best[1]


def _cells_of_the_job(part: Topology, collective: Collective, multicast: bool) -> Iterator[tuple[bool, Cell]]:
    """The published cells of the same job; True for those of the same machine."""
    adds = any(device.in_network & _SUMS for device in part.devices)
    # Where switches can add, NCCL lets them unless it is set not to.
    unlike = {"off"} if multicast else {"on", "unknown"} if adds else {"on"}
    nodes = len({part.device(name).node for name in part.members})
    for name in public_tables.machines():
        same = name == part.name
        if not same and (nodes > 1 or not _linked_alike(part, name)):
            continue
        for cell in public_tables.cells(name):
            job = (cell.collective, cell.nodes, cell.gpus) == (collective.name, nodes, part.ranks)
            if job and not cell.set.algorithm and cell.nvls not in unlike:
                yield same, cell


def _linked_alike(part: Topology, name: str) -> bool:
    """True if the first GPUs of a machine of the catalogue are of the same kind and linked as those of a part are."""
    generations = {_generation(part, member) for member in part.members}
    if len(generations) != 1 or not any(generations):
        return False
    # The text tells most machines apart without reading them.
    if ": ".join(*generations) not in text_files.read_text(machine_names.catalogue_file(name)):
        return False
    other = load(name).select()
    return set(part.members) <= set(other.members) and _links_of(part) == _links_of(
        other.select(part.members, connected=False)
    )


def _generation(part: Topology, member: str) -> tuple[str, str] | tuple[()]:
    """The mark of a generation of GPUs: the compute capability of NVIDIA's, the model of others."""
    attributes = part.device(member).attributes
    key = next((key for key in ("sm", "model") if key in attributes), None)
    return () if key is None else (key, str(attributes[key]))


def _links_of(part: Topology) -> Counter[tuple[object, ...]]:
    """How often each kind of member occurs: its generation, and the kinds, classes and lanes of its links."""
    found: dict[str, list[tuple[str, str, int]]] = {name: [] for name in part.members}
    for link in part.links:
        if link.src in found:
            found[link.src].append((part.device(link.dst).kind, link.kind, link.lanes))
    return Counter((_generation(part, name), *sorted(links)) for name, links in found.items())
