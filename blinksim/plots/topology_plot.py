"""A machine as a picture: devices, links as wide as their bandwidth, and what a bound's certificate cuts apart."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from blinksim.bounds.certificates.certificate import Cut, Partition, Phases
from blinksim.errors import InputError
from blinksim.machines import MachineLike, as_topology
from blinksim.plots.style import COLOURS, figure
from blinksim.topology.graph import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blinksim.bounds.bound_result import BoundResult
    from blinksim.topology.graph import Device

Point = tuple[float, float]
MOST_DEVICES = 400
# Light shades for the parts of a cut, in the hues of the palette; the dashed links between them say it without colour.
_SHADES = ("#cfe3f2", "#f9dcc9", "#cfeee3", "#f4deea", "#faeccc", "#ddf0fb", "#e3e3e3", "#e8dcc6")
# From the top: what joins nodes, what leads out of them, the hosts, switches, and GPUs at the bottom.
_LAYERS = {"fabric": 4.2, "nic": 3.1, "cpu": 2.2, "pcie": 1.6, "switch": 1.1, "gpu": 0.0, "tile": 0.0}
_SHAPES = {"gpu": "o", "tile": "o", "switch": "s", "pcie": "s", "cpu": "D", "nic": "^", "fabric": "h"}
_CUT = "#D55E00"


def topology(machine: MachineLike, bound: BoundResult | None = None) -> Figure:
    """The devices and links of a machine: width is bandwidth, colour and dashes are the link class.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology. Of a machine that is named, the default members and
        links are drawn.
    bound : BoundResult, optional
        What its certificate cuts apart is shaded, and the links between the parts drawn dashed in orange.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Raises
    ------
    InputError
        For more than 400 devices.

    Examples
    --------
    >>> import blinksim as bs
    >>> picture = bs.plot.topology("dgx1-v100", bs.bound("dgx1-v100", "allreduce"))
    """
    if not isinstance(machine, Topology):
        machine = as_topology(machine).select(connected=False)
    if len(machine.devices) > MOST_DEVICES:
        count = len(machine.devices)
        raise InputError(f"{count} devices are too many to draw (at most {MOST_DEVICES}); show fewer nodes")
    places = layout(machine)
    width = min(22.0, max(7.0, 1.6 + (max(x for x, _ in places.values()) - min(x for x, _ in places.values())) * 0.95))
    drawn, axes = figure(width, 5.6 if min(y for _, y in places.values()) > -1 else 6.6)
    bare(axes)
    parts, words = _parts(machine, bound) if bound is not None else ([], "")
    cut = {name: number for number, part in enumerate(parts) for name in part}
    shade(axes, machine, places, parts)
    most = max((link.bandwidth for link in machine.links), default=None)
    labelled: set[str] = set()
    for a, b, kind, there, back in pairs(machine):
        between = bool(cut) and cut.get(a) != cut.get(b)
        colour = _CUT if between else class_colour(machine, kind)
        wide = 0.6 + 5.4 * float(max(there, back) / most) if most else 1.0
        axes.plot(
            *zip(places[a], places[b], strict=True),
            color=colour,
            linewidth=wide,
            linestyle=(0, (2.2, 1.0)) if between else "-",
            solid_capstyle="round",
            alpha=0.9,
            zorder=2 if between else 1,
        )
        labelled.add(kind)
    devices(axes, machine, places)
    _legend(axes, machine, labelled, bool(cut))
    axes.set_title(_title(machine, bound, words, int(width * 11)), loc="left", fontsize=9)
    return drawn


def layout(machine: Topology) -> dict[str, Point]:
    """Where each device goes: a circle where GPUs are linked to each other, else layers by kind, nodes side by side."""
    holders = [d for d in machine.devices if d.kind in ("gpu", "tile")]
    if len(holders) == len(machine.devices) or (machine.nodes == 1 and _direct(machine)):
        return _around(machine, _circle([d.name for d in holders], 3.0))
    columns: dict[int, dict[float, list[Device]]] = {}
    for device in machine.devices:
        columns.setdefault(device.node, {}).setdefault(_LAYERS[device.kind], []).append(device)
    places: dict[str, Point] = {}
    left = 0.0
    for node in sorted(number for number in columns if number >= 0):
        span = max(len(row) for row in columns[node].values()) * 0.8
        for height, row in columns[node].items():
            places |= _row(row, left, span, height)
        left += span + 0.8
    for height, row in columns.get(-1, {}).items():
        places |= _row(row, 0.0, max(left - 0.8, 0.8), height)
    return places


def _direct(machine: Topology) -> bool:
    kinds = {machine.device(link.src).holds and machine.device(link.dst).holds for link in machine.links}
    return True in kinds and not any(d.kind == "switch" for d in machine.devices)


def _row(row: Sequence[Device], left: float, span: float, height: float) -> dict[str, Point]:
    gap = span / len(row)
    # Neighbours of a crowded row stand a little above and below each other, so that links do not hide behind devices.
    return {d.name: (left + gap * (i + 0.5), height + 0.12 * (i % 2) * (len(row) > 2)) for i, d in enumerate(row)}


def _circle(names: Sequence[str], radius: float) -> dict[str, Point]:
    turn = 2 * math.pi / max(1, len(names))
    angles = [math.pi / 2 + turn / 2 - i * turn for i in range(len(names))]
    return {name: (radius * math.cos(a), radius * math.sin(a)) for name, a in zip(names, angles, strict=True)}


def _around(machine: Topology, places: dict[str, Point]) -> dict[str, Point]:
    """`places` of the GPUs on a circle, and outside of it, ring by ring, what is linked to what is placed already."""
    radius = 3.0
    while len(places) < len(machine.devices):
        radius += 1.1
        near: dict[str, list[Point]] = {}
        for link in machine.links:
            if link.dst not in places and link.src in places:
                near.setdefault(link.dst, []).append(places[link.src])
        if not near:
            near = {d.name: [(0.0, 1.0)] for d in machine.devices if d.name not in places}
        taken: list[float] = []
        for name, spots in near.items():
            angle = math.atan2(sum(y for _, y in spots), sum(x for x, _ in spots))
            while any(math.dist((math.cos(angle), math.sin(angle)), (math.cos(t), math.sin(t))) < 0.25 for t in taken):
                angle -= 0.26
            taken.append(angle)
            places[name] = (radius * math.cos(angle), radius * math.sin(angle))
    return places


def bare(axes: Axes) -> None:
    """Axes without a frame, a grid or ticks, both directions to the same scale."""
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.margins(0.08)


def pairs(machine: Topology) -> list[tuple[str, str, str, float, float]]:
    """(device, device, class, bytes/s there, bytes/s back) of every linked pair, once."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for link in machine.links:
        forward = machine.index[link.src] < machine.index[link.dst]
        key = (link.src, link.dst, link.kind) if forward else (link.dst, link.src, link.kind)
        found.setdefault(key, [0.0, 0.0])[0 if forward else 1] += float(link.bandwidth)
    return [(*key, rates[0], rates[1]) for key, rates in found.items()]


def class_colour(machine: Topology, kind: str) -> str:
    """Grey for the first class, palette colours for the others: orange stays free for what is cut."""
    grey = ("#555555", COLOURS[0], COLOURS[2], COLOURS[3], COLOURS[5], COLOURS[7])
    return grey[machine.link_classes.index(kind) % len(grey)]


def devices(axes: Axes, machine: Topology, places: dict[str, Point], size: float = 330.0, names: bool = True) -> None:
    """Markers by kind; members are filled white, relays grey, forwarders small."""
    crowded = len(machine.devices) > 60
    round_ = abs(sum(x for x, _ in places.values())) < 1e-6 or min(y for _, y in places.values()) < -1
    for device in machine.devices:
        x, y = places[device.name]
        holds = device.holds or device.name in machine.relays
        axes.scatter(
            [x],
            [y],
            s=(size if holds else size * 0.55) * (0.3 if crowded else 1.0),
            marker=_SHAPES[device.kind],
            facecolor="#bbbbbb" if device.name in machine.relays else "white" if holds else "#f2f2f2",
            edgecolor="black",
            linewidth=1.0,
            zorder=3,
        )
        if names and not crowded:
            text = _short(machine, device.name)
            inside = holds and len(text) <= 4
            away = math.hypot(x, y) or 1.0
            outward = (21 * x / away, 15 * y / away) if round_ else (0, -13)
            axes.annotate(
                text,
                (x, y),
                xytext=(0, 0) if inside else outward,
                textcoords="offset points",
                ha="center",
                va="center",
                fontsize=7 if inside else 6,
                zorder=4,
            )


def _short(machine: Topology, name: str) -> str:
    """``gpu3`` as ``3`` where all GPUs are numbered, and ``n1.nic0`` as ``nic0``: the node is the place."""
    tail = name.split(".", 1)[1] if machine.nodes > 1 and "." in name and name[0] == "n" else name
    return tail.removeprefix("gpu") if tail.startswith("gpu") and machine.nodes == 1 else tail


def shade(axes: Axes, machine: Topology, places: dict[str, Point], parts: Sequence[Sequence[str]]) -> None:
    """A shade behind the devices of every part, joined along the part's own links."""
    for number, part in enumerate(parts):
        inside, colour = set(part), _SHADES[number % len(_SHADES)]
        for link in machine.links:
            if link.src in inside and link.dst in inside:
                ends = zip(places[link.src], places[link.dst], strict=True)
                axes.plot(*ends, color=colour, linewidth=30, solid_capstyle="round", zorder=0)
        spots = [places[name] for name in part]
        axes.scatter([x for x, _ in spots], [y for _, y in spots], s=1100, color=colour, linewidth=0, zorder=0)


def _parts(machine: Topology, bound: BoundResult) -> tuple[list[Sequence[str]], str]:
    """The devices that the first certificate with parts tells apart, and its words; of two phases, the allgather's."""
    for entry in bound.bounds:
        certificate = entry.certificate
        if isinstance(certificate, Phases):
            certificate = certificate.phases[-1][1]
        if isinstance(certificate, Partition):
            return list(certificate.parts), certificate.words(machine)
        if isinstance(certificate, Cut):
            inside = set(certificate.side)
            rest = [d.name for d in machine.devices if d.name not in inside]
            return [certificate.side, rest], f"{entry.scope}: {certificate.words(machine)}"
    return [], ""


def _legend(axes: Axes, machine: Topology, classes: Iterable[str], cut: bool) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for kind in machine.link_classes:
        if kind in classes:
            rates = sorted({float(x.bandwidth) / 1e9 for x in machine.links if x.kind == kind})
            span = f"{rates[0]:.4g}" if len(rates) == 1 else f"{rates[0]:.4g} to {rates[-1]:.4g}"
            label = f"{kind}, {span} GB/s each way"
            handles.append(Line2D([], [], color=class_colour(machine, kind), linewidth=3, label=label))
    if cut:
        dashes = (0, (2.2, 1.0))
        handles.append(Line2D([], [], color=_CUT, linewidth=3, linestyle=dashes, label="crosses the bottleneck"))
    axes.legend(handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0, 0.02))


def _title(machine: Topology, bound: BoundResult | None, shaded: str, width: int) -> str:
    nodes = f", {machine.nodes} nodes" if machine.nodes > 1 else ""
    lines = [f"{machine.name}{nodes}: {machine.ranks} ranks, {machine.rates} rates"]
    if bound is not None:
        lines.append(f"{bound.collective} at most {float(bound.rate) / 1e9:.4g} GB/s algbw ({bound.scope})")
    if shaded:
        lines += textwrap.wrap(f"shaded: {shaded}", width)[:3]
    return "\n".join(lines)
