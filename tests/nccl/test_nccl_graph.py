"""Graph files: read, written, made from schedules, and judged again; Blink+'s files and NCCL's own dumps."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from blinksim import machines
from blinksim.algorithms import ring as ring_algorithm
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.nccl import families
from blinksim.nccl.files import graph_file
from blinksim.nccl.files.graph_file import Graph, GraphFile, check, read, read_text, to_text
from blinksim.nccl.files.graph_rules import Communicator, Release, judge
from blinksim.nccl.graph_export import as_run, communicator, export, graphs_for, path_type
from blinksim.schedule.loads import link_loads, rate
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Topology

TESTS = Path(__file__).resolve().parents[1]
H200 = TESTS / "data" / "captures" / "h200x8" / "graph.xml"
QUAD = TESTS / "data" / "captures" / "h200x4" / "quad_graph.xml"
BLINKPLUS = list(csv.DictReader(io.StringIO((TESTS / "golden" / "blinkplus_graphs.csv").read_text())))
GB = 10**9


def machine(name: str, members: str = "", nodes: int = 1) -> Topology:
    whole = machines.load(name, nodes=nodes)
    return whole.select([f"gpu{i}" for i in members] if members else None)


def chains_of(name: str, members: str = "", **options: object) -> Schedule:
    return algorithm("chains").build(machine(name, members), Collective("allreduce"), **options)


def numbers(file: GraphFile, number: int) -> list[tuple[int, ...]]:
    graph = file.graph(number)
    assert graph is not None
    return list(graph.channels)


def made(pattern: int, channels: Sequence[tuple[int, ...]], **facts: Any) -> Graph:
    usual: dict[str, Any] = {"nchannels": len(channels), "channels": tuple(channels), "same_channels": False}
    usual |= {"bw_intra": Fraction(20 * GB), "bw_inter": Fraction(20 * GB), "type_intra": "NVL", "type_inter": "PIX"}
    return Graph(pattern, **(usual | facts))


# --- reading ------------------------------------------------------------------------------------------------------


def blinkplus_file(name: str) -> str:
    """A graph file as those of the Blink+ repository are: decimal numbers, some without latencyinter."""
    lines = ['<graphs version="1">']
    for row in (row for row in BLINKPLUS if row["file"] == name):
        latency = f' latencyinter="{row["latencyinter"]}"' if row["latencyinter"] else ""
        lines.append(
            f'  <graph id="{row["graph_id"]}" pattern="{row["pattern"]}" crossnic="0" nchannels="{row["nchannels"]}" '
            f'speedintra="{row["speedintra"]}" speedinter="{row["speedinter"]}"{latency} '
            f'typeintra="{row["typeintra"]}" typeinter="PIX" samechannels="0">'
        )
        for channel in row["channels"].split():
            lines += ["    <channel>", *(f'      <gpu dev="{gpu}"/>' for gpu in channel.split("-")), "    </channel>"]
        lines.append("  </graph>")
    return "\n".join([*lines, "</graphs>"]) + "\n"


@pytest.mark.parametrize("name", sorted({row["file"] for row in BLINKPLUS}))
def test_blinkplus_files_are_read_and_in_force_in_todays_nccl(name: str) -> None:
    text = blinkplus_file(name)
    file = read_text(text, name)
    gpus = tuple(sorted({gpu for _, graph in file.graphs for channel in graph.channels for gpu in channel}))
    for row in (row for row in BLINKPLUS if row["file"] == name):
        graph = file.graph(int(row["graph_id"]))
        assert graph is not None
        assert " ".join("-".join(map(str, channel)) for channel in graph.channels) == row["channels"]
        assert (graph.pattern, graph.nchannels) == (int(row["pattern"]), int(row["nchannels"]))
        assert graph.bw_intra == Fraction(row["speedintra"]) * GB
        assert graph.latency_inter == pytest.approx(float(row["latencyinter"] or 0) * 1e-6)
    for release in ("2.8.4", "2.28.3", "2.30.7"):
        found = judge(text, Communicator(gpus), Release.parse(release))
        assert (found.verdict, found.accidents) == ("used", ()), found.reason
        assert found.channels == 2 * int(next(row["nchannels"] for row in BLINKPLUS if row["file"] == name))


def test_a_dump_of_eight_h200_has_empty_graphs() -> None:
    file = read(H200)
    assert [number for number, _ in file.graphs] == [0, 1, 4, 2, 3]
    assert [len(graph.channels) for _, graph in file.graphs] == [12, 12, 0, 0, 0]
    assert file.graph(families.NVLS) is None
    ring = file.graph(families.RING)
    assert ring is not None
    assert (ring.bw_intra, ring.type_intra, ring.same_channels) == (Fraction(30 * GB), "NVL", True)
    assert numbers(file, 1) == [tuple(range(8))] * 12
    assert judge(H200.read_text(), Communicator(tuple(range(8)), sm=90)).ok


def test_a_dump_for_a_quad_is_the_four_rings_of_a_dgx1() -> None:
    assert numbers(read(QUAD), 0) == [(0, 1, 2, 3), (0, 3, 2, 1), (0, 3, 1, 2), (0, 2, 1, 3)]


def test_numbers_are_hexadecimal_since_2_21() -> None:
    text = to_text(GraphFile(((0, made(4, [(10, 16)])),)))
    assert 'dev="0xa"' in text
    plain = text.replace("0xa", "10").replace("0x10", "16")
    assert read_text(plain, "x").graphs[0][1].channels[0] == (16, 22)


@st.composite
def graph_files(draw: st.DrawFn) -> GraphFile:
    graphs = []
    for number in draw(st.lists(st.integers(0, 4), max_size=3)):
        nodes = draw(st.booleans())
        channels = [
            tuple(draw(st.lists(st.integers(0, 300), min_size=1, max_size=4))) for _ in range(draw(st.integers(0, 3)))
        ]
        graph = made(
            draw(st.integers(1, 6)),
            channels,
            bw_intra=Fraction(draw(st.sampled_from(["0", "2.4", "12.5", "20", "8.333333333"]))) * GB,
            type_intra=draw(st.sampled_from(["LOC", "NVL", "SYS"])),
            same_channels=draw(st.booleans()),
            cross_nic=draw(st.integers(0, 2)),
            nets=((0, 3),) * len(channels) if nodes else (),
        )
        graphs.append((number, graph))
    return GraphFile(tuple(graphs))


@given(graph_files())
def test_what_is_written_is_read_again(file: GraphFile) -> None:
    assert read_text(to_text(file), "x.xml") == file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('dev="0x1"', 'dev="one"'), r"x\.xml:5:7: <gpu>: dev='one' is not a number"),
        (('typeintra="NVL"', 'typeintra="C2C"'), "is not a path type"),
        (('nchannels="2"', 'nchannels="two"'), "not a whole number"),
        (('id="0"', 'ID="0"'), "attribute id is missing"),
        (('version="1"', 'version="2"'), "must lie between 1 and 1"),
        (("<channel>", "<gpu>"), r"mismatched tag|place is inside"),
        (("</graphs>", ""), "cut short"),
        (("<graphs", "<system"), "must hold <graphs>"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(change: tuple[str, str], message: str) -> None:
    good = (TESTS / "data" / "nccl_graph" / "ok_ring_tree.xml").read_text()
    with pytest.raises(FileError, match=message):
        read_text(good.replace(*change), "x.xml")


GOOD = QUAD.read_text()


@given(st.integers(0, len(GOOD)), st.integers(0, 40), st.text(max_size=5))
def test_a_damaged_file_is_a_file_or_a_file_error(start: int, length: int, text: str) -> None:
    with suppress(FileError):
        read_text(GOOD[:start] + text + GOOD[start + length :], "damaged.xml")


# --- from schedules -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("members", "lanes"), [("0123", Fraction(3)), ("03", Fraction(2)), ("014", None), ("", None)])
def test_chains_come_to_nccl_with_their_rate(members: str, lanes: Fraction | None) -> None:
    schedule = chains_of("dgx1-v100", members)
    file, rings = graphs_for(schedule)
    assert not rings
    if lanes is not None:
        assert rate(schedule) == lanes * 25 * GB
    again = as_run(file, schedule.topology, schedule.collective, "tree")
    assert verify(again).ok
    assert link_loads(again) == link_loads(schedule)
    exported = export(schedule)
    comm = communicator(schedule.topology)
    for release in ("2.8.4", "2.20.5", "2.28.3", "2.30.7"):
        judged = judge(exported.files[""], comm, Release.parse(release))
        assert judged.verdict == "used"
        assert [list(c) for c in judged.graphs["tree"].channels] == [list(c) for c in numbers(file, 1)]
    assert exported.environment["NCCL_MAX_NCHANNELS"] == str(len(numbers(file, 1)))
    assert exported.environment["NCCL_ALGO"] == "allreduce:tree"


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce"])
def test_rings_come_to_nccl_with_their_loads(collective: str) -> None:
    schedule = algorithm("rings").build(machine("dgx1-v100"), Collective(collective))
    file, rings = graphs_for(schedule)
    assert rings
    again = as_run(file, schedule.topology, schedule.collective, "ring")
    assert verify(again).ok
    assert link_loads(again) == link_loads(schedule)
    assert export(schedule).environment["NCCL_ALGO"] == "Ring"
    assert len(numbers(file, 0)) == 6
    assert judge(to_text(file), communicator(schedule.topology)).ok


def test_the_log_of_the_four_rings_that_ran_is_foretold() -> None:
    # 4 x H200, graphtest: the file's rings and what NCCL printed with NCCL_MAX_NCHANNELS=4.
    rings = [(0, 2, 1, 3), (0, 3, 1, 2), (0, 1, 3, 2), (0, 2, 3, 1)]
    log = (TESTS / "data" / "captures" / "h200x4" / "graphtest.txt").read_text()
    trees = [(0, 2, 1, 3), (3, 1, 2, 0), (0, 1, 3, 2), (2, 3, 1, 0)]
    lines = graph_file.log_lines(GraphFile(((0, made(4, rings)), (1, made(1, trees)))), range(4))
    assert lines[:4] == [line.strip() for line in log.splitlines() if line.strip().startswith("Channel 0")][:4]
    printed = next(line.strip() for line in log.splitlines() if "Trees [0] 2/" in line)
    assert lines[4] == printed


def test_unequal_shares_become_repeated_channels() -> None:
    schedule = chains_of("dgx1-v100", "0123")
    assert len(numbers(graphs_for(schedule)[0], 1)) == schedule.chunks


def test_a_chain_over_two_lanes_gets_two_channels() -> None:
    # One channel is one thread block, which does not move more than a lane's worth.
    pair = algorithm("chain").build(machine("dgx1-v100", "03"), Collective("allreduce"))
    file, rings = graphs_for(pair)
    assert not rings
    assert numbers(file, 1) == [(0, 3), (0, 3)]
    assert rate(pair) == 50 * GB
    assert "as NCCL runs it, the loads allow 50 GB/s algbw" in export(pair).facts
    tree = file.graph(1)
    assert tree is not None
    assert tree.bw_intra == 25 * GB
    assert len(numbers(graphs_for(pair, most=1)[0], 1)) == 1


def test_rings_that_pass_nodes_in_two_ways_are_refused_with_the_way_out() -> None:
    schedule = algorithm("ring").build(machine("hgx-h200", nodes=2), Collective("allreduce"))
    with pytest.raises(InfeasibleError, match="algorithm=ring and alike=True"):
        export(schedule)


@pytest.mark.parametrize(
    ("algorithm_name", "nodes", "count"), [("chain_tree", 4, 8), ("chain_tree", 2, 8), ("ring", 2, 8)]
)
def test_several_nodes_with_nics(algorithm_name: str, nodes: int, count: int) -> None:
    topology = machine("hgx-h200", nodes=nodes)
    alike = {"alike": True} if algorithm_name == "ring" else {}
    schedule = algorithm(algorithm_name).build(topology, Collective("allreduce"), **alike)
    exported = export(schedule)
    file = read_text(exported.files[""], "x")
    check(file, range(8), nodes)
    assert len(numbers(file, 1)) == count
    tree = file.graph(1)
    assert tree is not None
    assert tree.pattern == families.Pattern.TREE
    assert exported.environment["NCCL_NVLS_ENABLE"] == "0"
    judged = judge(exported.files[""], communicator(topology))
    assert judged.verdict == "used"


def test_channels_that_are_too_few_for_their_load_are_left_to_be_copied() -> None:
    exported = export(algorithm("chains").build(machine("hgx-h200"), Collective("allreduce"), channels=8))
    count = int(exported.environment["NCCL_MAX_NCHANNELS"])
    assert count == 32
    assert sum(line.startswith("Channel") for line in exported.proof) == count
    # With 257 GB/s over sixteen channels one would have to carry more than the 25 that a thread block moves.
    assert len(numbers(read_text(exported.files[""], "x"), 1)) == 16


def test_one_gpu_a_node_and_a_nic_without_a_number() -> None:
    whole = machines.load("k2200-ntb", nodes=2)
    topology = whole.select(["n0.gpu0", "n1.gpu0"])
    schedule = algorithm("ring").build(topology, Collective("allreduce"))
    exported = export(schedule)
    file = read_text(exported.files[""], "x")
    assert list(file.graphs[1][1].paths)[:1] == [((0,), (0, 0))]
    assert file.graphs[1][1].pattern == families.Pattern.TREE
    assert judge(exported.files[""], communicator(topology)).ok


@pytest.mark.parametrize(
    ("name", "members", "collective", "message"),
    [
        ("mxnet", "", "allreduce", r"branches at .*algorithm=chains"),
        ("direct", "0123", "alltoall", r"single sends.*msccl-xml"),
        ("halving_doubling", "0123", "allreduce", "no ring"),
    ],
)
def test_what_nccl_cannot_be_told_is_refused(name: str, members: str, collective: str, message: str) -> None:
    schedule = algorithm(name).build(machine("dgx1-v100", members), Collective(collective))
    with pytest.raises(InfeasibleError, match=message):
        graphs_for(schedule)


def test_gpus_outside_the_communicator_are_refused_with_the_way_out() -> None:
    whole = machines.load("dgx1-v100")
    topology = whole.select(["gpu0", "gpu1"], ["gpu2", "gpu3"], relays_reduce=True)
    schedule = algorithm("blinkplus").build(topology, Collective("allreduce"))
    with pytest.raises(InfeasibleError, match=r"not in the communicator.*nccl-graph-set"):
        graphs_for(schedule)


def test_too_many_channels_are_refused() -> None:
    schedule = chains_of("dgx1-v100", "0123")
    with pytest.raises(InfeasibleError, match=r"3 equal channels, and 2 are allowed; give channels=3"):
        graphs_for(schedule, most=2)
    with pytest.raises(InputError, match="give 1 to 32"):
        export(schedule, 33)


def test_one_chain_through_all_nodes_is_refused() -> None:
    schedule = algorithm("chain").build(machine("hgx-h200", nodes=2), Collective("allreduce"))
    with pytest.raises(InfeasibleError, match="chain_tree"):
        graphs_for(schedule)


def test_a_ring_used_in_another_way_is_no_ring_for_nccl() -> None:
    schedule = ring_algorithm.build(machine("dgx1-v100", "0123"), Collective("allreduce"), [(0, 1, 2, 3)])
    graphs_for(schedule)
    keep = schedule.step != schedule.steps - 1
    arrays = {key: getattr(schedule, key)[keep] for key in ("chunk", "src", "dst", "op", "step", "route", "channel")}
    with pytest.raises(InfeasibleError, match="not used as NCCL uses one"):
        graphs_for(replace(schedule, **arrays))


def test_path_types_are_nccls_names() -> None:
    topology = machines.load("dgx1-v100").select(links=["nvlink", "pcie", "qpi"])
    index, route = topology.index, topology.router.route
    pcie = machines.load("dgx1-v100").select(links=["pcie", "qpi"])
    assert path_type(topology, route(index["gpu0"], index["gpu1"])) == "NVL"
    expected = {"gpu1": "PIX", "gpu2": "PHB", "gpu4": "SYS"}
    for peer, kind in expected.items():
        assert path_type(pcie, pcie.router.route(pcie.index["gpu0"], pcie.index[peer])) == kind
    nvlink = machine("dgx1-v100")
    assert path_type(nvlink, nvlink.router.route(nvlink.index["gpu0"], nvlink.index["gpu5"])) == "NVB"
    hgx = machine("hgx-h200")
    assert path_type(hgx, hgx.router.route(hgx.index["gpu0"], hgx.index["gpu5"])) == "NVL"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ([(0, 1), (1, 0)], None),
        ([(0, 1), (0, 0)], "not each of"),
        ([(0, 1)] * 17, "there may be 1 to 16"),
        ([], "needs a ring and a tree graph"),
    ],
)
def test_the_check_before_writing(file: list[tuple[int, ...]], message: str | None) -> None:
    graphs = GraphFile(((0, made(4, file)), (1, made(4, file))))
    if message is None:
        check(graphs, (0, 1))
        return
    with pytest.raises(InputError, match=message):
        check(graphs, (0, 1))
