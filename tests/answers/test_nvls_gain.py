"""What NVLS is worth, by answer: against published pairs of runs with NVLS and without, and the loads of ports."""

from __future__ import annotations

from fractions import Fraction

import pytest

from blinksim.answers.advise import NvlsGain, advise, nvls_gain
from blinksim.answers.place import place
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.machines import Question
from blinksim.timing.library_model import Library
from blinksim.timing.measured.public_tables import cells

MIB, GIB = 2**20, 2**30


def gain(gpus: int, size: int, collective: str = "allreduce", multicast: bool = True) -> NvlsGain:
    question = Question("hgx-h200", members=f"0-{gpus - 1}")
    library = Library(multicast=multicast).at(question)[0]
    found = nvls_gain(library, question.part(), Collective(collective), size)
    assert found is not None
    return found


def published(gpus: int) -> float:
    """By how much 8 GiB took longer without NVLS on so many H200 (stas-h200-nvls-ramp)."""
    there = [c for c in cells("p5en.48xlarge") if c.set.name == "stas-h200-nvls-ramp" and c.gpus == gpus]
    times = {cell.nvls: cell.time_s for cell in there}
    return times["off"] / times["on"]


@pytest.mark.parametrize("gpus", [6, 7, 8])
def test_the_gain_is_that_of_published_pairs(gpus: int) -> None:
    found = gain(gpus, 8 * GIB)
    assert found.taken
    assert found.ratio == pytest.approx(published(gpus), rel=0.07)
    # Of every byte a port carries 2(n - 1)/n, or (n + 1)/n.
    assert found.at_most == pytest.approx(2 * (gpus - 1) / (gpus + 1))
    assert found.ratio < found.at_most
    assert [one.details["choice"] for one in (found.on, found.off)] == ["nvls Simple", "ring Simple"]


def test_off_is_the_other_side_of_on() -> None:
    on, off = gain(8, 256 * MIB), gain(8, 256 * MIB, multicast=False)
    assert (on.on, on.off, on.at_most) == (off.on, off.off, off.at_most)
    assert "on; without it (NCCL_NVLS_ENABLE=0) NCCL takes ring Simple: 1.361 ms, 1.29 times as long" in on.sentence()
    assert on.sentence().endswith("1.29 times as long (1.56 times by the bounds of the links alone)")
    assert off.sentence().startswith("off; with it NCCL takes nvls Simple: 1.055 ms, 1.29 times as fast")


def test_small_sizes_and_few_gpus_do_without() -> None:
    small = gain(8, MIB)
    assert (small.taken, small.ratio, small.least) == (False, 1.0, 2 * MIB)
    assert small.sentence() == "no effect here: NCCL takes ring LL either way; it takes NVLS from 2 MiB on"
    # On four H200 NCCL took the ring (NCCL 2.27.7, the same table).
    assert gain(4, 8 * GIB).least is None


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "broadcast"])
def test_what_only_receives_or_sends_gains_nothing(collective: str) -> None:
    found = gain(8, GIB, collective)
    assert (found.taken, found.ratio, found.at_most) == (False, 1.0, 1.0)
    assert found.sentence().startswith(f"nothing to gain for {collective}: ")


@pytest.mark.slow
def test_advise_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = advise("hgx-h200")
    assert found.nvls is not None
    assert found.nvls.on.time_s == found.answer.time_s
    assert found.to_dict()["nvls"]["from_bytes"] == 2 * MIB
    assert advise("dgx1-v100").nvls is None
    assert run(["advise", "hgx-h200", "--no-nvls"]) == 0
    assert "  NVLS              off; with it NCCL takes nvls Simple: 1.055 ms" in capsys.readouterr().out


def test_place_ranks_with_what_switches_add(capsys: pytest.CaptureFixture[str]) -> None:
    rows = place("hgx-h200", 6)
    assert {(row.rate, row.in_network) for row in rows} == {(Fraction(270 * 10**9), Fraction(450 * 10**9) * 6 / 7)}
    assert all(row.in_network is None for row in place("hgx-h200", 6, "allgather"))
    assert "385.7 where switches add" in rows.sentence()
    assert run(["place", "hgx-h200", "7", "--top", "1"]) == 0
    assert "GB/s, switches add" in capsys.readouterr().out
    assert run(["place", "hgx-h200", "7", "--top", "1", "--without-in-network"]) == 0
    assert "switches add" not in capsys.readouterr().out
