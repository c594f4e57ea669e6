"""The schedules that ship: each is right, is what its recipe gives today, and keeps the rate that its document says."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from classics import classics

from blinksim.cli.main import run
from blinksim.formats.schedule_json import read_schedule
from blinksim.schedule.loads import rate

FOLDER = Path(__file__).resolve().parents[1] / "schedules"

CLASSICS = {classic.name: classic for classic in classics()}
GB = 10**9


def test_the_folder_holds_the_classics_and_nothing_else() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(CLASSICS)


@pytest.mark.parametrize("name", CLASSICS)
def test_each_is_verified_with_its_certificate(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(FOLDER / f"{name}.json")]) == 0
    assert "right: " in capsys.readouterr().out


# Lanes of 20 GB/s (P100) and 25 GB/s (V100): the partition bounds of the first N GPUs, by brute force.
P100 = {2: "1", 3: "3/2", 4: "2", 5: "1", 6: "3/2", 7: "2", 8: "16/7"}
V100 = {2: "1", 3: "2", 4: "3", 5: "2", 6: "5/2", 7: "3", 8: "24/7"}
RATES = {
    "blink-figure-1-rings": Fraction(50),
    "blink-figure-1-trees": Fraction(75),
    **{f"dgx1-p100-{n}-allreduce": Fraction(lanes) * 20 for n, lanes in P100.items()},
    **{f"dgx1-v100-{n}-allreduce": Fraction(lanes) * 25 for n, lanes in V100.items()},
    "dgx1-p100-8-chains": Fraction(320, 7),
    "dgx1-v100-8-chains": Fraction(600, 7),
    "blinkplus-tenant-0-1-broadcast": Fraction(100),
    "blinkplus-tenant-0-3-allreduce": Fraction(100),
}


@pytest.mark.parametrize(("name", "expected"), RATES.items())
def test_the_rates_are_the_documents(name: str, expected: Fraction) -> None:
    assert rate(read_schedule(FOLDER / f"{name}.json")) == expected * GB


@pytest.mark.parametrize("name", ["dgx1-v100-6-allreduce", "dgx1-p100-8-allgather", "blinkplus-tenant-0-1-allreduce"])
def test_making_one_anew_gives_the_same(name: str) -> None:
    made = CLASSICS[name].make()
    kept = read_schedule(FOLDER / f"{name}.json")
    assert made.verdict.ok
    assert made.rate == rate(kept)
