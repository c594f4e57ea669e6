"""What was run on real GPUs says where, when and with what, and nothing in it was wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from blinksim.collective import busbw_factor

RESULTS = sorted((Path(__file__).parents[2] / "validate" / "results").glob("elementary-*gpu.json"))


@pytest.fixture(params=RESULTS, ids=lambda path: path.stem)
def result(request: pytest.FixtureRequest) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(request.param.read_text())
    return content


def test_there_are_results() -> None:
    assert [path.stem for path in RESULTS] == ["elementary-2gpu", "elementary-4gpu", "elementary-8gpu"]


def test_provenance_is_complete(result: dict[str, Any]) -> None:
    needed = {"date", "command", "gpus", "driver", "cuda_runtime", "cupy", "numpy", "python", "blinksim", "environment"}
    assert needed <= result["provenance"].keys()
    assert all(result["provenance"][key] for key in needed)


def test_every_run_was_right(result: dict[str, Any]) -> None:
    assert len(result["checks"]) > 200
    assert {row["wrong"] for row in result["checks"] + result["allreduce"] + result["nccl_allreduce"]} == {0}
    assert result["failure"][0]["next_run_ok"] is True


def test_rates_follow_from_the_samples(result: dict[str, Any]) -> None:
    factor = float(busbw_factor("allreduce", len(result["provenance"]["gpus"])))
    for row in result["allreduce"] + result["nccl_allreduce"]:
        assert len(row["times_s"]) == 20
        assert row["time_s"] == pytest.approx(median(row["times_s"]))
        assert row["busbw_GBps"] == pytest.approx(row["size_bytes"] / row["time_s"] * factor / 1e9)


FOLDER = RESULTS[0].parent


def test_synthesised_schedules_were_right_on_gpus() -> None:
    content = json.loads((FOLDER / "synthesised-4gpu.json").read_text())
    names = {row["schedule"] for row in content["checks"]}
    algorithms = {name.split("-")[0] for name in names}
    assert {"packed", "chains", "rings", "blink", "blink_hierarchical", "blinkplus", "mxnet", "few_steps"} <= algorithms
    assert "cluster-hierarchical-allreduce" in names
    assert {row["wrong"] for row in content["checks"] + content["times"]} == {0}
    assert {row["schedule"] for row in content["times"]} == names


def test_nccl_loaded_what_was_exported() -> None:
    """Every line that an export promised stood in NCCL's log, its dump holds the order, and the data were right."""
    content = json.loads((FOLDER / "nccl-files-4gpu.json").read_text())
    cases = {case["case"]: case for case in content["cases"]}
    for name, case in cases.items():
        assert case["status"] == 0, name
        assert {row["wrong"] for row in case["rows"]} == {0}
        assert case["missing"] == []
    loaded = [case for name, case in cases.items() if case["environment"].get("NCCL_GRAPH_FILE")]
    assert len(loaded) == 4
    assert all(len(case["promised"]) >= 4 for case in loaded)
    # The files of chains put other orders in force than NCCL's own choice, and the dump says so too.
    orders = re.findall(r'<gpu dev="(?:0x)?(\d)"', cases["chains-loaded"]["dump"])
    assert "".join(orders[:12]) == "021303211032"


def test_nccl_planned_for_the_emulated_machine_as_on_a_real_one() -> None:
    """Given the DGX-1V's quad as its topology file, NCCL chose the four rings that it chooses there."""
    content = json.loads((FOLDER / "nccl-files-4gpu.json").read_text())
    case = next(case for case in content["cases"] if case["case"] == "emulated-ring")
    assert any(line.startswith("Pattern 4, crossNic 0, nChannels 4, bw 20.0") for line in case["log"])
    channels = {line.split(" : ")[1] for line in case["log"] if re.match(r"Channel \d+/08 : ", line)}
    assert channels == {"0 1 2 3", "0 3 2 1", "0 3 1 2", "0 2 1 3"}


def test_schedules_for_a_size_on_emulated_lanes() -> None:
    """Which is quickest, and by how much, from the rows alone; the page has the same figures."""
    from validate.recipes import sized

    content = json.loads((FOLDER / "sized-4gpu.json").read_text())
    page = (FOLDER.parents[1] / "docs" / "measurements" / "scale.md").read_text()
    assert {row["wrong"] for row in content["times"]} == {0}
    best: dict[tuple[str, int], dict[str, float]] = {}
    for row in sorted(content["times"], key=lambda row: -row["time_s"]):
        best.setdefault((row["collective"], row["size_bytes"]), {})[row["schedule"]] = row["time_s"]
    found = sized.cells(content)
    assert {(cell.collective, cell.size) for cell in found} == best.keys()
    for cell in found:
        times = best[cell.collective, cell.size]
        assert (cell.quickest_s, cell.among) == (min(times.values()), len(times))
        assert times[cell.quickest] == cell.quickest_s <= cell.chosen_s == times[cell.chosen]
        names = [name.rpartition("-")[0] for name in (cell.chosen, cell.quickest)]
        seen = [f"{time * 1e6:.1f} us" for time in (cell.chosen_s, cell.quickest_s)]
        assert f"| `{names[0]}` | {seen[0]} | `{names[1]}` | {seen[1]} | {cell.ratio:.3f} |" in page
    alike = [
        sum(time <= sized.ALIKE * cell.quickest_s for cell, time in zip(found, each, strict=True))
        for each in ([cell.chosen_s for cell in found], [cell.by_program_s for cell in found])
    ]
    assert alike == [9, 9]
    assert "in all 9" in page
    assert sized.text(content).endswith("9 of 9 within 5% of the quickest; by the simulated program, 9")


def test_lanes_that_schedules_are_made_for() -> None:
    """Every lane is a link of its own, as wide and as late as measured; pieces go up to whole messages."""
    from blinksim.algorithms.registry import REGISTRY
    from blinksim.collective import Collective
    from validate.recipes import sized

    lane, (lanes, links) = sized.known_lane(), sized.machines_for("0123", 1 << 20)
    assert len(lanes.links) == sum(link.lanes for link in links.links) == 18
    assert {link.lanes for link in lanes.links} == {1}
    for link in (*lanes.links, *links.links):
        assert (link.overhead, link.latency) == (lane.overhead_s, lane.latency_s)
        assert float(link.lane_bandwidth) == pytest.approx(lane.rate(1 << 20), rel=1e-9)
    schedule = REGISTRY["direct"].build(lanes, Collective("allgather"))
    pieces = sized.pieces_for(schedule, 1 << 20)
    assert pieces == sorted(set(pieces))
    assert pieces[-1] == 1 << 20
    # A block goes straight: launch, overhead, a quarter of the bytes, latency of the flag.
    least = lane.launch_s + lane.overhead_s + (1 << 18) / lane.rate(1 << 20)
    assert least <= sized.expected(schedule, 1 << 20) <= least + lane.overhead_s + lane.latency_s
