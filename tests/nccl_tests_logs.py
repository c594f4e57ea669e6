"""Logs in the formats of nccl-tests, written from a description of them: a text of any release, or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from blinksim.collective import busbw_factor

NAMES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "broadcast": "broadcast",
    "reduce": "reduce", "gather": "gather", "scatter": "scatter", "alltoall": "alltoall",
}  # fmt: skip
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("allreduce", "reducescatter", "reduce")


class Point(NamedTuple):
    """Bytes, and microseconds out of place and in place (None: not run)."""

    size: int
    out_of_place: float | None
    in_place: float | None


def shown(value: float, width: int) -> str:
    """A number with as many decimals as its width leaves room for, two at most."""
    digits = len(str(int(value)))
    if value < 1:
        digits = 0 if value < 0.1 else 1
    decimals = 2 if digits < width - 2 else 1 if digits < width - 1 else 0
    return f"{value:{width}.{decimals}f}" if digits <= width else f"{value:{width}.1e}"


def text(
    collective: str,
    ranks: int,
    points: Sequence[Point],
    *,
    layout: str = "new",
    devices: Sequence[int] | None = None,
    named: bool = True,
    checked: bool = True,
    footer: bool = True,
    comment: str = "",
    hosts: int = 1,
) -> str:
    """The text of a log.

    layout: ``new``; ``iterations`` (-I 1), ``stamped`` (-S 1), both as releases since 2.17 print them; ``old``: error
    in place of #wrong, and redop and root only where a collective has them; ``rccl``: as rccl-tests prints what RCCL
    takes behind each row.
    """
    head = ["size", "count", "type"]
    has_op, has_root = collective in REDUCING, collective in ROOTED
    head += ["redop"] * (layout != "old" or has_op) + ["root"] * (layout != "old" or has_root)
    half = ["time", "algbw", "busbw", "error" if layout == "old" else "#wrong"]
    half += ["i_min", "i_max", "i_p99", "i_cv%"] if layout == "iterations" else []
    lines = []
    if named and layout != "old":
        lines += ["# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809"]
        lines += [f"# Collective test starting: {NAMES[collective]}_perf"]
    lines += ["# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 1 iters: 20", "#"]
    lines += [f"# {comment}"] if comment else []
    lines += ["# Using devices"]
    per_host = ranks // hosts
    for rank in range(ranks):
        device = rank % per_host if devices is None else devices[rank]
        place = f"on      box{rank // per_host} device {device:2d} [0000:{16 * device + 27:02x}:00] NVIDIA H200"
        lines.append(f"#  Rank {rank:2d} Group  0 Pid {4000 + rank} {place}")
    if layout == "rccl":
        lines += ["RCCL version : 2.27.7-develop:29e1567", "HIP version  : 7.0.51831-a3e329ad8"]
    stamp = {"stamped": " timestamp", "rccl": "     algo     proto   nchannels"}.get(layout, "")
    lines += ["#", "#     out-of-place     in-place", "# " + "  ".join([*head, *half, *half]) + stamp, "# (B)"]
    factor = float(busbw_factor(collective, ranks))
    for point in points:
        cells = [f"{point.size:12d}", f"{point.size // 4:12d}", "   float"]
        if layout != "old" or has_op:
            cells.append("sum" if has_op else "none")
        if layout != "old" or has_root:
            cells.append("0" if has_root else "-1")
        line = "  ".join(cells)
        for micros in (point.out_of_place, point.in_place):
            if micros is None:
                line += "      N/A" * len(half)
                continue
            algbw = point.size / micros / 1e3
            wrong = ("2e-07" if layout == "old" else "0") if checked else "N/A"
            line += f"  {shown(micros, 7)}  {shown(algbw, 6)}  {shown(algbw * factor, 6)}  {wrong:>6}"
            if layout == "iterations":
                line += f"  {shown(micros * 0.98, 7)}  {shown(micros * 1.1, 7)}  {shown(micros * 1.05, 7)}  {2.5:7.2f}"
        taken = "    RING    SIMPLE          56" if point.size < 2**28 else "     N/A       N/A         N/A"
        lines.append(line + {"stamped": "  2026-03-01 12:00:00", "rccl": taken}.get(layout, ""))
    if footer:
        rates = [p.size / t / 1e3 * factor for p in points for t in (p.out_of_place, p.in_place) if t]
        lines += ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {sum(rates) / len(rates):g} ", "#"]
        lines += [f"# Collective test concluded: {NAMES[collective]}_perf"] if named and layout != "old" else []
    return "\n".join(lines) + "\n"


def as_json(collective: str, ranks: int, points: Iterable[Point], *, version: int = 3, listed: str = "first") -> str:
    """The JSON of a log. listed: whether the ``first`` rank of the only process is named, ``all``, or ``none``."""
    factor = float(busbw_factor(collective, ranks))
    results = []
    for point in points:
        halves: dict[str, object] = {}
        for key, micros in (("out_of_place", point.out_of_place), ("in_place", point.in_place)):
            if micros is None:
                halves[key] = None
                continue
            rate = point.size / micros / 1e3
            halves[key] = {"time": round(micros, 6), "alg_bw": round(rate, 6), "bus_bw": round(rate * factor, 6),
                           "nwrong": 0.0}  # fmt: skip
        results.append(
            {"size": point.size, "count": point.size // 4, "type": "float",
             "redop": "sum" if collective in REDUCING else "none", "root": f"{0 if collective in ROOTED else -1:6d}",
             **halves, "actual_iterations": 20, "experiment_name": f"{NAMES[collective]}_perf"}
        )  # fmt: skip
    places = [
        {"rank": rank, "group": 0, "pid": 4000, "hostname": "box0", "device": rank, "device_hex": f"0000:{rank:02x}:00",
         "device_info": "NVIDIA H200"}
        for rank in range({"first": 1, "all": ranks, "none": 0}[listed])
    ]  # fmt: skip
    return json.dumps(
        {
            "version": version, "start_time": "2026-03-01 12:00:00", "args": [f"./build/{NAMES[collective]}_perf"],
            "env": [], "nccl_version": 22809,
            "config": {"nthreads": 1, "ngpus": ranks, "minimum_bytes": 8, "maximum_bytes": 2**30, "step_factor": 2,
                       "warmup_iters": 1, "iterations": 20, "validation": 1, "blocking_collectives": "false",
                       "devices": places},
            "results": results, "out_of_bounds": {"count": 0, "okay": "true"},
            "average_bus_bandwidth": {"bandwidth": 123.456, "okay": "unchecked"}, "errors": [],
            "end_time": "2026-03-01 12:01:00",
        }, indent=1,
    )  # fmt: skip
