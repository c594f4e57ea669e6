"""Measured constants: of NCCL's algorithms and protocols, and of programs on GPUs behind an NVSwitch.

**NCCL.** A ring of n ranks makes 2(n-1) steps for an allreduce, n-1 for an allgather or a reduce-scatter, and
sends size / n in each. Its time is linear in a start, a time per step and the bytes that a rank sends; the
protocol Simple adds a term in proportion to size / n. A broadcast or reduce is a pipeline whose calls do not
wait for the last rank: with LL it costs one step, with Simple a start of its own, for any number of ranks.
The form was found on 183 times of 2 to 8 H200 (``validate/results``).

An NVLS allreduce has three constants. Every rank owns a share, which channels carry in chunks through three
stages: from the user's buffer into one that all can address, the sum read by its owner and stored at all, and
from there into the user's buffer. A message of r rounds of chunks takes r + 2 rounds, in each of which a
channel takes one chunk per rank in and one out to all. NCCL enlarges chunks with the number of rounds
(2.28.3, enqueue.cc), so the port rate of large messages jumps where the chunk does. The form was found on a
public table of 8 H200 (Azure's AI-benchmarking-guide, 7 sizes) and holds with the same constants for five
further tables of H100 and H200 (validate/recipes/nvls_times.py).

**Programs** (`blinksim.gpu.execution_time`). A machine's file states their constants under ``execution``,
calibrated by measurements; they say nothing about the links that alpha-beta takes into account, and hold for
the GPUs of one node that a switch joins.

**Files.** In machine files and rates files the constants are a section:

execution:
  hardware: NVIDIA H200
  measured: {source: nccl-tests, date: 2026-11-20, driver: 580.159.04}  # band: 35 % for what was derived
  gpus: [2, 4, 8]
  blocks: 132
  launch: 7.6us
  announce: 0.5us
  visit: 0.6us
  ports: {out: 368GB/s, into: 400GB/s, fan: 2.6 %, queue: 50us}
  protocols: {simple: {…}, ll128: {…}}
  error: {median: 2.9 %, p90: 12.5 %, points: 1223}
  job: {launch: 2.9us, visit: 0.13us, step: 1.7us, piece: 1.5us, again: 57 %, stream: 1.1us, host: 17us}    # optional
  nccl:
    version: 2.28.9
    ll: {start: 8.4us, hop: 0.67us, rate: 180GB/s, channel: 6.9GB/s}
    ll128: {start: 17us, hop: 0.73us, rate: 312GB/s}
    simple: {start: 21us, hop: 1.8us, rate: 364GB/s}
    turn: 935GB/s
    rooted_start: 17.1us
    nvls: {start: 9.4us, chunk: 0.388us, rate: 329GB/s, channels: 16, source: a table}      # optional
    call: 30us                                                                # optional
    error: {median: 2.7 %, p90: 8.4 %, points: 183}

Constants of our programs (from `blocks` to `job`), those of NCCL, or both; `nccl` may name an origin of its
own. The keys are the fields of the classes below, without their units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from blinksim.errors import InfeasibleError, InputError
from blinksim.results import Term, count, plain, total
from blinksim.textio.text_files import read_words
from blinksim.textio.yaml_nodes import Entry, rate_text, time_text

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

# The protocols of rings, as constants name them.
LINES = ("ll", "ll128", "simple")
NVLS = "nvls"
_ROOTED = ("broadcast", "reduce")
ROUNDS = {"allreduce": 2, "allgather": 1, "reducescatter": 1}
_COUNTED = {"hop": "step", "chunk": "chunk"}
WORDS = read_words("term")
# What is said of constants where nothing is left over to judge them by.
UNJUDGED = "error not known, as there are no more sizes than constants"
# Chunks grow to the first size whose rounds reach the number beside it.
_CHUNKS = ((128 << 10, 64), (64 << 10, 8), (32 << 10, 2))
_LEAST_CHUNK = 16 << 10
# A chunk leaves its last stage two rounds after the first.
_STAGES = 3


@dataclass(frozen=True, slots=True)
class Origin:
    """Where constants come from.

    Parameters
    ----------
    source : str
        What was run, or what the constants were derived from.
    date, driver : str
        The day of the measurements (2026-11-20), and the driver; empty where they are not known.
    band : float, optional
        How far off constants may be that nobody measured on this hardware, as a share; None for measured
        ones.
    """

    source: str
    date: str = ""
    driver: str = ""
    band: float | None = None

    def words(self, hardware: str, gpus: Sequence[int]) -> str:
        """In one line, for constants of so many GPUs (ascending) of this name.

        >>> Origin("nccl-tests", "2026-11-20").words("NVIDIA H200", (2, 4, 8))
        'measured on 2 to 8 NVIDIA H200, 2026-11-20'
        """
        if self.band is not None:
            return f"not measured on {hardware}: {self.source}; may be off by {100 * self.band:.0f} %"
        count = f"{gpus[0]} to {gpus[-1]}" if len(gpus) > 1 else str(gpus[0])
        return f"measured on {count} {hardware}, {self.date or self.source}"


@dataclass(frozen=True, slots=True)
class FitError:
    """|predicted / measured - 1| of `points` measurements: what half of them and nine in ten stay below.

    NaN where nothing was left over to judge constants by.
    """

    median: float
    p90: float
    points: int

    @classmethod
    def of(cls, predicted: Sequence[float], measured: Sequence[float]) -> FitError:
        """The error of predicted times (any unit) against measured ones; both of one length, at least 1.

        >>> FitError.of([1.0, 2.2, 3.0], [1.0, 2.0, 3.0])
        FitError(median=0.0, p90=0.1, points=3)
        """
        errors = sorted(abs(time / seen - 1) for time, seen in zip(predicted, measured, strict=True))
        # The smallest error that nine in ten do not exceed.
        most = errors[-(-9 * len(errors) // 10) - 1]
        return cls(round(float(errors[(len(errors) - 1) // 2]), 4), round(float(most), 4), len(errors))

    def words(self) -> str:
        """Such as ``half within 2.7 %, nine in ten within 8.3 % of 183 times``."""
        if math.isnan(self.median):
            return UNJUDGED
        median, p90 = plain(100 * self.median, 2), plain(100 * self.p90, 2)
        return f"half within {median} %, nine in ten within {p90} % of {self.points} times"


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """(alpha, beta, worst) of time = alpha + beta * size through (size, time), least squares of relative errors.

    alpha is not less than 0, beta more. worst: largest |line / time - 1|. Raises `InputError` for fewer than
    two sizes.
    """
    if len({size for size, _ in points}) < 2:
        raise InputError("a line needs times of at least two sizes")
    size, time = np.array(points, dtype=np.float64).T
    (alpha, beta), *_ = np.linalg.lstsq(np.stack([1 / time, size / time], axis=1), np.ones(len(time)))
    if alpha < 0 or beta <= 0:
        alpha, beta = 0.0, float((size / time).sum() / ((size / time) ** 2).sum())
    return float(alpha), float(beta), float(np.abs((alpha + beta * size) / time - 1).max())


# --- NCCL -------------------------------------------------------------------------------------------------------------


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
    filled = (chunk for chunk, rounds in _CHUNKS if size >= rounds * ranks * channels * chunk)
    return next(filled, _LEAST_CHUNK)


@dataclass(frozen=True, slots=True)
class NcclRates:
    """NCCL's times among the GPUs of one node that switches join.

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
        return protocol.lower() if algorithm == "ring" and self.gpus[0] <= ranks <= self.gpus[-1] else None

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
            rate = line.rate if line.channel is None else min(line.rate, channels * line.channel)
            found[f"{name}.byte"] = 1 / rate
        return found if self.nvls is None else found | self.nvls.constants()

    def terms(self, collective: str, ranks: int, size: int, line: str, channels: int) -> Iterator[Term]:
        """The addends of the time, each limited by the constant of its name.

        line: what `line_of` says. channels: of the communicator, after NCCL has doubled those that it
        searched. size: bytes, as everywhere the larger of one rank's buffers.
        """
        constants, spent = self.constants(channels), 0.0
        nvls = self.nvls if line == NVLS else None
        counts = addends(collective, ranks, size, line) if nvls is None else nvls.counts(ranks, size)
        for name, times in counts.items():
            what = name.partition(".")[2]
            words = count(round(times), _COUNTED[what]) if what in _COUNTED else WORDS.get(name, WORDS[what])
            spent += constants[name] * times
            yield Term(words, constants[name] * times, name)
        if spent < self.call_s:
            yield Term("waiting for the host", self.call_s - spent, "call")

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
    steps = ROUNDS[collective] * (ranks - 1)
    ring = {f"{line}.start": 1, f"{line}.hop": steps, f"{line}.byte": size * steps / ranks}
    return {**ring, "simple.turn": size / ranks} if line == "simple" else ring


# --- programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PortRates:
    """A GPU's way out to the switch and in from it.

    Parameters
    ----------
    out, into : float
        Bytes/s.
    fan : float
        How much longer a transfer takes the way out, as a share, for every further GPU that the sender stores
        to.
    queue_s : float
        How far a receiver may be behind before it holds up what its sender has for others.
    posted_s : float
        How long the way out may be busy with what blocks have stored before the next one has to wait for its
        turn.
    uneven : float
        By how much, as a share, half of the blocks get more of the way out than an even share, and the others
        less.
    turns_s : float
        After how long it is the other half of the blocks that get more. 0: never.
    first_s, drift : float
        Blocks that begin together store to the same GPU at the same time, and drift apart: a receiver may be
        `first_s` behind when a launch begins, and for every second from then on by this share of it more, up
        to `queue_s`. drift 0: `queue_s` from the start.
    """

    out: float
    into: float
    fan: float
    queue_s: float
    posted_s: float = 0.0
    uneven: float = 0.0
    turns_s: float = 0.0
    first_s: float = 0.0
    drift: float = 0.0


@dataclass(frozen=True, slots=True)
class PacketRates:
    """Packets, which carry their flags (ll128).

    Parameters
    ----------
    piece_s, round_s : float
        Of a block, for the first round of a piece, and for each round.
    local_s, inbox_s : float
        Of a block, for 7680 bytes of a source in its own buffers, and of one in an inbox.
    step_s, own_s : float
        From the arrival of data until what a waiting block makes of it is stored; from the end of an op until
        another block of the same GPU has seen its flag.
    soft : float
        The exponent n of (work^n + port^n)^(1/n), the time of a block that does not wait.
    wire : float
        How many bytes ports carry for a byte of packets.
    far_s : float
        Of a block, for each round once the data lie in memory instead of the cache (`FlagRates.cache_bytes`).
    """

    piece_s: float
    round_s: float
    local_s: float
    inbox_s: float
    step_s: float
    own_s: float
    soft: float
    wire: float = 1.0
    far_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FlagRates:
    """Flags behind the data (simple).

    Parameters
    ----------
    before_s, piece_s, round_s : float
        Of a block, for each piece before and after it looks at its flags, and for each round.
    far_s, cache_bytes : float
        Of a block, for each round once the data lie in memory instead of the cache, and bytes of that cache.
    byte_s : float
        Of a block, for each byte and target.
    fence_s, flag_s, own_s : float
        What a fence takes, and then the way of a flag to another GPU and within one.
    soft : float
        As in `PacketRates`.
    look_s : float
        Of a block, for looking at the flags of a piece, also where they are raised already; an op that only
        waits then spends no `piece_s`. 0: `before_s` and `piece_s` hold it.
    load : float
        How much of a round's work, as a share, comes before its data leave: they are loaded first.
    """

    before_s: float
    piece_s: float
    round_s: float
    far_s: float
    cache_bytes: float
    byte_s: float
    fence_s: float
    flag_s: float
    own_s: float
    soft: float
    look_s: float = 0.0
    load: float = 0.0


@dataclass(frozen=True, slots=True)
class JobRates:
    """What differs in the calls of a training job (`blinksim.torch`), fitted to such calls.

    Parameters
    ----------
    launch_s, visit_s : float
        As in `ExecutionRates`, of calls in a captured graph.
    step_s, piece_s : float
        As in `PacketRates`.
    again : float
        Of what a round of a long call takes beside moving data, the share that its next round takes again.
    stream_s : float
        How much longer a call on the group's own stream takes (``async_op=True``).
    host_s : float
        What PyTorch and the host take to launch a call, which graphs spare.
    error : FitError, optional
        Of the times that were fitted.
    """

    launch_s: float
    visit_s: float
    step_s: float
    piece_s: float
    again: float
    stream_s: float
    host_s: float
    error: FitError | None = None


@dataclass(frozen=True, slots=True)
class ExecutionRates:
    """The constants of a machine.

    Parameters
    ----------
    hardware : str
        Name of the GPUs.
    measured : Origin
        Where the constants come from.
    gpus : tuple of int
        The numbers of GPUs that were measured.
    blocks : int
        Thread blocks that a GPU runs at once.
    launch_s : float
        From the end of a GPU's last block until its next launch begins.
    announce_s : float
        Until a GPU has heard that another has begun.
    visit_s : float
        What a block spends on each op that it looks at, also on one whose turn it is not.
    ports : PortRates
    packets : PacketRates
    flags : FlagRates
    error : FitError, optional
        Of the points that were not fitted.
    job : JobRates, optional
        Of calls in training jobs.
    """

    hardware: str
    measured: Origin
    gpus: tuple[int, ...]
    blocks: int
    launch_s: float
    announce_s: float
    visit_s: float
    ports: PortRates
    packets: PacketRates
    flags: FlagRates
    error: FitError | None = None
    job: JobRates | None = None

    def in_jobs(self, stream: bool = False) -> ExecutionRates:
        """The constants of calls in training jobs, captured in a graph; stream: on the group's own stream there.

        Raises `InfeasibleError` where nobody measured such calls.
        """
        if self.job is None:
            raise InfeasibleError(f"nobody measured calls of training jobs on {self.hardware}; leave calls= out")
        job, packets = self.job, replace(self.packets, step_s=self.job.step_s, piece_s=self.job.piece_s)
        launch_s = job.launch_s + stream * job.stream_s
        return replace(self, launch_s=launch_s, visit_s=job.visit_s, packets=packets, error=job.error)


def uncovered(part: Topology) -> str:
    """Why these constants do not time programs on a selected topology; empty if they do."""
    if part.execution is None:
        return f"{part.name} at {part.rates} rates has no measured constants of running programs"
    if part.nodes > 1:
        return "its constants are those of one node"
    if part.relays:
        return "it knows no relays"
    others = [device.name for device in part.devices if device.name not in part.members]
    # For two GPUs a switch changes nothing: one of them stands for it.
    hubs = others or [*part.members[: part.ranks == 2]]
    if len(hubs) != 1:
        return "its constants are those of GPUs around a switch"
    kinds = {(link.lane_bandwidth, link.lanes, hubs[0] in (link.src, link.dst)) for link in part.links}
    if len(part.links) != 2 * len({*part.members} - {*hubs}) or len(kinds) != 1 or not kinds.pop()[2]:
        return "its constants are those of GPUs with equal links to a switch"
    return ""


# --- the section of files ---------------------------------------------------------------------------------------------

# Constants of our programs, and of NCCL.
Both = tuple[ExecutionRates | None, NcclRates | None]

_HEAD = ("hardware", "measured", "gpus")
_OURS = ("blocks", "launch", "announce", "visit", "ports", "protocols")
SECTION_KEYS = ("links", *_HEAD, *_OURS, "error", "job", "nccl")
_NCCL = ("version", "ll", "ll128", "simple", "turn", "rooted_start")
_ORIGIN = "{source: nccl-tests, date: 2026-11-20}"
_NCCL_MORE = ("call", "nvls", "error")
_EXAMPLE = f"hardware: NVIDIA H200, measured: {_ORIGIN}, gpus: [2, 4, 8], nccl: {{…}}"
_NCCL_EXAMPLE = "version: 2.28.9, ll: {start: 8.4us, hop: 0.67us, rate: 165GB/s}"
_MOST = 10**9
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _day(entry: Entry) -> str:
    if not _DATE.fullmatch(text := entry.text()):
        raise entry.error(f"{entry.what} is a day such as 2026-11-20; found {text!r:.40}")
    return text


# What the fields are that are no time.
_KINDS = read_words("figure")
# How the fields of each kind are read, and how they are written.
_FORMATS: dict[str, tuple[Callable[[Entry], float | str], Callable[[Any], Any]]] = {
    "rate": (lambda entry: float(entry.rate()), lambda rate: rate_text(Fraction(repr(rate)))),
    "share": (Entry.percent, lambda share: f"{_plain(Decimal(repr(share)) * 100)} %"),
    "size": (Entry.size, lambda size: f"{int(size)}B"),
    "count": (lambda entry: entry.integer(1, _MOST), lambda count: count),
    "number": (lambda entry: float(entry.ratio("2.4")), lambda number: f"{Decimal(repr(number)):f}"),
    "name": (lambda entry: entry.text(80), str),
    "text": (Entry.text, str),
    "day": (_day, str),
    "time": (Entry.time, time_text),
}


def _plain(number: Decimal) -> str:
    """As a decimal, with an exponent for what is very small."""
    return f"{number.normalize():f}" if number == 0 or number.adjusted() > -9 else str(number.normalize())


def read_section(entry: Entry) -> Both:
    """The constants in the section of a file; raises `FileError` with line and column for anything amiss."""
    entry.what = "execution"
    given = entry.mapping(SECTION_KEYS, _HEAD, example=_EXAMPLE)
    head = {key: _head(key, given[key]) for key in _HEAD}
    if "nccl" not in given and not any(key in given for key in _OURS):
        raise entry.error(f"execution holds no constants; add nccl, or {', '.join(_OURS)}")
    ours = None
    if any(key in given for key in (*_OURS, "error")):
        # The rest of a section that is begun.
        entry.mapping(given, _OURS, example=_EXAMPLE)
        names = ("simple", "ll128")
        protocols = given["protocols"].mapping(names, names, example="{simple: {…}, ll128: {…}}")
        packets, flags = _fields(protocols["ll128"], PacketRates), _fields(protocols["simple"], FlagRates)
        ours = _record(given, ExecutionRates, **head, packets=packets, flags=flags)
        if ours.ports.uneven >= 1:
            found = f"{100 * ours.ports.uneven:g} %"
            raise given["ports"].error(f"blocks get some of a port: uneven is below 100 %; found {found}")
    if "nccl" not in given:
        return ours, None
    within = given["nccl"].mapping((*_HEAD, *_NCCL, *_NCCL_MORE), _NCCL, example=_NCCL_EXAMPLE)
    own = {key: _head(key, within[key]) for key in _HEAD if key in within}
    return ours, _record(within, NcclRates, **head | own)


def _head(key: str, entry: Entry) -> Any:
    """Where constants come from: the name of the GPUs, how they were measured, and on how many."""
    if key == "hardware":
        return entry.text(80)
    if key == "measured":
        return _fields(entry, Origin)
    found = [item.integer(2, _MOST) for item in entry.items(example="[2, 4, 8]")]
    if not found or found != sorted(set(found)):
        raise entry.error(f"{entry.what} are numbers of GPUs, ascending and each once, as in [2, 4, 8]")
    return tuple(found)


def _key(field: Field[Any]) -> str:
    return field.name.removesuffix("_s").removesuffix("_bytes")


def _record_in(field: Field[Any]) -> Any:
    """The class of a field that holds a record of its own, such as ``NvlsLine | None``; None of others."""
    named = globals().get(str(field.type).partition(" ")[0])
    return named if is_dataclass(named) else None


def _fields(entry: Entry, made: Any) -> Any:
    """The record in a mapping whose keys are the fields of `made`."""
    known = {_key(field): field for field in fields(made)}
    required = [key for key, field in known.items() if field.default is MISSING]
    return _record(entry.mapping(known, required, example=f"{{{', '.join(f'{key}: …' for key in required)}}}"), made)


def _record(given: Mapping[str, Entry], made: Any, **own: Any) -> Any:
    """The record of the entries for its fields, and of its `own` values."""
    for field in fields(made):
        if field.name not in own and _key(field) in given:
            entry, kind = given[_key(field)], _record_in(field)
            own[field.name] = _fields(entry, kind) if kind else _FORMATS[_KINDS.get(field.name, "time")][0](entry)
    return made(**own)


def write_section(ours: ExecutionRates | None, nccl: NcclRates | None) -> dict[str, Any]:
    """The section as mappings of text, from which `read_section` makes equal constants; empty if there are none."""
    first = ours or nccl
    if first is None:
        return {}
    section = _head_text(first)
    if ours is not None:
        texts = _texts(ours, _HEAD)
        texts["protocols"] = {"simple": texts["flags"], "ll128": texts["packets"]}
        section |= {key: texts[key] for key in SECTION_KEYS if key in texts}
    if nccl is not None:
        own = {key: text for key, text in _head_text(nccl).items() if text != section[key]}
        texts = _texts(nccl, _HEAD)
        section["nccl"] = own | {key: texts[key] for key in (*_NCCL, *_NCCL_MORE) if key in texts}
    return section


def _head_text(rates: ExecutionRates | NcclRates) -> dict[str, Any]:
    return {"hardware": rates.hardware, "measured": _texts(rates.measured), "gpus": list(rates.gpus)}


def _texts(rates: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a record as text, by their keys."""
    texts = dict[str, Any]()
    for field in fields(rates):
        value = getattr(rates, field.name)
        # What is 0 unless it was measured goes without saying, and so does an empty text.
        if field.name not in without and value is not None and (value or field.default not in (0, "")):
            _, written = _FORMATS[_KINDS.get(field.name, "time")]
            texts[_key(field)] = _texts(value) if _record_in(field) else written(value)
    return texts
