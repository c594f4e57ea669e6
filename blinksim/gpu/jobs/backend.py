"""Backends that move the data of a group: one on GPUs, and one without, by shared memory and NumPy.

Without GPUs the segments are files in shared memory, and NumPy interprets the programs. It relies on one
process seeing another's stores in order: guaranteed on x86, and elsewhere by the work that the interpreter
does between two stores.

On GPUs it is one process each, peer memory mapped by CUDA IPC, launches on a stream. The table of a rank for
calls.cu is that of `blinksim.gpu.programs.tables`, with a tail behind its queues. Addresses that only a
launch knows are marked: those in the caller's input and output, and those of flags, which have two halves.
The tail has the bytes of half the flags, a bit for every rank that sends to this one, the address of the
alarm (a word in host memory that says that a launch has failed), what is written to the output (parts, bytes
of each, bytes from one to the next), the rounds, the bytes from one to the next, the number of gates and the
addresses of every rank's notes. In a launch of several rounds the gates follow: the words here in which the
blocks of all queues of all ranks announce a round, and for each queue the words in which it does. Both are
those of slice 0.
"""

from __future__ import annotations

import base64
import ctypes
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from itertools import product, starmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.errors import InfeasibleError, InputError, MissingError
from blinksim.gpu.execution.gpu_devices import THREADS, keeps_lines_whole, load_kernel, machine_code, require_cupy
from blinksim.gpu.execution.numpy_executor import move
from blinksim.gpu.jobs.job_plan import FIRST_HERALD, GAVE_UP, MISMATCH, NOTES_BYTES, TOLD_SO, Launch
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES, POISON_BYTE, Array, ElementType
from blinksim.gpu.programs.of_calls import BLOCKS, Segment
from blinksim.gpu.programs.program import INBOX, INPUT, OUTPUT, READY, SCRATCH, Longs, Program, receivers
from blinksim.gpu.programs.tables import CACHE_WORDS, HEAD_WORDS, STRIDE, kernel_source, pack
from blinksim.textio import text_files
from blinksim.units import format_size_about

Words = npt.NDArray[np.uint64]


# Thread blocks that a launch pretends to have: enough for slices to matter.
_BLOCKS = 8
_SHARED = Path("/dev/shm")
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class _GaveUpError(Exception):
    """A wait took too long, or another rank has failed."""


class SharedMemoryBackend:
    """This process's rank: it allocates and shares its segment, and runs launches over the segments of all.

    name: for people. packets: True if the links of this rank keep packets whole. blocks: most blocks of a
    launch. capturing: True while launches go into a CUDA graph. `launch` takes one-dimensional arrays and
    returns when the call is done.

    folder: where the segments are; default, the computer's shared memory.
    """

    name, packets, blocks, capturing = "CPU", True, _BLOCKS, False

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder) if folder else _SHARED if _SHARED.is_dir() else Path(tempfile.gettempdir())
        self.path = Path()
        self.maps: list[_Bytes] = []
        self.epoch, self.before = 0, 0

    def allocate(self, segment: Segment) -> str:
        """Allocates this rank's segment, as of a new group; returns what another process needs to map it.

        Raises `MissingError` if there is not enough memory.
        """
        self.segment = segment
        number, name = tempfile.mkstemp(prefix="blinksim-", dir=self.folder)
        self.path = Path(name)
        try:
            os.posix_fallocate(number, 0, segment.lent)
        except OSError as error:
            self.path.unlink()
            room = f"no room for the {format_size_about(segment.lent)} of a group ({error.strerror})"
            raise MissingError(f"{self.folder} has {room}; take a smaller buffer") from None
        finally:
            os.close(number)
        self.own = np.asarray(np.memmap(name, dtype=np.uint8, mode="r+"))
        self.scratch = np.full(segment.scratch, POISON_BYTE, dtype=np.uint8)
        return name

    def connect(self, rank: int, handles: Sequence[str]) -> None:
        """Maps the segments of all other ranks; handles come from their `allocate`. Raises `MissingError`."""
        self.rank = rank
        for other, name in enumerate(handles):
            if other == rank:
                self.maps.append(self.own)
                continue
            try:
                self.maps.append(np.asarray(np.memmap(name, dtype=np.uint8, mode="r+")))
            except OSError as error:
                raise MissingError(f"rank {rank} cannot map the memory of rank {other}: {error}") from None

    def settle(self) -> None:
        """Called when all ranks have connected: names that only `connect` needs can go."""
        self.path.unlink()  # a process that is killed leaves nothing behind

    def notes(self) -> Words:
        """A copy of this rank's notes, also while a launch runs."""
        return self._notes(self.rank).copy()

    def alarmed(self) -> bool:
        """True once a call has failed here; asked before every call, so it must be quick."""
        return bool(self._notes(self.rank)[0])

    def finish(self) -> None:
        """Waits until everything launched has ended."""

    def disconnect(self) -> None:
        """Lets go of the segments of others."""
        self.maps = []

    def free(self) -> None:
        """Frees this rank's own segment; the memory goes with the last process that maps it."""

    def _notes(self, rank: int) -> Words:
        return self.maps[rank][:NOTES_BYTES].view(np.uint64)

    def load(self, launch: Launch, op: str) -> None:
        """Has all that a launch needs ready, which may take until other launches have ended."""

    def launch(self, launch: Launch, op: str, source: Array, target: Array, timeout_s: float) -> None:
        """Runs a launch. source, target: the caller's vectors, as this backend addresses memory."""
        try:
            # Every round is begun as launches are on GPUs.
            for number in range(launch.rounds):
                epoch, begin = self.epoch + 1, launch.at + number * launch.step
                # Announces the launch, and waits until all others have begun the one before.
                if self.alarmed():
                    raise _GaveUpError
                for other in range(len(self.maps)):
                    self._notes(other)[_herald(self.rank, epoch)] = epoch << 32 | launch.signature
                for other in range(len(self.maps)) if epoch > 1 else ():
                    if other != self.rank:
                        self._has_begun(other, epoch - 1, self.before, timeout_s)
                vectors = source.view(np.uint8)[begin:], target.view(np.uint8)[begin:]
                self._interpret(launch.program, op, vectors, epoch, _Patience(self, timeout_s))
                # Were those that sent data in the same call? They have announced it before.
                for other, targets in enumerate(receivers(launch.program)):
                    if self.rank in targets:
                        self._has_begun(other, epoch, launch.signature, timeout_s)
                self.epoch, self.before = epoch, launch.signature
        except _GaveUpError:
            # Spoils the output and tells the others.
            parts, length, stride = launch.written
            out = target.view(np.uint8)
            for part in range(parts):
                at = launch.at + part * stride
                out[at : at + length] = POISON_BYTE
            for other in range(len(self.maps)):
                notes = self._notes(other)
                if not notes[0]:
                    notes[1] = self.rank
                    notes[0] = TOLD_SO

    def _interpret(
        self, program: Program, how: str, vectors: tuple[_Bytes, _Bytes], epoch: int, patience: _Patience
    ) -> None:
        """Runs a rank's queues over the segments of all, as the kernel does: a block for a queue and slice.

        vectors: what the program calls INPUT and OUTPUT, from where this round begins.
        """
        segment, half, storage = self.segment, epoch % 2, program.kind.storage
        inbox, nbytes = segment.inbox(program.packets)
        first_flag, first = segment.flags_at + half * segment.flags, inbox + half * nbytes
        flags = [lent[first_flag : first_flag + segment.flags].view(np.uint64) for lent in self.maps]
        # Of the others their inboxes are mapped.
        memory = [{INBOX: lent[first : first + nbytes].view(storage)} for lent in self.maps]
        own = {INPUT: vectors[0], OUTPUT: vectors[1], SCRATCH: self.scratch}
        memory[self.rank] |= {buffer: array.view(storage) for buffer, array in own.items()}

        def block(queue: int, part: int) -> Generator[bool]:
            """Yields True after a piece, and False when it has to wait."""
            for op, piece in program.op_pieces(queue, part):
                value = (epoch << 32) + piece + 1
                for (flag,) in program.rows("waits", op):
                    while int(flags[self.rank][flag * program.slices + part]) < value:
                        yield False
                move(program, how, op, piece, part, memory)
                for target, flag in program.rows("signals", op):
                    flags[target][flag * program.slices + part] = value
                yield True

        blocks = [*starmap(block, product(program.queues_of(self.rank).tolist(), range(program.slices)))]
        while blocks:
            going = [(block, next(block, None)) for block in blocks]
            blocks = [block for block, state in going if state is not None]
            if blocks and not any(state for _, state in going):
                patience.wait()
            else:
                patience.tries = 0

    def _has_begun(self, other: int, epoch: int, signature: int, timeout_s: float) -> None:
        notes = self._notes(self.rank)
        patience = _Patience(self, timeout_s)
        while (seen := int(notes[_herald(other, epoch)])) >> 32 < epoch:
            patience.wait()
        if seen >> 32 == epoch and seen & 0xFFFFFFFF != signature and not notes[0]:
            notes[1:4] = other, seen, epoch << 32 | signature
            notes[0] = MISMATCH
        if notes[0]:
            raise _GaveUpError


class _Patience:
    """How long a rank has been waiting."""

    def __init__(self, backend: SharedMemoryBackend, timeout_s: float) -> None:
        self.backend, self.end = backend, time.monotonic() + timeout_s
        self.tries = 0

    def wait(self) -> None:
        """Lets others work for a moment; raises `_GaveUpError` in the end."""
        if self.backend.alarmed():
            raise _GaveUpError
        if time.monotonic() > self.end:
            self.backend.own[:8].view(np.uint64)[0] = GAVE_UP
            raise _GaveUpError
        self.tries += 1
        time.sleep(0 if self.tries < 100 else 5e-5)


def _herald(rank: int, epoch: int) -> int:
    return FIRST_HERALD + 2 * rank + epoch % 2


IN_INPUT, IN_OUTPUT, IN_FLAGS = 1 << 61, 1 << 60, 1 << 59
# Words of the counters: launches done, blocks that have left, what the last launch was, rounds done.
STATE_WORDS = 4
_INBOX_BYTES = 8


def call_table(launch: Launch, rank: int, segments: Sequence[int], own: tuple[int, int], segment: Segment) -> Longs:
    """The table of a rank.

    segments: where this rank sees every rank's segment. own: addresses of its scratch memory and its alarm.
    Raises `InfeasibleError` if a queue is too long for the kernel.
    """
    program = launch.program
    inbox, half = segment.inbox(program.packets)
    scratch, alarm = own
    buffers = [[IN_INPUT, IN_OUTPUT, scratch, at + inbox] for at in segments]
    flags = [IN_FLAGS + at + segment.flags_at for at in segments]
    table = pack(program, buffers, flags, [0] * len(segments))[rank]
    if table[STRIDE] > CACHE_WORDS:
        raise InfeasibleError(f"{launch.says}: a queue has {table[STRIDE]} words, and the kernel holds {CACHE_WORDS}")
    table[_INBOX_BYTES] = half
    end = HEAD_WORDS + int(table[0] * table[STRIDE])
    senders = sum(1 << device for device, targets in enumerate(receivers(program)) if rank in targets)
    gates, posts = list[int](), list[int]()
    if launch.rounds > 1:
        # The words for slice 0 in which all queues announce rounds to this rank, and its queues to all.
        queues, each = program.queue_counts, 8 * program.slices
        at = [start + segment.rounds_at for start in segments]
        gates = [at[rank] + (max(queues) * d + queue) * each for d, of in enumerate(queues) for queue in range(of)]
        posts = [start + (max(queues) * rank + queue) * each for queue in range(queues[rank]) for start in at]
    about = [segment.flags, senders, alarm, *launch.written, launch.rounds, launch.step, len(gates)]
    return np.concatenate([table[:end], np.array([*about, *segments, *gates, *posts], dtype=np.int64)])


def call_source(kind: ElementType, op: str, packets: bool) -> str:
    """The kernel ``run_call`` for an element type and a reduction."""
    calls = text_files.read_text(Path(__file__).with_name("calls.cu"))
    return f"#define BLINKSIM_CALLS\n{kernel_source(kind, op, packets)}{calls}"


# What training reduces and moves: gradients, the bytes of DDP's first look at a model, counts.
_COMMON = ("float32", "bfloat16", "float16", "int64", "int32", "uint8")


def compile_ahead() -> int:
    """Compiles the kernels of usual calls for the first GPU, on all cores; returns how many there are.

    They are then where `machine_code` looks for them. To compile one takes seconds.
    """
    capability = str(require_cupy().cuda.Device(0).compute_capability)
    sources = [call_source(ELEMENT_TYPES[name], "sum", packets) for name in _COMMON for packets in (False, True)]
    with ThreadPoolExecutor() as threads:
        return len([*threads.map(partial(machine_code, capability=capability), sources)])


# Tables kept on the GPU, each some KiB.
_MOST_TABLES = 1024
# The address of CUDA's default stream, which is never destroyed.
_DEFAULT = 0


def _there(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `GpuBackend`, with its GPU as the current one: streams, events and kernels belong to a GPU."""

    @wraps(method)
    def guarded(self: GpuBackend, *given: Any) -> Any:
        if self.runtime.getDevice() == self.gpu:
            return method(self, *given)
        with self.cupy.cuda.Device(self.gpu):
            return method(self, *given)

    return guarded


class GpuBackend:
    """The GPU of this process, which need not be the current one of CUDA; methods are as those on the CPU.

    gpu: its number in CUDA. stream: the address of a stream for launches, or 0 for a new one; they are queued
    there, or as `go_on` says, and run one after another. `launch` takes addresses in the GPU's memory.
    blocks: of a launch, at most; by default one for each processor, up to `BLOCKS`, which leaves room for
    another group's. Raises `MissingError` without CuPy or a GPU.
    """

    def __init__(self, gpu: int, stream: int = 0, blocks: int | None = None) -> None:
        self.cupy, self.gpu = require_cupy(), gpu
        self.name = f"GPU {gpu}"
        runtime = self.cupy.cuda.runtime
        if not 0 <= gpu < runtime.getDeviceCount():
            raise MissingError(f"there is no GPU {gpu}: this process sees {runtime.getDeviceCount()}, numbered from 0")
        self.packets = keeps_lines_whole(self.cupy, range(runtime.getDeviceCount()))
        with self.cupy.cuda.Device(gpu) as device:
            processors = int(device.attributes["MultiProcessorCount"])
            self.blocks = min(BLOCKS, processors) if blocks is None else min(blocks, 2 * processors)
            streams = self.cupy.cuda
            self.stream = streams.ExternalStream(stream) if stream else streams.Stream(non_blocking=True)
            self.watch = streams.Stream(non_blocking=True)
            self.before, self.done = (streams.Event(block=False, disable_timing=True) for _ in range(2))
        # Where launches are queued now, and whether the last one went into a graph.
        self.own_stream = self.at = self.stream.ptr
        self.in_graph = False
        self.runtime, self.spare = runtime, list[Any]()
        self.segments: list[int] = []
        self.lent = 0
        self.tables: OrderedDict[int, _Prepared] = OrderedDict()
        self.captured: dict[int, _Prepared] = {}

    @_there
    def allocate(self, segment: Segment) -> str:
        runtime, self.segment = self.runtime, segment
        try:
            self.lent = runtime.malloc(segment.lent)
            self.scratch = self.cupy.cuda.Memory(segment.scratch)
        except (runtime.CUDARuntimeError, self.cupy.cuda.memory.OutOfMemoryError):
            room = f"no memory left for the {format_size_about(segment.total)} of a group"
            raise MissingError(f"GPU {self.gpu} has {room}; take a smaller buffer") from None
        runtime.memset(self.lent, 0, segment.packets_at)
        runtime.memset(self.lent + segment.packets_at, POISON_BYTE, segment.lent - segment.packets_at)
        self.state = self.cupy.zeros(STATE_WORDS, dtype=np.uint64)
        # In this computer's memory, so that to look at it needs no call of CUDA.
        self.alarm = np.frombuffer(self.cupy.cuda.alloc_pinned_memory(8), dtype=np.uint64, count=1)
        self.alarm[0] = 0
        self.own = self.scratch.ptr, self.alarm.ctypes.data
        runtime.deviceSynchronize()
        return base64.b64encode(runtime.ipcGetMemHandle(self.lent)).decode()

    @_there
    def connect(self, rank: int, handles: Sequence[str]) -> None:
        runtime, self.rank = self.runtime, rank
        self.who = rank, len(handles)
        for other, handle in enumerate(handles):
            if other == rank:
                self.segments.append(self.lent)
                continue
            try:
                self.segments.append(runtime.ipcOpenMemHandle(base64.b64decode(handle)))
            except runtime.CUDARuntimeError as error:
                why = f"rank {rank} (GPU {self.gpu}) cannot map the memory of rank {other}: {error}"
                need = "one host, GPUs with peer access and a GPU of its own each"
                raise MissingError(f"{why}; the processes need {need}") from None

    def settle(self) -> None:
        """Nothing on GPUs is named."""

    @_there
    def load(self, launch: Launch, op: str) -> None:
        if len(self.tables) >= _MOST_TABLES:
            self.finish()  # its memory may be in use
            self.tables.popitem(last=False)
        words = call_table(launch, self.rank, self.segments, self.own, self.segment)
        kernel = load_kernel(self.gpu, call_source(launch.program.kind, op, launch.program.packets), "run_call")
        self.tables[id(launch)] = _Prepared(self, launch, words, kernel)

    @_there
    def launch(self, launch: Launch, op: str, source: int, target: int, timeout_s: float) -> None:
        at = self.at
        given = source + launch.at, target + launch.at, int(timeout_s * 1e9)
        # A launch's table on the GPU, and the kernel that runs it; both are made once.
        key, capturing = id(launch), self._captured(self.at)
        self.in_graph = capturing
        if key not in self.tables:
            if capturing:
                raise InputError(f"run {launch.says} once before you capture it in a CUDA graph")
            self.load(launch, op)
        entry = self.tables[key]
        self.tables.move_to_end(key)
        if capturing:
            # A graph may be replayed at any time.
            self.captured[key] = entry
        entry.launch(*given, at)
        if at not in (self.own_stream, _DEFAULT):
            self.runtime.eventRecord(self.done.ptr, at)

    @_there
    def follow(self, stream: int) -> None:
        """Lets what is launched from now on wait for what another stream, given by its address, has queued by now."""
        # An event that is recorded anew holds back only those who wait for it from now on.
        self.runtime.eventRecord(self.before.ptr, stream)
        self.runtime.streamWaitEvent(self.own_stream, self.before.ptr)
        if self.at == stream:
            self.at = self.own_stream  # which has just been told to wait for all that is there
        else:
            self.go_on(self.own_stream)

    @_there
    def go_on(self, stream: int) -> None:
        """Queues what is launched from now on on a stream, given by its address, behind what was launched before.

        Streams cost events, a microsecond of every short call. What is in a graph runs when the graph does:
        its caller sees to the order.
        """
        if stream == self.at:
            return
        runtime, last = self.runtime, self.at
        captured = self._captured(stream)
        if captured == self.in_graph and (not captured or self._captured(last)):
            # Other streams may be gone by now: they were marked behind each launch.
            if last in (self.own_stream, _DEFAULT):
                runtime.eventRecord(self.done.ptr, last)
            runtime.streamWaitEvent(stream, self.done.ptr)
        self.at = stream

    @property
    def capturing(self) -> bool:
        return self._captured(self.at)

    def _captured(self, stream: int) -> bool:
        return bool(self.runtime.streamIsCapturing(stream))

    @_there
    def mark(self, stream: int | None = None) -> Any:
        """An event that stands for the end of everything queued on a stream so far; default, that of launches."""
        event = self.spare.pop() if self.spare else self.cupy.cuda.Event(block=False, disable_timing=True)
        self.runtime.eventRecord(event.ptr, self.own_stream if stream is None else stream)
        return event

    def take_back(self, event: Any) -> None:
        """An event of `mark` that nobody asks any more; to make one costs more than to mark anew."""
        self.spare.append(event)

    @_there
    def precede(self, event: Any, stream: int) -> None:
        """Lets another stream, given by its address, wait for an event of `mark`."""
        self.runtime.streamWaitEvent(stream, event.ptr)

    @_there
    def notes(self) -> Words:
        runtime, notes = self.runtime, np.empty(NOTES_BYTES // 8, dtype=np.uint64)
        runtime.memcpyAsync(notes.ctypes.data, self.lent, NOTES_BYTES, runtime.memcpyDeviceToHost, self.watch.ptr)
        self.watch.synchronize()
        return notes

    def alarmed(self) -> bool:
        return bool(self.alarm[0])

    @_there
    def finish(self) -> None:
        self.runtime.deviceSynchronize()  # launches may be on several streams

    @_there
    def disconnect(self) -> None:
        for at in self.segments:
            if at != self.lent:
                self.runtime.ipcCloseMemHandle(at)
        self.segments = []
        self.tables.clear()
        self.captured.clear()

    @_there
    def free(self) -> None:
        self.runtime.free(self.lent)


Backend = SharedMemoryBackend | GpuBackend

# Places of what a launch is given anew, among the arguments of run_call.
_INPUT, _OUTPUT, _TIMEOUT = 7, 8, 10


def threads_of(program: Program, grid: int, blocks: int) -> int:
    """The threads of each block of a launch of `grid` blocks, of which there may be `blocks`."""
    # The rate of a wire is that of a whole block.
    few = (2 if program.packets else 4) * grid <= blocks
    return THREADS if program.order == READY or few else THREADS // 2


class _Prepared:
    """What a launch needs: its table on the GPU, and the arguments of the kernel in this computer's memory.

    CuPy would check and convert eleven arguments anew each time, so the driver's own call is used.
    """

    def __init__(self, backend: GpuBackend, launch: Launch, words: Longs, kernel: Any) -> None:
        cupy = backend.cupy
        self.what, self.kernel, self.launcher = launch, kernel, cupy.cuda.driver.launchKernel
        self.words = cupy.asarray(words)
        cupy.cuda.get_current_stream().synchronize()  # it is read on another stream
        own = backend.state.data.ptr, backend.lent
        given = (self.words.data.ptr, words[0], words[STRIDE], *backend.who, *own, 0, 0, launch.signature, 0)
        self.arguments = (ctypes.c_uint64 * len(given))(*map(int, given))
        first = ctypes.addressof(self.arguments)
        self.places = (ctypes.c_void_p * len(given))(*range(first, first + 8 * len(given), 8))
        self.at, self.function = ctypes.addressof(self.places), kernel.ptr
        self.grid = max(1, int(words[0] * words[1]))
        self.threads = threads_of(launch.program, self.grid, backend.blocks)

    def launch(self, source: int, target: int, timeout_ns: int, stream: int) -> None:
        """Queues the kernel on a stream, on the current GPU; the driver copies the arguments before it returns."""
        arguments = self.arguments
        arguments[_INPUT], arguments[_OUTPUT], arguments[_TIMEOUT] = source, target, timeout_ns
        self.launcher(self.function, self.grid, 1, 1, self.threads, 1, 1, 0, stream, self.at, 0)
