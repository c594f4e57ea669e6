"""The page on NVLS is what its recipe makes, and the published tables are predicted as nearly as it is meant."""

from __future__ import annotations

from statistics import median

import pytest

from blinksim.timing.measured_constants import NVLS
from validate.recipes import nvls_page
from validate.recipes.nvls_times import LARGE, Line, every

MIB = 2**20


def of(*sources: str) -> list[Line]:
    """The times of tables where switches could add."""
    found = [one for one in every(nvls_page.LEAST) if one.found.cell.adds_in_switches]
    return [one for one in found if not sources or one.found.cell.set.name in sources]


# That of several nodes plans for ten of them.
@pytest.mark.parametrize(
    "part", [pytest.param(p, marks=[pytest.mark.slow] * (p == "clusters")) for p in nvls_page.PARTS]
)
def test_the_tables_of_the_page_are_what_the_recipe_finds(part: str) -> None:
    page = nvls_page.PAGE.read_text(encoding="utf-8")
    assert f"<!-- {part}: written by" in page
    fresh = nvls_page.text(page, [part])
    assert page == fresh, "constants or tables have changed; run validate/recipes/nvls_times.py --page"


def test_one_set_of_constants_for_a_generation_gives_large_sizes() -> None:
    """The aim: within 3 % for 5 to 8 GPUs of a node and for NVL72; GB300 is another machine, off by 5 %."""
    there = [one for one in of() if one.found.cell.size == nvls_page.LARGEST and one.ran.startswith(NVLS)]
    assert len(there) == 13
    assert {one.found.cell.gpus for one in there} == {5, 6, 7, 8, 64, 72}
    near = [one for one in there if one.machine != "gb300-nvl72"]
    assert max(abs(one.error) for one in near) < 3
    assert max(abs(one.error) for one in there) < 6


@pytest.mark.parametrize(
    ("source", "middle", "worst", "fitted"),
    [
        ("azure-ndh200v5", 4, 14, 4),
        ("aic-h100_sxm-nccl2292", 6, 9, 0),
        ("aic-b200_sxm-nccl2292", 5, 18, 5),
        ("vllm42324-sm90-n8", 7, 13, 0),
    ],
)
def test_medium_sizes_are_within_10_and_20_percent(source: str, middle: float, worst: float, fitted: int) -> None:
    there = [one for one in of(source) if nvls_page.LEAST <= one.found.cell.size <= 64 * MIB]
    errors = [abs(one.error) for one in there]
    assert len(errors) >= 8
    assert sum(one.fitted for one in there) == fitted
    assert median(errors) < middle <= 10
    assert max(errors) < worst <= 20


def test_measured_constants_are_nearer_than_what_nccl_says_of_itself() -> None:
    both = [one for one in of() if one.found.error_pct is not None and one.ran.startswith(NVLS)]
    for least, most in ((nvls_page.LEAST, LARGE), (LARGE, 2**40)):
        there = [one for one in both if least <= one.found.cell.size < most]
        ours = median(abs(one.error) for one in there)
        assert ours < 0.6 * median(abs(one.found.error_pct or 0.0) for one in there)
