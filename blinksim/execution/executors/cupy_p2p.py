"""Runs a program on GPUs: one process, peers' memory mapped, one persistent kernel per GPU and launch.

Devices of the program map to CUDA devices in order, unless told otherwise; several may share one GPU, which is slow
and good for trying things out. Memory that peers write is allocated outside CuPy's pool and freed with the runner.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from blinksim.errors import InfeasibleError, InputError, MissingError
from blinksim.execution.compile import MOST_TARGETS
from blinksim.execution.dtypes import POISON_BYTE
from blinksim.execution.executors.tables import ERROR_WORDS, STRIDE, buffer_bytes, kernel_source, pack, receivers
from blinksim.execution.layout import INBOX
from blinksim.execution.program import ExecutionError, Program
from blinksim.execution.reference import Reference
from blinksim.topology.graph import Topology
from blinksim.units import format_size

# The most threads of a block (kernels.cu is compiled for so many), and what comes in one instruction.
THREADS, WARP = 512, 32
_NO_MEMORY, _ALREADY_ENABLED = 2, 704
# CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED of cuda.h.
_NATIVE_ATOMIC = 3


def require_cupy() -> Any:
    """The cupy module, on a machine with at least one GPU; raises `MissingError` otherwise."""
    try:
        import cupy
    except ImportError:
        raise MissingError(
            "running on GPUs needs CuPy: pip install 'blinksim[gpu-cuda13]', or gpu-cuda12 (from a checkout "
            "'.[gpu-cuda13]'); nvidia-smi shows which CUDA the driver can do"
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise MissingError(f"running on GPUs needs a GPU and its driver: {error}") from None
    if count < 1:
        raise MissingError("running on GPUs needs a GPU; this machine has none")
    return cupy


def map_devices(program: Program, topology: Topology, gpus: Sequence[int] | None = None) -> list[int]:
    """The CUDA device of each of the program's devices, checked: GPUs, present, and with access to their peers.

    gpus: CUDA devices in the order of the program's devices; by default 0, 1, 2, …. Raises `InfeasibleError` if the
    schedule has something else than GPUs compute, `MissingError` if the machine lacks GPUs or peer access.
    """
    for name in program.devices:
        if topology.device(name).kind not in ("gpu", "tile"):
            raise InfeasibleError(f"{name} is a {topology.device(name).kind}: only GPUs can run the ops of a schedule")
    cupy = require_cupy()
    present = cupy.cuda.runtime.getDeviceCount()
    needed = len(program.devices)
    if gpus is None:
        if present < needed:
            raise MissingError(f"the schedule runs on {needed} GPUs, and this machine has {present}")
        chosen = list(range(needed))
    else:
        chosen = [int(gpu) for gpu in gpus]
        if len(chosen) != needed:
            raise InputError(f"the schedule runs on {needed} GPUs, and {len(chosen)} are named")
        for gpu in chosen:
            if not 0 <= gpu < present:
                raise MissingError(f"there is no GPU {gpu}: this machine has {present}, numbered from 0")
    for device, others in enumerate(receivers(program)):
        for other in others:
            enable_peer(cupy, chosen[device], chosen[other])
            # Flags and heralds go both ways.
            enable_peer(cupy, chosen[other], chosen[device])
    return chosen


def enable_peer(cupy: Any, gpu: int, peer: int) -> None:
    """Lets kernels on `gpu` use the memory of `peer`; raises `MissingError` if the hardware cannot."""
    if gpu == peer:
        return
    runtime = cupy.cuda.runtime
    if not runtime.deviceCanAccessPeer(gpu, peer):
        raise MissingError(
            f"GPU {gpu} cannot access the memory of GPU {peer} (see nvidia-smi topo -p2p w); choose GPUs that can"
        )
    with cupy.cuda.Device(gpu):
        try:
            runtime.deviceEnablePeerAccess(peer)
        except runtime.CUDARuntimeError as error:
            if error.status != _ALREADY_ENABLED:
                raise MissingError(f"GPU {gpu} cannot access the memory of GPU {peer}: {error}") from None


def keeps_lines_whole(cupy: Any, gpus: Sequence[int]) -> bool:
    """Whether a store of 128 bytes reaches each of the others as one, which packets need.

    NVLink does that from compute capability 7.0 on; PCIe need not (NCCL takes LL128 by the same rule). What tells the
    two apart is whether atomics work over the link; where that cannot be found out, the answer is no.
    """
    different = list(dict.fromkeys(gpus))
    if any(int(cupy.cuda.Device(gpu).compute_capability) < 70 for gpu in different):
        return False
    return all(native_atomics(a, b) for a in different for b in different if a != b)


def native_atomics(gpu: int, peer: int) -> bool:
    """Whether the driver says that `gpu` can do atomics in the memory of `peer`; CuPy has no call for it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        devices = [ctypes.c_int(), ctypes.c_int()]
        value = ctypes.c_int()
        for device, number in zip(devices, (gpu, peer), strict=True):
            if driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(number)):
                return False
        status = driver.cuDeviceGetP2PAttribute(ctypes.byref(value), ctypes.c_int(_NATIVE_ATOMIC), *devices)
    except (OSError, AttributeError):
        return False
    return status == 0 and value.value == 1


def resident_blocks(cupy: Any, gpu: int, function: Any, threads: int = THREADS) -> int:
    """How many blocks of a kernel run at once on a GPU: they wait for each other, so no more may be launched."""
    with cupy.cuda.Device(gpu) as device:
        each = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.kernel.ptr, threads, 0)
        return int(each) * int(device.attributes["MultiProcessorCount"])


@lru_cache(maxsize=64)
def load_kernel(gpu: int, source: str, name: str) -> Any:
    """A kernel, compiled for a GPU and loaded there: loading later could wait for a kernel that waits for this one."""
    cupy = require_cupy()
    with cupy.cuda.Device(gpu):
        function = cupy.RawModule(code=source, options=("-std=c++17",)).get_function(name)
        # Asking for an attribute loads the code, also where the driver loads lazily.
        _ = function.num_regs
        return function


class Kernels:
    """The compiled kernel of one element type and reduction, loaded on each of some GPUs.

    threads: of a block. blocks: how many of these run at once for every device of the program. Raises `InputError` for
    a number of threads that the kernel is not made for.
    """

    def __init__(self, program: Program, op: str, gpus: Sequence[int], threads: int = THREADS) -> None:
        self.cupy, self.threads = require_cupy(), threads
        least = WARP if program.packets else 2 * WARP
        if threads % WARP or not least <= threads <= THREADS:
            raise InputError(f"a block has {least} to {THREADS} threads, in steps of {WARP}; not {threads}")
        source = kernel_source(program.kind, op, program.packets)
        self.run = {gpu: load_kernel(gpu, source, "run_program") for gpu in dict.fromkeys(gpus)}
        shared = max(list(gpus).count(gpu) for gpu in gpus)
        self.blocks = (
            min(resident_blocks(self.cupy, gpu, function, threads) for gpu, function in self.run.items()) // shared
        )


class Runner:
    """A program with its memory on the GPUs: `load`, any number of `launch`es, `synchronize`, `compare`.

    program: already fitted (`blinksim.execution.fit`). gpus: from `map_devices`. timeout_s: how long a kernel waits for
    another before it gives up. lane_rate: bytes/s that a block in charge of a wire moves at most.
    """

    def __init__(
        self,
        program: Program,
        kernels: Kernels,
        gpus: Sequence[int],
        timeout_s: float = 5.0,
        lane_rate: float | None = None,
    ) -> None:
        cupy = self.cupy = kernels.cupy
        self.program, self.kernels, self.gpus = program, kernels, list(gpus)
        self.timeout = np.uint64(int(timeout_s * 1e9))
        self.epoch = 0
        self.streams: list[Any] = []
        self.buffers: list[list[Any]] = []
        self.flags: list[Any] = []
        self.heralds: list[Any] = []
        self.errors: list[Any] = []
        self.grids: list[int] = []
        for device, gpu in enumerate(self.gpus):
            with cupy.cuda.Device(gpu):
                self.streams.append(cupy.cuda.Stream(non_blocking=True))
                sizes = program.sizes[device, :INBOX].tolist()
                buffers = [self._allocate(size, program.kind.storage) for size in sizes]
                self.buffers.append([*buffers, self._allocate(buffer_bytes(program, device)[INBOX], "uint8")])
                self.flags.append(self._allocate(int(program.flags[device]) * program.slices, "uint64", 0))
                self.heralds.append(self._allocate(len(self.gpus), "uint64", 0))
                self.errors.append(self._allocate(ERROR_WORDS, "uint64", 0))
            # At least one block announces the device to those that store to it.
            self.grids.append(max(1, len(program.queues_of(device)) * program.slices))
        stores = int(np.diff(program.destination_start).max(initial=0))
        if stores > MOST_TARGETS and not program.packets:
            raise InputError(f"a GPU would store to {stores} places at once, and the kernel to {MOST_TARGETS} at most")
        if max(self.grids, default=0) > kernels.blocks:
            raise InputError(
                f"the program needs {max(self.grids)} thread blocks on a GPU, and only {kernels.blocks} run at once; "
                f"take fewer slices"
            )
        addresses = [[buffer.data.ptr for buffer in row] for row in self.buffers]
        heralds = [x.data.ptr for x in self.heralds]
        tables = pack(program, addresses, [x.data.ptr for x in self.flags], heralds, self._pace(lane_rate))
        self.tables, self.heads = [], []
        for gpu, table in zip(self.gpus, tables, strict=True):
            with cupy.cuda.Device(gpu):
                self.tables.append(cupy.asarray(table))
                # What the kernel would have to look up before it can look up its queue.
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
            raise MissingError(
                f"GPU {cupy.cuda.Device().id} has no memory left for {format_size(nbytes)}; take a smaller size"
            ) from None
        array = cupy.ndarray((count,), dtype=dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))
        array.view("uint8").fill(fill)
        return array

    def _pace(self, lane_rate: float | None) -> int:
        """Clock cycles of these GPUs for a KiB at `lane_rate`; 0 for as fast as can be."""
        if lane_rate is None:
            return 0
        with self.cupy.cuda.Device(self.gpus[0]) as device:
            return round(1024 * 1000 * int(device.attributes["ClockRate"]) / lane_rate)

    def _settle(self) -> None:
        for gpu in dict.fromkeys(self.gpus):
            with self.cupy.cuda.Device(gpu) as device:
                device.synchronize()

    def load(self, reference: Reference) -> None:
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
        failed = [device for device, report in enumerate(reports) if report[0]]
        if not failed:
            return
        for arrays in (self.flags, self.heralds, self.errors):
            for gpu, array in zip(self.gpus, arrays, strict=True):
                with self.cupy.cuda.Device(gpu):
                    array.fill(0)
        for gpu, buffers in zip(self.gpus, self.buffers, strict=True):
            with self.cupy.cuda.Device(gpu):
                # Launches are counted anew, so no packet may say that it belongs to one of them.
                buffers[INBOX].fill(POISON_BYTE)
        self._settle()
        self.epoch = 0
        raise ExecutionError(explain_timeout(self.program, failed[0], reports[failed[0]], int(self.timeout)))

    def outputs(self) -> list[Any]:
        """The output of each rank, as CuPy arrays on its GPU."""
        places = self.program.layout.output_place
        return [self.buffers[rank][b][o : o + size] for rank, (b, o, size) in enumerate(places)]

    def compare(self, reference: Reference) -> tuple[int, float]:
        """(wrong elements, largest error) of all ranks, found on the GPUs."""
        wrong, worst = 0, 0.0
        for rank, output in enumerate(self.outputs()):
            with self.cupy.cuda.Device(self.gpus[rank]):
                bad, error = reference.compare(rank, output, self.cupy)
            wrong, worst = wrong + bad, max(worst, error)
        return wrong, worst


def explain_timeout(program: Program, device: int, report: Sequence[int], timeout_ns: int) -> str:
    """One line about the words that a kernel left in its error buffer."""
    _, number, piece, _, wanted, seen = (int(word) for word in report)
    what = "the other GPUs to begin"
    if number < program.ops:
        what = f"piece {piece} (flag at {seen:#x}, needs {wanted:#x}) in {program.describe(number)}"
    return f"{program.devices[device]} gave up after {timeout_ns / 1e9:g} s of waiting for {what}"
