"""A program that grows, against one that is made at once from the same rows and variables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from blinksim.errors import InfeasibleError
from blinksim.graphs.programs import Growing, Program


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_each_step_is_the_optimum_of_what_is_there(seed: int) -> None:
    """The least time in which links of some rates carry what is due of every item, in ways that join one by one."""
    random = np.random.default_rng(seed)
    links, items = int(random.integers(1, 5)), int(random.integers(1, 4))
    due, rates = random.integers(1, 9, items).astype(float), random.integers(1, 4, links).astype(float)
    growing = Growing()
    room = [growing.row([(0, rate)], at_least=0.0) for rate in rates]
    rows = [growing.row([], at_least=amount) for amount in due]
    ways: list[tuple[int, np.ndarray]] = []
    for step in range(6):
        item, load = step % items, random.integers(0, 4, links).astype(float)
        load[random.integers(links)] += 1
        ways.append((item, load))
        growing.variable([(rows[item], 1.0), *((room[k], -load[k]) for k in range(links))])
        if step < items - 1:
            with pytest.raises(InfeasibleError):
                growing.solve()
            continue
        values, duals = growing.solve()
        assert values[0] == pytest.approx(at_once(ways, due, rates), rel=1e-7)
        assert float(due @ duals[rows]) == pytest.approx(values[0], rel=1e-7)


def at_once(ways: list[tuple[int, np.ndarray]], due: np.ndarray, rates: np.ndarray) -> float:
    program = Program()
    (end,) = program.variables(1)
    shares = program.variables(len(ways))
    for link, rate in enumerate(rates):
        carried = [(share, -load[link]) for share, (_, load) in zip(shares, ways, strict=True)]
        program.row([(end, rate), *carried], at_least=0.0, at_most=np.inf)
    for number, amount in enumerate(due):
        mine = [(share, 1.0) for share, (item, _) in zip(shares, ways, strict=True) if item == number]
        program.row(mine, at_least=amount, at_most=np.inf)
    return -program.solve([(end, -1.0)])
