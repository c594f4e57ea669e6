"""Calls of collectives in jobs: of PyTorch's profiler (Kineto), its flight recorder, and NCCL Inspector.

All say group, collective, bytes and time of every call on one rank, which counts that it waits for others.
Kineto's kernels say so since PyTorch 2.4. The flight recorder has times with TORCH_NCCL_ENABLE_TIMING=1, as
JSON or as a pickle, of which only plain values are read. NCCL Inspector (v4.0) writes an object per line.
"""

from __future__ import annotations

import math
import os
import pickle
import pickletools
import re
from collections.abc import Iterator

from blinksim.errors import FileError
from blinksim.nccl.logs.tests_log import LIMIT, MOST_ROWS, at
from blinksim.textio import strict_json, text_files
from blinksim.textio.strict_json import Entry

_KINDS = (b'"traceEvents"', b'"coll_perf"', b'"record_id"')
STEP = "ProfilerStep"
# Of types without a number of bits in their name.
_BITS = {"double": 64, "long": 64, "float": 32, "int": 32, "half": 16, "short": 16, "char": 8, "byte": 8}
_MOST_SIDES = 100
# Instructions of a pickle that make plain values; others may run code.
_PLAIN = re.compile(
    "PROTO|FRAME|STOP|MARK|NONE|NEW(TRUE|FALSE)|(EMPTY_)?(DICT|LIST|TUPLE)|TUPLE[123]|APPENDS?|SETITEMS?"
    "|BININT[12]?|LONG1|(SHORT_)?BINUNICODE|BINFLOAT|MEMOIZE|(LONG_)?BIN(PUT|GET)"
)


Call = tuple[str, str, int, str, int, float]
"""Group, ranks as text, their number, the collective's name or `STEP`, bytes and seconds; 0 where unknown."""


def read(path: str | os.PathLike[str]) -> list[Call] | None:
    """The calls in a job's log; None for other files.

    Raises `FileError` for damaged files, and for pickles of anything but plain values.
    """
    name = text_files.shown(path)
    data = strict_json.unpack(name, text_files.read_bytes(path, LIMIT, "log"), 4 * LIMIT, "log")
    if data.startswith(b"\x80"):
        return list(_recorded(Entry(name, "", _unpickled(name, data))))
    if not any(kind in data for kind in _KINDS):
        return None
    lines = data.splitlines() if data.count(_KINDS[1]) > 1 else [data]
    calls = list[Call]()
    for root in (Entry(name, "", strict_json.parse(name, line, "log")) for line in lines if line.strip()):
        given = root.a(dict, "an object {…}")
        reader = _profiled if "traceEvents" in given else _recorded if "entries" in given else _inspected
        calls += reader(root)
    return calls


def _few(entry: Entry, most: int) -> list[Entry]:
    """The entries of a list that is no longer."""
    if len(entry.a(list, "a list […]")) > most:
        raise entry.wrong(f"has more than {most:,} entries")
    return list(entry.items())


def _bytes(dtype: str, elements: int) -> int:
    bits = re.search("[0-9]+", dtype)
    return elements * (int(bits[0][:3]) if bits else _BITS.get(dtype.lower(), 0)) // 8


def _profiled(root: Entry) -> Iterator[Call]:
    """Steps, and kernels of NCCL; alltoalls of uneven parts are left out."""
    for event in at(root, "traceEvents").items():
        args = event.a(dict, "an object {…}").get("args")
        if str(event.value.get("name")).startswith(STEP) and event.value.get("cat") == "user_annotation":
            yield "", "", 0, STEP, 0, at(event, "dur").number(0, 1e15) / 1e6
        if event.value.get("cat") == "kernel" and isinstance(args, dict) and "Collective name" in args:
            more = at(event, "args")
            splits = (str(args.get(f"{way} split size"))[:10_000] for way in ("In", "Out"))
            even = all(len({*re.findall("[0-9]+", split)}) < 2 for split in splits)
            elements = max(at(more, f"{way} msg nelems", 0).whole(0, 2**50) for way in ("In", "Out"))
            words = [at(more, f"Process Group {what}", "").text(200) for what in ("Name", "Description")]
            name, count = at(more, "Collective name").text(200), at(more, "Group size").whole(1, 10**6)
            ranks, size = args.get("Process Group Ranks"), _bytes(at(more, "dtype", "").text(40), elements)
            group, time_s = " ".join(filter(None, words)), at(event, "dur").number(0, 1e12) / 1e6
            yield group, str(ranks)[: 10 * count], count, name * even, size, time_s


def _recorded(root: Entry) -> Iterator[Call]:
    """Completed calls in a dump of the flight recorder."""
    for entry in _few(at(root, "entries"), MOST_ROWS // 10):
        given = entry.a(dict, "an object {…}")
        if given.get("duration_ms") is None or given.get("is_p2p"):
            continue
        named = at(entry, "process_group").a((list, tuple), "a list […]")
        group = [str(word)[:200] for word in named[:2]]
        config = at(at(root, "pg_config", {}), "".join(group[:1]), {})
        ranks = str(at(config, "ranks", "").value)[:10_000]
        shapes = [_few(at(entry, f"{way}_sizes", []), _MOST_SIDES) for way in ("input", "output")]
        sides = [[[s.whole(0, 2**50) for s in _few(one, _MOST_SIDES)] for one in each] for each in shapes]
        dtype = "".join(map(str, at(entry, "input_dtypes", []).a((list, tuple), "a list […]")[:1]))
        size = _bytes(dtype, max(sum(map(math.prod, each)) for each in sides))
        time_s, name = at(entry, "duration_ms").number(0, 1e9) / 1e3, at(entry, "profiling_name").text(200)
        yield " ".join(group), ranks, ranks.count(",") + bool(ranks), name, size, time_s


def _inspected(root: Entry) -> Iterator[Call]:
    """A record of NCCL Inspector; its sizes of allgather and reduce-scatter are those of a shard."""
    header, perf = at(root, "header"), at(root, "coll_perf")
    count, name = at(header, "n_ranks").whole(1, 10**6), at(perf, "coll").text(40)
    shards = count if name in ("AllGather", "ReduceScatter") else 1
    size, stated = at(perf, "coll_msg_size_bytes").whole(0, 2**60), at(perf, "coll_algobw_gbs").number(0, 1e9)
    size, time_s = size * shards, at(perf, "coll_exec_time_us").number(0, 1e12) / 1e6
    if time_s and abs(size / time_s / 1e9 - stated) > 0.03 * stated + 0.01:
        raise perf.wrong(f"{size} bytes in {1e6 * time_s:g} us are not {stated:g} GB/s")
    yield at(header, "id").text(80), "", count, name, size, time_s


def _unpickled(path: str, data: bytes) -> object:
    """The plain values in a pickle; raises `FileError` for other instructions, before any is carried out."""
    try:
        for instruction, argument, _ in pickletools.genops(data):
            far = instruction.name == "LONG_BINPUT" and int(argument or 0) > len(data)
            if far or not _PLAIN.fullmatch(instruction.name):
                raise ValueError(f"it holds {instruction.name}, which no dump of a flight recorder does")
        return pickle.loads(data)
    except Exception as error:
        raise FileError(path, f"is a damaged pickle, or of something else: {str(error)[:100]}") from None
