"""The table of validate/recipes/in_network.py: rates by hand, bounds, schedules, runs and simulations agree."""

from __future__ import annotations

import pytest

from validate.recipes.in_network import Case, cases, row

QUICK = [case for case in cases(quick=True) if case.members and not case.edits]


def check(case: Case) -> None:
    found = row(case)
    assert found.faults == []
    # At such sizes, latencies and pipelines that fill cost little.
    assert found.simulated > 0.85 * found.found.rate


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_five_gpus(case: Case) -> None:
    check(case)


def alike(case: Case) -> bool:
    """72 GPUs show what 8 do, and three nodes what two and four do."""
    return case.nodes == 3 or (
        case.machine == "gb200-nvl72" and (case.collective, case.algorithm) != ("allreduce", "packed_in_network")
    )


SLOW = [pytest.param(case, marks=[pytest.mark.alike] if alike(case) else []) for case in cases() if case not in QUICK]


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=str)
def test_every_case(case: Case) -> None:
    check(case)
