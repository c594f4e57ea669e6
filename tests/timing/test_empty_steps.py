"""Steps without a send, of which a file may name any number, cost neither time nor memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import blinksim as bs
from blinksim.timing.alpha_beta import cost


@pytest.mark.parametrize("gamma", [0.0, 1e-9])
def test_empty_steps_cost_nothing(gamma: float) -> None:
    schedule = bs.synthesize("dgx1-v100", "allreduce", "ring").schedule
    last = int(schedule.step[-1])
    late = np.where(schedule.step == last, np.int32(2**31 - 1), schedule.step)
    apart = replace(schedule, step=late.astype(np.int32))
    assert apart.steps == 2**31
    assert cost(apart, 2**20, gamma=gamma).time_s == cost(schedule, 2**20, gamma=gamma).time_s


def test_steps_of_shares_that_are_rounded_to_nothing_cost_nothing() -> None:
    """Of two parts that follow each other, runtimes with few parts may have none for the second one."""

    @bs.register_algorithm(["broadcast"])
    def one_by_one(plan: bs.Plan) -> None:
        for number, share in enumerate(("3/4", "1/4")):
            part = plan.add_chunk(share)
            for step in range(plan.n - 1):
                plan.send(step, step + 1, chunk=part, op="copy", step=number * plan.n + step)

    schedule = bs.synthesize("ring:4@25GB/s", "broadcast", "one_by_one").schedule
    rounded = replace(schedule, share_num=np.array([4, 0]), share_den=4)
    whole = cost(rounded, 2**20, whole_messages=True)
    assert whole.time_s == pytest.approx(3 * 2**20 / 25e9 + whole.terms[0].time_s)
    assert cost(rounded, 2**20).time_s <= whole.time_s
