"""Published times of dispatch and combine beside the floor: none is below it, and docs/experts.md has the table.

`python tests/test_expert_figures.py` prints the table, and times and floors for ``models/experts.csv``. Rates become
times with the bytes that the benchmarks count:
``nodes``: a token once for every node that it goes to, the sender's own included (DeepEP, tests/legacy/
test_internode.py, tests/elastic/test_ep.py); ``ranks``: what a rank receives, from itself too (test_intranode.py).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import blinksim as bs
from blinksim.bounds.experts import token_bytes
from blinksim.timing.experts import taken

ROOT = Path(__file__).resolve().parents[1]
ROWS = list(csv.DictReader((ROOT / "models" / "experts.csv").read_text().splitlines()))


@cache
def routing(ranks: int, tokens: int, experts: int, node_limit: str) -> bs.Routing:
    limit = int(node_limit) if node_limit else None
    return bs.draw_routing(ranks, tokens=tokens, experts=experts, node_limit=limit, token_size=1)


@cache
def machine(name: str, nodes: int) -> bs.Topology:
    return bs.load(name, nodes=nodes).selected()


def times(row: dict[str, str]) -> tuple[float, float]:
    """Seconds as published, and of the floor; tokens of a byte are drawn once for all types."""
    topology = machine(row["machine"], int(row["nodes"]))
    drawn = routing(topology.ranks, int(row["tokens"]), int(row["experts"]), row["node_limit"])
    size = token_bytes(int(row["hidden"]), row["dtype"])
    floor = bs.bound(topology, bs.Collective(row["what"], routing=drawn)).time(drawn.size) * size
    if row["time_us"]:
        return float(row["time_us"]) * 1e-6, floor
    group = np.arange(topology.ranks) // (topology.ranks // topology.nodes if row["counts"] == "nodes" else 1)
    counted = drawn.reached((*group.tolist(),))[0].sum() / topology.ranks
    return float(counted) * size / (float(row["rate_GBps"]) * 1e9), floor


def line(row: dict[str, str], published: float, floor: float) -> str:
    said = f"{row['rate_GBps']} GB/s" if row["rate_GBps"] else f"{row['time_us']} us"
    cells = (row["library"], f"{row['nodes']} x {row['machine']}", row["what"], said)
    return f"| {' | '.join(cells)} | {published * 1e6:,.0f} | {floor * 1e6:,.0f} | {100 * floor / published:.0f} % |"


def judged(rows: list[dict[str, str]]) -> None:
    page = (ROOT / "docs" / "experts.md").read_text().splitlines()
    for row in rows:
        published, floor = times(row)
        assert published >= floor, row
        assert line(row, published, floor) in page
        stated = [1e-6 * float(row[name]) for name in ("published_us", "floor_us")]
        assert (published, floor) == pytest.approx(stated, rel=1e-4)
        assert int(row["gpus"]) == machine(row["machine"], int(row["nodes"])).ranks
        assert int(row["token_bytes"]) == token_bytes(int(row["hidden"]), row["dtype"])


FEW = [row for row in ROWS if int(row["tokens"]) <= 128 and row["nodes"] in ("1", "4")]


def test_no_published_time_is_below_the_floor() -> None:
    assert len(FEW) == 8
    judged(FEW)


MANY = sorted({row["machine"] for row in ROWS if row not in FEW})
# Their rows are of as many nodes and tokens as those of another machine, on other links.
LIKE = ("mi355x", "p6-b200.48xlarge")


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.alike] * (one in LIKE)) for one in MANY])
def test_no_published_time_of_many_tokens_is_below_the_floor(name: str) -> None:
    judged([row for row in ROWS if row not in FEW and row["machine"] == name])


def test_every_figure_has_its_address() -> None:
    page = (ROOT / "docs" / "experts.md").read_text()
    for row in ROWS:
        assert row["source"].startswith("https://github.com/")
        assert row["source"] in page


@pytest.mark.parametrize("row", [row for row in ROWS if row["library"] == "UCCL-EP normal" and row["time_us"]][:4])
def test_what_a_rate_counts(row: dict[str, str]) -> None:
    """UCCL-EP prints rate and time for the same run on p5en: 320 and 319 GB/s on one node, 50 and 18 on two."""
    rates = {("1", "dispatch"): 320, ("1", "combine"): 319, ("2", "dispatch"): 50, ("2", "combine"): 18}
    counts = "ranks" if row["nodes"] == "1" else "nodes"
    rated = {**row, "time_us": "", "counts": counts, "rate_GBps": str(rates[row["nodes"], row["what"]])}
    assert times(rated)[0] == pytest.approx(times(row)[0], rel=0.03)


@pytest.mark.parametrize(("what", "rate"), [("dispatch", 134), ("combine", 204)])
def test_what_a_rate_of_another_library_counts(what: str, rate: int) -> None:
    """MoRI-EP prints both for few tokens on one node; its dispatch has no scales."""
    (row,) = (row for row in ROWS if (row["library"], row["nodes"], row["what"]) == ("MoRI-EP low-latency", "1", what))
    rated = {**row, "time_us": "", "counts": "ranks", "rate_GBps": str(rate)}
    scales = 7392 / 7168 if what == "dispatch" else 1
    # Each is the best of several rounds, and times are in whole microseconds.
    assert times(rated)[0] / scales == pytest.approx(times(row)[0], rel=0.04)


def family(row: dict[str, str]) -> Sequence[str]:
    """A library on a machine, whatever its kernels are called."""
    return row["library"].split()[0], row["machine"]


def test_eight_in_ten_published_times_lie_in_the_interval_that_the_others_give() -> None:
    """All figures of a library on a machine are left out at once; few are far from what the others say."""
    inside, off = [], []
    for row in ROWS:
        topology = machine(row["machine"], int(row["nodes"]))
        wanted = bs.Collective(row["what"], routing=routing(topology.ranks, 1, topology.ranks * 8, ""))
        published, floor = (1e-6 * float(row[name]) for name in ("published_us", "floor_us"))
        found = taken(topology, wanted, floor, (1.0, 1.0), [one for one in ROWS if family(one) != family(row)])
        low, middle, high = (found[key] for key in ("interval_low_s", "time_s", "interval_high_s"))
        assert floor <= low <= middle <= high
        inside.append(low <= published <= high)
        off.append(abs(np.log(middle / published)))
    assert np.mean(inside) >= 0.8
    assert np.median(off) < 0.15


@pytest.mark.parametrize(
    ("name", "experts", "published"), [("p5en.48xlarge", 288, (1196,)), ("mi300x", 256, (815, 958))]
)
def test_what_was_published_of_the_very_tokens_is_the_first_figure(
    name: str, experts: int, published: tuple[int, ...]
) -> None:
    """On two nodes UCCL-EP prints 1,196 us for p5en; of MI300X there are rates by two libraries."""
    size = token_bytes(7168, "fp8")
    drawn = bs.draw_routing(16, tokens=4096, experts=experts, token_size=size)
    wanted, rows = bs.Collective("dispatch", routing=drawn), [row for row in ROWS if row["machine"] == name]
    floor = min(float(row["floor_us"]) for row in rows if (row["nodes"], row["tokens"]) == ("2", "4096"))
    found = taken(machine(name, 2), wanted, 1e-6 * floor, (0.9, 1.1))
    assert found["time_s"] == pytest.approx(1e-6 * np.mean(published), rel=2e-3)
    assert found["interval_low_s"] < 1e-6 * min(published) <= 1e-6 * max(published) < found["interval_high_s"]
    assert found["origin"].endswith(" and ".join(f"{time:,} us" for time in published))
    assert found["library"].startswith("UCCL-EP normal")
    edited = bs.load(name, nodes=2, edits="replace pcie bandwidth=20GB/s").selected()
    assert taken(edited, wanted, 1e-6 * floor, (0.9, 1.1))["origin"].startswith("an estimate")


@pytest.mark.slow
def test_fewer_tokens_take_no_less_than_nothing_and_no_longer_than_more() -> None:
    found = [bs.project_experts(bs.load("hgx-h100", nodes=2), tokens=tokens) for tokens in (1, 16, 128, 256)]
    times = [one.time_s for one in found]
    assert times == sorted(times)
    assert all(one.floor_s <= one.could_s < one.time_s for one in found)


if __name__ == "__main__":
    found = [(row, *times(row)) for row in ROWS]
    print("\n".join(line(*one) for one in found))
    for row, *both in found:
        print(row["library"], row["machine"], *(f"{1e6 * time:.5g}" for time in both), sep=",")
