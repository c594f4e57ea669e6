"""Forty runs of two and four H200 in validate/results, and round guesses to start from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from blinksim.answers.measurements.execution_cases import GIB, KIB, MIB, Case
from blinksim.cost.execution_rates import ExecutionRates, FlagRates, PacketRates, PortRates
from blinksim.cost.origin import Origin

RESULTS = Path(__file__).resolve().parents[1] / "validate" / "results"
US = 1e-6
GUESSES = ExecutionRates(
    hardware="NVIDIA H200",
    measured=Origin("round guesses"),
    gpus=(2, 4),
    blocks=132,
    launch_s=8 * US,
    announce_s=0.5 * US,
    visit_s=0.6 * US,
    ports=PortRates(out=370e9, into=400e9, fan=0.025, queue_s=50 * US),
    packets=PacketRates(0.5 * US, 0.5 * US, 0.25 * US, 0.4 * US, 1 * US, 1 * US, 2.5),
    flags=FlagRates(0.35 * US, 1 * US, 0.4 * US, 0.4 * US, 25.0 * 2**20, 0.014e-9, 0.8 * US, 1.3 * US, 1 * US, 4.0),
)


def _cases() -> Iterator[Case]:
    """Of both counts of GPUs where there are both; sizes below 1 MiB were measured on two and on eight."""
    for name in ("direct", "ring", "chain_tree"):
        yield Case(2, "allreduce", name, "ll128", KIB)
    yield Case(2, "allreduce", "double_binary", "ll128", 64 * KIB)
    yield Case(2, "allreduce", "direct", "ll128", 256 * KIB)
    packets = [
        ("allreduce", "ring", MIB), ("allreduce", "direct", MIB), ("allgather", "direct", MIB),
        ("reduce", "double_binary", MIB), ("broadcast", "chain", MIB), ("allreduce", "two_shot", 4 * MIB),
        ("allreduce", "ring", 16 * MIB), ("allreduce", "direct", 16 * MIB), ("reducescatter", "direct", 16 * MIB),
        ("broadcast", "chain", 16 * MIB), ("allreduce", "direct", 64 * MIB), ("allgather", "ring", 64 * MIB),
    ]  # fmt: skip
    flags = [
        ("allreduce", "ring", MIB), ("allreduce", "ring", 4 * MIB), ("allreduce", "ring", 16 * MIB),
        ("allreduce", "ring", 256 * MIB), ("allreduce", "ring", GIB), ("allreduce", "two_shot", MIB),
        ("allreduce", "two_shot", 16 * MIB), ("allreduce", "two_shot", GIB), ("allreduce", "direct", MIB),
        ("allreduce", "direct", 16 * MIB), ("allreduce", "direct", GIB), ("broadcast", "chain", MIB),
        ("broadcast", "chain", 16 * MIB), ("broadcast", "chain", 64 * MIB), ("reduce", "chain", MIB),
        ("reduce", "chain", 16 * MIB), ("reduce", "chain", 64 * MIB), ("allgather", "direct", 64 * MIB),
    ]  # fmt: skip
    for number, (collective, name, size) in enumerate(packets):
        yield Case(2 if number % 3 == 2 else 4, collective, name, "ll128", size)
    for number, (collective, name, size) in enumerate(flags):
        yield Case(2 if number % 3 == 2 else 4, collective, name, "simple", size)
    for name, size in (("ring", MIB), ("ring", 16 * MIB)):
        yield Case(2, "allreduce", name, "ll128", size)
    for name, size in (("ring", MIB), ("direct", 16 * MIB), ("two_shot", 256 * MIB)):
        yield Case(2, "allreduce", name, "simple", size)


def chosen() -> list[tuple[Case, float]]:
    """The forty, with their times in seconds."""
    known = measured()
    return [(case, known[case]) for case in _cases()]


@cache
def measured() -> dict[Case, float]:
    """Every run whose schedule is that of an algorithm on one switch, cut as `fit` cuts it: seconds by case."""
    found = {}
    for gpus in (2, 8):
        for row in json.loads((RESULTS / f"elementary-{gpus}gpu.json").read_text())["allreduce"]:
            if not row["in_place"] and row["used_bytes"] % (128 * gpus) == 0:
                found[Case(gpus, "allreduce", row["algorithm"], row["protocol"], row["size_bytes"])] = row["time_s"]
    for gpus in (2, 3, 4, 6, 8):
        for row in json.loads((RESULTS / f"full-speed-{gpus}gpu.json").read_text())["ours"]:
            if row["algorithm"] != "packed":
                case = Case(gpus, row["collective"], row["algorithm"], row["protocol"], row["size_bytes"])
                found[case] = row["time_s"]
    return found
