"""The GPUs of this machine: presence, peer access, timing as nccl-tests does it, and NCCL's collectives.

Before the timed launches every stream is kept busy for a while, so that all launches are queued when the
first one starts and the host's overhead stays out of the figures; one more launch goes before them. Iteration
i lasts from the end of iteration i - 1 to its own end, by events on every GPU, averaged over the GPUs
(nccl-tests' default).

NCCL's collectives run from the same process and are timed by the same function. Buffers are those of the
collective's definition, as in `blinksim.gpu.programs.program`: a vector of `count` elements, of which
allgather sends and reducescatter receives the rank's part.

Copies between two GPUs by kind, alpha and beta against the number of thread blocks. Kinds: the copy engine; a
kernel that pushes (stores to the peer), pulls (loads from it), or adds two local vectors on the way to it
(reduce); one GPU pushing the same data to all others at once (fan-out), and all others pushing to one
(fan-in). Each is timed for several sizes, and time = alpha + beta * size is fitted to the medians (Hockney
1994), with every point weighted by its own time, so that small sizes settle alpha and large ones beta.
Kernels are the loops that schedules run (`run_stream` in kernels.cu); alpha holds the launch as well.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise, permutations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from blinksim.collective import ON_TREES
from blinksim.errors import BlinksimError, InfeasibleError, InputError, MissingError, blamed_on
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES, ElementType
from blinksim.gpu.programs.program import Program, receivers
from blinksim.gpu.programs.tables import kernel_source
from blinksim.results import keyed
from blinksim.textio import text_files
from blinksim.timing.measured_constants import fit_line
from blinksim.topology.graph import Topology

# The most threads of a block (the number that kernels.cu is compiled for), and of a warp.
THREADS, WARP = 512, 32
_ALREADY_ENABLED = 704
# CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED of cuda.h.
_NATIVE_ATOMIC = 3


def require_cupy() -> Any:
    """The cupy module, on a machine with at least one GPU; raises `MissingError` otherwise."""
    try:
        import cupy
    except ImportError:
        which = "nvidia-smi shows which CUDA the driver can do"
        how = f"pip install 'blinksim[gpu-cuda13]', or gpu-cuda12 (from a checkout '.[gpu-cuda13]'); {which}"
        raise MissingError(f"running on GPUs needs CuPy: {how}") from None
    needs = "running on GPUs needs a GPU and its driver"
    with blamed_on(lambda why: MissingError(f"{needs}: {why}"), cupy.cuda.runtime.CUDARuntimeError):
        count = cupy.cuda.runtime.getDeviceCount()
    if count < 1:
        raise MissingError("running on GPUs needs a GPU; this machine has none")
    return cupy


def names_of(gpus: Sequence[int]) -> tuple[str, ...]:
    """What the makers call some CUDA devices."""
    return tuple(require_cupy().cuda.runtime.getDeviceProperties(gpu)["name"].decode() for gpu in gpus)


def map_devices(program: Program, topology: Topology, gpus: Sequence[int] | None = None) -> list[int]:
    """The CUDA device of each of the program's devices, checked: GPUs, present, and with access to their peers.

    gpus: CUDA devices in the order of the program's devices; by default 0, 1, 2, …. Raises `InfeasibleError`
    if the schedule makes other devices than GPUs compute, `MissingError` if the machine lacks GPUs or peer
    access.
    """
    for name in program.devices:
        if topology.device(name).kind not in ("gpu", "tile"):
            raise InfeasibleError(f"{name} is a {topology.device(name).kind}: only GPUs can run the ops of a schedule")
    cupy = require_cupy()
    present = cupy.cuda.runtime.getDeviceCount()
    needed = len(program.devices)
    if gpus is None and present < needed:
        raise MissingError(f"the schedule runs on {needed} GPUs, and this machine has {present}")
    chosen = [int(gpu) for gpu in (range(needed) if gpus is None else gpus)]
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
    refusal = f"GPU {gpu} cannot access the memory of GPU {peer}"
    if not runtime.deviceCanAccessPeer(gpu, peer):
        raise MissingError(f"{refusal} (see nvidia-smi topo -p2p w); choose GPUs that can")
    with cupy.cuda.Device(gpu):
        try:
            runtime.deviceEnablePeerAccess(peer)
        except runtime.CUDARuntimeError as error:
            if error.status != _ALREADY_ENABLED:
                raise MissingError(f"{refusal}: {error}") from None


def keeps_lines_whole(cupy: Any, gpus: Sequence[int]) -> bool:
    """True if a store of 128 bytes reaches each of the other GPUs as one, which packets need.

    NVLink does that from compute capability 7.0 on; PCIe need not (NCCL takes LL128 by the same rule).
    Atomics work over NVLink only, which tells the two apart; where the driver does not say, the answer is
    False.
    """
    different = list(dict.fromkeys(gpus))
    if any(int(cupy.cuda.Device(gpu).compute_capability) < 70 for gpu in different):
        return False
    return all(native_atomics(a, b) for a in different for b in different if a != b)


def native_atomics(gpu: int, peer: int) -> bool:
    """True if the driver says that `gpu` can do atomics in the memory of `peer`; CuPy has no call for it."""
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
        each = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, 0)
        return int(each) * int(device.attributes["MultiProcessorCount"])


# Attributes of a function in cuda.h.
_NUM_REGS = 4


@lru_cache(maxsize=64)
def load_kernel(gpu: int, source: str, name: str) -> Any:
    """A kernel, compiled for a GPU and loaded there: loading later could wait for a kernel that waits for this one."""
    cupy = require_cupy()
    with cupy.cuda.Device(gpu) as device:
        module = cupy.cuda.function.Module()
        module.load(machine_code(source, str(device.compute_capability)))
        function = module.get_function(name)
        # Asking for an attribute loads the code, also where the driver loads lazily.
        cupy.cuda.driver.funcGetAttribute(_NUM_REGS, function.ptr)
        return function


def machine_code(source: str, capability: str) -> bytes:
    """The code of a kernel for GPUs of a compute capability, such as 90.

    It is kept in the folder ``BLINKSIM_CACHE``, or ~/.cache/blinksim. A file there is whole, whatever several
    processes do and if the disk is full: it begins with the hash of the rest. Where the folder cannot be
    written, each process compiles for itself.
    """
    nvrtc = require_cupy().cuda.nvrtc
    key = _hash(f"{nvrtc.getVersion()} {capability} {source}".encode()).hex()
    path = Path(os.environ.get("BLINKSIM_CACHE") or "~/.cache/blinksim").expanduser() / f"{key}.cubin"
    with suppress(OSError, BlinksimError):
        kept = text_files.read_bytes(path, 16 * text_files.MIB)
        if kept[:_HASH_BYTES] == _hash(kept[_HASH_BYTES:]):
            return kept[_HASH_BYTES:]
    program = nvrtc.createProgram(source, "kernels.cu", [], [])
    try:
        nvrtc.compileProgram(program, ("-std=c++17", f"-arch=sm_{capability}"))
        code = bytes(nvrtc.getCUBIN(program))
    finally:
        nvrtc.destroyProgram(program)
    with suppress(OSError, BlinksimError):
        path.parent.mkdir(parents=True, exist_ok=True)
        text_files.write_bytes(path, _hash(code) + code, force=True)
    return code


_HASH_BYTES = 16


def _hash(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_HASH_BYTES).digest()


WARMUP, ITERATIONS = 5, 20


class Stopwatch:
    """Times launches on some GPUs' streams."""

    def __init__(self, gpus: Sequence[int], streams: Sequence[Any]) -> None:
        self.cupy = require_cupy()
        self.gpus, self.streams = list(gpus), list(streams)
        source = text_files.read_text(Path(__file__).with_name("hold.cu"))
        self.hold = {gpu: load_kernel(gpu, source, "hold") for gpu in dict.fromkeys(self.gpus)}

    def _mark(self) -> list[Any]:
        marks = []
        for gpu, stream in zip(self.gpus, self.streams, strict=True):
            with self.cupy.cuda.Device(gpu):
                marks.append(stream.record())
        return marks

    def _part(self, marks: list[Any], apart: bool) -> None:
        """Makes every stream wait for the marks of all others, if requested."""
        for number, (gpu, stream) in enumerate(zip(self.gpus, self.streams, strict=True)):
            with self.cupy.cuda.Device(gpu):
                for mark in marks[:number] + marks[number + 1 :] if apart else ():
                    stream.wait_event(mark)

    def time(
        self,
        launch: Callable[[], None],
        finish: Callable[[], None],
        warmup: int = WARMUP,
        iterations: int = ITERATIONS,
        apart: bool = False,
    ) -> list[float]:
        """Seconds of each timed iteration.

        launch: queues one run on every stream. finish: waits for all of them and raises if one failed. apart:
        no GPU begins an iteration before all have ended the one before, so that iterations do not overlap
        where data go one way only; the signals between the GPUs are part of the time.
        """
        for _ in range(warmup):
            launch()
        finish()
        begin = time.perf_counter()
        launch()
        self._part(self._mark(), apart)
        each = time.perf_counter() - begin
        finish()
        busy = np.uint64(int((2 * (iterations + 1) * each + 1e-3) * 1e9))
        for gpu, stream in zip(self.gpus, self.streams, strict=True):
            with self.cupy.cuda.Device(gpu), stream:
                self.hold[gpu]((1,), (1,), (busy,))
        # The GPUs do not begin at the same moment, which disturbs the first run: it is not timed.
        launch()
        marks = [self._mark()]
        self._part(marks[0], apart)
        for _ in range(iterations):
            launch()
            marks.append(self._mark())
            self._part(marks[-1], apart)
        finish()
        elapsed = self.cupy.cuda.get_elapsed_time
        table = [[elapsed(a, b) for a, b in zip(before, after, strict=True)] for before, after in pairwise(marks)]
        return [float(sum(row) / len(row)) * 1e-3 for row in table]


def measure_pairs(gpus: Sequence[int] | None = None, size_bytes: int = 256 << 20, repeats: int = 10) -> dict[str, Any]:
    """Copies between every ordered pair of GPUs by their copy engines, one pair at a time.

    Names of the GPUs, bytes of a copy, and matrices by (from, to), None where there is no peer access. Rates come
    from the median of `repeats` copies of `size_bytes`, latencies from copies of 4 bytes.
    """
    cupy = require_cupy()
    runtime = cupy.cuda.runtime
    chosen = list(range(runtime.getDeviceCount())) if gpus is None else list(gpus)
    buffers = {}
    for gpu in chosen:
        with cupy.cuda.Device(gpu):
            buffers[gpu] = cupy.cuda.Memory(size_bytes)
    rates: list[list[float | None]] = [[None] * len(chosen) for _ in chosen]
    latencies: list[list[float | None]] = [[None] * len(chosen) for _ in chosen]
    for (i, src), (j, dst) in permutations(enumerate(chosen), 2):
        if src == dst or not runtime.deviceCanAccessPeer(src, dst):
            continue
        enable_peer(cupy, src, dst)
        ends = buffers[dst].ptr, dst, buffers[src].ptr, src
        # Several small copies in a row: a single one is close to the resolution of events.
        for size, copies, table in ((size_bytes, 1, rates), (4, 20, latencies)):
            with cupy.cuda.Device(src):
                stream = cupy.cuda.Stream(non_blocking=True)
                marks = [cupy.cuda.Event() for _ in range(repeats + 2)]
                for mark in marks:
                    for _ in range(copies):
                        runtime.memcpyPeerAsync(*ends, size, stream.ptr)
                    mark.record(stream)
                stream.synchronize()
                elapsed = [cupy.cuda.get_elapsed_time(a, b) for a, b in pairwise(marks[1:])]
            middle = float(np.median(elapsed)) * 1e-3 / copies
            table[i][j] = size / middle / 1e9 if table is rates else middle
    return {"gpus": list(names_of(chosen)), "size_bytes": size_bytes, "GBps": rates, "latency_s": latencies}


_TYPES = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6}
_TYPES |= {"float32": 7, "float64": 8, "bfloat16": 9}
_OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3}


class Nccl:
    """One communicator per GPU. Set NCCL_NVLS_ENABLE and the like before the first one is made.

    Raises `MissingError` without NCCL in CuPy.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self.cupy = require_cupy()
        from cupy.cuda import nccl

        if not hasattr(nccl, "NcclCommunicator"):
            raise MissingError("CuPy found no NCCL library: pip install nvidia-nccl-cu12 (or -cu13 for CUDA 13)")
        self.nccl, self.gpus = nccl, list(gpus)
        self.communicators = nccl.NcclCommunicator.initAll(self.gpus)
        self.streams = []
        for gpu in self.gpus:
            with self.cupy.cuda.Device(gpu):
                self.streams.append(self.cupy.cuda.Stream(non_blocking=True))

    @property
    def version(self) -> str:
        """Such as 2.28.9."""
        number = int(self.nccl.get_version())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def launch(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        count: int,
        kind: ElementType,
        op: str,
        collective: str = "allreduce",
        root: int = 0,
    ) -> None:
        """Queues one collective on every GPU. count: elements of the vector, a multiple of the ranks where it is cut.

        Raises `InfeasibleError` for a collective that NCCL has no call for.
        """
        if collective not in ON_TREES:
            raise InfeasibleError(f"NCCL has no call for {collective}; it has {', '.join(ON_TREES)}")
        part, number, how = count // len(self.gpus), _TYPES[kind.name], _OPS[op]
        # The method of a communicator, and what it takes between the addresses and the stream.
        method, given = {
            "allreduce": ("allReduce", (count, number, how)),
            "allgather": ("allGather", (part, number)),
            "reducescatter": ("reduceScatter", (part, number, how)),
            "broadcast": ("broadcast", (count, number, root)),
            "reduce": ("reduce", (count, number, how, root)),
        }[collective]
        ends = zip(self.gpus, self.communicators, self.streams, inputs, outputs, strict=True)
        self.nccl.groupStart()
        for gpu, communicator, stream, sent, got in ends:
            with self.cupy.cuda.Device(gpu):
                getattr(communicator, method)(sent.data.ptr, got.data.ptr, *given, stream.ptr)
        self.nccl.groupEnd()

    def finish(self) -> None:
        for stream in self.streams:
            stream.synchronize()

    def close(self) -> None:
        for communicator in self.communicators:
            communicator.destroy()


COPIES = ("copy engine", "push", "pull", "reduce", "fan-out", "fan-in")
BLOCKS = (1, 2, 4, 8, 16, 32, 64)
SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)


@dataclass(frozen=True, slots=True)
class CopyRate:
    """One measured kind of copy: bytes take alpha_s + bytes / rate seconds.

    gpu: the sender (for fan-in, the receiver). peers: the others. blocks: thread blocks per peer, 0 for a
    copy engine. rate: bytes/s, of all peers together. worst: largest deviation of the line from a median, as
    a share of it. samples: (bytes per peer, seconds of each repetition).
    """

    kind: str
    gpu: int
    peers: tuple[int, ...]
    blocks: int
    alpha_s: float
    rate: float
    worst: float
    samples: tuple[tuple[int, tuple[float, ...]], ...]

    def to_dict(self) -> dict[str, Any]:
        """Keys carry their units."""
        samples = [{"size_bytes": size, "times_s": list(times)} for size, times in self.samples]
        return keyed(self, "@CopyRate", worst_error_percent=100 * self.worst, samples=samples)


def measure_copies(
    gpus: Sequence[int] | None = None, *, blocks: Sequence[int] = BLOCKS, sizes: Sequence[int] = SIZES, repeats: int = 8
) -> list[CopyRate]:
    """Every kind of copy between every ordered pair of GPUs with peer access, and every fan-out and fan-in.

    sizes: bytes. Fans need three GPUs. Raises `MissingError` where there are fewer than two GPUs with peer
    access.
    """
    bench = _Bench(gpus, max(sizes))
    rates: list[CopyRate] = []
    for kind in COPIES:
        for gpu in bench.gpus:
            peers = bench.reachable(gpu)
            fan = kind.startswith("fan")
            groups = [tuple(peers)] if fan and len(peers) > 1 else [] if fan else [(peer,) for peer in peers]
            for group in groups:
                for count in (0,) if kind == "copy engine" else blocks:
                    if fan and count * len(group) > 128:
                        continue
                    samples = [(size, tuple(bench.time(kind, gpu, group, count, size, repeats))) for size in sizes]
                    alpha, beta, worst = fit_line([(size * len(group), median(times)) for size, times in samples])
                    rates.append(CopyRate(kind, gpu, group, count, alpha, 1 / beta, worst, tuple(samples)))
    return rates


class _Bench:
    """Buffers on every GPU: two vectors to send, and one to receive into for every other GPU."""

    def __init__(self, gpus: Sequence[int] | None, most: int) -> None:
        self.cupy = cupy = require_cupy()
        present = cupy.cuda.runtime.getDeviceCount()
        self.gpus = list(range(present)) if gpus is None else list(gpus)
        if len(self.gpus) < 2:
            cure = "a schedule can still run with executor=numpy"
            raise MissingError(f"pairs need two GPUs, and this machine has {present}; {cure}")
        self.streams, self.buffers = {}, {}
        source = kernel_source(ELEMENT_TYPES["float32"], "sum")
        self.kernels = {gpu: load_kernel(gpu, source, "run_stream") for gpu in self.gpus}
        for gpu in self.gpus:
            with cupy.cuda.Device(gpu):
                self.streams[gpu] = cupy.cuda.Stream(non_blocking=True)
                self.buffers[gpu] = [cupy.cuda.Memory(most) for _ in range(2 + len(self.gpus))]
            for peer in self.reachable(gpu):
                enable_peer(cupy, gpu, peer)
        if not any(self.reachable(gpu) for gpu in self.gpus):
            raise MissingError("no GPU here can access the memory of another one (see nvidia-smi topo -p2p w)")

    def reachable(self, gpu: int) -> list[int]:
        can = self.cupy.cuda.runtime.deviceCanAccessPeer
        return [peer for peer in self.gpus if peer != gpu and can(gpu, peer) and can(peer, gpu)]

    def time(self, kind: str, gpu: int, peers: tuple[int, ...], blocks: int, size: int, repeats: int) -> list[float]:
        """Seconds of each repetition; `size` bytes go to (or come from) each peer."""
        inbox = {peer: self.buffers[peer][2 + self.gpus.index(gpu)].ptr for peer in self.gpus}
        own = [memory.ptr for memory in self.buffers[gpu]]
        count = size // 4
        launches: list[Callable[[], None]]
        runners = [gpu]
        if kind == "copy engine":
            target, source = self.buffers[peers[0]][2].ptr, own[0]
            copy = self.cupy.cuda.runtime.memcpyPeerAsync
            launches = [partial(copy, target, peers[0], source, gpu, size, self.streams[gpu].ptr)]
        elif kind in ("push", "reduce", "fan-out"):
            sources, targets = own[: 1 + (kind == "reduce")], [inbox[peer] for peer in peers]
            launches = [self._stream(gpu, sources, targets, blocks * len(peers), count)]
        elif kind == "pull":
            launches = [self._stream(gpu, [self.buffers[peers[0]][0].ptr], [own[1]], blocks, count)]
        else:
            runners = list(peers)
            ends = {peer: (self.buffers[peer][0].ptr, own[2 + self.gpus.index(peer)]) for peer in peers}
            launches = [self._stream(peer, [a], [b], blocks, count) for peer, (a, b) in ends.items()]
        streams = [self.streams[runner] for runner in runners]

        def launch() -> None:
            for start in launches:
                start()

        def finish() -> None:
            for stream in streams:
                stream.synchronize()

        return Stopwatch(runners, streams).time(launch, finish, 1, repeats)

    def _stream(self, gpu: int, sources: list[int], targets: list[int], blocks: int, count: int) -> Callable[[], None]:
        with self.cupy.cuda.Device(gpu):
            addresses = self.cupy.asarray(np.array([*sources, *targets], dtype=np.int64))
            self.cupy.cuda.Device(gpu).synchronize()
        arguments = (addresses, np.int64(len(sources)), np.int64(len(targets)), np.int64(count))

        def start() -> None:
            with self.cupy.cuda.Device(gpu), self.streams[gpu]:
                self.kernels[gpu]((blocks,), (THREADS,), arguments)

        return start
