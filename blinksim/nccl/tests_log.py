"""Logs of nccl-tests and rccl-tests: the text of every release, and the JSON that ``-J`` writes.

nccl-tests (src/util.cu, doc/PERFORMANCE.md) prints a row per size: time in microseconds averaged over
iterations and ranks, algbw and busbw in GB/s, once out of place and once in place. Which columns there are is
read from the heading, so that releases with `error` instead of `#wrong`, without `redop` or `root`, with
per-iteration columns (-I), with time stamps (-S), in one half only, and with what RCCL takes (rccl-tests,
src/common.cpp) are all understood.

Times and rates are printed to a width: 123.45, 1234.5, 12345, 1.2e+06. A `Number` remembers how far its
digits go. Size over time is algbw, and busbw over algbw is a factor of the collective and the number of
ranks. Together they show what a log leaves out, and whether it is a single log.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import NamedTuple

from blinksim.collective import COLLECTIVES, REDUCING, ROOTED, busbw_factor
from blinksim.errors import FileError, InputError
from blinksim.graphs.connectivity import grouped
from blinksim.nccl.tuner.tuner import ALGORITHMS, PROTOCOLS
from blinksim.results import names as listed
from blinksim.textio import strict_json, text_files
from blinksim.textio.strict_json import Entry
from blinksim.topology.graph import Topology
from blinksim.units import format_size


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. size: bytes; time_s: seconds; algbw, busbw: bytes/s as the log states them.

    op, root: ``none`` and -1 where the collective has none. wrong: elements found wrong (or the largest
    error, in old releases), None if not checked. line: its place in the log (in JSON the number of the
    result, from 1).
    """

    size: int
    count: int
    dtype: str
    op: str
    root: int
    in_place: bool
    time_s: float
    algbw: float
    busbw: float
    wrong: float | None
    line: int


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank ran: host name, CUDA device number, PCI address, name of the device."""

    rank: int
    host: str
    device: int
    busid: str
    name: str


class Channels(NamedTuple):
    """What NCCL's search prints of a family: how many, GB/s of each inside and between nodes, types of paths."""

    many: int
    inside: float
    between: float
    paths: str

    def at(self, nodes: int) -> tuple[float, str]:
        """GB/s of all together, and the channels in words; on one node the ports count for nothing."""
        rate = min(self.inside, self.between) if nodes > 1 else self.inside
        paths = self.paths if nodes > 1 else self.paths.partition("/")[0]
        return self.many * rate, f"{self.many} of {rate:.4g} GB/s over {paths} paths"


class Launch(NamedTuple):
    """How a test was started.

    options: but for sizes, such as ``-g 1``, empty where the log does not say. each: ranks of a process.
    settings: variables of the library's environment with their values, as far as the log names them.
    """

    options: str = ""
    each: int = 1
    settings: tuple[tuple[str, str], ...] = ()

    def command(self, test: str, ranks: int, nodes: int, more: Mapping[str, str]) -> str:
        """The command of a test (its program and sizes); ranks: 0 if unknown. more: other variables."""
        given = {**more, **dict(self.settings)}
        named, words = " -x ".join(given), [f"{name}={shlex.quote(value)}" for name, value in given.items()]
        start = f"-np {ranks // self.each} -N {ranks // self.each // nodes}" if ranks else "-np N"
        start = f"mpirun -x {named} {start}" if ranks != self.each else ""
        return " ".join(filter(None, (*words, start, test, self.options)))


UNSAID = Launch()


@dataclass(frozen=True)
class Run:
    """One test of a log.

    collective: as blinksim calls it, or empty if the log does not say and its numbers leave it open. ranks: 0
    where the log neither lists them nor shows their number in busbw / algbw. nccl: its version, empty where
    the log does not say. complete: True if the last lines of the test are there. ended: what came after the
    last whole row, as an error of NCCL, or without last lines of the launcher, or part of a row. failed: the
    line in which nccl-tests says that it failed, or without last lines the launcher that it died. most: the
    bytes that it was to end at, 0 where the log does not say. group, step_s: of a job's log, the group of
    ranks, whose places then are numbers in the job, and the seconds of the steps, 0 if unknown. waited_s,
    late: of the logs of several ranks, how long one of them waited for others in all, and the log of the rank
    that others waited for. set_up: how calls were launched, ``graph``, ``stream`` or ``threads`` of one
    process, empty where the log does not say. launch: how the test was started. adapters: what
    ``NCCL_IB_HCA`` or the like was set to, where the log says it. took: by bytes, the algorithm and protocol
    that NCCL says it took for an allreduce (NCCL_DEBUG_SUBSYS=TUNING). channels: by family, what the searches
    of the ranks found (GRAPH). without: hosts, and what NCCL says that it lacks there. hcas: by host, the
    adapters that NCCL uses there (INIT), of EFA's the addresses, or as many empty names. direct: adapters read
    the GPUs' memory themselves.
    """

    path: str
    collective: str
    ranks: int
    rows: tuple[Row, ...]
    places: tuple[RankPlace, ...] = ()
    nccl: str = ""
    complete: bool = True
    ended: str = ""
    group: str = ""
    step_s: float = 0.0
    waited_s: float = 0.0
    late: str = ""
    set_up: str = ""
    launch: Launch = UNSAID
    adapters: str = ""
    took: tuple[tuple[int, str], ...] = ()
    channels: tuple[tuple[str, Channels], ...] = ()
    without: tuple[tuple[str, str], ...] = ()
    hcas: tuple[tuple[str, tuple[str, ...]], ...] = ()
    failed: str = ""
    most: int = 0
    direct: bool = False

    @property
    def spoilt(self) -> str:
        """Why the times say nothing of others, in words: data were wrong, or the run failed; else empty.

        Old releases print a largest error, small where all is well.
        """
        if wrong := dict.fromkeys(format_size(row.size) for row in self.rows if (row.wrong or 0) >= 1):
            return f"WRONG DATA at {listed([*wrong], ', ', 4)}"
        last = format_size(max((row.size for row in self.rows), default=0))
        return f"the run FAILED after {last}: {self.failed[:160]}" * bool(self.failed)


_CLOCKS = ("time", "cputime")
# What the releases of 2017 call their columns; their times are milliseconds.
_OLD = {"bytes": "size", "N": "count", "op": "redop", "res": "error"}
_HALF = ("time", "cputime", "algbw", "busbw", "#wrong", "error", "i_min", "i_max", "i_p99", "i_cv%")
# What rccl-tests adds behind both halves if it is told to: what RCCL takes, N/A where it does not say.
_TAKEN = ("algo", "proto", "nchannels")
_TOOK = re.compile(r"(?:N/A|[A-Za-z][A-Za-z0-9_]{0,39}) \S+ (?:N/A|[0-9]{1,5})")
_WHOLE = re.compile(r"[0-9]{1,19}"), "whole number"
_WORD = re.compile(r"[A-Za-z0-9_]{1,40}"), "word"
_ROOT = re.compile(r"-1|[0-9]{1,7}"), "rank or -1"
# What each column of the head holds.
_HEAD = {"size": _WHOLE, "count": _WHOLE, "type": _WORD, "redop": _WORD, "root": _ROOT}
_DECIMAL = re.compile(r"([0-9]{1,30})(?:\.([0-9]{0,20}))?(?:[eE]([+-]?[0-9]{1,3}))?")
_GAP = re.compile(r"\S {20,}\S")


@dataclass(frozen=True, slots=True)
class Number:
    """A printed number and half a unit of its last digit."""

    value: float
    half: float

    @classmethod
    def parse(cls, text: str) -> Number | None:
        """None if `text` is not a plain number of at least 0."""
        if (match := _DECIMAL.fullmatch(text)) is None:
            return None
        value = float(text)
        half = float(f"5e{int(match[3] or 0) - len(match[2] or '') - 1}")
        return cls(value, half) if math.isfinite(value) and math.isfinite(half) else None


# Bytes, elements, data type, operation and root.
Head = tuple[int, int, str, str, int]
# Time in microseconds, algbw and busbw in GB/s.
Numbers = tuple[Number, Number, Number]
Measurement = tuple[Row, Numbers]


def measurement(head: Head, in_place: bool, numbers: Numbers, wrong: float | None, line: int) -> Measurement:
    """A row with its numbers as printed."""
    time, algbw, busbw = (number.value for number in numbers)
    return Row(*head, in_place, time / 1e6, algbw * 1e9, busbw * 1e9, wrong, line), numbers


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns: of the head, and of each half (out of place, in place).

    stamped: True if time stamps follow. clock: microseconds in the unit of the times. taken: True if the
    algorithm, the protocol and the channels follow that the library takes. only_in_place: True if the one
    half is that.
    """

    head: tuple[str, ...]
    halves: tuple[tuple[str, ...], ...]
    stamped: bool
    clock: float = 1.0
    taken: bool = False
    only_in_place: bool = False

    def filled(self, words: list[str]) -> list[str]:
        """The words of a row with the operation and root that alltoall of 2020 to 2022 leaves blank."""
        blank = {"redop": "none", "root": "-1"}
        for place, name in enumerate(self.head):
            short = len(words) < len(self.head) + sum(map(len, self.halves))
            if short and name in blank and place < len(words) and _DECIMAL.fullmatch(words[place]):
                words = [*words[:place], blank[name], *words[place:]]
        return words

    def split(self, path: str, line: str, number: int) -> list[Measurement]:
        """The measurements of a row, out of place and in place; raises `FileError` for anything amiss."""
        words = line.split()
        if self.stamped:
            # A date and a time of day.
            words, stamp = words[:-2], words[-2:]
            if len(stamp) < 2 or not re.fullmatch(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]", stamp[0]):
                text = f"the row has no time stamp at its end, but the heading has one: {line[:80]!r}"
                raise FileError(path, text, number)
        if self.taken:
            # A row without what the library takes, such as ``RING SIMPLE 32``.
            if len(words) < 4 or not _TOOK.fullmatch(" ".join(words[-3:])):
                wrong = "the row does not end with algorithm, protocol and channels, but the heading does"
                raise FileError(path, f"{wrong}: {line[:80]!r}", number)
            words = words[:-3]
        words, halves = self.filled(words), self.halves
        if len(halves) == 2 and len(words) == len(self.head) + len(halves[1]) and _GAP.search(line):
            # Replayed traces print blanks in place of the first half; a line that was cut off has no such
            # gap.
            halves = (halves[1],)
        need = len(self.head) + sum(map(len, halves))
        if len(words) != need:
            columns = f"the row has {len(words)} columns, its heading {need}"
            raise FileError(path, f"{columns}; is the line whole? {line[:80]!r}", number)
        left, measured = iter(words), []
        given = dict(zip(self.head, left, strict=False))
        for name, (pattern, kind) in _HEAD.items():
            text = given.get(name, "0")
            if not pattern.fullmatch(text) or (kind == "whole number" and int(text) >= 2**62):
                raise FileError(path, f"{name} must be a {kind}, not {text[:40]!r}", number)
        size, count, root = int(given["size"]), int(given.get("count", 0)), int(given.get("root", -1))
        head = size, count, given.get("type", ""), given.get("redop", "none"), root
        for place, names in enumerate(halves, start=len(self.halves) - len(halves) + self.only_in_place):
            if half := self._half(path, dict(zip(names, left, strict=False)), number):
                measured.append(measurement(head, place == 1, *half, number))
        return measured

    def _half(self, path: str, given: dict[str, str], number: int) -> tuple[Numbers, float | None] | None:
        """The numbers of a half and what it found wrong (None if not checked); None if it was not run."""
        values: dict[str, Number] = {}
        for name, text in given.items():
            if (parsed := Number.parse(text)) is not None:
                values[name] = parsed
            elif text != "N/A":
                raise FileError(path, f"{name} must be a number, not {text[:40]!r}", number)
        clock = next(name for name in given if name in _CLOCKS)
        missing = [name for name in (clock, "algbw", "busbw") if name not in values]
        if len(missing) == 3:
            return None
        if missing:
            raise FileError(path, f"{missing[0]} is N/A, but other numbers of the row are there", number)
        if values[clock].value <= 0:
            raise FileError(path, f"{clock} must be more than 0", number)
        wrong = values.get("#wrong", values.get("error"))
        time = Number(values[clock].value * self.clock, values[clock].half * self.clock)
        return (time, values["algbw"], values["busbw"]), None if wrong is None else wrong.value


def read_heading(path: str, line: str, number: int, above: str = "") -> Columns | None:
    """The columns, if the comment `line` is a heading; raises `FileError` for one with unknown columns.

    above: the comment before it, which says out-of-place and in-place.
    """
    given = line.lstrip("#").split()
    words = list(map(_OLD.get, given, given)) if given[:1] == ["bytes"] else given
    if words[:1] != ["size"] or not set(words) & set(_CLOCKS):
        return None
    stamped = words[-1] == "timestamp"
    words = words[: len(words) - stamped]
    taken = tuple(words[-3:]) == _TAKEN
    words = words[: len(words) - 3 * taken]
    starts = [place for place, word in enumerate(words) if word in _CLOCKS]
    head, *halves = parts = [tuple(words[a:b]) for a, b in pairwise((0, *starts, len(words)))]
    known = (head, {*_HEAD}), (chain(*halves), {*_HALF})
    strange = [word for part, columns in known for word in part if word not in columns]
    if strange or len(halves) > 2 or any(len({*part}) < len(part) for part in parts):
        named = " ".join(strange) or line
        shown = f"{named[:80]}{'…' * (len(named) > 80)}"
        raise FileError(path, f"the heading has columns that nccl-tests does not print: {shown}", number)
    for half in halves:
        if missing := sorted({"algbw", "busbw"} - {*half}):
            raise FileError(path, f"the heading has no column {missing[0]}", number)
    in_place = len(halves) == 1 and above.lstrip("#").split() == ["in-place"]
    return Columns(head, tuple(halves), stamped, {"size": 1.0, "bytes": 1000.0}[given[0]], taken, in_place)


def collective_of(program: str) -> str:
    """``allreduce`` for ``./build/all_reduce_perf_mpi``; other tests keep the name of their program."""
    stem = re.sub(r"_perf(_mpi)?(\.exe)?$", "", program.replace("\\", "/").rpartition("/")[2])
    plain = stem.replace("_", "").lower()
    return plain if plain in COLLECTIVES else stem


def factor_of(rows: Iterable[Row]) -> float | None:
    """busbw / algbw of the row that shows it most exactly, None if none does."""
    # Beyond that, two digits are printed.
    best = max((row for row in rows if row.algbw < 1e14), key=lambda row: row.algbw, default=None)
    return best.busbw / best.algbw if best is not None and best.algbw >= 1e9 else None


def inferred(run: Run) -> str:
    """The one collective that fits operation, root and busbw / algbw; empty if several do."""
    factor, first = factor_of(run.rows), run.rows[0]
    if factor is None or run.ranks < 2:
        return ""
    kind = first.op != "none", first.root >= 0
    alike = [name for name in COLLECTIVES if (name in REDUCING, name in ROOTED) == kind]
    fits = [name for name in alike if abs(float(busbw_factor(name, run.ranks)) - factor) < 0.02]
    return fits[0] if len(fits) == 1 else ""


def counted(collective: str, numbers: Iterable[Numbers]) -> int:
    """The number of ranks that busbw / algbw implies, as far as the digits go; 0 where several fit."""
    if collective not in COLLECTIVES or busbw_factor(collective, 2) == busbw_factor(collective, 3):
        return 0
    _, algbw, busbw = max(numbers, key=lambda row: row[1].value)
    if algbw.value <= 2 * algbw.half:
        return 0
    low = (busbw.value - busbw.half) / (algbw.value + algbw.half)
    high = (busbw.value + busbw.half) / (algbw.value - algbw.half)
    fits = [ranks for ranks in range(2, 1025) if low <= float(busbw_factor(collective, ranks)) <= high]
    return fits[0] if len(fits) == 1 else 0


def check(run: Run, numbers: Iterable[Numbers]) -> None:
    """Raises `FileError` if the numbers of a log contradict themselves.

    That is if size / time is not the algbw of a row, as far as its digits go, or if busbw is not that of the
    log's own number of ranks, as in a mixture of logs.
    """
    for row, (time, algbw, _) in zip(run.rows, numbers, strict=True):
        ends = (time.value + time.half, time.value - time.half) if time.value > time.half else (0.0, 0.0)
        low, high = (row.size / end / 1e3 if end else math.inf for end in ends)
        if row.size and not low * 0.97 - algbw.half <= algbw.value <= high * 1.03 + algbw.half:
            rate = f"{row.size / time.value / 1e3:.4g} GB/s"
            wrong = f"{row.size} bytes in {time.value:g} us are {rate}"
            raise FileError(run.path, f"{wrong}, but the row says algbw {algbw.value:g}", row.line)
    if (factor := factor_of(run.rows)) is None or run.ranks < 2:
        return
    expected = busbw_factor(run.collective, run.ranks)
    if abs(factor - float(expected)) > 0.03:
        shown = str(expected) if expected.denominator == 1 else f"{expected} = {float(expected):.3f}"
        own = f"an {run.collective} on {run.ranks} ranks has {shown}"
        raise FileError(run.path, f"busbw / algbw is {factor:.3f}, but {own}; is this one log?")


LIMIT = 64 * text_files.MIB
_WHAT = "nccl-tests log"
# A log in text may begin with "[" too: with a tag, or with a message of MPI such as [node01:12345].
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*[\]{])")
# What mpirun --tag-output, srun --label, Hydra's -l, Kubernetes and Docker put before every line, and before
# every piece of it.
_RANK_TAG = r"\[(?:[\w.-]+@)?[0-9]+(?:,[0-9]+)?\](?:<std(?:out|err)>:)?"
_HOST = r"(?!nccl|NCCL|out-of-place)[A-Za-z][\w.]{0,60}[0-9-][\w.-]{0,60}(?=\s)"
_STAMP = rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9:.]{{8,20}}(?:Z|[+-][0-9:]{{4,6}})(?: std(?:out|err) [FP]| {_HOST})?"
_CONTAINER = r"\[pod/[\w./-]{1,200}\]|[A-Za-z][\w.-]{0,60} {0,60}\|(?=\s|$)"
# pdsh and clush put the host there; messages begin with it too, and keep it.
_OF_HOST = r"[A-Za-z][\w.-]{0,60}: (?=\s*(?:#|[0-9]+\s+[0-9]+\s+[a-z]))"
# A stamp may stand before a tag.
_TAGS = re.compile(
    rf"^(?:\s*(?:{_RANK_TAG}|{_STAMP}|{_CONTAINER}|{_OF_HOST}|[0-9]{{1,6}}:(?=\s|$))\s?){{1,3}}", re.ASCII
)
_INNER_TAG = re.compile(rf"{_RANK_TAG}|(?<![\w:-])[0-9]{{1,6}}:(?=\s|$)", re.ASCII)
# Comments that somebody's table or script took the # from.
_BARE = re.compile(
    r"(?:size|bytes)\s.*\balgbw\b|\(B\)(?:\s|$)|out-of-place\s+in-place|Rank\s+[0-9]+\s.*\bdevice\b|Using devices"
    r"|nThread:? |Out of bounds values\s*:|Avg bus bandwidth\s*:|Collective test (?:starting|concluded):"
    r"|nccl-tests version"
)
_ROW = re.compile(r"[0-9]+\s+[0-9]+\s+[a-z]")
_NOISE = re.compile(r"\bNCCL (?:INFO|WARN|TRACE|ERROR|version)\b")
_WARNED = re.compile(r"^.*\bNCCL (?:WARN|ERROR)\b.*")
# What NCCLCHECK, CUDACHECK and TESTCHECK print (nccl-tests, src/common.h).
_FAILED = re.compile(r"^.*(?:\bTest (?:NCCL |CUDA )?failure\b|Out of bounds values : [0-9]+ FAILED).*")
# What shells and launchers print of a process that died; mpirun says first what it did with the others.
_DIED = re.compile("(?i)segmentation|core dumped|of memory|oom.kill|killed|(?<!been )aborted|terminated(?! no)|cancel")
_NOISE_TO_END = re.compile(rf"(?:[A-Za-z][\w.-]*:[0-9]+:[0-9]+ )?(?:\[[0-9]+\] )?{_NOISE.pattern}.*$")
_RANK = re.compile(
    r"#\s+Rank\s+([0-9]{1,7})\s+(?:Group\s+[0-9]+\s+)?(?:Pid\s+[0-9]+\s+)?on\s+(\S+)\s+device\s+([0-9]{1,5})"
    r"\s+\[([^\]\s]{1,40})\]\s*(.*)"
)
_COMMAND = re.compile(r"(?:^|[\s/])((?:[a-z]+_)+perf(?:_mpi)?) +-[a-zA-Z]\b")
_STARTING = re.compile(r"#\s*Collective test (?:starting|concluded):\s*(\S+)")
_VERSION = re.compile(r"#\s*nccl-tests version\s.*\bnccl-library=([0-9]{4,6})\b")
_NCCL = re.compile(r"\bNCCL version ([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})")
# By name, or in older releases by number.
_CHOSE = re.compile(r"AllReduce: ([0-9]{1,19}) Bytes -> Algo ([0-6]|[A-Z_]+) proto ([0-2]|[A-Z]+[0-9]*)\b")
_ALGO, _PROTO = (dict(zip("0123456", of, strict=False)) for of in (ALGORITHMS, PROTOCOLS))
# ncclTopoPrintGraph (src/graph/search.cc); older releases say speed for bw. By the number of its pattern.
_FOUND = re.compile(
    r"Pattern ([1-5]), crossNic [0-2], nChannels ([0-9]{1,3}), "
    r"(?:bw|speed) ([0-9.]{1,12})/([0-9.]{1,12}), type ([A-Z0-9/]{7})"
)
_FAMILY = {"4": "ring", "1": "tree", "2": "tree", "3": "tree", "5": "nvls"}
_SAYS = r"(?:([^\s:]{1,60}):[0-9: ]{1,40}\[[0-9]+\] (?:\S{1,80} )?)?NCCL (?:INFO|WARN) "
# What NCCL lacks, as it says so, and in words of one host.
_LACKS = {"Using network Socket": "uses sockets", "No device found": "finds no InfiniBand or RoCE adapter"}
_WITHOUT = re.compile(rf"{_SAYS}(?:NET/\S+ : )?({'|'.join(_LACKS)}|GPU Direct RDMA Disabled for [\w ']{{1,40}})")
# libfabric's adapters are counted, and newer releases of its plugin list them by address.
_HCAS = re.compile(rf"{_SAYS}NET/(?:IB : Using ((?:\[[0-9]+\]\S{{1,40}} )+)|OFI .*\(found ([0-9]{{1,3}}) nics)")
_LISTED = re.compile(rf"{_SAYS}NET/OFI NIC group [0-9]+ device #[0-9]+ ([0-9a-f:.]{{7,20}})")
_HCA = re.compile(r"\]([\w-]{1,30}):[0-9]")
# What NCCL says of an adapter: a channel's end where it does not read the GPU's memory itself, a port that
# went down (older releases do not say whose), and messages without an answer
# (src/transport/net_ib.cc).
_OF_ADAPTER = {
    "no GPUDirect RDMA over": r"Channel .{1,60}\] via NET/((?!Socket)[^/]{1,20}/[0-9]{1,3})(?!/GDRDMA|[0-9])",
    "a port error at": r"NET/IB ?: (?:([\w-]{1,30}):[0-9]+ )?(?:Got async event :|async fatal event:) port error",
    "no answer (status 12) at": r"NET/IB ?: Got completion from peer (?:\S+ )?with (?:status=|error )(?:\w+\()?12\b"
    r"(?:.* hca ([\w-]{1,30}))?",
}
_LAUNCHED = re.compile(r"\b(nThread|nGpus|minBytes|maxBytes|step|graph):? *([0-9]{1,18})")
# As NCCL says it, with a full stop, or a command or a comment.
_SETTINGS = re.compile(
    r"\b((?:NCCL_(?!DEBUG|TESTS_)|RCCL_|FI_)[A-Z0-9_]{1,60})"
    r"(?: set (?:by environment )?to |=)[\"']?([\w^=/](?:[\w=,:./-]{0,400}[\w/])?)"
)
_ADAPTERS = "NCCL_IB_HCA", "FI_CXI_DEVICE_NAME", "FI_EFA_IFACE"
_FOOTER = re.compile(r"#\s*(?:Out of bounds values|Avg bus bandwidth)\s*:")
# With which the next test of a log begins.
_OPENS = ("nccl-tests version", "Collective test starting", "nThread ", "size ")
MOST_ROWS = 200_000


@dataclass
class _Draft:
    """A test while it is being read."""

    program: str = ""
    nccl: str = ""
    places: dict[int, RankPlace] = field(default_factory=dict)
    columns: Columns | None = None
    rows: list[Measurement] = field(default_factory=list)
    complete: bool = False
    ended: str = ""
    trouble: FileError | None = None
    piece: tuple[str, int] | None = None
    above: str = ""
    set_up: str = ""
    took: list[tuple[str, str, str]] = field(default_factory=list)
    channels: list[tuple[str, Channels]] = field(default_factory=list)
    without: list[tuple[str, str]] = field(default_factory=list)
    hcas: dict[str, tuple[str, ...]] = field(default_factory=dict)
    failed: str = ""
    most: int = 0
    direct: bool = False
    sizes: str = ""
    launch: Launch = UNSAID

    def finish(self, path: str, ranks: int) -> Run:
        rows, numbers = zip(*self.rows, strict=True)
        name, hcas = collective_of(self.program), tuple(self.hcas.items())
        ended = self.ended or ("" if self.complete or self.failed else "nccl-tests' last lines are missing")
        took = tuple((int(size), f"{_ALGO.get(a, a)} {_PROTO.get(p, p)}".lower()) for size, a, p in self.took)
        adapters = next((value for name, value in self.launch.settings if name in _ADAPTERS), "")
        run = Run(
            path, name, ranks, rows, tuple(self.places.values()), self.nccl, self.complete, ended, most=self.most,
            set_up=self.set_up, launch=self.launch, adapters=adapters, took=took, failed=self.failed,
            channels=(*dict.fromkeys(self.channels),), without=(*dict.fromkeys(self.without),), hcas=hcas,
            direct=self.direct,
        )  # fmt: skip
        run = replace(run, collective=name or inferred(run))
        run = replace(run, ranks=ranks or counted(run.collective, numbers))
        if run.collective in COLLECTIVES:
            check(run, numbers)
        return run


def read(path: str | os.PathLike[str]) -> tuple[Run, ...]:
    """All tests of the log at `path`, text or JSON; at least one, each with at least one row.

    Raises `FileError` with the line for what is between rows, or before the last lines of a test, and is no
    row, comment or message of NCCL, for rows that contradict themselves, and for a file without any row.
    """
    name = text_files.shown(path)
    data = text_files.read_bytes(path, LIMIT, _WHAT)
    if _JSON.match(data):
        return (_read_json(name, data),)
    drafts, draft, library, command, settings = list[_Draft](), _Draft(), "", "", dict[str, str]()
    for number, raw in enumerate(text_files.decode(path, data, _WHAT).split("\n"), start=1):
        line = _TAGS.sub("", raw).strip()
        if match := _NCCL.search(line):
            draft.nccl = library = match.group(1)
        if typed := _COMMAND.search(line):
            command = typed.group(1)
            draft.program = draft.program or command * (draft.columns is None)
        if told := _SETTINGS.findall(line):
            settings |= told
            draft.launch = draft.launch if draft.complete else draft.launch._replace(settings=(*settings.items(),))
        draft.took += _CHOSE.findall(line)
        for pattern, many, inside, between, paths in _FOUND.findall(line):
            draft.channels.append((_FAMILY[pattern], Channels(int(many), float(inside), float(between), paths)))
        draft.without += _WITHOUT.findall(line)
        for words, pattern in _OF_ADAPTER.items():
            said = re.findall(_SAYS + pattern, line)
            draft.without += [(host, f"{words} {net or 'an adapter'}") for host, net in said]
        draft.direct |= "/GDRDMA" in line
        for host, found, many in _HCAS.findall(line):
            draft.hcas[host] = (*_HCA.findall(found), *[""] * int(many or 0))
        for host, address in _LISTED.findall(line):
            # In the place of one that was counted, once for all processes of a host.
            own = dict.fromkeys((*filter(None, draft.hcas.get(host, ())), address))
            draft.hcas[host] = (*own, *draft.hcas.get(host, ())[len(own) :])
        draft.ended = draft.ended or "".join(_WARNED.findall(line))
        draft.failed = draft.failed or "".join(_FAILED.findall(line))
        if _NOISE.search(line):
            # A message may come in the middle of a row, which goes on in the next line.
            line = _NOISE_TO_END.sub("", line) if draft.columns and (draft.piece or _ROW.match(line)) else ""
        if _BARE.match(line):
            line = f"# {line}"
        if line.startswith("#"):
            ended = draft.complete or draft.ended if draft.rows else draft.places and "size" not in line
            if ended and line.lstrip("# ").startswith(_OPENS):
                # The next test of the same file; one that ended before its first row leaves nothing.
                drafts += [draft] if draft.rows else []
                draft = _Draft(command, library, launch=Launch(settings=(*settings.items(),)))
                command = ""
            _comment(name, draft, line, number)
        elif line and draft.columns is not None and not draft.complete:
            _add_row(name, draft, line, number)
        elif draft.complete and _DIED.search(line):
            draft.ended = draft.ended or line
    drafts += [draft] if draft.rows else []
    if not drafts:
        if draft.columns is None and not (draft.failed or draft.sizes):
            none = "has no heading like '# size count type redop root time algbw busbw'"
            raise FileError(name, f"{none}; is it a log of nccl-tests? blinksim health reads NCCL's own")
        if draft.trouble and _ROW.match(draft.ended):
            raise draft.trouble
        why = f"the run ended early: {last}" if (last := draft.failed or draft.ended) else "did the test end early?"
        cure = "run it again with NCCL_DEBUG=INFO, and NCCL says why"
        if draft.program and draft.sizes:
            # A head that is cut lists some ranks: not all before the last, not as many on each host, or
            # nothing after.
            on = Counter(place.host for place in draft.places.values())
            alike = max(draft.places, default=0) < len(draft.places) and len({*on.values()}) == 1
            listed = len(draft.places) * (alike and any((draft.columns, last, draft.above)))
            test = f"{shlex.quote(draft.program)} {draft.sizes}"
            cure += "" if listed else " (N processes: the log does not list all ranks)"
            cure += f": {draft.launch.command(test, listed, len(on), {'NCCL_DEBUG': 'INFO'})}"
        raise FileError(name, f"has no measurement; {why}; {cure}")
    return tuple(log.finish(name, 1 + max(log.places, default=-1)) for log in drafts)


def lacking(runs: Sequence[Run], topology: Topology) -> Iterator[tuple[list[str], str, str]]:
    """Hosts, what NCCL lacks there, and both in words; no host where it lacks that on all, nothing on one node.

    Adapters are counted, and named, as the nodes of the machine have them, or else as other hosts do; the hosts
    with the fewest come first.
    """
    if topology.nodes < 2:
        return
    ports = [one for one in topology.devices if (one.kind, one.node) == ("nic", 0)]
    known = [str(one.attributes["name"]) for one in ports if "name" in one.attributes]
    count = len(known or ports)
    hosts = dict(chain.from_iterable(run.hcas for run in runs))
    said = dict.fromkeys(chain.from_iterable(run.without for run in runs))
    # What several adapters of a host lack is said once.
    parted = ((host, *re.sub("HCA [0-9]+ ", "", words).rpartition(" ")) for host, words in said)
    several = grouped(((host, kind), item) for host, kind, _, item in parted)
    without = [(host, f"{kind} {listed(items, ', ', 4)}") for (host, kind), items in several.items()]
    present = {*hosts, *dict(without), *(place.host for run in runs for place in run.places)}
    found = list[tuple[str, str]]()
    for words, own in grouped((words, host) for host, words in without).items():
        if present - {*own}:
            found += [(_LACKS.get(words, f"has {words}"), host) for host in own]
        elif words != "No device found":
            # Machines of other networks have no such adapters on any host.
            yield [], words, words
    every = dict.fromkeys(filter(None, chain(known, *hosts.values())))
    for host, used in sorted(hosts.items(), key=lambda one: len(one[1])):
        if len(used) < count:
            # Of those that are only counted none is known to be missing.
            lost = ", ".join(name for name in every if name not in used and all(used))
            few = f"{len(used)} of {count} adapters{f', without {lost}' if lost else ''}"
            found.append((f"uses {few}: {100 * len(used) / count:.0f} % of the ports", host or "a host"))
    for words, own in grouped(found).items():
        yield own, words, f"{listed(own, ', ', 16)}{' each' * (len(own) > 1)} {words}"


def select(runs: Iterable[Run], collective: str = "") -> list[Run]:
    """The runs of `collective` (as blinksim calls it), or all if there is only one collective.

    A run whose log does not name its collective takes the given name. Raises `InputError` if there is none,
    if there are several collectives, or if the log leaves it open.
    """
    named = [replace(run, collective=run.collective or collective) for run in runs]
    chosen = [run for run in named if not collective or run.collective == collective]
    have = sorted({run.collective for run in named if run.collective})
    if not chosen:
        raise InputError(f"{named[0].path}: has no test of {collective}, only of {', '.join(have)}")
    if any(not run.collective for run in chosen):
        raise InputError(f"{chosen[0].path}: does not name its collective; give it, as in collective=allgather")
    if len(have) > 1 and not collective:
        raise InputError(f"{chosen[0].path}: holds {', '.join(have)}; choose one with collective=")
    if (kind := chosen[0].collective) not in COLLECTIVES:
        raise InputError(f"{chosen[0].path}: is a log of {kind}; blinksim knows {', '.join(COLLECTIVES)}")
    return chosen


# --- text -------------------------------------------------------------------------------------------------


def _comment(path: str, draft: _Draft, line: str, number: int) -> None:
    if match := _RANK.match(line):
        rank, host, device, busid, name = match.groups()
        if int(rank) in draft.places:
            cure = "each process ran a test of its own: build nccl-tests with MPI=1, or take the log of one"
            raise FileError(path, f"rank {rank} is listed twice; {cure}", number)
        draft.places[int(rank)], draft.above = RankPlace(int(rank), host, int(device), busid, name.strip()), ""
    elif "nThread" in (told := {key: int(number) for key, number in _LAUNCHED.findall(line)}):
        draft.most, each = told.get("maxBytes", 0), max(1, told["nThread"] * told.get("nGpus", 1))
        draft.set_up = "graph" if told.get("graph") else "threads" if each > 1 else "stream"
        flags = {"minBytes": "-b", "maxBytes": "-e", "step": "-i" if "(bytes)" in line else "-f"}
        both = flags, {"nGpus": "-g", "nThread": "-t", "graph": "-G"}
        shown = [" ".join(f"{flag} {told[name]}" for name, flag in of.items() if name in told) for of in both]
        draft.sizes, draft.launch = shown[0], draft.launch._replace(options=shown[1], each=each)
    elif match := _STARTING.match(line):
        draft.program = match.group(1)
    elif match := _VERSION.match(line):
        # NCCL_VERSION_CODE: 22809 is 2.28.9, and 2804, before 2.9, 2.8.4.
        major, rest = divmod(int(match.group(1)), 10_000 if len(match.group(1)) > 4 else 1000)
        draft.nccl = draft.nccl or f"{major}.{rest // 100}.{rest % 100}"
    elif _FOOTER.match(line):
        if draft.trouble:
            raise draft.trouble
        draft.complete = bool(draft.rows)
    else:
        draft.columns = read_heading(path, line, number, draft.above) or draft.columns
        draft.above = line


def _add_row(path: str, draft: _Draft, line: str, number: int) -> None:
    """Adds a row; another line is the end of the run, unless a row or the last lines of the test follow."""
    assert draft.columns is not None
    plain = _INNER_TAG.sub(" ", line) if "[" in line or ":" in line else line
    before, number = draft.piece or ("", number)
    plain, draft.piece = f"{before}{plain}", None
    words, head = draft.columns.filled(plain.split()), len(draft.columns.head)
    first = head + sum(map(len, draft.columns.halves[:-1]))
    if head and _ROW.match(plain) and len(words) in (head, first if before else head):
        # Head and halves are printed one after the other, and something came between.
        draft.piece = f"{plain} ", number
        return
    try:
        rows = draft.columns.split(path, plain, number)
    except FileError as error:
        draft.trouble, draft.ended = draft.trouble or error, draft.ended or line.strip("-")
        draft.failed = draft.failed or line * bool(_DIED.search(line))
        return
    if draft.trouble:
        raise draft.trouble
    draft.rows += rows
    draft.ended = ""
    if len(draft.rows) > MOST_ROWS:
        raise FileError(path, f"has more than {MOST_ROWS:,} measurements; that is no {_WHAT}", number)


# --- JSON -------------------------------------------------------------------------------------------------


def _read_json(path: str, data: bytes) -> Run:
    root = Entry(path, "", strict_json.parse(path, data, _WHAT))
    if "results" not in root.a(dict, "an object {…}"):
        raise FileError(path, "has no 'results'; is it what nccl-tests wrote with -J?")
    at(root, "version").whole(1, 3)
    config, complete = at(root, "config", {}), "average_bus_bandwidth" in root.value
    settings = _SETTINGS.findall("\n".join(entry.a(str, "text") for entry in at(root, "env", []).items()))
    draft = _Draft(complete=complete, most=at(config, "maximum_bytes", 0).whole(0, 2**62))
    draft.program, *_ = *(entry.a(str, "text") for entry in at(root, "args", []).items()), ""
    for place in at(config, "devices", []).items():
        rank, device = at(place, "rank").whole(0, 10**7), at(place, "device").whole(0, 10**5)
        host, *texts = (str(place.value.get(key, "")) for key in ("hostname", "device_hex", "device_info"))
        draft.places[rank] = RankPlace(rank, host, device, *texts)
    for number, entry in enumerate(at(root, "results").items(), start=1):
        _add_result(draft, entry, number)
    if not draft.rows:
        raise FileError(path, "results: there is no measurement; did the test end early?")
    threads, gpus = (at(config, key, 1).whole(1, 10**5) for key in ("nthreads", "ngpus"))
    draft.launch = Launch(f"-g {gpus} -t {threads}", threads * gpus, tuple(settings))
    # Some releases list all ranks, others the first of every process.
    last = max(draft.places, default=0)
    ranks = last + (1 if (len(draft.places) > 1 and len(draft.places) == last + 1) else draft.launch.each)
    return draft.finish(path, ranks if "ngpus" in config.value or draft.places else 0)


def at(entry: Entry, key: str, default: object = None) -> Entry:
    """The entry of a key of an object that may have others."""
    given = entry.a(dict, "an object {…}")
    return Entry(entry.path, f"{entry.place}.{key}" if entry.place else key, given.get(key, default))


def _add_result(draft: _Draft, entry: Entry, number: int) -> None:
    size, count = at(entry, "size").whole(0, 2**62), at(entry, "count").whole(0, 2**62)
    dtype, op = (at(entry, key).text(40).strip() for key in ("type", "redop"))
    root_text = str(at(entry, "root").a((str, int), "a number")).strip()
    if not re.fullmatch(r"-?[0-9]{1,7}", root_text):
        raise at(entry, "root").wrong(f"must be a rank or -1, not {root_text[:40]!r}")
    head, before = (size, count, dtype, op, int(root_text)), len(draft.rows)
    for key, in_place in (("out_of_place", False), ("in_place", True)):
        half = at(entry, key)
        if half.value is None:
            continue
        clock = "cpu_time" if "cpu_time" in half.a(dict, "an object {…}") else "time"
        time, algbw, busbw = (at(half, name).number(0, 1e15) for name in (clock, "alg_bw", "bus_bw"))
        if time <= 0:
            raise at(half, clock).wrong("must be more than 0")
        wrong = None if half.value.get("nwrong") is None else at(half, "nwrong").number(0, 1e18)
        # JSON holds six decimals.
        numbers = Number(time, 5e-7), Number(algbw, 5e-7), Number(busbw, 5e-7)
        draft.rows.append(measurement(head, in_place, numbers, wrong, number))
    if len(draft.rows) == before:
        raise entry.wrong("has neither 'out_of_place' nor 'in_place'")
