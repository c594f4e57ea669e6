"""The catalogue against the published numbers, and the one door through which every machine comes."""

from __future__ import annotations

import csv
import json
import re
import time
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path

import networkx as nx
import pytest

import blinksim as bs
from blinksim import data_files, machines
from blinksim.cli.main import run
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.formats import machine_yaml
from blinksim.formats.shipped import machine_names
from blinksim.machines import Question
from blinksim.timing.model_registry import model
from blinksim.topology.graph import Topology

HERE = Path(__file__).parent
GB = 10**9
# These must be there; tests on all machines take those that have been added since as well.
KEPT = {
    "aurora", "dgx-a100", "dgx1-p100", "dgx1-v100", "hgx-h100", "hgx-h200", "k2200-ethernet", "k2200-ntb", "mi250",
    "p3.16xlarge", "p4d.24xlarge", "p5.48xlarge",
}  # fmt: skip
CATALOGUE = machine_names.names()
EVERY = [(name, rates) for name in CATALOGUE for rates in machine_names.rate_names(name)]


def test_the_catalogue_and_its_titles() -> None:
    assert set(CATALOGUE) >= KEPT
    assert sorted(CATALOGUE) == CATALOGUE
    assert machine_names.outline("DGX1-V100").title == "NVIDIA DGX-1, eight V100"
    assert len({machine_names.outline(name).title for name in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("name", "rates"),
    [pytest.param(*case, marks=[] if case[1] == "nominal" else [pytest.mark.slow]) for case in EVERY],
)
def test_every_machine_loads_is_sound_and_survives_writing(name: str, rates: str) -> None:
    for nodes in (1, 2) if machines.load(name).fabric else (1,):
        machine = machines.load(name, nodes=nodes, rates=rates)
        assert machine.rates.split(" ")[0] == rates
        assert machine.source, f"give {name}.yaml a source: of all that has none of its own"
        assert [finding for finding in machine.check() if finding.severity == "error"] == []
        # Also of one straight to a network: without overhead hundreds of messages at once would be free.
        assert all(link.overhead > 0 for link in machine.links if machine.device(link.src).holds)
        assert machine_yaml.read_text(machine_yaml.write(machine), "again.yaml") == machine


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_number_of_a_link_class_has_a_source(name: str) -> None:
    head = machine_yaml.outline(machine_names.catalogue_file(name))
    for link_class in head.link_classes.values():
        for number in (*link_class.bandwidth, "latency", "overhead"):
            assert f"{number}: " in link_class.source, (
                f"topologies/{name}.yaml: link class {link_class.name}: write source: {{{number}: where it is from, …}}"
            )


@pytest.mark.parametrize("name", CATALOGUE)
def test_who_made_it_when_and_what_is_assumed(name: str) -> None:
    head = machine_names.outline(name)
    assert head.maker
    assert head.year is not None
    for link_class in head.link_classes.values():
        said = re.findall(r"([\w-]+): ([^;]*(?:;(?! [\w-]+: )[^;]*)*)", link_class.source)
        assert {number for number, text in said if "assumption" in text} == set(link_class.assumed), (
            f"topologies/{name}.yaml: link class {link_class.name}: `assumed` lists what a source calls an assumption"
        )


# --- golden links: every row of the source documents, under the rates `seed` ------------------------------------------

LEFT_OUT = {
    ("DGX-1V", "nic0", "cpu0"): "the management port of the machine that Blink+ was measured on, no part of a DGX-1",
    ("DGX-1V", "cpu0", "cpu1"): "the sources give no rate",
    ("aurora-node", "tile", "tile-memory"): "memory, not a link; an attribute of the tiles",
}
GOLDEN = {
    "DGX-1P": ["dgx1-p100"],
    "DGX-1V": ["dgx1-v100"],
    "p3.16xlarge": ["p3.16xlarge"],
    "aurora-node": ["aurora"],
    "k2200-cluster": ["k2200-ntb", "k2200-ethernet"],
}


def golden_rows() -> list[dict[str, str]]:
    with (HERE / "golden" / "links_all.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("document", GOLDEN)
def test_golden_links(document: str) -> None:
    rows = [row for row in golden_rows() if row["machine"] == document]
    # A fabric exists between two nodes only, and the thesis' cluster has two.
    single = [machines.load(name, rates="seed") for name in GOLDEN[document]]
    double = [machines.load(name, nodes=2, rates="seed") for name in GOLDEN[document]]
    seen: set[frozenset[str]] = set()
    for row in rows:
        a, b = row["node_a"], row["node_b"]
        if (document, a, b) in LEFT_OUT:
            continue
        rate = Fraction(row["GBps_per_direction"]) * GB
        assert row["duplex"] == "full"
        if "no nvlink" in row["kind"]:
            assert not single[0].links_between(a, b)
            over_pcie = single[0].select(links=["pcie", "qpi"])
            assert path_rate(over_pcie, a, b) == path_rate(over_pcie, b, a) == rate
            continue
        found = []
        for machine, (x, y) in product(single + double, [(a, b), (f"n0.{a}", b)]):
            if x in machine.index and y in machine.index:
                found.append((machine.links_between(x, y), machine.links_between(y, x)))
        assert found, (a, b)
        for there, back in found:
            assert [link.bandwidth for link in there] == [link.bandwidth for link in back] == [rate], (a, b)
        if row["kind"].startswith("nvlink"):
            assert found[0][0][0].lanes == int(row["kind"][-1])
            seen.add(frozenset((a, b)))
    drawn = {frozenset((x.src, x.dst)) for x in single[0].links if x.kind == "nvlink"}
    assert drawn == seen  # and the machine has no NVLink that the document does not list


def test_the_rows_left_out_exist() -> None:
    there = {(row["machine"], row["node_a"], row["node_b"]) for row in golden_rows()}
    assert set(LEFT_OUT) <= there
    assert {row["machine"] for row in golden_rows()} == set(GOLDEN)


def test_aurora_has_no_links_beside_the_listed_ones() -> None:
    aurora = machines.load("aurora")
    listed = sum(row["machine"] == "aurora-node" for row in golden_rows())
    pairs = {frozenset((x.src, x.dst)) for x in aurora.links if x.kind != "pcie" or "host" in (x.src, x.dst)}
    # The table also has the eight NICs' links to the fabric, which one node does not have, and the memory.
    assert len(pairs) == listed - 8 - 1
    assert aurora.device("card3.t1").attributes == {"memory_bandwidth": "1024GB/s", "library": "oneccl"}


def path_rate(machine: Topology, src: str, dst: str) -> Fraction:
    return machine.router.together(machine.index[src], machine.index[dst])


def test_tiles_share_the_pcie_port_of_their_card() -> None:
    over_pcie = machines.load("aurora", rates="seed").select(links=["pcie"])
    alone = path_rate(over_pcie, "card0.t0", "card1.t0")
    assert alone == 42 * GB
    out = [x for x in over_pcie.links if x.src == "card0" and x.dst == "host"]
    assert [x.bandwidth for x in out] == [42 * GB]
    assert all(x.dst == "card0" for x in over_pcie.links if x.src in ("card0.t0", "card0.t1"))


# --- published optima -------------------------------------------------------------------------------------------------


def holds(machine: Topology, x: Fraction) -> bool:
    """Whether every member can receive x bytes/s of every member's data at once (max-flow, Edmonds)."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for link in machine.links:
        assert not graph.has_edge(link.src, link.dst)
        graph.add_edge(link.src, link.dst, capacity=int(link.bandwidth * x.denominator))
    graph.add_edges_from((("source", member) for member in machine.members), capacity=x.numerator)
    wanted = x.numerator * machine.ranks
    return all(nx.maximum_flow_value(graph, "source", member) == wanted for member in machine.members)


@pytest.mark.parametrize(
    ("name", "nodes", "inverse"),
    [
        ("dgx1-v100", 1, Fraction(7, 150)),
        ("dgx-a100", 1, Fraction(7, 300)),
        ("dgx-a100", 2, Fraction(3, 65)),
        ("hgx-h100", 2, Fraction(3, 100)),
        ("mi250", 1, Fraction(7, 150)),
        ("mi250", 2, Fraction(15, 166)),
    ],
)
def test_the_allgather_optimum_is_the_published_one(name: str, nodes: int, inverse: Fraction) -> None:
    """1/x* in ns per byte of one rank's data, as ForestColl's released program computes it."""
    machine = machines.load(name, nodes=nodes).select()
    assert holds(machine, GB / inverse)
    assert not holds(machine, GB / inverse * Fraction(1001, 1000))


def test_two_thesis_nodes_over_ntb_and_ethernet() -> None:
    ntb = machines.load("k2200-ntb", nodes=2, rates="seed").select()
    assert path_rate(ntb, "n0.gpu0", "n1.gpu1") == 2 * GB  # the GPU's own link, not the NTB, is the narrowest
    ethernet = machines.load("k2200-ethernet", nodes=2, rates="seed").select()
    assert path_rate(ethernet, "n0.gpu0", "n1.gpu1") == GB // 8
    # 63.04 is the ratio of the links that the thesis names; 63040 Mb/s against 1000 Mb/s.
    joint = [x.bandwidth for machine in (ntb, ethernet) for x in machine.links if x.src[:3] != x.dst[:3]]
    assert joint[0] / joint[-1] == Fraction(6304, 100)
    with pytest.raises(InputError, match="3 nodes wired directly need 2 ports each"):
        machines.load("k2200-ntb", nodes=3)


def test_a_small_peer_copy_takes_what_was_measured() -> None:
    """1.9 us for latency and overhead of the path between two GPUs, over NVLink or NVSwitch (measured on 8 x H200)."""
    for name, path in (("dgx1-v100", ["gpu0", "gpu1"]), ("hgx-h200", ["gpu0", "nvswitch", "gpu1"])):
        machine = machines.load(name)
        links = [machine.links_between(a, b)[0] for a, b in pairwise(path)]
        assert sum(x.latency + x.overhead for x in links) == pytest.approx(1.9e-6)


# --- the door ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("dgx-1v", "dgx1-v100"),
        ("DGX-1P", "dgx1-p100"),
        ("h200", "hgx-h200"),
        ("P3.16xlarge", "p3.16xlarge"),
        ("p4d", "p4d.24xlarge"),
        ("P5", "p5.48xlarge"),
        ("nvl72", "gb200-nvl72"),
        ("DGX-B200", "hgx-b200"),
        ("mi250x", "frontier"),
        ("ndv5", "nd-h100-v5"),
        ("spark", "dgx-spark-pair"),
    ],
)
def test_other_names(text: str, name: str) -> None:
    assert machines.load(text) == machines.load(name)


def test_aliases_name_machines_of_the_catalogue() -> None:
    assert set(machine_names.ALIASES.values()) <= set(CATALOGUE)
    assert not set(machine_names.ALIASES) & set(CATALOGUE)


def test_paths_forms_and_topology_files(tmp_path: Path) -> None:
    path = tmp_path / "copy.YAML"
    path.write_text(machine_names.catalogue_file("dgx1-v100").read_text())
    assert machines.load(path) == machines.load("dgx1-v100")
    assert machines.load("ring:4@7GB/s").links[0].bandwidth == 7 * GB
    assert machines.load(HERE / "data" / "captures" / "h200x8" / "topo.xml", rates="nccl").rates == "nccl"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dgx1", "'dgx1' is more than one machine; say dgx1-v100 or dgx1-p100"),
        ("a3", "say a3-highgpu-8g or a3-megagpu-8g or a3-ultragpu-8g"),
        ("k2200", "say k2200-ntb or k2200-ethernet"),
        ("dgx1-v10", "unknown machine 'dgx1-v10': did you mean 'dgx1-v100'"),
        ("p5,p5en", "'p5,p5en' is more than one machine; say p5 or p5en, or compare them"),
        ("zzz", r"names are known .*blinksim topo list"),
        ("", "no machine given"),
        ("ring:x", "is not a size"),
    ],
)
def test_unknown_names(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        machines.load(text)


def test_files_that_are_no_machines(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such machine file"):
        machines.load(tmp_path / "none.yaml")
    with pytest.raises(FileError, match="no such machine file"):
        machines.load("some/where")
    with pytest.raises(FileError, match=r"files that end in \.yaml"):
        machines.load(tmp_path)


def test_a_question_stands_for_its_part() -> None:
    question = bs.Question.of("hgx-h100", nodes=2, members="0-3,8-11")
    part = bs.load("hgx-h100", nodes=2).select("0-3,8-11")
    assert bs.project(question, "allreduce", "1MiB").time_s == bs.project(part, "allreduce", "1MiB").time_s
    assert bs.bound(question, "allreduce").rate == bs.bound(part, "allreduce").rate
    assert bs.synthesize(question, "allgather").schedule.topology == part
    with pytest.raises(InputError, match=r"takes no ranks_per_node=; .* bs.Question.of\(name, ranks_per_node=4"):
        getattr(bs, "load")("hgx-h100", nodes=2, ranks_per_node=4)  # noqa: B009 - a type checker refuses it


def test_rates_are_a_name_or_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown rates for dgx1-v100: 'sed': did you mean 'seed'"):
        machines.load("dgx1-v100", rates="sed")
    with pytest.raises(InputError, match="unknown rates for aurora: 'nccl'"):
        machines.load("aurora", rates="nccl")
    with pytest.raises(FileError, match="no such rates file"):
        machines.load("dgx1-v100", rates=tmp_path / "none.yaml")
    with pytest.raises(InputError, match="ring:4 has no rates 'nccl'"):
        machines.load("ring:4", rates="nccl")


def test_rate_files_beside_the_models_go_by_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rates").mkdir()
    (tmp_path / "rates" / "lab.yaml").write_text("name: lab\nclasses: {nvlink: {bandwidth: 22GB/s}}\n")
    usual = data_files.folder
    monkeypatch.setattr(data_files, "folder", lambda name: tmp_path if name == "models" else usual(name))
    assert machines.load("dgx1-v100", rates="lab").rates == "lab (pcie, qpi, ib: nominal)"
    assert "lab" in machine_names.rate_names("dgx1-v100")


def test_a_file_is_read_anew_where_only_what_was_measured_changed(tmp_path: Path) -> None:
    path, text = tmp_path / "box.yaml", machine_names.catalogue_file("hgx-h100").read_text()
    for blocks in (100, 64, 100):
        path.write_text(text.replace("blocks: 132", f"blocks: {blocks}"))
        found = bs.load(path, nodes=2)
        assert found.execution is not None
        assert found.execution.blocks == blocks
        assert found is bs.load(path, nodes=2)


def test_several_nodes_need_a_fabric(tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.write_text(machine_names.catalogue_file("dgx1-v100").read_text().split("fabric:")[0])
    with pytest.raises(InfeasibleError, match="describes no fabric to join 2 nodes"):
        machines.load(path, nodes=2)
    # A machine that has one, and an edit that takes all of its ports.
    for name in ("library", "nccl-tuner", "projection"):
        question = Question("dgx1-v100", nodes=2, edits=("without nic[0-1]", "without nic[2-3]"))
        with pytest.raises(InfeasibleError, match=r"^'without nic\[2-3\]' leaves dgx1-v100 none of the ib ports"):
            model(name).at(question)


def test_loading_is_quick() -> None:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        machines.load("dgx1-v100")
        times.append(time.perf_counter() - start)
    assert min(times) < 0.03


def test_forms_that_are_clusters_load_as_they_are() -> None:
    assert machines.load("rails:2x2").nodes == 2
    assert machines.load("fattree:4x2").ranks == 8
    with pytest.raises(InputError, match="already is a cluster of 2 nodes"):
        machines.load("rails:2x2", nodes=3)


def test_edits_change_every_node_or_the_one_they_name() -> None:
    lanes = {
        link.src: link.lanes
        for edit in ("degrade gpu0-gpu3 lanes=1", "degrade n1.gpu0-n1.gpu3 lanes=1")
        for link in machines.load("dgx1-v100", nodes=2, edits=[edit]).links
        if link.src.endswith("gpu0") and link.dst.endswith("gpu3")
    }
    assert lanes == {"n0.gpu0": 2, "n1.gpu0": 1}
    both = machines.load("dgx1-v100", nodes=2, edits=["degrade gpu0-gpu3 lanes=1"])
    assert {x.lanes for x in both.links if x.src.endswith("gpu0") and x.dst.endswith("gpu3")} == {1}


def test_an_unknown_machine_is_told_of_shapes_and_how_to_describe_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="a shape is written like ring:8") as refused:
        machines.load("no-such-machine")
    # What it says works, with what nvidia-smi prints on a machine.
    told = re.search(r"nvidia-smi topo -m > (\S+); blinksim (.*)\)$", str(refused.value))
    assert told is not None
    text = Path("tests/data/captures/h200x8/smi_topo.txt").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    Path(told[1]).write_text(text, encoding="utf-8")
    assert run(told[2].split()) == 0
    assert "on 8 GPUs of box" in capsys.readouterr().out


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_sparks_through_a_switch(nodes: int) -> None:
    """Each byte enters every other Spark by its port of 200 Gb/s."""
    machine = machines.load("dgx-spark", nodes=nodes)
    assert machine.ranks == nodes
    assert bs.bound(machine, "allgather").rate == Fraction(25 * 10**9 * nodes, nodes - 1)
    assert bs.project(machine, "allreduce", "64MiB").time_s >= 2**26 * 2 * (nodes - 1) / nodes / 25e9


def test_a_copy_of_a_machine_of_the_catalogue_is_that_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, changed = tmp_path / "mine.yaml", tmp_path / "changed.yaml"
    assert run(["topo", "import", "hgx-h100", "-o", str(copy)]) == 0
    assert machines.load(copy).loaded_from == ("hgx-h100", "nominal")
    for more in (["--members", "0-3"], ["--nodes", "4"], ["--edit", "degrade gpu3-nvswitch lanes=9"]):
        answers = []
        for machine in (str(copy), "hgx-h100"):
            capsys.readouterr()
            assert run(["project", machine, "allreduce", "1GiB", *more, "--json", "--quiet"]) == 0
            said = json.loads(capsys.readouterr().out)
            answers.append((said["time_s"], said["interval_high_s"], said["could_take_s"], said["origin"]))
        assert answers[0] == answers[1]
    # One link or one constant less, and it is another machine.
    text = copy.read_text().replace("  links: 450GB/s\n", "")
    for line in ("{from: gpu0, to: nvswitch, class: nvlink, lanes: 18}", "lanes: 18, overhead: 0us}"):
        assert line in text
        changed.write_text(text.replace(line, line.replace("18", "17"), 1))
        assert machines.load(changed).loaded_from == (str(changed), "nominal")


def test_a_damaged_file_has_no_assumptions(tmp_path: Path) -> None:
    damaged = tmp_path / "mine.yaml"
    damaged.write_text("name: [")
    with pytest.raises(FileError, match=r"mine\.yaml"):
        machines.assumptions(damaged)
