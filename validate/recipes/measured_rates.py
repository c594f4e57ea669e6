"""Rates that links reach in collectives, from published times: what ``--rates measured`` takes (models/rates/measured).

    PYTHONPATH=. python3 validate/recipes/measured_rates.py

`blinksim.calibrate` finds them from the times that `models/usable/parts.csv` gives to fits, and only from these: rings
of allreduce, allgather and reduce-scatter, one node apart from several, of the most GPUs, from 256 MiB on if there are
three such times, else from 64, else from 16. A link class without such times gets the share of its data sheet that the
nearest relative reaches, and the table says so.

Only rings, as every link of one carries as many bytes in whatever order; trees, switches that add and alltoalls share
links in an order that no table states. So a machine of which such times or single sizes were published (hgx-h200,
p5.48xlarge) has its relative's share, as has l40s-pcie, whose one published table is of two servers of two GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from blinksim import data_files
from blinksim.answers.logs.calibrate import calibrate
from blinksim.answers.logs.expectation import Sample, Series
from blinksim.answers.measurements.public import Jobs, grouped, job_of, question_of, with_places
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.formats import rate_tables
from blinksim.formats.rate_tables import ClassRates, RateTable
from blinksim.formats.shipped import machine_names
from blinksim.machines import load
from blinksim.results import count
from blinksim.timing.measured import public_tables
from blinksim.timing.measured.library_rates import relatives_of
from blinksim.timing.measured.public_tables import Cell
from blinksim.topology.graph import Topology

MEASURED = "measured"
RINGS = ("allreduce", "allgather", "reducescatter")
# Smallest sizes, the first with enough times is taken; how many these are; how many GPUs are expanded.
LEAST, FEWEST, MOST_GPUS = (2**28, 2**26, 2**24), 3, 32
# Half of the times may miss a fit by so much.
WORST = 0.1


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes/s of a lane, what the data sheet says, and where it comes from in words."""

    rate: float
    nominal: float
    why: str


def ring_times(machine: str) -> Iterator[list[Cell]]:
    """The times to fit to, those of one node and those of several apart, each from the first of `LEAST` with enough."""
    jobs = Jobs(machine)
    given = [cell for cell, fitted in with_places(public_tables.cells(machine)) if fitted and cell.collective in RINGS]
    runs = [cell for cell in given if (takes := jobs.nccl_takes(cell)) is None or takes.algorithm == "ring"]
    for _, alike in grouped(runs, lambda cell: cell.nodes > 1):
        for least in LEAST:
            large = [cell for cell in alike if cell.gpus <= MOST_GPUS and cell.size >= least]
            most = max((cell.gpus for cell in large), default=0)
            chosen = [cell for cell in large if cell.gpus == most]
            if len(chosen) >= FEWEST:
                yield chosen
                break


def own_rates(machine: str) -> dict[str, Rate]:
    """The rates of classes that the times of a machine determine."""
    found = dict[str, Rate]()
    for cells in ring_times(machine):
        series = []
        for _, alike in grouped(cells, job_of):
            part = question_of(machine, alike[0]).part()
            samples = tuple(Sample(cell.size, cell.time_s) for cell in alike)
            series.append(Series(part, Collective(alike[0].collective), samples))
        try:
            fit = calibrate(series, multicast=False)
        except BlinksimError:
            continue
        if fit.median_error > WORST:
            continue
        sets = ", ".join(dict.fromkeys(cell.set.name for cell in cells))
        for one in fit.parameters:
            nominal = one.before
            if one.name == "bandwidth" and one.value <= nominal:
                low, high = (f"{end / 1e9:.3g}" for end in (one.low, one.high))
                why = (
                    f"{one.kind} {100 * one.value / nominal:.0f} % of nominal ({low} to {high} GB/s), calibrated on "
                    f"{count(len(cells), 'published time')} of {cells[0].gpus} GPUs ({sets})"
                )
                found.setdefault(one.kind, Rate(one.value, nominal, why))
    return found


def table_of(name: str, own: dict[str, dict[str, Rate]]) -> RateTable | None:
    """The table of a machine: its own rates, then those that relatives suggest; None where nothing is known."""
    machine = load(name)
    classes, words = dict[str, Rate](), list[str]()
    for kind, nominal in _lanes(machine).items():
        for near in (name, *relatives_of(name)):
            rate = own.get(near, {}).get(kind) or _in_file(near, kind)
            if rate is not None:
                share = rate.rate / rate.nominal
                why = f"{kind} {100 * share:.0f} % of nominal as on {near}, its nearest relative"
                classes[kind] = rate if near == name else Rate(share * nominal, nominal, why)
                words.append(classes[kind].why)
                break
    rows = {kind: ClassRates(Fraction(f"{rate.rate:.3e}")) for kind, rate in classes.items()}
    return RateTable(MEASURED, rows, name, "; ".join(words)) if rows else None


def _lanes(machine: Topology) -> dict[str, float]:
    """Nominal bytes/s of a lane by class, in the order of the file."""
    lanes = {link.kind: float(link.lane_bandwidth) for link in machine.links}
    if machine.fabric is not None:
        lanes.setdefault(machine.fabric.kind, float(machine.fabric.lane_bandwidth))
    return lanes


def _in_file(name: str, kind: str) -> Rate | None:
    """What the machine's own file says was measured."""
    head = machine_names.outline(name)
    stated = head.link_classes[kind].bandwidth if kind in head.link_classes else {}
    if MEASURED not in stated:
        return None
    return Rate(float(stated[MEASURED]), float(stated["nominal"]), "")


def folder() -> Path:
    """Where the tables are."""
    return data_files.folder("models") / "rates" / MEASURED


def tables() -> dict[str, RateTable]:
    """All tables by machine; machines whose own file has measured rates need none."""
    own = {name: own_rates(name) for name in public_tables.machines()}
    names = [name for name in machine_names.names() if MEASURED not in machine_names.outline(name).rate_names()]
    return {name: table for name in names if (table := table_of(name, own)) is not None}


if __name__ == "__main__":
    found = tables()
    folder().mkdir(exist_ok=True)
    for path in folder().glob("*.yaml"):
        path.unlink()
    for name, table in found.items():
        (folder() / f"{name}.yaml").write_text(rate_tables.write(table), encoding="utf-8")
    print(f"{len(found)} tables in {folder()}")
