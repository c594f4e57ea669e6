"""The table of first-answers.md: what is answered today, the default near the best, all below the bound."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from first_answers import MOST_APART, PAGE, SMALL, TABLES, Case, Row, answered, parted

import blinksim as bs

CASES = [case for cases in TABLES.values() for case in cases]
QUICK = [case for case in CASES if not case.slow]
# Larger ones, and those whose like is answered here; `python benchmarks/first_answers.py` answers them too.
LONG = {
    ("64 p5.48xlarge, each EFA drawn", "1GiB"),
    ("64 p5.48xlarge, four EFA as one", "1GiB"),
    ("16 nodes of Aurora", "1GiB"),
    ("2 HGX H100 on eight rails", "1GiB"),
    ("torus of 4 x 4", "1GiB"),
    ("the same, one link at half its rate", "1GiB"),
    ("4 HGX H100, fat tree 2:1", "1GiB"),
    ("dragonfly, 72 GPUs", "1GiB"),
    ("2 DGX A100", "1MiB"),
}
# Those of the most sends, of sorts that others here are of.
MOST = {("2 HGX H100 on eight rails", "1MiB"), ("2 p5.48xlarge, each EFA drawn", "1GiB")}
SLOW = [
    pytest.param(case, marks=[pytest.mark.slow, *[pytest.mark.alike] * ((case.label, case.size) in MOST)])
    for case in CASES
    if case.slow and (case.label, case.size) not in LONG
]
PRINTED = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for title in TABLES
    for line in parted(PAGE.read_text(encoding="utf-8"), title)[1].splitlines()[2:]
]
LARGE = PRINTED[: len(next(iter(TABLES.values())))]


def called(case: Case) -> str:
    return f"{case.label} {case.size}"


def test_the_page_has_a_row_for_every_case() -> None:
    assert [cells[0] for cells in PRINTED] == [case.label for case in CASES]


@pytest.mark.parametrize("cells", LARGE, ids=[cells[0] for cells in LARGE])
def test_the_printed_default_is_within_three_per_cent_of_the_best(cells: list[str]) -> None:
    assert float(cells[4].removesuffix(" %")) <= 100 * MOST_APART


@pytest.mark.parametrize("case", [*QUICK, *SLOW], ids=called)
def test_a_row_is_what_is_answered_today(case: Case) -> None:
    row = answered(case)
    assert list(row.cells()) == PRINTED[CASES.index(case)]
    assert row.more <= MOST_APART or case in SMALL
    assert_below_the_bound(row)


def assert_below_the_bound(row: Row) -> None:
    for found in (row.default, *row.all, *([row.nccl] if row.nccl else [])):
        assert found.bound is not None
        assert Fraction(found.size) / found.bound.rate <= found.time_s


@pytest.mark.slow
def test_the_two_files_of_one_machine_give_one_time(tmp_path: Path) -> None:
    """Four adapters and one of four lanes are the same hardware; only overheads, of four messages or one, differ.

    Where messages have none, every size takes as long; else four messages are not quicker than one.
    """

    def time_s(name: str, nodes: int, size: str, overhead: str) -> float:
        text = (PAGE.parents[2] / "tests/data/machines" / name).read_text()
        path = tmp_path / name
        path.write_text(text.replace("overhead: 1.3us", f"overhead: {overhead}"))
        return bs.project(bs.load(path, nodes=nodes), "allreduce", size, algorithm="best").time_s

    for nodes in (2, 8):
        for size in ("64MiB", "1GiB", "16GiB"):
            drawn, lanes = (time_s(name, nodes, size, "0us") for name in ("p5.yaml", "p5b.yaml"))
            assert drawn == pytest.approx(lanes, rel=0.008)
        drawn, lanes = (time_s(name, nodes, "1GiB", "1.3us") for name in ("p5.yaml", "p5b.yaml"))
        assert lanes * (1 - 1e-9) <= drawn < 1.1 * lanes
