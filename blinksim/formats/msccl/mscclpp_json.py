"""MSCCL++ execution plans: one-sided puts, signals and waits, for `mscclpp.Executor`.

A connection has a thread block at either end: one puts and signals, the other waits and adds or copies what came into
place. Data lands where nothing is read any more, or in scratch of its own, so a put never has to ask; only at the
start of a plan each receiver signals that it is ready. Blocks that share data meet at barriers. What goes over a
connection in one step is put chunk by chunk and signalled once. Limits: MSCCL++
src/core/include/execution_common.hpp (64 operations a block, 16 barriers).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby
from typing import Any

from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.formats.msccl.moves import SCRATCH, Move, Moves, Place, moves
from blinksim.formats.msccl.mscclpp_check import MOST_BARRIERS, MOST_OPERATIONS, check_text
from blinksim.schedule.model import Schedule
from blinksim.structures.union_find import UnionFind
from blinksim.textio.text_table import count as counted_as
from blinksim.textio.whole_files import Exported

Connection = tuple[int, int, int]
Numbered = tuple[int, Move]
ALIGNMENT = 16
# Thread blocks wait for each other, so all must run at once: one on every multiprocessor of the smallest GPU (V100).
MOST_BLOCKS = 80


@dataclass(eq=False)
class _Block:
    """A thread block. connection: the one that it serves, None for local copies. group: its barrier."""

    connection: Connection | None
    out: bool
    ops: list[dict[str, Any]] = field(default_factory=list)
    buffers: list[tuple[int, str]] = field(default_factory=list)
    group: int = -1


def export(schedule: Schedule, channels: int | None = None) -> Exported:
    """The plan of a schedule, carried out again under the executor's rules; see `exports.Format.export`."""
    if channels is not None:
        raise InputError("an MSCCL++ plan has a channel for each connection; leave channels= out")
    if len({schedule.topology.device(name).node for name in schedule.topology.members}) > 1:
        raise InfeasibleError("plans are written with memory channels, which stay in a node; take format=msccl-xml")
    plan = moves(schedule)
    text = to_text(plan, f"{schedule.algorithm}_{plan.collective}_{plan.ranks}")
    try:
        counted = check_text(text, "the exported plan", root=plan.root)
    except FileError as error:
        raise InfeasibleError(f"{error}: this schedule is not expressible as a plan. Take format=msccl-xml") from None
    size, scratch = ALIGNMENT * plan.units, Fraction(max(counted.scratch), plan.units)
    held = f"{scratch} times the size" if scratch.denominator == 1 else f"{scratch} of the size"
    notes = [
        *plan.notes,
        f"message sizes must be multiples of {size} bytes; scratch holds {held}",
    ]
    if schedule.collective.rooted:
        notes.append(f"the root is rank {plan.root}: the format does not name it")
    return Exported(
        files={"": text},
        summary=f"{plan.collective} of {plan.ranks} GPUs in {counted_as(plan.units, 'chunk')}, "
        f"{counted_as(counted.blocks, 'thread block')} on the busiest GPU, up to {counted.operations} operations each",
        facts=("every chunk ends where the collective promises, in any order of the thread blocks",),
        proof=("python: plan = mscclpp.ExecutionPlan({python}, rank); executor.execute(rank, …, plan, stream)",),
        notes=tuple(notes),
        caution="not run here on MSCCL++: check the results of a small call before you rely on it",
    )


def to_text(plan: Moves, name: str) -> str:
    """The JSON of a plan; raises `InfeasibleError` if it takes more thread blocks or operations than there are."""
    blocks = dict.fromkeys(((move.src, move.dst, move.channel) for move in plan.moves), 1)
    while True:
        gpus, crowded = _gpus(_dealt(plan, blocks))
        if not crowded:
            break
        for (src, dst, channel), operations in crowded.items():
            connection = (src, dst, channel % _channels(plan))
            blocks[connection] += -(-operations // MOST_OPERATIONS) - 1
            mine = sum(number for ends, number in blocks.items() if src in ends[:2])
            if mine > MOST_BLOCKS or blocks[connection] > len(plan.moves):
                raise InfeasibleError(
                    f"a thread block of rank {src} has {operations} operations, and MSCCL++ takes {MOST_OPERATIONS} "
                    f"in each of {MOST_BLOCKS}. Build the schedule with fewer steps (algorithm=chains, two_shot), or "
                    "take format=msccl-xml"
                )
    head = {
        "name": name,
        "collective": plan.collective,
        "protocol": "Simple",
        "inplace": False,
        "reuse_resources": False,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT,
        "min_message_size": 0,
        "max_message_size": 2**32 - 1,
        "gpus": gpus,
    }
    return json.dumps(head, indent=1) + "\n"


def _channels(plan: Moves) -> int:
    return 1 + max((move.channel for move in plan.moves), default=0)


def _dealt(plan: Moves, blocks: Mapping[Connection, int]) -> Moves:
    """The plan with a channel for each of the `blocks` of a connection, which go on where the one before ends.

    What is signalled together stays together, unless it is long.
    """
    channels = _channels(plan)
    total = Counter((move.src, move.dst, move.channel) for move in plan.moves)
    done: Counter[Connection] = Counter()
    moved: list[Move] = []
    for now in _rounds(list(enumerate(plan.moves))):
        for connection, message in _messages(now, joined=plan.joined):
            many = len(message) > MOST_OPERATIONS // 2
            for number, (_, move) in enumerate(message):
                place = done[connection] + (number if many else 0)
                block = place * blocks[connection] // total[connection]
                moved.append(replace(move, channel=move.channel + channels * block))
            done[connection] += len(message)
    return replace(plan, moves=tuple(moved))


def _gpus(plan: Moves) -> tuple[list[dict[str, Any]], dict[Connection, int]]:
    """What all GPUs do, and the connections whose blocks have too many operations, with how many these are."""
    connections = sorted({(move.src, move.dst, move.channel) for move in plan.moves})
    scratch = list(plan.scratch)
    staging: dict[int, Place] = {}
    touched: set[tuple[int, str]] = set()
    for number, move in enumerate(plan.moves):
        # Directly into place where nothing was before; otherwise beside it.
        if move.operand is not None or (move.dst, move.slot_written) in touched:
            staging[number] = Place(SCRATCH, scratch[move.dst])
            scratch[move.dst] += move.units
        touched.add((move.dst, move.slot_written))
    gpus, crowded = [], dict[Connection, int]()
    for rank in range(plan.ranks):
        mine = [connection for connection in connections if rank in connection[:2]]
        gpu = _gpu(plan, rank, mine, staging, scratch[rank])
        gpus.append(gpu)
        # Behind them are those for local copies, of which none has too many.
        for connection, block in zip(mine, gpu["threadblocks"], strict=False):
            if len(block["ops"]) > MOST_OPERATIONS:
                crowded[connection] = len(block["ops"])
    return gpus, crowded


def _gpu(plan: Moves, rank: int, mine: list[Connection], staging: dict[int, Place], scratch: int) -> dict[str, Any]:
    """mine: the connections from and to the rank. staging: where moves land beside their place, by number."""
    blocks = {c: _Block(c, out=c[0] == rank) for c in mine}
    for block in blocks.values():
        # The receiver says that its memory is free; the sender waits for that once.
        block.ops += [_sync("wait"), _nop()] if block.out else [_sync("signal")]
    used = [(number, move) for number, move in enumerate(plan.moves) if rank in (move.src, move.dst)]
    _group(blocks, rank, used)
    barriers = _Barriers(list(blocks.values()))
    for now in _rounds(used):
        for connection, message in _messages([one for one in now if one[1].src == rank], joined=plan.joined):
            block = blocks[connection]
            barriers.before_reads(block, [move.slot_read for _, move in message])
            for number, move in message:
                _put(block, move, staging.get(number, move.into))
            block.ops += [_nop(), _sync("signal")]
        for connection, message in _messages([one for one in now if one[1].dst == rank], joined=plan.joined):
            block = blocks[connection]
            barriers.before_writes(block, [move.slot_written for _, move in message])
            block.ops += [_sync("wait"), _nop()]
            block.ops += [_settle(move, staging[number]) for number, move in message if number in staging]
    listed = list(blocks.values())
    copies = [c for c in plan.copies if c[0] == rank]
    for first in range(0, len(copies), MOST_OPERATIONS):
        local = _Block(None, out=False)
        some = copies[first : first + MOST_OPERATIONS]
        local.ops = [_local("copy", [source], target, units) for _, source, target, units in some]
        listed.append(local)
    remote = sorted({target for block in listed for target in block.buffers})
    return {
        "id": rank,
        "input_chunks": plan.inputs,
        "output_chunks": plan.outputs,
        "scratch_chunks": scratch,
        "threadblocks": [_block_json(number, block, mine, remote) for number, block in enumerate(listed)],
        "channels": [{"channel_type": "memory", "connected_to": [b if a == rank else a for a, b, _ in mine]}],
        "remote_buffers": [{"rank": peer, "type": kind, "access_channel_types": ["memory"]} for peer, kind in remote],
        "semaphores": [],
    }


def _rounds(moves: list[Numbered]) -> Iterator[list[Numbered]]:
    """The moves of each round, one round after the other."""
    for _, now in groupby(moves, key=lambda one: one[1].round):
        yield list(now)


def _messages(moves: list[Numbered], *, joined: bool) -> list[tuple[Connection, list[Numbered]]]:
    """The moves of a round that are signalled together, with their connection: all of it, or each by itself."""
    found: dict[tuple[Connection, int], list[Numbered]] = {}
    for number, move in moves:
        connection = (move.src, move.dst, move.channel)
        found.setdefault((connection, -1 if joined else number), []).append((number, move))
    return [(connection, message) for (connection, _), message in found.items()]


def _block_json(number: int, block: _Block, mine: list[Connection], remote: list[tuple[int, str]]) -> dict[str, Any]:
    channels = [] if block.connection is None else [mine.index(block.connection)]
    refs = [remote.index(target) for target in block.buffers]
    return {
        "id": number,
        "ops": block.ops,
        "channels": [{"channel_type": "memory", "channel_ids": channels}] if channels else [],
        "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": refs}] if refs else [],
    }


# --- operations ---------------------------------------------------------------------------------------------------


def _nop() -> dict[str, Any]:
    """All threads of the block meet."""
    return {"name": "nop"}


def _sync(name: str) -> dict[str, Any]:
    return {"name": name, "channel_ids": [0], "channel_type": "memory"}


def _buffer(place: Place, units: int) -> dict[str, Any]:
    return {"type": place.buffer, "index": place.start, "size": units}


def _local(name: str, sources: list[Place], target: Place, units: int) -> dict[str, Any]:
    return {
        "name": name,
        "src_buff": [_buffer(source, units) for source in sources],
        "dst_buff": [_buffer(target, units)],
    }


def _put(block: _Block, move: Move, into: Place) -> None:
    target = (move.dst, into.buffer)
    if target not in block.buffers:
        block.buffers.append(target)
    remote = {"buffer_id": block.buffers.index(target), "index": into.start, "size": move.units}
    put = {"name": "put", "src_buff": [_buffer(move.reads, move.units)], "dst_buff": [remote]}
    block.ops.append(put | {"channel_ids": [0], "channel_type": "memory"})


def _settle(move: Move, staging: Place) -> dict[str, Any]:
    if move.operand is None:
        return _local("copy", [staging], move.into, move.units)
    return _local("re", [move.operand, staging], move.into, move.units) | {"reduce_op": "sum"}


# --- barriers -----------------------------------------------------------------------------------------------------


def _group(blocks: dict[Connection, _Block], rank: int, used: list[Numbered]) -> None:
    """Gives blocks that touch the same data, directly or through others, the same barrier."""
    joined = UnionFind(blocks)
    last: dict[str, Connection] = {}
    for _, move in used:
        connection = (move.src, move.dst, move.channel)
        slot = move.slot_read if move.src == rank else move.slot_written
        if slot in last:
            joined.join(connection, last[slot])
        last[slot] = connection
    numbers: dict[Connection, int] = {}
    for connection, block in blocks.items():
        top = joined.find(connection)
        block.group = numbers.setdefault(top, len(numbers)) % MOST_BARRIERS


class _Barriers:
    """Puts a barrier where a block needs what another one of its group did since the last."""

    def __init__(self, blocks: list[_Block]) -> None:
        self.groups: dict[int, list[_Block]] = {}
        for block in blocks:
            self.groups.setdefault(block.group, []).append(block)
        self.written: dict[str, _Block] = {}
        self.read: dict[str, set[_Block]] = {}

    def meet(self, group: int) -> None:
        members = self.groups[group]
        for block in members:
            block.ops.append({"name": "barrier", "barrier_id": group, "num_threadblocks": len(members)})
        self.written = {slot: block for slot, block in self.written.items() if block.group != group}
        self.read = {slot: readers for slot, readers in self.read.items() if all(b.group != group for b in readers)}

    def before_reads(self, block: _Block, slots: Sequence[str]) -> None:
        if any(self.written.get(slot, block) is not block for slot in slots):
            self.meet(block.group)
        for slot in slots:
            self.read.setdefault(slot, set()).add(block)

    def before_writes(self, block: _Block, slots: Sequence[str]) -> None:
        if any(self.written.get(slot, block) is not block or self.read.get(slot, set()) - {block} for slot in slots):
            self.meet(block.group)
        self.written |= dict.fromkeys(slots, block)
