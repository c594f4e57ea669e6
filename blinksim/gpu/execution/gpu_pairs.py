"""Rates between two GPUs by kind of copy: alpha and beta against the number of thread blocks.

Kinds: the copy engine; a kernel that pushes (stores to the peer), pulls (loads from it), or adds two local
vectors on the way to it (reduce); one GPU pushing the same data to all others at once (fan-out), and all
others pushing to one (fan-in). Each is timed for several sizes, and time = alpha + beta * size is fitted to
the medians (Hockney 1994), with every point weighted by its own time, so that small sizes settle alpha and
large ones beta. Kernels are the loops that schedules run (`run_stream` in kernels.cu); alpha holds the launch
as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from blinksim.errors import MissingError
from blinksim.gpu.execution.gpu_devices import THREADS, Stopwatch, enable_peer, load_kernel, require_cupy
from blinksim.gpu.execution.tables import kernel_source
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.timing.measured_constants import fit_line

COPIES = ("copy engine", "push", "pull", "reduce", "fan-out", "fan-in")
BLOCKS = (1, 2, 4, 8, 16, 32, 64)
SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)


@dataclass(frozen=True, slots=True)
class CopyRate:
    """One measured kind of copy: bytes take alpha_s + bytes / rate seconds.

    gpu: the sender (for fan-in, the receiver). peers: the others. blocks: thread blocks per peer, 0 for a copy engine.
    rate: bytes/s, of all peers together. worst: largest deviation of the line from a median, as a share of it.
    samples: (bytes per peer, seconds of each repetition).
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
        return {
            "way": self.kind,
            "gpu": self.gpu,
            "peers": list(self.peers),
            "blocks": self.blocks,
            "alpha_s": self.alpha_s,
            "GBps": self.rate / 1e9,
            "worst_error_percent": 100 * self.worst,
            "samples": [{"size_bytes": size, "times_s": list(times)} for size, times in self.samples],
        }


def measure_copies(
    gpus: Sequence[int] | None = None,
    *,
    kinds: Sequence[str] = COPIES,
    blocks: Sequence[int] = BLOCKS,
    sizes: Sequence[int] = SIZES,
    repeats: int = 8,
) -> list[CopyRate]:
    """Every kind of copy between every ordered pair of GPUs with peer access, and every fan-out and fan-in.

    sizes: bytes. Fans need three GPUs. Raises `MissingError` where there are fewer than two GPUs with peer access.
    """
    bench = _Bench(gpus, max(sizes))
    rates: list[CopyRate] = []
    for kind in kinds:
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
        runtime = cupy.cuda.runtime
        present = runtime.getDeviceCount()
        self.gpus = list(range(present)) if gpus is None else list(gpus)
        if len(self.gpus) < 2:
            raise MissingError(
                f"pairs need two GPUs, and this machine has {present}; a schedule can still run with executor=numpy"
            )
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
        elif kind == "push":
            launches = [self._stream(gpu, own[:1], [inbox[peers[0]]], blocks, count)]
        elif kind == "reduce":
            launches = [self._stream(gpu, own[:2], [inbox[peers[0]]], blocks, count)]
        elif kind == "pull":
            launches = [self._stream(gpu, [self.buffers[peers[0]][0].ptr], [own[1]], blocks, count)]
        elif kind == "fan-out":
            launches = [self._stream(gpu, own[:1], [inbox[peer] for peer in peers], blocks * len(peers), count)]
        else:
            runners = list(peers)
            launches = [
                self._stream(peer, [self.buffers[peer][0].ptr], [own[2 + self.gpus.index(peer)]], blocks, count)
                for peer in peers
            ]
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
