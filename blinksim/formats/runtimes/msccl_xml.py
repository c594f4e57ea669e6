"""MSCCL algorithm files: programs of thread blocks, written, read as runtimes read them, run symbolically.

A thread block sends to one peer at most, receives from one, and runs its steps in order; a step may wait for
one step of another block of its GPU, and further waits take steps that do nothing. Attributes and limits are
those of the runtimes' parsers: RCCL (src/misc/msccl), Microsoft's MSCCL and its executor for NCCL
(msccl-tools language/ir.py). MSCCL: Cowan et al., "MSCCLang", ASPLOS 2023.

The symbolic run holds for every unit of data the set of contributions in it, and moves thread blocks step by
step over bounded connections. In the end every rank must have what the collective promises: out of place, in
place where the file allows that, and in any order of the thread blocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from blinksim.collective import COLLECTIVES, OWN
from blinksim.errors import FileError, InfeasibleError
from blinksim.formats.moves import INPUT, OUTPUT, Move, Moves, Place, moves
from blinksim.formats.programs import (
    BlockId,
    Contents,
    Contributions,
    Effort,
    Machine,
    V,
    WrongStepError,
    to_schedule,
    unkept,
)
from blinksim.formats.registry import Format
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.textio import safe_xml
from blinksim.textio.safe_xml import Element, fault, integer, word
from blinksim.textio.text_table import count as counted_as
from blinksim.textio.whole_files import Exported, most_channels
from blinksim.topology.elements import RCCL
from blinksim.topology.graph import Topology

MOST_CHANNELS, MOST_BLOCKS, MOST_STEPS, RCCL_STEPS, MOST_COUNT = 32, 32, 256, 64, 71
PROTOCOLS = ("Simple", "LL", "LL128")
KINDS = ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop")
_SENDS, _RECEIVES, _ADDS = ("s", "rcs", "rrs", "rrcs"), ("r", "rcs", "rrs", "rrc", "rrcs"), ("rrs", "rrc", "rrcs")
_WRITES = ("r", "rcs", "rrc", "rrcs", "cpy", "re")
_PARENTS = {"gpu": ("algo",), "tb": ("gpu",), "step": ("tb",)}
_MOST_GPUS, _MOST_UNITS = 1024, 32767
_ORDERS = 3


@dataclass(frozen=True, slots=True)
class Step:
    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    count: int
    wait: tuple[int, int] | None
    awaited: bool
    line: int


@dataclass(frozen=True, slots=True)
class Block:
    send: int
    receive: int
    channel: int
    steps: tuple[Step, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Gpu:
    sizes: dict[str, int]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A file's content. units: ``nchunksperloop``."""

    name: str
    collective: str
    units: int
    in_place: bool
    out_of_place: bool
    gpus: tuple[Gpu, ...]

    @property
    def ranks(self) -> int:
        return len(self.gpus)


@dataclass(frozen=True, slots=True)
class Counted:
    """The most thread blocks of a GPU, the most steps of one, and the channels."""

    blocks: int
    steps: int
    channels: int


def check_text(text: str, path: str | Path, *, root: int = 0, slots: int = 1) -> Counted:
    """Reads and carries out an algorithm file; returns what was counted.

    root: of rooted collectives, since the format does not name it. slots: sends that a connection holds. Raises
    `FileError` for anything that the runtimes refuse, that waits forever, or that does not end as promised, and
    `InfeasibleError` for a file too large to follow.
    """
    return _checked(text, path, root, slots)[1]


def read_schedule(text: str, path: str | Path, topology: Topology, root: int = 0) -> Candidate:
    """The schedule of an algorithm file on the members of a selected topology.

    Raises as `check_text` and `programs.to_schedule`.
    """
    algorithm, _ = _checked(text, path, root, 1)
    in_place = not algorithm.out_of_place
    return to_schedule(
        path,
        algorithm,
        lambda trace: Buffers(algorithm, trace, Effort(path), root=root, in_place=in_place),
        topology,
        root,
    )


def _checked(text: str, path: str | Path, root: int, slots: int) -> tuple[Algorithm, Counted]:
    algorithm, effort = read_text(text, path), Effort(path)
    ways = [False] * algorithm.out_of_place + [True] * algorithm.in_place
    for in_place in ways or [False]:
        for seed in range(_ORDERS):
            wrong = run(algorithm, effort, root=root, slots=slots, in_place=in_place, seed=seed)
            if wrong:
                raise FileError(path, f"{wrong} ({'in' if in_place else 'out of'} place)")
    blocks = [block for gpu in algorithm.gpus for block in gpu.blocks]
    return algorithm, Counted(
        max(len(gpu.blocks) for gpu in algorithm.gpus),
        max((len(block.steps) for block in blocks), default=0),
        1 + max((block.channel for block in blocks), default=0),
    )


# --- reading ------------------------------------------------------------------------------------------------------


def read_text(text: str, path: str | Path) -> Algorithm:
    """The algorithm in a file; raises `FileError` with the line for what a runtime's parser does not take."""
    root = safe_xml.parse(text, path, root="algo")
    safe_xml.check_places(path, root, _PARENTS)
    for name in ("name", "proto", "coll", "nchannels", "inplace", "outofplace", "minBytes", "maxBytes"):
        word(path, root, name)
    if word(path, root, "proto") not in PROTOCOLS:
        raise fault(path, root, f"proto must be one of {', '.join(PROTOCOLS)}")
    collective = word(path, root, "coll")
    if collective not in COLLECTIVES:
        raise fault(path, root, f"coll={collective[:20]!r} is not one of {', '.join(COLLECTIVES)}")
    count = integer(path, root, "ngpus", low=1, high=_MOST_GPUS)
    channels = integer(path, root, "nchannels", low=1, high=MOST_CHANNELS)
    if integer(path, root, "minBytes", low=0, high=2**62) > integer(path, root, "maxBytes", low=0, high=2**62):
        raise fault(path, root, "minBytes is more than maxBytes")
    gpus = list(root.named("gpu"))
    for number, gpu in enumerate(gpus):
        if integer(path, gpu, "id", low=0, high=_MOST_GPUS) != number:
            raise fault(path, gpu, f"id must be {number}: GPUs are numbered from 0 in order")
    if len(gpus) != count:
        raise fault(path, root, f"{len(gpus)} <gpu> for ngpus={count}")
    read = tuple(_gpu(path, gpu, count, channels) for gpu in gpus)
    _check_connections(path, root, read, channels)
    return Algorithm(
        word(path, root, "name"),
        collective,
        integer(path, root, "nchunksperloop", low=1, high=_MOST_UNITS),
        bool(integer(path, root, "inplace", low=0, high=1)),
        bool(integer(path, root, "outofplace", low=0, high=1)),
        read,
    )


def _gpu(path: str | Path, element: Element, count: int, channels: int) -> Gpu:
    sizes = {b: integer(path, element, f"{b}_chunks", low=0, high=2**20) for b in "ios"}
    blocks, used = [], Counter[int]()
    for number, child in enumerate(element.named("tb")):
        if integer(path, child, "id", low=0, high=10_000) != number:
            raise fault(path, child, f"id must be {number}: thread blocks are numbered from 0 in order")
        channel = integer(path, child, "chan", low=0, high=channels - 1)
        used[channel] += 1
        if used[channel] > MOST_BLOCKS:
            raise fault(path, child, f"more than {MOST_BLOCKS} thread blocks on channel {channel}")
        peers = [integer(path, child, name, low=-1, high=count - 1) for name in ("send", "recv")]
        steps = tuple(_step(path, step, position, sizes, peers) for position, step in enumerate(child.named("step")))
        if len(steps) > MOST_STEPS:
            raise fault(path, child, f"{len(steps)} steps; the runtimes take {MOST_STEPS}")
        blocks.append(Block(peers[0], peers[1], channel, steps, child.line))
    for number, block in enumerate(blocks):
        for step in block.steps:
            if step.wait is None:
                continue
            other, position = step.wait
            if other >= len(blocks) or other == number or position >= len(blocks[other].steps):
                raise FileError(
                    path, f"<step>: waits for step {position} of block {other}, which is not there", step.line
                )
            if not blocks[other].steps[position].awaited:
                raise FileError(path, f"<step>: step {position} of block {other} needs hasdep=1", step.line)
    return Gpu(sizes, tuple(blocks))


def _step(path: str | Path, element: Element, position: int, sizes: dict[str, int], peers: list[int]) -> Step:
    if integer(path, element, "s", low=0, high=MOST_STEPS) != position:
        raise fault(path, element, f"s must be {position}: steps are numbered from 0 in order")
    kind = word(path, element, "type")
    if kind not in KINDS:
        raise fault(path, element, f"type={kind[:20]!r} is not one of {', '.join(KINDS)}")
    count = integer(path, element, "cnt", low=0 if kind == "nop" else 1, high=MOST_COUNT)
    places = []
    for end in ("src", "dst"):
        buffer, start = word(path, element, f"{end}buf"), integer(path, element, f"{end}off", low=-1, high=2**20)
        if buffer not in sizes:
            raise fault(path, element, f"{end}buf={buffer[:20]!r} is not i, o or s")
        if kind != "nop" and not 0 <= start <= sizes[buffer] - count:
            raise fault(path, element, f"{end}off={start} and cnt={count} leave the {sizes[buffer]} chunks of {buffer}")
        places.append((buffer, start))
    if (kind in _SENDS and peers[0] < 0) or (kind in _RECEIVES and peers[1] < 0):
        raise fault(path, element, f"type={kind} in a thread block without that peer")
    on = integer(path, element, "depid", low=-1, high=10_000), integer(path, element, "deps", low=-1, high=MOST_STEPS)
    if (on[0] < 0) != (on[1] < 0):
        raise fault(path, element, "depid and deps are both -1, or neither is")
    awaited = bool(integer(path, element, "hasdep", low=0, high=1))
    return Step(kind, places[0], places[1], count, on if on[0] >= 0 else None, awaited, element.line)


def _check_connections(path: str | Path, root: Element, gpus: tuple[Gpu, ...], channels: int) -> None:
    """Every connection has one block at either end, with as many sends as receives."""
    ends: dict[tuple[int, int, int], list[list[int]]] = {}
    for rank, gpu in enumerate(gpus):
        for block in gpu.blocks:
            for way, peer, kinds in ((0, block.send, _SENDS), (1, block.receive, _RECEIVES)):
                if peer < 0:
                    continue
                if peer == rank:
                    raise FileError(path, f"<tb>: GPU {rank} is its own peer", block.line)
                key = (rank, peer, block.channel) if way == 0 else (peer, rank, block.channel)
                found = ends.setdefault(key, [[], []])
                found[way].append(sum(step.kind in kinds for step in block.steps))
    for (a, b, channel), (out, into) in ends.items():
        if len(out) != 1 or len(into) != 1 or out != into:
            raise fault(
                path, root, f"connection {a}->{b} on channel {channel}: blocks that send {out}, that receive {into}"
            )
    if channels != 1 + max((block.channel for gpu in gpus for block in gpu.blocks), default=0):
        raise fault(path, root, f"nchannels={channels}, but the highest channel is another")


# --- carrying out -------------------------------------------------------------------------------------------------


def run(
    algorithm: Algorithm,
    effort: Effort | None = None,
    *,
    root: int = 0,
    slots: int = 1,
    in_place: bool = False,
    seed: int = 0,
) -> str:
    """What goes wrong when the file is carried out, as a sentence; empty if all ends as promised.

    seed: decides which thread block goes first where several can. effort: what is left of it is used.
    """
    machine = Buffers(algorithm, Contributions(), effort or Effort(), root=root, slots=slots, in_place=in_place)
    return machine.run(seed) or unkept(machine)


class Buffers(Machine[V]):
    """The buffers of all GPUs and the connections between them.

    slots: sends that a connection holds. In place, input and output share memory as NCCL's buffers do.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        contents: Contents[V],
        effort: Effort,
        *,
        root: int = 0,
        slots: int = 1,
        in_place: bool = False,
    ) -> None:
        blocks = {(a, b): block for a, gpu in enumerate(algorithm.gpus) for b, block in enumerate(gpu.blocks)}
        super().__init__(algorithm, {at: len(block.steps) for at, block in blocks.items()}, contents, effort, root)
        self.blocks, self.slots, self.in_place = blocks, slots, in_place
        self.done: Counter[BlockId] = Counter()
        self.queues: defaultdict[tuple[int, int, int], deque[list[V]]] = defaultdict(deque)
        usual = dict(zip("io", self.collective.buffers(algorithm.units, algorithm.ranks), strict=True))
        # In place, a buffer that the file gives no chunks is part of the other.
        self.sizes = [
            {buffer: gpu.sizes[buffer] or (usual[buffer] if in_place else 0) for buffer in "io"}
            for gpu in algorithm.gpus
        ]
        self.fill(sizes["i"] for sizes in self.sizes)

    def where(self, block: BlockId, position: int) -> str:
        return f"line {self.blocks[block].steps[position].line}"

    def waits_forever(self, block: BlockId) -> str:
        return f"thread block {block[1]} of GPU {block[0]} waits forever"

    def _connections(self, at: BlockId) -> tuple[deque[list[V]], deque[list[V]]]:
        """Those that a block sends and receives on."""
        block = self.blocks[at]
        return self.queues[at[0], block.send, block.channel], self.queues[block.receive, at[0], block.channel]

    def ready(self, block: BlockId, position: int) -> bool:
        step, (out, into) = self.blocks[block].steps[position], self._connections(block)
        if step.wait is not None and self.done[block[0], step.wait[0]] <= step.wait[1]:
            return False
        return not ((step.kind in _SENDS and len(out) >= self.slots) or (step.kind in _RECEIVES and not into))

    def place(self, rank: int, buffer: str, unit: int) -> tuple[int, str, int]:
        """As in `Machine`; in place, two buffers share it."""
        if self.in_place and buffer != "s":
            sizes = self.sizes[rank]
            if self.collective.vectors(2) == 1 and OWN in (self.collective.starts, self.collective.ends):
                # One of the two is a block of the other: the rank's own.
                if buffer == "i" and self.collective.starts == OWN:
                    return rank, "o", rank * sizes["i"] + unit
                if buffer == "o" and self.collective.ends == OWN:
                    return rank, "i", rank * sizes["o"] + unit
            else:
                return rank, "io", unit
        return rank, buffer, unit

    def carry_out(self, block: BlockId, position: int) -> None:
        self.done[block] = position + 1
        rank, own, (out, into) = block[0], self.blocks[block], self._connections(block)
        step, added = own.steps[position], self.contents.added
        if step.kind == "nop":
            return
        arrived = into.popleft() if step.kind in _RECEIVES else []
        if arrived and len(arrived) != step.count:
            raise WrongStepError(f"receives {step.count} chunks where {len(arrived)} were sent")
        values = arrived
        if step.kind in ("s", "cpy", "re") or step.kind in _ADDS:
            values = self.read(rank, *step.source, step.count)
            if step.kind in _ADDS:
                values = [added(a, b) for a, b in zip(arrived, values, strict=True)]
        if step.kind == "re":
            old = [self.memory.get(self.place(rank, step.target[0], step.target[1] + k)) for k in range(step.count)]
            values = [b if a is None else added(a, b) for a, b in zip(old, values, strict=True)]
        self.effort.spend(self.contents.effort(values))
        if step.kind in _WRITES:
            self.write(rank, *step.target, values)
        if step.kind in _SENDS:
            out.append(self.contents.sent(rank, own.send, own.channel, values, more=False))


# --- writing ------------------------------------------------------------------------------------------------------

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
    """The XML of a schedule, interpreted again under the runtimes' rules; see `registry.Format.export`."""
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
        for number, (here, wait) in enumerate(program):
            kind, count = (here.kind, here.count) if here else (NOTHING, 0)
            source, target = (here.source, here.target) if here else (_NOWHERE, Place(OUTPUT, -1))
            before, on = (place[id(wait.block)], wait.number) if wait else (-1, -1)
            lines.append(
                f'      <step s="{number}" type="{kind}" srcbuf="{source.buffer}" srcoff="{source.start}" '
                f'dstbuf="{target.buffer}" dstoff="{target.start}" cnt="{count}" depid="{before}" deps="{on}" '
                f'hasdep="{int(here is not None and here.awaited)}"/>'
            )
        lines.append("    </tb>")
    return lines


FORMAT = Format(
    "msccl-xml",
    export,
    takes=lambda given: given.outermost == "algo",
    read=lambda given, part, root: read_schedule(given.text, given.path, part, root),
)
