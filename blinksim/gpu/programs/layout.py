"""Where every chunk lies in the buffers of every rank: NCCL's buffers, for any number of elements.

The vector of `count` elements is cut at floor(r * count / ranks) into one slice per rank; allgather, reducescatter,
gather, scatter and alltoall send or receive such slices. Chunks are cut by their exact shares inside the vector, or
inside the slice of their origin or target. A chunk can be empty when the vector is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from blinksim.collective import EVERY, OWN, ROOT
from blinksim.errors import InputError
from blinksim.schedule.model import Schedule
from blinksim.traffic import block_bounds

INPUT, OUTPUT, SCRATCH, INBOX = 0, 1, 2, 3
BUFFERS = ("input", "output", "scratch", "inbox")
# Memory moves in lines of this many bytes; on H200, stores to a peer that straddle them took up to 16 % longer.
LINE_BYTES = 128
# A packet is four such lines, of which the last 8 bytes each say which launch they are from (as in NCCL's LL128).
PACKET_LINES = 4
PACKET_BYTES = PACKET_LINES * (LINE_BYTES - 8)
# Boundaries between chunks fall on multiples of a line, or else of 16 bytes, once chunks have this many on average.
_ALIGNED_FROM = 32
Place = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """Buffers of one run; all numbers count elements.

    length (chunk). source, result: (rank, chunk) -> (buffer, offset) of the chunk in what the rank has before, and in
    what it must have after. sizes: per rank, elements of INPUT and OUTPUT. input_place, output_place: per rank,
    (buffer, offset, elements) of its data; in place both lie in one buffer.
    """

    count: int
    length: tuple[int, ...]
    source: dict[tuple[int, int], Place]
    result: dict[tuple[int, int], Place]
    sizes: tuple[tuple[int, int], ...]
    input_place: tuple[tuple[int, int, int], ...]
    output_place: tuple[tuple[int, int, int], ...]
    in_place: bool


def slice_bounds(count: int, ranks: int) -> list[int]:
    """Where the ranks' slices begin in a vector of `count` elements; the last entry is `count`."""
    return [rank * count // ranks for rank in range(ranks + 1)]


def lay_out(schedule: Schedule, count: int, itemsize: int, in_place: bool = False) -> Layout:
    """The buffers of a schedule for a vector of `count` elements of `itemsize` bytes.

    Raises `InputError` if the shares do not fill the vector, for an alltoall in place and for an alltoallv.
    """
    name, ranks = schedule.collective.name, schedule.topology.ranks
    if in_place and schedule.collective.exchanges:
        raise InputError(f"{name} cannot run in place: every rank still needs what it would overwrite")
    if schedule.collective.exchanges:
        return _lay_out_blocks(schedule, count, itemsize)
    offset, length = _cut(schedule, count, itemsize)
    bounds = slice_bounds(count, ranks)
    root = schedule.collective.root
    source: dict[tuple[int, int], Place] = {}
    result: dict[tuple[int, int], Place] = {}
    sizes, inputs, outputs = [], [], []
    for rank in range(ranks):
        whole, part, nothing = (0, count), (bounds[rank], bounds[rank + 1]), (0, 0)
        spans = {EVERY: whole, ROOT: whole if rank == root else nothing, OWN: part}
        begin, end = spans[schedule.collective.starts], spans[schedule.collective.ends]
        a, b = begin[1] - begin[0], end[1] - end[0]
        shared = in_place and a > 0 and b > 0
        # In place, the larger of the two buffers holds both: the output, unless only a part of the input remains.
        joint = OUTPUT if b >= a else INPUT
        low = min(begin[0], end[0]) if shared else 0
        first = (joint, -low) if shared else (INPUT, -begin[0])
        last = (joint, -low) if shared else (OUTPUT, -end[0])
        for chunk, origin, target in zip(
            range(schedule.chunks), schedule.origin.tolist(), schedule.target.tolist(), strict=True
        ):
            if begin[1] > begin[0] and origin in (-1, rank):
                source[rank, chunk] = (first[0], first[1] + offset[chunk])
            if end[1] > end[0] and target in (-1, rank):
                result[rank, chunk] = (last[0], last[1] + offset[chunk])
        sizes.append(((0 if joint == OUTPUT else a), (0 if joint == INPUT else b)) if shared else (a, b))
        inputs.append((first[0], first[1] + begin[0], a))
        outputs.append((last[0], last[1] + end[0], b))
    return Layout(count, tuple(length), source, result, tuple(sizes), tuple(inputs), tuple(outputs), in_place)


def _cut(schedule: Schedule, count: int, itemsize: int) -> tuple[list[int], list[int]]:
    """Offset and length of each chunk in the vector."""
    ranks = schedule.topology.ranks
    owner = schedule.origin if schedule.collective.starts == OWN else schedule.target
    groups: dict[int, list[int]] = {}
    if OWN in (schedule.collective.starts, schedule.collective.ends):
        bounds = slice_bounds(count, ranks)
        for chunk, rank in enumerate(owner.tolist()):
            groups.setdefault(rank, []).append(chunk)
        if -1 in groups:
            raise InputError(f"chunk {groups[-1][0]} of the {schedule.collective} belongs to no rank")
        spans = {rank: (bounds[rank], bounds[rank + 1]) for rank in range(ranks)}
        whole = Fraction(1, ranks)
    else:
        groups, spans, whole = {0: list(range(schedule.chunks))}, {0: (0, count)}, Fraction(1)
    offset, length = [0] * schedule.chunks, [0] * schedule.chunks
    for rank, span in spans.items():
        what = f"of rank {rank} " if len(spans) > 1 else ""
        _cut_span(schedule, groups.get(rank, []), span, whole, itemsize, offset, length, what)
    return offset, length


def _cut_span(
    schedule: Schedule,
    chunks: list[int],
    span: tuple[int, int],
    whole: Fraction,
    itemsize: int,
    offset: list[int],
    length: list[int],
    what: str,
) -> None:
    shares = schedule.share_num[chunks].tolist()
    total = sum(shares)
    if Fraction(total, schedule.share_den) != whole:
        raise InputError(f"the chunks {what}hold {Fraction(total, schedule.share_den)} of the vector, not {whole}")
    start, stop = span
    units = (max(1, bytes_ // itemsize) for bytes_ in (LINE_BYTES, 16))
    unit = next((unit for unit in units if stop - start >= _ALIGNED_FROM * unit * len(chunks)), 1)
    before, at = 0, start
    for position, (chunk, share) in enumerate(zip(chunks, shares, strict=True)):
        before += share
        end = start + (stop - start) * before // total
        if position + 1 < len(chunks):
            end = max(at, end // unit * unit)
        offset[chunk], length[chunk] = at, end - at
        at = end


def _lay_out_blocks(schedule: Schedule, count: int, itemsize: int) -> Layout:
    """As `lay_out`, for an alltoall or alltoallv: inputs by target, outputs by origin."""
    ranks, traffic = schedule.topology.ranks, schedule.collective.traffic
    bounds = [slice_bounds(count, ranks)] * ranks if traffic is None else block_bounds(traffic, count)
    blocks: dict[tuple[int, int], list[int]] = {}
    for chunk, pair in enumerate(zip(schedule.origin.tolist(), schedule.target.tolist(), strict=True)):
        if -1 in pair:
            raise InputError(f"chunk {chunk} of the {schedule.collective} lacks its origin or target")
        blocks.setdefault(pair, []).append(chunk)
    offset, length = [0] * schedule.chunks, [0] * schedule.chunks
    source: dict[tuple[int, int], Place] = {}
    result: dict[tuple[int, int], Place] = {}
    received = [0] * ranks
    for origin in range(ranks):
        for target in range(ranks):
            chunks = blocks.get((origin, target), [])
            span = (bounds[origin][target], bounds[origin][target + 1])
            what = f"from rank {origin} to rank {target} "
            block = schedule.collective.share(origin, target, ranks)
            _cut_span(schedule, chunks, span, block, itemsize, offset, length, what)
            for chunk in chunks:
                source[origin, chunk] = (INPUT, offset[chunk])
                result[target, chunk] = (OUTPUT, received[target] + offset[chunk] - span[0])
            received[target] += span[1] - span[0]
    sent = [row[-1] for row in bounds]
    return Layout(
        count,
        tuple(length),
        source,
        result,
        tuple(zip(sent, received, strict=True)),
        tuple((INPUT, 0, size) for size in sent),
        tuple((OUTPUT, 0, size) for size in received),
        False,
    )
