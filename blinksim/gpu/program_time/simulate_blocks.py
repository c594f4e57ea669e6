"""The time of a program on GPUs behind a switch: simulated block by block, launch after launch.

Successive calls overlap: a GPU begins the next as soon as it is done with the one before. What is timed is
the time between a GPU's ends, the mean over the GPUs, as `blinksim.gpu.execution.gpu_devices` measures it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import Literal, get_args

import numpy as np

from blinksim.errors import unknown
from blinksim.gpu.program_time.block_events import Launches
from blinksim.gpu.program_time.block_rounds import blocks_of
from blinksim.gpu.program_time.program_shape import cached_share, wire
from blinksim.gpu.programs.program import BY_KEY, INBOX, WAVES, Longs, Program, receivers
from blinksim.timing.measured_constants import ExecutionRates

CallsName = Literal["successive", "apart"]
CALLS: tuple[CallsName, ...] = get_args(CallsName)
# What is simulated of a run, as it is measured: launches, and how many of the last ones count. Those of large vectors
# settle sooner, and each takes longer to simulate.
LAUNCHES, LARGE_LAUNCHES = (21, 20), (6, 3)
LARGE = 16 << 20
# Pieces of a slice that are simulated, by the order of the program: a pipeline must fill first.
MOST_PIECES = {BY_KEY: 8, WAVES: 48}
# With many ops, as many as make this many pieces of all ops.
MOST_OP_PIECES, LEAST_PIECES = 3000, 16


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
        As `blinksim.gpu.programs.fit.fit` returns it.
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
    longest = int(program.length.max(initial=0))
    pieces = program.pieces(longest, program.slices - 1)
    most = MOST_PIECES.get(program.order, pieces)
    most = max(min(most, LEAST_PIECES), min(most, MOST_OP_PIECES // max(1, program.ops)))
    nbytes = program.layout.count * program.kind.itemsize
    if pieces <= most:
        return _known(program, rates, calls, nbytes)
    # Further pieces take as long as the ones before them.
    piece = program.slices * program.piece_units * program.unit  # elements of a piece in every slice
    short = [program.replace(length=program.length * part * piece // longest) for part in (most // 2, most)]
    few, more = (_known(part, rates, calls, nbytes) for part in short)
    return few.beyond(more, (longest / piece - most // 2) / (most - most // 2))


# What was simulated last, by all that a time depends on.
_times: OrderedDict[Hashable, RunTime] = OrderedDict()
_MOST_TIMES = 4096


def forget() -> None:
    """Forgets what was simulated, for who measures how long that takes."""
    _times.clear()


def _known(program: Program, rates: ExecutionRates, calls: CallsName, nbytes: int) -> RunTime:
    """The time of a program, simulated unless it is known: others differ in names and places, or in their size alone
    where only a part of it is simulated."""
    share = cached_share(program, rates.flags)
    tables = ("source", "destination", "wait", "signal")
    counts = {table: np.diff(getattr(program, f"{table}_start")) for table in tables}
    op = {table: np.repeat(np.arange(program.ops), count) for table, count in counts.items()}
    here = {table: program.op_device[op[table]] for table in ("source", "wait")}
    sources, destinations = program.sources, program.destinations
    stored = _first_of(destinations, np.column_stack((here["source"], sources)))
    stored[np.concatenate((destinations[:, 1], sources[:, 0])) != INBOX] = 0
    stored, read = np.split(stored, [len(destinations)])
    raised = _first_of(program.signals, np.column_stack((here["wait"], program.waits)))
    raised, waited = np.split(raised, [len(program.signals)])
    reads = np.lexsort((read, sources[:, 0], op["source"]))
    cut = np.array([program.slices, program.piece_units, program.order, program.unit, program.packets])
    content = (
        cut, program.queue_device, program.queue_start, program.key, program.length, *counts.values(),
        sources[reads, 0], read[reads], destinations[:, :2], stored, program.signals[:, 0], raised,
        waited[np.lexsort((waited, op["wait"]))],
    )  # fmt: skip
    key = (b"".join(table.tobytes() for table in content), program.devices, share, calls, nbytes > LARGE, rates)
    time = _times.pop(key, None)
    if time is None:
        blocks = blocks_of(program, rates)

        def run(launches: int) -> tuple[list[list[float]], list[list[float]]]:
            events = Launches(blocks, rates, launches)
            events.run()
            return events.ends, events.looks

        time_s, looks_s = timed(run, nbytes, calls, rates.launch_s)
        time = parts(time_s, looks_s, busiest_port(program, rates), rates, program.devices)
    _times[key] = time
    if len(_times) > _MOST_TIMES:
        _times.popitem(last=False)
    return time


def _first_of(first: Longs, then: Longs) -> Longs:
    """For each row of two tables, the number of the first row that equals it."""
    _, numbers, label = np.unique(np.concatenate((first, then)), axis=0, return_index=True, return_inverse=True)
    return numbers[label.ravel()]


def timed(
    run: Callable[[int], tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]]],
    nbytes: int,
    calls: CallsName,
    launch_s: float,
) -> tuple[float, float]:
    """Seconds of a call of `nbytes` bytes, and of looking at ops, from a run of as many launches as it takes.

    run: for a number of launches, when each GPU has ended each of them, and what it looked until then. Of successive
    launches that were not simulated, all take as long as the last one that was.
    """
    if calls == "apart":
        ends, looks = run(1)
        return max(ends[0]) + launch_s, max(looks[0])
    launches, counted = LARGE_LAUNCHES if nbytes > LARGE else LAUNCHES
    ends, looks = run(launches)
    times = [mean(b - a for a, b in zip(before, after, strict=True)) for before, after in pairwise(ends)]
    return median([*times, *times[-1:] * (launches - 1 - len(times))][-counted:]), mean(looks[-1])


def parts(
    time_s: float, looks_s: float, port: tuple[str, int, float], rates: ExecutionRates, devices: Sequence[str]
) -> RunTime:
    """A time in parts, of which looking takes so long unless the busiest port fills it.

    port: which one, and for how long (`busiest`).
    """
    direction, device, busy_s = port
    within_s = time_s - rates.launch_s
    ports_s = min(busy_s, within_s)
    looking_s = min(looks_s, within_s - ports_s)
    return RunTime(rates.launch_s, looking_s, ports_s, within_s - ports_s - looking_s, f"{direction} {devices[device]}")


def busiest_port(program: Program, rates: ExecutionRates) -> tuple[str, int, float]:
    """The port of a program that moves data the longest in a launch: which way, of which device, for how many s."""
    source = np.repeat(program.op_device, np.diff(program.destination_start))
    load = np.repeat(program.length, np.diff(program.destination_start)) * float(program.kind.itemsize)
    if program.packets:
        load *= wire(rates.packets)
    away = source != program.destinations[:, 0]
    devices = len(program.devices)
    out = np.bincount(source[away], load[away], devices)
    into = np.bincount(program.destinations[away, 0], load[away], devices)
    return busiest(out.tolist(), into.tolist(), receivers(program), rates)


def busiest(
    out: Sequence[float], into: Sequence[float], receivers: Sequence[Sequence[int]], rates: ExecutionRates
) -> tuple[str, int, float]:
    """As `busiest_port`, of the bytes that leave each device and reach it, and the devices that it stores to."""
    ports = rates.ports
    busy = [("into", device, load / ports.into) for device, load in enumerate(into)]
    for device, (load, others) in enumerate(zip(out, receivers, strict=True)):
        busy.append(("out of", device, load * (1 + ports.fan * max(0, len(others) - 1)) / ports.out))
    return max(busy, key=lambda port: port[2])
