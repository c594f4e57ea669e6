"""Times of allreduces by NVLS, against public tables: one set of constants each for Hopper and for Blackwell.

Hopper's three constants are fitted to every second size of one table (Azure's, of 8 H200), Blackwell's to the float16
allreduces of 8 B200 in another and one of 8 GiB. All else that is published is judged here, with other machines,
versions of NCCL and numbers of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import pytest
from hypothesis import given, strategies as st

from blinksim.machines import load
from blinksim.timing.measured.public_tables import Cell, cells
from blinksim.timing.measured_constants import NvlsLine, chunk_bytes

MIB = 2**20


def line(machine: str) -> NvlsLine:
    rates = load(machine).nccl_rates
    assert rates is not None
    assert rates.nvls is not None
    return rates.nvls


HOPPER, BLACKWELL = line("hgx-h200"), line("hgx-b200")


def published(machine: str, source: str, least: int = 2 * MIB, gpus: Iterable[int] = (8,)) -> list[Cell]:
    return [
        cell
        for cell in cells(machine)
        if cell.set.name == source and cell.collective == "allreduce" and cell.adds_in_switches
        and cell.gpus in gpus and cell.size >= least
    ]  # fmt: skip


def errors(constants: NvlsLine, found: Iterable[Cell]) -> list[float]:
    return [abs(constants.time(cell.gpus, cell.size) / cell.time_s - 1) for cell in found]


# Machine, source, first size, GPUs; how many sizes, and at most the median error and the worst.
HELD_OUT = [
    ("hgx-h100", "xxr-h100-n8", 2 * MIB, (8,), 10, 0.03, 0.07),
    ("hgx-h100", "aic-h100_sxm-nccl2292", 2 * MIB, (8,), 9, 0.03, 0.09),
    ("p5en.48xlarge", "stas-h200-nvls-ramp", 2 * MIB, (5, 6, 7, 8), 4, 0.02, 0.02),
    # A framework launches every call: 12 us more, which the sizes from 64 MiB on do not feel.
    ("p5en.48xlarge", "stas-h200-n8", 64 * MIB, (8,), 9, 0.02, 0.04),
]


@pytest.mark.parametrize(("machine", "source", "least", "gpus", "count", "middle", "worst"), HELD_OUT)
def test_constants_of_one_table_of_h200_hold_for_the_other_tables_of_hopper(
    machine: str, source: str, least: int, gpus: tuple[int, ...], count: int, middle: float, worst: float
) -> None:
    there = errors(HOPPER, published(machine, source, least, gpus))
    assert len(there) == count
    assert median(there) < middle
    assert max(there) < worst


def test_the_table_of_which_half_was_fitted_has_the_other_half_right() -> None:
    there = sorted(published("nd-h200-v5", "azure-ndh200v5"), key=lambda cell: cell.size)
    fitted, held_out = errors(HOPPER, there[::2]), errors(HOPPER, there[1::2])
    assert (len(fitted), len(held_out)) == (7, 6)
    assert max(fitted) < 0.04
    assert median(held_out) < 0.02
    assert max(held_out) < 0.05


def test_constants_of_8_b200_hold_for_6_and_7() -> None:
    fitted = errors(BLACKWELL, published("hgx-b200", "aic-b200_sxm-nccl2292", 4 * MIB))
    assert len(fitted) == 8
    assert median(fitted) < 0.04
    assert max(fitted) < 0.08
    held_out = errors(BLACKWELL, published("p6-b200.48xlarge", "stas-p6b200-nvls-ramp", gpus=(6, 7)))
    assert len(held_out) == 2
    assert max(held_out) < 0.01


def test_constants_of_8_b200_hold_for_72_gb200() -> None:
    """Nine times as many GPUs: NCCL's chunks are then smaller at the same size, which lowers the rate of a port."""
    there = errors(BLACKWELL, published("gb200-nvl72", "cw-gb200-n72", gpus=(72,)))
    assert len(there) == 5
    assert median(there) < 0.05
    assert max(there) < 0.09
    assert BLACKWELL.port_rate(8, 8 << 30) > 1.15 * BLACKWELL.port_rate(72, 8 << 30)


LARGEST = [
    *((f"8 x H200, n = {n}", HOPPER, n, busbw) for n, busbw in ((5, 414.2), (6, 435.6), (7, 460.0), (8, 473.1))),
    ("ND H200 v5", HOPPER, 8, 479.98), ("8 x H100", HOPPER, 8, 481.39),
    *((f"8 x B200, n = {n}", BLACKWELL, n, busbw) for n, busbw in ((6, 778.2), (7, 811.2), (8, 838.0))),
    ("8 x B300", BLACKWELL, 8, 845.0), ("GB200 NVL72", BLACKWELL, 72, 834.57), ("GB200 NVL72", BLACKWELL, 72, 847.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "constants", "gpus", "busbw"), LARGEST)
def test_one_constant_each_gives_the_rate_of_large_allreduces(
    name: str, constants: NvlsLine, gpus: int, busbw: float
) -> None:
    """Bus bandwidth at 8 GiB, GB/s, as published for 5 to 8 and for 72 GPUs."""
    size = 8 << 30
    predicted = 2 * (gpus - 1) / gpus * size / constants.time(gpus, size) / 1e9
    assert predicted == pytest.approx(busbw, rel=0.03), name


@given(
    ranks=st.integers(3, 72), size=st.integers(1, 2**35), channels=st.integers(1, 32),
    constants=st.tuples(st.floats(0, 1e-4), st.floats(1e9, 1e12), st.floats(0, 1e-5)),
)  # fmt: skip
def test_no_time_is_below_that_of_the_port(
    ranks: int, size: int, channels: int, constants: tuple[float, float, float]
) -> None:
    start, rate, chunk = constants
    found = NvlsLine(start, rate, "made up", chunk, channels)
    through = size * (1 + 1 / ranks) / rate
    assert found.time(ranks, size) >= (start + through) * (1 - 1e-9)
    assert found.port_rate(ranks, size) <= rate * (1 + 1e-9)
    assert chunk_bytes(ranks, size, channels) <= chunk_bytes(ranks, 2 * size, channels)
    # Two stages more than the data of a message, and chunks no larger than that.
    assert found.counts(ranks, size)["nvls.byte"] <= 3 * size * (1 + 1 / ranks) * (1 + 1e-9)


def test_without_channels_the_time_is_a_line() -> None:
    found = NvlsLine(56e-6, 298e9, "two tables")
    assert found.time(8, 64 * MIB) == pytest.approx(56e-6 + 64 * MIB * 9 / 8 / 298e9)
    assert found.port_rate(8) == 298e9
