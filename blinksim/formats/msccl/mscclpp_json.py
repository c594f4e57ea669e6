"""MSCCL++ execution plans: one-sided puts, signals and waits, for `mscclpp.Executor`.

A connection has a thread block at either end: one puts and signals, the other waits and adds or copies what came into
place. Data lands where nothing is read any more, or in scratch of its own, so a put never has to ask; only at the
start of a plan each receiver signals that it is ready. Blocks that share data meet at barriers. Limits: MSCCL++
src/core/include/execution_common.hpp (64 operations a block, 16 barriers).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.formats.msccl.moves import SCRATCH, Move, Moves, Place, moves
from blinksim.formats.msccl.mscclpp_check import MOST_BARRIERS, MOST_OPERATIONS, check_text
from blinksim.schedule.model import Schedule
from blinksim.structures.union_find import UnionFind
from blinksim.textio.exported import Exported
from blinksim.textio.text_table import count as counted_as

Connection = tuple[int, int, int]
ALIGNMENT = 16


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
    size = ALIGNMENT * plan.units
    notes = [f"message sizes must be multiples of {size} bytes; scratch is {max(counted.scratch)}/{plan.units} of one"]
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
    """The JSON of a plan; raises `InfeasibleError` if a thread block gets more operations than the executor has."""
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
    gpus = [_gpu(plan, rank, connections, staging, scratch[rank]) for rank in range(plan.ranks)]
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


def _gpu(
    plan: Moves, rank: int, connections: list[Connection], staging: dict[int, Place], scratch: int
) -> dict[str, Any]:
    mine = [c for c in connections if rank in c[:2]]
    blocks = {c: _Block(c, out=c[0] == rank) for c in mine}
    for block in blocks.values():
        # The receiver says that its memory is free; the sender waits for that once.
        block.ops += [_sync("wait"), _nop()] if block.out else [_sync("signal")]
    used = [(number, move) for number, move in enumerate(plan.moves) if rank in (move.src, move.dst)]
    _group(blocks, rank, used)
    barriers = _Barriers(list(blocks.values()))
    first = 0
    while first < len(used):
        last = first
        while last < len(used) and used[last][1].round == used[first][1].round:
            last += 1
        for number, move in used[first:last]:
            if move.src == rank:
                block = blocks[move.src, move.dst, move.channel]
                barriers.before_read(block, move.slot_read)
                _put(block, move, staging.get(number, move.into))
        for number, move in used[first:last]:
            if move.dst == rank:
                block = blocks[move.src, move.dst, move.channel]
                barriers.before_write(block, move.slot_written)
                block.ops += [_sync("wait"), _nop()]
                if number in staging:
                    block.ops.append(_settle(move, staging[number]))
        first = last
    listed = list(blocks.values())
    copies = [c for c in plan.copies if c[0] == rank]
    if copies:
        local = _Block(None, out=False)
        local.ops = [_local("copy", [source], target, units) for _, source, target, units in copies]
        listed.append(local)
    for block in listed:
        if len(block.ops) > MOST_OPERATIONS:
            raise InfeasibleError(
                f"a thread block of rank {rank} has {len(block.ops)} operations, and MSCCL++ takes {MOST_OPERATIONS}. "
                "Build the schedule with fewer steps (algorithm=chains, two_shot), or take format=msccl-xml"
            )
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
    block.ops += [put | {"channel_ids": [0], "channel_type": "memory"}, _nop(), _sync("signal")]


def _settle(move: Move, staging: Place) -> dict[str, Any]:
    if move.operand is None:
        return _local("copy", [staging], move.into, move.units)
    return _local("re", [move.operand, staging], move.into, move.units) | {"reduce_op": "sum"}


# --- barriers -----------------------------------------------------------------------------------------------------


def _group(blocks: dict[Connection, _Block], rank: int, used: list[tuple[int, Move]]) -> None:
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

    def before_read(self, block: _Block, slot: str) -> None:
        if self.written.get(slot, block) is not block:
            self.meet(block.group)
        self.read.setdefault(slot, set()).add(block)

    def before_write(self, block: _Block, slot: str) -> None:
        if self.written.get(slot, block) is not block or self.read.get(slot, set()) - {block}:
            self.meet(block.group)
        self.written[slot] = block
