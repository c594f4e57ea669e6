"""The search against NCCL's own answers, and its promises on machines that nobody asked NCCL about."""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any

import pytest
from nccl_cases import TESTS, VERSIONS, answer, cases, graph, machine, members, near

from blinksim import machines
from blinksim.errors import InfeasibleError
from blinksim.nccl import families, search_passes
from blinksim.nccl.families import PATH_TYPES, Pattern
from blinksim.nccl.files import graph_file, topo_file
from blinksim.nccl.files.graph_file import Graph
from blinksim.nccl.paths import GRAIN, Paths, systems_of
from blinksim.nccl.tuner import tuner
from blinksim.nccl.tuner.tuner import Prediction, predict
from blinksim.topology.graph import Device, Link, Topology

DGX1 = machines.load("dgx1-v100", rates="nccl")


def differences(case: Mapping[str, Any], version: str) -> list[str]:
    """What a searched prediction has different from the reference: any field, orders of channels and ports included."""
    facts = answer(case, version)
    # The reference searched the file as it stands. NCCL itself first merges what its ranks detected, in their order:
    # tests/nccl/test_made_up_machines.py has NCCL's answers to that.
    mine = predict(machine(case["topo"]), sorted(members(case)), nodes=case["nnodes"], version=version)
    found = []
    for family in ("ring", "tree", "nvls"):
        searched: Graph | None = getattr(mine, family)
        if facts.get(family) is None:
            continue
        if searched is None:
            found.append(f"{family}: missing")
            continue
        expected = graph(facts[family])
        if family == "nvls":
            heads = tuple(channel[:1] for channel in searched.channels)
            assert heads == expected.channels, case["id"]
            expected = Graph(**{**fields(expected), "channels": searched.channels})
        for name, value in fields(expected).items():
            other = getattr(searched, name)
            same = near(float(other), float(value)) if isinstance(value, Fraction | float) else other == value
            if not same:
                found.append(f"{family}.{name}: {other} for {value}")
    return found


def fields(of: Graph) -> dict[str, Any]:
    return {name: getattr(of, name) for name, field in of.__dataclass_fields__.items() if field.compare}


def quick(case: Mapping[str, Any], version: str) -> bool:
    """One node, or two with few GPUs, whose search ends soon; for the later version where its search differs."""
    few = case["nnodes"] == 1 or (case["nnodes"] == 2 and len(case["gpus"]) <= 2)
    if version == VERSIONS[0]:
        return few
    return case["nnodes"] <= 2 and not {"tree", "system"}.isdisjoint(case.get("v2307", ()))


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_channels_are_nccls_in_quick_cases(version: str) -> None:
    chosen = [case for case in cases() if quick(case, version)]
    assert len(chosen) == {"2.28.3": 132, "2.30.7": 5}[version]
    assert {case["id"]: found for case in chosen if (found := differences(case, version))} == {}


def test_more_nodes_do_not_change_the_search() -> None:
    """NCCL plans for one node; the cases of four and eight nodes have the channels of those of two."""
    groups: dict[tuple[str, tuple[int, ...]], list[dict[str, Any]]] = {}
    for case in cases():
        if case["nnodes"] > 1:
            groups.setdefault((case["topo"], tuple(case["gpus"])), []).append(case)
    for first, *others in groups.values():
        for other in others:
            assert all(other.get(family) == first.get(family) for family in ("ring", "tree", "nvls")), other["id"]
    assert sum(map(len, groups.values())) - len(groups) == 70
    wide = [predict(DGX1, ["gpu0", "gpu4"], nodes=nodes) for nodes in (2, 1000)]
    assert wide[0].graphs == wide[1].graphs


@pytest.mark.slow
@pytest.mark.parametrize("version", [pytest.param(VERSIONS[0], marks=pytest.mark.alike), *VERSIONS[1:]])
def test_channels_are_nccls_in_all_cases(version: str) -> None:
    assert {case["id"]: found for case in cases() if (found := differences(case, version))} == {}


def orders(graph: Graph) -> str:
    return " ".join("-".join(map(str, channel)) for channel in graph.channels)


@pytest.mark.slow
def test_channels_of_dgx1_subsets_are_nccls() -> None:
    with (TESTS / "golden" / "nccl_dgx1v_subsets.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 124
    for row in rows:
        found = predict(DGX1, [f"gpu{number}" for number in row["gpus"].split("-")])
        for family, listed in (("ring", "ring_rings"), ("tree", "tree_chains")):
            mine: Graph = getattr(found, family)
            expected = (row[f"{family}_nch"], row[f"{family}_bw"], row[f"{family}_type"], row[listed])
            assert (
                str(mine.nchannels),
                f"{float(mine.bw_intra) / 1e9:.7g}",
                mine.type_intra,
                orders(mine),
            ) == expected, row["gpus"]
        assert found.tree.pattern == int(row["tree_pattern"])


# For each number of GPUs: subsets of a DGX-1V by kind and bandwidth (GB/s) of all rings, and of all trees.
ALL_SUBSETS = {
    2: ({"NVL 20": 8, "NVL 40": 8, "SYS 6": 12}, {"NVL 20": 8, "NVL 80": 8, "SYS 6": 12}),
    3: (
        {"NVB 20": 20, "NVB 40": 4, "NVL 40": 8, "SYS 6": 24},
        {"NVL 20": 20, "NVL 40": 4, "NVL 80": 8, "SYS 6": 24},
    ),
    4: (
        {"NVB 20": 36, "NVB 40": 12, "NVB 60": 2, "NVL 40": 4, "NVL 80": 2, "SYS 6": 14},
        {"NVL 20": 24, "NVL 40": 24, "NVL 60": 2, "NVL 80": 6, "SYS 6": 8, "SYS 12": 6},
    ),
    5: ({"NVB 20": 24, "NVB 40": 8, "NVL 40": 24}, {"NVL 20": 11, "NVL 40": 37, "NVL 80": 8}),
    6: ({"NVL 40": 24, "NVL 80": 4}, {"NVL 40": 18, "NVL 80": 10}),
    7: ({"NVL 80": 8}, {"NVL 80": 8}),
    8: ({"NVL 120": 1}, {"NVL 120": 1}),
}


@pytest.mark.parametrize("count", ALL_SUBSETS)
def test_totals_of_all_dgx1_subsets_are_nccls(count: int) -> None:
    found = [predict(DGX1, [f"gpu{i}" for i in chosen]) for chosen in combinations(range(8), count)]
    for family, expected in zip(("ring", "tree"), ALL_SUBSETS[count], strict=True):
        graphs: list[Graph] = [getattr(one, family) for one in found]
        assert Counter(f"{g.type_intra} {float(g.bandwidth) / 1e9:g}" for g in graphs) == expected


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_catalogue_machine_without_cpus_is_completed(nodes: int) -> None:
    """The catalogue draws the DGX A100's adapters right at its GPUs; two and two share a PCIe switch."""
    case = next(case for case in cases() if case["id"] == f"dgx-a100/0,1,2,3,4,5,6,7/n{nodes}")
    mine = predict(machines.load("dgx-a100", rates="nccl"), nodes=nodes)
    for family in ("ring", "tree"):
        found, expected = fields(getattr(mine, family)), fields(graph(case[family]))
        for name in ("pattern", "nchannels", "bw_intra", "bw_inter", "type_intra", "type_inter", "cross_nic"):
            assert found[name] == expected[name], (family, name)
    assert any("share a PCIe switch" in text for text in mine.assumed)


def test_two_hgx_exchange_ports_between_channels() -> None:
    found = predict(machines.load("hgx-h200", nodes=2, rates="nccl"))
    assert (found.ring.nchannels, found.ring.bw_intra, found.ring.cross_nic) == (8, 48 * 10**9, 2)
    assert all(entry ^ 1 == leave for entry, leave in found.ring.nets)
    assert (found.tree.nchannels, found.tree.bw_intra, found.tree.pattern) == (8, 48 * 10**9, Pattern.TREE)


# --- machines that nobody asked NCCL about --------------------------------------------------------------------------


def random_machine(seed: int) -> Topology:
    """A server with random NVLinks over a random PCIe tree, of 2 to 8 GPUs."""
    draw = random.Random(seed)
    count, sm = draw.randint(2, 8), draw.choice([60, 70, 80, 89, 90, 100])
    gigabyte = Fraction(10**9)
    cpu = draw.choice([("GenuineIntel", 10), ("AuthenticAMD", 16)])
    sockets, switches = draw.randint(1, 2), draw.randint(0, 3)
    devices = [Device(f"cpu{i}", "cpu", attributes={"arch": "x86_64", "vendor": cpu[0]}) for i in range(sockets)]
    devices += [Device(f"pcie{i}", "pcie") for i in range(switches)]
    devices += [Device(f"gpu{i}", "gpu", attributes={"sm": sm}) for i in range(count)]
    links: list[Link] = []

    def join(a: str, b: str, kind: str, rate: Fraction, lanes: int = 1) -> None:
        links.extend(Link(x, y, kind, rate, lanes) for x, y in ((a, b), (b, a)))

    for i in range(switches):
        join(f"pcie{i}", f"cpu{i % sockets}", "pcie", 12 * gigabyte)
    for i in range(count):
        above = draw.choice([d.name for d in devices if d.kind in ("cpu", "pcie")])
        join(f"gpu{i}", above, "pcie", draw.choice([6, 12, 24]) * gigabyte)
    if sockets == 2:
        join("cpu0", "cpu1", "upi", cpu[1] * gigabyte)
    if draw.random() < 0.3:
        devices.append(Device("nvswitch", "switch"))
        for i in range(count):
            join(f"gpu{i}", "nvswitch", "nvlink", 20 * gigabyte, draw.choice([6, 12]))
    else:
        for a, b in combinations(range(count), 2):
            if draw.random() < 0.5:
                join(f"gpu{a}", f"gpu{b}", "nvlink", 20 * gigabyte, draw.randint(1, 3))
    return Topology(f"random{seed}", tuple(devices), tuple(links))


def check_channels(topology: Topology, found: Prediction) -> int:
    """Every channel visits every GPU, over paths of the kinds claimed, and all rings together fit the links."""
    system = systems_of(topology)[0]
    paths = Paths(system)
    at = {system.vertices[gpu].number: gpu for gpu in system.gpus}
    for family in ("ring", "tree"):
        graph: Graph = getattr(found, family)
        assert graph.nchannels == len(graph.channels) >= 1
        assert all(sorted(channel) == sorted(at) for channel in graph.channels)
        if float(graph.bw_intra) == 1e8:
            assert graph.type_intra == "SYS"
            continue
        load: Counter[int] = Counter()
        for channel in graph.channels:
            closed = (*channel, channel[0]) if family == "ring" else channel
            for a, b in pairwise(closed):
                path = paths[at[a], at[b]]
                assert path.kind <= PATH_TYPES.index(graph.type_intra)
                load.update(path.wires)
        for wire, times in load.items():
            assert times * graph.bw_intra <= system.wires[wire].bandwidth * GRAIN, (topology.name, family)
    assert found.tree.nchannels == found.ring.nchannels or float(found.tree.bw_intra) == 1e8
    return found.ring.nchannels


@pytest.mark.parametrize("part", range(4))
@pytest.mark.slow
def test_random_machines_are_answered_by_nccls_rules(part: int) -> None:
    several = 0
    for seed in range(part, 80, 4):
        topology = random_machine(seed)
        found = predict(topology)
        several += check_channels(topology, found) > 1
        if seed % 5 == 0:
            # Nothing is known of this machine: equal machines give equal answers, slower ones no better ones.
            assert predict(random_machine(seed)).graphs == found.graphs
            slower = [Link(x.src, x.dst, x.kind, x.lane_bandwidth / 2, x.lanes) for x in topology.links]
            less = predict(topology.with_links(slower))
            check_channels(topology.with_links(slower), less)
            assert less.ring.bandwidth <= found.ring.bandwidth
    assert several >= 5


def test_many_gpus_and_channels_are_no_trouble() -> None:
    """48 GPUs with as many channels as NCCL lays: deeper than Python's usual limit of nested calls."""
    gpus = [Device(f"gpu{i}", "gpu", attributes={"sm": 70}) for i in range(48)]
    rate = Fraction(40 * 32 * 10**9)
    ends = [(a.name, "nvswitch") for a in gpus] + [("nvswitch", a.name) for a in gpus]
    links = tuple(Link(a, b, "nvlink", rate) for a, b in ends)
    found = predict(Topology("wide", (*gpus, Device("nvswitch", "switch")), links))
    assert (found.ring.nchannels, found.ring.bw_intra) == (32, 40 * 10**9)
    assert all(sorted(channel) == list(range(48)) for channel in found.ring.channels)


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx1-p100", "dgx-a100", "p4d.24xlarge", "hgx-h100", "a3-highgpu-8g"])
def test_attempts_that_are_left_out_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an attempt is taken to be able to improve whatever it is asked, all are made."""
    drawn, whole = random.Random(name), machines.load(name, rates="nccl")
    parts = [sorted(drawn.sample(whole.members, count)) for count in (3, 5, len(whole.members))]
    asked = [(part, nodes) for part in parts for nodes in (1, 2)]
    brief = [predict(whole, part, nodes=nodes) for part, nodes in asked]
    monkeypatch.setattr(search_passes._Search, "may_improve", lambda _: True)
    for known in (tuner._predicted, tuner.channels_of):
        known.cache_clear()
    assert brief == [predict(whole, part, nodes=nodes) for part, nodes in asked]


def test_more_gpus_on_a_node_than_nccl_plans_for_are_refused() -> None:
    """NCCL_TOPO_MAX_NODES of NCCL 2.30.7; the search itself is not begun."""
    assert len(systems_of(machines.load("switch:640"))[0].gpus) == 640
    with pytest.raises(InfeasibleError, match="at most 640 GPUs of one node, and these are 641"):
        predict(machines.load("switch:641"))


def test_a_dgx1_quad_has_the_rings_that_real_gpus_took() -> None:
    """NCCL 2.28.9 on four H200, given the quad's topology file."""
    folder = TESTS / "data" / "captures" / "h200x4"
    found = predict(topo_file.read(folder / "quad_topo.xml", "nccl"))
    taken = graph_file.read(folder / "quad_graph.xml")
    for number, mine in ((families.RING, found.ring), (families.TREE, found.tree)):
        real = taken.graph(number)
        assert real is not None
        assert (mine.channels, mine.bw_intra) == (real.channels, real.bw_intra)


def test_renamed_gpus_change_nothing_but_names() -> None:
    """The channels come from the links, so nothing can have been looked up by machine."""
    names = {f"gpu{i}": f"accelerator{i}" for i in range(8)}
    devices = tuple(
        Device(names.get(d.name, d.name), d.kind, attributes=d.attributes) for d in DGX1.devices if d.kind != "nic"
    )
    kept = {d.name for d in devices} | {*names}
    links = tuple(
        Link(names.get(x.src, x.src), names.get(x.dst, x.dst), x.kind, x.lane_bandwidth, x.lanes)
        for x in DGX1.links
        if {x.src, x.dst} <= kept
    )
    other = predict(Topology("other", devices, links))
    assert other.ring == predict(DGX1).ring
    assert other.orders["ring"][0] == [names[name] for name in predict(DGX1).orders["ring"][0]]


def test_a_lost_nvlink_changes_the_rings() -> None:
    before, after = predict(DGX1), predict(DGX1.without("gpu0-gpu1"))
    assert after.ring.bandwidth < before.ring.bandwidth
    joined = {frozenset(pair) for channel in after.ring.channels for pair in pairwise((*channel, channel[0]))}
    assert frozenset((0, 1)) not in joined
