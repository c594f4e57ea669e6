"""Calls of collectives: in jobs, of PyTorch's profiler (Kineto), flight recorder and NCCL Inspector; of MPI.

All say group, collective, bytes and time of every call on one rank, which counts that it waits for others.
Kineto's kernels say so since PyTorch 2.4. The flight recorder has times with TORCH_NCCL_ENABLE_TIMING=1, as
JSON or as a pickle, of which only plain values are read. NCCL Inspector (v4.0) writes an object per line.

Tables are those of the OSU Micro-Benchmarks, of oneCCL's benchmark and of Intel MPI Benchmarks: bytes, and
microseconds averaged over ranks. Their bytes are what a rank gives; where it gives the others blocks of their
own, or gets such, those of one block.

Written is Chrome's trace event format, for chrome://tracing and ui.perfetto.dev: a bar per piece and link.
Complete events (``ph: X``) in microseconds, one process for every device that sends and one thread for every
link, as "Trace Event Format" (Duffin et al., Google, 2016) has them.
"""

from __future__ import annotations

import math
import os
import pickletools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from blinksim.errors import FileError, blamed_on
from blinksim.nccl.tests_log import LIMIT, Number, at
from blinksim.results import keyed
from blinksim.textio import strict_json, text_files
from blinksim.textio.name_ranges import natural
from blinksim.textio.strict_json import Entry

if TYPE_CHECKING:
    from blinksim.timing.simulator import Timeline

_KINDS = (b'"traceEvents"', b'"coll_perf"', b'"record_id"')
STEP, _SHARDED = "ProfilerStep", ("AllGather", "ReduceScatter")
_TYPES = text_files.read_words("element type")
# Instructions of a pickle: what they make, how much they take (0: to the mark), and those that give theirs.
_MADE: dict[str, Any] = {"EMPTY_DICT": {}, "EMPTY_LIST": [], "NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TAKEN = {"APPEND": 1, "SETITEM": 2, "TUPLE2": 2, "APPENDS": 0, "SETITEMS": 0, "TUPLE": 0}
_GIVEN = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "BINGET", "LONG_BINGET")
_TITLE = re.compile(r"^\s*# (?:OSU \S+ (?=.+ Latency Test)|Benchmarking:? )([A-Za-z_-]+)", re.MULTILINE)
_PROCESSES = re.compile(r"\s*# #?processes ?[:=] ?([0-9]{1,7})\b")
# One rank gives a block for each of the others, or gets one from each of them.
_BLOCKS = re.compile("gather|all-?to-?all|^scatter")
Call = tuple[str, str, int, str, int, float, int]
"""Group, empty in tables; ranks as text, their number, the collective's name or `STEP`, bytes, seconds, and
which call of its group and collective it is, from 1, or the line of a table; 0 where unknown."""


def read(path: str | os.PathLike[str]) -> list[Call] | None:
    """The calls in a job's log, or the rows of tables; None for other files.

    Raises `FileError` for damaged files, and for pickles of anything but plain values.
    """
    name = text_files.shown(path)
    data = strict_json.unpack(name, text_files.read_bytes(path, LIMIT, "log"), 4 * LIMIT, "log")
    if data.startswith(b"\x80"):
        return list(_recorded(Entry(name, "", _unpickled(name, data))))
    if not any(kind in data for kind in _KINDS):
        text = data.decode("utf-8-sig", "replace")
        return list(_tabled(name, text)) if _TITLE.search(text) else None
    lines = data.splitlines() if data.count(_KINDS[1]) > 1 else [data]
    reader = _profiled if _KINDS[0] in data else _inspected if _KINDS[1] in data else _recorded
    roots = (Entry(name, "", strict_json.parse(name, line, "log")) for line in lines if line.strip())
    return [call for root in roots for call in reader(root)]


def _bytes(dtype: str, elements: int) -> int:
    bits = re.search("[0-9]+", _TYPES.get(dtype.lower(), dtype))
    return elements * int(bits[0][:3] if bits else 0) // 8


def _tabled(path: str, text: str) -> Iterator[Call]:
    """The rows of tables; raises `FileError` for those without a time, and for blocks of unknown ranks."""
    title, column, ranks = "", 0, 0
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.replace(" Latency(us)", "").replace("t_avg[usec]", "Avg").strip("# ").split()
        if found := _TITLE.match(line):
            title, column = found[1].lower().replace("bcast", "broadcast"), 0
        elif found := _PROCESSES.match(line):
            ranks = int(found[1])
        elif "Avg" in words:
            column = words.index("Avg")
        elif column and re.fullmatch("[0-9]{1,18}", "".join(words[:1])):
            if (time := Number.parse("".join(words[column : column + 1]))) is None:
                raise FileError(path, f"the row has no time in column {column + 1}: {line[:80]!r}", number)
            if (blocks := _BLOCKS.search(title)) and not ranks:
                what = f"{title} says the bytes of a block, but not how many ranks there are"
                raise FileError(path, f"{what}; add a line such as '# #processes: 24' above it", number)
            yield "", "", ranks, title, int(words[0]) * (ranks if blocks else 1), time.value / 1e6, number


def _profiled(root: Entry) -> Iterator[Call]:
    """Steps, and kernels of NCCL; alltoalls of uneven parts are left out."""
    for event in at(root, "traceEvents").items():
        args = event.a(dict, "an object {…}").get("args")
        if str(event.value.get("name")).startswith(STEP) and event.value.get("cat") == "user_annotation":
            yield "", "", 0, STEP, 0, at(event, "dur").number(0, 1e15) / 1e6, 0
        if event.value.get("cat") == "kernel" and isinstance(args, dict) and "Collective name" in args:
            more = at(event, "args")
            splits = (str(args.get(f"{way} split size"))[:10_000] for way in ("In", "Out"))
            even = all(len({*re.findall("[0-9]+", split)}) < 2 for split in splits)
            elements = max(at(more, f"{way} msg nelems", 0).whole(0, 2**50) for way in ("In", "Out"))
            words = [at(more, f"Process Group {what}", "").text(200) for what in ("Name", "Description")]
            name, count = at(more, "Collective name").text(200), at(more, "Group size").whole(1, 10**6)
            ranks, size = args.get("Process Group Ranks"), _bytes(at(more, "dtype", "").text(40), elements)
            group, time_s = " ".join(filter(None, words)) or "-", at(event, "dur").number(0, 1e12) / 1e6
            yield group, str(ranks)[: 10 * count], count, name * even, size, time_s, 0


def _recorded(root: Entry) -> Iterator[Call]:
    """Completed calls in a dump of the flight recorder."""
    for entry in at(root, "entries").items():
        given = entry.a(dict, "an object {…}")
        if given.get("duration_ms") is None or given.get("is_p2p"):
            continue
        group = [str(word.value)[:200] for word in at(entry, "process_group").items()][:2]
        config = at(at(root, "pg_config", {}), "".join(group[:1]), {})
        ranks = str(at(config, "ranks", "").value)[:10_000]
        shapes = [at(entry, f"{way}_sizes", []).items() for way in ("input", "output")]
        sides = [[[side.whole(0, 2**50) for side in one.items()] for one in each] for each in shapes]
        dtype = "".join(map(str, at(entry, "input_dtypes", []).a(list, "a list […]")[:1]))
        size = _bytes(dtype, max(sum(map(math.prod, each)) for each in sides))
        time_s, name = at(entry, "duration_ms").number(0, 1e9) / 1e3, at(entry, "profiling_name").text(200)
        yield " ".join(group) or "-", ranks, ranks.count(",") + bool(ranks), name, size, time_s, 0


def _inspected(root: Entry) -> Iterator[Call]:
    """A record of NCCL Inspector; its sizes of allgather and reduce-scatter are those of a shard.

    It writes the last call that is over from time to time, so each rank has records of other calls.
    """
    header, perf = at(root, "header"), at(root, "coll_perf")
    count, name = at(header, "n_ranks").whole(1, 10**6), at(perf, "coll").text(40)
    size = at(perf, "coll_msg_size_bytes").whole(0, 2**60) * (count if name in _SHARDED else 1)
    us, call = at(perf, "coll_exec_time_us").number(0, 1e12), at(perf, "coll_sn", -1).whole(-1, 2**60) + 1
    yield at(header, "id").text(80) or "-", "", count, name, size, us / 1e6, call


def _unpickled(path: str, data: bytes) -> object:
    """The plain values in a pickle of protocol 2, tuples as lists; refuses what else a pickle may do."""
    stack, marks, memo = list[Any](), list[int](), dict[object, Any]()
    damaged = "is damaged, or no dump of a flight recorder"
    with blamed_on(lambda why: FileError(path, f"{damaged}: {why[:100]}"), Exception):
        for instruction, argument, _ in pickletools.genops(data):
            name = instruction.name
            if name == "MARK":
                marks.append(len(stack))
            elif name in _TAKEN:
                first = len(stack) - _TAKEN[name] if _TAKEN[name] else marks.pop()
                stack[first:], items = [], stack[first:]
                if name.startswith("SETITEM"):
                    stack[-1].update(zip(items[::2], items[1::2], strict=True))
                else:
                    (stack[-1].extend if name.startswith("APPEND") else stack.append)(items)
            elif name.endswith("BINPUT"):
                # Only text is referred to again, so that nothing is in two places.
                memo[argument] = stack[-1] if isinstance(stack[-1], str) else None
            elif name not in ("PROTO", "STOP"):
                given = memo[argument] if name.endswith("BINGET") else argument
                stack.append(given if name in _GIVEN else _MADE[name] or type(_MADE[name])())
        return stack.pop()


MOST_EVENTS = 200_000
Event = dict[str, Any]


def events(timeline: Timeline, most: int | None = None) -> list[Event]:
    """The trace events of the transfers in the order of time, behind the names of processes and threads.

    Of more than `most` transfers (default: `MOST_EVENTS`) those of a sample from the whole run
    (`Timeline.transfers`). Processes and threads stand in the order of their names, ``gpu2`` before
    ``gpu10``.
    """
    transfers = list(timeline.transfers(most or MOST_EVENTS))
    rows = sorted({transfer.resource for transfer in transfers}, key=natural)
    threads = {row: number for number, row in enumerate(rows, 1)}
    owners = sorted({_owner(resource) for resource in rows}, key=natural)
    processes = {owner: number for number, owner in enumerate(owners, 1)}
    listed = [event for owner, number in processes.items() for event in _named("process", owner, number, 0)]
    for resource, number in threads.items():
        listed += _named("thread", resource, processes[_owner(resource)], number)
    for transfer in transfers:
        place = {"pid": processes[_owner(transfer.resource)], "tid": threads[transfer.resource]}
        name = f"chunk {transfer.chunk}" + (f" piece {transfer.piece}" if timeline.pieces > 1 else "")
        args = keyed(transfer, "chunk piece from=src to=dst arrived_us", arrived_us=transfer.arrived_s * 1e6)
        times = {"ts": transfer.start_s * 1e6, "dur": transfer.time_s * 1e6}
        listed.append({"name": name, "cat": transfer.kind, "ph": "X", **times, "args": args, **place})
    return listed


def _owner(resource: str) -> str:
    return resource.partition("->")[0]


def _named(what: str, name: str, process: int, thread: int) -> Iterator[Event]:
    """The name of a process or thread, and its place among the others."""
    for key, value in (("name", {"name": name}), ("sort_index", {"sort_index": thread or process})):
        yield {"name": f"{what}_{key}", "ph": "M", "pid": process, "tid": thread, "args": value}
