"""Projections as data: the presets of `models/*projection.yaml`, the times that they give, and the model of each.

A preset says which reading of the equations runs, which bandwidths it uses, which link class of a machine
stands for each of them, and which table of rates it pins. The preset `projection` derives its levels from any
link graph; the others follow equations 1 to 10 of the Aurora allreduce
projection (2025) with the bandwidths of the machine's link classes. There a large allreduce is a
reduce-scatter inside the node, an allreduce between the nodes and an allgather inside the node; each part
takes its bytes over the bandwidth of the links that carry them, without latency and arithmetic (section 3.1).

Scale-up and scale-out parts of any machine are derived from its link graph: in a node the link classes form
levels (two tiles of a card over MDFI, cards over Xe links; or one NVSwitch): a reduce-scatter takes the
levels from the inside out, shrinking the vector by the width of each, then the nodes combine what each rank
holds, and an allgather goes back (hierarchical allreduce; Blink, 2018, section 2, and the Aurora allreduce
projection, 2025, section 3.1). A rank's own links are the only limit inside a node and the ports the only one
between nodes: a projection to first order, optimistic where GPUs share an uplink or data must be forwarded.
"""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import chain, compress
from pathlib import Path

from blinksim import data_files
from blinksim.collective import Collective
from blinksim.errors import FileError, InfeasibleError, InputError, one_of, unknown
from blinksim.formats.shipped import machine_names
from blinksim.graphs.connectivity import grouped, joined, summed
from blinksim.machines import Question, load
from blinksim.results import Term, count, total
from blinksim.textio import text_files, yaml_nodes
from blinksim.textio.yaml_nodes import Entry
from blinksim.timing.projection_result import Projection, of_part
from blinksim.timing.timing_model import TimingModel
from blinksim.topology.cluster import nodes_of, place
from blinksim.topology.graph import Link, Topology
from blinksim.topology.selection import NONE
from blinksim.units import format_size, format_time


@dataclass(frozen=True, slots=True)
class Exchange:
    """How parts of a machine exchange data: over links of class `kind`, at `bandwidth` bytes/s each.

    count: of a level inside a node the parts, each rank at that rate; between nodes the ports on every node.
    """

    kind: str
    count: int
    bandwidth: Fraction


def ports(topology: Topology) -> Exchange:
    """The ports of a node: the links that leave it, or those that its fabric would give it.

    The nodes work in step, so the node with the fewest ports and the slowest port set the values. Raises
    `InfeasibleError` if nothing joins the nodes.
    """
    if topology.nodes == 1:
        fabric = topology.fabric
        if fabric is None:
            raise InfeasibleError(f"{topology.name} describes no fabric to join several nodes with")
        return Exchange(fabric.kind, len(fabric.ports), fabric.lane_bandwidth * fabric.lanes)
    node = {device.name: device.node for device in topology.devices}
    leaving: dict[int, list[Link]] = {index: [] for index in node.values() if index >= 0}
    for link in topology.links:
        if 0 <= node[link.src] != node[link.dst]:
            leaving[node[link.src]].append(link)
    fewest = min(leaving.values(), key=len)
    if not fewest:
        raise InfeasibleError(f"{topology.name}: a node has no link to the other nodes")
    kinds = dict.fromkeys(link.kind for links in leaving.values() for link in links)
    slowest = min(_share(link) for links in leaving.values() for link in links)
    return Exchange(", ".join(kinds), len(fewest), slowest)


def _share(link: Link) -> Fraction:
    """Bytes/s of one direction while both are busy: half of a bus."""
    return link.bandwidth if link.bus is None else link.bandwidth / 2


def levels(topology: Topology, members: Sequence[str]) -> tuple[Exchange, ...]:
    """The levels by which the link classes join `members` (all in one node), innermost first; none for one member.

    Raises `InfeasibleError` if a class joins them in groups of unequal size, or if no class joins them all.
    """
    idle = {*topology.holders} - {*members, *topology.relays}
    home = topology.device(members[0]).node
    here = (device.name for device in topology.devices if device.node == home)
    part = {name: number for number, name in enumerate(here) if name not in idle}
    inside = grouped((link.kind, link) for link in topology.links if link.src in part and link.dst in part)
    kinds = topology.collective_links or topology.link_classes
    links = {kind: inside.get(kind, []) for kind in kinds}
    found, remaining, parts = list[Exchange](), list(kinds), len(members)
    while parts > 1:
        rates = {kind: _rate(topology, links[kind], members, part) for kind in remaining}
        kind, sizes = max(remaining, key=rates.__getitem__, default=""), Counter[int]()
        if rates.get(kind, 0) > 0:
            remaining.remove(kind)
            part = _joined(part, links[kind])
            sizes.update(map(part.__getitem__, members))
        if len(set(sizes.values())) != 1:
            together = _joined(part, [*chain(*links.values())])
            what, names = f"{topology.name}: {', '.join(kinds)}", ", ".join(members)
            if len(set(map(together.__getitem__, members))) > 1:
                raise InfeasibleError(f"{what} does not connect {names}")
            advice = "take as many ranks as fill every group"
            raise InfeasibleError(f"{what} joins {names} in groups of unequal size; {advice}")
        if len(sizes) < parts:
            found.append(Exchange(kind, parts // len(sizes), rates[kind]))
        parts = len(sizes)
    return tuple(found)


def _rate(topology: Topology, links: Sequence[Link], members: Sequence[str], part: Mapping[str, int]) -> Fraction:
    """Bytes/s that each member can send over `links` out of its part, in the part where that is least.

    A member's own links are its own; links that leave the part's forwarders are divided among its members.
    """
    leaving = dict.fromkeys(part, Fraction(0))
    for link in links:
        if part[link.src] != part[link.dst]:
            leaving[link.src] += _share(link)
    for name in leaving:
        capacity = topology.device(name).capacity
        if capacity is not None:
            leaving[name] = min(leaving[name], capacity)
    own = grouped((part[name], leaving[name]) for name in members)
    forwarded = summed((part[name], leaving[name]) for name in part.keys() - set(members))
    return min(min(rates) + forwarded.get(number, Fraction(0)) / len(rates) for number, rates in own.items())


def _joined(part: Mapping[str, int], links: Sequence[Link]) -> dict[str, int]:
    """The parts after everything that `links` connect has become one."""
    first = joined(part.values(), ((part[link.src], part[link.dst]) for link in links))
    return {name: first[number] for name, number in part.items()}


# What happens inside the node before and after, and in between how often the vector, less a node's own share,
# crosses its ports; 0 where the whole vector goes through once.
_STRUCTURES = {
    "allreduce": ("reduce-scatter", 2, "allgather"),
    "reducescatter": ("reduce-scatter", 1, ""),
    "allgather": ("", 1, "allgather"),
    "broadcast": ("scatter", 0, "allgather"),
    "reduce": ("reduce-scatter", 0, "gather"),
}


def hierarchical(
    topology: Topology,
    members: Sequence[str],
    nodes: int,
    size: int,
    collective: str = "allreduce",
    nic_efficiency: Fraction = Fraction(1),
) -> tuple[Term, ...]:
    """Terms of a collective of `size` bytes over `nodes` nodes, on `members` of the topology (all, or one node's).

    Broadcast and reduce pass the vector on between the nodes as a pipeline of small chunks; the others are
    bandwidth-optimal between the nodes too. Ranks drive the ports nearest to them, and at least one each.
    Raises `InfeasibleError` for a collective that does not have this structure, and as `levels` and `ports`
    do.
    """
    if collective not in _STRUCTURES:
        covered = f"the projection covers {', '.join(_STRUCTURES)}"
        phases = "a reduce-scatter, an exchange between nodes and an allgather"
        raise InfeasibleError(f"{collective} is not {phases}; {covered}")
    before, passes, after = _STRUCTURES[collective]

    def timed(group: Sequence[str]) -> list[tuple[str, float]]:
        steps, part = list[tuple[str, float]](), Fraction(size)
        for level in levels(topology, group):
            steps.append((level.kind, float(part * Fraction(level.count - 1, level.count) / level.bandwidth)))
            part /= level.count
        return steps

    # The levels of the node that takes longest; all nodes wait for it.
    groups = [[members[rank] for rank in ranks] for ranks in nodes_of(topology, members)]
    steps = max(map(timed, groups), key=lambda steps: sum(time for _, time in steps))
    terms = []
    # Of several levels each is called after the links that join its groups.
    where = "in the node" + " over {}" * (len(steps) > 1)
    if before:
        terms += [Term(f"{before} {where.format(kind)}", time, kind) for kind, time in steps]
    if nodes > 1:
        out = ports(topology)
        alone = min(out.count, len(groups[0])) * out.bandwidth
        together = min(out.count * out.bandwidth, _own_ports(topology, groups[0], out.bandwidth))
        crossing = Fraction(passes * (nodes - 1), nodes) if passes else 1
        time = float(size * crossing / (max(alone, together) * nic_efficiency))
        terms.append(Term(f"{collective} between nodes", time, out.kind))
    if after:
        terms += [Term(f"{after} {where.format(kind)}", time, kind) for kind, time in reversed(steps)]
    return tuple(terms)


def _own_ports(topology: Topology, members: Sequence[str], bandwidth: Fraction) -> Fraction:
    """Bytes/s through the ports that the members of one node have to themselves, `bandwidth` each.

    A port is a member's own if no other member is as near; all own ports that lie behind the same link out of
    the member get no more than the route there carries.
    """
    home = topology.device(members[0]).node
    node = {device.name: device for device in topology.devices if device.node == home}
    fabric = topology.fabric if topology.nodes == 1 else None
    leaving = dict.fromkeys(link.src for link in topology.links if link.src in node and link.dst not in node)
    past = {name for name, device in node.items() if not device.holds}
    wanted, carried = Counter[tuple[str, str]](), dict[tuple[str, str], Fraction]()
    for port in fabric.ports if fabric else leaving:
        if route := _nearest(topology, members, port, past):
            key = route[0].src, route[0].dst
            wanted[key] += 1
            carried[key] = max(carried.get(key, Fraction(0)), min(map(_share, route)))
    return sum((min(count * bandwidth, carried[key]) for key, count in wanted.items()), start=Fraction(0))


def _nearest(topology: Topology, members: Sequence[str], port: str, past: set[str]) -> list[Link]:
    """The route to a port, past devices of `past`, from the member that is nearest; empty if several are."""
    routes = list[list[Link]]()
    for name in {*members} - {port}:
        with suppress(InfeasibleError):
            route = topology.router.route(topology.index[name], topology.index[port])
            routes.append([topology.links[number] for number in route])
    near = sorted((route for route in routes if past.issuperset(link.src for link in route[1:])), key=len)
    return near[0] if len(near) == 1 or (near and len(near[0]) < len(near[1])) else []


BANDWIDTHS = ("mdfi", "xe", "device_to_host", "host_to_switch", "switch_to_nic", "pcie", "nic", "memory")
# The variables of section 2, bandwidths in bytes/s of one link and direction. mdfi: between the two tiles of
# a card. xe: between two cards. device_to_host, host_to_switch, switch_to_nic: the hops of the chain model
# (switch_to_nic is listed in section 2 and used in no equation). pcie: the host copies of equation 6. nic: one
# NIC. memory: GPU memory, which bounds the additions. nics_per_node and nic_efficiency (the share of their
# joint bandwidth that can be had): equation 4. parallel_links: n_l of equations 1 and 7.
CONSTANTS = (*BANDWIDTHS, "nics_per_node", "nic_efficiency", "parallel_links")
Constants = Mapping[str, Fraction]
READINGS = ("exact", "as-written", "chain", "derived")
_CONSTANT = "{nic_efficiency: {value: 4/5, source: section 3}}"
_VALUE = {True: "{bandwidth: 25GB/s, source: data sheet}", False: "{value: 4/5, source: section 3}"}
FABRIC = "fabric"
_PHASES = ("reduce-scatter", "allgather")


@dataclass(frozen=True)
class WhatIf:
    """A change of some constants: what it stands for, the new values (bytes/s, or a share), where they come from."""

    title: str
    changes: Mapping[str, Fraction]
    source: str


@dataclass(frozen=True)
class Preset:
    """One way to project a time.

    reading: one of `READINGS`. rates: the rate table to load the machine with, None for the caller's. uses:
    names of the bandwidths that its terms can have. classes: link class that stands for a bandwidth
    (`FABRIC`: whatever joins the nodes). constants: none for a derived reading, which has only
    `nic_efficiency`. pcie, hide_mdfi: see `equations`. what_if: the changes that the source document
    discusses.
    """

    name: str
    title: str
    reading: str
    rates: str | None
    uses: tuple[str, ...]
    classes: Mapping[str, str]
    constants: Constants
    nic_efficiency: Fraction
    what_if: tuple[WhatIf, ...] = ()
    pcie: bool = False
    hide_mdfi: bool = True
    source: str = ""


# --- presets in files -----------------------------------------------------------------------------------------------


def read_file(path: Path, name: str = "") -> str:
    """The name by which `load_preset` knows a preset of a file from anywhere; name: which, if there are several.

    Raises `FileError` if there is no such preset in the file.
    """
    found = {preset.name: preset for preset in read_presets(path)}
    if not found:
        raise FileError(path, "holds no preset")
    if name and name not in found:
        raise FileError(path, str(unknown("preset", name, found)))
    if not name and len(found) > 1:
        raise FileError(path, f"holds the presets {', '.join(found)}; say which, as in {path}:{next(iter(found))}")
    wanted = name or next(iter(found))
    if presets().maps[-1].get(wanted, found[wanted]) != found[wanted]:
        raise FileError(path, f"{wanted!r} is a preset of models/ already; give it another name")
    presets()[wanted] = found[wanted]
    return wanted


def load_preset(name: str) -> Preset:
    """The preset called `name`, also written ``projection:name``.

    Raises `InputError` for an unknown name and `FileError` for a model file that cannot be used.
    """
    return presets()[one_of("projection", name.removeprefix("projection:"), presets())]


@cache
def presets() -> ChainMap[str, Preset]:
    """The presets of models/ by name, behind those of other files that have been read."""
    found = dict[str, Preset]()
    for path in data_files.files("models", "*projection.yaml").values():
        for preset in read_presets(path):
            if preset.name in found:
                raise FileError(path, f"a second preset is called {preset.name!r}; give it another name")
            found[preset.name] = preset
    return ChainMap({}, found)


def read_presets(path: Path) -> list[Preset]:
    """The presets of one model file; raises `FileError` with the line of the key which cannot be used."""
    root = yaml_nodes.load(path, text_files.read_text(path, what="model file"), "model file")
    root.what = "the file"
    needed = ("source", "constants", "presets")
    example = "{source: …, constants: {…}, presets: {…}}"
    parts = root.mapping(("title", *needed, "what_if"), needed, example=example)
    values, classes = dict[str, Fraction](), dict[str, str]()
    for name, entry in parts["constants"].mapping(CONSTANTS, example=_CONSTANT).items():
        entry.what, rate = f"constant {name}", name in BANDWIDTHS
        given = "bandwidth" if rate else "value"
        known = (given, "source", "assumed", *(("class",) if rate else ()))
        stated = entry.mapping(known, (given, "source"), example=_VALUE[rate])
        # `assumed: true` marks what no document prints; the source then says why it is taken to be so.
        _flag(stated, "assumed", False)
        stated["source"].text()
        values[name] = _value(name, stated[given])
        if "class" in stated:
            classes[name] = stated["class"].text()
    changes = parts["what_if"].items(example="[{title: …, set: {nic: 25GB/s}}]") if "what_if" in parts else []
    what_if = [_what_if(entry, values) for entry in changes]
    source, missing = parts["source"].text(), sorted(set(CONSTANTS) - values.keys())
    efficiency = values.get("nic_efficiency", Fraction(1))
    found = list[Preset]()
    for name, (_, entry) in parts["presets"].named(example="{mine: {title: …, reading: derived}}").items():
        entry.what = f"preset {name}"
        keys = ("title", "reading", "pcie", "hide_mdfi", "rates", "uses")
        stated = entry.mapping(keys, ("title", "reading"), example="{title: …, reading: derived}")
        reading = stated["reading"].choice(READINGS, "reading")
        if reading != "derived" and missing:
            raise stated["reading"].error(f"the reading {reading!r} also needs constants: {', '.join(missing)}")
        uses = stated["uses"].items(example="[xe, nic]") if "uses" in stated else []
        for role in uses:
            if role.text() not in values or role.text() not in BANDWIDTHS:
                raise role.error(f"{entry.what} uses {role.text()!r}, which is not a bandwidth under constants")
        rates = stated["rates"].text() if "rates" in stated else None
        own = name, stated["title"].text(), reading, rates, tuple(role.text() for role in uses)
        constants = {} if missing else values
        flags = _flag(stated, "pcie", False), _flag(stated, "hide_mdfi", True)
        found.append(Preset(*own, classes, constants, efficiency, tuple(what_if), *flags, source))
    return found


def _what_if(entry: Entry, known: Mapping[str, Fraction]) -> WhatIf:
    keys = ("title", "set", "source")
    parts = entry.mapping(keys, keys, example="{title: …, set: {nic: 25GB/s}, source: …}")
    changeable = [name for name in known if name in (*BANDWIDTHS, "nic_efficiency")]
    changes = parts["set"].mapping(changeable, example="{nic: 25GB/s}")
    values = {name: _value(name, value) for name, value in changes.items()}
    return WhatIf(parts["title"].text(), values, parts["source"].text())


def _flag(parts: Mapping[str, Entry], key: str, default: bool) -> bool:
    return parts[key].choice(("true", "false"), "answer") == "true" if key in parts else default


def _value(name: str, entry: Entry) -> Fraction:
    value = entry.rate() if name in BANDWIDTHS else entry.ratio("1 or 4/5")
    if name == "nic_efficiency" and value > 1:
        raise entry.error(f"{entry.what}: {value} is out of range: a share is at most 1")
    if name in ("nics_per_node", "parallel_links") and value.denominator != 1:
        raise entry.error(f"{entry.what}: {value} is not a whole number")
    return value


# --- the equations --------------------------------------------------------------------------------------------------


def equations(
    preset: Preset, size: int, nodes: int, ranks_per_node: int, constants: Constants | None = None
) -> tuple[Term, ...]:
    """The terms of one of the Aurora presets without a machine: `size` bytes, `constants` (default: the preset's).

    ``chain``: the whole vector goes from GPU to GPU, 2(n - 1)/n_l times, with n ranks and n_l parallel links:
    on one node over Xe links (equations 7 to 9), on several through hosts and NICs (equations 1 to 3, n
    counts all ranks; the fourth term is the copy back to the device, which the paper writes with the
    device-to-host bandwidth).

    The other readings take equation 10 on one node, and on N of them equation 4: half the vector over n_Xe Xe
    links, 2Z(N-1)/N over the NICs that the R ranks of a node can drive (one each; the paper does not print
    the count), and back. ``as-written`` does so to the letter, with n_Xe = R/2 and at least 1. This is not
    how the tables were made: it charges Xe links to a rank that is alone in its node, and to two ranks that
    share a card.

    ``exact`` gives the published tables. N = 1: with R = 2 the ranks sit on two cards and the MDFI terms fall
    away. N >= 2, R = 1: the scale-up terms fall away. R = 2: both ranks share a card, and MDFI takes the
    place of the Xe links. R >= 4 and even: n_Xe = R/2 (each tile spreads its half over as many links as there
    are cards), MDFI hidden behind the Xe links, or added in front and behind if not `Preset.hide_mdfi`
    (section 3.1: it can matter for small sizes). `Preset.pcie`: equation 6 besides, which the paper gives
    between nodes only: each rank copies its share to the host and back, in both phases.

    Raises `InfeasibleError` for a preset that has no equations, for an odd R above 1, which leaves a card
    half used, and for `pcie` on one node: the paper covers neither; `InputError` for a single rank.
    """
    known = constants or preset.constants
    if not known:
        raise InfeasibleError(f"{preset.name} has no equations of its own; it needs a machine")
    _check_ranks(nodes, ranks_per_node)
    if preset.reading == "chain":
        moved = size * Fraction(2 * (nodes * ranks_per_node - 1), known["parallel_links"])
        hops = [("from card to card", "xe")]
        if nodes > 1:
            hops = [("device to host", "device_to_host"), ("host to switch", "host_to_switch")]
            hops += [("through the NIC", "nic"), ("host to device", "device_to_host")]
        return tuple(_term(known, name, moved, role) for name, role in (*hops, ("additions", "memory")))
    exact = preset.reading == "exact"
    if exact and ranks_per_node > 1 and ranks_per_node % 2:
        half = f"{ranks_per_node} ranks per node leave a card half used, which the projection does not cover"
        raise InfeasibleError(f"{half}; take {ranks_per_node - 1} or {ranks_per_node + 1}")
    if nodes == 1:
        if exact and preset.pcie:
            raise InfeasibleError("equation 6, with copies to the host, is for 2 nodes or more; use aurora-projection")
        share = Fraction(size, ranks_per_node)
        cards = _there_and_back(known, "between cards", share, "xe")
        alone = exact and ranks_per_node == 2
        return cards if alone else (*cards, *_there_and_back(known, "in the card", share, "mdfi"))
    return _on_nodes(known, preset, size, nodes, ranks_per_node)


def _on_nodes(known: Constants, preset: Preset, size: int, nodes: int, ranks_per_node: int) -> tuple[Term, ...]:
    """Equation 4 on two nodes or more, as `equations` says."""
    exact = preset.reading == "exact"
    driven = known["nic_efficiency"] * min(Fraction(ranks_per_node), known["nics_per_node"])
    between = _term(known, "allreduce between nodes", Fraction(2 * size * (nodes - 1), nodes), "nic", driven)
    terms: tuple[Term, ...] = (between,)
    if not exact or ranks_per_node > 2:
        links = max(Fraction(1), Fraction(ranks_per_node, 2))
        before, after = _there_and_back(known, "between cards", Fraction(size, 2), "xe", links)
        terms = (before, *terms, after)
    if exact and (ranks_per_node == 2 or (ranks_per_node > 2 and not preset.hide_mdfi)):
        before, after = _there_and_back(known, "in the card", Fraction(size, 2), "mdfi")
        terms = (before, *terms, after)
    if exact and preset.pcie:
        copies = (f"copies to the host and back, {phase}" for phase in _PHASES)
        terms += tuple(_term(known, name, Fraction(2 * size, ranks_per_node), "pcie") for name in copies)
    return terms


def _term(constants: Constants, name: str, amount: Fraction | int, role: str, times: Fraction | int = 1) -> Term:
    """The time of `amount` bytes on `times` links of a role."""
    return Term(name, float(amount / (times * constants[role])), role)


def _there_and_back(
    constants: Constants, where: str, amount: Fraction, role: str, times: Fraction | int = 1
) -> tuple[Term, ...]:
    return tuple(_term(constants, f"{phase} {where}", amount, role, times) for phase in _PHASES)


def _check_ranks(nodes: int, ranks_per_node: int) -> None:
    """Raises `InputError` unless there are two ranks or more to combine."""
    if nodes < 1 or ranks_per_node < 1:
        raise InputError(f"{nodes} nodes with {ranks_per_node} ranks each; give at least 1 of both")
    if nodes * ranks_per_node == 1:
        raise InputError("a collective needs at least two ranks; give nodes=2 or ranks_per_node=2")


# --- on a machine ---------------------------------------------------------------------------------------------------


def project(
    topology: Topology,
    nodes: int,
    ranks_per_node: int | None,
    size: int,
    preset: Preset | str = "projection",
    collective: str = "allreduce",
) -> tuple[Term, ...]:
    """The terms that a collective's time is the sum of.

    topology: the machine with the rates that the preset pins (`Preset.rates`) and all of its link classes,
    either as a cluster of `nodes` nodes or as one node whose `fabric` joins them. ranks_per_node: how many
    members of every node take part, the first ones; None for all. size: bytes, as `blinksim.collective`
    defines it.

    Raises `InputError` for counts that the machine does not have and `InfeasibleError` for a collective, a
    number of ranks or a machine that the preset does not cover.
    """
    preset = load_preset(preset) if isinstance(preset, str) else preset
    if topology.nodes not in (1, nodes):
        raise InputError(f"{topology.name} is a cluster of {topology.nodes} nodes, not of {nodes}")
    members = ranks_of(topology, nodes, ranks_per_node, preset)
    counts = sorted({len(ranks) for ranks in nodes_of(topology, members)})
    if len(counts) > 1:
        unlike = f"the nodes have {' and '.join(map(str, counts))} ranks"
        raise InfeasibleError(f"{unlike}; a projection needs the same number on every node")
    ranks = len(members) // topology.nodes
    _check_ranks(nodes, ranks)
    if preset.reading == "derived":
        return hierarchical(topology, members, nodes, size, collective, preset.nic_efficiency)
    if collective != "allreduce":
        raise InfeasibleError(f"{preset.name} is for allreduce; 'projection' covers {', '.join(_STRUCTURES)}")
    constants = machine_constants(topology, members, nodes, preset)

    def link_class(role: str) -> str:
        kind = preset.classes.get(role, role)
        return ports(topology).kind if kind == FABRIC and nodes > 1 else kind

    terms = equations(preset, size, nodes, ranks, constants)
    return tuple(replace(term, limit=link_class(term.limit)) for term in terms)


def ranks_of(topology: Topology, nodes: int, ranks_per_node: int | None, preset: Preset) -> tuple[str, ...]:
    """The members that take part: the first ones of every node; two ranks on one node are on two cards.

    Equations 7 and 10 have these exchange over Xe. Raises `InfeasibleError` if no such link leaves the first.
    """
    members = place(topology, ranks_per_node)
    if nodes > 1 or len(members) != 2 or preset.reading not in ("chain", "exact"):
        return members
    kind = preset.classes.get("xe", "xe")
    joined = {link.dst for link in topology.links if link.src == members[0] and link.kind == kind}
    others = [name for name in topology.members if name in joined]
    if not others:
        raise InfeasibleError(f"{preset.name} is for two ranks on two cards, and {members[0]} has no {kind} link")
    return members[0], others[0]


def check_classes(preset: Preset, topology: Topology) -> None:
    """Raises `InfeasibleError`, which names machines that have them, without the link classes of a preset."""
    needs = {preset.classes.get(role, FABRIC) for role in preset.uses} - {FABRIC}
    if lacking := sorted(needs - {*topology.link_classes}):
        holds = ", ".join(name for name in machine_names.names() if needs <= {*load(name).link_classes})
        has = f"{topology.name} has {', '.join(topology.link_classes)}"
        why = f"{preset.name} holds for {holds}: it needs links of class {lacking[0]!r}, and {has}"
        raise InfeasibleError(f"{why}; the model 'projection' derives its levels from the machine")


def machine_constants(topology: Topology, members: Sequence[str], nodes: int, preset: Preset) -> Constants:
    """The preset's constants with the machine's bandwidths, bytes/s, where a link class stands for one.

    That is the slowest link of the class among those that idle GPUs do not end: all ranks work in step.
    Raises `InfeasibleError` if the machine lacks such a class.
    """
    check_classes(preset, topology)
    constants = dict(preset.constants)
    idle = {*topology.holders} - set(members)
    for role in preset.uses:
        kind = preset.classes.get(role)
        if kind == FABRIC:
            if nodes > 1:
                out = ports(topology)
                constants |= {role: out.bandwidth, "nics_per_node": Fraction(out.count)}
        elif kind is not None:
            links = [link for link in topology.links if link.kind == kind]
            held = Counter(link.src for link in links)
            few, most = min(members, key=held.__getitem__), max(map(held.__getitem__, members))
            if held[few] < most:
                lacks = f"{few} has {count(held[few], f'{kind} link')} and others have {most}"
                raise InfeasibleError(f"{lacks}; {preset.name} takes all ranks as alike")
            used = [link for link in links if link.src not in idle and link.dst not in idle]
            constants[role] = min(link.bandwidth for link in used or links)
    return constants


# --- section 5 as a table -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the bottleneck table.

    change: what is different (empty in the first row, the projection as it is). time_s and terms: the new
    time. saved_s: how much less than the first row. ratio: first row's time over the new one.
    """

    change: str
    settings: str
    time_s: float
    saved_s: float
    ratio: float
    terms: tuple[Term, ...]
    source: str = ""


def bottlenecks(
    preset: Preset | str, size: int, nodes: int, ranks_per_node: int, machine: Topology | None = None
) -> tuple[Change, ...]:
    """What each change that section 5 of the source discusses would do, one at a time, largest gain first.

    size: bytes. machine: whose links count, as in `project` (default: the preset's constants). Changes to what
    the preset does not use are left out. Raises as `equations` and `project` do.
    """
    preset = load_preset(preset) if isinstance(preset, str) else preset
    start = preset.constants
    if machine is not None:
        start = machine_constants(machine, ranks_of(machine, nodes, ranks_per_node, preset), nodes, preset)
    base = equations(preset, size, nodes, ranks_per_node, start)
    before = total(base)

    def text(name: str, value: Fraction) -> str:
        return f"{float(value / 10**9):g} GB/s" if name in BANDWIDTHS else f"{float(value):g}"

    rows = []
    for entry in preset.what_if:
        if not {name for name in entry.changes if name in BANDWIDTHS} <= {*preset.uses}:
            continue
        terms = equations(preset, size, nodes, ranks_per_node, {**start, **entry.changes})
        after = total(terms)
        pairs = ((of, text(of, start[of]), text(of, value)) for of, value in entry.changes.items())
        settings = ", ".join(f"{name} {old} -> {new}" for name, old, new in pairs)
        rows.append(Change(entry.title, settings, after, before - after, before / after, terms, entry.source))
    rows.sort(key=lambda row: row.time_s)
    return (Change("", "", before, 0.0, 1.0, base, preset.source), *rows)


# --- the model ------------------------------------------------------------------------------------------------------

CHAIN = "chain"
# A size is refused if the fewest messages one after another take a tenth of what its bytes take, or more.
_MOST_LEFT_OUT = 10


class PresetModel(TimingModel):
    """The scale-up + scale-out time by a preset of models/ (`blinksim.timing.project`).

    nodes, ranks_per_node: of the cluster, where the topology given is one node with its fabric. Default: as
    many as the topology has. The terms need one node and its fabric only, so that a thousand nodes cost no
    more than one.
    """

    def __init__(self, preset: str, nodes: int | None = None, ranks_per_node: int | None = None) -> None:
        self.preset = load_preset(preset)
        self.name = self.preset.name
        self.rates = self.preset.rates
        self.pins_rates = self.rates is not None
        self.nodes, self.ranks_per_node = nodes, ranks_per_node

    def at(self, question: Question) -> tuple[PresetModel, Topology]:
        """The model for the nodes of the question, and one of them with its fabric, unless an edit names a node."""
        node: Topology | None = None
        with suppress(InputError):
            node = replace(question, nodes=1).whole()
        if node is None or node.fabric is None:
            node = question.whole()
        # A topology may be a cluster itself.
        nodes = question.nodes if node.nodes <= question.nodes else None
        return PresetModel(self.name, nodes, question.ranks_per_node), node

    def at_its_rates(self, question: Question) -> Question:
        """As of other models; a machine without the link classes says so, as it has no such rates either."""
        check_classes(self.preset, question.preferring_known(self.rates).node())
        return super().at_its_rates(question)

    def check(self, question: Question) -> None:
        if question.members is not None or question.relays not in (None, NONE) or question.links is not None:
            raise InputError(f"model={self.name} takes nodes= and ranks_per_node=, not members=, relays= or links=")

    def algorithms(self, topology: Topology, collective: Collective) -> tuple[str, ...]:
        """The only one that the preset has."""
        return (CHAIN if self.preset.reading == "chain" else "scale-up + scale-out",)

    def times(
        self, topology: Topology, collective: Collective, sizes: Iterable[int], algorithms: Sequence[str] | None = None
    ) -> list[Projection]:
        """As `TimingModel.times`. topology: a cluster, or one node with its fabric."""
        own = self.algorithms(topology, collective)
        if algorithms is not None and tuple(algorithms) != own:
            given = ",".join(algorithms)
            raise InputError(f"model={self.name} has an algorithm of its own; leave algorithm={given} out")
        nodes, ranks_per_node = self.nodes, self.ranks_per_node
        if nodes is None:
            groups = nodes_of(topology, topology.members)
            nodes, ranks_per_node = len(groups), len(groups[0])
        fabric, found = (topology.fabric,) if topology.fabric else (), list[Projection]()
        latencies = {link.kind: link.latency + link.overhead for link in (*topology.links, *fabric)}
        # What all nodes need goes from node to node as often as those that have it can double.
        node, (src, dst) = topology.device_nodes, topology.ends
        between = *compress(topology.links, node[src] != node[dst]), *fabric
        latencies |= {link.kind: (nodes - 1).bit_length() * (link.latency + link.overhead) for link in between}
        for size in sizes:
            # What two machines spend on messages, more do as well, however long their bytes take.
            counts = nodes, min(nodes, 2 * topology.nodes)
            asked = ranks_per_node, size, self.preset, collective.name
            terms, few = (project(topology, each, *asked) for each in counts)
            left_out_s, time_s = sum(latencies.get(term.limit, 0.0) for term in few), total(terms)
            # The next power of two, which is easier to say.
            least = 1 << max(0, math.ceil(size * _MOST_LEFT_OUT * left_out_s / total(few)) - 1).bit_length()
            if size < least:
                each = f"the fewest messages that wait for each other take {format_time(left_out_s)}"
                why = f"it counts no latencies, and {each}; take a larger size"
                raise InfeasibleError(f"{self.name} holds from {format_size(least)} on: {why}")
            members = ranks_of(topology, nodes, ranks_per_node, self.preset)
            busy = {term.limit: total(one for one in terms if one.limit == term.limit) for term in terms}
            slowest = max(busy, key=busy.__getitem__)
            what = {"collective": collective, "size": size, "model": self.name, "algorithm": own[0]}
            what |= {"members": members, "links": tuple(kind for kind in busy if kind in latencies)}
            part = of_part(topology, nodes // topology.nodes, relays=(), **what)
            bottleneck = f"{slowest}: {', '.join(term.name for term in terms if term.limit == slowest)}"
            details = {"time_by_class_s": busy, "bottleneck_busy": busy[slowest] / time_s}
            details |= {"holds_from_bytes": least, "links_left_out": sorted(latencies.keys() - busy.keys())}
            found.append(Projection(**part, terms=terms, bottleneck=bottleneck, details=details))
        return found
