"""What went wrong in a group, read from the notes of a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blinksim.errors import BlinksimError
from blinksim.gpu.jobs.backend import Words
from blinksim.gpu.jobs.segment import FIRST_HERALD, GAVE_UP, MISMATCH


class GroupError(BlinksimError):
    """A group of ranks cannot go on: one is dead or late, or they did not call the same."""

    exit_code = 1


def explain(notes: Words, rank: int, ranks: int, timeout_s: float, name_of: Callable[[int], str]) -> str:
    """One line about the notes of a rank that has an error.

    name_of: what a signature stands for.
    """
    code = int(notes[0])
    differing = mismatched(notes, rank, ranks)
    if code == MISMATCH:
        peer, theirs, ours = (int(word) for word in notes[1:4])
        differing = [(peer, theirs, ours)]
    if differing:
        peer, theirs, ours = differing[0]
        return (
            f"call {ours >> 32} of the group is {name_of(ours & 0xFFFFFFFF)} on rank {rank}, and "
            f"{name_of(theirs & 0xFFFFFFFF)} on rank {peer}; all ranks must call the same, in the same order"
        )
    if code != GAVE_UP:
        return f"rank {int(notes[1])} of the group has failed; its own message says why"
    failed, ours = _last(notes, rank)
    late = [other for other in range(ranks) if other != rank and _last(notes, other)[0] < failed]
    who = f"{_list(late)} had not begun it: dead, or late" if late else "all ranks had begun it, and one did not go on"
    return f"rank {rank} gave up after {timeout_s:g} s in call {failed} of the group, {name_of(ours)}: {who}"


def mismatched(notes: Words, rank: int, ranks: int) -> list[tuple[int, int, int]]:
    """(other rank, its herald, this rank's) for ranks that called something else in the same launch.

    A rank writes its own heralds into its notes as well.
    """
    found = []
    for other in range(ranks):
        for parity in (0, 1):
            theirs, ours = (int(notes[FIRST_HERALD + 2 * who + parity]) for who in (other, rank))
            if ours and theirs >> 32 == ours >> 32 and theirs != ours:
                found.append((other, theirs, ours))
    return sorted(found, key=lambda entry: entry[2] >> 32)


def _last(notes: Words, who: int) -> tuple[int, int]:
    """The last launch that a rank is known to have begun, and its signature."""
    word = max(int(notes[FIRST_HERALD + 2 * who + parity]) for parity in (0, 1))
    return word >> 32, word & 0xFFFFFFFF


def _list(ranks: Sequence[int]) -> str:
    names = [str(rank) for rank in ranks]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"
