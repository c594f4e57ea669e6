"""What every device holds after every step: the schedule carried out on sets of contributions.

A copy replaces what the receiver has of a chunk, a reduction merges with it. A device without data has the neutral
element, and merging with that is a copy. All sends of a step read what was there when the step began, so the chunks do
not depend on each other and each is followed on its own. Contributions must be disjoint: merging overlapping sets
counts a rank twice, which sum and prod would show, so it is refused for every operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.schedule import chunk_ends
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.schedule.switch_work import repeated_reads
from blinksim.structures.arrays import among
from blinksim.textio.text_table import count

# Sends that are processed together: Python's integers take about 250 bytes per send while they are.
_BLOCK = 100_000


def describe(schedule: Schedule, send: int) -> str:
    """``send 7 (step 2, chunk 3 from gpu0 to gpu4)``"""
    devices = schedule.topology.devices
    src, dst = (devices[int(ends[send])].name for ends in (schedule.src, schedule.dst))
    return f"send {send} (step {schedule.step[send]}, chunk {schedule.chunk[send]} from {src} to {dst})"


def place(schedule: Schedule, device: int) -> str:
    """``gpu3 (rank 5)``, or just the name of a device without a rank."""
    rank = schedule.rank_of[device]
    return f"{schedule.topology.devices[device].name}{f' (rank {rank})' if rank >= 0 else ''}"


def wrong_contents(schedule: Schedule) -> Iterator[str]:
    """One sentence for each chunk that does not end where it must, or is read, merged or written wrongly on the way."""
    return _reduced(schedule) if schedule.collective.reduces else _copied(schedule)


# --- chunks that are reduced: sets of ranks, as the bits of an integer --------------------------------------------


def _reduced(schedule: Schedule) -> Iterator[str]:
    order = np.argsort(schedule.chunk, kind="stable")
    # The same copy for a further reader adds nothing.
    order = order[~repeated_reads(schedule)[order]]
    bounds = np.searchsorted(schedule.chunk[order], np.arange(schedule.chunks + 1))
    start = {int(device): 1 << rank for rank, device in enumerate(schedule.device_of)}
    devices = schedule.topology.devices
    reduces = [bool({"reduce", "reduce_into_reader"} & device.can) for device in devices]
    # What works for GPUs keeps nothing once it has given it out.
    forgets = {number for number, device in enumerate(devices) if device.reads}
    members = [int(device) for device in schedule.device_of]
    if chunk_ends.ends_at_every_rank(schedule):
        ends = [members] * schedule.chunks
    else:
        ends = [[members[rank]] if rank >= 0 else [] for rank in chunk_ends.end_rank(schedule)]
    first = 0
    while first < schedule.chunks:
        # Whole chunks, as many as fit in a block, and at least one.
        last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + _BLOCK, side="right")) - 1)
        rows = order[bounds[first] : bounds[last]]
        columns = [a[rows].tolist() for a in (schedule.src, schedule.dst, schedule.op, schedule.step)]
        for chunk in range(first, last):
            mine = range(int(bounds[chunk] - bounds[first]), int(bounds[chunk + 1] - bounds[first]))
            fault = _follow(schedule, chunk, mine, rows, columns, start.copy(), (reduces, forgets), ends[chunk])
            if fault:
                yield fault
        first = last


def _follow(
    schedule: Schedule,
    chunk: int,
    mine: range,
    rows: npt.NDArray[np.int64],
    columns: Sequence[list[int]],
    state: dict[int, int],
    able: tuple[Sequence[bool], set[int]],
    ends: Sequence[int],
) -> str | None:
    """Carries out the sends of one chunk (positions `mine` in the columns) on `state`; the first fault."""
    src, dst, op, step = columns
    reduces, forgets = able
    i = mine.start
    while i < mine.stop:
        now, j = step[i], i + 1
        while j < mine.stop and step[j] == now:
            j += 1
        read = [state.get(src[k], 0) for k in range(i, j)]
        _forget(state, forgets.intersection(src[i:j]) if forgets else ())
        written: dict[int, int] = {}
        for k, value in zip(range(i, j), read, strict=True):
            to = dst[k]
            if not value:
                return (
                    f"{describe(schedule, rows[k])} sends what is not there: "
                    f"{place(schedule, src[k])} has nothing of chunk {chunk} before step {now}"
                )
            if to in written and not (op[k] == REDUCE and op[written[to]] == REDUCE):
                return _race(schedule, rows[written[to]], rows[k])
            written[to] = k
            if op[k] == REDUCE:
                old = state.get(to, 0)
                if old & value:
                    return (
                        f"{describe(schedule, rows[k])} reduces {_ranks(old & value)} into chunk {chunk} at "
                        f"{place(schedule, to)} a second time"
                    )
                if old and not reduces[to]:
                    return f"{describe(schedule, rows[k])} reduces at {place(schedule, to)}, which can only copy"
                value |= old
            state[to] = value
        i = j
    full = (1 << schedule.topology.ranks) - 1
    for device in ends:
        if state[device] != full:
            return _short(schedule, chunk, device, full & ~state[device])
    return None


def _forget(state: dict[int, int], devices: Iterable[int]) -> None:
    for device in devices:
        state.pop(device, None)


def _race(schedule: Schedule, first: int, second: int) -> str:
    ops = [int(schedule.op[k]) for k in (first, second)]
    what = "copy" if ops == [COPY, COPY] else "copy and reduce"
    return (
        f"{describe(schedule, first)} and {describe(schedule, second)} {what} to the same place in one step; "
        "the result depends on which comes last"
    )


def _short(schedule: Schedule, chunk: int, device: int, missing: int) -> str:
    into = np.flatnonzero((schedule.chunk == chunk) & (schedule.dst == device))
    wrote = f"{describe(schedule, int(into[-1]))} was the last to write there" if len(into) else "nothing is sent there"
    return f"{place(schedule, device)} ends without {_ranks(missing)} in chunk {chunk}; {wrote}"


def _ranks(bits: int) -> str:
    ranks = [i for i, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]
    listed = ", ".join(map(str, ranks[:6])) + (f" and {len(ranks) - 6} more" if len(ranks) > 6 else "")
    return f"the contribution{'s' * (len(ranks) > 1)} of rank{'s' * (len(ranks) > 1)} {listed}"


# --- chunks that are only copied: when does each reach each device? -------------------------------------------------


def _copied(schedule: Schedule) -> Iterator[str]:
    name = schedule.collective.name
    for send in np.flatnonzero(schedule.op != COPY)[:1]:
        yield f"{describe(schedule, send)} reduces, but {name} only copies"
    devices = len(schedule.topology.devices)
    into = schedule.chunk.astype(np.int64) * devices + schedule.dst
    order = np.argsort(into, kind="stable")
    into = into[order]
    fresh = np.ones(len(into), dtype=np.bool_)
    fresh[1:] = into[1:] != into[:-1]
    step = schedule.step[order]
    # A chunk has one content, so a second arrival does no harm, except that two at once have no order.
    twice = np.flatnonzero(~fresh[1:] & (step[1:] == step[:-1]))
    for position in twice[:1]:
        yield _race(schedule, int(order[position]), int(order[position + 1]))
    arrived, when = into[fresh], step[fresh]

    out = schedule.chunk.astype(np.int64) * devices + schedule.src
    at = np.searchsorted(arrived, out)
    found = np.zeros(len(out), dtype=np.bool_)
    inside = at < len(arrived)
    found[inside] = arrived[at[inside]] == out[inside]
    ready = chunk_ends.starts_with(schedule, schedule.src, schedule.chunk)
    ready[found] |= when[at[found]] < schedule.step[found]
    late = np.flatnonzero(~ready)
    _, first_of_chunk = np.unique(schedule.chunk[late], return_index=True)
    for send in np.sort(late[first_of_chunk]):
        yield (
            f"{describe(schedule, send)} sends what is not there: {place(schedule, int(schedule.src[send]))} has "
            f"nothing of chunk {schedule.chunk[send]} before step {schedule.step[send]}"
        )
    yield from _unreached(schedule, arrived)


def _unreached(schedule: Schedule, arrived: npt.NDArray[np.int64]) -> Iterator[str]:
    """Chunks that some rank must have and neither starts with nor receives. arrived: chunk * devices + device."""
    devices = len(schedule.topology.devices)
    short: npt.NDArray[Any]
    if chunk_ends.ends_at_every_rank(schedule):
        chunk, device = (arrived // devices).astype(np.int32), (arrived % devices).astype(np.int32)
        new = (schedule.rank_of[device] >= 0) & ~chunk_ends.starts_with(schedule, device, chunk)
        reached = np.bincount(chunk[new], minlength=schedule.chunks)
        short = np.flatnonzero(reached < schedule.topology.ranks - 1)
    else:
        ends_somewhere = np.flatnonzero(chunk_ends.end_rank(schedule) >= 0).astype(np.int32)
        target = schedule.device_of[chunk_ends.end_rank(schedule)[ends_somewhere]]
        there = chunk_ends.starts_with(schedule, target, ends_somewhere)
        there |= among(ends_somewhere.astype(np.int64) * devices + target, arrived)
        short = ends_somewhere[~there]
    for number in short:
        key = np.int64(number) * devices
        have = set((arrived[np.searchsorted(arrived, key) : np.searchsorted(arrived, key + devices)] - key).tolist())
        ranks = np.arange(schedule.topology.ranks)
        if not chunk_ends.ends_at_every_rank(schedule):
            ranks = ranks[ranks == chunk_ends.end_rank(schedule)[number]]
        ends = schedule.device_of[ranks]
        begins = chunk_ends.starts_with(schedule, ends, np.full(len(ends), number, dtype=np.int32))
        missing = [int(device) for device, own in zip(ends, begins, strict=True) if not own and int(device) not in have]
        names = ", ".join(place(schedule, device) for device in missing[:4])
        more = f" and {count(len(missing) - 4, 'more rank')}" if len(missing) > 4 else ""
        yield f"chunk {number} never reaches {names}{more}"
