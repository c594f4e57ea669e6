"""Emulated machines: every link of another machine is a wire, a fixed number of thread blocks on real GPUs.

What a thread block can copy to another GPU is limited, and blocks add up (`blinksim run --pairs` measures
it), so a block in charge of one link makes a machine of slow links out of a fast switch: it carries all sends
over the link, of any tree and channel, and nothing else stores to another GPU. Wires only copy; sums and
results in a GPU's own memory are the work of further blocks, so that a wire is as fast for reduced data as
for data passed on. A wire takes what is ready, the least advanced first.

A link of several lanes passes several messages at once, each at the rate of a lane. If lanes are separate (as
wires are), their load has to be dealt out before anything runs: equal parts of every chunk, round-robin, load
all lanes of a link equally for any shares (Blink, 2018 short paper, section 2, counts lanes as separate links
for the same reason).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm, log2, sqrt
from typing import Any

import numpy as np

from blinksim.errors import InfeasibleError, InputError
from blinksim.gpu.programs.dtypes import ElementType
from blinksim.gpu.programs.of_calls import compile_schedule
from blinksim.gpu.programs.program import READY, SCRATCH, Program, rows_of, starts
from blinksim.schedule.loads import link_loads
from blinksim.schedule.model import Builder, Schedule
from blinksim.topology.graph import Link, Topology

# Chunks are cut to one common share as long as no more than this many come of it.
MOST_CHUNKS = 96


def lane_links(topology: Topology) -> tuple[Topology, list[list[int]]]:
    """The same machine with one link per lane, and for each old link the numbers of its lanes in the new one.

    A lane's class is that of its link with ``.0``, ``.1`` … behind it.
    """
    links: list[Link] = []
    lanes: list[list[int]] = []
    for link in topology.links:
        lanes.append(list(range(len(links), len(links) + link.lanes)))
        links += [replace(link, lanes=1, kind=f"{link.kind}.{lane}") for lane in range(link.lanes)]
    kinds = tuple(dict.fromkeys(link.kind for link in links))
    chosen = tuple(kind for kind in kinds if kind.rpartition(".")[0] in topology.collective_links)
    return replace(topology, links=tuple(links), collective_links=chosen, fabric=None, inter_node_links=()), lanes


def lanes_apart(schedule: Schedule, least: int = 1) -> Schedule:
    """The same collective over the same paths, every send on one lane.

    Chunks are cut into equal parts, as many as the lanes of every link on their way can share evenly, and,
    where that takes at most 96 chunks, all to the same share. least: cut on until there are about this many.
    The result is in forest form: dependencies are kept, common steps are not. It carries no bound. Raises
    `InfeasibleError` for sends that cross several links.
    """
    if schedule.sends and int(np.diff(schedule.route_start)[schedule.route].max()) > 1:
        raise InfeasibleError(f"{schedule.algorithm}: a send crosses several links, so it has no lane of its own")
    topology, lanes = lane_links(schedule.topology)
    link_of = schedule.route_links[schedule.route_start[schedule.route]].tolist()
    # Into how many parts each chunk is cut.
    width = [1] * schedule.chunks
    for chunk, link in zip(schedule.chunk.tolist(), link_of, strict=True):
        width[chunk] = lcm(width[chunk], schedule.topology.links[link].lanes)
    shares = schedule.share_num.tolist()
    unit = gcd(*shares) or 1
    equal = [share // unit * lcm(*width) for share in shares]
    cuts = [max(1, count) for count in equal] if sum(equal) <= MOST_CHUNKS else width
    further = min(least // sum(cuts), MOST_CHUNKS // sum(cuts)) if cuts else 1
    cuts = [count * max(1, further) for count in cuts]
    builder = Builder(topology, schedule.collective, schedule.algorithm, "forest")
    parts: list[list[int]] = []
    for chunk, cut in enumerate(cuts):
        ends = int(schedule.origin[chunk]), int(schedule.target[chunk])
        parts.append([builder.add_chunk(schedule.share(chunk) / cut, *ends) for _ in range(cut)])
    load = [[0] * len(numbers) for numbers in lanes]
    taken: dict[tuple[int, int], int] = {}
    columns = (schedule.chunk, schedule.src, schedule.dst, schedule.op, schedule.step, schedule.channel)
    sends = zip(link_of, *(column.tolist() for column in columns), strict=True)
    for link, chunk, src, dst, op, step, channel in sends:
        for part in parts[chunk]:
            if (part, link) not in taken:
                taken[part, link] = load[link].index(min(load[link]))
            lane = taken[part, link]
            load[link][lane] += int(schedule.share_num[chunk])
            route = builder.add_routes([[lanes[link][lane]]])[0]
            builder.add_sends(chunk=part, src=src, dst=dst, op=op, step=step, route=route, channel=channel)
    return replace(builder.finish(), groups=schedule.groups)


# Most ops of one wire: what kernels.cu keeps count of.
MOST_OPS = 512
# Blocks of a GPU that compute; chunks share them in turn. One block adds up three vectors hardly faster than
# a wire sends one, so chunks are cut until there are this many: a wire must never wait for sums. With many
# more, the pieces of a wire lie so far apart that finding their memory costs more than a microsecond each
# (seen with 24 on H200).
COMPUTING = 48
PARTS = 8
# What a wire sends at once, in bytes.
WIRE_PIECE = 128 << 10
# What it could send in the time that every piece costs besides, in bytes: 3.6 us at 41 GB/s, first measured
# on H200.
PIECE_COST = 147_600
_Rows = list[list[int]]
# (device, link or -1 for what the device computes, number of the computing block).
_Queue = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Op:
    """An op of the new program, with its rows of sources, destinations, waits and signals."""

    queue: _Queue
    key: int
    chunk: int
    length: int
    source: _Rows
    destination: _Rows
    wait: _Rows
    signal: _Rows


def emulate(
    schedule: Schedule,
    count: int | Sequence[int],
    kind: ElementType,
    blocks: int = 1,
    piece_bytes: int = WIRE_PIECE,
    *,
    in_place: bool = False,
    staged: bool = False,
    most_blocks: int | None = None,
) -> tuple[Program, Schedule]:
    """A program that has `blocks` thread blocks for every lane of every link, and the schedule that it follows.

    schedule: any that sends over single links. count: elements of the vector, or of each group's.
    piece_bytes: what a wire sends at once, at most. in_place, staged: as for
    `blinksim.gpu.programs.of_calls.compile_schedule`. most_blocks: of a GPU, those that compute included. The
    schedule returned has a link for every lane (`blinksim.gpu.execution.emulate.lanes_apart`); queues of the
    program that stand for a wire are called like its link. Raises `InfeasibleError` for sends over several
    links and for too few blocks, and `InputError` for too many sends on one lane.
    """
    if blocks < 1:
        raise InputError("a lane needs at least one thread block")
    # Parts shorter than a piece would cost more than they gain, as every piece does.
    every = count if isinstance(count, int) else sum(count)
    apart = lanes_apart(schedule, max(1, min(PARTS, -(-every * kind.itemsize // max(1, piece_bytes)))))
    computing = COMPUTING
    if most_blocks is not None:
        lanes = Counter(apart.topology.links[link].src for link in set(apart.route_links.tolist()))
        wires = max(lanes.values(), default=0)
        computing = min(COMPUTING, most_blocks // blocks - wires)
        if computing < 1:
            each = f"{wires} lanes of a GPU with {blocks} thread blocks each"
            raise InfeasibleError(f"{each} leave none of {most_blocks} to compute")
    program = compile_schedule(apart, count, kind, in_place=in_place, staged=staged)
    program = _Wires(program, apart, computing).program()
    # Equal pieces: a short one at the end of every chunk would cost as much overhead as a whole one.
    longest = -(-int(program.length.max(initial=0)) * kind.itemsize // blocks)
    pieces = max(1, -(-longest // max(1, piece_bytes)))
    line = program.unit * kind.itemsize
    return program.cut(blocks, max(line, -(-longest // pieces // line) * line)), apart


def wire_piece(schedule: Schedule, size_bytes: int, cost_bytes: float = PIECE_COST) -> int:
    """Bytes of a piece for a vector of `size_bytes`: between filling the pipeline, for which pieces are small, and what
    every piece costs besides its data.

    cost_bytes: the latter, as `PIECE_COST`. Raises `InfeasibleError` as `emulate` does.
    """
    load = float(max(link_loads(lanes_apart(schedule)), default=0) or 1)
    best = sqrt(load * size_bytes * cost_bytes / max(1, schedule.steps - 1))
    return min(1 << 20, max(16 << 10, 1 << round(log2(best))))


class _Wires:
    """Splits every op into what its GPU computes and one copy for every device that it sends to."""

    def __init__(self, program: Program, schedule: Schedule, computing: int) -> None:
        self.old, self.schedule, self.computing = program, schedule, computing
        links = schedule.route_links[schedule.route_start[schedule.route]].tolist()
        number = {schedule.topology.index[name]: i for i, name in enumerate(program.devices)}
        sends = zip(schedule.chunk.tolist(), schedule.src.tolist(), schedule.dst.tolist(), strict=True)
        self.link = {(c, number[a], number[b]): link for (c, a, b), link in zip(sends, links, strict=True)}
        self.scratch = program.sizes[:, 2].tolist()
        self.flags = program.flags.tolist()
        self.ops: list[_Op] = []

    def program(self) -> Program:
        for number in range(self.old.ops):
            self._split(number)
        ops = sorted(self.ops, key=lambda op: (op.queue, op.key))
        queues = Counter(op.queue for op in ops)
        crowded = max(queues, key=lambda name: queues[name], default=None)
        if crowded is not None and queues[crowded] > MOST_OPS:
            sends = f"{queues[crowded]} sends, more than the {MOST_OPS} that a wire keeps track of"
            cure = "take a schedule with fewer chunks or steps"
            raise InputError(f"{self._name(crowded)} would carry {sends}; {cure}")
        sizes = self.old.sizes.copy()
        sizes[:, 2] = self.scratch
        columns = ((name, [getattr(op, name) for op in ops]) for name in ("key", "chunk", "length"))
        tables: dict[str, Any] = {name: np.array(column, dtype=np.int64) for name, column in columns}
        for name, width in {"source": 2, "destination": 3, "wait": 1, "signal": 2}.items():
            tables |= rows_of(name, [getattr(op, name) for op in ops], width)
        tables |= {"sizes": sizes, "flags": np.array(self.flags, dtype=np.int64)}
        tables["queue_device"] = np.array([name[0] for name in queues], dtype=np.int64)
        tables["queue_start"] = starts(queues.values())
        return replace(self.old, order=READY, queue_name=tuple(map(self._name, queues)), **tables)

    def _name(self, queue: _Queue) -> str:
        device, link, turn = queue
        return self.schedule.topology.links[link].name if link >= 0 else f"{self.old.devices[device]} itself, {turn}"

    def _split(self, op: int) -> None:
        old = self.old
        here, chunk, length, key = (int(x[op]) for x in (old.op_device, old.chunk, old.length, old.key))
        sources, waits = old.rows("sources", op), old.rows("waits", op)
        targets, signals = old.rows("destinations", op), old.rows("signals", op)
        own = [row for row in targets if row[0] == here]
        away = [row for row in targets if row[0] != here]
        inside = [row for row in signals if row[0] == here]
        # Wires end one by one. What waits for a send to end, or in place for one of several, waits for a copy
        # instead.
        copied = bool(away) and not own and (bool(inside) or (old.layout.in_place and len(away) > 1))
        reads, after = sources, waits
        if len(sources) > 1 or own or not away or copied:
            if away and (len(sources) > 1 or copied):
                if not own:
                    # At the same distance from a 128-byte boundary as the place that it is sent to.
                    unit = old.unit
                    begin = -(-self.scratch[here] // unit) * unit + away[0][2] % unit
                    self.scratch[here] = begin + length
                    own = [[here, SCRATCH, int(begin)]]
                self.flags[here] += 1
                reads, after = [own[0][1:]], [[int(self.flags[here]) - 1]]
                inside = [*inside, [here, *after[0]]]
            computing = (here, -1, chunk % self.computing)
            self.ops.append(_Op(computing, 2 * key, chunk, length, sources, own, waits, inside))
        for row in away:
            wire = (here, self.link[chunk, here, row[0]], 0)
            raised = [signal for signal in signals if signal[0] == row[0]]
            self.ops.append(_Op(wire, 2 * key + 1, chunk, length, reads, [row], after, raised))
        known = {here, *(row[0] for row in away)}
        if any(signal[0] not in known for signal in signals):
            raise InfeasibleError("a device waits for data that go to another one: run out of place")
