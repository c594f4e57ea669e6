"""Measurements of a question: runs of this project, and cells that others published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blinksim.errors import BlinksimError
from blinksim.machines import load
from blinksim.timing.measured import public_tables
from blinksim.topology.graph import Topology

# Sets of published cells that stand beside a projection: those with the most sizes.
MOST_SETS = 3
_OWN = "validate/results"


@dataclass(frozen=True)
class Points:
    """Times of one thing at several sizes.

    source: who measured it, in words. algorithm: whose program ran, empty where a library chose. times: seconds by
    bytes.
    """

    source: str
    algorithm: str
    times: dict[int, float]


def measured_beside(part: Topology, collective: str) -> list[Points]:
    """What was measured of a collective on a selected part: of our programs, of NCCL, and what others published.

    Empty where the part is no machine of the catalogue, or was changed. Programs are those of the quicker protocol.
    """
    if part.loaded_from is None or part.edits or part.relays:
        return []
    return [*_own(part, collective), *_published(part, collective)]


def _own(part: Topology, collective: str) -> Iterator[Points]:
    """On GPUs that a switch joins, any of them stand for as many others."""
    if part.nodes > 1:
        return
    times: dict[str, dict[int, float]] = {}
    for run in public_tables.runs(part.name):
        if (run.collective, run.gpus) == (collective, part.ranks):
            by_size = times.setdefault(run.algorithm, {})
            by_size[run.size] = min(run.time_s, by_size.get(run.size, run.time_s))
    for algorithm, by_size in times.items():
        if algorithm == public_tables.NCCL_RUN:
            yield Points(f"NCCL without NVLS, {_OWN}", "", by_size)
        else:
            yield Points(f"{part.ranks} GPUs, {_OWN}", algorithm, by_size)


def _published(part: Topology, collective: str) -> list[Points]:
    if part.name not in public_tables.machines() or not _all_of_its_nodes(part):
        return []
    times: dict[str, dict[int, float]] = {}
    for cell in public_tables.cells(part.name):
        if (cell.collective, cell.nodes, cell.gpus) == (collective, part.nodes, part.ranks) and not cell.set.members:
            one = cell.set
            library = " ".join(filter(None, (one.library, one.version, one.algorithm)))
            nvls = f", NVLS {cell.nvls}" if cell.nvls in ("on", "off") else ""
            times.setdefault(f"{library}{nvls}, {one.name}", {})[cell.size] = cell.time_s
    most = sorted(times, key=lambda source: -len(times[source]))[:MOST_SETS]
    return [Points(source, "", times[source]) for source in most]


def _all_of_its_nodes(part: Topology) -> bool:
    """True if every GPU takes part, or the first ones of a node where all are alike: as many as were published."""
    try:
        whole = load(part.name)
    except BlinksimError:
        return False
    each = part.ranks // part.nodes
    names = {name.rpartition(".")[2] for name in part.members}
    return names == set(whole.members[:each]) and part.ranks == each * part.nodes
