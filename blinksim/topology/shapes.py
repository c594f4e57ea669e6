"""Machines by formula: ring, line, mesh, torus, hypercube, all-to-all, switch, dragonfly, rails, fat tree.

Each function takes whole numbers and returns a `Topology` with its symmetries; `from_text` reads
``torus:4x4x2@50GB/s`` and the like. Definitions of the networks: W. J. Dally and B. Towles, Principles and
Practices of Interconnection Networks, 2004, chapters 3 to 6.

All links are full duplex. Bandwidths are bytes/s per lane and direction, latency and overhead seconds; those
that are not given are assumptions (25 GB/s, 1 us, none), and the topology's `source` says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

import numpy as np

from blinksim import data_files
from blinksim.errors import InputError
from blinksim.graphs.arrays import Ints
from blinksim.results import count
from blinksim.textio.text_files import read_rows
from blinksim.topology.cluster import replicate
from blinksim.topology.elements import Fabric, check_machine_name, regarded
from blinksim.topology.graph import Device, Link, Topology
from blinksim.topology.symmetry import block_generators
from blinksim.units import format_rate, format_time, parse_rate, parse_time

BANDWIDTH = Fraction(25 * 10**9)
Times = tuple[float, float]
"""Latency and overhead of a link, in seconds."""
TIMES: Times = (1e-6, 0.0)
MOST_DEVICES = 100_000
MOST_LINKS = 1_000_000

_FORMS = read_rows(data_files.folder("models") / "shapes.csv", dict, "shape")
FORMS = {row["shape"]: (row["example"], row["what"]) for row in _FORMS}
"""An example of every form that `from_text` reads, and what it is; of rails and fattree the second rate is the
NICs', and the ratio is the oversubscription of the leaf switches. Of the others the last may be a latency, as in
``ring:4@25GB/s,2us``."""


def _check(name: str, sizes: Sequence[int], devices: int, links: int) -> None:
    """Raises `InputError` before anything large is built. links: directed."""
    text = f"{name}:{'x'.join(map(str, sizes))}"
    if any(size < 1 for size in sizes):
        raise InputError(f"{text}: every size must be at least 1, as in {FORMS[name][0]}")
    if devices < 2:
        raise InputError(f"{text}: a collective needs at least 2 GPUs, as in {FORMS[name][0]}")
    if devices > MOST_DEVICES or links > MOST_LINKS:
        most = f"at most {MOST_DEVICES:,} and {MOST_LINKS:,} are generated"
        raise InputError(f"{text} has {devices:,} devices and {links:,} directed links; {most}")


def _check_cluster(name: str, nodes: int, gpus: int, switches: int, trunks: int) -> None:
    """As `_check` for `nodes` nodes as of `_node`, joined by that many fabric switches and links between these."""
    devices = nodes * (2 * gpus + (gpus > 1)) + switches
    links = nodes * gpus * (6 if gpus > 1 else 4) + trunks
    _check(name, (nodes, gpus), devices if nodes * gpus > 1 else 1, links)


Wire = tuple[str, str] | tuple[str, str, int]
"""Two devices that a link joins both ways; and its lanes, if it has several."""


def _duplex(wires: Iterable[Wire], kind: str, bandwidth: Fraction, times: Times) -> tuple[Link, ...]:
    """Links both ways between the ends of every wire."""
    return tuple(
        Link(src, dst, kind, bandwidth, lanes[0] if lanes else 1, *times)
        for a, b, *lanes in wires
        for src, dst in ((a, b), (b, a))
    )


def _machine(
    name: str,
    what: str,
    devices: Iterable[Device],
    wires: Iterable[Wire],
    figures: tuple[Fraction, Times],
    symmetries: Iterable[Sequence[int]],
    kind: str = "link",
) -> Topology:
    """The machine called `name`. figures: bandwidth and times of all its links."""
    links, own = _duplex(wires, kind, *figures), tuple(map(tuple, symmetries))
    said = _source(what, *figures)
    return Topology(name, tuple(devices), links, collective_links=(kind,), symmetries=own, source=said)


def _gpus(count: int) -> list[Device]:
    return [Device(f"gpu{i}", "gpu") for i in range(count)]


def _source(what: str, bandwidth: Fraction, times: Times) -> str:
    latency, overhead = map(format_time, times)
    rate = f"{format_rate(bandwidth)} a lane and direction"
    return f"generated: {what}; {rate}, latency {latency}, overhead {overhead}"


def _grid(name: str, sizes: Sequence[int], wrap: bool, bandwidth: Fraction, times: Times) -> Topology:
    sizes = tuple(sizes)
    count = math.prod(sizes)
    steps = [size if wrap and size > 2 else size - 1 for size in sizes]
    _check(name, sizes, count, sum(2 * step * (count // size) for step, size in zip(steps, sizes, strict=True) if size))
    grid, wires, symmetries = np.arange(count).reshape(sizes), list[Wire](), list[Ints]()
    for axis, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        # Round a torus of two, both ways lead to the same neighbour: two cables, which are lanes of one link.
        lanes, onward = 2 if wrap and size == 2 else 1, np.roll(grid, -1, axis)
        ends = (np.take(end, np.arange(step), axis).ravel().tolist() for end in (grid, onward))
        wires += [(f"gpu{a}", f"gpu{b}", lanes) for a, b in zip(*ends, strict=True)]
        # Every dimension mirrored and, on a torus, rotated by one; dimensions of equal size exchanged.
        symmetries += [np.flip(grid, axis)] if size > 1 else []
        symmetries += [onward] if wrap and size > 2 else []
        twin = next((other for other in range(axis + 1, len(sizes)) if sizes[other] == size > 1), None)
        symmetries += [] if twin is None else [np.swapaxes(grid, axis, twin)]
    images, figures = (image.ravel().tolist() for image in symmetries), (bandwidth, times)
    what, text = f"{name} of {' x '.join(map(str, sizes))} GPUs", f"{name}:{'x'.join(map(str, sizes))}"
    return _machine(text, what, _gpus(count), wires, figures, images)


def ring(gpus: int, bandwidth: Fraction = BANDWIDTH, times: Times = TIMES) -> Topology:
    """GPUs in a circle, links both ways round. A ring of two is one link with two lanes."""
    return _grid("ring", (gpus,), True, bandwidth, times)


def line(gpus: int, bandwidth: Fraction = BANDWIDTH, times: Times = TIMES) -> Topology:
    """GPUs in a row: a ring without its last link."""
    return _grid("line", (gpus,), False, bandwidth, times)


def mesh(sizes: Sequence[int], bandwidth: Fraction = BANDWIDTH, times: Times = TIMES) -> Topology:
    """A grid of any number of dimensions, numbered with the last dimension fastest."""
    return _grid("mesh", sizes, False, bandwidth, times)


def torus(sizes: Sequence[int], bandwidth: Fraction = BANDWIDTH, times: Times = TIMES) -> Topology:
    """A grid closed to a ring in every dimension, numbered with the last dimension fastest.

    A dimension of 2 gives links with two lanes (both cables lead to the same neighbour), so that every GPU
    has two lanes in every dimension above 1.
    """
    return _grid("torus", sizes, True, bandwidth, times)


def hypercube(dimension: int, bandwidth: Fraction = BANDWIDTH, times: Times = TIMES) -> Topology:
    """2^dimension GPUs; two are linked if their numbers differ in one bit."""
    if not 0 < dimension < 64:
        raise InputError(f"hypercube:{dimension}: the dimension must be from 1 to 16, as in {FORMS['hypercube'][0]}")
    count = 2**dimension
    _check("hypercube", (dimension,), count, dimension * count)
    bits = [1 << bit for bit in range(dimension)]
    wires = [(f"gpu{i}", f"gpu{i | bit}") for i in range(count) for bit in bits if not i & bit]
    flip = tuple(i ^ 1 for i in range(count))
    orders = [
        tuple(sum(bits[to] for to, bit in zip(order, bits, strict=True) if i & bit) for i in range(count))
        for order in block_generators(dimension)
    ]
    what, figures = f"hypercube of dimension {dimension}", (bandwidth, times)
    return _machine(f"hypercube:{dimension}", what, _gpus(count), wires, figures, (flip, *orders))


def fully_connected(gpus: int, bandwidth: Fraction = BANDWIDTH, times: Times = TIMES) -> Topology:
    """A link of its own between every two GPUs."""
    _check("full", (gpus,), gpus, gpus * (gpus - 1))
    wires = [(f"gpu{i}", f"gpu{j}") for i, j in combinations(range(gpus), 2)]
    what, figures = f"{gpus} GPUs, every two linked", (bandwidth, times)
    return _machine(f"full:{gpus}", what, _gpus(gpus), wires, figures, block_generators(gpus))


def one_switch(gpus: int, bandwidth: Fraction = BANDWIDTH, times: Times = TIMES) -> Topology:
    """GPUs around one switch that only forwards; `times` are those of each of the two links on a path."""
    _check("switch", (gpus,), gpus + 1 if gpus > 1 else gpus, 2 * gpus)
    wires = [(f"gpu{i}", "switch") for i in range(gpus)]
    what, devices = f"{gpus} GPUs around a switch", [*_gpus(gpus), Device("switch", "switch")]
    symmetries, figures = [(*order, gpus) for order in block_generators(gpus)], (bandwidth, times)
    return _machine(f"switch:{gpus}", what, devices, wires, figures, symmetries, "nvlink")


def dragonfly(sizes: Sequence[int], bandwidth: Fraction = BANDWIDTH, times: Times = TIMES) -> Topology:
    """Groups of routers with GPUs, so many as `sizes` says; every two routers of a group and every two groups linked.

    The links of a group to the groups after it, in their order, leave from its first router on, equally many
    from each. All links are alike. (J. Kim, W. J. Dally, S. Scott, D. Abts, Technology-Driven,
    Highly-Scalable Dragonfly Topology, ISCA 2008; balanced: 2 routers for each GPU of one, and 2 gpus**2 + 1
    groups.)
    """
    groups, routers, gpus = sizes
    count, ends = groups * routers, groups * routers * gpus
    directed = 2 * ends + count * (routers - 1) + groups * (groups - 1)
    _check("dragonfly", sizes, ends + count if ends > 1 else 1, directed)
    each = max(1, -(-(groups - 1) // routers))  # links between groups that leave from one router

    def router(group: int, other: int) -> str:
        """The router of `group` whose link leads to the group `other`."""
        return f"router{group * routers + (other - group - 1) % groups // each}"

    pairs = [(f"gpu{i}", f"router{i // gpus}") for i in range(ends)]
    for a in range(groups):
        own = [f"router{a * routers + i}" for i in range(routers)]
        pairs += [*combinations(own, 2), *((router(a, b), router(b, a)) for b in range(a + 1, groups))]
    around = [(i + routers * gpus) % ends for i in range(ends)] + [ends + (i + routers) % count for i in range(count)]
    orders = [around] if groups > 1 else []
    if groups - 1 in (0, each * routers):  # no router without a link between groups, so backwards is the same
        orders.append([*reversed(range(ends)), *reversed(range(ends, ends + count))])
    for first in range(0, routers * gpus, gpus):  # the GPUs on each router of one group
        rest = range(first + gpus, ends + count)
        orders += [[*range(first), *(first + i for i in order), *rest] for order in block_generators(gpus)]
    what = f"{groups} groups of {routers} routers, each with {gpus} GPUs"
    devices = [*_gpus(ends), *(Device(f"router{i}", "switch") for i in range(count))]
    name, figures = f"dragonfly:{groups}x{routers}x{gpus}", (bandwidth, times)
    return _machine(name, what, devices, pairs, figures, orders)


def rail_cluster(
    nodes: int, gpus: int, bandwidth: Fraction = BANDWIDTH, times: Times = TIMES, nic_bandwidth: Fraction | None = None
) -> Topology:
    """Nodes of `gpus` GPUs around a switch with a NIC per GPU; the NICs of equal local index share a rail switch.

    A NIC is reached through its own GPU only. bandwidth: between a GPU and its node's switch; nic_bandwidth:
    of a NIC on both sides, by default the same.
    """
    _check_cluster("rails", nodes, gpus, gpus, 0)
    fabric = Fabric("switch", _nics(gpus), "rail", nic_bandwidth or bandwidth, 1, *times, planes=gpus)
    return _cluster("rails", nodes, gpus, bandwidth, fabric, ", a rail per GPU")


def fat_tree(
    nodes: int,
    gpus: int,
    bandwidth: Fraction = BANDWIDTH,
    times: Times = TIMES,
    nic_bandwidth: Fraction | None = None,
    leaf_nodes: int | None = None,
    oversubscription: Fraction = Fraction(1),
) -> Topology:
    """Nodes as in `rail_cluster`, joined by a two-level tree: leaf switches under a spine.

    leaf_nodes: how many nodes share a leaf switch, by default the root of `nodes`, rounded down.
    oversubscription: how much more the NICs under a leaf carry than the leaf's uplink.
    """
    width = leaf_nodes or max(1, math.isqrt(max(0, nodes)))
    leaves = -(-nodes // width)
    _check_cluster("fattree", nodes, gpus, leaves + 1, 2 * leaves)
    nic = bandwidth if nic_bandwidth is None else nic_bandwidth
    fabric = Fabric("tree", _nics(gpus), "fabric", nic, 1, *times, 1, width, oversubscription)
    joined = f" under a two-level tree, {width} nodes a leaf, oversubscription {oversubscription}"
    return _cluster("fattree", nodes, gpus, bandwidth, fabric, joined)


def _nics(gpus: int) -> tuple[str, ...]:
    return tuple(f"nic{i}" for i in range(gpus))


def _cluster(form: str, nodes: int, gpus: int, bandwidth: Fraction, fabric: Fabric, joined: str) -> Topology:
    """Copies of `_node` on a fabric whose links are like those of the NICs. joined: how, in words."""
    nic, times = fabric.lane_bandwidth, (fabric.latency, fabric.overhead)
    what = f"{nodes} nodes of {gpus} GPUs{joined}, NICs of {format_rate(nic)}"
    # GPUs around a switch, each with a NIC of its own.
    inside = one_switch(gpus, bandwidth, times) if gpus > 1 else None
    devices = inside.devices if inside else (Device("gpu0", "gpu"),)
    links = _duplex([(f"gpu{i}", f"nic{i}") for i in range(gpus)], "nic", nic, times)
    first = len(devices)
    orders = [[*order, *([gpus] if inside else []), *(first + i for i in order)] for order in block_generators(gpus)]
    node = Topology(
        "node",
        (*devices, *(Device(f"nic{i}", "nic") for i in range(gpus))),
        (*(inside.links if inside else ()), *links),
        collective_links=("nvlink",) if inside else ("nic",),
        inter_node_links=("nic",),
        symmetries=tuple(map(tuple, orders)),
    )
    cluster = replicate(node, nodes, fabric)
    return regarded(cluster, name=f"{form}:{nodes}x{gpus}", source=_source(what, bandwidth, times))


# The functions of the forms, in their order.
_Make = Callable[..., Topology]
_PLAIN: Sequence[_Make] = ring, line, mesh, torus, hypercube, fully_connected, one_switch, dragonfly
_MADE_BY: dict[str, _Make] = dict(zip(FORMS, (*_PLAIN, rail_cluster, fat_tree), strict=True))
_GRIDS, _CLUSTERS = ("mesh", "torus"), ("rails", "fattree")
# How many sizes each form takes, if not one; a grid takes any number.
_SIZES = {"dragonfly": 3, "rails": 2, "fattree": 2}
NO_RATE = re.compile(r"[^A-Za-z]+[nmu]?s\s*|[^:,]*:.*")
"""What may stand alone behind the @: the latency of links, or the oversubscription of a fat tree."""
# A comma that no figure of a shape follows: a rate, a latency or a ratio.
_BETWEEN = re.compile(r",(?!\s*[0-9.][0-9.eE+]*\s*(?:[A-Za-zµ]*/?s|:[0-9]+)\s*(?:[,=]|$))")
_TEXT = re.compile(r"([A-Za-z]+):([^@]*)(?:@(.*))?")


def names_of(text: str) -> list[str]:
    """The names in a list of machines; a comma before a figure (``rails:4x8@450GB/s,50GB/s``) parts none."""
    return [*map(str.strip, _BETWEEN.split(text))]


@lru_cache(maxsize=4)
def from_text(text: str) -> Topology | None:
    """The machine that text such as ``torus:4x4x2@50GB/s`` names (see `FORMS`), or None if it names no such form.

    Raises `InputError` if the form is known and its sizes or bandwidth are not as they must be.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None or (name := match[1].lower()) not in FORMS:
        return None
    if not re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9}){0,15}", match[2]):
        raise InputError(f"{text!r}: {match[2][:40]!r} is not a size; write it like {FORMS[name][0]}")
    sizes = [int(part) for part in match[2].split("x")]
    parts = match[3].split(",") if match[3] is not None else []
    more = _other_than_rates(text, name, parts)
    rates = [parse_rate(part) for part in parts[: len(parts) - len(more)]]
    if len(rates) > (2 if name in _CLUSTERS else 1):
        raise InputError(f"{text!r} gives {len(rates)} bandwidths; write it like {FORMS[name][0]}")
    wanted = len(sizes) if name in _GRIDS else _SIZES.get(name, 1)
    if len(sizes) != wanted:
        raise InputError(f"{text!r} gives {count(len(sizes), 'size')}, {name} takes {wanted}, as in {FORMS[name][0]}")
    more |= zip(("bandwidth", "nic_bandwidth"), rates, strict=False)
    given = [sizes] if name in (*_GRIDS, "dragonfly") else sizes
    made = _MADE_BY[name](*given, **more)
    check_machine_name(text.strip())
    return regarded(made, name=text.strip())


def _other_than_rates(text: str, name: str, parts: Sequence[str]) -> dict[str, Fraction | Times]:
    """What the last part says if that is no rate: the oversubscription of a fat tree, or the latency of links."""
    last = parts[-1] if parts else ""
    if name not in _CLUSTERS:
        return {"times": (parse_time(last), TIMES[1])} if NO_RATE.fullmatch(last) else {}
    if name != "fattree" or ":" not in last:
        return {}
    found = re.fullmatch(r"\s*([1-9][0-9]{0,3}):([1-9][0-9]{0,3})\s*", last)
    if found is None or int(found[1]) < int(found[2]):
        raise InputError(f"{text!r}: {last[:40]!r} is not an oversubscription of at least 1:1, such as 2:1")
    return {"oversubscription": Fraction(int(found[1]), int(found[2]))}
