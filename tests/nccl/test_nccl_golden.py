"""Catalogue machines against what NCCL 2.28.3 printed: paths with hops, channels, tuning table, choices by size."""

from __future__ import annotations

import re
from functools import cache

import pytest
from nccl_cases import TESTS

from blinksim import machines
from blinksim.nccl.families import PATH_TYPES
from blinksim.nccl.files.graph_file import Graph
from blinksim.nccl.paths import GRAIN, Paths, systems_of
from blinksim.nccl.tuner.tuner import Prediction, predict

FAMILY = {0: "ring", 1: "tree", 3: "nvls"}


@cache
def sections() -> list[tuple[str, list[str]]]:
    """(machine of the catalogue and its GPUs, lines) of every part of the print."""
    found: list[tuple[str, list[str]]] = []
    for line in (TESTS / "golden" / "nccl_golden.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#####"):
            name = "dgx1-v100" if "DGX-1V" in line else "hgx-h200"
            found.append((f"{name} {line.split()[-1]}", []))
        elif found:
            found[-1][1].append(line)
    return found


TITLES = [title for title, _ in sections()]


@cache
def predicted(title: str) -> Prediction:
    name, gpus = title.split()
    return predict(machines.load(name, rates="nccl"), [f"gpu{number}" for number in gpus.split(",")])


def test_all_parts_are_read() -> None:
    assert len(TITLES) == 6
    assert sum(len(lines) for _, lines in sections()) > 200


@pytest.mark.parametrize("title", [title for title in TITLES if title.startswith("dgx1")])
def test_paths_and_their_hops(title: str) -> None:
    name, gpus = title.split()
    system = systems_of(machines.load(name, rates="nccl"), [f"gpu{number}" for number in gpus.split(",")])[0]
    paths = Paths(system)
    mine = [[paths[a, b] for b in system.gpus] for a in system.gpus]
    printed = [line.split() for line in dict(sections())[title] if re.match(r"[A-Z]{3}/", line)]
    written = [[f"{PATH_TYPES[p.kind]}/{p.bandwidth * GRAIN / 1e9:g}/{p.hops}" for p in row] for row in mine]
    assert written == printed


@pytest.mark.parametrize("title", TITLES)
def test_channels(title: str) -> None:
    graphs = 0
    lines = dict(sections())[title]
    for position, line in enumerate(lines):
        if not line.startswith("graph id"):
            continue
        values = re.findall(r"(?:id|pattern|crossnic|nchannels|bwIntra|bwInter|lat|type|same) (\S+)", line)
        number, pattern, cross, count, intra, inter, _, kinds, same = values
        graph: Graph = getattr(predicted(title), FAMILY[int(number)])
        assert (graph.pattern, graph.cross_nic, graph.nchannels) == (int(pattern), int(cross), int(count))
        assert [float(graph.bw_intra) / 1e9, float(graph.bw_inter) / 1e9] == [float(intra), float(inter)]
        assert f"{graph.type_intra}/{graph.type_inter}" == kinds
        assert graph.same_channels == (same == "1")
        listed = [tuple(map(int, ch.split(":")[1].split())) for ch in lines[position + 1 : position + 1 + int(count)]]
        assert [channel[: len(row)] for channel, row in zip(graph.channels, listed, strict=True)] == listed
        graphs += 1
    assert graphs >= 2


@pytest.mark.parametrize("title", TITLES)
def test_table_and_choices(title: str) -> None:
    prediction = predicted(title)
    cells = {(row.collective, row.algorithm, row.protocol): row for row in prediction.model.rows}
    compared = 0
    for line in dict(sections())[title]:
        if line.startswith("tune"):
            _, collective, algorithm, protocol, _, latency, _, _, bandwidth, _ = line.split()
            row = cells[collective, algorithm, protocol]
            assert (f"{row.latency_us:.3f}", row.bandwidth) == (latency, pytest.approx(float(bandwidth), abs=6e-4))
            compared += 1
        elif line.startswith("best"):
            collective, by_size = line.removeprefix("best ").split(":")
            for size, choice in (entry.split("=") for entry in by_size.split()):
                best = prediction.best(collective, int(size))
                algorithm, protocol, time = choice.split("/")
                assert (best.algorithm, best.protocol) == (algorithm, protocol)
                assert best.time_s * 1e6 == pytest.approx(float(time.removesuffix("us")), abs=0.06)
                compared += 1
    assert compared >= 60
