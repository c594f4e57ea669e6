"""What a machine file calls relays means the same on the command line and in Python: devices that forward."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.cli.main import run

FILE = Path(__file__).parents[1] / "data" / "machines" / "relays_in_file.yaml"
GB = 10**9


@pytest.mark.parametrize(
    ("options", "due"), [([], "15/2"), (["--relays", "h"], "15/2"), (["--relays", "idle"], "15/2")]
)
def test_the_command_takes_the_relays_of_the_file(
    options: list[str], due: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # A star of three around a hub that forwards: 2 (n-1)/n = 4/3 of the data over each port of 10 GB/s.
    assert run(["bound", str(FILE), "allreduce", "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rate_exact"], found["relays"]) == (due, ["h"])


def test_python_takes_them_in_the_same_way() -> None:
    machine = bs.load(FILE)
    for part in (machine, machine.select(), machine.select(relays="h"), machine.select(["g0", "g1", "g2"])):
        assert bs.bound(part, "allreduce").rate == Fraction(15, 2) * GB
    assert bs.synthesize(machine, "allreduce").rate == Fraction(15, 2) * GB
    # Only where it is asked for, a relay reduces; and a relay of the file may be a member.
    assert bs.bound(machine.select(relays="h", relays_reduce=True), "allreduce").rate == 10 * GB
    assert machine.select(["g0", "h"]).relays == ()
