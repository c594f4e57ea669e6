"""NCCL's real time for the algorithm and protocol that it chooses, from measured constants.

A ring of n ranks makes 2(n-1) steps for an allreduce, n-1 for an allgather or a reduce-scatter, and sends
size / n in each. Its time is linear in a start, a time per step and the bytes that a rank sends; the protocol
Simple adds a term in proportion to size / n. A broadcast or reduce is a pipeline whose calls do not wait for
the last rank: with LL it costs one step, with Simple a start of its own, for any number of ranks. The form
was found on 183 times of 2 to 8 H200 (``validate/results``).

An NVLS allreduce has three constants. Every rank owns a share, which channels carry in chunks through three
stages: from the user's buffer into one that all can address, the sum read by its owner and stored at all, and
from there into the user's buffer. A message of r rounds of chunks takes r + 2 rounds, in each of which a
channel takes one chunk per rank in and one out to all. NCCL enlarges chunks with the number of rounds
(2.28.3, enqueue.cc), so the port rate of large messages jumps where the chunk does. The form was found on a
public table of 8 H200 (Azure's AI-benchmarking-guide, 7 sizes) and holds with the same constants for five
further tables of H100 and H200 (validate/recipes/nvls_times.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from blinksim.textio.text_table import count
from blinksim.timing.origin import FitError, Origin
from blinksim.timing.terms import Term, total

LINES = ("ll", "ll128", "simple")
"""The protocols of rings, as constants name them."""
NVLS = "nvls"
_ROOTED = ("broadcast", "reduce")
_STEPS = {"allreduce": 2, "allgather": 1, "reducescatter": 1}
_COUNTED = {"hop": "step", "chunk": "chunk"}
_WORDS = {
    "start": "start", "rooted_start": "start", "byte": "bytes sent", "turn": "turn of the ring",
    "nvls.byte": "bytes through a port",
}  # fmt: skip
# Chunks grow to the first size whose rounds reach the number beside it.
_CHUNKS = ((128 << 10, 64), (64 << 10, 8), (32 << 10, 2))
_LEAST_CHUNK = 16 << 10
# A chunk leaves its last stage two rounds after the first.
_STAGES = 3


@dataclass(frozen=True, slots=True)
class NcclLine:
    """A protocol in a ring: start_s + steps * hop_s + bytes sent / rate.

    Parameters
    ----------
    start_s, hop_s : float
        Seconds of a call, and of each step.
    rate : float
        Bytes/s that a rank sends at most.
    channel : float, optional
        Bytes/s that one channel sends at most; None if it was not measured.
    """

    start_s: float
    hop_s: float
    rate: float
    channel: float | None = None

    def rate_of(self, channels: int) -> float:
        """Bytes/s that a rank sends with so many channels."""
        return self.rate if self.channel is None else min(self.rate, channels * self.channel)


@dataclass(frozen=True, slots=True)
class NvlsLine:
    """Switches that reduce: start_s + (rounds + 2) * (ranks + 1) * (chunk_s + bytes of a chunk in all channels / rate).

    Parameters
    ----------
    start_s : float
        Seconds of a call.
    rate : float
        Bytes/s through a port, each way.
    source : str
        Where the constants come from.
    chunk_s : float
        Seconds of a channel for each chunk that it takes in or out.
    channels : int, optional
        How many carry chunks. None: the time is start_s + bytes through a port / rate.
    gpus : int, optional
        On how many GPUs the constants hold at most; None where those of rings say it.

    Examples
    --------
    >>> line = NvlsLine(9.38e-6, 329.2e9, "a table of 8 H200", 0.388e-6, 16)
    >>> round(line.time(8, 64 << 20) * 1e6), round(line.port_rate(8) / 1e9)
    (331, 310)
    """

    start_s: float
    rate: float
    source: str
    chunk_s: float = 0.0
    channels: int | None = None
    gpus: int | None = None

    def counts(self, ranks: int, size: int) -> Mapping[str, float]:
        """How often each constant counts in the time of an allreduce of `size` bytes."""
        if self.channels is None:
            return {"nvls.start": 1, "nvls.byte": size * (1 + 1 / ranks)}
        chunk = min(chunk_bytes(ranks, size, self.channels), size / (ranks * self.channels))
        passes = (size / (ranks * self.channels * chunk) + _STAGES - 1) * (ranks + 1)
        return {"nvls.start": 1, "nvls.chunk": passes, "nvls.byte": passes * self.channels * chunk}

    def constants(self) -> dict[str, float]:
        """The constants of `counts`: seconds, or seconds per byte."""
        return {"nvls.start": self.start_s, "nvls.chunk": self.chunk_s, "nvls.byte": 1 / self.rate}

    def time(self, ranks: int, size: int) -> float:
        """Seconds of an allreduce of `size` bytes."""
        constants = self.constants()
        return sum(constants[name] * times for name, times in self.counts(ranks, size).items())

    def least(self, ranks: int) -> int:
        """Bytes from which on a message fills a round of the smallest chunks: constants were fitted from there on."""
        return 0 if self.channels is None else ranks * self.channels * _LEAST_CHUNK

    def port_rate(self, ranks: int, size: int = 2**40) -> float:
        """Bytes/s through a port while the chunks of such a message pass: W = busbw (n + 1) / (2 (n - 1))."""
        if self.channels is None:
            return self.rate
        data = self.channels * chunk_bytes(ranks, size, self.channels)
        return data / (self.chunk_s + data / self.rate)


def chunk_bytes(ranks: int, size: int, channels: int) -> int:
    """The chunk that NCCL takes for an allreduce by NVLS within a node.

    >>> [chunk_bytes(8, size, 16) >> 10 for size in (4 << 20, 8 << 20, 64 << 20, 1 << 30)]
    [16, 32, 64, 128]
    """
    for chunk, rounds in _CHUNKS:
        if size >= rounds * ranks * channels * chunk:
            return chunk
    return _LEAST_CHUNK


@dataclass(frozen=True, slots=True)
class NcclRates:
    """What NCCL takes among the GPUs of one node that switches join.

    Parameters
    ----------
    hardware : str
        Name of the GPUs.
    measured : Origin
        Where the constants come from.
    gpus : tuple of int
        The numbers of GPUs that were measured, ascending.
    version : str
        Of NCCL.
    ll, ll128, simple : NcclLine
        Its protocols in rings.
    turn : float
        Bytes/s: a ring with Simple takes size / (ranks * turn) more.
    rooted_start_s : float
        Of broadcast and reduce with Simple, in place of start and hops.
    nvls : NvlsLine, optional
        With switches that reduce.
    error : FitError, optional
        Of the times that the constants of rings were fitted to.
    call_s : float
        From call to call at least: what the host takes to launch one on all GPUs.

    Examples
    --------
    >>> line = NcclLine(8.4e-6, 0.67e-6, 165e9)
    >>> rates = NcclRates("NVIDIA H200", Origin("here"), (2, 8), "2.28", line, line, line, 935e9, 17.1e-6)
    >>> [(term.name, round(1e6 * term.time_s, 1)) for term in rates.terms("allreduce", 8, 2**20, "ll", 24)]
    [('start', 8.4), ('14 steps', 9.4), ('bytes sent', 11.1)]
    """

    hardware: str
    measured: Origin
    gpus: tuple[int, ...]
    version: str
    ll: NcclLine
    ll128: NcclLine
    simple: NcclLine
    turn: float
    rooted_start_s: float
    nvls: NvlsLine | None = None
    error: FitError | None = None
    call_s: float = 0.0

    def line_of(self, algorithm: str, protocol: str, ranks: int, collective: str = "allreduce") -> str | None:
        """The name of the line for what NCCL takes, such as ``ring`` and ``LL128``; None if it was not measured."""
        if algorithm == NVLS and self.nvls is not None:
            known = collective == "allreduce" and 2 < ranks <= (self.nvls.gpus or self.gpus[-1])
            return NVLS if known else None
        if not self.gpus[0] <= ranks <= self.gpus[-1]:
            return None
        return protocol.lower() if algorithm == "ring" else None

    def origin_of(self, line: str) -> str:
        """Where the constants of a line come from, in words."""
        if line == NVLS and self.nvls is not None:
            return self.nvls.source
        return f"{self.measured.words(self.hardware, self.gpus)}, NCCL {self.version}"

    def constants(self, channels: int) -> dict[str, float]:
        """All constants by name, those of rings with so many channels: seconds, or seconds per byte."""
        found = {"simple.turn": 1 / self.turn, "simple.rooted_start": self.rooted_start_s}
        for name in LINES:
            line: NcclLine = getattr(self, name)
            found |= {f"{name}.start": line.start_s, f"{name}.hop": line.hop_s}
            found[f"{name}.byte"] = 1 / line.rate_of(channels)
        return found if self.nvls is None else found | self.nvls.constants()

    def terms(self, collective: str, ranks: int, size: int, line: str, channels: int) -> Iterator[Term]:
        """The addends of the time, each limited by the constant of its name.

        line: what `line_of` says. channels: of the communicator, after NCCL has doubled those that it searched. size:
        bytes, as everywhere the larger of one rank's buffers.
        """
        constants = self.constants(channels)
        spent = 0.0
        for name, times in self.addends(collective, ranks, size, line).items():
            what = name.partition(".")[2]
            words = count(round(times), _COUNTED[what]) if what in _COUNTED else _WORDS.get(name, _WORDS[what])
            spent += constants[name] * times
            yield Term(words, constants[name] * times, name)
        if spent < self.call_s:
            yield Term("waiting for the host", self.call_s - spent, "call")

    def addends(self, collective: str, ranks: int, size: int, line: str) -> Mapping[str, float]:
        """How often each of `constants` counts in the time; with switches that reduce, that of an allreduce."""
        if line == NVLS and self.nvls is not None:
            return self.nvls.counts(ranks, size)
        return addends(collective, ranks, size, line)

    def time(self, collective: str, ranks: int, size: int, line: str, channels: int) -> float:
        """The sum of `terms`, in seconds."""
        return total(self.terms(collective, ranks, size, line, channels))


def addends(collective: str, ranks: int, size: int, line: str) -> Mapping[str, float]:
    """How often each constant (`NcclRates.constants`) counts in the time of a ring.

    >>> addends("allgather", 4, 4000, "simple")
    {'simple.start': 1, 'simple.hop': 3, 'simple.byte': 3000.0, 'simple.turn': 1000.0}
    """
    if collective in _ROOTED:
        start = {"simple.rooted_start": 1} if line == "simple" else {f"{line}.start": 1, f"{line}.hop": 1}
        return {**start, f"{line}.byte": size}
    steps = _STEPS[collective] * (ranks - 1)
    ring = {f"{line}.start": 1, f"{line}.hop": steps, f"{line}.byte": size * steps / ranks}
    return {**ring, "simple.turn": size / ranks} if line == "simple" else ring
