"""NCCL's real time for the algorithm and protocol that it takes, from constants that were measured.

A ring of n ranks makes 2(n-1) steps for an allreduce, n-1 for an allgather or a reduce-scatter, and sends size / n in
each. Its time is linear in a start, a time per step, and the bytes that a rank sends; with the protocol Simple a turn
comes on top, in proportion to size / n. A broadcast or reduce is a pipeline, and successive ones follow each other
without waiting for the last rank: with LL it takes one step, with Simple a start of its own, whatever the ranks. The
form was found on 183 times of 2 to 8 H200 (``validate/results``). Switches that reduce (NVLS) read every rank's data
once, and a rank gets the sums of its share and, by multicast, those of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from blinksim.cost.origin import FitError, Origin
from blinksim.cost.terms import Term, total
from blinksim.textio.text_table import count

LINES = ("ll", "ll128", "simple")
"""The protocols of rings, as constants name them."""
NVLS = "nvls"
_ROOTED = ("broadcast", "reduce")
_STEPS = {"allreduce": 2, "allgather": 1, "reducescatter": 1}
_WORDS = {"start": "start", "rooted_start": "start", "byte": "bytes sent", "turn": "turn of the ring"}


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
    """Switches that reduce: start_s + bytes through a GPU's port / rate.

    Parameters
    ----------
    start_s : float
        Seconds of a call.
    rate : float
        Bytes/s through a port, each way.
    source : str
        Where the two come from.
    """

    start_s: float
    rate: float
    source: str


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

    def line_of(self, algorithm: str, protocol: str, ranks: int) -> str | None:
        """The name of the line for what NCCL takes, such as ``ring`` and ``LL128``; None if it was not measured."""
        if not self.gpus[0] <= ranks <= self.gpus[-1]:
            return None
        if algorithm == NVLS:
            return NVLS if self.nvls is not None else None
        return protocol.lower() if algorithm == "ring" else None

    def origin_of(self, line: str) -> str:
        """Where the constants of a line come from, in words."""
        if line == NVLS and self.nvls is not None:
            return self.nvls.source
        return f"{self.measured.words(self.hardware, self.gpus)}, NCCL {self.version}"

    def constants(self, channels: int) -> dict[str, float]:
        """The constants of `addends` by name, with so many channels: seconds, or seconds per byte."""
        found = {"simple.turn": 1 / self.turn, "simple.rooted_start": self.rooted_start_s}
        for name in LINES:
            line: NcclLine = getattr(self, name)
            found |= {f"{name}.start": line.start_s, f"{name}.hop": line.hop_s}
            found[f"{name}.byte"] = 1 / line.rate_of(channels)
        if self.nvls is not None:
            found |= {"nvls.start": self.nvls.start_s, "nvls.byte": 1 / self.nvls.rate}
        return found

    def terms(self, collective: str, ranks: int, size: int, line: str, channels: int) -> Iterator[Term]:
        """The addends of the time, each limited by the constant of its name.

        line: what `line_of` says. channels: of the communicator, after NCCL has doubled those that it searched. size:
        bytes, as everywhere the larger of one rank's buffers.
        """
        constants = self.constants(channels)
        for name, times in addends(collective, ranks, size, line).items():
            what = name.partition(".")[2]
            words = count(round(times), "step") if what == "hop" else _WORDS[what]
            yield Term(words, constants[name] * times, name)

    def time(self, collective: str, ranks: int, size: int, line: str, channels: int) -> float:
        """The sum of `terms`, in seconds."""
        return total(self.terms(collective, ranks, size, line, channels))


def addends(collective: str, ranks: int, size: int, line: str) -> Mapping[str, float]:
    """How often each constant (`NcclRates.constants`) counts in the time.

    >>> addends("allgather", 4, 4000, "simple")
    {'simple.start': 1, 'simple.hop': 3, 'simple.byte': 3000.0, 'simple.turn': 1000.0}
    """
    if line == NVLS:
        return {"nvls.start": 1, "nvls.byte": size * (1 + 1 / ranks) if collective == "allreduce" else size}
    if collective in _ROOTED:
        start = {"simple.rooted_start": 1} if line == "simple" else {f"{line}.start": 1, f"{line}.hop": 1}
        return {**start, f"{line}.byte": size}
    steps = _STEPS[collective] * (ranks - 1)
    ring = {f"{line}.start": 1, f"{line}.hop": steps, f"{line}.byte": size * steps / ranks}
    return {**ring, "simple.turn": size / ranks} if line == "simple" else ring
