"""How long a program takes on GPUs behind a switch: simulated block by block, launch after launch.

Successive calls overlap: a GPU begins the next as soon as it is done with the one before. What is timed is the time
between a GPU's ends, the mean over the GPUs, as `blinksim.execution.executors.gpu_timing` measures it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import Literal, get_args

from blinksim.cost.execution_rates import ExecutionRates
from blinksim.errors import unknown
from blinksim.programs.program import BY_KEY, WAVES, Program
from blinksim.simulation.blocks.block_events import Launches
from blinksim.simulation.blocks.block_rounds import HERE, Blocks, blocks_of

CallsName = Literal["successive", "apart"]
CALLS: tuple[CallsName, ...] = get_args(CallsName)
# What is simulated of a run, as it is measured: launches, and how many of the last ones count. Those of large vectors
# settle sooner, and each takes longer to simulate.
LAUNCHES, LARGE_LAUNCHES = (21, 20), (6, 3)
LARGE = 16 << 20
# Pieces of a slice that are simulated, by the order of the program: a pipeline must fill first.
MOST_PIECES = {BY_KEY: 8, WAVES: 48}
# With many ops, as many as make so many turns.
MOST_TURNS, LEAST_PIECES = 6000, 16


@dataclass(frozen=True, slots=True)
class RunTime:
    """Seconds of a call, in parts that add up.

    Parameters
    ----------
    launch_s : float
        Between two launches on a GPU.
    looking_s : float
        What blocks spend on looking at ops, on the way to the end.
    ports_s : float
        As long as the busiest port moves data.
    steps_s : float
        The rest: as long as that port is idle, because data are on their way through blocks, flags and fences.
    port : str
        Which one is the busiest.
    """

    launch_s: float
    looking_s: float
    ports_s: float
    steps_s: float
    port: str

    @property
    def time_s(self) -> float:
        """The sum of the parts."""
        return self.launch_s + self.looking_s + self.ports_s + self.steps_s

    def beyond(self, more: RunTime, steps: float) -> RunTime:
        """What it takes as many steps from here on as a single one takes to `more`."""
        looking_s = self.looking_s + steps * (more.looking_s - self.looking_s)
        ports_s = self.ports_s + steps * (more.ports_s - self.ports_s)
        steps_s = self.steps_s + steps * (more.steps_s - self.steps_s)
        return RunTime(self.launch_s, looking_s, ports_s, steps_s, more.port)


def run_time(program: Program, rates: ExecutionRates, calls: CallsName = "successive") -> RunTime:
    """The time of a program that is cut for its GPUs.

    Parameters
    ----------
    program : Program
        As `blinksim.programs.fit.fit` returns it.
    rates : ExecutionRates
        Of the machine.
    calls : {"successive", "apart"}
        One call after another without a pause, or each by itself, begun by all GPUs at once.

    Returns
    -------
    RunTime
        The time and its parts.

    Raises
    ------
    InputError
        For another kind of calls, and for programs of emulated machines.
    ExecutionError
        If the program gets stuck.
    """
    if calls not in CALLS:
        raise unknown("kind of calls", calls, CALLS)
    lengths = set(program.length.tolist())
    pieces = max((program.pieces(length, program.slices - 1) for length in lengths), default=0)
    most = MOST_PIECES.get(program.order, pieces)
    most = max(min(most, LEAST_PIECES), min(most, MOST_TURNS // max(1, program.ops)))
    if pieces <= most:
        return _simulated(program, rates, calls, _nbytes(program))
    # Further pieces take as long as the ones before them.
    few, more = (
        _simulated(_shortened(program, part, pieces), rates, calls, _nbytes(program)) for part in (most // 2, most)
    )
    return few.beyond(more, (pieces - most // 2) / (most - most // 2))


def _nbytes(program: Program) -> int:
    return program.layout.count * program.kind.itemsize


def _shortened(program: Program, pieces: int, of: int) -> Program:
    """The same program with so many pieces of its longest chunk in place of `of`; its buffers stay as large."""
    return program.replace(length=program.length * pieces // of)


def _simulated(program: Program, rates: ExecutionRates, calls: CallsName, nbytes: int) -> RunTime:
    blocks = blocks_of(program, rates)
    if calls == "apart":
        found = Launches(blocks, rates, 1)
        found.run()
        time_s, looks_s = max(found.ends[0]) + rates.launch_s, max(found.looks[0])
    else:
        launches, counted = LARGE_LAUNCHES if nbytes > LARGE else LAUNCHES
        found = Launches(blocks, rates, launches)
        found.run()
        time_s, looks_s = _usual(periods(found.ends), launches - 1, counted), mean(found.looks[-1])
    name, busy_s = busiest_port(blocks, rates, program.devices)
    within_s = time_s - rates.launch_s
    ports_s = min(busy_s, within_s)
    looking_s = min(looks_s, within_s - ports_s)
    return RunTime(rates.launch_s, looking_s, ports_s, within_s - ports_s - looking_s, name)


def _usual(times: list[float], launches: int, counted: int) -> float:
    """The median of the last launches; where they were not simulated, they take as long as the last one that was."""
    return median([*times, *times[-1:] * (launches - len(times))][-counted:])


def periods(ends: Sequence[Sequence[float]]) -> list[float]:
    """The times between the ends of successive launches, each the mean over the GPUs."""
    return [mean(b - a for a, b in zip(before, after, strict=True)) for before, after in pairwise(ends)]


def busiest_port(blocks: Blocks, rates: ExecutionRates, devices: Sequence[str]) -> tuple[str, float]:
    """The port that moves data the longest in a launch, in words, and for how many seconds."""
    out, into = [0.0] * len(devices), [0.0] * len(devices)
    for me, rounds in zip(blocks.device, blocks.rounds, strict=True):
        for found in rounds:
            for target in found.targets:
                if target != HERE:
                    out[me] += found.load
                    into[target] += found.load
    ports = rates.ports
    busy = [("into", device, load / ports.into) for device, load in zip(devices, into, strict=True)]
    for device, load, others in zip(devices, out, blocks.receivers, strict=True):
        busy.append(("out of", device, load * (1 + ports.fan * max(0, len(others) - 1)) / ports.out))
    way, device, seconds = max(busy, key=lambda port: port[2])
    return f"{way} {device}", seconds
