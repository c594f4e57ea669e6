"""The search against NCCL itself on machines that do not exist (validate/recipes/made_up_machines.py, NCCL 2.28.9)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from nccl_cases import TESTS

from blinksim.nccl.files import topo_file
from blinksim.nccl.files.graph_file import Graph
from blinksim.nccl.tuner.tuner import predict

DIFFERENT = {9, 111, 161, 205, 207, 223, 287}
"""Where the prediction is not NCCL's, all on two nodes. On 9, 111, 161, 223 and 287 GPUDirect works with some GPUs of
the node only; on 111 and 205 NCCL left out a GPU."""


def made_up_cases() -> list[dict[str, Any]]:
    with gzip.open(TESTS / "golden" / "nccl_made_up_machines.json.gz", "rt", encoding="utf-8") as file:
        return list(json.load(file)["cases"])


def dumped(text: str) -> dict[str, tuple[dict[str, str], list[list[int]], list[list[int]]]]:
    """For each graph that NCCL wrote, by its number: attributes, GPUs by channel, ports by channel."""
    return {
        graph.get("id", ""): (
            dict(graph.attrib),
            [[int(gpu.get("dev", ""), 0) for gpu in channel.iter("gpu")] for channel in graph.iter("channel")],
            [[int(net.get("dev", ""), 0) for net in channel.iter("net")] for channel in graph.iter("channel")],
        )
        for graph in ElementTree.fromstring(text).iter("graph")
    }


def predicted_otherwise(case: dict[str, Any], folder: Path) -> Iterator[str]:
    """Everything that is predicted otherwise than NCCL answered."""
    text = case["topo"]
    for number in range(case["count"]):
        text = text.replace(f'"BUS{number}"', f'"0000:{number + 1:02x}:00.0"')
    path = folder / "topo.xml"
    path.write_text(text)
    members = [f"gpu{number}" for number in case["gpus"]]
    found = predict(topo_file.read(path, "nccl"), members, nodes=case["nodes"], multicast=False)
    graphs = dumped(case["graph"])
    for family, graph in (("ring", "0"), ("tree", "1")):
        mine: Graph = getattr(found, family)
        facts, channels, ports = graphs[graph]
        pairs: list[tuple[str, object, object]] = [
            ("channels", [list(channel) for channel in mine.channels], channels),
            ("pattern", str(mine.pattern), facts["pattern"]),
            ("typeintra", mine.type_intra, facts["typeintra"]),
            ("crossnic", int(mine.cross_nic), int(facts["crossnic"])),
            ("samechannels", int(mine.same_channels), int(facts["samechannels"])),
            ("speedintra", f"{float(mine.bw_intra) / 1e9:.6g}", f"{float(facts['speedintra']):.6g}"),
        ]
        if case["nodes"] > 1:
            pairs += [
                ("ports", [list(ends) for ends in mine.nets], ports),
                ("typeinter", mine.type_inter, facts["typeinter"]),
                ("speedinter", f"{float(mine.bw_inter) / 1e9:.6g}", f"{float(facts['speedinter']):.6g}"),
            ]
        for what, ours, theirs in pairs:
            if ours != theirs:
                yield f"{family} {what}: {ours}, NCCL has {theirs}"


@pytest.mark.slow
def test_channels_of_all_made_up_machines_are_nccls(tmp_path: Path) -> None:
    otherwise = {case["seed"]: list(predicted_otherwise(case, tmp_path)) for case in made_up_cases()}
    assert {seed: what for seed, what in otherwise.items() if what and seed not in DIFFERENT} == {}
    assert {seed for seed in DIFFERENT & set(otherwise) if not otherwise[seed]} == set(), (
        "now right: take it off the list"
    )
