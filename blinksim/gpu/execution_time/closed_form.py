"""Times of programs without simulation: the critical path through the first and last piece of each op.

Blocks hand on data piece by piece (in packets, round by round), so an op passes through time by two moments:
its first piece is stored, its last one is. The first waits for the block and the first pieces of the op's
inputs; the last one for the block's work and port in between (as `simulate_blocks` combines them), for the
last pieces of its inputs, and for the GPU's port out, and the ports in of its receivers, to have carried
everything stored by then. So each op takes the longer of its chain of steps and its bottleneck. Launches
follow each other in the same way until all GPUs take the same time for each.

Not modelled: shares of a port, except that a block whose port is uneven waits for its own half, and receivers
that hold up their senders. Against `run_time`: below 256 KiB within 1.6 %, nine in ten times within 0.2 %; up
to 16 MiB half of the times within 0.7 % and nine in ten within 10 %; beyond, within 1.1 % and 15 %. If GPUs
hold each other up it is up to 34 % too short (direct in packets, reduce by binary trees), and while a
pipeline fills up to 35 % too long (benchmarks/bench_closed_form.py).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import inf
from operator import add, sub
from weakref import WeakKeyDictionary

import numpy as np

from blinksim.budget import SlowerError
from blinksim.gpu.execution_time import simulate_blocks as timing
from blinksim.gpu.execution_time.program_shape import HERE, Moment, Op, Shape, Sized, wire
from blinksim.gpu.programs import of_calls
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.fit import fit, merge_queues, usual_piece, usual_slices, worth_staging
from blinksim.gpu.programs.program import Program, ProtocolName
from blinksim.schedule.model import Schedule
from blinksim.timing.measured_constants import ExecutionRates

# Busy intervals that a port remembers.
_MOST_BUSY = 32


@dataclass(slots=True)
class _Port:
    """A way out of a GPU or in: the intervals in which it is busy, in order."""

    busy: list[tuple[float, float]] = field(default_factory=list)

    def take(self, time: float, load_s: float) -> float:
        """Fills what is idle from a time on; when the load is through."""
        busy = self.busy
        if not busy or time > busy[-1][1]:
            busy.append((time, time + load_s))
            if len(busy) > 2 * _MOST_BUSY:
                del busy[:_MOST_BUSY]
            return time + load_s
        first = len(busy) - 1
        while first and busy[first - 1][1] >= time:
            first -= 1
        at, now = first, time
        while at < len(busy) and load_s > busy[at][0] - now:
            begin, until = busy[at]
            load_s -= begin - now if begin > now else 0.0
            now = until if until > now else now
            at += 1
        end = now + load_s
        busy[first:at] = [(min(time, busy[first][0]) if at > first else time, end)]
        return end


class _Queue:
    """A block in a launch: as in `simulate_blocks`, at the moments of its ops."""

    __slots__ = ("fence", "last", "look", "port_s", "power", "since", "time", "work_s")

    def __init__(self, power: float) -> None:
        self.power = power

    def begin(self, time: float) -> None:
        self.last, self.look, self.fence = time, 0.0, (0.0, 0.0)
        self.restart(time)

    def after(self, time: float, look: float) -> None:
        """It is not further than a time, when what it waited for let it go on."""
        if time > self.time:
            self.restart(time)
            self.look = look

    def restart(self, time: float, port_s: float = 0.0) -> None:
        self.time = self.since = time
        self.work_s, self.port_s = 0.0, port_s

    def go_on(self) -> None:
        """It is at least as far as its work and its port take since it last waited."""
        busy_s = self.work_s
        if self.port_s:
            busy_s = (busy_s**self.power + self.port_s**self.power) ** (1 / self.power)
        done = self.since + busy_s
        self.time = done if done > self.time else self.time


class _Launches:
    """Launches of a shape at a size, moment by moment.

    Times by arrival are those of the first piece (in packets, round) and of the last one: `seen`, when a
    block that waits may go on, and `landed`, when the data are there. Those by op are of its flag, at other
    devices and at its own. stored: when the first data of an op come to the port; turn: when they get
    through.
    """

    def __init__(self, shape: Shape, sizes: list[Sized], rates: ExecutionRates) -> None:
        self.shape, self.sizes, self.rates, self.packets = shape, sizes, rates, shape.packets
        protocol = rates.packets if self.packets else rates.flags
        self.fence_s = 0.0 if self.packets else rates.flags.fence_s
        fan, ports = rates.ports.fan, range(len(shape.receivers))
        self.out_s = [(1 + fan * max(0, len(others) - 1)) / rates.ports.out for others in shape.receivers]
        # Halves of the slices that get uneven shares of a port drift apart: a block waits for its own half
        # alone.
        self.own_s = [(0.5 if rates.ports.uneven else 1.0) * seconds for seconds in self.out_s]
        self.in_s, self.posted_s = 1 / rates.ports.into, rates.ports.posted_s
        self.out, self.into, self.slots = ([_Port() for _ in ports] for _ in range(3))
        self.queues = [_Queue(protocol.soft) for _ in shape.device]
        arrivals, ops = sum(len(op.targets) for op in shape.ops), len(shape.ops)
        self.seen, self.last_seen, self.landed = ([0.0] * arrivals for _ in range(3))
        self.flag, self.last_flag, self.here, self.last_here = ([0.0] * ops for _ in range(4))
        self.stored, self.slot, self.looked = ([0.0] * ops for _ in range(3))
        self.moments, self.tails = shape.walk(tuple(size.pieces for size in sizes))
        self.ends, self.looks = list[list[float]](), list[list[float]]()
        self.begun: list[list[float]] = [[0.0] * len(ports)]

    def run(self, launches: int) -> timing.Ends:
        """So many launches; walked until GPUs end as far apart as after an earlier one, as all repeats from there.

        Gives, for each, when each GPU has ended it, and what it looked until then.
        """
        for launch in range(launches):
            starts = list(self.begun[-1])
            if (least := launch - self.shape.program.staged) >= 0:
                for device, others in enumerate(self.shape.receivers):
                    heard = [self.begun[least][other] + self.rates.announce_s for other in others]
                    starts[device] = max([starts[device], *heard])
            for queue, device in zip(self.queues, self.shape.device, strict=True):
                queue.begin(starts[device])
            moves = (self._first_packets, self._last_packets) if self.packets else (self._first, self._last)
            for moment in self.moments:
                op = self.shape.ops[moment.op]
                size, queue = self.sizes[op.kind], self.queues[op.queue]
                if not op.targets:
                    queue.look += self.rates.visit_s
                    self._spend(queue, self.rates.visit_s + size.before_s)
                    queue.go_on()
                    self._await(queue, op, self.last_flag, self.last_here)
                    self._spend(queue, size.lead_s)
                    queue.go_on()
                elif size.rest or not moment.last:
                    self._pass(moment, op, queue)
                    moves[moment.last](op, queue, size)
            # All blocks end: all that they sent and needed is there.
            ends, looks = list(starts), [0.0] * len(starts)
            for queue, device, tail in zip(self.queues, self.shape.device, self.tails, strict=True):
                queue.look += tail * self.rates.visit_s
                self._spend(queue, tail * self.rates.visit_s)
                queue.go_on()
                end = max(queue.time, queue.last, queue.fence[1]) + self.fence_s
                if end >= ends[device]:
                    ends[device], looks[device] = end, queue.look
            self.ends.append(ends)
            self.looks.append(looks)
            self.begun.append([end + self.rates.launch_s for end in ends])
            # GPUs that end as far apart as after an earlier launch go on as from there; all that go on as after the
            # last one, `timed` adds.
            for since in range(1, launch + 1):
                times = [*map(sub, ends, self.ends[launch - since])]
                if max(times) - min(times) <= timing.ALIKE * max(times) / since:
                    for _ in range(launch + 1, launches * (since > 1)):
                        self.ends.append([*map(add, self.ends[-since], times)])
                        self.looks.append(self.looks[-since])
                    return self.ends, self.looks
        return self.ends, self.looks

    def _spend(self, queue: _Queue, work_s: float) -> None:
        """The block works; with flags behind the data, it does nothing else meanwhile."""
        queue.work_s += work_s
        if not self.packets:
            queue.time += work_s

    def _pass(self, moment: Moment, op: Op, queue: _Queue) -> None:
        """What the block does before a moment: it looks at ops, and moves pieces of others."""
        # Its next step then goes on from where it is.
        if not moment.looks and not moment.others:
            return
        looks_s = moment.looks * self.rates.visit_s
        queue.look += looks_s
        self._spend(queue, looks_s)
        for number, pieces in moment.others:
            other = self.shape.ops[number]
            size = self.sizes[other.kind]
            self._spend(queue, pieces * size.whole_s)
            queue.port_s += pieces * size.whole * size.wire * self.own_s[op.device] * other.away
        queue.go_on()

    def _await(self, queue: _Queue, op: Op, away: list[float], here: list[float]) -> None:
        """The flags of a piece; by op, when they are seen at other devices and at its own."""
        for other, own in op.waits:
            queue.after(here[other] if own else away[other], self.looked[other])

    def _read(self, queue: _Queue, op: Op, seen: list[float]) -> None:
        """The packets of a round, and the step until what is made of them is stored."""
        for number in op.needs:
            queue.after(seen[number] + self.rates.packets.step_s, self.looked[self.shape.author[number]])
            queue.last = max(queue.last, self.landed[number])

    def _first_packets(self, op: Op, queue: _Queue, size: Sized) -> None:
        self._await(queue, op, self.flag, self.here)
        queue.work_s += size.lead_s + size.begin_s
        queue.go_on()
        self._read(queue, op, self.seen)
        self.stored[op.number] = queue.time
        self._store_packets(op, queue, size, first=True)
        for number in range(op.arrival, op.arrival + len(op.targets)):
            self.seen[number] = self.last_seen[number]
        # Flags within a GPU are those of a whole piece.
        port_s = (size.whole - size.begin) * size.wire * self.out_s[op.device] * op.away
        self.here[op.number] = self.last_here[op.number] + max(size.whole_s - size.lead_s - size.begin_s, port_s)

    def _last_packets(self, op: Op, queue: _Queue, size: Sized) -> None:
        queue.work_s += size.between_s
        queue.port_s += size.rest * size.wire * self.own_s[op.device] * op.away
        queue.go_on()
        self._read(queue, op, self.last_seen)
        self._store_packets(op, queue, size, first=False)
        if size.pieces == 1:
            self.here[op.number] = self.last_here[op.number]

    def _store_packets(self, op: Op, queue: _Queue, size: Sized, first: bool) -> None:
        """Packets go out, and leave a flag to their own GPU."""
        out_s = size.wire * self.out_s[op.device]
        slot, _ = self._send(op, size, queue.time, first)
        # They cut through: what was first on its way can be used before all of it has landed.
        lag_s = (size.begin_end if first else size.end) * max(out_s, size.wire * self.in_s)
        for number, target in enumerate(op.targets, op.arrival):
            self.last_seen[number] = self.landed[number] - (0.0 if target == HERE else lag_s)
            queue.last = max(queue.last, self.landed[number])
        if first:
            queue.port_s += size.begin * size.wire * self.own_s[op.device] * op.away
        if slot > queue.time:
            queue.restart(slot)
        self.last_here[op.number] = queue.time + self.rates.packets.own_s
        self.looked[op.number] = queue.look

    def _first(self, op: Op, queue: _Queue, size: Sized) -> None:
        self._spend(queue, size.before_s)
        queue.go_on()
        self._await(queue, op, self.flag, self.here)
        self._spend(queue, size.lead_s + size.load_s)
        self.stored[op.number] = queue.time
        self._store(op, queue, size, size.begin_s - size.load_s, first=True)
        self.flag[op.number], self.here[op.number] = self.last_flag[op.number], self.last_here[op.number]

    def _last(self, op: Op, queue: _Queue, size: Sized) -> None:
        queue.work_s += size.between_s
        queue.port_s += (size.pieces - 2) * size.whole * size.wire * self.own_s[op.device] * op.away
        queue.go_on()
        self._await(queue, op, self.last_flag, self.last_here)
        self._spend(queue, size.lead_s + size.last_load_s)
        self._store(op, queue, size, size.last_s - size.last_load_s, first=False)

    def _store(self, op: Op, queue: _Queue, size: Sized, work_s: float, first: bool) -> None:
        """A piece goes out, and its flag behind it."""
        piece, end = (size.begin, size.begin_end) if first else (size.last, size.end)
        came, out_s = queue.time, size.wire * self.out_s[op.device]
        slot, out_at = self._send(op, size, came, first)
        queue.work_s += work_s
        queue.port_s += piece * size.wire * self.own_s[op.device] * op.away
        queue.time = came + work_s
        queue.go_on()
        out_at = max(out_at, queue.time, came + piece * out_s * op.away)
        if slot > queue.time:
            queue.restart(slot, end * out_s)
        queue.last = max(queue.last, out_at)
        flags = self.rates.flags
        begin, done = queue.fence
        if op.flagged and out_at > begin:
            begin = max(out_at, done)
            done = begin + flags.fence_s
            queue.fence = begin, done
        self.last_flag[op.number], self.last_here[op.number] = done + flags.flag_s, done + flags.own_s
        self.looked[op.number] = queue.look

    def _send(self, op: Op, size: Sized, begin: float, first: bool) -> tuple[float, float]:
        """Data on their way through the ports; the time slot of the last round, and when all of them have landed.

        begin: when the block comes with the last of them.
        """
        nbytes, end = (size.begin, size.begin_end) if first else (size.rest, size.end)
        out_s, stored = size.wire * self.out_s[op.device], self.stored[op.number]
        end_s, round_s, into_s = end * out_s, size.round * out_s, nbytes * size.wire * self.in_s
        through = begin
        if op.away:
            through = self.out[op.device].take(stored, nbytes * out_s * op.away)
            if first:
                self.slot[op.number] = self.slots[op.device].take(stored, round_s * op.away) - round_s * op.away
            else:
                through = max(begin + end_s, through)
        out_at, place = begin, 0
        for number, target in enumerate(op.targets, op.arrival):
            if target == HERE:
                self.landed[number] = begin
                continue
            gone = through - (op.away - 1 - place) * end_s
            landed = self.into[target].take(self.slot[op.number] + place * round_s, into_s)
            self.landed[number] = landed = landed if landed > gone else gone
            out_at = landed if landed > out_at else out_at
            place += 1
        return max(begin, through - end_s - self.posted_s) if op.away else begin, out_at


@dataclass(frozen=True, slots=True)
class Run:
    """How a program is cut, and the time that it takes."""

    protocol: ProtocolName
    staged: bool
    slices: int
    piece_bytes: int
    time: timing.RunTime
    calls: timing.CallsName
    rates: ExecutionRates


class ClosedForm:
    """The times of a program for vectors of all sizes, by a formula.

    Parameters
    ----------
    program : Program
        Of a large vector, not cut.
    rates : ExecutionRates
        Of the machine.
    blocks : int
        Thread blocks of a launch, at most.
    split : Program, optional
        The same in more queues, which is run instead as long as they all have blocks of their own.
    """

    def __init__(self, program: Program, rates: ExecutionRates, blocks: int, split: Program | None = None) -> None:
        self.program, self.rates, self.blocks, self.split = program, rates, blocks, split
        self.shapes: dict[int, Shape] = {}
        self.loads = timing.port_loads(program, 1 / program.layout.count)
        self.longest = float(program.length.max(initial=0) / program.layout.count)
        self.queues = max(program.queue_counts, default=1)

    def run(self, size: int, protocol: ProtocolName, calls: timing.CallsName) -> Run:
        """The program as `blinksim.gpu.programs.fit.fit` cuts it for `size` bytes, and its time; see `run_time`."""
        program, rates, unit = self.program, self.rates, self.program.unit * self.program.kind.itemsize
        longest = int(self.longest * size)
        slices = usual_slices(longest, self.queues, program.order, program.packets, self.blocks)
        piece = max(1, usual_piece(longest, slices, program.order, program.packets, unit) // unit) * unit
        most = min(max(1, self.blocks // slices), self.queues)
        if self.split is not None and (queues := max(self.split.queue_counts)) * slices <= self.blocks:
            program, most = self.split, queues
        if most not in self.shapes:
            self.shapes[most] = Shape(merge_queues(program, most))
        shape = self.shapes[most]
        sizes = [Sized(kind, shape, rates, size, slices, piece, unit) for kind in shape.kinds]
        scale = size * (wire(rates.packets) if program.packets else 1.0)
        out, into = ([scale * share for share in way] for way in self.loads)
        port = timing.busiest(out, into, shape.receivers, rates)
        time = timing.timed(_Launches(shape, sizes, rates).run, size, calls, program, port, rates)
        return Run(protocol, program.staged, slices, piece, time, calls, rates)


_KIND = ELEMENT_TYPES["float32"]
# Elements of the vector of which closed forms know the shares.
_LARGE = 1 << 22


_Simulated = dict[tuple[int, ProtocolName], tuple[Run | None, float]]


class ScheduleTimes:
    """The times of schedules as programs on a machine; what serves all sizes is worked out once.

    Parameters
    ----------
    rates : ExecutionRates
        Of the machine.
    calls : {"successive", "apart", "graph", "stream", "host"}
        As `blinksim.gpu.execution_time.simulate_blocks.run_time` takes it, or those of training jobs.
    """

    def __init__(self, rates: ExecutionRates, calls: timing.CallsName = "successive") -> None:
        self.rates, self.calls = rates, calls
        self._forms: WeakKeyDictionary[Schedule, dict[tuple[bool, bool], ClosedForm]] = WeakKeyDictionary()
        self._runs: WeakKeyDictionary[Schedule, dict[tuple[int, ProtocolName], Run]] = WeakKeyDictionary()
        # What was simulated; None, and seconds, of what was only found to take more than these.
        self._simulated: WeakKeyDictionary[Schedule, _Simulated] = WeakKeyDictionary()

    def estimate(self, schedule: Schedule, size: int, protocol: ProtocolName) -> Run:
        """By the closed form: at once, once the schedule is known."""
        known, forms = self._runs.setdefault(schedule, {}), self._forms.setdefault(schedule, {})
        if (size, protocol) in known:
            return known[size, protocol]
        packets, staged = handed = _handed_on(schedule, size, protocol)
        if handed not in forms:
            blocks, split = self.rates.blocks, None
            if self.calls in timing.IN_JOBS:
                call, blocks = self._call(schedule, _LARGE * _KIND.itemsize)
                program = of_calls.uncut(call, schedule, packets, call.count // call.parts(schedule.topology.ranks))
                blocks = of_calls.blocks_of(call, packets, blocks)
                split = of_calls.split_queues(program)
            else:
                program = of_calls.compile_schedule(schedule, _LARGE, _KIND, packets=packets, staged=staged)
            forms[handed] = ClosedForm(program, self.rates, blocks, split)
        return known.setdefault((size, protocol), forms[handed].run(size, protocol, self.calls))

    def least(self, schedule: Schedule, size: int, protocol: ProtocolName) -> float:
        """Seconds from launch to launch at least: none ends before a GPU's way out has carried all that it sends."""
        count, ports = len(schedule.topology.devices), self.rates.ports
        ways = np.bincount(schedule.src.astype(np.int64) * count + schedule.dst, minlength=count * count)
        others = np.count_nonzero(ways.reshape(count, count), axis=1)
        sent = np.bincount(schedule.src, (schedule.share_num / schedule.share_den)[schedule.chunk], count)
        busy = sent * (1 + ports.fan * np.maximum(others - 1, 0)) / ports.out
        scale = wire(self.rates.packets) if protocol == "ll128" else 1.0
        return self.rates.launch_s + size * scale * float(busy.max(initial=0))

    def simulate(self, schedule: Schedule, size: int, protocol: ProtocolName, most_s: float = inf) -> Run:
        """Block by block; raises `SlowerError` if it ended early, for it takes more than `most_s` seconds."""
        known = self._simulated.setdefault(schedule, {})
        run, least_s = known.get((size, protocol), (None, 0.0))
        if run is None and least_s < most_s:
            with suppress(SlowerError):
                run = self._block_by_block(schedule, size, protocol, most_s)
            known[size, protocol] = run, most_s
        if run is None:
            raise SlowerError
        return run

    def _block_by_block(self, schedule: Schedule, size: int, protocol: ProtocolName, most_s: float) -> Run:
        """A run anew; raises `SlowerError` if it ended early.

        Of a job: the program that a group of `blinksim.torch` launches first for a call, and the time of all
        its launches.
        """
        if self.calls in timing.IN_JOBS:
            assert self.rates.job is not None
            call, blocks = self._call(schedule, size)
            program_of = partial(of_calls.call_program, call, schedule, protocol == "ll128", blocks)
            launches = [*of_calls.launched(call, schedule.topology.ranks, of_calls.Segment(), program_of)]
            launch_s = looking_s = ports_s = steps_s = 0.0
            begin_s, busy = self.rates.launch_s, [timing.busiest_port(one[0], self.rates)[2] for one in launches]
            # What the ports leave of the time is shared by all rounds.
            spare_s = most_s - sum(begin_s + busy_s * one[3] for busy_s, one in zip(busy, launches, strict=True))
            for busy_s, (program, _, _, rounds) in zip(busy, launches, strict=True):
                idle = 1 + (rounds - 1) * self.rates.job.again
                most = begin_s + busy_s + (spare_s - looking_s - steps_s) / idle
                one = timing.run_time(program, self.rates, most_s=most)
                launch_s, ports_s = launch_s + one.launch_s, ports_s + one.ports_s * rounds
                looking_s, steps_s = looking_s + one.looking_s * idle, steps_s + one.steps_s * idle
            if self.calls == "host":
                # Until the host has launched the next call.
                launch_s = max(launch_s, self.rates.job.host_s - looking_s - ports_s - steps_s)
            program, time = launches[0][0], timing.RunTime(launch_s, looking_s, ports_s, steps_s, one.port)
        else:
            program = self.program(schedule, size, protocol)
            time = timing.run_time(program, self.rates, self.calls, most_s)
        piece = program.piece_units * program.unit * program.kind.itemsize
        return Run(protocol, program.staged, program.slices, piece, time, self.calls, self.rates)

    def _call(self, schedule: Schedule, size: int) -> tuple[of_calls.Call, int]:
        """The call of a job for a schedule, of at least `size` bytes, and the most blocks of a launch."""
        what, ranks = schedule.collective, schedule.topology.ranks
        call = of_calls.Call(what.name, -(-size // (ranks * _KIND.itemsize)) * ranks, _KIND, root=what.root)
        return call, min(of_calls.BLOCKS, self.rates.blocks)

    def program(self, schedule: Schedule, size: int, protocol: ProtocolName) -> Program:
        """The schedule for a vector of `size` bytes of float32, as a run would cut it."""
        packets, staged = _handed_on(schedule, size, protocol)
        count = max(1, size // _KIND.itemsize)
        return fit(of_calls.compile_schedule(schedule, count, _KIND, packets=packets, staged=staged), self.rates.blocks)


# Two kinds of calls for each of four machines.
@lru_cache(maxsize=8)
def schedule_times(rates: ExecutionRates, calls: timing.CallsName) -> ScheduleTimes:
    """What serves all models with these constants.

    Raises `InfeasibleError` for calls of jobs that nobody measured.
    """
    if calls in timing.IN_JOBS:
        rates = rates.in_jobs(calls == "stream")
    return ScheduleTimes(rates, calls)


def _handed_on(schedule: Schedule, size: int, protocol: ProtocolName) -> tuple[bool, bool]:
    """Whether data go in packets, and whether through inboxes."""
    packets = protocol == "ll128"
    return packets, packets or worth_staging(schedule, size)
