"""MSCCL's algorithm files: programs of thread blocks, for RCCL, Microsoft's MSCCL and its executor for NCCL.

A thread block sends to one peer at most, receives from one, and runs its steps in order; a step may wait for one step
of another block of its GPU; further waits take steps that do nothing. The attributes are those that the runtimes'
parsers ask for (RCCL src/misc/msccl, msccl-tools language/ir.py). MSCCL: Cowan et al., "MSCCLang", ASPLOS 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from blinksim.errors import FileError, InfeasibleError
from blinksim.formats.msccl.moves import INPUT, OUTPUT, Move, Moves, Place, moves
from blinksim.formats.msccl.msccl_check import (
    MOST_BLOCKS,
    MOST_CHANNELS,
    MOST_COUNT,
    MOST_STEPS,
    RCCL_STEPS,
    check_text,
)
from blinksim.schedule.model import Schedule
from blinksim.textio.text_table import count as counted_as
from blinksim.textio.whole_files import Exported, most_channels
from blinksim.topology.elements import RCCL

SEND, RECEIVE, REDUCE_IN, COPY, NOTHING = "s", "r", "rrc", "cpy", "nop"
_NOWHERE = Place(INPUT, -1)
# What loads a file: Microsoft's MSCCL (its README), and RCCL with MSCCL built in (its misc/msccl/msccl_lifecycle.cc and
# AMD's "RCCL usage tips" of ROCm 7.2; those of 7.13 say that it is gone).
_MSCCL_LOADS = {"MSCCL_XML_FILES": "{file}", "NCCL_ALGO": "MSCCL,RING,TREE"}
_RCCL_LOADS = {"MSCCL_ALGO_DIR": "{folder}", "RCCL_MSCCL_FORCE_ENABLE": "1"}
_FOR_NCCL = "stock NCCL cannot load it; Microsoft's executor for NCCL reads all files of the folder in MSCCL_ALGO_DIR"
_FOR_RCCL = "RCCL takes every file of that folder for an algorithm: leave nothing else in it"
_UNTRIED = "not run here on a runtime: check the results of a small call before you rely on it"


@dataclass(eq=False)
class _Step:
    """One step; place: in its block. waits: the steps that it waits for. number: with waits counted.

    known: how many steps of every block are done when this one is, by what it and the steps before it waited for.
    """

    kind: str
    source: Place
    target: Place
    count: int
    block: _Block
    place: int = 0
    waits: list[_Step] = field(default_factory=list)
    number: int = -1
    awaited: bool = False
    known: dict[int, int] = field(default_factory=dict)

    def settle(self, before: _Step | None) -> None:
        """Keeps the waits that tell something new; `before`: the step before it in its block.

        Whatever it waits for must be settled.
        """
        self.known = dict(before.known) if before else {}
        kept = []
        # The last step that was settled tells most.
        for other in sorted(self.waits, key=lambda step: -sum(step.known.values())):
            if self.known.get(id(other.block), 0) <= other.place:
                kept.append(other)
                self.known = {key: max(self.known.get(key, 0), other.known.get(key, 0))
                              for key in (self.known.keys() | other.known.keys())}  # fmt: skip
        self.waits = kept
        self.known[id(self.block)] = self.place + 1


@dataclass(eq=False)
class _Block:
    """One thread block: peers by rank, -1 for none."""

    send: int
    receive: int
    channel: int
    steps: list[_Step] = field(default_factory=list)

    def add(self, kind: str, source: Place, target: Place, count: int, waits: list[_Step]) -> _Step:
        """A step behind the others."""
        step = _Step(kind, source, target, count, self, len(self.steps), waits)
        step.settle(self.steps[-1] if self.steps else None)
        self.steps.append(step)
        return step


@dataclass
class _Data:
    """The step that last wrote a piece of data, and those that read it since."""

    written: _Step | None = None
    read: list[_Step] = field(default_factory=list)


def export(schedule: Schedule, channels: int | None = None) -> Exported:
    """The XML of a schedule, interpreted again under the runtimes' rules; see `exports.Format.export`."""
    most = most_channels(channels, MOST_CHANNELS, MOST_CHANNELS, "the runtimes have 32")
    plan = moves(schedule)
    text = to_text(plan, f"{schedule.algorithm}_{plan.collective}_{plan.ranks}", most)
    try:
        counted = check_text(text, "the exported file", root=plan.root)
    except FileError as error:
        raise InfeasibleError(
            f"{error}: this schedule needs connections that hold more than one send. Take another algorithm="
        ) from None
    on_amd = schedule.topology.device(schedule.topology.members[0]).library == RCCL
    notes = [*plan.notes, _FOR_RCCL if on_amd else _FOR_NCCL]
    if schedule.collective.rooted:
        notes.append(f"the root is rank {plan.root}, whatever the call says: the format does not name it")
    if counted.steps > RCCL_STEPS:
        notes.append(
            f"a thread block has {counted.steps} steps; RCCL takes {RCCL_STEPS}, the other runtimes {MOST_STEPS}"
        )
    if schedule.form == "forest":
        notes.append("the runtime's own slices pipeline the data along the trees")
    return Exported(
        files={"": text},
        summary=f"{plan.collective} of {plan.ranks} GPUs in {counted_as(plan.units, 'chunk')}, "
        f"{counted_as(counted.blocks, 'thread block')} on the busiest GPU, {counted_as(counted.channels, 'channel')}",
        facts=("every chunk ends where the collective promises, with one buffer a connection and in any order",),
        environment=_RCCL_LOADS if on_amd else _MSCCL_LOADS,
        proof=("NCCL INFO Using MSCCL files from {folder}",)
        if on_amd
        else ("NCCL INFO … MSCCL: … algorithm loaded (the words differ between runtimes)",),
        notes=tuple(notes),
        caution=f"RCCL reads such files up to ROCm 7.2, no longer in 7.13; {_UNTRIED}" if on_amd else _UNTRIED,
    )


def to_text(plan: Moves, name: str, most: int = MOST_CHANNELS) -> str:
    """The XML of a plan; more than `most` channels are folded onto those.

    Raises `InfeasibleError` for more thread blocks or steps than the runtimes have.
    """
    number = {channel: place % most for place, channel in enumerate(sorted({move.channel for move in plan.moves}))}
    own: list[list[Move]] = [[] for _ in range(plan.ranks)]
    for move in plan.moves:
        for rank in {move.src, move.dst}:
            own[rank] += _parts(move)
    both = int(plan.aliased)
    used = 1 + max(number.values(), default=0)
    lines = [
        f'<algo name="{name}" proto="Simple" nchannels="{used}" nchunksperloop="{plan.units}" ngpus="{plan.ranks}" '
        f'coll="{plan.collective}" inplace="{both}" outofplace="1" minBytes="0" maxBytes="4294967296">'
    ]
    # Rank by rank: a plan that the first one cannot hold costs no more than that one.
    for rank, mine in enumerate(own):
        lines.append(
            f'  <gpu id="{rank}" i_chunks="{plan.inputs}" o_chunks="{plan.outputs}" s_chunks="{plan.scratch[rank]}">'
        )
        lines += _gpu_lines(rank, _blocks(plan, rank, mine, number))
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>"]) + "\n"


def _blocks(plan: Moves, rank: int, mine: Sequence[Move], channel: dict[int, int]) -> list[_Block]:
    """The thread blocks of one rank: one for each connection out and each one in, and one for local copies.

    mine: the moves from and to it, in order.
    """
    blocks: dict[tuple[int, int, int], _Block] = {}
    data: dict[str, _Data] = {}

    def block(send: int, receive: int, chan: int) -> _Block:
        return blocks.setdefault((send, receive, chan), _Block(send, receive, chan))

    first = 0
    while first < len(mine):
        last = first
        while last < len(mine) and mine[last].round == mine[first].round:
            last += 1
        for move in (move for move in mine[first:last] if move.src == rank):
            here = data.setdefault(move.slot_read, _Data())
            waits = [here.written] if here.written else []
            to = block(move.dst, -1, channel[move.channel])
            here.read.append(to.add(SEND, move.reads, move.reads, move.units, waits))
        for move in (move for move in mine[first:last] if move.dst == rank):
            here = data.setdefault(move.slot_written, _Data())
            kind = RECEIVE if move.operand is None else REDUCE_IN
            source = move.into if move.operand is None else move.operand
            waits = [*here.read, *([here.written] if here.written else [])]
            by = block(-1, move.src, channel[move.channel])
            data[move.slot_written] = _Data(by.add(kind, source, move.into, move.units, waits))
        first = last
    copies = [(source, target, units) for owner, source, target, units in plan.copies if owner == rank]
    for source, target, units in _joined(copies):
        local = block(-1, -1, 0)
        for start, count in _counts(units):
            local.add(COPY, source.after(start), target.after(start), count, [])
    return list(blocks.values())


def _counts(units: int) -> Iterator[tuple[int, int]]:
    """Where the parts of so many units start that a step can move, and how many units each has."""
    for start in range(0, units, MOST_COUNT):
        yield start, min(MOST_COUNT, units - start)


def _parts(move: Move) -> list[Move]:
    """A move in parts that a step can move.

    Each is data of its own: two GPUs that exchange something long would otherwise wait for each other's last part
    before they take the first one.
    """
    if move.units <= MOST_COUNT:
        return [move]
    return [
        replace(
            move,
            units=count,
            reads=move.reads.after(start),
            into=move.into.after(start),
            operand=None if move.operand is None else move.operand.after(start),
            slot_read=f"{move.slot_read} from {start}",
            slot_written=f"{move.slot_written} from {start}",
        )
        for start, count in _counts(move.units)
    ]


def _joined(copies: list[tuple[Place, Place, int]]) -> list[tuple[Place, Place, int]]:
    """Copies with those that continue each other made one."""
    found: list[tuple[Place, Place, int]] = []
    for source, target, units in sorted(copies, key=lambda copy: (copy[0].buffer, copy[0].start)):
        if found:
            a, b, n = found[-1]
            if (a.buffer, a.start + n, b.start + n) == (source.buffer, source.start, target.start):
                found[-1] = (a, b, n + units)
                continue
        found.append((source, target, units))
    return found


def _gpu_lines(rank: int, blocks: list[_Block]) -> list[str]:
    programs: list[list[tuple[_Step | None, _Step | None]]] = []
    for block in blocks:
        program: list[tuple[_Step | None, _Step | None]] = []
        for step in block.steps:
            program += [(None, other) for other in step.waits[:-1]]
            step.number = len(program)
            program.append((step, step.waits[-1] if step.waits else None))
            for other in step.waits:
                other.awaited = True
        programs.append(program)
        if len(program) > MOST_STEPS:
            raise InfeasibleError(
                f"a thread block of rank {rank} has {len(program)} steps, and the runtimes take {MOST_STEPS}. Build "
                "the schedule with fewer chunks or more channels"
            )
    per_channel: dict[int, int] = {}
    for block in blocks:
        per_channel[block.channel] = per_channel.get(block.channel, 0) + 1
    if per_channel and max(per_channel.values()) > MOST_BLOCKS:
        raise InfeasibleError(
            f"rank {rank} has {max(per_channel.values())} thread blocks on one channel; the runtimes take {MOST_BLOCKS}"
        )
    place = {id(block): position for position, block in enumerate(blocks)}
    lines = []
    for position, (block, program) in enumerate(zip(blocks, programs, strict=True)):
        lines.append(f'    <tb id="{position}" send="{block.send}" recv="{block.receive}" chan="{block.channel}">')
        lines += [_step_line(number, step, wait, place) for number, (step, wait) in enumerate(program)]
        lines.append("    </tb>")
    return lines


def _step_line(number: int, step: _Step | None, wait: _Step | None, place: dict[int, int]) -> str:
    kind, count = (step.kind, step.count) if step else (NOTHING, 0)
    source, target = (step.source, step.target) if step else (_NOWHERE, Place(OUTPUT, -1))
    block, on = (place[id(wait.block)], wait.number) if wait else (-1, -1)
    return (
        f'      <step s="{number}" type="{kind}" srcbuf="{source.buffer}" srcoff="{source.start}" '
        f'dstbuf="{target.buffer}" dstoff="{target.start}" cnt="{count}" depid="{block}" deps="{on}" '
        f'hasdep="{int(step is not None and step.awaited)}"/>'
    )
