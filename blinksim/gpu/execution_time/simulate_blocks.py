"""The time of a program on GPUs behind a switch: simulated block by block, launch after launch.

Event by event: thread blocks, the ports of their GPUs, and the data handed on. A block is busy or waits: for
a flag, for packets, or for its turn at the port. Blocks that have data for other GPUs take turns at the way
out, target by target, and get their shares of it: the one goes first whose turn would have begun first if all
had sent at once (start-time fair queueing: Goyal, Vin, Cheng 1997). What they store is buffered for a while.
A GPU that many store to at once holds up their ports, the more so the less they have drifted apart. As long
as a block does not wait, moving data and the port overlap: the time of both is (work^n + port^n)^(1/n). A
flag that follows data takes the same way out.

Successive calls overlap: a GPU begins the next as soon as it is done with the one before. What is timed is
the time between a GPU's ends, the mean over the GPUs, as `blinksim.gpu.execution.gpu_devices` measures it.

Blocks take piece by piece, in the rounds in which the kernel moves data. One slice stands for all. Slices
never meet, and the last one has what rounding leaves over, so it is the longest; what it sends counts at the
ports for the whole chunk. Ports do not share out evenly what they carry, so slices drift apart: then two
slices stand for a half of them each.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, count, pairwise
from operator import attrgetter
from statistics import mean, median
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from blinksim.budget import SlowerError
from blinksim.errors import InputError, one_of
from blinksim.gpu.execution_time import program_shape
from blinksim.gpu.execution_time.program_shape import HERE, NONE, cached_share, wire
from blinksim.gpu.programs.program import BY_KEY, INBOX, READY, WAVES, ExecutionError, Longs, Program, receivers
from blinksim.timing.measured_constants import ExecutionRates

# By launch and GPU, as `Launches` gives them, and what gives them for so many launches.
Ends = tuple[list[list[float]], list[list[float]]]
Simulated = Callable[[int], Ends]
# Which way a port leads, of which device, and for how many seconds it is busy.
Busiest = tuple[str, int, float]


class Round(NamedTuple):
    """What a block does at once.

    looks_s, wait_for, lead_s: before a piece, what it looks at, the flags that it waits for, and what follows
    them. work_s: moving the data. needs: arrivals of the packets that it reads. load: bytes for each target,
    of all slices, on the wire. targets: devices, `HERE` for its own. arrival: the number of its first
    target's arrival; the others follow. flag: the number of the arrival of its flag at other devices, the
    next one being that at its own; `NONE`.
    """

    looks_s: float
    wait_for: tuple[int, ...]
    lead_s: float
    work_s: float
    needs: tuple[int, ...]
    load: float
    targets: tuple[int, ...]
    arrival: int
    flag: int


class Blocks:
    """The blocks of one slice of a program that was cut for a machine with these rates: the last, or two halves.

    Of each block, by queue and half: rounds; tail_s: what it looks at after them; device; half: 0 or 1;
    share: what it gets of a port that is shared. arrivals: how many there are in a launch, of each half.
    """

    def __init__(self, program: Program, rates: ExecutionRates) -> None:
        if program.order == READY:
            raise InputError("queues that take what is ready have no fixed order")
        self.program, self.rates, self.shape = program, rates, program_shape.Shape(program)
        self.part, ops, width = program.slices - 1, self.shape.ops, program.kind.itemsize
        # Two slices, each with half of the load; of any two blocks, one gets more of a port than the other.
        uneven = rates.ports.uneven if program.slices > 1 else 0.0
        self.halves = 2 if uneven else 1
        self.far = program_shape.cached_share(program, rates.flags)
        self.ends: dict[tuple[int, int], list[int]] = {}
        self.first: dict[tuple[int, int], int] = {}
        self.flag: dict[tuple[int, int], int] = {}
        self.arrivals = 0
        walks, tails = list[list[tuple[int, int, int]]](), list[float]()
        for queue in range(program.queues):
            *visits, (_, _, looks) = program.walk(queue, self.part)
            walks.append(visits)
            tails.append(looks * rates.visit_s)
            for number, piece, _ in visits:
                op = ops[number]
                if op.targets:
                    kind = self.shape.kinds[op.kind]
                    begin, end = program.span(int(program.length[number]), self.part, piece)
                    nbytes, sources = (end - begin) * width, kind.inboxes + kind.others
                    sizes = program_shape.round_bytes(nbytes, sources, program.packets)
                    self.ends[number, piece] = list(accumulate(sizes))
                    self.first[number, piece] = self.arrivals
                    self.flag[number, piece] = self.arrivals + len(sizes) * len(op.targets)
                    self.arrivals = self.flag[number, piece] + 2
        rounds = [[entry for op, *visit in walk for entry in self._rounds(ops[op], *visit)] for walk in walks]
        self.rounds, self.tail_s = rounds * self.halves, tails * self.halves
        self.device = self.shape.device * self.halves
        places = [divmod(number, program.queues) for number in range(len(rounds) * self.halves)]
        self.half = [half for half, _ in places]
        self.share = [1 - uneven * (-1) ** sum(place) for place in places]

    def _rounds(self, op: program_shape.Op, piece: int, looks: int) -> Iterator[Round]:
        program, rates, packets = self.program, self.rates, self.program.packets
        before = looks * rates.visit_s
        if not packets:
            before += rates.flags.before_s + (rates.flags.look_s if op.waits else 0.0)
        lead = rates.packets.piece_s if packets else rates.flags.piece_s
        wait_for = tuple(self.flag[other, piece] + own for other, own in op.waits)
        if not op.targets:
            # Constants that do not say what looking at flags takes count it here.
            lead = 0.0 if rates.flags.look_s and not packets else lead
            yield Round(before, wait_for, lead, 0.0, (), 0.0, (), program_shape.NONE, program_shape.NONE)
            return
        kind, ends = self.shape.kinds[op.kind], self.ends[op.number, piece]
        # Bytes on the wire for all slices, for a byte of data of this one.
        length = int(program.length[op.number])
        first, last = program.part(length, self.part)
        own = min(last * program.unit, length) - first * program.unit
        scale = (program_shape.wire(rates.packets) if packets else 1.0) * length / own / self.halves
        begin = 0
        for number, end in enumerate(ends):
            # The arrivals of the packets that hold the last byte of the round.
            arrivals = list[int]()
            for needed in op.needs:
                author = self.shape.ops[self.shape.author[needed]]
                place = bisect_left(self.ends[author.number, piece], end) * len(author.targets)
                arrivals.append(self.first[author.number, piece] + place + needed - author.arrival)
            moved, needs = end - begin, tuple(arrivals)
            work_s = program_shape.round_seconds(moved, kind, packets, self.far, rates)
            arrival = self.first[op.number, piece] + number * len(op.targets)
            flag = self.flag[op.number, piece] if number + 1 == len(ends) and op.flagged else NONE
            yield Round(before, wait_for, lead, work_s, needs, moved * scale, op.targets, arrival, flag)
            before, wait_for, lead, begin = 0.0, (), 0.0, end


# Launches that differ less, as a share, go on alike.
ALIKE = 1e-4
# The quickest program of a question takes more than this share of what its third launch takes
# (benchmarks/bench_closed_form.py).
SHORT_OF_LAUNCH = 0.95
_FIRST = attrgetter("first")
# In place of the time of an arrival that is still to come, and of its number.
_MISSING, _STILL_TO_COME = -1.0, -2


class _Launch:
    """What came in a launch for a half of the blocks, by the number of the arrival.

    seen: when a waiting block may go on; `_MISSING` until it has come. landed: when all of the data are
    there. looked: what was spent on looking up to then. waiting: the blocks that wait, by what they wait for.
    """

    __slots__ = ("landed", "looked", "number", "seen", "waiting")

    def __init__(self, number: int, arrivals: int) -> None:
        self.number = number
        self.seen = [_MISSING] * arrivals
        self.landed, self.looked = [0.0] * arrivals, [0.0] * arrivals
        self.waiting: dict[int, list[_Block]] = {}


@dataclass(slots=True, eq=False)
class _Port:
    """A GPU's way out to the switch and in from it.

    out_s: seconds for a byte on the way out. line: the blocks in line. served: bytes that each of the blocks
    that take turns had sent when the one whose turn it is began. called: the next of the line has its event.
    """

    out_s: float
    out_free: float = 0.0
    in_free: float = 0.0
    served: float = 0.0
    line: list[_Block] = field(default_factory=list)
    called: bool = False


class _Block:
    """A block in a launch.

    at: its round. until: when it is busy up to, and with a round when it came to the port with that. since,
    work_s, port_s: where its sums began, and the sums. target, taken: the next target of its round, and what
    those before took. first, done: when its turn would have begun, and would have ended. out_at: when all
    data are out. last: when all that it sent and needed are there. fence: its last one. look: what was spent
    on looking.
    """

    __slots__ = (
        "at", "device", "done", "fence", "first", "half", "last", "launch", "look", "number",
        "out_at", "port", "port_s", "rounds", "share", "since", "start", "tail_s", "taken", "target", "until",
        "work_s",
    )  # fmt: skip

    def __init__(self, number: int, blocks: Blocks, ports: list[_Port]) -> None:
        self.number, self.device = number, blocks.device[number]
        self.half, self.share = blocks.half[number], blocks.share[number]
        self.port, self.rounds, self.tail_s = ports[self.device], blocks.rounds[number], blocks.tail_s[number]
        self.first = self.done = self.taken = 0.0
        self.target = 0

    def begin(self, launch: _Launch, start: float) -> None:
        self.launch, self.at = launch, 0
        self.start = self.until = self.out_at = self.last = start
        self.fence = (0.0, 0.0)
        self.look = 0.0
        self.restart(start)

    def restart(self, time: float, port_s: float = 0.0) -> None:
        """The sums begin anew, after a wait."""
        self.since, self.work_s, self.port_s = time, 0.0, port_s

    def after(self, arrival: int, lag_s: float) -> None:
        """The block is not further than this arrival, and what follows it, let it go on."""
        if (time := self.launch.seen[arrival] + lag_s) > self.until:
            self.until, self.look = time, self.launch.looked[arrival]
            self.restart(time)


class Launches:
    """The launches of the same program one after another, as far as `run` was asked for.

    most_s: a program that takes more seconds for a call is not simulated to its end.
    ends, looks: for each launch, seconds from the first one's beginning until each GPU has ended it, and what
    the blocks on the way to that end have spent on looking at ops.
    """

    def __init__(self, blocks: Blocks, rates: ExecutionRates, launches: int, most_s: float = math.inf) -> None:
        self.blocks, self.rates, self.launches, self.most_s = blocks, rates, launches, most_s
        self.receivers, self.packets = blocks.shape.receivers, blocks.program.packets
        devices = len(self.receivers)
        protocol = rates.packets if self.packets else rates.flags
        self.own_s, self.power = protocol.own_s, protocol.soft
        self.step_s, self.load = rates.packets.step_s, rates.flags.load
        ports = rates.ports
        self.ports = [_Port((1 + ports.fan * max(0, len(others) - 1)) / ports.out) for others in self.receivers]
        self.in_s, self.posted_s = 1 / ports.into, ports.posted_s
        self.queue_s, self.drift = ports.queue_s, ports.drift
        self.first_s = ports.first_s if ports.drift else ports.queue_s
        self.turns_s = ports.turns_s or math.inf
        self.blocks_of: list[list[_Block]] = [[] for _ in range(devices)]
        for number, device in enumerate(blocks.device):
            self.blocks_of[device].append(_Block(number, blocks, self.ports))
        self.begun: list[list[float | None]] = [[None] * devices for _ in range(launches)]
        self.unmet: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.ends, self.looks = ([[0.0] * devices for _ in range(launches)] for _ in range(2))
        self.left = [[len(own) for own in self.blocks_of] for _ in range(launches)]
        self.launched: list[list[_Launch]] = []
        self.events: list[tuple[float, int, Callable[[Any, float], None], Any]] = []
        self.order, self.started, self.ended, self.settled = count(), [NONE] * devices, [0] * launches, False
        # Looked up once, for they come in every event.
        self.store, self.next_in_line = self._store, self._next_in_line

    def run(self) -> Ends:
        """Runs all launches, and gives `ends` and `looks`.

        Raises `ExecutionError` if the program gets stuck, `SlowerError` if slow.
        """
        for device in range(len(self.blocks_of)):
            heappush(self.events, (0.0, next(self.order), self._begin, (device, 0)))
        events = self.events
        while events and not self.settled:
            now, _, happen, what = heappop(events)
            happen(what, now)
        stuck = next((half for launch in self.launched for half in launch if half.waiting), None)
        if stuck is not None and not self.settled:
            number, blocks = next(iter(stuck.waiting.items()))
            waits = f"block {blocks[0].number} waits for arrival {number}, which never comes"
            raise ExecutionError(f"launch {stuck.number + 1} is stuck: {waits}")
        return self.ends, self.looks

    def _begin(self, what: tuple[int, int], now: float) -> None:
        """A GPU begins a launch, and says so to those that store to it."""
        device, launch = what
        self.begun[launch][device] = now
        for other, later in self.unmet.pop((launch, device), ()):
            self._start(other, later)
        self._start(device, launch)

    def _start(self, device: int, launch: int) -> None:
        """Starts the blocks of a GPU, once it may store to the others."""
        start = self.begun[launch][device]
        if start is None or self.started[device] >= launch:
            return
        least = launch - self.blocks.program.staged
        for other in self.receivers[device] if least >= 0 else ():
            if (begun := self.begun[least][other]) is None:
                self.unmet.setdefault((least, other), []).append((device, launch))
                return
            start = max(start, begun + self.rates.announce_s)
        self.started[device] = launch
        if launch == len(self.launched):
            self.launched.append([_Launch(launch, self.blocks.arrivals) for _ in range(2)])
        for block in self.blocks_of[device]:
            block.begin(self.launched[launch][block.half], start)
            self._go_on(block)
        if not self.blocks_of[device]:
            self._end(device, launch, start)

    def _both(self, block: _Block) -> float:
        """When a block is done with what it did since it last waited."""
        work, port, power = block.work_s, block.port_s, self.power
        if not port:
            return block.since + work
        return float(block.since + (work**power + port**power) ** (1 / power))

    def _latest(self, block: _Block, numbers: tuple[int, ...]) -> int:
        """The last of some arrivals; the block waits if one is still to come."""
        launch, latest, last = block.launch, -1.0, NONE
        for number in numbers:
            if (time := launch.seen[number]) == _MISSING:
                launch.waiting.setdefault(number, []).append(block)
                return _STILL_TO_COME
            if time > latest:
                latest, last = time, number
        return last

    def _go_on(self, block: _Block) -> None:
        """Takes a block to its next round's port, or to its end, or lets it wait."""
        rounds, packets = block.rounds, self.packets
        while block.at < len(rounds):
            looks_s, wait_for, lead_s, work_s, needs, _, targets, _, _ = rounds[block.at]
            flag = self._latest(block, wait_for) if wait_for else NONE
            packet = self._latest(block, needs) if needs and flag != _STILL_TO_COME else flag
            if packet == _STILL_TO_COME:
                return
            if looks_s:
                block.look += looks_s
                block.work_s += looks_s
                block.until = self._both(block) if packets else block.until + looks_s
            if flag != NONE:
                block.after(flag, 0.0)
            if packets:
                block.work_s += lead_s + work_s
                block.until = self._both(block)
                if needs:
                    # A round is not stored before the packets that it needs have come.
                    block.last = max(block.last, *map(block.launch.landed.__getitem__, needs))
                    block.after(packet, self.step_s)
            else:
                lead_s += self.load * work_s
                block.work_s += lead_s
                block.until += lead_s
            if targets:
                block.target, block.taken = 0, 0.0
                heappush(self.events, (block.until, next(self.order), self.store, block))
                return
            block.at += 1
        block.work_s += block.tail_s
        block.look += block.tail_s
        end = max(self._both(block) if block.tail_s else block.until, block.last)
        if not self.packets:
            end = max(end, block.fence[1], block.out_at) + self.rates.flags.fence_s
        device, launch = block.device, block.launch.number
        if end >= self.ends[launch][device]:
            self.ends[launch][device], self.looks[launch][device] = end, block.look
        self.left[launch][device] -= 1
        if not self.left[launch][device]:
            self._end(device, launch, self.ends[launch][device])

    def _store(self, block: _Block, now: float) -> None:
        """Stores a round to its next targets, until the block must wait for its turn."""
        current, port, at = block.rounds[block.at], block.port, block.target
        targets, load = current.targets, current.load
        while at < len(targets):
            if targets[at] == HERE:
                self._arrive(block.launch, current.arrival + at, now, now, block.look)
            else:
                first = block.first = port.served if port.served > block.done else block.done
                share = block.share
                if share != 1 and int((now - block.start) / self.turns_s) % 2:
                    share = 2 - share
                block.done = first + load / share
                if port.out_free > now + self.posted_s or port.line:
                    block.target = at
                    port.line.append(block)
                    if not port.called:
                        self._call(port)
                    return
                port.served = first
                self._send(block, current, at, now)
            at += 1
        # The last target had its turn: the block goes on, and its flag behind the data.
        block.at += 1
        block.port_s += block.taken
        if not self.packets:
            work_s = current.work_s - self.load * current.work_s
            block.work_s += work_s
            until, least = self._both(block), block.until + work_s
            block.until = until = until if until > least else least
            block.out_at = block.out_at if block.out_at > until else until
        block.last = block.last if block.last > block.out_at else block.out_at
        if now > block.until:
            block.until = now
            block.restart(now, 0.0 if self.packets else current.load * block.port.out_s)
        if current.flag != NONE:
            if self.packets:
                seen = block.until + self.own_s
                self._arrive(block.launch, current.flag, seen, seen, block.look)
                self._arrive(block.launch, current.flag + 1, seen, seen, block.look)
            else:
                begin, end = block.fence
                if block.out_at > begin:
                    begin = max(block.out_at, end)
                    end = begin + self.rates.flags.fence_s
                    block.fence = begin, end
                told = block.launch, block.port, current.flag, block.look
                heappush(self.events, (end, next(self.order), self._send_flag, told))
        self._go_on(block)

    def _call(self, port: _Port) -> None:
        """Sees to it that one of those in line comes next."""
        port.called = True
        heappush(self.events, (port.out_free - self.posted_s, next(self.order), self.next_in_line, port))

    def _next_in_line(self, port: _Port, now: float) -> None:
        port.called = False
        line = port.line
        block = min(line, key=_FIRST)
        line.remove(block)
        port.served = block.first
        self._send(block, block.rounds[block.at], block.target, now)
        block.target += 1
        self._store(block, now)
        if line and not port.called:
            self._call(port)

    def _send(self, block: _Block, current: Round, at: int, now: float) -> None:
        """One target's data on their way out of this GPU and into the other."""
        load, me, other = current.load, block.port, self.ports[current.targets[at]]
        out, into = load * me.out_s, load * self.in_s
        begin = me.out_free if me.out_free > now else now
        gone, free = begin + out, other.in_free
        end = (free if free > begin else begin) + into
        other.in_free = end = end if end > gone else gone
        queue_s = self.first_s + self.drift * (begin - block.start)
        held = end - (queue_s if queue_s < self.queue_s else self.queue_s)
        me.out_free = held if held > gone else gone
        block.taken += out
        block.out_at = block.out_at if block.out_at > end else end
        # Slices of packets cut through: what the first one has brought can be used.
        seen = end - (out if out > into else into) if self.packets else end
        self._arrive(block.launch, current.arrival + at, seen, end, block.look)

    def _arrive(self, launch: _Launch, number: int, seen: float, landed: float, look: float) -> None:
        launch.seen[number], launch.landed[number], launch.looked[number] = seen, landed, look
        if number in launch.waiting:
            for other in launch.waiting.pop(number):
                self._go_on(other)

    def _send_flag(self, what: tuple[_Launch, _Port, int, float], now: float) -> None:
        """A flag goes the way of data, behind those that have been stored."""
        launch, port, flag, look = what
        away = (port.out_free if port.out_free > now else now) + self.rates.flags.flag_s
        self._arrive(launch, flag, away, away, look)
        self._arrive(launch, flag + 1, now + self.own_s, now + self.own_s, look)

    def _end(self, device: int, launch: int, end: float) -> None:
        self.ends[launch][device] = end
        self.ended[launch] += 1
        if self.ended[launch] == len(self.blocks_of) and launch >= 2:
            # Whether all GPUs took as long for the last two launches: then the next ones take no longer
            # either.
            last = self.ends[launch - 2 : launch + 1]
            times = [b - a for before, after in pairwise(last) for a, b in zip(before, after, strict=True)]
            if launch == 2 and SHORT_OF_LAUNCH * mean(times[len(last[0]) :]) > self.most_s:
                raise SlowerError
            if max(times) - min(times) <= ALIKE * max(times):
                self.settled = True
                del self.ends[launch + 1 :], self.looks[launch + 1 :]
        if launch + 1 < self.launches:
            begin = end + self.rates.launch_s
            heappush(self.events, (begin, next(self.order), self._begin, (device, launch + 1)))


CallsName = Literal["successive", "apart", "graph", "stream", "host"]
CALLS: tuple[CallsName, ...] = get_args(CallsName)
# Those that a group of `blinksim.torch` makes.
IN_JOBS = CALLS[2:]
# What is simulated of a run, as it is measured: launches, and how many of the last ones count. Those of large
# vectors settle sooner, and each takes longer to simulate.
LAUNCHES, LARGE_LAUNCHES = (21, 20), (6, 3)
LARGE = 16 << 20
# Pieces of a slice that are simulated, by the order of the program: a pipeline must fill first.
MOST_PIECES = {BY_KEY: 8, WAVES: 48}
# With many ops, as many as make this many pieces of all ops.
MOST_OP_PIECES, LEAST_PIECES = 3000, 16


@dataclass(frozen=True, slots=True)
class RunTime:
    """Seconds of a call, in parts that add up.

    Parameters
    ----------
    launch_s : float
        Between two launches on a GPU.
    looking_s : float
        What blocks spend on looking at ops, on the way to the end.
    ports_s : float
        As long as the busiest port moves data.
    steps_s : float
        The rest: as long as that port is idle, because data are on their way through blocks, flags and
        fences.
    port : str
        Which one is the busiest.
    """

    launch_s: float
    looking_s: float
    ports_s: float
    steps_s: float
    port: str

    @property
    def time_s(self) -> float:
        """The sum of the parts."""
        return self.launch_s + self.looking_s + self.ports_s + self.steps_s

    def beyond(self, more: RunTime, steps: float) -> RunTime:
        """What it takes as many steps from here on as a single one takes to `more`."""
        looking_s = self.looking_s + steps * (more.looking_s - self.looking_s)
        ports_s = self.ports_s + steps * (more.ports_s - self.ports_s)
        steps_s = self.steps_s + steps * (more.steps_s - self.steps_s)
        return RunTime(self.launch_s, looking_s, ports_s, steps_s, more.port)


def run_time(
    program: Program, rates: ExecutionRates, calls: CallsName = "successive", most_s: float = math.inf
) -> RunTime:
    """The time of a program that is cut for its GPUs.

    Parameters
    ----------
    program : Program
        As `blinksim.gpu.programs.fit.fit` returns it.
    rates : ExecutionRates
        Of the machine.
    calls : {"successive", "apart"}
        One call after another without a pause, or each by itself, begun by all GPUs at once.
    most_s : float
        What takes more seconds needs no time.

    Returns
    -------
    RunTime
        The time and its parts.

    Raises
    ------
    InputError
        For another kind of calls, and for programs of emulated machines.
    ExecutionError
        If the program gets stuck.
    SlowerError
        If the program takes more than `most_s` and its simulation ended early therefore.
    """
    one_of("kind of calls", calls, CALLS[:2])
    longest = int(program.length.max(initial=0))
    pieces = program.pieces(longest, program.slices - 1)
    most = MOST_PIECES.get(program.order, pieces)
    most = max(min(most, LEAST_PIECES), min(most, MOST_OP_PIECES // max(1, program.ops)))
    nbytes = program.layout.count * program.kind.itemsize
    if pieces <= most:
        return _known(program, rates, calls, nbytes, most_s)
    # Further pieces take as long as the ones before them.
    piece = program.slices * program.piece_units * program.unit  # elements of a piece in every slice
    # Products of terabytes are longer than 64 bits.
    lengths = ([length * part * piece // longest for length in program.length.tolist()] for part in (most // 2, most))
    few, more = (_known(replace(program, length=np.array(part)), rates, calls, nbytes, most_s) for part in lengths)
    return few.beyond(more, (longest / piece - most // 2) / (most - most // 2))


# What was simulated last, by all that a time depends on.
_times: OrderedDict[Hashable, RunTime] = OrderedDict()
_MOST_TIMES = 4096


def forget() -> None:
    """Forgets what was simulated, for who measures how long that takes."""
    _times.clear()


def _known(program: Program, rates: ExecutionRates, calls: CallsName, nbytes: int, most_s: float) -> RunTime:
    """The time of a program, simulated unless it is known: others differ in names and places, or in their size alone
    where only a part of it is simulated."""
    share = cached_share(program, rates.flags)
    tables = ("source", "destination", "wait", "signal")
    counts = {table: np.diff(getattr(program, f"{table}_start")) for table in tables}
    op = {table: np.repeat(np.arange(program.ops), count) for table, count in counts.items()}
    here = {table: program.op_device[op[table]] for table in ("source", "wait")}
    sources, destinations = program.sources, program.destinations
    stored = _first_of(destinations, np.column_stack((here["source"], sources)))
    stored[np.concatenate((destinations[:, 1], sources[:, 0])) != INBOX] = 0
    stored, read = np.split(stored, [len(destinations)])
    raised = _first_of(program.signals, np.column_stack((here["wait"], program.waits)))
    raised, waited = np.split(raised, [len(program.signals)])
    reads = np.lexsort((read, sources[:, 0], op["source"]))
    cut = np.array([program.slices, program.piece_units, program.order, program.unit, program.packets])
    content = (
        cut, program.queue_device, program.queue_start, program.key, program.length, *counts.values(),
        sources[reads, 0], read[reads], destinations[:, :2], stored, program.signals[:, 0], raised,
        waited[np.lexsort((waited, op["wait"]))],
    )  # fmt: skip
    key = (b"".join(table.tobytes() for table in content), program.devices, share, calls, nbytes > LARGE, rates)
    if (time := _times.pop(key, None)) is None:
        blocks, port = Blocks(program, rates), busiest_port(program, rates)
        made = partial(Launches, blocks, rates, most_s=most_s)
        time = timed(lambda launches: made(launches).run(), nbytes, calls, program, port, rates)
    _times[key] = time
    if len(_times) > _MOST_TIMES:
        _times.popitem(last=False)
    return time


def _first_of(first: Longs, then: Longs) -> Longs:
    """For each row of two tables, the number of the first row that equals it."""
    _, numbers, label = np.unique(np.concatenate((first, then)), axis=0, return_index=True, return_inverse=True)
    return numbers[label.ravel()]


def timed(
    run: Simulated, nbytes: int, calls: CallsName, program: Program, port: Busiest, rates: ExecutionRates
) -> RunTime:
    """The time of a call of `nbytes` bytes and its parts, from a run of as many launches as it takes.

    run: for a number of launches, when each GPU has ended each of them, and what it looked until then. Of
    successive launches that were not simulated, all take as long as the last one that was. port: which one is
    the busiest, and for how long (`busiest`).
    """
    if calls == "apart":
        ends, looks = run(1)
        time_s, looks_s = max(ends[0]) + rates.launch_s, max(looks[0])
    else:
        launches, counted = LARGE_LAUNCHES if nbytes > LARGE else LAUNCHES
        ends, looks = run(launches)
        times = [mean(b - a for a, b in zip(before, after, strict=True)) for before, after in pairwise(ends)]
        time_s = median([*times, *times[-1:] * (launches - 1 - len(times))][-counted:])
        looks_s = mean(looks[-1])
    # Looking takes so long unless the busiest port fills the time.
    (direction, device, busy_s), within_s = port, time_s - rates.launch_s
    ports_s = min(busy_s, within_s)
    looking_s = min(looks_s, within_s - ports_s)
    steps_s = within_s - ports_s - looking_s
    return RunTime(rates.launch_s, looking_s, ports_s, steps_s, f"{direction} {program.devices[device]}")


def busiest_port(program: Program, rates: ExecutionRates) -> Busiest:
    """The port of a program that moves data the longest in a launch: which way, of which device, for how many s."""
    each = float(program.kind.itemsize) * (wire(rates.packets) if program.packets else 1.0)
    return busiest(*port_loads(program, each), receivers(program), rates)


def port_loads(program: Program, each: float) -> tuple[list[float], list[float]]:
    """What leaves every device for others, and what reaches it, where an element counts as `each`."""
    source = np.repeat(program.op_device, np.diff(program.destination_start))
    load = np.repeat(program.length, np.diff(program.destination_start)) * each
    away = source != program.destinations[:, 0]
    ways = source[away], program.destinations[away, 0]
    out, into = (np.bincount(ends, load[away], len(program.devices)).tolist() for ends in ways)
    return out, into


def busiest(
    out: Sequence[float], into: Sequence[float], receivers: Sequence[Sequence[int]], rates: ExecutionRates
) -> Busiest:
    """As `busiest_port`, of the bytes that leave each device and reach it, and the devices that it stores to."""
    ports, busy = rates.ports, [("into", device, load / rates.ports.into) for device, load in enumerate(into)]
    for device, (load, others) in enumerate(zip(out, receivers, strict=True)):
        busy.append(("out of", device, load * (1 + ports.fan * max(0, len(others) - 1)) / ports.out))
    return max(busy, key=lambda port: port[2])
