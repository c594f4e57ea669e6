"""Constants from published tables: made-up ones come back, and the shipped ones are those of their part."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import blinksim as bs
from blinksim import data_files
from blinksim.answers.logs.fit import Timed, fit_sums
from blinksim.answers.measurements.public import public_measurements, with_places
from blinksim.answers.project import answer
from blinksim.collective import Collective
from blinksim.timing.measured import library_rates, public_tables
from blinksim.timing.measured.library_rates import relatives_of, step_counts
from validate.recipes.usable_fit import constant_rows, fit_machine

QUICK = ("mi300x", "perlmutter")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in public_tables.machines() if name not in QUICK]


def test_made_up_constants_come_back() -> None:
    rng = np.random.default_rng(3)
    truth = {"rounds start": 2e-5, "rounds hop": 1.5e-6, "rounds bytes": 1 / 40e9, "rounds ramp": 0.0}
    times = []
    for ranks in (2, 4, 8):
        for size in (2**power for power in range(10, 34, 2)):
            counts = step_counts("allreduce", ranks, 1, size)
            noise = float(np.exp(rng.normal(0, 0.02)))
            times.append(Timed(noise * sum(truth[name] * times for name, times in counts.items()), counts))
    start = {"rounds start": 1e-5, "rounds hop": 1e-6, "rounds bytes": 1e-11, "rounds ramp": 1e-9}
    found = fit_sums(times, start, dict.fromkeys(start, 0.0))
    assert found is not None
    assert "rounds ramp" not in found.intervals
    for name, (low, high) in found.intervals.items():
        assert found.values[name] == pytest.approx(truth[name], rel=0.1)
        assert 0.9 * low <= truth[name] <= 1.1 * high


@pytest.mark.parametrize("machine", [*QUICK, *SLOW])
def test_shipped_constants_are_those_of_their_part(machine: str) -> None:
    with (data_files.folder("models") / "usable" / "constants.csv").open(newline="") as file:
        shipped = [row for row in csv.DictReader(file) if row["machine"] == machine]
    made = [
        {key: str(value) for key, value in row.items()} for one in fit_machine(machine) for row in constant_rows(one)
    ]
    assert [row["constant"] for row in made] == [row["constant"] for row in shipped]
    for fresh, old in zip(made, shipped, strict=True):
        # Solvers round differently from machine to machine.
        assert float(fresh["value"]) == pytest.approx(float(old["value"]), rel=0.02), old
        assert fresh["cells"] == old["cells"]


def test_parts_leave_cells_to_judge_by() -> None:
    """Two in five cells of every machine were fitted to by none, and constants to no others than parts hold."""
    known = public_tables.sets()
    for part in library_rates.parts():
        assert part.set in known
    for machine in public_tables.machines():
        told = with_places(public_tables.cells(machine))
        fitted = [cell for cell, used in told if used]
        assert len(fitted) <= 0.6 * len(told)
        for rates in fit_machine(machine) if machine in QUICK else ():
            assert rates.error.points <= len(fitted)


def test_cells_that_were_not_fitted_are_predicted() -> None:
    """Four GPUs a node over Slingshot, and RCCL: sizes between those that were fitted."""
    for machine, median in (("perlmutter", 0.12), ("mi300x", 0.06)):
        cells = [one for one in public_measurements(machine).cells if not one.fitted]
        errors = [abs(one.expected_error_pct) / 100 for one in cells if one.expected_error_pct is not None]
        assert len(errors) == len(cells) >= 15
        assert np.median(errors) < median


def test_the_relative_stands_in_and_is_named() -> None:
    cells = public_measurements("p6-b200.48xlarge").cells
    told = {one.expected.owner for one in cells if one.expected is not None}
    assert told == {"hgx-b200"}
    assert library_rates.relatives().get("hgx-b200") is None
    assert library_rates.relatives().get("hgx-b300") == ("hgx-b200", "the same links")
    # Chains of relatives end, and lend what the nearest one was not asked for.
    for name in library_rates.relatives():
        assert len({*relatives_of(name)}) == len(relatives_of(name)) < 5
    assert relatives_of("hgx-h200", "times") == ["p5en.48xlarge", "hgx-h100"]
    h200, h100 = (answer(bs.Question(name), Collective("alltoall"), [2**20])[0] for name in ("hgx-h200", "hgx-h100"))
    assert h200.low_s < h100.time_s < h200.high_s


def test_only_machines_of_the_same_links_lend_times() -> None:
    """Constants of quicker links would beat what these allow: L40S has half the PCIe of RTX PRO 6000."""
    lent = library_rates.relatives("times")
    assert set(lent) < set(library_rates.relatives("rates"))
    for name, (near, _) in library_rates.relatives("rates").items():
        rates = [
            sum(link.bandwidth for link in machine.selected().links if link.src == machine.members[0])
            for machine in (bs.load(name), bs.load(near))
        ]
        assert (rates[0] == rates[1]) == (name in lent), name
