"""Writes validate/report.md and its pictures from validate/results: predicted against measured, and ours against NCCL.

    PYTHONPATH=. python3 validate/recipes/report.py [--results FOLDER]

Of this project's own results it also writes docs/measurements/accuracy.md and models/full-speed. Every table is
computed here from the result files; the text around them holds the published figures and the limits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

from validate.recipes import accuracy_page, aims, time_figures, words
from validate.recipes.arguments import arguments, script
from validate.recipes.figures import (
    HERE,
    MIB,
    SIMULATED,
    Row,
    controls,
    error,
    full_speed,
    large,
    large_rows,
    load,
    parts_of,
    port_rate,
    published,
    size_text,
    speedups,
    verdict,
)
from validate.recipes.pictures import TIMES, draw, draw_times, save


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, or nothing without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|" + "---|" * len(header), *lines]) if lines else ""


def section(title: str, words: str, rows: str) -> list[str]:
    """A part of the report, if there is anything in it."""
    return [f"### {title}", words, rows] if rows else []


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
        for row in large(rows):
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


def speedup_table(rows: Sequence[Row], base: str = "rings") -> str:
    lines = []
    for x in speedups(rows, base):
        off = f"{100 * (x['measured'] / float(x['exact']) - 1):+.1f} %"
        head = (x["machine"], "-".join(x["members"]), x["collective"], size_text(x["size_bytes"]))
        lines.append((*head, str(x["exact"]), f"{x['predicted']:.3f}", f"{x['measured']:.3f}", off))
    header = ("machine", "GPUs", "collective", "size", "exact ratio", "simulated", "measured", "measured to exact")
    return table(header, lines)


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
    parts = [words.HEAD, "## Targets", targets(found)]
    for name, content in found.items():
        if name.startswith("ways-"):
            parts += [f"## What one GPU moves to another ({name})", words.WAYS, ways(content)]
    for name, content in reversed(found.items()):
        if large_rows(name, content):
            rows = content["rows"]
            lanes = [lane_text(kind, lane) for kind, lane in content["lanes"].items()]
            gpus = name.split("-")[1].removesuffix("gpu")
            chains = found.get(f"nccl-sets-{gpus}gpu")
            made = found[name.removesuffix("-predicted")]["provenance"]
            when = f"Measured on {made['date'][:10]} at commit {made.get('commit', 'unknown')[:7]}."
            parts += [f"## Emulated machines ({name})", words.EMULATED, when, *lanes, errors(rows)]
            parts += [f"![predicted against measured](pictures/{name}.png)"]
            parts += section("Trees over rings", words.RATIOS, speedup_table(rows))
            parts += section("Trees over the rings of NCCL", words.NCCL_RINGS, speedup_table(rows, "nccl"))
            parts += section("Controls", words.CONTROLS, control_table(rows))
            parts += section("Blink+", words.TENANTS, tenants(rows))
            if chains is not None:
                parts += section("Blink+ with NCCL", words.SETS, sets(chains, HERE.parent))
            parts += section("MXNet", words.MXNET, mxnet(rows))
            parts += section("Half a node of Aurora", words.AURORA, aurora(rows))
    for name, content in found.items():
        if name.startswith("full-speed-") and "ours" in content:
            many = len(content["provenance"]["gpus"])
            parts += [f"## Full speed on {many} GPUs", words.FULL, tried(content["ours"])]
            parts += [full_speed_table(content, port_rate(found))]
            parts += [f"![ours to NCCL](pictures/{name}.png)"]
    if TIMES in found:
        parts += ["## How long programs and NCCL take, predicted", words.TIMES]
        for what, head in words.TIMES_BY.items():
            parts += [f"### {head}", table(*time_figures.aims(found[TIMES], what))]
        parts += [f"### {words.EMULATED_AIM}", table(time_figures.HEAD, aims.emulated(found))]
        parts += [f"![errors of predicted times](pictures/{TIMES}.png)"]
    parts += ["## What the model does not capture", words.LIMITS, "## Where the figures come from", where(found)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results", help="the report of others is written there")
    results = parser.parse_args().results
    folder = HERE if results.resolve() == HERE / "results" else results
    draw(results, folder / "pictures")
    temporary = folder / "report.tmp"
    temporary.write_text(text(results), encoding="utf-8")
    temporary.replace(folder / "report.md")
    found = load(results).get(TIMES)
    if folder == HERE and found is not None:
        accuracy_page.PAGE.write_text(accuracy_page.text(found), encoding="utf-8")
        save(draw_times(found), accuracy_page.PAGE.parent / accuracy_page.PICTURE)


if __name__ == "__main__":
    script(main, __file__)
