"""The executor on GPUs: chooses how data are handed on, fits the program, times it and checks the data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from blinksim.errors import InfeasibleError
from blinksim.formats.shipped.known_gpus import execution_rates
from blinksim.gpu.execution.base import Executor, Outcome, Task
from blinksim.gpu.execution.gpu_devices import THREADS, keeps_lines_whole, map_devices, require_cupy
from blinksim.gpu.execution.gpu_run import Kernels, Runner
from blinksim.gpu.execution.gpu_timing import Stopwatch
from blinksim.gpu.execution.tables import buffer_bytes
from blinksim.gpu.programs.fit import fit, quicker_protocol, worth_staging
from blinksim.gpu.programs.program import Program
from blinksim.schedule.model import Schedule
from blinksim.schedule.switch_work import refuse
from blinksim.timing.execution_model import MOST_SENDS, Executed
from blinksim.timing.measured.coverage import uncovered


class CupyExecutor(Executor):
    """Runs a task on GPUs, timed: fit, load, time, load again where that is needed, compare."""

    task: Task
    runner: Runner

    def prepare(self, task: Task) -> Program:
        cut, gpu = task.options.cut, task.options.gpu
        refuse(task.schedule, "no GPU kernel here does that (multimem); the NumPy executor carries it out")
        program = compiled(task)
        gpus = map_devices(program, task.schedule.topology, gpu.gpus)
        kernels = Kernels(program, task.op, gpus, THREADS if gpu.threads is None else gpu.threads)
        program = fit(program, kernels.blocks, cut.slices, cut.piece_bytes)
        self.task = task
        self.runner = Runner(program, kernels, gpus, gpu.timeout_s, task.options.emulation.lane_rate)
        return program

    def run(self, check: bool) -> Outcome:
        runner, gpu = self.runner, self.task.options.gpu
        runner.load(self.task.reference)
        watch = Stopwatch(runner.gpus, runner.streams)
        times = watch.time(runner.launch, runner.synchronize, gpu.warmup, gpu.iterations, gpu.apart)
        wrong, worst = self._compare() if check else (None, None)
        properties = runner.cupy.cuda.runtime.getDeviceProperties
        return Outcome(wrong, worst, tuple(times), tuple(properties(gpu)["name"].decode() for gpu in runner.gpus))

    def _compare(self) -> tuple[int, float]:
        """(wrong elements, largest error) of the last timed iteration; in place, where every iteration changes its own
        input, of a further one on fresh data."""
        runner, reference = self.runner, self.task.reference
        if self.task.in_place:
            runner.load(reference)
            runner.launch()
            runner.synchronize()
        return runner.compare(reference)


def compiled(task: Task) -> Program:
    """The task's program, in packets or staged as its options say, else as is expected to be faster and fits."""
    transfer, gpus = task.options.transfer, task.options.gpu.gpus
    if task.options.emulation.lane_blocks is not None:
        return task.program("simple")
    protocol = protocol_for(task.schedule, task.size_bytes, gpus, transfer.wanted)
    if transfer.staged is None and protocol == "simple" and worth_staging(task.schedule, task.size_bytes):
        program = task.program(protocol, staged=True)
        if has_room(program, gpus):
            return program
    return task.program(protocol, staged=bool(transfer.staged))


def protocol_for(
    schedule: Schedule, size_bytes: int, gpus: Sequence[int] | None = None, wanted: str | None = None
) -> str:
    """The protocol `wanted`; without one, the protocol expected to be quicker, if the links allow it.

    Raises `InfeasibleError` if packets are wanted over links that may split them, `MissingError` without CuPy or GPUs.
    """
    cupy = require_cupy()
    topology = schedule.topology
    needed = len(topology.members) + len(topology.relays)
    chosen = range(min(needed, cupy.cuda.runtime.getDeviceCount())) if gpus is None else gpus
    protocol = wanted or _quicker(cupy, schedule, size_bytes, chosen)
    if protocol == "ll128" and not keeps_lines_whole(cupy, chosen):
        if wanted:
            raise InfeasibleError(
                "ll128 needs NVLink between all GPUs and compute capability 7.0: other links may split its lines; "
                "take protocol=simple"
            )
        return "simple"
    return protocol


def _quicker(cupy: Any, schedule: Schedule, size_bytes: int, gpus: Sequence[int]) -> str:
    """The protocol by which the program is predicted to be quicker, on GPUs behind a switch that were measured; else
    the one that `blinksim.gpu.programs.fit` expects to be."""
    properties = cupy.cuda.runtime.getDeviceProperties
    names = {properties(gpu)["name"].decode() for gpu in gpus}
    rates = execution_rates(names.pop()) if len(names) == 1 else None
    part = replace(schedule.topology, execution=rates)
    if len(set(gpus)) < len(gpus) or schedule.sends > MOST_SENDS or uncovered(part):
        return quicker_protocol(schedule, size_bytes)
    return Executed().on(part).quicker(schedule, size_bytes)


def has_room(program: Program, gpus: Sequence[int] | None = None) -> bool:
    """True if the free memory of the GPUs holds the buffers of a program, with a tenth to spare.

    Missing GPUs count as free: `map_devices` refuses them.
    """
    cupy = require_cupy()
    present = range(cupy.cuda.runtime.getDeviceCount())
    needed: dict[int, int] = defaultdict(int)
    for device, gpu in zip(range(len(program.devices)), present if gpus is None else gpus, strict=False):
        if gpu in present:
            needed[gpu] += sum(buffer_bytes(program, device))
    return all(nbytes <= 0.9 * cupy.cuda.Device(gpu).mem_info[0] for gpu, nbytes in needed.items())
