"""How long the programs of schedules take on one machine: by a formula at once, or simulated."""

from __future__ import annotations

from dataclasses import dataclass

from blinksim.cost.execution_rates import ExecutionRates
from blinksim.gpu.program_time.closed_form import ClosedForm
from blinksim.gpu.program_time.run_time import CallsName, RunTime, busiest_port, run_time
from blinksim.gpu.programs.compile import compile_schedule
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.fit import fit, worth_staging
from blinksim.gpu.programs.handover import ProtocolName
from blinksim.gpu.programs.program import Program
from blinksim.schedule.model import Schedule

_KIND = ELEMENT_TYPES["float32"]
# Elements of the vector of which closed forms know the shares.
_LARGE = 1 << 22


@dataclass(frozen=True, slots=True)
class Run:
    """How a program is cut, and the time that it takes."""

    protocol: ProtocolName
    staged: bool
    slices: int
    piece_bytes: int
    time: RunTime


class ScheduleTimes:
    """The times of schedules as programs on a machine; what serves all sizes is worked out once.

    Parameters
    ----------
    rates : ExecutionRates
        Of the machine.
    calls : {"successive", "apart"}
        As `blinksim.gpu.program_time.run_time.run_time` takes it.
    """

    def __init__(self, rates: ExecutionRates, calls: CallsName = "successive") -> None:
        self.rates, self.calls = rates, calls
        # By the identity of a schedule, which stays with its forms.
        self._forms: dict[tuple[int, bool, bool], tuple[Schedule, ClosedForm]] = {}
        self._estimates: dict[tuple[int, ProtocolName, int], Run] = {}

    def estimate(self, schedule: Schedule, size: int, protocol: ProtocolName) -> Run:
        """By the closed form: at once, once the schedule is known."""
        asked = id(schedule), protocol, size
        if asked not in self._estimates:
            self._estimates[asked] = self._estimated(schedule, size, protocol)
        return self._estimates[asked]

    def _estimated(self, schedule: Schedule, size: int, protocol: ProtocolName) -> Run:
        packets, staged = _handed_on(schedule, size, protocol)
        key = id(schedule), packets, staged
        if key not in self._forms:
            program = compile_schedule(schedule, _LARGE, _KIND, packets=packets, staged=staged)
            self._forms[key] = schedule, ClosedForm(program, self.rates)
        form = self._forms[key][1]
        slices, piece = form.cut(size)
        return Run(protocol, form.program.staged, slices, piece, form.run_time(size, self.calls))

    def simulate(self, schedule: Schedule, size: int, protocol: ProtocolName) -> Run:
        """Block by block."""
        program = self.program(schedule, size, protocol)
        piece = program.piece_units * program.unit * program.kind.itemsize
        return Run(protocol, program.staged, program.slices, piece, run_time(program, self.rates, self.calls))

    def least_s(self, schedule: Schedule, size: int) -> float:
        """Seconds that the busiest port of the program takes on its own, by the protocol that moves fewer bytes."""
        return self.rates.launch_s + busiest_port(self.program(schedule, size, "simple"), self.rates)[2]

    def program(self, schedule: Schedule, size: int, protocol: ProtocolName) -> Program:
        """The schedule for a vector of `size` bytes of float32, as a run would cut it."""
        packets, staged = _handed_on(schedule, size, protocol)
        count = max(1, size // _KIND.itemsize)
        return fit(compile_schedule(schedule, count, _KIND, packets=packets, staged=staged), self.rates.blocks)


def _handed_on(schedule: Schedule, size: int, protocol: ProtocolName) -> tuple[bool, bool]:
    """Whether data go in packets, and whether through inboxes."""
    packets = protocol == "ll128"
    return packets, packets or worth_staging(schedule, size)
