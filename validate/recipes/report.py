"""Writes validate/report.md and its pictures from validate/results: predicted against measured, and ours against NCCL.

    python3 validate/recipes/report.py

Every table is computed here from the result files; the text around them holds the published figures and the limits.
"""

from __future__ import annotations

import json
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
    """A Markdown table."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def size_text(size: int) -> str:
    return f"{size >> 30} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"


def error(row: Row) -> float:
    """How far the prediction is off, as a share of what was measured; above 0 if it says too much."""
    return float(row["predicted_s"] / row["measured_s"] - 1)


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
            rows.append((name, made["date"][:10], gpus, made["driver"], made["cupy"], f"`{made['command']}`"))
    return table(("result", "date", "GPUs", "driver", "CuPy", "command"), rows)


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
        ("", lambda row: "on 128-byte boundaries" if row["aligned"] else "off 128-byte boundaries"),
        ("", lambda row: " ".join(parts_of(row)[2:]).split("-")[0].replace("_skewed", "").replace("_degraded", "")),
    ]
    lines = []
    for name, key in keys:
        groups: dict[str, list[float]] = defaultdict(list)
        for row in large:
            groups[key(row)].append(error(row))
        for label, found in groups.items():
            off = [abs(x) for x in found]
            what = " ".join(filter(None, (name, label)))
            figures = (f"{100 * median(off):.1f} %", f"{100 * median(found):+.1f} %", f"{100 * max(off):.1f} %")
            lines.append((what, str(len(found)), *figures))
    return table(("what", "cases", "median error", "median with sign", "worst"), lines)


def verdict(rows: Sequence[Row]) -> tuple[float, float]:
    """(median, worst) absolute error from 16 MiB, as shares."""
    off = [abs(error(row)) for row in rows if row["size_bytes"] >= LARGE]
    return median(off), max(off)


def speedups(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Packed trees over rings at the largest size, for every part that has both."""
    found: dict[tuple[str, str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        machine, members, collective, algorithm = parts_of(row)
        if algorithm in ("rings", "packed") and "+" not in members:
            held = found[machine, members, collective].get(algorithm)
            if held is None or row["size_bytes"] > held["size_bytes"]:
                found[machine, members, collective][algorithm] = row
    lines = []
    for (machine, members, collective), both in sorted(found.items()):
        if len(both) == 2 and both["rings"]["size_bytes"] == both["packed"]["size_bytes"]:
            rings, packed = both["rings"], both["packed"]
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


def speedup_table(rows: Sequence[Row]) -> str:
    lines = []
    for x in speedups(rows):
        off = f"{100 * (x['measured'] / float(x['exact']) - 1):+.1f} %"
        head = (x["machine"], "-".join(x["members"]), x["collective"], size_text(x["size_bytes"]))
        lines.append((*head, str(x["exact"]), f"{x['predicted']:.3f}", f"{x['measured']:.3f}", off))
    header = ("machine", "GPUs", "collective", "size", "exact ratio", "simulated", "measured", "measured to exact")
    return table(header, lines)


def controls(rows: Sequence[Row]) -> list[tuple[str, int, float, float]]:
    """(case, size, simulated, measured) factor by which a changed schedule or machine is slower."""
    plain = {(row["case"], row["size_bytes"]): row for row in rows}
    found = []
    for (case, size), row in plain.items():
        for change in ("_skewed", "_degraded"):
            base = plain.get((case.removesuffix(change), size))
            if case.endswith(change) and base is not None:
                factors = [row[key] / base[key] for key in ("predicted_s", "measured_s")]
                found.append((case, size, *factors))
    return found  # type: ignore[return-value]


def control_table(rows: Sequence[Row]) -> str:
    lines = [
        (f"`{case}`", size_text(size), f"{said:.3f}", f"{seen:.3f}", f"{100 * (seen / said - 1):+.1f} %")
        for case, size, said, seen in controls(rows)
    ]
    return table(("control", "size", "simulated factor", "measured factor", "off"), lines)


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


def mxnet(rows: Sequence[Row]) -> str:
    """One tree against one per GPU."""
    time = {(*parts_of(row), row["size_bytes"]): row["measured_s"] for row in rows}
    lines = []
    for machine, members, collective, algorithm, size in sorted(time):
        single = time.get((machine, members, collective, "mxnet-single", size))
        if algorithm == "mxnet" and single is not None:
            ratio = single / time[machine, members, collective, algorithm, size]
            lines.append((machine, "-".join(members), size_text(size), f"{ratio:.2f}"))
    return table(("machine", "GPUs", "size", "many trees over one, measured"), lines)


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


def full_speed_table(content: Row) -> str:
    lines = []
    for x in full_speed(content):
        ours, nccl = x["ours"], x["nccl"]
        how = f"{ours['algorithm']}, {ours['slices']} x {ours['piece_bytes'] >> 10} KiB"
        rates = (f"{nccl['busbw_GBps']:.1f}", f"{ours['busbw_GBps']:.1f}")
        ends = (f"{100 * x['ratio']:.0f} %", f"{100 * x['spread']:.1f} %")
        lines.append((nccl["collective"], size_text(nccl["size_bytes"]), *rates, how, *ends))
    return table(("collective", "size", "NCCL", "ours", "by", "ours to NCCL", "spread"), lines)


def targets(results: Mapping[str, Any]) -> str:
    """One line for each target: its figure, and whether it is met."""
    lines: list[tuple[str, str, str]] = []

    def add(what: str, figure: str, met: bool) -> None:
        lines.append((what, figure, "met" if met else "missed"))

    for name, content in results.items():
        if name.startswith("emulated-") and name.endswith("-predicted"):
            middle, worst = verdict(content["rows"])
            add("predictions from 16 MiB: median error at most 5 %", f"{100 * middle:.1f} %", middle <= 0.05)
            add("predictions from 16 MiB: worst error at most 15 %", f"{100 * worst:.1f} %", worst <= 0.15)
            off = max(abs(seen / said - 1) for _, _, said, seen in controls(content["rows"]))
            add("controls: simulated factor within 10 %", f"worst {100 * off:.1f} %", off <= 0.10)
            off = max(abs(x["measured"] / float(x["exact"]) - 1) for x in speedups(content["rows"]))
            add("speedups over rings: exact ratio", f"worst {100 * off:.1f} % off", off <= 0.10)
    for name, content in results.items():
        if name.startswith("full-speed-") and "ours" in content:
            gpus = len(content["provenance"]["gpus"])
            for least, size, wanted in ((256, 256 * MIB, 0.9), (16, 16 * MIB, 1.0)):
                points = [x for x in full_speed(content) if x["nccl"]["size_bytes"] >= size]
                low = min(points, key=lambda x: x["ratio"])
                good = sum(x["ratio"] >= wanted for x in points)
                text = f"{good} of {len(points)} points; least {100 * low['ratio']:.0f} %"
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
    for name, content in found.items():
        if name.startswith("emulated-") and name.endswith("-predicted"):
            rows = content["rows"]
            lane, other = content["lane"], content["unaligned_lane"]
            said = " A lane off 128-byte boundaries: ".join(
                f"{x['rate'] / 1e9:.2f} GB/s, {x['overhead_s'] * 1e6:.2f} us of overhead a piece, a sum takes "
                f"{x['sum_s'] * 1e6:.1f} us more (the lines themselves: median error {100 * x['median']:.1f} %, worst "
                f"{100 * x['worst']:.1f} %)."
                for x in (lane, other)
            )
            parts += [f"## Emulated machines ({name})", _EMULATED, f"A lane: {said}", errors(rows)]
            parts += [f"![predicted against measured](pictures/{name}.png)"]
            parts += ["### Trees over rings", _RATIOS, speedup_table(rows), "### Controls", _CONTROLS]
            parts += [control_table(rows), "### Blink+", _TENANTS, tenants(rows), "### MXNet", _MXNET, mxnet(rows)]
    for name, content in found.items():
        if name.startswith("full-speed-") and "ours" in content:
            gpus = len(content["provenance"]["gpus"])
            parts += [f"## Full speed on {gpus} GPUs", _FULL, full_speed_table(content)]
            parts += [f"![ours to NCCL](pictures/{name}.png)"]
    parts += ["## What the model does not capture", _LIMITS, "## Where the figures come from", where(found)]
    return "\n\n".join(parts) + "\n"


_HEAD = """# Predictions against measurements

Written by `validate/recipes/report.py` from `validate/results`; `make validate` runs everything again."""
_WAYS = """\
Time = alpha + bytes / rate, fitted to four sizes from 64 KiB to 64 MiB; rates count the bytes of all peers. "Reduce"
adds two local vectors on the way. Alpha holds the launch of a kernel or of a copy."""
_EMULATED = """\
Parts of a DGX-1P and a DGX-1V, every lane of an NVLink one thread block, no other way out of a GPU. What a lane is was
fitted to lines of two to four GPUs; every case is then a simulation of its schedule with these numbers."""
_RATIOS = """\
The exact ratio is that of the schedules' rates, lane by lane, as in the table of subsets of Blink (2018 short paper,
section 2)."""
_CONTROLS = """\
Skewed: the first tree carries twice its share, so its links are over-subscribed. Degraded: the widest link in use
keeps one lane. Simulated and measured factors are both to the sound machine, at the same size."""
_TENANTS = """\
Speedup of two GPUs of a DGX-1V with two idle helpers over the same two alone, by channels. The Blink+ report (section
4.3) has, at 1 GiB on real machines, 2.91 (broadcast) and 2.59 (allreduce) for the tenant 0-1 and 1.39 and 1.29 for the
tenant 0-3. Small messages gain less, because the ways through helpers are longer."""
_MXNET = "Above 1 many trees win. They gain most where one tree leaves many lanes idle."
_FULL = """\
Out of place, float32, busbw in GB/s; NCCL without NVLS, same process and same events, one after the other. "By" is the
algorithm with its slices and pieces. Spread: slowest minus fastest of 20 iterations, to the median."""
_LIMITS = """\
- Allreduces of 16 MiB come out too fast in the simulation, by some tens of microseconds. The cause is not known. The
  order of service is not it: a wire serves its trees evenly and the simulation serves pieces as they arrive, but a
  replay of the programs in the wires' own order comes out too fast by as much.
- Adding up is a fixed delay per piece in the model; on the GPU it depends on the piece and on the number of sources.
- Cases whose chunks do not begin on multiples of 128 bytes (thirds of the vector) ran up to 16 % slower than the first
  lane says. The second lane covers that on average only: it was measured with 24 chunks that lie far apart in memory.
  Chunks are cut at such multiples by now; results made before say `"aligned": false`.
- Below 16 MiB nothing is promised: a piece's flags and the launch weigh as much as its bytes.
- On three GPUs, the slices of a reducescatter of a power of two begin at different distances from a 16-byte boundary,
  and our kernel then moves single elements. NCCL's own tests round sizes so that this does not happen, and so does
  `full_speed.py` by now; results with a `used_bytes` were made so.
- Broadcast and reduce from 1 to 64 MiB: every hop of ours costs a system-wide fence and a flag; NCCL's protocols for
  small data pack flags with the data."""


def main() -> None:
    from pictures import draw

    results = HERE / "results"
    draw(results, HERE / "pictures")
    temporary = HERE / "report.tmp"
    temporary.write_text(text(results), encoding="utf-8")
    temporary.replace(HERE / "report.md")


if __name__ == "__main__":
    main()
