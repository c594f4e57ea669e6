"""Hypothesis strategies that the tests share: random machines, the same machine under other names, damaged texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import yaml
from hypothesis import strategies as st

from blinksim.topology.cluster import replicate
from blinksim.topology.elements import Fabric
from blinksim.topology.graph import Device, Link, Topology

GB = 10**9


@st.composite
def topologies(
    draw: st.DrawFn,
    min_devices: int = 2,
    max_devices: int = 8,
    *,
    switches: bool = True,
    half_duplex: bool = True,
    unequal: bool = True,
    relays: bool = False,
) -> Topology:
    """A connected machine of two GPUs or more, all members, with whole bandwidths from 1 to 8 GB/s a lane.

    switches: some devices only forward. half_duplex: some pairs share one bus. unequal: some pairs have different
    bandwidths in the two directions (never those of a switch, so that forwarders stay balanced). relays: some GPUs may
    be relays that forward instead of members; the members stay at least two, and connected.
    """
    count = draw(st.integers(min_devices, max_devices))
    gpus = draw(st.integers(2, count)) if switches else count
    names = [f"gpu{i}" for i in range(gpus)] + [f"sw{i}" for i in range(count - gpus)]
    # Devices join the tree in a drawn order, so that switches sit anywhere in it.
    order = draw(st.permutations(range(count)))
    pairs = [tuple(sorted((order[i], order[draw(st.integers(0, i - 1))]))) for i in range(1, count)]
    free = [(a, b) for a in range(count) for b in range(a + 1, count) if (a, b) not in pairs]
    if free:
        pairs += draw(st.lists(st.sampled_from(free), unique=True, max_size=count))
    links: list[Link] = []
    for a, b in pairs:
        lane = draw(st.integers(1, 8))
        lanes = draw(st.integers(1, 2))
        shape = draw(st.sampled_from(["full"] * 4 + ["bus"] * half_duplex + ["unequal"] * (unequal and b < gpus)))
        back = draw(st.integers(1, 8)) if shape == "unequal" else lane
        bus = f"{names[a]}-{names[b]}" if shape == "bus" else None
        links.append(Link(names[a], names[b], "link", Fraction(lane * GB), lanes, 1e-6, bus=bus))
        links.append(Link(names[b], names[a], "link", Fraction(back * GB), lanes, 1e-6, bus=bus))
    devices = tuple(Device(name, "gpu" if name.startswith("gpu") else "switch") for name in names)
    topology = Topology("drawn", devices, tuple(links), collective_links=("link",))
    if not relays or gpus == 2:
        return topology
    idle = draw(st.lists(st.sampled_from(names[:gpus]), unique=True, max_size=gpus - 2))
    return topology.select([name for name in names[:gpus] if name not in idle], idle)


def seconds() -> st.SearchStrategy[float]:
    """Times up to an hour, none of them between 0 and a femtosecond."""
    return st.floats(0, 3600, allow_subnormal=False).filter(lambda time: time == 0 or time > 1e-15)


@st.composite
def renamed(draw: st.DrawFn, topology: Topology) -> tuple[Topology, dict[str, str]]:
    """The same machine with other device names, devices and links in another order; and the new name of each device.

    Ranks stay: rank r is held by the device that held it. Symmetries and buses are carried over.
    """
    count = len(topology.devices)
    order = draw(st.permutations(range(count)))
    name = {device.name: f"d{number}" for number, device in enumerate(topology.devices)}
    where = {old: new for new, old in enumerate(order)}
    links = [
        replace(x, src=name[x.src], dst=name[x.dst], bus=None if x.bus is None else f"bus {x.bus}")
        for x in draw(st.permutations(topology.links))
    ]
    other = replace(
        topology,
        name="renamed",
        devices=tuple(replace(topology.devices[old], name=name[topology.devices[old].name]) for old in order),
        links=tuple(links),
        members=tuple(name[member] for member in topology.members),
        relays=tuple(name[relay] for relay in topology.relays),
        symmetries=tuple(tuple(where[perm[old]] for old in order) for perm in topology.symmetries),
    )
    return other, name


_WORDS = [
    "name", "source", "devices", "links", "gpu", "gpus", "switch", "kind", "bandwidth", "latency", "lanes", "members",
    "collective_links", "inter_node_links", "fabric", "ports", "rates", "can", "capacity", "all", "gpu0-gpu1",
]  # fmt: skip
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**20),
    st.floats(allow_nan=True),
    st.sampled_from([*_WORDS, "25GB/s", "25 GB", "1us", "-1us", "", "é", "gpu0", "../x", "1e400GB/s"]),
    st.text(max_size=8),
)


def yaml_texts() -> st.SearchStrategy[str]:
    """YAML documents of any shape, built from the words of machine files and odd scalars."""
    keys = st.one_of(st.sampled_from(_WORDS), st.integers(0, 3), st.text(max_size=4))
    trees = st.recursive(
        _SCALARS,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=5)),
        max_leaves=12,
    )
    return trees.map(lambda tree: str(yaml.safe_dump(tree, allow_unicode=True)))


_TOKENS = [
    "", "-1", "0", "1e309", "nan", "999999999999999999999", "GB/s", "us", "null", "true", "~", "{", "}", "[", "]", ":",
    "- ", "&a ", "*a", "!!python/object:os.system ", "\t", "\n", "\x00", "\ufeff", "é", "'", '"', "<", ">", "gpu0", ",",
]  # fmt: skip


@st.composite
def mutations(draw: st.DrawFn, text: str) -> str:
    """`text` with one to four small damages: parts removed, doubled, moved or replaced by tokens that readers fear."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        lines = text.split("\n")
        line = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["cut", "token", "double line", "drop line", "move line", "end"])):
            case "cut":
                text = text[:start] + text[end:]
            case "token":
                text = text[:start] + draw(st.sampled_from(_TOKENS)) + text[end:]
            case "double line":
                text = "\n".join([*lines[: line + 1], *lines[line:]])
            case "drop line":
                text = "\n".join([*lines[:line], *lines[line + 1 :]])
            case "move line":
                moved = lines.pop(line)
                lines.insert(draw(st.integers(0, len(lines))), moved)
                text = "\n".join(lines)
            case _:
                text = text[:start]
    return text


@dataclass(frozen=True)
class NicCluster:
    """Nodes whose GPUs reach each other over a switch, and other nodes over NICs of their own. Rates in GB/s.

    behind_pcie: a PCIe switch stands between a GPU and its NICs. planes: every NIC of a node is on a switch of its own.
    """

    nodes: int
    gpus: int
    nics: int
    wide: int
    narrow: int
    behind_pcie: bool
    planes: bool

    def topology(self, *, bundled: bool = False) -> Topology:
        """The machine; with `bundled` a GPU has one NIC, with links of as many lanes as it has NICs otherwise."""
        nics, lanes = (1, self.nics) if bundled else (self.nics, 1)
        names = [f"gpu{i}" for i in range(self.gpus)]
        devices = [*(Device(name, "gpu") for name in names), Device("sw", "switch")]
        links: list[Link] = []

        def join(a: str, b: str, kind: str, rate: int, lanes: int = 1) -> None:
            for src, dst in ((a, b), (b, a)):
                overhead = 1e-6 if kind == "nvlink" else 0.0
                links.append(Link(src, dst, kind, Fraction(rate * GB), lanes, 1e-6, overhead))

        ports = []
        for i, name in enumerate(names):
            join(name, "sw", "nvlink", self.wide)
            near = name
            if self.behind_pcie:
                near = f"pcie{i}"
                devices.append(Device(near, "pcie"))
                join(name, near, "pcie", 8)
            for j in range(nics):
                devices.append(Device(f"nic{i}.{j}", "nic"))
                join(near, f"nic{i}.{j}", "pcie", 8, lanes)
                ports.append(f"nic{i}.{j}")
        node = Topology("node", tuple(devices), tuple(links), members=tuple(names), collective_links=("nvlink",))
        planes = len(ports) if self.planes else 1
        rate = Fraction(self.narrow * GB)
        fabric = Fabric("switch", tuple(ports), "fabric", rate, lanes, latency=1e-6, planes=planes)
        return replicate(replace(node, inter_node_links=("pcie",)), self.nodes, fabric).select()


def nic_clusters(*, most_gpus: int = 3) -> st.SearchStrategy[NicCluster]:
    """Two or three nodes of one to three GPUs, each with one to four NICs of its own, on one switch or on planes."""
    return st.builds(
        NicCluster,
        nodes=st.integers(2, 3),
        gpus=st.integers(1, most_gpus),
        nics=st.integers(1, 4),
        wide=st.integers(10, 40),
        narrow=st.integers(1, 5),
        behind_pcie=st.booleans(),
        planes=st.booleans(),
    )


def clusters_with_nics() -> st.SearchStrategy[Topology]:
    """The machines of `nic_clusters`."""
    return nic_clusters().map(NicCluster.topology)


def split_lanes(topology: Topology) -> Topology:
    """The same machine with every link of k lanes, unless it is a bus, described as k links of one lane.

    Each of the k links is of a class of its own, as parallel links must be.
    """
    links = [
        part
        for link in topology.links
        for part in (
            [link] if link.bus else [replace(link, lanes=1, kind=f"{link.kind}{i}") for i in range(link.lanes)]
        )
    ]
    kinds = tuple(dict.fromkeys(link.kind for link in links))
    return replace(topology, links=tuple(links), collective_links=kinds)
