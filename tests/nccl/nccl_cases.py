"""What NCCL's own graph code answered on a CPU, and the machines that it was asked about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from blinksim.nccl.files import topo_file
from blinksim.nccl.files.graph_file import Graph
from blinksim.nccl.paths import System, systems_of
from blinksim.nccl.tuner.tuner import Prediction, job_of, load

TESTS = Path(__file__).resolve().parents[1]
VERSIONS = ("2.28.3", "2.30.7")
# Single precision printed with seven digits.
DIGITS = 2e-6


@cache
def cases() -> list[dict[str, Any]]:
    text = (TESTS / "golden" / "nccl_reference.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)["cases"]
    return found


@cache
def machine(name: str) -> Any:
    return topo_file.read(TESTS / "data" / "nccl_topo" / Path(name).name, "nccl")


def answer(case: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The case as a version of NCCL answered it."""
    return {**case, **(case.get("v2307", {}) if version == "2.30.7" else {})}


def members(case: Mapping[str, Any]) -> list[str]:
    return [f"gpu{number}" for number in case["gpus"]]


def system(case: Mapping[str, Any]) -> System:
    return systems_of(machine(case["topo"]), members(case), case["nnodes"])[0]


def graph(facts: Mapping[str, Any]) -> Graph:
    """A graph of the reference in our own words."""
    return Graph(
        pattern=facts["pattern"],
        nchannels=facts["nchannels"],
        bw_intra=Fraction(str(facts["bw_intra"])) * 10**9,
        bw_inter=Fraction(str(facts["bw_inter"])) * 10**9,
        type_intra=facts["type_intra"],
        type_inter=facts["type_inter"],
        same_channels=bool(facts["same_channels"]),
        latency_inter=facts["latency_inter"] * 1e-6,
        cross_nic=facts["cross_nic"],
        channels=tuple(map(tuple, facts.get("channels", [[head] for head in facts.get("heads", [])]))),
        nets=tuple(map(tuple, facts.get("nets", []))),
    )


def given(case: Mapping[str, Any], version: str) -> Prediction:
    """A prediction with the reference's channels instead of searched ones, to look at the tuner alone."""
    facts, found = answer(case, version), system(case)
    return Prediction(
        machine=case["topo"],
        members=tuple(members(case)),
        version=version,
        job=job_of([found], len(found.gpus) * found.nnodes, load(version)),
        ring=graph(facts["ring"]),
        tree=graph(facts["tree"]),
        nvls=graph(facts["nvls"]) if facts.get("nvls") else None,
    )


def near(mine: float, reference: float) -> bool:
    return abs(mine - reference) <= DIGITS * abs(reference)
