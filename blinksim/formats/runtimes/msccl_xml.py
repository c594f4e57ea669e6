"""MSCCL algorithm files: programs of thread blocks, written, read as runtimes read them, run symbolically.

A thread block sends to one peer at most, receives from one, and runs its steps in order; a step may wait for
one step of another block of its GPU, and further waits take steps that do nothing. Attributes and limits are
those of the runtimes' parsers: RCCL (src/misc/msccl), Microsoft's MSCCL and its executor for NCCL
(msccl-tools language/ir.py). MSCCL: Cowan et al., "MSCCLang", ASPLOS 2023.

The symbolic run holds for every unit of data the set of contributions in it, and moves thread blocks step by
step. In the end every rank must have what the collective promises: out of place, in place where the file
allows that, and in any order of the thread blocks. No block may wait forever: a step puts its chunks, as many
at a time as fit, into the buffers of a connection, and goes on as these get free.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from blinksim.collective import COLLECTIVES, OWN, Collective
from blinksim.errors import FileError, InfeasibleError
from blinksim.formats import programs
from blinksim.formats.moves import INPUT, OUTPUT, Move, Moves, Place, moves
from blinksim.formats.programs import BlockId, Effort, Held, Machine, Program, ProgramStep, WrongStepError
from blinksim.formats.registry import Format
from blinksim.graphs.connectivity import grouped
from blinksim.results import count as counted_as
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.textio import safe_xml
from blinksim.textio.safe_xml import Element, fault, integer, word
from blinksim.textio.text_files import Exported, most_channels
from blinksim.topology.elements import RCCL
from blinksim.topology.graph import Topology

MOST_CHANNELS, MOST_BLOCKS, MOST_STEPS, RCCL_STEPS, MOST_COUNT = 32, 32, 256, 64, 71
# Buffers of a connection, and bytes in each: one of NCCL's 8 slots (NCCL_STEPS), in Simple two slices of 2.
BUFFERS = {"Simple": (2, 2 << 20), "LL": (8, 32 << 10), "LL128": (8, 576_000)}
KINDS = ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop")
_SENDS, _RECEIVES, _ADDS = ("s", "rcs", "rrs", "rrcs"), ("r", "rcs", "rrs", "rrc", "rrcs"), ("rrs", "rrc", "rrcs")
_WRITES = ("r", "rcs", "rrc", "rrcs", "cpy", "re")
_PARENTS = {"gpu": ("algo",), "tb": ("gpu",), "step": ("tb",)}
_MOST_GPUS, _MOST_UNITS, _LARGEST = 1024, 32767, 2**59


# (sender, receiver, channel)
Connection = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Step(ProgramStep):
    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    count: int
    wait: tuple[int, int] | None
    awaited: bool
    line: int

    def waits(self, rank: int, done: Counter[BlockId]) -> bool:
        """True if a block of GPU `rank` that it waits for has done too few steps."""
        return self.wait is not None and done[rank, self.wait[0]] <= self.wait[1]


@dataclass(frozen=True)
class Algorithm(Program[Step]):
    """A file's content. units: ``nchunksperloop``. ends: of every thread block (to, from, channel).

    lacks: attributes that RCCL demands. fits: chunks that a buffer holds at the largest size of the file.
    buffers: that a connection must have, once `check_text` knows.
    """

    protocol: str
    in_place: bool
    out_of_place: bool
    ends: dict[BlockId, tuple[int, int, int]]
    lacks: tuple[str, ...]
    fits: int
    buffers: int = 1

    @property
    def channels(self) -> int:
        return 1 + max((channel for _, _, channel in self.ends.values()), default=0)

    def connections(self, block: BlockId) -> tuple[Connection, Connection]:
        """Those that a block sends and receives on."""
        send, receive, channel = self.ends[block]
        return (block[0], send, channel), (receive, block[0], channel)


def check_text(text: str, path: str | Path, *, root: int = 0, slots: int | None = None) -> Algorithm:
    """Reads and carries out an algorithm file.

    root: of rooted collectives, since the format does not name it. slots: buffers of a connection, by default
    those of the protocol. Raises `FileError` for what the runtimes refuse, what waits forever or ends
    otherwise than promised, and `InfeasibleError` for a file too large to follow.
    """
    algorithm, effort = read_text(text, path), Effort(path)
    places = [False] * algorithm.out_of_place + [True] * algorithm.in_place or [False]
    labels = {f" ({'in' if inside else 'out of'} place)": inside for inside in places}
    programs.check(path, {at: partial(Buffers, algorithm, root=root, in_place=labels[at]) for at in labels})
    most = max((sum(step.count for step in steps) for steps in algorithm.steps.values()), default=1)
    needed = 1 + bisect_left(range(1, most), True, key=lambda held: not _waiting(algorithm, held, effort))
    held = slots or BUFFERS[algorithm.protocol][0]
    if needed > held:
        waiting = _waiting(algorithm, held, effort)
        raise FileError(path, f"{waiting}: needs connections of {needed} buffers, and these have {held}")
    return replace(algorithm, buffers=needed)


def _waiting(algorithm: Algorithm, buffers: int, effort: Effort) -> str:
    """The first thread block that waits forever where a connection has so many buffers, empty if all end.

    What a block can do, it can do until it does: the order of the blocks changes nothing.
    """
    # Steps that a block has done, buffers that it moved in the next, and those in use on a connection.
    done, moved, held = Counter[BlockId](), Counter[BlockId](), Counter[Connection]()
    moving = True
    while moving:
        moving = False
        for block, steps in algorithm.steps.items():
            out, into = algorithm.connections(block)
            while done[block] < len(steps) and not (step := steps[done[block]]).waits(block[0], done):
                effort.spend(1)
                sends, receives = step.kind in _SENDS, step.kind in _RECEIVES
                left = -(-step.count // algorithm.fits) - moved[block]
                now = min(left, buffers - held[out] if sends else left, held[into] if receives else left)
                held[out] += now * sends
                held[into] -= now * receives
                moved[block] += now
                moving = moving or now > 0 or not left
                if now < left:
                    break
                done[block] += 1
                moved[block] = 0
    for block, steps in sorted(algorithm.steps.items()):
        if done[block] < len(steps):
            return f"{steps[done[block]].where}: thread block {block[1]} of GPU {block[0]} waits forever"
    return ""


def read_schedule(text: str, path: str | Path, topology: Topology, root: int = 0) -> Candidate:
    """The schedule of an algorithm file on the members of a selected topology.

    Raises as `check_text` and `programs.to_schedule`.
    """
    algorithm = check_text(text, path, root=root)
    buffers = Buffers(algorithm, Effort(path), root=root, in_place=not algorithm.out_of_place)
    return programs.to_schedule(path, buffers, topology, root)


# --- reading ------------------------------------------------------------------------------------------------------


def read_text(text: str, path: str | Path) -> Algorithm:
    """The algorithm in a file; raises `FileError` with the line for what a runtime's parser does not take."""
    root = safe_xml.parse(text, path, root="algo")
    safe_xml.check_places(path, root, _PARENTS)
    name, protocol = word(path, root, "name"), word(path, root, "proto")
    if protocol not in BUFFERS:
        raise fault(path, root, f"proto must be one of {', '.join(BUFFERS)}")
    # TACCL and the first runtime write an underscore.
    collective = word(path, root, "coll").replace("reduce_scatter", "reducescatter")
    if collective not in COLLECTIVES:
        raise fault(path, root, f"coll={collective[:20]!r} is not one of {', '.join(COLLECTIVES)}")
    count = integer(path, root, "ngpus", low=1, high=_MOST_GPUS)
    channels = integer(path, root, "nchannels", low=1, high=MOST_CHANNELS)
    least = integer(path, root, "minBytes", low=0, high=_LARGEST, default=0)
    largest = integer(path, root, "maxBytes", low=0, high=_LARGEST, default=_LARGEST)
    if least > largest:
        raise fault(path, root, "minBytes is more than maxBytes")
    ends: dict[BlockId, tuple[int, int, int]] = {}
    steps: dict[BlockId, tuple[Step, ...]] = {}
    sizes: list[dict[str, int]] = []
    for rank, gpu in enumerate(root.named("gpu")):
        if integer(path, gpu, "id", low=0, high=_MOST_GPUS) != rank:
            raise fault(path, gpu, f"id must be {rank}: GPUs are numbered from 0 in order")
        sizes.append({b: integer(path, gpu, f"{b}_chunks", low=0, high=2**20) for b in "ios"})
        for number, block in enumerate(gpu.named("tb")):
            if integer(path, block, "id", low=0, high=10_000) != number:
                raise fault(path, block, f"id must be {number}: thread blocks are numbered from 0 in order")
            channel = integer(path, block, "chan", low=0, high=channels - 1)
            send, receive = (integer(path, block, name, low=-1, high=count - 1) for name in ("send", "recv"))
            if rank in (send, receive):
                raise fault(path, block, f"GPU {rank} is its own peer")
            own = tuple(_step(path, step, s, sizes[rank], send, receive) for s, step in enumerate(block.named("step")))
            if len(own) > MOST_STEPS:
                raise fault(path, block, f"{len(own)} steps; the runtimes take {MOST_STEPS}")
            ends[rank, number], steps[rank, number] = (send, receive, channel), own
    if len(sizes) != count:
        raise fault(path, root, f"{len(sizes)} <gpu> for ngpus={count}")
    units = integer(path, root, "nchunksperloop", low=1, high=_MOST_UNITS)
    inside = bool(integer(path, root, "inplace", low=0, high=1))
    outside = bool(integer(path, root, "outofplace", low=0, high=1, default=1 - inside))
    # What TACCL and the first runtime do not know, and later ones demand.
    lacks = tuple(later for later in ("outofplace", "minBytes", "maxBytes") if later not in root.attributes)
    fits = max(1, BUFFERS[protocol][1] * units // max(1, largest))
    algorithm = Algorithm(name, collective, units, tuple(sizes), steps, protocol, inside, outside, ends, lacks, fits)
    if channels != algorithm.channels:
        raise fault(path, root, f"nchannels={channels}, but the highest channel is another")
    _check_together(path, root, algorithm)
    return algorithm


def _check_together(path: str | Path, root: Element, algorithm: Algorithm) -> None:
    """A connection has one block at either end, with as many sends as receives; awaited steps are there."""
    connections: defaultdict[Connection, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    used: Counter[tuple[int, int]] = Counter()
    for (rank, number), steps in algorithm.steps.items():
        ends = algorithm.connections((rank, number))
        used[rank, ends[0][2]] += 1
        for connection, end, kinds in zip(ends, (0, 1), (_SENDS, _RECEIVES), strict=True):
            if min(connection) >= 0:
                connections[connection][end].append(sum(step.kind in kinds for step in steps))
        for (other, position), line in ((step.wait, step.line) for step in steps if step.wait):
            awaited = algorithm.steps.get((rank, other), ())
            what = f"<step>: waits for step {position} of block {other}, which"
            if other == number or position >= len(awaited):
                raise FileError(path, f"{what} is not there", line)
            if not awaited[position].awaited:
                raise FileError(path, f"{what} needs hasdep=1", line)
    for (rank, channel), blocks in used.items():
        if blocks > MOST_BLOCKS:
            raise fault(path, root, f"over {MOST_BLOCKS} thread blocks of GPU {rank} on channel {channel}")
    for (a, b, channel), (out, into) in connections.items():
        if len(out) != 1 or out != into:
            what = f"blocks that send {out}, that receive {into}"
            raise fault(path, root, f"connection {a}->{b} on channel {channel}: {what}")


def _step(path: str | Path, element: Element, position: int, sizes: dict[str, int], send: int, receive: int) -> Step:
    if integer(path, element, "s", low=0, high=MOST_STEPS) != position:
        raise fault(path, element, f"s must be {position}: steps are numbered from 0 in order")
    if (kind := word(path, element, "type")) not in KINDS:
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
    wait, line = on if on[0] >= 0 else None, element.line
    return Step(f"line {line}", kind, places[0], places[1], count, wait, awaited, line)


# --- carrying out -------------------------------------------------------------------------------------------------


class Buffers(Machine[Step]):
    """The buffers of all GPUs and what is under way between them.

    In place, input and output share memory as NCCL's buffers do.
    """

    stuck = "thread block {1} of GPU {0} waits forever, whatever connections hold"

    def __init__(self, algorithm: Algorithm, effort: Effort, *, root: int = 0, in_place: bool = False) -> None:
        self.connections = {block: algorithm.connections(block) for block in algorithm.steps}
        self.in_place = in_place
        self.done: Counter[BlockId] = Counter()
        self.queues: defaultdict[Connection, deque[list[Held]]] = defaultdict(deque)
        usual = Collective(algorithm.collective, root).buffers(algorithm.units, algorithm.ranks)
        # In place, a buffer that the file gives no chunks is part of the other.
        self.sizes = [
            {buffer: sizes[buffer] or (length if in_place else 0) for buffer, length in zip("io", usual, strict=True)}
            for sizes in algorithm.sizes
        ]
        super().__init__(algorithm, effort, root, [sizes["i"] for sizes in self.sizes])

    def ready(self, block: BlockId, position: int) -> bool:
        step = self.steps[block][position]
        empty = step.kind in _RECEIVES and not self.queues[self.connections[block][1]]
        return not (empty or step.waits(block[0], self.done))

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
        rank, (out, into) = block[0], self.connections[block]
        step, added = self.steps[block][position], self.trace.added
        if step.kind == "nop":
            return
        arrived = self.queues[into].popleft() if step.kind in _RECEIVES else []
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
        self.carry(values)
        if step.kind in _WRITES:
            self.write(rank, *step.target, values)
        if step.kind in _SENDS:
            self.queues[out].append(self.trace.sent(*out, values, more=False))


# --- writing ------------------------------------------------------------------------------------------------------

SEND, RECEIVE, REDUCE_IN, COPY, NOTHING = "s", "r", "rrc", "cpy", "nop"
_NOWHERE = Place(INPUT, -1)
# What loads a file: Microsoft's MSCCL (its README), and RCCL with MSCCL built in (its
# misc/msccl/msccl_lifecycle.cc and AMD's "RCCL usage tips" of ROCm 7.2; those of 7.13 say that it is gone).
_MSCCL_LOADS = {"MSCCL_XML_FILES": "{file}", "NCCL_ALGO": "MSCCL,RING,TREE"}
_RCCL_LOADS = {"MSCCL_ALGO_DIR": "{folder}", "RCCL_MSCCL_FORCE_ENABLE": "1"}
_RCCL_SAYS = "NCCL INFO Using MSCCL files from {folder}"
_MSCCL_SAYS = "NCCL INFO … MSCCL: … algorithm loaded (the words differ between runtimes)"
_FOR_NCCL = "stock NCCL cannot load it; Microsoft's executor for NCCL reads all files of the folder in MSCCL_ALGO_DIR"
_FOR_RCCL = "RCCL takes every file of that folder for an algorithm: leave nothing else in it"
_UNTRIED = "not run here on a runtime: check the results of a small call before you rely on it"


@dataclass(eq=False)
class _Step:
    """One step; place: in its block. waits: the steps that it waits for. number: with waits counted.

    known: how many steps of every block are done when this one is, by what it and the steps before it waited
    for.
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
        known[id(self)] = len(self.steps) + 1
        self.steps.append(_Step(kind, source, target, count, self, len(self.steps), needed, known))
        return self.steps[-1]


def export(schedule: Schedule, channels: int | None = None) -> Exported:
    """The XML of a schedule, interpreted again under the runtimes' rules; see `registry.Format.export`."""
    most = most_channels(channels, MOST_CHANNELS, MOST_CHANNELS, "the runtimes have 32")
    if (steps := 2 * schedule.sends) > (limit := safe_xml.MAX_ELEMENTS):
        raise InfeasibleError(f"{steps:,} steps, and readers take {limit:,}. Take another algorithm=")
    plan = moves(schedule)
    # A step no longer than a connection holds goes out at once. Longer ones make shorter files, but may wait.
    for longest in (MOST_COUNT, BUFFERS["Simple"][0]):
        text = to_text(plan, f"{schedule.algorithm}_{plan.collective}_{plan.ranks}", most, longest)
        try:
            read = check_text(text, "the exported file", root=plan.root)
            break
        except FileError as error:
            wrong = error
    else:
        raise InfeasibleError(f"{wrong}. Take another algorithm=")
    on_amd = schedule.topology.device(schedule.topology.members[0]).library == RCCL
    held = counted_as(read.buffers, "buffer")
    notes = [*plan.notes, _FOR_RCCL if on_amd else _FOR_NCCL]
    if schedule.collective.rooted:
        notes.append(f"the root is rank {plan.root}, whatever the call says: the format does not name it")
    if read.most_steps > RCCL_STEPS:
        takes = f"RCCL takes {RCCL_STEPS}, the other runtimes {MOST_STEPS}"
        notes.append(f"a thread block has {read.most_steps} steps; {takes}")
    if schedule.form == "forest":
        notes.append("the runtime's own slices pipeline the data along the trees")
    return Exported(
        files={"": text},
        summary=f"{plan.collective} of {plan.ranks} GPUs in {counted_as(plan.units, 'chunk')}, "
        f"{counted_as(read.most_blocks, 'thread block')} on the busiest GPU, {counted_as(read.channels, 'channel')}",
        facts=(f"every chunk ends where the collective promises, with {held} a connection and in any order",),
        environment=_RCCL_LOADS if on_amd else _MSCCL_LOADS,
        proof=(_RCCL_SAYS if on_amd else _MSCCL_SAYS,),
        notes=tuple(notes),
        caution=f"RCCL reads such files up to ROCm 7.2, no longer in 7.13; {_UNTRIED}" if on_amd else _UNTRIED,
    )


def to_text(plan: Moves, name: str, most: int = MOST_CHANNELS, longest: int = MOST_COUNT) -> str:
    """The XML of a plan; more than `most` channels are folded onto those. longest: step, in chunks.

    Raises `InfeasibleError` for more thread blocks or steps than the runtimes have.
    """
    number = {channel: place % most for place, channel in enumerate(sorted({move.channel for move in plan.moves}))}
    own = grouped((rank, move) for move in plan.moves for rank in {move.src, move.dst})
    used = 1 + max(number.values(), default=0)
    lines = [
        f'<algo name="{name}" proto="Simple" nchannels="{used}" nchunksperloop="{plan.units}" ngpus="{plan.ranks}" '
        f'coll="{plan.collective}" inplace="{int(plan.aliased)}" outofplace="1" minBytes="0" maxBytes="4294967296">'
    ]
    # Rank by rank: a plan that the first one cannot hold costs no more than that one.
    for rank in range(plan.ranks):
        # In parts that a step can move, each data of its own: two GPUs that exchange something long would
        # otherwise wait for each other's last part before they take the first one.
        mine = [move.part(start, longest) for move in own.get(rank, ()) for start in range(0, move.units, longest)]
        chunks = f'i_chunks="{plan.inputs}" o_chunks="{plan.outputs}" s_chunks="{plan.scratch[rank]}"'
        blocks = _gpu_lines(rank, _blocks(plan, rank, mine, number))
        lines += [f'  <gpu id="{rank}" {chunks}>', *blocks, "  </gpu>"]
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
            has = f"a thread block of rank {rank} has {len(program)} steps"
            cure = "Build the schedule with fewer chunks or more channels"
            raise InfeasibleError(f"{has}, and the runtimes take {MOST_STEPS}. {cure}")
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
    takes=lambda given: safe_xml.outermost(given.text) == "algo",
    read=lambda given, part, root: read_schedule(given.text, given.path, part, root),
)
