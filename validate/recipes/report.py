"""Writes validate/report.md and its pictures from validate/results: predicted against measured, and ours against NCCL.

    python3 validate/recipes/report.py [--results FOLDER]

Every table is computed here from the result files; the text around them holds the published figures and the limits.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, or nothing without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|" + "---|" * len(header), *lines]) if lines else ""


def section(title: str, words: str, rows: str) -> list[str]:
    """A part of the report, if there is anything in it."""
    return [f"### {title}", words, rows] if rows else []


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


# --- sections ---------------------------------------------------------------------------------------------------------


def where(results: Mapping[str, Any]) -> str:
    rows = []
    for name, content in results.items():
        made = content.get("provenance")
        if made is not None:
            gpus = f"{len(made['gpus'])} x {made['gpus'][0]}"
            made_by = (made["driver"], made["cupy"], made.get("commit", "unknown")[:7], f"`{made['command']}`")
            runs = [run for part in ("nccl", "nccl_allreduce", "sets", "cases") for run in content.get(part, [])]
            nccl = next((str(run["nccl"]) for run in runs if "nccl" in run), "-")
            rows.append((name, made["date"][:10], gpus, made_by[0], nccl, *made_by[1:]))
    return table(("result", "date", "GPUs", "driver", "NCCL", "CuPy", "commit", "command"), rows)


def ways(content: Row) -> str:
    """Alpha and beta of every way, over all pairs."""
    groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for way in content["ways"]:
        groups[way["way"], way["blocks"]].append(way)
    rows = []
    for (name, blocks), group in groups.items():
        rates = [way["GBps"] for way in group]
        alphas = [way["alpha_s"] * 1e6 for way in group]
        worst = max(way["worst_error_percent"] for way in group)
        cells = (
            f"{median(rates):.1f}",
            f"{min(rates):.1f} to {max(rates):.1f}",
            f"{median(alphas):.1f}",
            f"{worst:.1f} %",
        )
        rows.append((name, str(blocks or "-"), str(len(group)), *cells))
    header = ("way", "blocks a peer", "measured", "GB/s, median", "range", "alpha, us", "worst of the line")
    return table(header, rows)


def errors(rows: Sequence[Row]) -> str:
    """Median and worst error of the predictions, by algorithm and by size, from 16 MiB."""
    large = [row for row in rows if row["size_bytes"] >= LARGE]
    keys: list[tuple[str, Callable[[Row], str]]] = [
        ("everything", lambda row: ""),
        ("size", lambda row: size_text(row["size_bytes"])),
        ("", lambda row: "two devices on a GPU" if row["lane_GBps"] else "one device on a GPU"),
        ("", lambda row: parts_of(row)[0]),
        ("", lambda row: " ".join(parts_of(row)[2:]).split("-")[0].replace("_skewed", "").replace("_degraded", "")),
    ]
    lines = []
    for name, key in keys:
        groups: dict[str, list[Row]] = defaultdict(list)
        for row in large:
            groups[key(row)].append(row)
        for label, found in groups.items():
            figures = []
            for what in SIMULATED:
                signed = [error(row, what) for row in found]
                off = [abs(x) for x in signed]
                figures += [f"{100 * median(off):.1f} %", f"{100 * median(signed):+.1f} %", f"{100 * max(off):.1f} %"]
            lines.append((" ".join(filter(None, (name, label))), str(len(found)), *figures))
    heads = [f"{what}: median error" for what in SIMULATED]
    return table(("what", "cases", heads[0], "with sign", "worst", heads[1], "with sign", "worst"), lines)


def large_rows(name: str, content: Row) -> bool:
    """Whether a result holds predictions from 16 MiB on."""
    predicted = name.startswith("emulated-") and name.endswith("-predicted")
    return predicted and any(row["size_bytes"] >= LARGE for row in content["rows"])


def verdict(rows: Sequence[Row], what: str = "schedule") -> tuple[float, float, int, int]:
    """(median, worst) absolute error from 16 MiB, as shares; cases beyond 15 %, and all."""
    off = [abs(error(row, what)) for row in rows if row["size_bytes"] >= LARGE]
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


def speedup_table(rows: Sequence[Row], base: str = "rings") -> str:
    lines = []
    for x in speedups(rows, base):
        off = f"{100 * (x['measured'] / float(x['exact']) - 1):+.1f} %"
        head = (x["machine"], "-".join(x["members"]), x["collective"], size_text(x["size_bytes"]))
        lines.append((*head, str(x["exact"]), f"{x['predicted']:.3f}", f"{x['measured']:.3f}", off))
    header = ("machine", "GPUs", "collective", "size", "exact ratio", "simulated", "measured", "measured to exact")
    return table(header, lines)


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


def control_table(rows: Sequence[Row]) -> str:
    lines = [
        (
            f"`{case}`",
            size_text(size),
            f"{seen:.3f}",
            *(cell for x in said.values() for cell in (f"{x:.3f}", f"{100 * (seen / x - 1):+.1f} %")),
        )
        for case, size, said, seen in controls(rows)
    ]
    return table(("control", "size", "measured factor", "by the schedule", "off", "by the program", "off"), lines)


def tenants(rows: Sequence[Row]) -> str:
    """Blink+: two GPUs with helpers against the same two alone."""
    time = {(row["case"], row["size_bytes"]): row for row in rows}
    lines = []
    for tenant, helpers in (("01", "23"), ("03", "12")):
        for collective in ("broadcast", "allreduce"):
            alone = f"dgx1-v100_{tenant}_{collective}_packed"
            for channels in (1, 2, 3, 4):
                case = f"dgx1-v100_{tenant}+{helpers}_{collective}_blinkplus-{channels}ch"
                sizes = sorted(size for name, size in time if name == case and (alone, size) in time)
                if not sizes:
                    continue
                ratios = [time[alone, s]["measured_s"] / time[case, s]["measured_s"] for s in sizes]
                last = sizes[-1]
                said = time[alone, last]["predicted_s"] / time[case, last]["predicted_s"]
                exact = Fraction(time[case, last]["lanes_exact"]) / Fraction(time[alone, last]["lanes_exact"])
                cells = [f"{ratio:.2f}" for ratio in ratios]
                lines.append(("-".join(tenant), collective, str(channels), *cells, f"{said:.2f}", str(exact)))
    heads = [size_text(MIB << power) for power in (0, 2, 4, 6, 8, 10)]
    return table(("tenant", "collective", "channels", *heads, "simulated, 1 GiB", "exact"), lines)


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


def sets(content: Row, folder: Path) -> str:
    """Blink+ with NCCL's communicators: several chains over one."""
    time = {
        (one["set"], row["size_bytes"]): median(row["times_s"])
        for one in content["sets"]
        for row in one.get("rows", [])
    }
    seen = published(folder)
    lines = []
    for one in content["sets"]:
        head, _, channels = one["set"].rpartition("-")
        _, members, collective, _ = one["set"].split("_")
        tenant = members.partition("+")[0]
        if len(one["chains"]) == 1:
            continue
        ratios = {}
        for (name, size), seconds in time.items():
            if name == one["set"] and (f"{head}-1ch", size) in time:
                ratios[size] = time[f"{head}-1ch", size] / seconds
        cells = [f"{ratio:.2f}" for _, ratio in sorted(ratios.items())]
        rate = f"{max(ratios) / time[one['set'], max(ratios)] / 1e9:.1f}" if ratios else "-"
        there = seen.get((tenant, collective, int(channels.removesuffix("ch"))))
        chains = ", ".join(one["chains"])
        lines.append(("-".join(tenant), collective, chains, *cells, rate, "-" if there is None else f"{there:.2f}"))
    heads = [size_text(MIB << power) for power in (0, 2, 4, 6, 8, 10)]
    return table(("tenant", "collective", "chains", *heads, "GB/s, 1 GiB", "published, 1 GiB"), lines)


def lane_text(kind: str, lane: Row) -> str:
    """A sentence about a kind of lane."""
    name = "A lane" if kind == "full" else f"A lane held to {kind} GB/s"
    us = {key: f"{lane[key] * 1e6:.1f} us" for key in ("overhead_s", "passing_s", "latency_s", "turn_s", "launch_s")}
    size = min(map(int, lane["rates"]), key=lambda known: abs(math.log(known / (64 * MIB))))
    rate = f"{lane['rates'][str(size)] / 1e9:.1f} GB/s at {size_text(size)}"
    return (
        f"{name}: {rate}, {us['overhead_s']} of overhead a piece and "
        f"{us['passing_s']} more if it was received, {us['latency_s']} to the next GPU; a sum at "
        f"{lane['sum_rate'] / 1e9:.1f} GB/s and {us['turn_s']} until it is on its way; {us['launch_s']} once (the "
        f"lines themselves: median error {100 * lane['median']:.1f} %, worst {100 * lane['worst']:.1f} %)."
    )


def mxnet(rows: Sequence[Row]) -> str:
    """One tree against one per GPU."""
    time = {(*parts_of(row), row["size_bytes"]): (row["measured_s"], row["predicted_s"]) for row in rows}
    ratios: dict[tuple[str, str], dict[int, tuple[float, float]]] = defaultdict(dict)
    for machine, members, collective, algorithm, size in sorted(time):
        single = time.get((machine, members, collective, "mxnet-single", size))
        if algorithm == "mxnet" and single is not None:
            many = time[machine, members, collective, algorithm, size]
            ratios[machine, members][size] = (single[0] / many[0], single[1] / many[1])
    sizes = sorted({size for found in ratios.values() for size in found})
    lines = []
    for (machine, members), found in sorted(ratios.items()):
        cells = [f"{found[size][0]:.2f}" if size in found else "-" for size in sizes]
        lines.append((machine, "-".join(members), *cells, f"{found[max(found)][1]:.2f}"))
    header = ("machine", "GPUs", *map(size_text, sizes), f"simulated, {size_text(sizes[-1])}" if sizes else "")
    return table(header, lines)


def aurora(rows: Sequence[Row]) -> str:
    """Half a node: the projection's hierarchy beside the best trees and rings."""
    lines = []
    for row in sorted(rows, key=lambda row: (row["size_bytes"], row["case"])):
        machine, _, _, algorithm = parts_of(row)
        if machine == "aurora":
            times = (f"{1e6 * row['predicted_s']:.0f}", f"{1e6 * row['measured_s']:.0f}", f"{100 * error(row):+.1f} %")
            lines.append((algorithm, size_text(row["size_bytes"]), row["lanes_exact"], *times))
    return table(("schedule", "size", "rate, lanes", "simulated, us", "measured, us", "off"), lines)


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


def tried(ours: Iterable[Row]) -> str:
    """The algorithms of every collective."""
    names: dict[str, dict[str, None]] = defaultdict(dict)
    for row in ours:
        names[row["collective"]][row["algorithm"]] = None
    return "Tried: " + "; ".join(f"{collective} by {', '.join(found)}" for collective, found in names.items()) + "."


def full_speed_table(content: Row, limit: float | None) -> str:
    lines = []
    for x in full_speed(content):
        ours, nccl = x["ours"], x["nccl"]
        staged = " staged" if ours.get("staged") else ""
        how = f"{ours['algorithm']}{staged}, {ours['slices']} x {ours['piece_bytes'] >> 10} KiB"
        if ours.get("protocol") == "ll128":
            how = f"{ours['algorithm']} ll128, {ours['slices']}"
        rates = (f"{nccl['busbw_GBps']:.1f}", f"{ours['busbw_GBps']:.1f}")
        share = "-" if limit is None else f"{100 * ours['busbw_GBps'] / limit:.0f} %"
        ends = (f"{math.floor(1000 * x['ratio']) / 10:.1f} %", f"{100 * x['spread']:.1f} %", share)
        lines.append((nccl["collective"], size_text(nccl["size_bytes"]), *rates, how, *ends))
    return table(("collective", "size", "NCCL", "ours", "by", "ours to NCCL", "spread", "of the limit"), lines)


def targets(results: Mapping[str, Any]) -> str:
    """One line for each target: its figure, and whether it is met."""
    lines: list[tuple[str, str, str]] = []

    def add(what: str, figure: str, met: bool) -> None:
        lines.append((what, figure, "met" if met else "missed"))

    for name, content in results.items():
        if large_rows(name, content):
            on = f"{name.split('-')[1].removesuffix('gpu')} GPUs, "
            for what in SIMULATED:
                middle, worst, beyond, cases = verdict(content["rows"], what)
                which = f"{on}{what} simulated"
                add(f"{which}, from 16 MiB: median error at most 5 %", f"{100 * middle:.1f} %", middle <= 0.05)
                figure = f"{100 * worst:.1f} %" + (f"; {beyond} of {cases} cases beyond" if beyond else "")
                add(f"{which}, from 16 MiB: worst error at most 15 %", figure, worst <= 0.15)
                off = max((abs(seen / said[what] - 1) for _, _, said, seen in controls(content["rows"])), default=None)
                if off is not None:
                    add(f"{which}: controls within 10 % of the factor", f"worst {100 * off:.1f} %", off <= 0.10)
            off = max((abs(x["measured"] / float(x["exact"]) - 1) for x in speedups(content["rows"])), default=None)
            if off is not None:
                lines.append((f"{on}speedups over rings: exact ratio", f"worst {100 * off:.1f} % off", "no limit set"))
    for name, content in results.items():
        if name.startswith("full-speed-") and "ours" in content:
            gpus = len(content["provenance"]["gpus"])
            for least, size, wanted in ((256, 256 * MIB, 0.9), (16, 16 * MIB, 1.0)):
                points = [x for x in full_speed(content) if x["nccl"]["size_bytes"] >= size]
                low = min(points, key=lambda x: x["ratio"])
                good = sum(x["ratio"] >= wanted for x in points)
                text = f"{good} of {len(points)} points; least {math.floor(1000 * low['ratio']) / 10:.1f} %"
                text += f" ({low['nccl']['collective']}, {size_text(low['nccl']['size_bytes'])})"
                what = f"{gpus} GPUs, from {least} MiB: at least {100 * wanted:.0f} % of NCCL"
                add(what, text, low["ratio"] >= wanted)
    return table(("target", "figure", ""), lines)


# --- the whole --------------------------------------------------------------------------------------------------------


def text(results: Path) -> str:
    """The report."""
    found = load(results)
    parts = [_HEAD, "## Targets", targets(found)]
    for name, content in found.items():
        if name.startswith("ways-"):
            parts += [f"## What one GPU moves to another ({name})", _WAYS, ways(content)]
    for name, content in reversed(found.items()):
        if large_rows(name, content):
            rows = content["rows"]
            lanes = [lane_text(kind, lane) for kind, lane in content["lanes"].items()]
            gpus = name.split("-")[1].removesuffix("gpu")
            chains = found.get(f"nccl-sets-{gpus}gpu")
            made = found[name.removesuffix("-predicted")]["provenance"]
            when = f"Measured on {made['date'][:10]} at commit {made.get('commit', 'unknown')[:7]}."
            parts += [f"## Emulated machines ({name})", _EMULATED, when, *lanes, errors(rows)]
            parts += [f"![predicted against measured](pictures/{name}.png)"]
            parts += section("Trees over rings", _RATIOS, speedup_table(rows))
            parts += section("Trees over the rings of NCCL", _NCCL_RINGS, speedup_table(rows, "nccl"))
            parts += section("Controls", _CONTROLS, control_table(rows))
            parts += section("Blink+", _TENANTS, tenants(rows))
            if chains is not None:
                parts += section("Blink+ with NCCL", _SETS, sets(chains, HERE.parent))
            parts += section("MXNet", _MXNET, mxnet(rows))
            parts += section("Half a node of Aurora", _AURORA, aurora(rows))
    for name, content in found.items():
        if name.startswith("full-speed-") and "ours" in content:
            gpus = len(content["provenance"]["gpus"])
            parts += [f"## Full speed on {gpus} GPUs", _FULL, tried(content["ours"])]
            parts += [full_speed_table(content, port_rate(found))]
            parts += [f"![ours to NCCL](pictures/{name}.png)"]
    parts += ["## What the model does not capture", _LIMITS, "## Where the figures come from", where(found)]
    return "\n\n".join(parts) + "\n"


_HEAD = """# Predictions against measurements

Written by `validate/recipes/report.py` from `validate/results`; `make validate` runs everything again."""
_WAYS = """\
Time = alpha + bytes / rate, fitted to four sizes from 64 KiB to 64 MiB; rates count the bytes of all peers. "Reduce"
adds two local vectors on the way. Alpha holds the launch of a kernel or of a copy. Where the worst deviation is over
10 %, a line does not describe what was measured, and its rate is too high."""
_EMULATED = """\
DGX-1P, DGX-1V, parts of them and half a node of Aurora, every lane of a link one thread block, no other way out of a
GPU. Machines with more devices than there are GPUs run two on a GPU, never two that share a link. What a lane is was
fitted to lines of two to four GPUs, and nothing to the cases. With these numbers every case is simulated twice: its
schedule by `blinksim.simulation`, which serves what comes first and takes a sum for time that passes on the way, and
its program as the kernel runs it, block by block (`recipes/program_time.py`)."""
_RATIOS = """\
The exact ratio is that of the schedules' rates, lane by lane, as in the table of subsets of Blink (2018 short paper,
section 2)."""
_NCCL_RINGS = """\
Allreduces over the rings that NCCL 2.28 would choose on the real machine (`blinksim.nccl`), at the same rates."""
_CONTROLS = """\
Skewed: the first tree carries twice its share, so its links are over-subscribed. Degraded: the widest link in use
keeps one lane. All factors are to the sound machine, at the same size."""
_TENANTS = """\
Speedup of two GPUs of a DGX-1V with two idle helpers over the same two alone, by channels. The Blink+ report (section
4.3) has, at 1 GiB on real machines, 2.91 (broadcast) and 2.59 (allreduce; 2.58 by its logs) for the tenant 0-1, and
1.39 and 1.29 for the tenant 0-3. Small messages gain less, because the ways through helpers are longer."""
_SETS = """\
The same chains as NCCL communicators of their own (`blinksim export --format nccl-graph-set`), on the GPUs as they are:
a chain is one channel, which moves 22 GB/s of a broadcast here, as a lane does on a V100, and 18 GB/s of an allreduce.
Speedup over the lanes between the two GPUs alone, of which the tenant 0-3 has two. Published: the Blink+ report's on
V100s (section 4.3), by its logs. Broadcasts gain what the lanes say; allreduces less, probably because NCCL's tree of a
chain through helpers has three or four GPUs, of which the inner ones receive, add and send."""
_MXNET = """\
One push and pull of the whole vector, time over one tree to time over one tree per GPU: above 1 many trees win. They
gain most where one tree leaves many lanes idle, and lose where they share lanes or where pieces become small."""
_AURORA = """\
Three cards of two tiles; MDFI counts as four lanes of an Xe link (220 GB/s against 53, nominal). Hierarchical: halves
over MDFI, exchange within a plane over Xe links, and back (projection, section 3.1)."""
_FULL = """\
Out of place, float32, busbw in GB/s; NCCL without NVLS, same process and same events, one after the other. "By" is the
algorithm with its slices and pieces, staged if what comes from elsewhere is copied out of an inbox, or with `ll128` and
the slices where data go in packets. Spread: slowest minus fastest of 20 iterations, to the median. The limit is the
rate of a copy engine, the most that was seen to leave a port; a switch gives every GPU one. "Ours" is the best of both
protocols and of the algorithms that were tried."""
_LIMITS = """\
- A piece costs a lane 3 us beside its bytes, in which a block finds it, loads it and hands it on; with many lanes busy
  at once it takes longer, which the model leaves out.
- A lane is described by averages of its sends: whether a piece was received before, and whether it is added up.
- Simulated as schedules, some rings come out up to 16 % too quick, and some of Blink's trees up to 16 % too slow, most
  of them where chunks have few pieces. Simulated as programs they do not: what is missing is the order in which blocks
  take what is ready, and that sums occupy blocks.
- Where two devices share a GPU, their lanes are held to 20 GB/s, so that its port has room. They share its caches too:
  copies, sums and flags of the two meet, which the model leaves out.
- Kernels differ from commit to commit: until 1bcc988, flags held up the data behind them, and a lane lost 0.6 us more a
  piece than since.
- Below 16 MiB nothing is promised: a piece's flags and the launch weigh as much as its bytes.
- Iterations of a collective overlap where data go one way, for NCCL and for us, as in NCCL's own tests: the time is how
  often it can be done, as the mean of the GPUs, not the way from the first to the last. Emulated machines are measured
  apart. The first of the 20 timed iterations is often the slowest here, which the median does not feel and the spread
  does; since then, one that is not timed goes before them.
- At 1 MiB from four GPUs on, and at 4 MiB on six and eight, NCCL is ahead for some collectives: a hop costs us 1 to 2
  us, and there are no packets of 8 bytes (NCCL's LL).
- On three and six GPUs, the slices of a reducescatter of a power of two begin at different distances from a 16-byte
  boundary, and our kernel then moves single elements. NCCL's own tests round sizes so that this does not happen, and so
  does `full_speed.py`: `used_bytes` is then below `size_bytes`."""


def main() -> None:
    from pictures import draw

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results", help="the report of others is written there")
    results = parser.parse_args().results
    folder = HERE if results.resolve() == HERE / "results" else results
    draw(results, folder / "pictures")
    temporary = folder / "report.tmp"
    temporary.write_text(text(results), encoding="utf-8")
    temporary.replace(folder / "report.md")


if __name__ == "__main__":
    main()
