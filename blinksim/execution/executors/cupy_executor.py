"""One measured and checked run on GPUs: fit, load, time, load again where that is needed, compare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from blinksim.errors import InfeasibleError
from blinksim.execution.executors.gpu_devices import THREADS, keeps_lines_whole, map_devices, require_cupy
from blinksim.execution.executors.gpu_run import Kernels, Runner
from blinksim.execution.executors.gpu_timing import Stopwatch
from blinksim.execution.executors.tables import buffer_bytes
from blinksim.execution.fit import fit, quicker_protocol
from blinksim.execution.program import Program
from blinksim.execution.reference import Reference
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology

Outcome = tuple[Program, tuple[float, ...], tuple[str, ...], int | None, float | None]


def protocol_for(
    schedule: Schedule, size_bytes: int, gpus: Sequence[int] | None = None, wanted: str | None = None
) -> str:
    """The protocol that is wanted, or else the one expected to be quicker, as far as the links allow it.

    Raises `InfeasibleError` if packets are wanted over links that may split them, `MissingError` without CuPy or GPUs.
    """
    cupy = require_cupy()
    protocol = wanted or quicker_protocol(schedule, size_bytes)
    if protocol == "ll128":
        topology = schedule.topology
        needed = len(topology.members) + len(topology.relays)
        chosen = range(min(needed, cupy.cuda.runtime.getDeviceCount())) if gpus is None else gpus
        if not keeps_lines_whole(cupy, chosen):
            if wanted:
                raise InfeasibleError(
                    "ll128 needs NVLink between all GPUs and compute capability 7.0: other links may split its lines; "
                    "take the protocol simple"
                )
            return "simple"
    return protocol


def has_room(program: Program, gpus: Sequence[int] | None = None) -> bool:
    """Whether the memory that is free on the GPUs holds the buffers of a program, with a tenth to spare.

    Whether there are such GPUs at all, `map_devices` finds out.
    """
    cupy = require_cupy()
    present = range(cupy.cuda.runtime.getDeviceCount())
    needed: dict[int, int] = defaultdict(int)
    for device, gpu in zip(range(len(program.devices)), present if gpus is None else gpus, strict=False):
        if gpu in present:
            needed[gpu] += sum(buffer_bytes(program, device))
    return all(nbytes <= 0.9 * cupy.cuda.Device(gpu).mem_info[0] for gpu, nbytes in needed.items())


def run_on_gpus(
    program: Program,
    topology: Topology,
    reference: Reference,
    *,
    gpus: Sequence[int] | None = None,
    slices: int | None = None,
    piece_bytes: int | None = None,
    threads: int | None = None,
    warmup: int = 5,
    iterations: int = 20,
    timeout_s: float = 5.0,
    check: bool = True,
    apart: bool = False,
    lane_rate: float | None = None,
) -> Outcome:
    """(the fitted program, seconds of each iteration, names of the GPUs, wrong elements, largest error).

    The arguments and errors are those of `blinksim.execution.execute`. The outputs compared are those of the last timed
    iteration; in place, where every iteration changes its own input, those of a further one on fresh data.
    """
    chosen = map_devices(program, topology, gpus)
    kernels = Kernels(program, reference.op, chosen, THREADS if threads is None else threads)
    program = fit(program, kernels.blocks, slices, piece_bytes)
    runner = Runner(program, kernels, chosen, timeout_s, lane_rate)
    runner.load(reference)
    watch = Stopwatch(runner.gpus, runner.streams)
    times = watch.time(runner.launch, runner.synchronize, warmup, iterations, apart)
    wrong: int | None = None
    worst: float | None = None
    if check:
        if program.layout.in_place:
            runner.load(reference)
            runner.launch()
            runner.synchronize()
        wrong, worst = runner.compare(reference)
    properties = kernels.cupy.cuda.runtime.getDeviceProperties
    return program, tuple(times), tuple(properties(gpu)["name"].decode() for gpu in chosen), wrong, worst
