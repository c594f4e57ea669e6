"""What links reach by published times: within the data sheet, with its origin, and near what other documents say."""

from __future__ import annotations

import pytest

import blinksim as bs
from blinksim import data_files
from blinksim.answers.measurements.public import with_places
from blinksim.formats.shipped import machine_names
from blinksim.timing.measured import public_tables
from validate.recipes import measured_rates as recipe

TABLES = {
    path.stem: machine_names.measured_rates(path.stem)
    for path in (data_files.folder("models") / "rates" / "measured").glob("*.yaml")
}
# Bus bandwidth of long rings, of others than the cells that were fitted: github.com/stas00/ml-engineering (A100, B200),
# AMD's blog on RCCL (MI300X), nccl-tests on two nodes (a3-mega), in GB/s of a GPU's own.
RINGS = {"dgx-a100": (235, 300), "hgx-h100": (366, 450), "hgx-b200": (682, 900), "mi300x": (318, 448)}


def share(name: str, kind: str) -> float:
    nominal, measured = (
        next(float(link.lane_bandwidth) for link in bs.load(name, rates=rates).links if link.kind == kind)
        for rates in ("nominal", "measured")
    )
    return measured / nominal


@pytest.mark.parametrize("name", sorted(TABLES))
def test_no_link_reaches_more_than_its_data_sheet(name: str) -> None:
    table, nominal = TABLES[name], bs.load(name)
    assert table is not None
    assert table.machine == name
    lanes = {link.kind: float(link.lane_bandwidth) for link in nominal.links}
    if nominal.fabric is not None:
        lanes.setdefault(nominal.fabric.kind, float(nominal.fabric.lane_bandwidth))
    words = table.source.split("; ")
    assert len(words) == len(table.classes)
    for (kind, row), said in zip(table.classes.items(), words, strict=True):
        assert row.bandwidth is not None
        assert 0.3 * lanes[kind] < float(row.bandwidth) <= lanes[kind]
        assert said.startswith(f"{kind} {100 * float(row.bandwidth) / lanes[kind]:.0f} % of nominal")
        assert "calibrated on" in said or said.endswith(", its nearest relative")
    assert "measured" in machine_names.rate_names(name)


@pytest.mark.parametrize("name", sorted(RINGS))
def test_the_share_is_near_that_of_long_rings(name: str) -> None:
    """Within a tenth of the data sheet, though the cells of the fit are of fewer GPUs and shorter messages."""
    reached, port = RINGS[name]
    kind = "xgmi" if name == "mi300x" else "nvlink"
    assert share(name, kind) == pytest.approx(reached / port, abs=0.12)


def test_relatives_have_the_same_share() -> None:
    assert share("p5", "nvlink") == pytest.approx(share("hgx-h100", "nvlink"), rel=2e-3)
    assert share("p5en", "nvlink") == pytest.approx(share("hgx-h200", "nvlink"), rel=2e-3)
    table = machine_names.measured_rates("p5.48xlarge")
    assert table is not None
    assert "as on hgx-h100, its nearest relative" in table.source


def test_measured_rates_are_what_a_schedule_could_reach() -> None:
    found, stated = (bs.rank(bs.load("p5", rates=rates), "allreduce", "1GiB") for rates in ("measured", "nominal"))
    assert found.best.rates.startswith("measured")
    assert found.best.time_s > stated.best.time_s
    answer = bs.project("p5", "allreduce", "1GiB")
    assert isinstance(answer, bs.Answer)
    assert answer.could is not None
    assert answer.could.best.time_s >= stated.best.time_s


def test_only_cells_of_the_stated_part_are_fitted() -> None:
    for name in ("dgx1-v100", "mi300x", "dgx-a100"):
        fitted = {
            id(cell.set): cell.set.name for cell, is_fitted in with_places(public_tables.cells(name)) if is_fitted
        }
        allowed = {(cell.size, cell.time_s) for cell, is_fitted in with_places(public_tables.cells(name)) if is_fitted}
        for cells in recipe.ring_times(name):
            assert {cell.set.name for cell in cells} <= set(fitted.values())
            assert {(cell.size, cell.time_s) for cell in cells} <= allowed


def test_the_recipe_makes_the_tables() -> None:
    """For one machine, whose links the times determine: as the file says."""
    found = recipe.own_rates("dgx1-v100")
    table = TABLES["dgx1-v100"]
    assert table is not None
    assert table.classes["nvlink"].bandwidth is not None
    assert float(table.classes["nvlink"].bandwidth) == pytest.approx(found["nvlink"].rate, rel=2e-3)
    # Rings of 8 V100 reach 134.7 GB/s of 150 (nccl-tests, long messages).
    assert found["nvlink"].rate / found["nvlink"].nominal == pytest.approx(134.7 / 150, abs=0.02)
