"""Ops of a program at one size: the bytes of their pieces and rounds, and what a block spends on them."""

from __future__ import annotations

from typing import NamedTuple

from blinksim.cost.execution_rates import ExecutionRates
from blinksim.gpu.program_time.block_rounds import ROW_BYTES, round_bytes, wire
from blinksim.gpu.program_time.program_shape import Kind, Shape


class Sized(NamedTuple):
    """Ops of a kind at a size; bytes of the slice that stands for all.

    pieces, own: of the op. whole: bytes of its first piece. begin, rest: what goes at its first moment (a piece; in
    packets, a round) and at its last. round, begin_end, end: bytes of its first round, of the last one that goes at its
    first moment, and of its last one. before_s, lead_s: of the block before each piece. begin_s, between_s, last_s: for
    what goes first; between that and the last piece (in packets, with it); for that one. whole_s: of a piece between,
    in all. load_s, last_load_s: of what goes first, and of the last round, before data leave. last: bytes of the last
    piece. wire: bytes at the port, of all slices, for one of this slice.
    """

    pieces: int
    own: int
    whole: int
    begin: int
    rest: int
    round: int
    begin_end: int
    end: int
    last: int
    before_s: float
    lead_s: float
    begin_s: float
    between_s: float
    last_s: float
    whole_s: float
    load_s: float
    last_load_s: float
    wire: float


def sized(kind: Kind, shape: Shape, rates: ExecutionRates, size: int, slices: int, piece: int, unit: int) -> Sized:
    """Ops of a kind in a vector of `size` bytes, in slices, and pieces of so many bytes."""
    length = max(1, int(kind.share * size))
    units = -(-length // unit)
    own = length - units * (slices - 1) // slices * unit
    pieces = -(-own // piece)
    whole, last = min(own, piece), own - (pieces - 1) * piece
    first_rounds, last_rounds = (round_bytes(part, kind.inboxes + kind.others, shape.packets) for part in (whole, last))
    far = min(1.0, shape.buffers * size / rates.flags.cache_bytes)
    if shape.packets:
        packets = rates.packets
        local_s = packets.inbox_s * kind.inboxes + packets.local_s * kind.others
        first_s, last_s = (
            [packets.round_s + packets.far_s * far - (-part // ROW_BYTES) * local_s for part in rounds]
            for rounds in (first_rounds, last_rounds)
        )
        before_s, lead_s = 0.0, packets.piece_s
        begin, begin_s, begin_end = first_rounds[0], first_s[0], first_rounds[0]
        whole_s = sum(first_s) + lead_s
        between_s = (pieces - 1) * whole_s + sum(last_s) - begin_s
        load_s = last_load_s = 0.0
    else:
        flags = rates.flags
        first_s, last_s = (
            [flags.round_s + flags.far_s * far + part * kind.targets * flags.byte_s for part in rounds]
            for rounds in (first_rounds, last_rounds)
        )
        before_s, lead_s = flags.before_s + kind.waits * flags.look_s, flags.piece_s
        if flags.look_s and not kind.targets:
            lead_s = 0.0
        begin, begin_s, begin_end = whole, sum(first_s), first_rounds[-1]
        whole_s = sum(first_s) + lead_s + before_s
        between_s = (pieces - 2) * whole_s + before_s
        load_s, last_load_s = flags.load * first_s[0], flags.load * last_s[0]
    scale = (wire(rates.packets) if shape.packets else 1.0) * length / own
    return Sized(
        pieces, own, whole, begin, own - begin, first_rounds[0], begin_end, last_rounds[-1], last, before_s, lead_s,
        begin_s, between_s, sum(last_s), whole_s, load_s, last_load_s, scale,
    )  # fmt: skip
