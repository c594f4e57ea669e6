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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from blinksim.collective import COLLECTIVES, OWN, Collective
from blinksim.errors import FileError, InfeasibleError
from blinksim.formats import programs
from blinksim.formats.moves import INPUT, OUTPUT, Move, Moves, Place, moves
from blinksim.formats.programs import BlockId, Contents, Effort, Machine, Program, V, WrongStepError
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


@dataclass(frozen=True, slots=True)
class Step:
    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    count: int
    wait: tuple[int, int] | None
    awaited: bool
    line: int

    @property
    def where(self) -> str:
        return f"line {self.line}"


@dataclass(frozen=True)
class Algorithm(Program[Step]):
    """A file's content. units: ``nchunksperloop``. ends: of every thread block (to, from, channel)."""

    in_place: bool
    out_of_place: bool
    ends: dict[BlockId, tuple[int, int, int]]

    @property
    def channels(self) -> int:
        return 1 + max((channel for _, _, channel in self.ends.values()), default=0)


def check_text(text: str, path: str | Path, *, root: int = 0, slots: int = 1) -> Algorithm:
    """Reads and carries out an algorithm file.

    root: of rooted collectives, since the format does not name it. slots: sends that a connection holds. Raises
    `FileError` for anything that the runtimes refuse, that waits forever, or that does not end as promised, and
    `InfeasibleError` for a file too large to follow.
    """
    algorithm, effort = read_text(text, path), Effort(path)
    for inside in [False] * algorithm.out_of_place + [True] * algorithm.in_place or [False]:

        def buffers(contents: Contents[programs.Value], inside: bool = inside) -> Buffers[programs.Value]:
            return Buffers(algorithm, contents, effort, root=root, slots=slots, in_place=inside)

        programs.check(path, buffers, f" ({'in' if inside else 'out of'} place)")
    return algorithm


def read_schedule(text: str, path: str | Path, topology: Topology, root: int = 0) -> Candidate:
    """The schedule of an algorithm file on the members of a selected topology.

    Raises as `check_text` and `programs.to_schedule`.
    """
    algorithm = check_text(text, path, root=root)

    def buffers(trace: programs.Trace) -> Buffers[programs.Held]:
        return Buffers(algorithm, trace, Effort(path), root=root, in_place=not algorithm.out_of_place)

    return programs.to_schedule(path, algorithm, buffers, topology, root)


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
    ends: dict[BlockId, tuple[int, int, int]] = {}
    steps: dict[BlockId, tuple[Step, ...]] = {}
    sizes = tuple(_gpu(path, rank, gpu, count, channels, ends, steps) for rank, gpu in enumerate(gpus))
    _check_connections(path, root, ends, steps, channels)
    units = integer(path, root, "nchunksperloop", low=1, high=_MOST_UNITS)
    inside, outside = (bool(integer(path, root, name, low=0, high=1)) for name in ("inplace", "outofplace"))
    return Algorithm(word(path, root, "name"), collective, units, sizes, steps, inside, outside, ends)


def _check_connections(
    path: str | Path,
    root: Element,
    ends: dict[BlockId, tuple[int, int, int]],
    steps: dict[BlockId, tuple[Step, ...]],
    channels: int,
) -> None:
    """Every connection has one block at either end, with as many sends as receives."""
    connections: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}
    for (rank, number), (send, receive, channel) in ends.items():
        kinds = [step.kind for step in steps[rank, number]]
        if send >= 0:
            connections.setdefault((rank, send, channel), ([], []))[0].append(sum(kind in _SENDS for kind in kinds))
        if receive >= 0:
            into = connections.setdefault((receive, rank, channel), ([], []))[1]
            into.append(sum(kind in _RECEIVES for kind in kinds))
    for (a, b, channel), (out, into) in connections.items():
        if len(out) != 1 or len(into) != 1 or out != into:
            raise fault(
                path, root, f"connection {a}->{b} on channel {channel}: blocks that send {out}, that receive {into}"
            )
    if channels != 1 + max((channel for _, _, channel in ends.values()), default=0):
        raise fault(path, root, f"nchannels={channels}, but the highest channel is another")


def _gpu(
    path: str | Path,
    rank: int,
    element: Element,
    count: int,
    channels: int,
    ends: dict[BlockId, tuple[int, int, int]],
    steps: dict[BlockId, tuple[Step, ...]],
) -> dict[str, int]:
    """The sizes of a GPU's buffers; ends and steps of its blocks are put beside those of the others."""
    sizes = {b: integer(path, element, f"{b}_chunks", low=0, high=2**20) for b in "ios"}
    blocks, used = list(element.named("tb")), Counter[int]()
    for number, block in enumerate(blocks):
        if integer(path, block, "id", low=0, high=10_000) != number:
            raise fault(path, block, f"id must be {number}: thread blocks are numbered from 0 in order")
        channel = integer(path, block, "chan", low=0, high=channels - 1)
        used[channel] += 1
        if used[channel] > MOST_BLOCKS:
            raise fault(path, block, f"more than {MOST_BLOCKS} thread blocks on channel {channel}")
        send, receive = (integer(path, block, name, low=-1, high=count - 1) for name in ("send", "recv"))
        if rank in (send, receive):
            raise fault(path, block, f"GPU {rank} is its own peer")
        own = [_step(path, step, s, sizes, send, receive) for s, step in enumerate(block.named("step"))]
        if len(own) > MOST_STEPS:
            raise fault(path, block, f"{len(own)} steps; the runtimes take {MOST_STEPS}")
        ends[rank, number], steps[rank, number] = (send, receive, channel), tuple(own)
    for number in range(len(blocks)):
        for step in steps[rank, number]:
            if step.wait is None:
                continue
            other, position = step.wait
            awaited = steps.get((rank, other), ())
            if other == number or position >= len(awaited):
                raise FileError(
                    path, f"<step>: waits for step {position} of block {other}, which is not there", step.line
                )
            if not awaited[position].awaited:
                raise FileError(path, f"<step>: step {position} of block {other} needs hasdep=1", step.line)
    return sizes


def _step(path: str | Path, element: Element, position: int, sizes: dict[str, int], send: int, receive: int) -> Step:
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
    if (kind in _SENDS and send < 0) or (kind in _RECEIVES and receive < 0):
        raise fault(path, element, f"type={kind} in a thread block without that peer")
    on = integer(path, element, "depid", low=-1, high=10_000), integer(path, element, "deps", low=-1, high=MOST_STEPS)
    if (on[0] < 0) != (on[1] < 0):
        raise fault(path, element, "depid and deps are both -1, or neither is")
    awaited = bool(integer(path, element, "hasdep", low=0, high=1))
    return Step(kind, places[0], places[1], count, on if on[0] >= 0 else None, awaited, element.line)


# --- carrying out -------------------------------------------------------------------------------------------------


class Buffers(Machine[V, Step]):
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
        self.ends, self.slots, self.in_place = algorithm.ends, slots, in_place
        self.done: Counter[BlockId] = Counter()
        self.queues: defaultdict[tuple[int, int, int], deque[list[V]]] = defaultdict(deque)
        usual = Collective(algorithm.collective, root).buffers(algorithm.units, algorithm.ranks)
        # In place, a buffer that the file gives no chunks is part of the other.
        self.sizes = [
            {buffer: sizes[buffer] or (length if in_place else 0) for buffer, length in zip("io", usual, strict=True)}
            for sizes in algorithm.sizes
        ]
        super().__init__(algorithm, contents, effort, root, [sizes["i"] for sizes in self.sizes])

    def waits_forever(self, block: BlockId) -> str:
        return f"thread block {block[1]} of GPU {block[0]} waits forever"

    def _connections(self, block: BlockId) -> tuple[deque[list[V]], deque[list[V]]]:
        """Those that a block sends and receives on."""
        send, receive, channel = self.ends[block]
        return self.queues[block[0], send, channel], self.queues[receive, block[0], channel]

    def ready(self, block: BlockId, position: int) -> bool:
        step, (out, into) = self.steps[block][position], self._connections(block)
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
        rank, (out, into) = block[0], self._connections(block)
        step, added = self.steps[block][position], self.contents.added
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
            send, _, channel = self.ends[block]
            out.append(self.contents.sent(rank, send, channel, values, more=False))


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
    place: int
    waits: list[_Step]
    known: Counter[int]
    number: int = -1
    awaited: bool = False


@dataclass(eq=False)
class _Block:
    """One thread block: peers by rank, -1 for none."""

    send: int
    receive: int
    channel: int
    steps: list[_Step] = field(default_factory=list)

    def add(self, kind: str, source: Place, target: Place, count: int, waits: list[_Step]) -> _Step:
        """A step behind the others, with those of the waits that tell something new."""
        known = Counter(self.steps[-1].known if self.steps else ())
        needed = []
        # The last step that was added tells most.
        for other in sorted(waits, key=lambda step: -step.known.total()):
            if known[id(other.block)] <= other.place:
                needed.append(other)
                known |= other.known
        place = len(self.steps)
        known[id(self)] = place + 1
        self.steps.append(_Step(kind, source, target, count, self, place, needed, known))
        return self.steps[-1]


def export(schedule: Schedule, channels: int | None = None) -> Exported:
    """The XML of a schedule, interpreted again under the runtimes' rules; see `registry.Format.export`."""
    most = most_channels(channels, MOST_CHANNELS, MOST_CHANNELS, "the runtimes have 32")
    plan = moves(schedule)
    text = to_text(plan, f"{schedule.algorithm}_{plan.collective}_{plan.ranks}", most)
    try:
        read = check_text(text, "the exported file", root=plan.root)
    except FileError as error:
        raise InfeasibleError(
            f"{error}: this schedule needs connections that hold more than one send. Take another algorithm="
        ) from None
    on_amd = schedule.topology.device(schedule.topology.members[0]).library == RCCL
    notes = [*plan.notes, _FOR_RCCL if on_amd else _FOR_NCCL]
    if schedule.collective.rooted:
        notes.append(f"the root is rank {plan.root}, whatever the call says: the format does not name it")
    if read.most_steps > RCCL_STEPS:
        notes.append(
            f"a thread block has {read.most_steps} steps; RCCL takes {RCCL_STEPS}, the other runtimes {MOST_STEPS}"
        )
    if schedule.form == "forest":
        notes.append("the runtime's own slices pipeline the data along the trees")
    return Exported(
        files={"": text},
        summary=f"{plan.collective} of {plan.ranks} GPUs in {counted_as(plan.units, 'chunk')}, "
        f"{counted_as(read.most_blocks, 'thread block')} on the busiest GPU, {counted_as(read.channels, 'channel')}",
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
            # In parts that a step can move, each data of its own: two GPUs that exchange something long would
            # otherwise wait for each other's last part before they take the first one.
            if move.units <= MOST_COUNT:
                parts = [move]
            else:
                parts = [
                    replace(
                        move,
                        units=min(MOST_COUNT, move.units - start),
                        reads=move.reads.after(start),
                        into=move.into.after(start),
                        operand=None if move.operand is None else move.operand.after(start),
                        slot_read=f"{move.slot_read} from {start}",
                        slot_written=f"{move.slot_written} from {start}",
                    )
                    for start in range(0, move.units, MOST_COUNT)
                ]
            own[rank] += parts
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
    # The step that last wrote a piece of data, and those that read it since.
    written: dict[str, list[_Step]] = {}
    read: defaultdict[str, list[_Step]] = defaultdict(list)

    def block(send: int, receive: int, chan: int) -> _Block:
        return blocks.setdefault((send, receive, chan), _Block(send, receive, chan))

    for _, group in groupby(mine, key=lambda move: move.round):
        now = list(group)
        for move in (move for move in now if move.src == rank):
            to, waits = block(move.dst, -1, channel[move.channel]), written.get(move.slot_read, [])
            read[move.slot_read].append(to.add(SEND, move.reads, move.reads, move.units, waits))
        for move in (move for move in now if move.dst == rank):
            kind, source = (RECEIVE, move.into) if move.operand is None else (REDUCE_IN, move.operand)
            waits = [*read.pop(move.slot_written, ()), *written.get(move.slot_written, ())]
            by = block(-1, move.src, channel[move.channel])
            written[move.slot_written] = [by.add(kind, source, move.into, move.units, waits)]
    # Copies that continue each other are one.
    copies: list[tuple[Place, Place, int]] = []
    for source, target, units in sorted(
        (copy[1:] for copy in plan.copies if copy[0] == rank), key=lambda copy: (copy[0].buffer, copy[0].start)
    ):
        if copies:
            a, b, n = copies[-1]
            if (a.after(n), b.start + n) == (source, target.start):
                copies[-1] = (a, b, n + units)
                continue
        copies.append((source, target, units))
    for source, target, units in copies:
        local = block(-1, -1, 0)
        for start in range(0, units, MOST_COUNT):
            local.add(COPY, source.after(start), target.after(start), min(MOST_COUNT, units - start), [])
    return list(blocks.values())


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
    most = max(Counter(block.channel for block in blocks).values(), default=0)
    if most > MOST_BLOCKS:
        raise InfeasibleError(f"rank {rank} has {most} thread blocks on one channel; the runtimes take {MOST_BLOCKS}")
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
