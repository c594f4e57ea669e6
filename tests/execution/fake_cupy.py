"""As much of CuPy as the GPU executor uses, on NumPy arrays and threads; kernels.cu is built for the CPU.

Every launch is a thread of its own, as on GPUs, so the flags between "GPUs" are really exercised. Timing is the host's.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from blinksim.gpu.execution import gpu_devices

os.environ.setdefault("BLINKSIM_CACHE", tempfile.mkdtemp(prefix="blinksim-kernels-"))
HOST = Path(__file__).with_name("kernel_host.cpp")
COMPILER = shutil.which("g++") or shutil.which("c++")


def build(source: str, folder: Path) -> ctypes.CDLL:
    """The kernel source as a shared library for the CPU, built once per source."""
    path = folder / f"kernel-{abs(hash(source))}.so"
    if not path.exists():
        kernel = path.with_suffix(".cu")
        kernel.write_text(source)
        options = ["-std=c++17", "-Og", "-fPIC", "-shared", "-pthread", "-w", f'-DKERNELS="{kernel}"']
        subprocess.run([str(COMPILER), *options, "-o", str(path), str(HOST)], check=True)
    return ctypes.CDLL(str(path))


class CUDARuntimeError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"error {status}")
        self.status = status


class Array(np.ndarray):
    """NumPy's array with CuPy's way to ask for the address."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


class Memory:
    """Memory on a 256-byte boundary."""

    def __init__(self, size: int) -> None:
        if size > Device.free:
            raise CUDARuntimeError(2)
        self.raw = np.zeros(size + 256, dtype=np.uint8)
        self.ptr = self.raw.ctypes.data + -self.raw.ctypes.data % 256


class Current(threading.local):
    """The devices that a thread has made current, the last one first asked."""

    def __init__(self) -> None:
        self.numbers = [0]


class Device:
    chosen: ClassVar[Current] = Current()
    blocks: ClassVar[int] = 6
    compute_capability: ClassVar[str] = "90"
    free: ClassVar[int] = 1 << 40

    def __init__(self, number: int | None = None) -> None:
        self.number = self.id = Device.now() if number is None else number
        self.mem_info = (self.free, 1 << 40)
        self.attributes = {"MultiProcessorCount": self.blocks, "ClockRate": 1_000_000}

    @staticmethod
    def now() -> int:
        """The current one."""
        return Device.chosen.numbers[-1]

    def __enter__(self) -> Device:
        Device.chosen.numbers.append(self.number)
        return self

    def __exit__(self, *_: object) -> None:
        Device.chosen.numbers.pop()

    @staticmethod
    def synchronize() -> None:
        """Waits for every stream of the current device, whichever thread made it."""
        for stream in [*Stream.made.get(Device.now(), ())]:
            stream.synchronize()


class Stream:
    current: ClassVar[list[Stream]] = []
    made: ClassVar[dict[int, list[Stream]]] = {}

    def __init__(self, non_blocking: bool = False) -> None:
        self.last: threading.Thread | None = None
        self.gpu = Device.now()
        Stream.made.setdefault(self.gpu, []).append(self)

    def __enter__(self) -> Stream:
        Stream.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        Stream.current.pop()

    @property
    def ptr(self) -> Stream:
        return self

    def queue(self, work: Any) -> None:
        before = self.last

        def run() -> None:
            if before is not None:
                before.join()
            work()

        begun = threading.Thread(target=run)
        begun.start()
        self.last = begun  # which another thread may join at once

    def is_capturing(self) -> bool:
        return False

    def record(self) -> Event:
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        self.queue(event.recorded.wait)

    def synchronize(self) -> None:
        if self.last is not None:
            self.last.join()


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.at = 0.0
        self.gpu = Device.now()
        self.recorded = threading.Event()

    @property
    def ptr(self) -> Event:
        return self

    def record(self, stream: Stream) -> None:
        """Anew: those who wait already, wait for what was recorded before."""
        recorded = self.recorded = threading.Event()

        def mark() -> None:
            self.at = time.perf_counter()
            recorded.set()

        stream.queue(mark)


class Function:
    known: ClassVar[dict[int, Function]] = {}

    def __init__(self, code: str, name: str, folder: Path) -> None:
        self.name = name
        self.ptr = id(self)
        Function.known[id(self)] = self
        self.library = build(code, folder) if name.startswith("run_") else None

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: Sequence[Any]) -> None:
        library = self.library
        if library is None:
            Stream.current[-1].queue(lambda: time.sleep(int(arguments[0]) * 1e-9))
            return
        if self.name == "run_stream":
            sources, targets, count = (ctypes.c_int64(int(number)) for number in arguments[1:])
            at = ctypes.c_void_p(arguments[0].ctypes.data)
            Stream.current[-1].queue(lambda: library.stream(grid[0], at, sources, targets, count))
            return
        table, queues, stride, epoch, timeout, error = arguments
        assert (queues, stride) == (table[0], table[9])
        assert grid[0] == max(1, int(table[0]) * int(table[1]))
        assert isinstance(epoch, np.uint64)
        assert isinstance(timeout, np.uint64)
        tables, errors = (ctypes.c_void_p * 1)(table.ctypes.data), (ctypes.c_void_p * 1)(error.ctypes.data)
        Stream.current[-1].queue(
            lambda: library.launch(1, tables, ctypes.c_uint64(int(epoch)), ctypes.c_uint64(int(timeout)), errors)
        )


class Module:
    """Machine code: here the source."""

    folder: ClassVar[Path]

    def load(self, code: bytes) -> None:
        self.code = code.decode()

    def get_function(self, name: str) -> Function:
        return Function(self.code, name, self.folder)


class Compiler:
    """NVRTC, which counts what it compiles."""

    compiled = 0

    @staticmethod
    def getVersion() -> tuple[int, int]:  # noqa: N802 - NVRTC's names
        return 0, 0  # of no real one, as what it compiles is kept under this number

    @staticmethod
    def createProgram(source: str, *rest: object) -> str:  # noqa: N802
        return source

    @classmethod
    def compileProgram(cls, program: str, options: Sequence[str]) -> None:  # noqa: N802
        assert options == ("-std=c++17", f"-arch=sm_{Device.compute_capability}")
        cls.compiled += 1

    @staticmethod
    def getCUBIN(program: str) -> bytes:  # noqa: N802
        return program.encode()

    @staticmethod
    def destroyProgram(program: str) -> None:  # noqa: N802
        pass


def here(*made: Any) -> None:
    """CUDA's rule for the streams and events of a call: those of the current device."""
    if any(isinstance(each, Event | Stream) and each.gpu != Device.now() for each in made):
        raise CUDARuntimeError(400)


def launch_kernel(function: int, grid: int, *rest: Any) -> None:
    """The driver's call: one dimension of blocks and threads, and the addresses of eleven arguments of 8 bytes."""
    *shape, shared, stream, places, extra = rest
    assert shape in ([1, 1, threads, 1, 1] for threads in (gpu_devices.THREADS, gpu_devices.THREADS // 2))
    assert (shared, extra) == (0, 0)
    here(stream)
    library = Function.known[function].library
    assert library is not None
    addresses = (ctypes.c_void_p * 11).from_address(places)
    at, queues, stride, *numbers = (ctypes.c_uint64.from_address(int(address or 0)).value for address in addresses)
    table = (ctypes.c_int64 * 10).from_address(at)
    assert (queues, stride) == (table[0], table[9])
    assert grid == max(1, table[0] * table[1])
    stream.queue(lambda: library.launch_call(ctypes.c_void_p(at), *map(ctypes.c_uint64, numbers)))


@contextmanager
def installed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, gpus: int = 4, blocks: int = Device.blocks
) -> Iterator[ModuleType]:
    """The module as ``cupy``, with `blocks` thread blocks at once on each GPU, and no kernels of another one."""
    fake = module(folder, gpus)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(Device, "blocks", blocks)
    monkeypatch.setenv("BLINKSIM_CACHE", str(folder / "cache"))
    gpu_devices.load_kernel.cache_clear()
    yield fake
    Stream.made.clear()
    gpu_devices.load_kernel.cache_clear()


def module(folder: Path, gpus: int = 4, peers: bool = True) -> ModuleType:
    """A module to put into sys.modules as ``cupy``; `folder` keeps the built kernels."""
    fake = ModuleType("cupy")
    Module.folder = folder
    enabled: set[tuple[int, int]] = set()

    def enable(peer: int) -> None:
        pair = (Device.now(), peer)
        if pair in enabled:
            raise CUDARuntimeError(704)
        enabled.add(pair)

    def array(shape: tuple[int], dtype: str, memptr: Any) -> Any:
        memory, _ = memptr
        offset = memory.ptr - memory.raw.ctypes.data
        return np.ndarray(shape, dtype, buffer=memory.raw, offset=offset).view(Array)

    def copy(target: int, peer: int, source: int, gpu: int, size: int, stream: Stream) -> None:
        assert peer != gpu
        stream.queue(lambda: ctypes.memmove(target, source, size))

    def record(event: Event, stream: Stream) -> None:
        here(event, stream)
        event.record(stream)

    def wait(stream: Stream, event: Event) -> None:
        here(stream)  # for the event of another device, too
        stream.wait_event(event)

    lent: dict[int, Any] = {}

    def malloc(size: int) -> int:
        memory = Memory(size)
        lent[memory.ptr] = memory
        return int(memory.ptr)

    runtime = SimpleNamespace(
        malloc=malloc,
        free=lent.pop,
        memset=ctypes.memset,
        memcpyAsync=lambda target, source, size, kind, stream: ctypes.memmove(target, source, size),
        memcpyDeviceToHost=2,
        # Other processes are other threads here, and see the same addresses.
        ipcGetMemHandle=lambda address: address.to_bytes(8, "little"),
        ipcOpenMemHandle=lambda handle: int.from_bytes(handle, "little"),
        ipcCloseMemHandle=lambda address: None,
        memcpyPeerAsync=copy,
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=lambda: gpus,
        getDevice=Device.now,
        deviceSynchronize=Device.synchronize,
        eventRecord=record,
        streamWaitEvent=wait,
        streamIsCapturing=lambda stream: stream.is_capturing(),
        deviceCanAccessPeer=lambda a, b: int(peers),
        deviceEnablePeerAccess=enable,
        getDeviceProperties=lambda gpu: {"name": b"Fake GPU"},
    )
    contents = {
        "cuda": SimpleNamespace(
            runtime=runtime,
            function=SimpleNamespace(Module=Module),
            nvrtc=Compiler,
            driver=SimpleNamespace(
                funcGetAttribute=lambda attribute, function: 64,
                occupancyMaxActiveBlocksPerMultiprocessor=lambda function, threads, shared: 1,
                launchKernel=launch_kernel,
            ),
            Device=Device,
            Stream=Stream,
            Event=Event,
            Memory=Memory,
            MemoryPointer=lambda memory, offset: (memory, offset),
            get_elapsed_time=lambda a, b: (b.at - a.at) * 1e3,
            get_current_stream=Stream,
            alloc_pinned_memory=lambda size: np.zeros(size, dtype=np.uint8),
            memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        ),
        "ndarray": array,
        "asarray": lambda values: np.array(values).view(Array),
        "asnumpy": np.array,
        "zeros": lambda shape, dtype: np.zeros(shape, dtype).view(Array),
        **{name: getattr(np, name) for name in ("arange", "abs", "float32", "float64", "uint32")},
        "enabled": enabled,
    }
    for name, value in contents.items():
        setattr(fake, name, value)
    return fake
