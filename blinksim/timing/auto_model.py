"""The default timing model: measured constants if there are any, else the links alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blinksim.errors import InputError
from blinksim.timing.alpha_beta_model import AlphaBeta
from blinksim.timing.timing_model import Breakdown, ScheduleModel

if TYPE_CHECKING:
    from blinksim.gpu.program_time.simulate_blocks import CallsName
    from blinksim.gpu.programs.program import ProtocolName
    from blinksim.schedule.model import Schedule
    from blinksim.timing.measured_constants import ExecutionRates
    from blinksim.topology.graph import Topology

ENTRIES = ({"name": "auto", "class": "Auto", "schedules": True, "place": 0},)


# Rates that nobody measured: who asks for them asks what the links allow.
_STATED = ("nominal", "nccl", "seed")
# Ports as measured carry less than the links of a data sheet, and not by more than this factor.
_MOST_STATED = 1.3


class Auto(ScheduleModel):
    """``execution`` where the machine's constants are known, else ``alpha-beta``; answers carry that name.

    Parameters
    ----------
    gamma : float
        As `AlphaBeta` takes it; what reducing costs is among the constants that were measured.
    protocol, calls : str, optional
        As `blinksim.timing.execution_model.Executed` takes them.
    """

    name = "auto"

    def __init__(
        self, gamma: float = 0.0, protocol: ProtocolName | None = None, calls: CallsName = "successive"
    ) -> None:
        super().__init__(gamma)
        self.protocol, self.calls = protocol, calls

    def on(self, part: Topology) -> ScheduleModel:
        if part.execution is not None and not self.gamma and _at_measured_rates(part, part.execution):
            from blinksim.timing.measured_constants import uncovered

            if not uncovered(part):
                from blinksim.timing.execution_model import Executed

                return Executed(self.protocol, self.calls).on(part)
        if self.protocol is not None or self.calls != "successive":
            raise InputError(
                f"protocol= and calls= are about programs on measured GPUs, and {part.name} at {part.rates} rates has "
                "no constants of them; leave both out"
            )
        return AlphaBeta(self.gamma)

    def breakdown(self, schedule: Schedule, size: int, gamma: float) -> Breakdown:
        return self.on(schedule.topology).breakdown(schedule, size, gamma)


def _at_measured_rates(part: Topology, rates: ExecutionRates) -> bool:
    """Whether the links are at rates that go with the measured constants."""
    if part.rates.partition(" (")[0] in _STATED:
        return False
    leaving = sum(float(link.bandwidth) for link in part.links if link.src == part.members[0])
    return 1 / _MOST_STATED <= leaving / rates.ports.out <= _MOST_STATED
