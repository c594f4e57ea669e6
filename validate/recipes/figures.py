"""The figures of the report, computed from the result files: errors, ratios, factors and rates."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parents[1]
MIB = 1 << 20
LARGE = 16 * MIB
Row = Mapping[str, Any]


def load(results: Path) -> dict[str, Any]:
    """Every result file by name, without its ending."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}


def size_text(size: int) -> str:
    if size < MIB:
        return f"{size >> 10} KiB"
    return f"{size >> 30} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"


# What is simulated, and where its seconds are.
SIMULATED = {"schedule": "predicted_s", "program": "program_s"}


def error(row: Row, what: str = "schedule") -> float:
    """How far the simulation is off, as a share of what was measured; above 0 if it says too much."""
    return float(row[SIMULATED[what]] / row["measured_s"] - 1)


def parts_of(row: Row) -> tuple[str, str, str, str]:
    """(machine, members, collective, algorithm and what was changed) of a case."""
    machine, members, collective, *rest = row["case"].split("_")
    return machine, members, collective, "_".join(rest)


def large(rows: Sequence[Row]) -> list[Row]:
    """The cases of 16 MiB or more, for which there are targets."""
    return [row for row in rows if row["size_bytes"] >= LARGE]


def large_rows(name: str, content: Row) -> bool:
    """True if a result holds predictions from 16 MiB on."""
    predicted = name.startswith("emulated-") and name.endswith("-predicted")
    return predicted and bool(large(content["rows"]))


def verdict(rows: Sequence[Row], what: str = "schedule") -> tuple[float, float, int, int]:
    """(median, worst) absolute error from 16 MiB, as shares; cases beyond 15 %, and all."""
    off = [abs(error(row, what)) for row in large(rows)]
    return median(off), max(off), sum(x > 0.15 for x in off), len(off)


def speedups(rows: Sequence[Row], base: str = "rings") -> list[dict[str, Any]]:
    """Packed trees over `base` at the largest size, for every part that has both."""
    found: dict[tuple[str, str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        machine, members, collective, algorithm = parts_of(row)
        if algorithm in (base, "packed") and "+" not in members:
            held = found[machine, members, collective].get(algorithm)
            if held is None or row["size_bytes"] > held["size_bytes"]:
                found[machine, members, collective][algorithm] = row
    lines = []
    for (machine, members, collective), both in sorted(found.items()):
        if len(both) == 2 and both[base]["size_bytes"] == both["packed"]["size_bytes"]:
            rings, packed = both[base], both["packed"]
            exact = Fraction(packed["lanes_exact"]) / Fraction(rings["lanes_exact"])
            lines.append(
                {
                    "machine": machine,
                    "members": members,
                    "collective": collective,
                    "size_bytes": packed["size_bytes"],
                    "exact": exact,
                    "predicted": rings["predicted_s"] / packed["predicted_s"],
                    "measured": rings["measured_s"] / packed["measured_s"],
                }
            )
    return lines


def controls(rows: Sequence[Row]) -> list[tuple[str, int, dict[str, float], float]]:
    """(case, size, simulated by what, measured) factor by which a changed schedule or machine is slower."""
    plain = {(row["case"], row["size_bytes"]): row for row in rows}
    found = []
    for (case, size), row in plain.items():
        for change in ("_skewed", "_degraded"):
            base = plain.get((case.removesuffix(change), size))
            if case.endswith(change) and base is not None:
                said = {what: row[key] / base[key] for what, key in SIMULATED.items()}
                found.append((case, size, said, row["measured_s"] / base["measured_s"]))
    return found


# NVLink lanes between the two GPUs of a tenant (DGX-1V).
TENANT_LANES = {"01": 1, "03": 2}


def published(folder: Path) -> dict[tuple[str, str, int], float]:
    """Blink+'s measured speedups at 1 GiB (tests/golden/blinkplus_measured.csv), by tenant, collective and channels."""
    rates: dict[tuple[str, str, int], float] = {}
    with (folder / "tests" / "golden" / "blinkplus_measured.csv").open() as file:
        for row in csv.DictReader(file):
            if row["size_MiB"] == "1024":
                tenant = row["tenant"].replace(",", "")
                channels = TENANT_LANES[tenant] + int(row["n_side_channels"])
                rates[tenant, row["operation"], channels] = float(row["bw_GBps"])
    return {key: rate / rates[*key[:2], TENANT_LANES[key[0]]] for key, rate in rates.items()}


def full_speed(content: Row) -> list[dict[str, Any]]:
    """For every collective and size: NCCL, our best, and how they compare."""
    found = []
    for nccl in content["nccl"]:
        key = (nccl["collective"], nccl["size_bytes"])
        ours = [row for row in content["ours"] if (row["collective"], row["size_bytes"]) == key]
        if ours:
            best = max(ours, key=lambda row: row["busbw_GBps"])
            spread = (max(best["times_s"]) - min(best["times_s"])) / best["time_s"]
            ratio = best["busbw_GBps"] / nccl["busbw_GBps"]
            found.append({"nccl": nccl, "ours": best, "ratio": ratio, "spread": spread})
    return found


def port_rate(results: Mapping[str, Any]) -> float | None:
    """GB/s that a copy engine moves from one GPU to another: the most that was seen to leave a port."""
    rates = [
        way["GBps"]
        for name, content in results.items()
        if name.startswith("ways-")
        for way in content["ways"]
        if way["way"] == "copy engine"
    ]
    return median(rates) if rates else None
