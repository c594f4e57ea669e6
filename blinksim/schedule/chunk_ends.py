"""Start and end of each collective, chunk by chunk, and which data fits a rank's own buffers.

Every rank that reduces starts with its own contribution to every chunk. A chunk that is not reduced starts in
one place: at its origin, or at the root. The buffers are those of NCCL (user guide, "Collective Operations"
and "In-place Operations"): in place, the input of an allgather or gather is the rank's own block of the
output, the output of a reducescatter or scatter is the rank's own block of the input, and everything else has
one buffer for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from blinksim.collective import EVERY, OWN, ROOT
from blinksim.errors import InputError
from blinksim.schedule.model import Schedule

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]
Steps = npt.NDArray[np.int64]


def starts_with(schedule: Schedule, device: Ints, chunk: Ints) -> Bools:
    """True where a device (index into topology.devices) has original data of the chunk beside it, before any send."""
    return _among(schedule, schedule.collective.starts, schedule.rank_of[device], schedule.origin[chunk])


def ends_with(schedule: Schedule, device: Ints, chunk: Ints) -> Bools:
    """True where a device must have the chunk beside it, complete, after the last send."""
    return _among(schedule, schedule.collective.ends, schedule.rank_of[device], schedule.target[chunk])


def _among(schedule: Schedule, who: str, rank: Ints, own: Ints) -> Bools:
    if who == EVERY:
        return rank >= 0
    return np.asarray((rank >= 0) & (rank == (schedule.collective.root if who == ROOT else own)))


def ends_at_every_rank(schedule: Schedule) -> bool:
    """True if every rank must end with every chunk; otherwise one rank must: `end_rank`."""
    return schedule.collective.ends == EVERY


def end_rank(schedule: Schedule) -> Ints:
    """For each chunk the rank that must end with it, where that is one rank."""
    if schedule.collective.ends == ROOT:
        return np.full(schedule.chunks, schedule.collective.root, dtype=np.int32)
    return schedule.target


# --- labels and shares --------------------------------------------------------------------------------------------


def wrong_chunks(schedule: Schedule, shares: Sequence[Fraction] | None = None) -> Iterator[str]:
    """What is wrong with the chunks' origins, targets and shares, in sentences.

    shares: the part of the size that each rank's block has, in rank order; None for 1/n each. They bind
    allgather and gather (by origin), reducescatter and scatter (by target); the blocks of an alltoall are
    equal, and those of an alltoallv are what its traffic says. Raises `InputError` unless there is one share
    for every rank and they add up to 1.
    """
    n = schedule.topology.ranks
    if shares is not None and (len(shares) != n or sum(shares) != 1 or min(shares) < 0):
        raise InputError(f"{n} ranks need {n} shares that are not negative and add up to 1")
    faults = list(wrong_labels(schedule))
    yield from faults
    total = Fraction(sum(schedule.share_num.tolist()), schedule.share_den)
    promised = schedule.collective.promised(n)
    if total != promised:
        yield f"the chunks hold {total} of the size, not {promised}: their shares do not add up"
    ends = {schedule.collective.starts: "starts with", schedule.collective.ends: "ends with"}
    if faults or OWN not in ends:
        return
    if schedule.collective.exchanges:
        yield from _wrong_pairs(schedule)
        return
    sums = np.zeros(n, dtype=np.int64)
    np.add.at(sums, schedule.origin if ends[OWN] == "starts with" else schedule.target, schedule.share_num)
    for rank, held in enumerate(sums.tolist()):
        found, share = Fraction(held, schedule.share_den), Fraction(1, n) if shares is None else shares[rank]
        if found != share:
            yield f"rank {rank} {ends[OWN]} {found} of the size, not its share {share}"
            return


def wrong_labels(schedule: Schedule) -> Iterator[str]:
    """The first chunk with a wrong origin, and the first with a wrong target, in sentences."""
    name = schedule.collective.name
    starts, ends = schedule.collective.starts, schedule.collective.ends
    labels = (("origin", schedule.origin, starts), ("target", schedule.target, ends))
    for what, ranks, who in labels:
        # Where it is the root, -1 and the root say the same.
        allowed = ranks >= 0 if who == OWN else (ranks == -1)
        if who == ROOT:
            allowed |= ranks == schedule.collective.root
        for chunk in np.flatnonzero(~allowed)[:1]:
            verb = "starts from" if what == "origin" else "ends at"
            found = f"rank {ranks[chunk]}" if ranks[chunk] >= 0 else "no rank in particular"
            yield f"chunk {chunk} has {what} {found}, but in {name} a chunk {verb} {who}"


def _wrong_pairs(schedule: Schedule) -> Iterator[str]:
    """The first block of an alltoall or alltoallv that is not what a rank has for another."""
    n, traffic = schedule.topology.ranks, schedule.collective.traffic
    blocks = n * n if traffic is None else int(np.count_nonzero(traffic.matrix))
    if schedule.chunks < blocks:
        yield f"{n} ranks have {blocks} blocks to exchange, but there are only {schedule.chunks} chunks"
        return
    block = schedule.origin.astype(np.int64) * n + schedule.target
    sums = np.zeros(n * n, dtype=np.int64)
    np.add.at(sums, block, schedule.share_num)
    if traffic is None:
        wrong = sums * n != schedule.share_den
    else:
        # bytes / size = share_num / share_den, in lowest terms of the constants so that products stay small.
        unit = Fraction(schedule.share_den, traffic.size)
        wanted = traffic.matrix.ravel()
        if max(int(sums.max()), 1) * unit.denominator >= 2**63 or int(wanted.max()) * unit.numerator >= 2**63:
            sums, wanted = sums.astype(object), wanted.astype(object)
        wrong = sums * unit.denominator != wanted * unit.numerator
    for pair in np.flatnonzero(wrong)[:1].tolist():
        found, due = Fraction(int(sums[pair]), schedule.share_den), schedule.collective.share(pair // n, pair % n, n)
        yield f"rank {pair // n} has {found} of its size for rank {pair % n}, not {due}"


# --- in place -----------------------------------------------------------------------------------------------------


def overwritten(schedule: Schedule, block: Steps, twin: Steps, times: Steps | None = None) -> str | None:
    """The first chunk of an exchange that another overwrites before it is sent, as a sentence; None if there is none.

    block, times (chunks): the block that a chunk is part of, and how many pieces in a row it stands for (one
    each if None). twin (blocks): the block that arrives on top of each.
    """
    # Of every chunk the last step in which its origin sends it, and the first in which its target receives it.
    last_read = np.full(schedule.chunks, -1, dtype=np.int64)
    mine = schedule.rank_of[schedule.src] == schedule.origin[schedule.chunk]
    np.maximum.at(last_read, schedule.chunk[mine], schedule.step[mine])
    first_write = np.full(schedule.chunks, np.iinfo(np.int64).max)
    arriving = schedule.rank_of[schedule.dst] == schedule.target[schedule.chunk]
    np.minimum.at(first_write, schedule.chunk[arriving], schedule.step[arriving])
    read, write = np.full(len(twin), -1, dtype=np.int64), np.full(len(twin), np.iinfo(np.int64).max)
    np.maximum.at(read, block, last_read)
    np.minimum.at(write, twin[block], first_write)
    # Blocks as a whole first; only where they overlap in time do the places inside them matter.
    late = np.flatnonzero(read > write)
    if not len(late):
        return None
    length = schedule.share_num if times is None else schedule.share_num * times
    by_block = np.argsort(block, kind="stable")
    starts = np.searchsorted(block[by_block], np.arange(len(twin) + 1))
    for pair in late.tolist():
        out, into = (by_block[starts[which] : starts[which + 1]] for which in (pair, int(twin[pair])))
        for a, b in _overlaps(length[out].tolist(), length[into].tolist()):
            gone, came = int(out[a]), int(into[b])
            rank = schedule.origin[gone]
            if rank != schedule.target[gone] and last_read[gone] > first_write[came]:
                return (
                    f"in place, chunk {came} arrives at rank {rank} in step {first_write[came]} on top of chunk "
                    f"{gone}, which rank {rank} still sends in step {last_read[gone]}"
                )
    return None


def _overlaps(first: list[int], second: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs of pieces that overlap when the lengths of both lists are laid end to end from the same point."""
    a = b = 0
    end_a, end_b = (first[0] if first else 0), (second[0] if second else 0)
    while a < len(first) and b < len(second):
        if first[a] and second[b]:
            yield a, b
        next_a, next_b = end_a <= end_b, end_b <= end_a
        if next_a:
            a += 1
            end_a += first[a] if a < len(first) else 0
        if next_b:
            b += 1
            end_b += second[b] if b < len(second) else 0
