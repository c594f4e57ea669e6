"""Programs whose busiest port leaves nothing to win are not simulated, and the best is as quick as it is."""

from __future__ import annotations

import pytest

import blinksim as bs
from blinksim.algorithms.registry import candidates
from blinksim.errors import BlinksimError
from blinksim.gpu.execution_time.closed_form import schedule_times
from blinksim.schedule.candidate import Candidate
from blinksim.timing.execution_model import MOST_SENDS, SHORT_OF_PORTS, Executed

MACHINE = bs.load("hgx-h200", rates="measured")
# A simulation follows some pieces and takes the rest to go on in a line, which may undercut the port.
IN_A_LINE = 1.01
PARTS = {"all": MACHINE.selected(), "three": MACHINE.select([0, 3, 5])}


def _schedules(part: bs.Topology, collective: str) -> dict[str, bs.Schedule]:
    found = {}
    for entry in candidates(collective):
        try:
            schedule = entry.build(part, bs.Collective(collective))
        except BlinksimError:
            continue
        if schedule.sends <= MOST_SENDS:
            found[entry.name] = schedule
    return found


def _hold(part: bs.Topology, collective: str, size: int) -> None:
    """The best is within a fiftieth of that of all of them simulated, and no port takes longer than it."""
    assert part.execution is not None
    schedules, model = _schedules(part, collective), Executed().on(part)
    rivals = {name: Candidate(schedule) for name, schedule in schedules.items()}
    contest = bs.contest(part, collective, model=model).among(rivals)
    every = model.rank(contest, size)
    times = schedule_times(part.execution, every[0].details["calls"])
    ports_s = times.estimate(schedules[every[0].algorithm], size, "simple").time.ports_s
    assert times.rates.launch_s + ports_s <= IN_A_LINE * every[0].time_s
    best = model.rank_best(contest, size)
    assert every[0].time_s <= best[0].time_s <= every[0].time_s / SHORT_OF_PORTS
    assert {projection.algorithm for projection in best} == {projection.algorithm for projection in every}


@pytest.mark.parametrize("collective", ["allgather", "reduce"])
def test_on_few_gpus(collective: str) -> None:
    _hold(PARTS["three"], collective, 1 << 22)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 18, 1 << 24, 1 << 27])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall"])
def test_on_all_gpus(collective: str, size: int) -> None:
    for part in PARTS.values():
        _hold(part, collective, size)
