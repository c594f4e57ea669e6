"""The order in which a block of the kernel comes to its pieces, with every op that it looks at on the way."""

from __future__ import annotations

from collections.abc import Iterator

from blinksim.errors import InputError
from blinksim.gpu.programs.program import READY, WAVES, Program

# In place of an op and a piece: nothing is left.
END = -1


def walk(program: Program, queue: int, part: int) -> Iterator[tuple[int, int, int]]:
    """(op, piece, looks) in the order in which slice `part` of a queue runs them.

    looks: ops that the block has looked at since the piece before, this one included. In waves it looks at every op in
    every wave, also at one whose first piece comes waves later; by key it looks once at each. What it looks at after
    the last piece comes with op and piece `END`. Raises `InputError` for a program whose order is not fixed.
    """
    if program.order == READY:
        raise InputError("queues that take what is ready have no fixed order")
    ops = range(int(program.queue_start[queue]), int(program.queue_start[queue + 1]))
    pieces = {op: program.pieces(int(program.length[op]), part) for op in ops}
    moving = [op for op in ops if program.destination_start[op] < program.destination_start[op + 1]]
    looks = 0
    if program.order == WAVES:
        keys = {op: int(program.key[op]) for op in moving}
        wave, more = 0, bool(moving)
        while more:
            more = False
            for op in moving:
                looks += 1
                piece = wave - keys[op]
                more |= piece + 1 < pieces[op]
                if 0 <= piece < pieces[op]:
                    yield op, piece, looks
                    looks = 0
            wave += 1
    else:
        for op in moving:
            looks += 1
            for piece in range(pieces[op]):
                yield op, piece, looks
                looks = 0
    moved = set(moving)
    for op in ops:
        if op not in moved:
            looks += 1
            if pieces[op]:
                yield op, pieces[op] - 1, looks
                looks = 0
    if looks:
        yield END, END, looks
