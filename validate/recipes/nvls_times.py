"""Allreduces of GPUs whose switches add: published times beside those by constants, and beside NCCL's own model.

    PYTHONPATH=. python3 validate/recipes/nvls_times.py [--least 512KiB] [--csv | --page]

Every table in models/measured that is of one NVLink domain and says whether NVLS was on, or is of more GPUs than rings
serve best. The time predicted is by the constants of the machine, or of its nearest relative, for what ran: what the
table says, else what NCCL's own model chooses. `fitted` marks the times that constants were fitted to
(models/usable/parts.csv). `--page` writes the tables of docs/measurements/nvls.md.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from blinksim.answers.measurements.public import Jobs, MeasuredCell, with_places
from blinksim.errors import BlinksimError
from blinksim.machines import load
from blinksim.nccl.tuner.tuner import Prediction, nearest, predict
from blinksim.results import table
from blinksim.timing.measured import public_tables
from blinksim.timing.measured.library_rates import relatives_of
from blinksim.timing.measured_constants import NVLS, NcclRates
from blinksim.units import format_size, format_time, size_of
from validate.recipes.arguments import arguments, script

MACHINES = (
    "nd-h200-v5", "p5en.48xlarge", "hgx-h100", "hgx-b200", "p6-b200.48xlarge", "hgx-b300", "gb200-nvl72", "gb300-nvl72",
)  # fmt: skip
"""Machines with tables of one domain whose switches add."""
RINGS = {("stas-p6b200-nvls-ramp", 5)}
"""Where the source says that NCCL took the ring though switches could add."""
DOMAINS = ("gb200-nvl72", "gb300-nvl72")
"""One NVLink domain of many trays."""
LEAST_GPUS = 5
BANDS = ((0, "below 512 KiB"), (512 << 10, "512 KiB to 64 MiB"), ((64 << 20) + 1, "above 64 MiB"))
LARGE = 1 << 30
"""Bytes from which on a table that says so ran NVLS."""


@dataclass(frozen=True)
class Line:
    """A published time in seconds, what ran by which constants, and the error of the prediction in percent."""

    machine: str
    found: MeasuredCell
    ran: str
    time_s: float

    @property
    def error(self) -> float:
        return 100 * (self.time_s / self.found.cell.time_s - 1)

    @property
    def fitted(self) -> bool:
        """True if constants that count here were fitted to it: those of NVL72 are B200's."""
        return self.found.fitted and self.machine not in DOMAINS

    @property
    def band(self) -> str:
        return next(name for least, name in reversed(BANDS) if self.found.cell.size >= least)

    def row(self) -> dict[str, str | int | float | None]:
        cell = self.found.cell
        return {
            "machine": self.machine, "gpus": cell.gpus, "size_bytes": cell.size, "dtype": cell.dtype,
            "nvls": cell.nvls, "source": cell.set.name, "measured_s": cell.time_s, "ran": self.ran,
            "predicted_s": self.time_s, "fitted": self.fitted, "error_pct": self.error,
            "nccl_own_s": self.found.predicted_s, "nccl_own_error_pct": self.found.error_pct,
        }  # fmt: skip


@cache
def rates_of(machine: str) -> NcclRates:
    """The constants that count on a machine: its own, or those of its nearest relative."""
    found = load(machine).nccl_rates or load(relatives_of(machine)[0]).nccl_rates
    assert found is not None
    return found


def lines(machine: str, least: int) -> Iterator[Line]:
    """The allreduces of a machine of which there are constants, from a size on."""
    rates, jobs = rates_of(machine), Jobs(machine)
    plans: dict[tuple[int, bool, str], Prediction | None] = {}
    for cell, fitted in with_places(public_tables.cells(machine)):
        few = cell.gpus < LEAST_GPUS - (cell.nvls in ("on", "off"))
        if cell.collective != "allreduce" or cell.size < least or cell.nodes > 1 or few:
            continue
        own = jobs.nccl_takes(cell)
        found = MeasuredCell(cell, None, own.time_s if own else None, fitted=fitted)
        key = cell.gpus, cell.adds_in_switches, nearest(cell.set.version)
        if key not in plans:
            plans[key] = _plan(machine, *key)
        ran, time = _time(rates, found, plans[key])
        if ran:
            # A host that launches every call takes as long from one to the next.
            yield Line(machine, found, ran, max(time, public_tables.host_times().get(cell.set.name, 0.0)))


def _plan(machine: str, gpus: int, adds: bool, version: str) -> Prediction | None:
    """What NCCL would do; None where its planning is not modelled."""
    if gpus > 16:
        return None
    whole = load(machine, rates="nccl")
    return predict(whole, whole.members[:gpus], multicast=adds, version=version)


def _time(rates: NcclRates, found: MeasuredCell, plan: Prediction | None) -> tuple[str, float]:
    """What ran, and how long it takes by constants: from 1 GiB on NVLS, as the sources say, else what NCCL chooses."""
    cell = found.cell
    named = cell.adds_in_switches and cell.gpus >= LEAST_GPUS and (cell.set.name, cell.gpus) not in RINGS
    if rates.nvls is not None and (plan is None or (named and cell.size >= LARGE)):
        return f"{NVLS}/Simple", rates.nvls.time(cell.gpus, cell.size)
    if plan is None:
        return "", 0.0
    best = plan.best("allreduce", cell.size)
    line = rates.line_of(best.algorithm, best.protocol, cell.gpus)
    if line is None:
        return "", 0.0
    channels = 2 * plan.nchannels
    return f"{best.algorithm}/{best.protocol}", rates.time("allreduce", cell.gpus, cell.size, line, channels)


@cache
def every(least: int) -> tuple[Line, ...]:
    """The lines of all machines."""
    return tuple(one for machine in MACHINES for one in lines(machine, least))


def shown(found: Sequence[Line]) -> str:
    """All lines as a table."""
    rows = []
    for one in found:
        cell, own = one.found.cell, one.found
        rows.append(
            (
                one.machine, str(cell.gpus), format_size(cell.size), cell.dtype or "-", one.ran,
                f"{cell.busbw / 1e9:.1f}", format_time(cell.time_s), format_time(one.time_s), f"{one.error:+.1f} %",
                "-" if own.error_pct is None else f"{own.error_pct:+.1f} %", "yes" if one.fitted else "",
                cell.set.name,
            )
        )  # fmt: skip
    head = (
        "machine",
        "GPUs",
        "size",
        "type",
        "ran",
        "busbw",
        "measured",
        "predicted",
        "error",
        "NCCL's own",
        "fitted",
        "source",
    )
    return table(head, rows, left=(0, 3, 4, 10, 11))


def summary(found: Sequence[Line]) -> str:
    """By set and band of sizes: how many times, median and worst error, and those of NCCL's own model."""
    rows = []
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for one in found:
        nvls = "off" if not one.found.cell.adds_in_switches else "on"
        groups.setdefault((one.found.cell.set.name, nvls, one.band), []).append(one)
    for (source, nvls, band), alike in groups.items():
        errors = [abs(one.error) for one in alike]
        own = [abs(one.found.error_pct) for one in alike if one.found.error_pct is not None]
        said = (f"{median(own):.1f} %", f"{max(own):.1f} %") if own else ("-", "-")
        fitted = str(sum(one.fitted for one in alike))
        figures = (f"{median(errors):.1f} %", f"{max(errors):.1f} %")
        rows.append((source, nvls, band, str(len(alike)), *figures, *said, fitted))
    head = ("source", "NVLS", "sizes", "times", "median", "worst", "NCCL's own", "worst", "fitted")
    return table(head, rows, left=(0, 1, 2))


def main() -> None:
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("--least", default="512KiB", help="leave smaller sizes out")
    parser.add_argument("--csv", action="store_true", help="all lines as CSV")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/measurements/nvls.md")
    given = parser.parse_args()
    if given.page:
        # The page is made of what this module finds.
        from validate.recipes import nvls_page

        nvls_page.write()
        return
    found = every(size_of(given.least))
    if not found:
        raise BlinksimError(f"no table has allreduces from {given.least} on")
    if given.csv:
        writer = csv.DictWriter(sys.stdout, list(found[0].row()))
        writer.writeheader()
        writer.writerows(one.row() for one in found)
    else:
        print(f"{shown(found)}\n\n{summary(found)}")


if __name__ == "__main__":
    script(main, __file__)
