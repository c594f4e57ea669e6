"""MSCCL++ execution plans: one-sided puts, signals and waits, written, read, and run symbolically.

A connection has a thread block at either end: one puts and signals, the other waits and adds or copies what
arrived. Data lands where nothing is read any more, or in scratch of its own, so a put never has to ask; only
at the start of a plan each receiver signals that it is ready. Blocks that share data meet at barriers. What
goes over a connection in one step is put chunk by chunk and signalled once. Limits: MSCCL++
src/core/include/execution_common.hpp (64 operations a block, 16 barriers).

The symbolic run holds for every unit of data the set of contributions in it. Thread blocks run one operation
at a time in any order; puts write to the other GPU at once, signals are counted, barriers wait for all their
blocks, and between data and its signal, or a wait and its data, a `nop` (all threads of the block meet) is
needed. Read from MSCCL++ src/core/executor.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Any

from blinksim.collective import COLLECTIVES
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.formats import programs
from blinksim.formats.moves import SCRATCH, Move, Moves, Place, moves
from blinksim.formats.programs import BlockId, Effort, Held, Machine, Program, ProgramStep, WrongStepError
from blinksim.formats.registry import Format
from blinksim.graphs.connectivity import grouped, joined
from blinksim.results import count as counted_as
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.textio.strict_json import Entry, parse
from blinksim.textio.text_files import Exported
from blinksim.topology.graph import Topology

MOST_OPERATIONS, MOST_BARRIERS, MOST_CHANNELS_OF_A_BLOCK = 64, 16, 16
ALIGNMENT = 16
_OPTIONAL = {"reuse_resources": False, "num_threads_per_block": 1024, "use_double_scratch_buffer": False}
_OPTIONAL |= {"buffer_alignment": ALIGNMENT, "min_message_size": 0, "max_message_size": 2**64 - 1}
_KINDS = ("nop", "barrier", "put", "signal", "wait", "copy", "re")
_MOST_GPUS = 1024
Span = tuple[int, str, int, int]


@dataclass(frozen=True, slots=True)
class Operation(ProgramStep):
    """sources and targets: (rank, buffer, first unit, units). channel: (from, to, number of that pair's channel)."""

    kind: str
    sources: tuple[Span, ...]
    targets: tuple[Span, ...]
    channel: int
    barrier: int
    blocks: int


@dataclass(frozen=True)
class Plan(Program[Operation]):
    """A file's content. twin: of channel (rank, number)."""

    twin: dict[tuple[int, int], tuple[int, int]]


def check(document: object, path: str | Path, *, root: int = 0) -> Plan:
    """Reads and carries out the plan in a JSON document.

    root: of rooted collectives, since the format does not name it. Raises `FileError` for what the executor
    refuses, what waits forever, and what does not end as promised, and `InfeasibleError` for a plan too large
    to follow.
    """
    plan = read(document, path)
    programs.check(path, {"": lambda effort: Memory(plan, effort, root=root)})
    return plan


def read_schedule(document: object, path: str | Path, topology: Topology, root: int = 0) -> Candidate:
    """The schedule of the plan in a JSON document, on the members of a selected topology.

    Raises as `check` and `programs.to_schedule`.
    """
    plan = check(document, path, root=root)
    return programs.to_schedule(path, Memory(plan, Effort(path), root=root), topology, root)


# --- reading ------------------------------------------------------------------------------------------------------


def read(document: object, path: str | Path) -> Plan:
    """The plan in a JSON document; raises `FileError` naming the key that is wrong."""
    fields = Entry(path, "", document).fields(("name", "collective", "protocol", "inplace", "gpus"), _OPTIONAL)
    name = fields["name"].text()
    if (collective := fields["collective"].text()) not in COLLECTIVES:
        raise fields["collective"].wrong(f"must be one of {', '.join(COLLECTIVES)}")
    if fields["protocol"].text() != "Simple":
        raise fields["protocol"].wrong("only plans of protocol Simple are read here")
    gpus = list(fields["gpus"].items())
    if not 1 <= len(gpus) <= _MOST_GPUS:
        raise fields["gpus"].wrong(f"lists {len(gpus)} GPUs; a plan has 1 to {_MOST_GPUS}")
    optional: dict[str, Any] = {"remote_buffers": [], "semaphores": []}
    needed = ("id", "input_chunks", "output_chunks", "scratch_chunks", "threadblocks", "channels")
    parts = [gpu.fields(needed, optional) for gpu in gpus]
    for rank, part in enumerate(parts):
        part["id"].whole(rank, rank)
    names = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
    sizes = tuple({b: part[key].whole(0 if b == "s" else 1, 2**20) for b, key in names.items()} for part in parts)
    peers: list[list[int]] = [[] for _ in parts]
    for part, others in zip(parts, peers, strict=True):
        for channel in part["channels"].items():
            keys = channel.fields(("channel_type", "connected_to"))
            if keys["channel_type"].text() != "memory":
                raise keys["channel_type"].wrong("only memory channels are read here")
            others += [peer.whole(0, len(gpus) - 1) for peer in keys["connected_to"].items()]
    # The channels of each pair, at the end of one of the two, in the order in which they are numbered there.
    ends = grouped(((rank, peer), number) for rank, others in enumerate(peers) for number, peer in enumerate(others))
    twin = {}
    for (rank, peer), numbers in ends.items():
        back = ends.get((peer, rank), []) if peer != rank else []
        if len(back) < len(numbers):
            raise parts[rank]["channels"].wrong(f"channel {numbers[len(back)]} to {peer} has no other end")
        twin.update({(rank, number): (peer, other) for number, other in zip(numbers, back, strict=False)})
    steps = {}
    for rank, part in enumerate(parts):
        places = (one.fields(("rank", "type", "access_channel_types")) for one in part["remote_buffers"].items())
        remotes = [(place["rank"].whole(0, len(gpus) - 1), _kind(place["type"])) for place in places]
        for number, block in enumerate(part["threadblocks"].items()):
            keys = block.fields(("id", "ops", "channels"), {"remote_buffer_refs": []})
            keys["id"].whole(number, number)
            channels, refs = (
                [i.whole(0, most - 1) for one in given.items() for i in one.fields((kind, ids))[ids].items()]
                for given, kind, ids, most in (
                    (keys["channels"], "channel_type", "channel_ids", len(peers[rank])),
                    (keys["remote_buffer_refs"], "access_channel_type", "remote_buffer_ids", len(remotes)),
                )
            )
            if max(len(channels), len(refs)) > MOST_CHANNELS_OF_A_BLOCK:
                raise block.wrong(f"uses more than {MOST_CHANNELS_OF_A_BLOCK} channels or remote buffers")
            there = [remotes[ref] for ref in refs]
            ops = tuple(_operation(op, rank, sizes, channels, there) for op in keys["ops"].items())
            if len(ops) > MOST_OPERATIONS:
                raise block.wrong(f"has {len(ops)} operations; the executor takes {MOST_OPERATIONS}")
            steps[rank, number] = ops
    fields["inplace"].a(bool, "true or false")
    return Plan(name, collective, max(sizes[0]["i"], sizes[0]["o"]), sizes, steps, twin)


def _kind(entry: Entry) -> str:
    if entry.text() not in ("i", "o", "s"):
        raise entry.wrong("must be i, o or s")
    return entry.text()


def _operation(
    entry: Entry, rank: int, sizes: tuple[dict[str, int], ...], channels: list[int], remotes: list[tuple[int, str]]
) -> Operation:
    optional: dict[str, Any] = {"src_buff": [], "dst_buff": [], "channel_ids": [], "channel_type": "none"}
    fields = entry.fields(("name",), optional | {"barrier_id": -1, "num_threadblocks": 0, "reduce_op": "sum"})
    if (kind := fields["name"].text()) not in _KINDS:
        raise fields["name"].wrong(f"must be one of {', '.join(_KINDS)}")

    def spans(key: str) -> tuple[Span, ...]:
        spans = []
        for item in fields[key].items():
            part = item.fields(("index", "size"), {"type": None, "buffer_id": None})
            if part["buffer_id"].value is None:
                where = rank, _kind(part["type"])
            else:
                where = remotes[part["buffer_id"].whole(0, len(remotes) - 1)]
            size = part["size"].whole(1, 2**20)
            spans.append((*where, part["index"].whole(0, sizes[where[0]][where[1]] - size), size))
        return tuple(spans)

    sources, targets = spans("src_buff"), spans("dst_buff")
    needed = {"put": (1, 1), "copy": (1, 1), "re": (2, 1)}.get(kind, (0, 0))
    if (len(sources), len(targets)) != needed or len({span[3] for span in (*sources, *targets)}) > 1:
        raise entry.wrong(f"{kind} needs {needed[0]} sources and {needed[1]} targets of one size")
    ids = [one.whole(0, len(channels) - 1) for one in fields["channel_ids"].items()]
    if kind in ("signal", "wait") and len(ids) != 1:
        raise entry.wrong(f"{kind} needs one channel here")
    barrier, blocks = fields["barrier_id"].whole(-1, MOST_BARRIERS - 1), fields["num_threadblocks"].whole(0, 1024)
    if kind == "barrier" and (barrier < 0 or blocks < 1):
        raise entry.wrong("a barrier needs barrier_id and num_threadblocks")
    return Operation(entry.place, kind, sources, targets, channels[ids[0]] if ids else -1, barrier, blocks)


# --- carrying out -------------------------------------------------------------------------------------------------


class Memory(Machine[Operation]):
    """The memory of all GPUs, signals that were sent and not yet awaited, and who waits at which barrier."""

    def __init__(self, plan: Plan, effort: Effort, *, root: int = 0) -> None:
        super().__init__(plan, effort, root, [sizes["i"] for sizes in plan.sizes])
        self.plan = plan
        self.signals: Counter[tuple[int, int]] = Counter()
        # The kind of the operation before, since all threads of a block last met.
        self._before: dict[BlockId, str] = {}
        self._waiting: defaultdict[tuple[int, int], set[BlockId]] = defaultdict(set)
        self._released: set[BlockId] = set()

    def run(self, seed: int | None = None) -> str:
        if not (wrong := super().run(seed)) and any(self.signals.values()):
            return "a signal is left over, which the next run of the plan would take for its own"
        return wrong

    def ready(self, block: BlockId, position: int) -> bool:
        op = self.steps[block][position]
        if op.kind == "wait":
            return self.signals[block[0], op.channel] > 0
        if op.kind == "barrier" and block not in self._released:
            waiting = self._waiting[block[0], op.barrier]
            waiting.add(block)
            if len(waiting) < op.blocks:
                return False
            # The last one to come lets the others go.
            self._released |= waiting
            waiting.clear()
        return True

    def carry_out(self, block: BlockId, position: int) -> None:
        op, before, rank = self.steps[block][position], self._before.get(block, ""), block[0]
        moves = op.kind in ("put", "copy", "re")
        if op.kind == "signal" and before in ("put", "copy", "re"):
            why = "other threads may still be writing; a nop belongs between"
            raise WrongStepError(f"a signal right after {before}: {why}")
        if moves and before == "wait":
            raise WrongStepError(f"{op.kind} right after wait: other threads have not waited; a nop belongs between")
        if moves:
            values: list[Held] = []
            for source, buffer, start, size in op.sources:
                part = self.read(source, buffer, start, size, f" of rank {source}")
                values = [self.trace.added(*pair) for pair in zip(values, part, strict=True)] if values else part
                self.carry(values)
            target, buffer, start, _ = op.targets[0]
            if target != rank:
                # What the block puts before it signals next over the same connection is one message.
                after = self.steps[block][position + 1 :]
                following = next((other.kind for other in after if other.kind in ("put", "signal")), "")
                # Which of the channels to the same peer it is, counted from 0.
                peers = [self.plan.twin[rank, channel][0] for channel in range(op.channel + 1)]
                nth = peers[:-1].count(peers[-1]) if peers else 0
                values = self.trace.sent(rank, target, nth, values, more=following == "put")
            self.write(target, buffer, start, values)
        elif op.kind == "signal":
            self.signals[self.plan.twin[rank, op.channel]] += 1
        elif op.kind == "wait":
            self.signals[rank, op.channel] -= 1
        elif op.kind == "barrier":
            self._released.discard(block)
        self._before[block] = "" if op.kind in ("nop", "barrier") else op.kind


# --- writing ------------------------------------------------------------------------------------------------------

Connection = tuple[int, int, int]
Numbered = tuple[int, Move]
# Thread blocks wait for each other, so all must run at once: one on every multiprocessor of the smallest GPU
# (V100).
MOST_BLOCKS = 80


@dataclass(eq=False)
class _Block:
    """A thread block. buffers: of other ranks, to which it puts. group: its barrier."""

    ops: list[dict[str, Any]] = field(default_factory=list)
    buffers: list[tuple[int, str]] = field(default_factory=list)
    group: int = -1


def export(schedule: Schedule, channels: int | None = None) -> Exported:
    """The plan of a schedule, carried out again under the executor's rules; see `registry.Format.export`."""
    if channels is not None:
        raise InputError("an MSCCL++ plan has a channel for each connection; leave channels= out")
    if len({schedule.topology.device(name).node for name in schedule.topology.members}) > 1:
        raise InfeasibleError("plans are written with memory channels, which stay in a node; take format=msccl-xml")
    plan = moves(schedule)
    text = to_text(plan, f"{schedule.algorithm}_{plan.collective}_{plan.ranks}")
    try:
        read = check(parse("the exported plan", text.encode()), "the exported plan", root=plan.root)
    except FileError as error:
        raise InfeasibleError(f"{error}: this schedule is not expressible as a plan. Take format=msccl-xml") from None
    size, scratch = ALIGNMENT * plan.units, Fraction(max(sizes["s"] for sizes in read.sizes), plan.units)
    held = f"{scratch} times the size" if scratch.denominator == 1 else f"{scratch} of the size"
    notes = [*plan.notes, f"message sizes must be multiples of {size} bytes; scratch holds {held}"]
    if schedule.collective.rooted:
        notes.append(f"the root is rank {plan.root}: the format does not name it")
    return Exported(
        files={"": text},
        summary=f"{plan.collective} of {plan.ranks} GPUs in {counted_as(plan.units, 'chunk')}, "
        f"{counted_as(read.most_blocks, 'thread block')} on the busiest GPU, up to {read.most_steps} operations each",
        facts=("every chunk ends where the collective promises, in any order of the thread blocks",),
        proof=("python: plan = mscclpp.ExecutionPlan({python}, rank); executor.execute(rank, …, plan, stream)",),
        notes=tuple(notes),
        caution="not run here on MSCCL++: check the results of a small call before you rely on it",
    )


def to_text(plan: Moves, name: str) -> str:
    """The JSON of a plan; raises `InfeasibleError` if it takes more thread blocks or operations than there are."""
    blocks = dict.fromkeys(((move.src, move.dst, move.channel) for move in plan.moves), 1)
    channels = 1 + max((move.channel for move in plan.moves), default=0)
    total = Counter((move.src, move.dst, move.channel) for move in plan.moves)
    while True:
        # A channel for each of the blocks of a connection, which go on where the one before ends.
        # What is signalled together stays together, unless it is long.
        done, dealt = Counter[Connection](), list[Move]()
        for now in _rounds(list(enumerate(plan.moves))):
            for connection, message in _messages(now, joined=plan.joined):
                for number, (_, move) in enumerate(message):
                    place = done[connection] + (number if len(message) > MOST_OPERATIONS // 2 else 0)
                    block = place * blocks[connection] // total[connection]
                    dealt.append(replace(move, channel=move.channel + channels * block))
                done[connection] += len(message)
        gpus, crowded = _gpus(replace(plan, moves=tuple(dealt)))
        if not crowded:
            break
        for (src, dst, channel), operations in crowded.items():
            connection = (src, dst, channel % channels)
            blocks[connection] += -(-operations // MOST_OPERATIONS) - 1
            mine = sum(number for ends, number in blocks.items() if src in ends[:2])
            if mine > MOST_BLOCKS or blocks[connection] > len(plan.moves):
                has = f"a thread block of rank {src} has {operations} operations"
                takes = f"MSCCL++ takes {MOST_OPERATIONS} in each of {MOST_BLOCKS}"
                cure = "with fewer steps (algorithm=chains, two_shot), or take format=msccl-xml"
                raise InfeasibleError(f"{has}, and {takes}. Build the schedule {cure}")
    head = {"name": name, "collective": plan.collective, "protocol": "Simple", "inplace": False}
    return json.dumps({**head, **_OPTIONAL, "max_message_size": 2**32 - 1, "gpus": gpus}, indent=1) + "\n"


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
    # The receiver says that its memory is free; the sender waits for that once.
    blocks = {c: _Block([_sync("wait"), _NOP] if c[0] == rank else [_sync("signal")]) for c in mine}
    used = [(number, move) for number, move in enumerate(plan.moves) if rank in (move.src, move.dst)]
    barriers = _Barriers(blocks, rank, used)
    for now in _rounds(used):
        for connection, message in _messages([one for one in now if one[1].src == rank], joined=plan.joined):
            block = blocks[connection]
            barriers.before(block, [move.slot_read for _, move in message])
            for number, move in message:
                into = staging.get(number, move.into)
                target = (move.dst, into.buffer)
                if target not in block.buffers:
                    block.buffers.append(target)
                remote = {"buffer_id": block.buffers.index(target), "index": into.start, "size": move.units}
                put = {"name": "put", "src_buff": [_buffer(move.reads, move.units)], "dst_buff": [remote]}
                block.ops.append(put | {"channel_ids": [0], "channel_type": "memory"})
            block.ops += [_NOP, _sync("signal")]
        for connection, message in _messages([one for one in now if one[1].dst == rank], joined=plan.joined):
            block = blocks[connection]
            barriers.before(block, [move.slot_written for _, move in message], writes=True)
            block.ops += [_sync("wait"), _NOP]
            for number, move in (one for one in message if one[0] in staging):
                if move.operand is None:
                    block.ops.append(_local("copy", [staging[number]], move.into, move.units))
                else:
                    added = _local("re", [move.operand, staging[number]], move.into, move.units)
                    block.ops.append(added | {"reduce_op": "sum"})
    copies = [_local("copy", [source], target, units) for owner, source, target, units in plan.copies if owner == rank]
    listed = list(blocks.values())
    listed += [_Block(copies[first : first + MOST_OPERATIONS]) for first in range(0, len(copies), MOST_OPERATIONS)]
    remotes = sorted({place for block in listed for place in block.buffers})
    threadblocks = []
    for position, block in enumerate(listed):
        channels = [{"channel_type": "memory", "channel_ids": [position]}] if position < len(mine) else []
        refs = [remotes.index(target) for target in block.buffers]
        remote_refs = [{"access_channel_type": "memory", "remote_buffer_ids": refs}] if refs else []
        threadblocks.append({"id": position, "ops": block.ops, "channels": channels, "remote_buffer_refs": remote_refs})
    sizes = {"input_chunks": plan.inputs, "output_chunks": plan.outputs, "scratch_chunks": scratch}
    peers = {"channel_type": "memory", "connected_to": [b if a == rank else a for a, b, _ in mine]}
    places = [{"rank": peer, "type": kind, "access_channel_types": ["memory"]} for peer, kind in remotes]
    parts = {"threadblocks": threadblocks, "channels": [peers], "remote_buffers": places, "semaphores": []}
    return {"id": rank, **sizes, **parts}


def _rounds(moves: list[Numbered]) -> list[list[Numbered]]:
    """The moves of each round, one round after the other."""
    return [list(now) for _, now in groupby(moves, key=lambda entry: entry[1].round)]


def _messages(moves: list[Numbered], *, joined: bool) -> list[tuple[Connection, list[Numbered]]]:
    """The moves of a round that are signalled together, with their connection: all of it, or each by itself."""
    keys = (((move.src, move.dst, move.channel), -1 if joined else number) for number, move in moves)
    return [(connection, message) for (connection, _), message in grouped(zip(keys, moves, strict=True)).items()]


# --- operations ---------------------------------------------------------------------------------------------------


# All threads of the block meet.
_NOP = {"name": "nop"}


def _sync(name: str) -> dict[str, Any]:
    return {"name": name, "channel_ids": [0], "channel_type": "memory"}


def _buffer(place: Place, units: int) -> dict[str, Any]:
    return {"type": place.buffer, "index": place.start, "size": units}


def _local(name: str, sources: list[Place], target: Place, units: int) -> dict[str, Any]:
    buffers = [_buffer(source, units) for source in sources]
    return {"name": name, "src_buff": buffers, "dst_buff": [_buffer(target, units)]}


class _Barriers:
    """Puts a barrier where a block needs what another one of its group did since the last.

    Blocks that touch the same data, directly or through others, are a group.
    """

    def __init__(self, blocks: dict[Connection, _Block], rank: int, used: list[Numbered]) -> None:
        last, beside = dict[str, Connection](), list[tuple[Connection, Connection]]()
        for _, move in used:
            connection = (move.src, move.dst, move.channel)
            slot = move.slot_read if move.src == rank else move.slot_written
            beside.append((connection, last.get(slot, connection)))
            last[slot] = connection
        self.groups: defaultdict[int, list[_Block]] = defaultdict(list)
        first = joined(blocks, beside)
        for number, connections in enumerate(grouped((first[one], one) for one in blocks).values()):
            for block in map(blocks.__getitem__, connections):
                block.group = number % MOST_BARRIERS
                self.groups[block.group].append(block)
        self.written: dict[str, _Block] = {}
        self.read: dict[str, set[_Block]] = {}

    def before(self, block: _Block, slots: Sequence[str], *, writes: bool = False) -> None:
        """A block is about to read or write slots, which others may have written, or may read."""
        readers = {reader for slot in slots if writes for reader in self.read.get(slot, ())}
        if any(self.written.get(slot, block) is not block for slot in slots) or readers - {block}:
            group, members = block.group, self.groups[block.group]
            for other in members:
                other.ops.append({"name": "barrier", "barrier_id": group, "num_threadblocks": len(members)})
            self.written = {slot: by for slot, by in self.written.items() if by.group != group}
            self.read = {slot: by for slot, by in self.read.items() if all(one.group != group for one in by)}
        for slot in slots:
            if writes:
                self.written[slot] = block
            else:
                self.read.setdefault(slot, set()).add(block)


def is_plan(document: object) -> bool:
    """True for a parsed JSON document that is an execution plan."""
    return isinstance(document, Mapping) and document.keys() >= {"gpus", "protocol", "collective"}


FORMAT = Format(
    "mscclpp-json",
    export,
    takes=lambda given: is_plan(given.document),
    read=lambda given, part, root: read_schedule(given.document, given.path, part, root),
)
