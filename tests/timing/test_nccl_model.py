"""NCCL's choice as a projection, with channels searched or read from graph files that NCCL wrote itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import blinksim as bs
from blinksim import machines
from blinksim.answers import compare as comparison
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.nccl.files import graph_file, topo_file
from blinksim.nccl.tuner.tuner import predict, predict_with
from blinksim.timing import nccl_model as study
from blinksim.timing.contest import ceiling_of
from blinksim.timing.library_model import Library
from blinksim.timing.projection_result import Projection
from blinksim.topology.graph import Topology

TESTS = Path(__file__).resolve().parents[1]
DUMPS = sorted((TESTS / "data" / "nccl_graph_dumps").glob("*.xml"))
DGX1 = machines.load("dgx1-v100", rates="nccl")
ALLREDUCE = Collective("allreduce")


def test_graph_files_give_nccls_table() -> None:
    """For all GPUs of a machine: the table from NCCL's dumped graph file is the one that it computed itself."""
    cases = json.loads((TESTS / "golden" / "nccl_reference.json").read_text(encoding="utf-8"))["cases"]
    compared = 0
    for path in DUMPS:
        name, nodes = path.name.split(".n")[0], int(path.name.split(".n")[1][0])
        same = [c for c in cases if c["topo"] == f"topo/{name}.xml" and c["nnodes"] == nodes]
        case = max(same, key=lambda c: len(c["gpus"]))
        machine = topo_file.read(TESTS / "data" / "nccl_topo" / f"{name}.xml", "nccl")
        found = predict_with(machine, nodes=nodes, graph_file=path)
        assert [list(channel) for channel in found.ring.channels] == case["ring"]["channels"]
        cells = {f"{r.collective} {r.algorithm} {r.protocol.lower()}": r for r in found.model.rows}
        assert cells.keys() == case["tuning"].keys()
        for key, (latency, bandwidth) in case["tuning"].items():
            assert cells[key].latency_us == pytest.approx(latency, rel=2e-6)
            assert cells[key].bandwidth == pytest.approx(bandwidth, rel=2e-6)
            compared += 1
    assert len(DUMPS) == 23
    assert compared > 300


def test_a_log_is_compared_with_the_same_channels_as_a_choice(tmp_path: Path) -> None:
    """One conversion from file to channels serves both; a speed of many digits shows another in the last bit."""
    text = (TESTS / "data" / "nccl_graph_dumps" / "dgx1v-4ib.n1.graph.xml").read_text()
    speed = "20.738570975401945"
    path = tmp_path / "graph.xml"
    path.write_text(re.sub('speedintra="[^"]*"', f'speedintra="{speed}"', text))
    file = graph_file.read(path)
    size = 2**30
    found = predict(DGX1, multicast=False, graphs=graph_file.graphs_of(file))
    prediction = predict_with(DGX1, graph_file=path)
    assert found.times("allreduce", size) == prediction.times("allreduce", size)
    assert prediction.ring.bw_intra == Fraction("20.738570975401945") * 10**9


def test_the_search_agrees_with_a_file_from_real_gpus() -> None:
    folder = TESTS / "data" / "captures" / "h200x8"
    machine = topo_file.read(folder / "topo.xml", "nccl")
    searched = predict_with(machine, multicast=False)
    read = predict_with(machine, multicast=False, graph_file=folder / "graph.xml")
    assert searched.ring == read.ring
    assert searched.tree == read.tree
    assert searched.model.rows == read.model.rows


def test_a_file_of_other_gpus_is_refused(tmp_path: Path) -> None:
    path = next(path for path in DUMPS if path.name == "dgx1v-4ib.n1.graph.xml")
    with pytest.raises(InputError, match=r"dgx1v-4ib.*members are 0, 1"):
        predict_with(DGX1, ["gpu0", "gpu1"], graph_file=path)
    empty = tmp_path / "empty.xml"
    empty.write_text('<graphs version="1">\n</graphs>\n')
    with pytest.raises(InputError, match="no ring, tree or NVLS channels"):
        predict_with(DGX1, graph_file=empty)


def _choice(machine: Topology, size: int) -> Projection:
    return study.NcclTuner().times(machine, ALLREDUCE, [size], ["nccl"])[0]


def test_terms_add_up_and_name_the_choice() -> None:
    found = predict_with(DGX1)
    for size in (1, 2**10, 2**20, 2**30):
        rows = study.projections(found, DGX1, ALLREDUCE, size)
        best = _choice(DGX1, size)
        assert best.time_s == pytest.approx(min(row.time_s for row in rows))
        assert best.time_s == pytest.approx(sum(term.time_s for term in best.terms))
        assert rows[0].algorithm == f"{best.details['nccl_algorithm']}/{best.details['nccl_protocol']}"
        assert all(term.time_s >= 0 for term in best.terms)


def test_packing_wins_where_nccl_does_not_relay() -> None:
    """GPUs 0 and 5 share no NVLink: NCCL goes over QPI at 6 GB/s, through idle GPUs there is far more."""
    members = ["gpu0", "gpu5"]
    part = DGX1.select(members, [d.name for d in DGX1.devices if d.holds and d.name not in members], ["nvlink"])
    others = {"nccl": partial(_choice, replace(DGX1, members=tuple(members)))}
    result = comparison.compare(part, ALLREDUCE, [2**20, 2**30], ["chain"], others=others)
    assert set(result.algorithms) == {"nccl", "chain"}
    rate = {p.algorithm: p.algbw / 1e9 for p in result.projections[-1]}
    assert rate["nccl"] == pytest.approx(6, rel=1e-3)
    assert rate["chain"] > 3 * rate["nccl"]


def test_a_lead_can_pass_to_nccl() -> None:
    others = {"nccl": partial(_choice, DGX1)}
    result = comparison.compare(DGX1.select(), ALLREDUCE, [2**10, 2**30], ["binary"], others=others)
    assert [x.faster for x in result.crossovers] == ["nccl"]
    border = result.crossovers[0].size
    beside = [comparison.compare(DGX1.select(), ALLREDUCE, [border - i], ["binary"], others=others) for i in (1, 0)]
    assert [result.best()[0].algorithm for result in beside] == ["binary", "nccl"]


def test_a_comparison_says_what_nccl_takes_at_every_size() -> None:
    """Algorithm and protocol by size, as NCCL's own choice, which grows from LL to Simple."""
    machine = machines.load("hgx-h100", rates="nccl")
    model = study.NcclTuner(machine)

    def chosen(size: int) -> Projection:
        return model.times(machine, Collective("allreduce"), [size], ["nccl"])[0]

    found = comparison.compare(machine, "allreduce", ["1KiB", "1GiB"], ["two_shot"], others={"nccl": chosen})
    takes = {(row["algorithm"], row["size_bytes"]): row["nccl_takes"] for row in found.rows()}
    assert takes["nccl", 2**10] == "ring LL"
    assert takes["nccl", 2**30] == "nvls Simple"
    assert takes["two_shot", 2**10] == takes["two_shot", 2**30] == ""
    assert [line.split()[-2:] for line in found.text().splitlines() if "iB  " in line] == [
        ["ring", "LL"],
        ["nvls", "Simple"],
    ]
    plain = comparison.compare(machine, "allreduce", ["1KiB"], ["two_shot"])
    assert "nccl_takes" not in plain.rows()[0]
    assert "NCCL takes" not in plain.text()


def test_bounds_are_asked_only_of_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[object]()

    def counted(*part: Any) -> Any:
        asked.append(part)
        return ceiling_of(*part)

    monkeypatch.setattr(study, "ceiling_of", counted)
    study.bounds_of.cache_clear()
    model, whole = study.NcclTuner().at(machines.Question("hgx-h100"))
    [best] = model.times(whole, ALLREDUCE, [2**28], ["nccl"])
    assert len(asked) == 1
    every = model.times(whole, ALLREDUCE, [2**28])
    # With switches that add, and without.
    assert len(asked) == 2
    assert (best.time_s, best.bound) == (every[0].time_s, every[0].bound)


@pytest.mark.parametrize(("leaf_nodes", "crossing"), [(1, 4), (2, 4), (4, 0)])
def test_trees_load_the_uplinks_of_leaves(leaf_nodes: int, crossing: int) -> None:
    """NCCL's trees of four nodes by hand: 0-2, 2-1, 2-3, and mirrored 3-1, 1-2, 1-0; each edge carries half there and
    back. So four edges end in node 1 or 2, and four join nodes 0-1 to 2-3; one leaf has no uplink that is passed."""
    edit = f"fabric shape=tree leaf_nodes={leaf_nodes} oversubscription=4"
    part = bs.Question("h200", nodes=4, edits=(edit,)).part()
    uplink = leaf_nodes * 8 * 50e9 / 4
    for pick in ("tree Simple", "nvls_tree Simple"):
        assert study.load_of(part, ALLREDUCE, pick) == pytest.approx(crossing / 2 / uplink)
    ring_s = study.load_of(part, ALLREDUCE, "ring LL")
    assert ring_s == pytest.approx(2 * 31 / 32 / min(uplink, 8 * 50e9))


def test_a_library_waits_for_the_uplinks_that_its_choice_loads() -> None:
    edit, size = "fabric shape=tree leaf_nodes=2 oversubscription=4", 2**30
    asked = bs.Question("h200", nodes=4, edits=(edit,))
    model, machine = Library().at(asked)
    found = model.times(machine, ALLREDUCE, [size])[0]
    named = bs.project(asked.part(), "allreduce", size, algorithm="nvls_tree")
    assert found.details["choice"] == "nvls_tree Simple"
    assert found.time_s > 0.99 * named.time_s > 0.0104
