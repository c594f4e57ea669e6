"""Logs of nccl-tests and rccl-tests: the text of every release, and the JSON that ``-J`` writes.

nccl-tests (src/util.cu, doc/PERFORMANCE.md) prints a row per size: time in microseconds averaged over
iterations and ranks, algbw and busbw in GB/s, once out of place and once in place. Which columns there are is
read from the heading, so that releases with `error` instead of `#wrong`, without `redop` or `root`, with
per-iteration columns (-I), with time stamps (-S), in one half only, and with what RCCL takes (rccl-tests,
src/common.cpp) are all understood.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from blinksim.collective import COLLECTIVES
from blinksim.errors import FileError, InputError
from blinksim.nccl.logs.log_rows import (
    Columns,
    Measurement,
    Number,
    RankPlace,
    Run,
    check,
    collective_of,
    counted,
    inferred,
    measurement,
    read_heading,
)
from blinksim.textio import strict_json, text_files
from blinksim.textio.strict_json import Entry

LIMIT = 64 * text_files.MIB
_WHAT = "nccl-tests log"
# A log in text may begin with "[" too: with a tag, or with a message of MPI such as [node01:12345].
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*[\]{])")
# What mpirun --tag-output, srun --label, Hydra's -l and Kubernetes put before every line, and before every piece of it.
_RANK_TAG = r"\[(?:[\w.-]+@)?[0-9]+(?:,[0-9]+)?\](?:<std(?:out|err)>:)?"
_STAMP = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,20}(?:Z|[+-][0-9:]{4,6})(?: std(?:out|err) [FP])?"
_TAG = re.compile(rf"^\s*(?:{_RANK_TAG}|{_STAMP}|[0-9]{{1,6}}:(?=\s|$))\s?", re.ASCII)
_INNER_TAG = re.compile(rf"{_RANK_TAG}|(?<![0-9:-])[0-9]{{1,6}}:(?=\s|$)", re.ASCII)
# Comments that somebody's table or script took the # from.
_BARE = re.compile(
    r"(?:size|bytes)\s.*\balgbw\b|\(B\)(?:\s|$)|out-of-place\s+in-place|Rank\s+[0-9]+\s.*\bdevice\b|Using devices"
    r"|nThread:? |Out of bounds values\s*:|Avg bus bandwidth\s*:|Collective test (?:starting|concluded):"
    r"|nccl-tests version"
)
_ROW = re.compile(r"[0-9]+\s+[0-9]+\s+[a-z]")
_NOISE_TO_END = re.compile(
    r"(?:[A-Za-z][\w.-]*:[0-9]+:[0-9]+ )?(?:\[[0-9]+\] )?\bNCCL (?:INFO|WARN|TRACE|ERROR|version)\b.*$"
)
_NOISE = re.compile(r"\bNCCL (?:INFO|WARN|TRACE|ERROR|version)\b")
_RANK = re.compile(
    r"#\s+Rank\s+([0-9]{1,7})\s+(?:Group\s+[0-9]+\s+)?(?:Pid\s+[0-9]+\s+)?on\s+(\S+)\s+device\s+([0-9]{1,5})"
    r"\s+\[([^\]\s]{1,40})\]\s*(.*)"
)
_STARTING = re.compile(r"#\s*Collective test (?:starting|concluded):\s*(\S+)")
_VERSION = re.compile(r"#\s*nccl-tests version\s+(\S+)(?:.*\bnccl-library=([0-9]{4,6})\b)?")
_NCCL = re.compile(r"\bNCCL version ([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})")
_FOOTER = re.compile(r"#\s*(?:Out of bounds values|Avg bus bandwidth)\s*:")
_MOST_ROWS = 200_000


@dataclass
class _Draft:
    """A test while it is being read."""

    program: str = ""
    version: str = ""
    nccl: str = ""
    places: list[RankPlace] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    columns: Columns | None = None
    rows: list[Measurement] = field(default_factory=list)
    complete: bool = False
    piece: str = ""
    piece_line: int = 0
    above: str = ""

    def finish(self, path: str, ranks: int) -> Run:
        rows, numbers = zip(*self.rows, strict=True)
        name = collective_of(self.program)
        run = Run(path, name, ranks, rows, tuple(self.places), self.version, self.nccl, self.complete)
        run = run if name else replace(run, collective=inferred(run))
        if not run.ranks:
            run = replace(run, ranks=counted(run.collective, numbers))
        if run.collective in COLLECTIVES:
            check(run, numbers)
        return run


def read(path: str | os.PathLike[str]) -> tuple[Run, ...]:
    """All tests of the log at `path`, text or JSON; at least one, each with at least one row.

    Raises `FileError` with the line for everything between a heading and the last line of its test that is neither a
    row, a comment nor a message of NCCL, for rows that contradict themselves, and for a file without any row.
    """
    name = text_files.shown(path)
    data = text_files.read_bytes(path, LIMIT, _WHAT)
    if _JSON.match(data):
        return (_read_json(name, data),)
    return _read_text(name, text_files.decode(path, data, _WHAT))


def select(runs: Iterable[Run], collective: str = "") -> list[Run]:
    """The runs of `collective` (as blinksim calls it), or all if there is only one collective.

    A run whose log does not name its collective takes the given name. Raises `InputError` if there is none, if there
    are several collectives, or if the log leaves it open.
    """
    named = [replace(run, collective=run.collective or collective) for run in runs]
    chosen = [run for run in named if not collective or run.collective == collective]
    have = sorted({run.collective for run in named if run.collective})
    if not chosen:
        raise InputError(f"{named[0].path}: has no test of {collective}, only of {', '.join(have)}")
    if any(not run.collective for run in chosen):
        raise InputError(f"{chosen[0].path}: does not name its collective; give it, as in collective=allgather")
    kinds = {run.collective for run in chosen}
    if len(kinds) > 1:
        raise InputError(f"{chosen[0].path}: holds {', '.join(sorted(kinds))}; choose one with collective=")
    if not kinds <= set(COLLECTIVES):
        raise InputError(f"{chosen[0].path}: is a log of {kinds.pop()}; blinksim knows {', '.join(COLLECTIVES)}")
    return chosen


# --- text -----------------------------------------------------------------------------------------------------


def _read_text(path: str, text: str) -> tuple[Run, ...]:
    drafts, draft, library = list[_Draft](), _Draft(), ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = _untagged(raw)
        if match := _NCCL.search(line):
            draft.nccl = library = match.group(1)
        if _NOISE.search(line):
            # A message may come in the middle of a row, which goes on in the next line.
            line = _NOISE_TO_END.sub("", line) if draft.columns is not None and _ROW.match(line) else ""
        if not line:
            continue
        if _BARE.match(line):
            line = f"# {line}"
        if line.startswith("#"):
            if _opens(line) and (draft.complete or (draft.places and not draft.rows and "size" not in line)):
                # The next test of the same file; one that ended before its first row leaves nothing.
                drafts += [draft] if draft.rows else []
                draft = _Draft()
            _comment(path, draft, line, number)
        elif draft.columns is not None and not draft.complete:
            _add_row(path, draft, line, number)
    drafts += [draft] if draft.rows else []
    if not drafts:
        if draft.columns is None:
            raise FileError(path, "has no heading like '# size count type redop root time algbw busbw'; is it a log?")
        raise FileError(path, "has a heading and no measurement below it; did the test end early?")
    for log in drafts:
        log.nccl = log.nccl or library
    return tuple(log.finish(path, 1 + max((place.rank for place in log.places), default=-1)) for log in drafts)


def _untagged(line: str) -> str:
    """A line without what was put before it; a stamp may stand before a tag."""
    for _ in range(3):
        shorter = _TAG.sub("", line, count=1)
        if shorter == line:
            break
        line = shorter
    return line.strip()


def _opens(line: str) -> bool:
    """True for a comment with which the next test of a log begins."""
    words = line.lstrip("# ")
    return words.startswith(("nccl-tests version", "Collective test starting", "nThread ", "size "))


def _comment(path: str, draft: _Draft, line: str, number: int) -> None:
    if match := _RANK.match(line):
        rank, host, device, busid, name = match.groups()
        if int(rank) in draft.ranks:
            raise FileError(path, f"rank {rank} is listed twice; is this one log?", number)
        draft.ranks.add(int(rank))
        draft.places.append(RankPlace(int(rank), host, int(device), busid, name.strip()))
    elif match := _STARTING.match(line):
        draft.program = match.group(1)
    elif match := _VERSION.match(line):
        draft.version = match.group(1)
        if match.group(2) and not draft.nccl:
            # NCCL_VERSION_CODE: 22809 is 2.28.9, and 2804, before 2.9, 2.8.4.
            major, rest = divmod(int(match.group(2)), 10_000 if len(match.group(2)) > 4 else 1000)
            draft.nccl = f"{major}.{rest // 100}.{rest % 100}"
    elif _FOOTER.match(line):
        draft.complete = bool(draft.rows)
    else:
        draft.columns = read_heading(path, line, number, draft.above) or draft.columns
        draft.above = line


def _add_row(path: str, draft: _Draft, line: str, number: int) -> None:
    assert draft.columns is not None
    line = _INNER_TAG.sub(" ", line) if "[" in line or ":" in line else line
    line, number = f"{draft.piece}{line}", draft.piece_line or number
    draft.piece, draft.piece_line = "", 0
    words = draft.columns.filled(line.split())
    if draft.columns.head and len(words) == len(draft.columns.head) < draft.columns.width and _ROW.match(line):
        # Head and numbers are printed one after the other, and something came between.
        draft.piece, draft.piece_line = f"{line} ", number
        return
    draft.rows += draft.columns.split(path, line, number)
    if len(draft.rows) > _MOST_ROWS:
        raise FileError(path, f"has more than {_MOST_ROWS:,} measurements; that is no {_WHAT}", number)


# --- JSON -----------------------------------------------------------------------------------------------------


def _read_json(path: str, data: bytes) -> Run:
    root = Entry(path, "", strict_json.parse(path, data, _WHAT))
    top = root.a(dict, "an object {…}")
    if "results" not in top:
        raise FileError(path, "has no 'results'; is it what nccl-tests wrote with -J?")
    version = Entry(path, "version", top.get("version")).whole(1, 3)
    draft = _Draft(version=f"JSON {version}", complete="average_bus_bandwidth" in top)
    args = [entry.a(str, "text") for entry in Entry(path, "args", top.get("args", [])).items()]
    draft.program = args[0] if args else ""
    config = Entry(path, "config", top.get("config", {})).a(dict, "an object {…}")
    for entry in Entry(path, "config.devices", config.get("devices", [])).items():
        place = entry.a(dict, "an object {…}")
        get = {key: Entry(path, f"{entry.place}.{key}", place.get(key)) for key in ("rank", "device")}
        texts = (str(place.get(key, "")) for key in ("device_hex", "device_info"))
        host = str(place.get("hostname", ""))
        draft.places.append(RankPlace(get["rank"].whole(0, 10**7), host, get["device"].whole(0, 10**5), *texts))
    for number, entry in enumerate(Entry(path, "results", top["results"]).items(), start=1):
        _add_result(draft, entry, number)
    if not draft.rows:
        raise FileError(path, "results: there is no measurement; did the test end early?")
    each = math.prod(Entry(path, f"config.{key}", config.get(key, 1)).whole(1, 10**5) for key in ("nthreads", "ngpus"))
    # Some releases list all ranks, others the first of every process, which has `each`.
    last = max((place.rank for place in draft.places), default=0)
    everyone = len(draft.places) > 1 and len(draft.places) == last + 1
    ranks = last + (1 if everyone else each)
    return draft.finish(path, ranks if "ngpus" in config or draft.places else 0)


def _add_result(draft: _Draft, entry: Entry, number: int) -> None:
    given = entry.a(dict, "an object {…}")

    def at(key: str, inside: dict[str, object] | None = None, place: str = "") -> Entry:
        return Entry(entry.path, f"{entry.place}.{place}{key}", (given if inside is None else inside).get(key))

    size, count = at("size").whole(0, 2**62), at("count").whole(0, 2**62)
    dtype, op = (at(key).text(40).strip() for key in ("type", "redop"))
    root_text = str(at("root").a((str, int), "a number")).strip()
    if not re.fullmatch(r"-?[0-9]{1,7}", root_text):
        raise at("root").wrong(f"must be a rank or -1, not {root_text[:40]!r}")
    head, before = (size, count, dtype, op, int(root_text)), len(draft.rows)
    for key, in_place in (("out_of_place", False), ("in_place", True)):
        if given.get(key) is None:
            continue
        body = at(key).a(dict, "an object {…}")
        clock = "cpu_time" if "cpu_time" in body else "time"
        time, algbw, busbw = (at(name, body, f"{key}.").number(0, 1e15) for name in (clock, "alg_bw", "bus_bw"))
        if time <= 0:
            raise at(clock, body, f"{key}.").wrong("must be more than 0")
        wrong = None if body.get("nwrong") is None else at("nwrong", body, f"{key}.").number(0, 1e18)
        # JSON holds six decimals.
        numbers = Number(time, 5e-7), Number(algbw, 5e-7), Number(busbw, 5e-7)
        draft.rows.append(measurement(head, in_place, numbers, wrong, number))
    if len(draft.rows) == before:
        raise entry.wrong("has neither 'out_of_place' nor 'in_place'")
