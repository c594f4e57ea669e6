"""What could go wrong in a program, found by reading its arrays: order, races, reads of what nobody wrote.

Happens-before (Lamport 1978) is taken from the flags alone: an op follows the ops whose flags it waits for. The order
inside a queue is not used, so a program without findings stays right when its queues are split or merged.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from blinksim.gpu.programs.program import BUFFERS, INPUT, SCRATCH, Program

Region = tuple[int, int, int, int]


def hazards(program: Program) -> list[str]:
    """Everything that is wrong, one line each; empty for a sound program.

    Checked: every flag is raised by exactly one op, which has a smaller key and works on the same chunk (no deadlock);
    places are the same or do not overlap; two ops that touch a place, one of them writing, are ordered; what is read
    was written before or is input; somebody on the device waits for each piece of the output.
    """
    found: list[str] = []
    raised = _raised(program, found)
    before = _before(program, raised, found)
    accesses: dict[Region, list[tuple[int, bool]]] = defaultdict(list)
    for op in range(program.ops):
        length = int(program.length[op])
        if not length:
            continue
        here = int(program.op_device[op])
        for buffer, offset in program.rows("sources", op):
            accesses[here, buffer, offset, length].append((op, False))
        for device, buffer, offset in program.rows("destinations", op):
            accesses[device, buffer, offset, length].append((op, True))
    _overlaps(program, list(accesses), found)
    inputs = _input_places(program)
    for region, uses in accesses.items():
        _region(program, region, uses, before, region in inputs, found)
    return found


def _raised(program: Program, found: list[str]) -> dict[tuple[int, int], int]:
    raised: dict[tuple[int, int], int] = {}
    for op in range(program.ops):
        for device, flag in program.rows("signals", op):
            if (device, flag) in raised:
                found.append(f"flag {flag} of {program.devices[device]} is raised twice: {program.describe(op)}")
            raised[device, flag] = op
    return raised


def _before(program: Program, raised: dict[tuple[int, int], int], found: list[str]) -> list[set[int]]:
    """For each op, the ops that have finished a piece before the op begins it."""
    before: list[set[int]] = [set() for _ in range(program.ops)]
    for op in sorted(range(program.ops), key=lambda op: int(program.key[op])):
        for (flag,) in program.rows("waits", op):
            other = raised.get((int(program.op_device[op]), flag))
            if other is None:
                found.append(f"nobody raises flag {flag}: {program.describe(op)}")
            elif program.key[other] >= program.key[op] or program.chunk[other] != program.chunk[op]:
                found.append(f"waits for op {other}, which does not come before it: {program.describe(op)}")
            else:
                before[op] |= before[other] | {other}
    return before


def _overlaps(program: Program, regions: list[Region], found: list[str]) -> None:
    regions.sort()
    for a, b in pairwise(regions):
        if a[:2] == b[:2] and a[2] + a[3] > b[2]:
            found.append(f"places {a} and {b} (device, buffer, offset, length) overlap")
    for device, buffer, offset, length in regions:
        if offset < 0 or offset + length > program.sizes[device, buffer]:
            found.append(f"place {(device, buffer, offset, length)} lies outside its buffer")


def _input_places(program: Program) -> set[Region]:
    layout = program.layout
    return {(rank, *place, layout.length[chunk]) for (rank, chunk), place in layout.source.items()}


def _region(
    program: Program,
    region: Region,
    uses: list[tuple[int, bool]],
    before: list[set[int]],
    is_input: bool,
    found: list[str],
) -> None:
    device, buffer, _, _ = region
    place = f"{BUFFERS[buffer]} of {program.devices[device]}"
    writers = [op for op, write in uses if write]
    for op, write in uses:
        for other in writers:
            if other != op and other not in before[op] and op not in before[other]:
                found.append(f"race on the {place} between op {other} and {program.describe(op)}")
        if not write and not is_input and not any(other in before[op] for other in writers):
            found.append(f"reads the {place} before anybody wrote it: {program.describe(op)}")
    if buffer == INPUT and writers and not program.layout.in_place:
        found.append(f"writes to the {place}: {program.describe(writers[0])}")
    local = (
        {op for op in range(program.ops) if program.op_device[op] == device} if buffer < SCRATCH and writers else set()
    )
    seen = local.union(*(before[op] for op in local)) if local else set()
    for op in writers:
        if buffer < SCRATCH and op not in seen:
            found.append(f"nobody on {program.devices[device]} waits for {program.describe(op)}")
