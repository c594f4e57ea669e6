"""MSCCL's algorithm files read as the runtimes read them, and carried out symbolically.

Every unit of data is the set of contributions in it, thread blocks run step by step with bounded connections, and in
the end every rank must have what the collective promises: out of place, in place where the file allows that, and
in any order of the thread blocks. The limits are those of RCCL's parser and of Microsoft's MSCCL (see `msccl_xml`).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from blinksim.collective import COLLECTIVES, OWN, Collective
from blinksim.errors import FileError
from blinksim.formats.msccl.thread_blocks import (
    FILL,
    BlockId,
    Contents,
    Contributions,
    Effort,
    V,
    Value,
    holds_input,
    interleave,
    listed,
    promised,
)
from blinksim.textio import safe_xml
from blinksim.textio.safe_xml import Element, fault, integer, word

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
    algorithm, effort = read_text(text, path), Effort(path)
    ways = [False] * algorithm.out_of_place + [True] * algorithm.in_place
    for in_place in ways or [False]:
        for seed in range(_ORDERS):
            wrong = run(algorithm, effort, root=root, slots=slots, in_place=in_place, seed=seed)
            if wrong:
                raise FileError(path, f"{wrong} ({'in' if in_place else 'out of'} place)")
    return Counted(
        max(len(gpu.blocks) for gpu in algorithm.gpus),
        max((len(block.steps) for gpu in algorithm.gpus for block in gpu.blocks), default=0),
        1 + max((block.channel for gpu in algorithm.gpus for block in gpu.blocks), default=0),
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
    return machine.run(seed) or _unkept(machine)


def _unkept(machine: Buffers[Value]) -> str:
    """The first promise of the collective that is not kept, as a sentence."""
    for rank, unit, expected in promised(machine.collective, len(machine.algorithm.gpus), machine.algorithm.units):
        machine.effort.spend(len(expected))
        found = machine.memory.get(machine.place(rank, "o", unit), Counter())
        if found != expected:
            missing, extra = listed(expected - found), listed(found - expected)
            what = f"lacks {missing[:3]}" if missing else f"has {extra[:3]} too much"
            return f"GPU {rank} ends with the wrong o[{unit}]: it {what} (rank, chunk)"
    return ""


class Buffers(Generic[V]):
    """The buffers of all GPUs and the connections between them.

    contents: what is known of each unit. effort: what is left of it is used. slots: sends that a connection holds. In
    place, input and output share memory as NCCL's buffers do.
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
        self.algorithm, self.contents, self.effort = algorithm, contents, effort
        self.slots, self.in_place = slots, in_place
        self.collective = Collective(algorithm.collective, root)
        self.done: Counter[BlockId] = Counter()
        self.queues: defaultdict[tuple[int, int, int], deque[list[V]]] = defaultdict(deque)
        self.memory: dict[tuple[int, str, int], V] = {}
        self.lengths = [self._lengths(gpu) for gpu in algorithm.gpus]
        for rank, lengths in enumerate(self.lengths):
            if holds_input(self.collective, rank):
                effort.spend(FILL * lengths["i"])
                for unit in range(lengths["i"]):
                    self.memory[self.place(rank, "i", unit)] = contents.own(rank, unit)

    def run(self, seed: int | None = None) -> str:
        """Runs all blocks; returns what goes wrong, as a sentence. seed: as for `interleave`."""
        gpus = self.algorithm.gpus
        lengths = {(a, b): len(block.steps) for a, gpu in enumerate(gpus) for b, block in enumerate(gpu.blocks)}
        stopped = interleave(lengths, self, seed, self.effort)
        if stopped is None:
            return ""
        (rank, number), position, wrong = stopped
        line = gpus[rank].blocks[number].steps[position].line
        return f"line {line}: {wrong or f'thread block {number} of GPU {rank} waits forever'}"

    def _lengths(self, gpu: Gpu) -> dict[str, int]:
        """Units of a GPU's input and output; in place, a buffer that the file gives no chunks is part of the other."""
        usual = dict(zip("io", self.collective.buffers(self.algorithm.units, len(self.algorithm.gpus)), strict=True))
        return {buffer: gpu.sizes[buffer] or (usual[buffer] if self.in_place else 0) for buffer in "io"}

    def _at(self, place: BlockId, position: int) -> tuple[Step, Block, deque[list[V]], deque[list[V]]]:
        """A step, its block, and the connections that the block sends and receives on."""
        rank, number = place
        block = self.algorithm.gpus[rank].blocks[number]
        out, into = (rank, block.send, block.channel), (block.receive, rank, block.channel)
        return block.steps[position], block, self.queues[out], self.queues[into]

    def ready(self, block: BlockId, position: int) -> bool:
        step, _, out, into = self._at(block, position)
        if step.wait is not None and self.done[block[0], step.wait[0]] <= step.wait[1]:
            return False
        return not ((step.kind in _SENDS and len(out) >= self.slots) or (step.kind in _RECEIVES and not into))

    def carry_out(self, block: BlockId, position: int) -> str:
        self.done[block] = position + 1
        return self.step(block[0], *self._at(block, position))

    def place(self, rank: int, buffer: str, unit: int) -> tuple[int, str, int]:
        """The key of a unit in `memory`; in place, two buffers share it."""
        if self.in_place and buffer != "s":
            sizes = self.lengths[rank]
            if self.collective.vectors(2) == 1 and OWN in (self.collective.starts, self.collective.ends):
                # One of the two is a block of the other: the rank's own.
                if buffer == "i" and self.collective.starts == OWN:
                    return rank, "o", rank * sizes["i"] + unit
                if buffer == "o" and self.collective.ends == OWN:
                    return rank, "i", rank * sizes["o"] + unit
            else:
                return rank, "io", unit
        return rank, buffer, unit

    def step(self, rank: int, step: Step, block: Block, out: deque[list[V]], into: deque[list[V]]) -> str:
        """Carries out one step; returns what is wrong with it."""
        if step.kind == "nop":
            return ""
        arrived = into.popleft() if step.kind in _RECEIVES else []
        if arrived and len(arrived) != step.count:
            return f"receives {step.count} chunks where {len(arrived)} were sent"
        values = arrived
        added = self.contents.added
        if step.kind in ("s", "cpy", "re") or step.kind in _ADDS:
            own = [self.memory.get(self.place(rank, step.source[0], step.source[1] + k)) for k in range(step.count)]
            if any(value is None for value in own):
                return f"reads {step.source[0]}[{step.source[1]}], where nothing is"
            present = [value for value in own if value is not None]
            values = [added(a, b) for a, b in zip(arrived, present, strict=True)] if step.kind in _ADDS else present
        if step.kind == "re":
            old = [self.memory.get(self.place(rank, step.target[0], step.target[1] + k)) for k in range(step.count)]
            values = [b if a is None else added(a, b) for a, b in zip(old, values, strict=True)]
        self.effort.spend(self.contents.effort(values))
        if step.kind in _WRITES:
            for k, value in enumerate(values):
                self.memory[self.place(rank, step.target[0], step.target[1] + k)] = value
        if step.kind in _SENDS:
            out.append(self.contents.sent(rank, block.send, block.channel, values, more=False))
        return ""
