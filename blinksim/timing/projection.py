"""Projected time of a collective as scale-up and scale-out terms, on a machine and by a preset.

The presets of the Aurora allreduce projection (2025) follow its equations (`blinksim.timing.aurora`) with the
bandwidths of the machine's link classes; the preset `projection` derives its levels from any link graph
(`blinksim.timing.hierarchy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from blinksim.errors import InfeasibleError, InputError
from blinksim.timing import aurora, hierarchy
from blinksim.timing.presets import FABRIC, Preset, changed, load_preset
from blinksim.timing.terms import Term, total
from blinksim.topology.cluster import nodes_of, place
from blinksim.topology.graph import Topology


def project(
    topology: Topology,
    nodes: int,
    ranks_per_node: int | None,
    size: int,
    preset: Preset | str = "projection",
    collective: str = "allreduce",
) -> tuple[Term, ...]:
    """The terms that a collective's time is the sum of.

    topology: the machine with the rates that the preset pins (`Preset.rates`) and all of its link classes, either as a
    cluster of `nodes` nodes or as one node whose `fabric` joins them. ranks_per_node: how many members of every node
    take part, the first ones; None for all. size: bytes, as `blinksim.collective` defines it.

    Raises `InputError` for counts that the machine does not have and `InfeasibleError` for a collective, a number of
    ranks or a machine that the preset does not cover.
    """
    preset = load_preset(preset) if isinstance(preset, str) else preset
    members = _members(topology, nodes, ranks_per_node)
    ranks = len(members) // topology.nodes
    aurora.check_ranks(nodes, ranks)
    if preset.reading == "derived":
        return hierarchy.hierarchical(topology, members, nodes, size, collective, preset.nic_efficiency)
    if collective != "allreduce":
        raise InfeasibleError(f"{preset.name} is for allreduce; the model 'projection' also covers {collective}")
    constants = machine_constants(topology, members, nodes, preset)
    return tuple(
        replace(term, limit=_limit(topology, nodes, preset, term.limit))
        for term in equations(preset, size, nodes, ranks, constants)
    )


def equations(
    preset: Preset, size: int, nodes: int, ranks_per_node: int, constants: aurora.Constants | None = None
) -> tuple[Term, ...]:
    """The terms of one of the Aurora presets without a machine: `size` bytes, `constants` (default: the preset's).

    Raises `InfeasibleError` for a preset that has no equations and for counts that they do not cover.
    """
    constants = constants or preset.constants
    if constants is None:
        raise InfeasibleError(f"{preset.name} has no equations of its own; it needs a machine")
    match preset.reading:
        case "chain":
            return aurora.chain(size, nodes, ranks_per_node, constants)
        case "as-written":
            return aurora.as_written(size, nodes, ranks_per_node, constants)
        case _:
            return aurora.exact_reading(
                size, nodes, ranks_per_node, constants, pcie=preset.pcie, hide_mdfi=preset.hide_mdfi
            )


def machine_constants(topology: Topology, members: Sequence[str], nodes: int, preset: Preset) -> aurora.Constants:
    """The preset's constants with the machine's bandwidths, bytes/s, where a link class stands for one.

    Raises `InfeasibleError` if the machine lacks such a class.
    """
    assert preset.constants is not None
    changes: dict[str, Fraction] = {}
    count = preset.constants.nics_per_node
    for role in preset.uses:
        kind = preset.classes.get(role)
        if kind == FABRIC:
            if nodes > 1:
                out = hierarchy.ports(topology)
                changes[role], count = out.bandwidth, out.count
        elif kind is not None:
            changes[role] = _class_bandwidth(topology, kind, members, preset)
    return replace(changed(preset.constants, changes), nics_per_node=count)


def _class_bandwidth(topology: Topology, kind: str, members: Sequence[str], preset: Preset) -> Fraction:
    """Bytes/s of the slowest link of a class among those that idle GPUs do not end: all ranks work in step."""
    if kind not in topology.link_classes:
        raise InfeasibleError(
            f"{preset.name} needs links of class {kind!r}, and {topology.name} has {', '.join(topology.link_classes)}; "
            "the model 'projection' derives its levels from the machine"
        )
    idle = {device.name for device in topology.devices if device.holds} - set(members)
    links = [link for link in topology.links if link.kind == kind]
    used = [link for link in links if link.src not in idle and link.dst not in idle]
    return min(link.bandwidth for link in used or links)


def _limit(topology: Topology, nodes: int, preset: Preset, role: str) -> str:
    kind = preset.classes.get(role, role)
    return hierarchy.ports(topology).kind if kind == FABRIC and nodes > 1 else kind


def _members(topology: Topology, nodes: int, ranks_per_node: int | None) -> tuple[str, ...]:
    if nodes < 1:
        raise InputError(f"{nodes} nodes; give at least 1")
    if topology.nodes not in (1, nodes):
        raise InputError(f"{topology.name} is a cluster of {topology.nodes} nodes, not of {nodes}")
    members = place(topology, ranks_per_node)
    counts = sorted({len(ranks) for ranks in nodes_of(topology, members)})
    if len(counts) > 1:
        raise InfeasibleError(
            f"the nodes have {' and '.join(map(str, counts))} ranks; a projection needs the same number on every node"
        )
    return members


# --- section 5 as a table -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the bottleneck table.

    change: what is different (empty in the first row, the projection as it is). time_s and terms: the new time.
    saved_s: how much less than the first row. ratio: first row's time over the new one.
    """

    change: str
    settings: str
    time_s: float
    saved_s: float
    ratio: float
    terms: tuple[Term, ...]
    source: str = ""


def bottlenecks(
    preset: Preset | str, size: int, nodes: int, ranks_per_node: int, constants: aurora.Constants | None = None
) -> tuple[Change, ...]:
    """What each change that section 5 of the source discusses would do, one at a time, largest gain first.

    size: bytes. constants: where to start from (default: the preset's). Changes to what the preset does not use are
    left out. Raises as `equations` does.
    """
    preset = load_preset(preset) if isinstance(preset, str) else preset
    base = equations(preset, size, nodes, ranks_per_node, constants)
    start = constants or preset.constants
    assert start is not None
    before = total(base)
    rows = []
    for entry in preset.what_if:
        if not {name for name in entry.changes if name in aurora.BANDWIDTHS} <= {*preset.uses}:
            continue
        terms = equations(preset, size, nodes, ranks_per_node, changed(start, entry.changes))
        after = total(terms)
        settings = ", ".join(
            f"{name} {_text(name, getattr(start, name))} -> {_text(name, value)}"
            for name, value in entry.changes.items()
        )
        rows.append(Change(entry.title, settings, after, before - after, before / after, terms, entry.source))
    rows.sort(key=lambda row: row.time_s)
    return (Change("", "", before, 0.0, 1.0, base, preset.source), *rows)


def _text(name: str, value: Fraction) -> str:
    return f"{float(value / 10**9):g} GB/s" if name in aurora.BANDWIDTHS else f"{float(value):g}"
