"""Timing on the GPUs as nccl-tests does it: warm-up launches, then timed ones, measured by events on every GPU.

Before the timed launches every stream is kept busy for a while, so that all of them are queued when the first one
starts and the host's launch overhead stays out of the figures; one more launch goes before them. Iteration i lasts from
the end of iteration i - 1 to its own end, averaged over the GPUs (nccl-tests' default). NCCL
(`blinksim.gpu.execution.nccl_calls`) is timed by the same function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypedDict

import numpy as np

from blinksim.gpu.execution.gpu_devices import enable_peer, load_kernel, require_cupy

WARMUP, ITERATIONS = 5, 20
_HOLD = """
extern "C" __global__ void hold(unsigned long long duration) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < duration);
}
"""


class Stopwatch:
    """Times launches on some GPUs' streams."""

    def __init__(self, gpus: Sequence[int], streams: Sequence[Any]) -> None:
        self.cupy = require_cupy()
        self.gpus, self.streams = list(gpus), list(streams)
        self.hold = {gpu: load_kernel(gpu, _HOLD, "hold") for gpu in dict.fromkeys(self.gpus)}

    def _mark(self) -> list[Any]:
        marks = []
        for gpu, stream in zip(self.gpus, self.streams, strict=True):
            with self.cupy.cuda.Device(gpu):
                event = self.cupy.cuda.Event()
                event.record(stream)
                marks.append(event)
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

        launch: queues one run on every stream. finish: waits for all of them and raises if one failed. apart: no GPU
        begins an iteration before all have ended the one before, so that iterations do not overlap where data go one
        way only; the signals between the GPUs are part of the time.
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


class PairRates(TypedDict):
    """Names of the GPUs, bytes of a copy, and matrices by (from, to), None where there is no peer access."""

    gpus: list[str]
    size_bytes: int
    GBps: list[list[float | None]]
    latency_s: list[list[float | None]]


def measure_pairs(gpus: Sequence[int] | None = None, size_bytes: int = 256 << 20, repeats: int = 10) -> PairRates:
    """Copies between every ordered pair of GPUs by their copy engines, one pair at a time.

    Rates come from the median of `repeats` copies of `size_bytes`, latencies from copies of 4 bytes.
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
    for i, src in enumerate(chosen):
        for j, dst in enumerate(chosen):
            if src == dst or not runtime.deviceCanAccessPeer(src, dst):
                continue
            enable_peer(cupy, src, dst)
            for size, table in ((size_bytes, rates), (4, latencies)):
                samples = _copy_times(cupy, buffers, src, dst, size, repeats)
                middle = float(np.median(samples))
                table[i][j] = size / middle / 1e9 if size > 4 else middle
    names = [runtime.getDeviceProperties(gpu)["name"].decode() for gpu in chosen]
    return {"gpus": names, "size_bytes": size_bytes, "GBps": rates, "latency_s": latencies}


def _copy_times(cupy: Any, buffers: dict[int, Any], src: int, dst: int, size: int, repeats: int) -> list[float]:
    with cupy.cuda.Device(src):
        stream = cupy.cuda.Stream(non_blocking=True)
        marks = [cupy.cuda.Event() for _ in range(repeats + 2)]
        for mark in marks:
            # Several small copies in a row: a single one is close to the resolution of events.
            for _ in range(1 if size > 4 else 20):
                cupy.cuda.runtime.memcpyPeerAsync(buffers[dst].ptr, dst, buffers[src].ptr, src, size, stream.ptr)
            mark.record(stream)
        stream.synchronize()
        each = 1e-3 / (1 if size > 4 else 20)
        return [cupy.cuda.get_elapsed_time(a, b) * each for a, b in pairwise(marks[1:])]
