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
