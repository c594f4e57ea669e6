"""The executor of programs on GPUs: one process, mapped peer memory, one persistent kernel per launch.

It chooses the protocol, fits the program to the machine, times it and checks the data. Devices of the program
map to CUDA devices in order, or as the caller says; several may share one GPU, which is slow but fine for
trials. Memory that peers write is allocated outside CuPy's pool and freed with the runner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from blinksim.errors import InfeasibleError, InputError, MissingError
from blinksim.formats.shipped.known_gpus import execution_rates
from blinksim.gpu.execution import gpu_devices
from blinksim.gpu.execution.reference import AnyReference
from blinksim.gpu.execution.task import Outcome, Task
from blinksim.gpu.programs.dtypes import POISON_BYTE
from blinksim.gpu.programs.fit import fit, quicker_protocol, worth_staging
from blinksim.gpu.programs.of_calls import MOST_TARGETS
from blinksim.gpu.programs.program import INBOX, ExecutionError, Program
from blinksim.gpu.programs.tables import ERROR_WORDS, STRIDE, buffer_bytes, kernel_source, pack
from blinksim.graphs.connectivity import summed
from blinksim.schedule.model import Schedule, refuse
from blinksim.timing.execution_model import MOST_SENDS, Executed
from blinksim.timing.measured_constants import uncovered
from blinksim.units import format_size

_NO_MEMORY = 2


class Kernels:
    """The compiled kernel of one element type and reduction, loaded on each of some GPUs.

    threads: of a block. blocks: how many of these run at once for every device of the program. Raises
    `InputError` for a number of threads that the kernel does not support.
    """

    def __init__(self, program: Program, op: str, gpus: Sequence[int], threads: int = gpu_devices.THREADS) -> None:
        self.cupy, self.threads = gpu_devices.require_cupy(), threads
        warp, most = gpu_devices.WARP, gpu_devices.THREADS
        least = warp if program.packets else 2 * warp
        if threads % warp or not least <= threads <= most:
            raise InputError(f"a block has {least} to {most} threads, in steps of {warp}; not {threads}")
        source = kernel_source(program.kind, op, program.packets)
        self.run = {gpu: gpu_devices.load_kernel(gpu, source, "run_program") for gpu in dict.fromkeys(gpus)}
        shared = max(list(gpus).count(gpu) for gpu in gpus)
        at_once = (gpu_devices.resident_blocks(self.cupy, *loaded, threads) for loaded in self.run.items())
        self.blocks = min(at_once) // shared


class Runner:
    """A program with its memory on the GPUs: `load`, any number of `launch`es, `synchronize`, `compare`.

    program: already fitted (`blinksim.gpu.programs.fit`). gpus: from `map_devices`. timeout_s: how long a
    kernel waits for another before it gives up. lane_rate: bytes/s that a block in charge of a wire moves at
    most.
    """

    def __init__(
        self,
        program: Program,
        kernels: Kernels,
        gpus: Sequence[int],
        timeout_s: float = 5.0,
        lane_rate: float | None = None,
    ) -> None:
        self.cupy = kernels.cupy
        self.program, self.kernels, self.gpus = program, kernels, list(gpus)
        self.timeout = np.uint64(int(timeout_s * 1e9))
        self.epoch = 0
        self.streams, self.flags, self.heralds, self.errors = (list[Any]() for _ in range(4))
        self.buffers: list[list[Any]] = []
        for device, gpu in enumerate(self.gpus):
            with self.cupy.cuda.Device(gpu):
                sizes = program.sizes[device, :INBOX].tolist()
                self.streams.append(self.cupy.cuda.Stream(non_blocking=True))
                self.buffers.append([self._allocate(size, program.kind.storage) for size in sizes])
                self.buffers[-1].append(self._allocate(buffer_bytes(program, device)[INBOX], "uint8"))
                self.flags.append(self._allocate(int(program.flags[device]) * program.slices, "uint64", 0))
                self.heralds.append(self._allocate(len(self.gpus), "uint64", 0))
                self.errors.append(self._allocate(ERROR_WORDS, "uint64", 0))
        # At least one block announces the device to those that store to it.
        self.grids = [max(1, program.queue_counts[device] * program.slices) for device in range(len(self.gpus))]
        stores = int(np.diff(program.destination_start).max(initial=0))
        if stores > MOST_TARGETS and not program.packets:
            raise InputError(f"a GPU would store to {stores} places at once, and the kernel to {MOST_TARGETS} at most")
        if (most := max(self.grids, default=0)) > kernels.blocks:
            few = f"only {kernels.blocks} run at once; take fewer slices"
            raise InputError(f"the program needs {most} thread blocks on a GPU, and {few}")
        self.tables: list[Any] = []
        # What the kernel would have to look up before it can look up its queue.
        self.heads: list[tuple[Any, Any]] = []
        addresses = [[buffer.data.ptr for buffer in row] for row in self.buffers]
        flags, heralds = ([array.data.ptr for array in arrays] for arrays in (self.flags, self.heralds))
        pace = 0
        if lane_rate is not None:
            # Clock cycles of these GPUs for a KiB at that rate.
            clock = int(self.cupy.cuda.Device(self.gpus[0]).attributes["ClockRate"])
            pace = round(1024 * 1000 * clock / lane_rate)
        for gpu, table in zip(self.gpus, pack(program, addresses, flags, heralds, pace), strict=True):
            with self.cupy.cuda.Device(gpu):
                self.tables.append(self.cupy.asarray(table))
                self.heads.append((table[0], table[STRIDE]))
        self._settle()

    def _allocate(self, size: int, dtype: str, fill: int = POISON_BYTE) -> Any:
        """An array on the current GPU that does not come from the pool, every byte set to `fill`."""
        cupy = self.cupy
        count = max(1, size)
        nbytes = count * np.dtype(dtype).itemsize
        try:
            memory = cupy.cuda.Memory(nbytes)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status != _NO_MEMORY:
                raise
            what = f"GPU {cupy.cuda.Device().id} has no memory left for {format_size(nbytes)}"
            raise MissingError(f"{what}; take a smaller size") from None
        array = cupy.ndarray((count,), dtype=dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))
        array.view("uint8").fill(fill)
        return array

    def _settle(self) -> None:
        for gpu in dict.fromkeys(self.gpus):
            with self.cupy.cuda.Device(gpu) as device:
                device.synchronize()

    def load(self, reference: AnyReference) -> None:
        """Poisons everything and writes each rank's data into its input."""
        for device, gpu in enumerate(self.gpus):
            with self.cupy.cuda.Device(gpu):
                for array in self.buffers[device]:
                    array.view("uint8").fill(POISON_BYTE)
                if device < reference.ranks:
                    buffer, offset, size = self.program.layout.input_place[device]
                    reference.write_inputs(device, self.buffers[device][buffer][offset : offset + size], self.cupy)
        self._settle()

    def launch(self) -> None:
        """Queues one run of the collective on every GPU and returns at once."""
        self.epoch += 1
        for device, gpu in enumerate(self.gpus):
            numbers = (*self.heads[device], np.uint64(self.epoch), self.timeout)
            arguments = (self.tables[device], *numbers, self.errors[device])
            with self.cupy.cuda.Device(gpu), self.streams[device]:
                self.kernels.run[gpu]((self.grids[device],), (self.kernels.threads,), arguments)

    def synchronize(self) -> None:
        """Waits for all launches; if a kernel gave up waiting, clears flags and inboxes and raises `ExecutionError`."""
        for stream in self.streams:
            stream.synchronize()
        reports = [self.cupy.asnumpy(errors) for errors in self.errors]
        if not (failed := [device for device, report in enumerate(reports) if report[0]]):
            return
        for device, gpu in enumerate(self.gpus):
            with self.cupy.cuda.Device(gpu):
                for arrays in (self.flags, self.heralds, self.errors):
                    arrays[device].fill(0)
                # Launches are counted anew, so no packet may say that it belongs to one of them.
                self.buffers[device][INBOX].fill(POISON_BYTE)
        self._settle()
        self.epoch = 0
        raise ExecutionError(explain_timeout(self.program, failed[0], reports[failed[0]], int(self.timeout)))

    def outputs(self) -> list[Any]:
        """The output of each rank, as CuPy arrays on its GPU."""
        places = self.program.layout.output_place
        return [self.buffers[rank][buffer][at : at + size] for rank, (buffer, at, size) in enumerate(places)]

    def compare(self, reference: AnyReference) -> tuple[int, float]:
        """(wrong elements, largest error) of all ranks, found on the GPUs."""
        wrong, worst = 0, 0.0
        for rank, output in enumerate(self.outputs()):
            with self.cupy.cuda.Device(self.gpus[rank]):
                bad, error = reference.compare(rank, output, self.cupy)
            wrong, worst = wrong + bad, max(worst, error)
        return wrong, worst


def explain_timeout(program: Program, device: int, report: Sequence[int], timeout_ns: int) -> str:
    """One line about what a kernel left in its error buffer."""
    _, number, piece, _, wanted, seen = (int(word) for word in report)
    what = "the other GPUs to begin"
    if number < program.ops:
        what = f"piece {piece} (flag at {seen:#x}, needs {wanted:#x}) in {program.describe(number)}"
    return f"{program.devices[device]} gave up after {timeout_ns / 1e9:g} s of waiting for {what}"


def run(task: Task, check: bool) -> tuple[Program, Outcome]:
    """Runs a task on GPUs, timed: fit, load, time, and for a check load again where needed, and compare.

    Raises `MissingError` or `InfeasibleError` if the devices cannot run it, and `ExecutionError` if the
    program gets stuck.
    """
    options = task.options
    refuse(task.schedule, "no GPU kernel here does that (multimem); the NumPy executor carries it out")
    program = compiled(task)
    gpus = gpu_devices.map_devices(program, task.schedule.topology, options.gpus)
    kernels = Kernels(program, task.op, gpus, gpu_devices.THREADS if options.threads is None else options.threads)
    program = fit(program, kernels.blocks, options.slices, options.piece_bytes)
    runner = Runner(program, kernels, gpus, options.timeout_s, options.lane_rate)
    runner.load(task.reference)
    watch = gpu_devices.Stopwatch(runner.gpus, runner.streams)
    times = watch.time(runner.launch, runner.synchronize, options.warmup, options.iterations, options.apart)
    if check and task.in_place:
        # Every iteration has changed its own input.
        runner.load(task.reference)
        runner.launch()
        runner.synchronize()
    wrong, worst = runner.compare(task.reference) if check else (None, None)
    return program, Outcome(wrong, worst, tuple(times), gpu_devices.names_of(gpus))


def compiled(task: Task) -> Program:
    """The task's program, in packets or staged as its options say, else as is expected to be faster and fits."""
    options, gpus = task.options, task.options.gpus
    if options.lane_blocks is not None:
        return task.program("simple")
    # What is expected of times is about one collective.
    wanted = options.wanted or ("simple" if task.counts else None)
    protocol = protocol_for(task.schedule, task.size_bytes, gpus, wanted)
    free = options.staged is None and not task.counts and protocol == "simple"
    if free and worth_staging(task.schedule, task.size_bytes):
        program = task.program(protocol, staged=True)
        # If the free memory of the GPUs holds the buffers, with a tenth to spare; missing GPUs count as free:
        # `map_devices` refuses them.
        cupy = gpu_devices.require_cupy()
        present = range(cupy.cuda.runtime.getDeviceCount())
        placed = zip(present if gpus is None else gpus, range(len(program.devices)), strict=False)
        needed = summed((gpu, sum(buffer_bytes(program, device))) for gpu, device in placed if gpu in present)
        if all(nbytes <= 0.9 * cupy.cuda.Device(gpu).mem_info[0] for gpu, nbytes in needed.items()):
            return program
    return task.program(protocol, staged=bool(options.staged))


def protocol_for(
    schedule: Schedule, size_bytes: int, gpus: Sequence[int] | None = None, wanted: str | None = None
) -> str:
    """The protocol `wanted`; without one, the protocol expected to be quicker, if the links allow it.

    Raises `InfeasibleError` if packets are wanted over links that may split them, `MissingError` without CuPy
    or GPUs.
    """
    cupy = gpu_devices.require_cupy()
    topology = schedule.topology
    needed = len(topology.members) + len(topology.relays)
    chosen = range(min(needed, cupy.cuda.runtime.getDeviceCount())) if gpus is None else gpus
    protocol = wanted
    if protocol is None:
        # By the model, on GPUs behind a switch that were measured.
        names = set(gpu_devices.names_of(chosen))
        part = replace(topology, execution=execution_rates(names.pop()) if len(names) == 1 else None)
        unmeasured = len(set(chosen)) < len(chosen) or schedule.sends > MOST_SENDS or uncovered(part)
        timed = None if unmeasured else Executed(calls="successive").run(part, schedule, size_bytes)
        protocol = timed.protocol if timed else quicker_protocol(schedule, size_bytes)
    if protocol == "ll128" and not gpu_devices.keeps_lines_whole(cupy, chosen):
        if wanted:
            needs = "NVLink between all GPUs and compute capability 7.0: other links may split its lines"
            raise InfeasibleError(f"ll128 needs {needs}; take protocol=simple")
        return "simple"
    return protocol
