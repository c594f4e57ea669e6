"""Runs as nccl-tests prints them: rows of its JSON, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blinksim.gpu.execution.run import Execution

_NCCL_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


def nccl_tests_row(out_of_place: Execution | None, in_place: Execution | None) -> dict[str, Any]:
    """One entry of nccl-tests' JSON (version 3): {size, count, type, redop, root, out_of_place, in_place}; times in us.

    As there, the count of a collective that moves slices is that of one slice. Raises `ValueError` without either.
    """
    one = out_of_place or in_place
    if one is None:
        raise ValueError("a row needs a result")
    ranks = len(one.members)

    def half(run: Execution | None) -> dict[str, Any] | None:
        if run is None or run.time_s is None or run.algbw is None or run.busbw is None:
            return None
        rates = {"alg_bw": run.algbw / 1e9, "bus_bw": run.busbw / 1e9}
        return {"time": run.time_s * 1e6, **rates, "nwrong": "N/A" if run.wrong is None else run.wrong}

    return {
        "size": one.used_bytes,
        "count": one.count // ranks if one.collective.block_sides else one.count,
        "type": _NCCL_NAMES.get(one.dtype, one.dtype),
        "redop": one.op if one.collective.reduces else "none",
        "root": str(one.collective.root) if one.collective.rooted else "-1",
        "out_of_place": half(out_of_place),
        "in_place": half(in_place),
    }


def nccl_tests_table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of `nccl_tests_row` as text with nccl-tests' columns; a half that was not run has N/A in its columns."""
    lines = [
        "#" + " " * 53 + f"{'out-of-place':>28}" + f"{'in-place':>34}",
        f"#{'size':>12}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}" + 2 * _TITLES,
        f"#{'(B)':>12}  {'(elements)':>12}" + " " * 26 + 2 * _UNITS,
    ]
    for row in rows:
        line = f"{row['size']:>13}  {row['count']:>12}  {row['type']:>8}  {row['redop']:>6}  {row['root']:>6}"
        for half in (row["out_of_place"], row["in_place"]):
            cells = ["N/A"] * 4
            if half is not None:
                cells = [_fit(half["time"]), _fit(half["alg_bw"]), _fit(half["bus_bw"]), str(half["nwrong"])]
            line += f"  {cells[0]:>7}  {cells[1]:>6}  {cells[2]:>6}  {cells[3]:>6}"
        lines.append(line)
    return "\n".join(lines)


_TITLES = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
_UNITS = f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"


def _fit(value: float) -> str:
    """At most six characters: nccl-tests gives up digits behind the point as numbers grow."""
    for digits, limit in ((2, 1000.0), (1, 10000.0), (0, 1e6)):
        if value < limit - 0.5 * 10.0**-digits:
            return f"{value:.{digits}f}"
    return f"{value:.1e}"
