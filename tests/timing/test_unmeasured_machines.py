"""Constants of machines that were not measured here: NCCL's from public tables, our programs' scaled from H200's."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from blinksim.cli.main import run
from blinksim.machines import load
from blinksim.nccl.tuner.tuner import Prediction, predict
from blinksim.timing.measured_constants import LINES, NcclLine, NcclRates
from validate.recipes.catalogue_constants import derived

TABLE = Path(__file__).resolve().parents[1] / "golden" / "nccl_switched_nodes.csv"
# Machine, source in the table, whether its switches reduce; ports against H200's, and how much longer a block takes.
MACHINES = [
    ("dgx-a100", "aic-a100_sxm-nccl2273", False, 300 / 450, 1.98 / 1.41),
    ("hgx-h100", "aic-h100_sxm-nccl2292", True, 1.0, 1.0),
    ("hgx-b200", "aic-b200_sxm-nccl2292", True, 2.0, 1.98 / 1.965),
]
H200 = load("hgx-h200")


def derived_nccl(rates: NcclRates, ports: float, slower: float = 1.0) -> NcclRates:
    """As `derived`, for NCCL: rates of rings grow with the ports, the rest goes with the clock."""
    lines: dict[str, NcclLine] = {}
    for name in LINES:
        line: NcclLine = getattr(rates, name)
        channel = None if line.channel is None else line.channel / slower
        lines[name] = NcclLine(line.start_s * slower, line.hop_s * slower, line.rate * ports, channel)
    return replace(
        rates,
        ll=lines["ll"],
        ll128=lines["ll128"],
        simple=lines["simple"],
        turn=rates.turn * ports,
        rooted_start_s=rates.rooted_start_s * slower,
        nvls=None,
        error=None,
    )


@cache
def prediction(machine: str, gpus: int, multicast: bool) -> Prediction:
    whole = load(machine, rates="nccl")
    return predict(whole, whole.members[:gpus], multicast=multicast)


def errors(
    rates: NcclRates, machine: str, source: str, multicast: bool, gpus: tuple[int, ...], dtype: str = ""
) -> list[float]:
    """|predicted / measured - 1| from 64 KiB on, of what the constants are for, of one type of elements or all."""
    found = []
    with TABLE.open() as file:
        for row in csv.DictReader(file):
            ranks, size = int(row["gpus"]), int(row["size_bytes"])
            if row["source"] != source or ranks not in gpus or size < 2**16 or dtype not in ("", row["dtype"]):
                continue
            # Switches do not add bytes.
            plan = prediction(machine, ranks, multicast and row["dtype"] != "int8")
            best = plan.best(row["collective"], size)
            line = rates.line_of(best.algorithm, best.protocol, ranks)
            if line is not None:
                time = rates.time(row["collective"], ranks, size, line, 2 * plan.nchannels)
                found.append(abs(time * 1e6 / float(row["time_us"]) - 1))
    return found


@pytest.mark.parametrize(
    ("machine", "source", "multicast", "middle", "most"),
    [
        ("dgx-a100", "aic-a100_sxm-nccl2273", False, 0.09, 0.26),
        ("hgx-h100", "aic-h100_sxm-nccl2292", True, 0.04, 0.14),
        ("hgx-b200", "aic-b200_sxm-nccl2292", True, 0.06, 0.14),
    ],
)
def test_eight_gpus_are_predicted_from_other_parts_of_their_table(
    machine: str, source: str, multicast: bool, middle: float, most: float
) -> None:
    """Of A100 two and four GPUs were fitted, of H100 and B200 also the int8 of eight: the float16 of eight is left."""
    rates = load(machine).nccl_rates
    assert rates is not None
    there = errors(rates, machine, source, multicast, (8,), "float16")
    assert len(there) == 42
    assert np.median(there) < middle
    assert np.quantile(there, 0.9) < most
    every = errors(rates, machine, source, multicast, (2, 4, 8))
    assert rates.error is not None
    assert rates.error.points == len(every) == 252
    assert rates.error.median == pytest.approx(np.median(every), abs=1e-3)
    assert rates.error.p90 == pytest.approx(np.quantile(every, 0.9), abs=2e-3)


@pytest.mark.parametrize(("machine", "source", "multicast", "ports", "slower"), MACHINES)
def test_scaled_constants_of_h200_come_as_near(
    machine: str, source: str, multicast: bool, ports: float, slower: float
) -> None:
    """Without a single time of the machine: what scaling by links and clocks is worth, for rings."""
    assert H200.nccl_rates is not None
    there = errors(derived_nccl(H200.nccl_rates, ports, slower), machine, source, multicast, (2, 4, 8))
    assert len(there) > 180
    assert np.median(there) < 0.10
    assert np.quantile(there, 0.9) < 0.30


@pytest.mark.parametrize(
    ("machine", "ports", "slower", "blocks"),
    [*((name, ports, slower, None) for name, _, _, ports, slower in MACHINES), ("dgx2", 150 / 450, 1.98 / 1.53, 80)],
)
def test_constants_that_nobody_measured_say_so(machine: str, ports: float, slower: float, blocks: int | None) -> None:
    rates, known = load(machine).execution, H200.execution
    assert rates is not None
    assert known is not None
    assert rates.measured.band in (0.15, 0.35)
    assert rates.error is None
    assert blocks in (None, rates.blocks)
    scaled = derived(known, ports, slower)
    assert rates.ports.out == pytest.approx(scaled.ports.out, rel=0.01)
    for name in ("launch_s", "visit_s"):
        assert getattr(rates, name) == pytest.approx(getattr(scaled, name), rel=0.01)
    assert rates.packets.step_s == pytest.approx(scaled.packets.step_s, rel=0.01)
    assert rates.flags.fence_s == pytest.approx(scaled.flags.fence_s, rel=0.01)
    # As of H200, a port carries 82 % of its links, which is what kernels reach.
    part = load(machine).select()
    links = sum(float(link.bandwidth) for link in part.links if link.src == part.members[0])
    assert rates.ports.out == pytest.approx(0.82 * links, rel=0.01)


def test_the_answer_says_what_was_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["project", "hgx-h100", "allreduce", "1MiB", "--algorithm", "ring", "--model", "execution"]) == 0
    assert "not measured on NVIDIA H100: constants of H200" in capsys.readouterr().out
    assert run(["project", "hgx-h100", "broadcast", "1MiB", "--members", "0-2"]) == 0
    assert "measured on 2 to 8 NVIDIA H100, public table of aiconfigurator, NCCL 2.29.2" in capsys.readouterr().out


@pytest.mark.parametrize("machine", ["p5en.48xlarge", "nd-h200-v5"])
def test_machines_of_the_same_gpus_and_switches_have_the_same_constants(machine: str) -> None:
    there = load(machine)
    assert there.nccl_rates is not None
    # What a host takes to launch is its own.
    assert (there.execution, replace(there.nccl_rates, call_s=0.0)) == (H200.execution, H200.nccl_rates)
    first, own = there.select(), H200.select()
    assert {(x.bandwidth, x.latency) for x in first.links} == {(x.bandwidth, x.latency) for x in own.links}
