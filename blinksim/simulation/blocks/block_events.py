"""Launches of a program, event by event: blocks, the ports of their GPUs, and what they hand on.

A block is busy or waits: for a flag, for packets, or for its turn at the port. Blocks that have data for other GPUs
take turns at the way out, target by target, and get equal shares of it: the one goes first whose turn would have begun
first if all had sent at once (start-time fair queueing: Goyal, Vin, Cheng 1997). While a block does not wait, moving
data and the port overlap: the time of both is (work^n + port^n)^(1/n) since it last waited.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count, pairwise

from blinksim.cost.execution_rates import ExecutionRates
from blinksim.programs.program import ExecutionError
from blinksim.simulation.blocks.block_rounds import HERE, NONE, Blocks

_BEGIN, _STORE, _PORT = range(3)
# Launches that differ less, as a share, go on alike.
_ALIKE = 1e-4


class Launches:
    """The launches of the same program one after another, as far as `run` was asked for.

    ends, looks: for each launch, seconds from the first one's beginning until each GPU has ended it, and what the
    blocks on the way to that end have spent on looking at ops.
    """

    def __init__(self, blocks: Blocks, rates: ExecutionRates, launches: int) -> None:
        self.blocks, self.rates, self.launches = blocks, rates, launches
        devices, queues = len(blocks.receivers), len(blocks.rounds)
        protocol = rates.packets if blocks.packets else rates.flags
        self.own_s, self.power = protocol.own_s, protocol.soft
        self.queues_of: list[list[int]] = [[] for _ in range(devices)]
        for queue, device in enumerate(blocks.device):
            self.queues_of[device].append(queue)
        # Seconds for a byte on the way out of each GPU, and in.
        ports = rates.ports
        self.out_s = [(1 + ports.fan * max(0, len(others) - 1)) / ports.out for others in blocks.receivers]
        self.in_s = 1 / ports.into
        self.out_free, self.in_free = [0.0] * devices, [0.0] * devices
        self.line: list[list[int]] = [[] for _ in range(devices)]
        # Bytes that each of the blocks that take turns had sent when the one whose turn it is began; and of each block,
        # when its current turn would have begun, and when it would have ended.
        self.served = [0.0] * devices
        self.first, self.done = [0.0] * queues, [0.0] * queues
        self.called = [False] * devices
        self.begun: list[list[float | None]] = [[None] * devices for _ in range(launches)]
        self.started = [NONE] * devices
        self.unmet: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.ends = [[0.0] * devices for _ in range(launches)]
        self.looks = [[0.0] * devices for _ in range(launches)]
        self.left = [[len(own) for own in self.queues_of] for _ in range(launches)]
        # By launch and number of an arrival: when a waiting block may go on, when all of the data are there, and what
        # was spent on looking up to then.
        self.arrivals: list[list[float | None]] = [[None] * blocks.arrivals for _ in range(launches)]
        self.landed = [[0.0] * blocks.arrivals for _ in range(launches)]
        self.looked = [[0.0] * blocks.arrivals for _ in range(launches)]
        self.waiting: dict[tuple[int, int], list[int]] = {}
        # Of each block: its launch and round; until when it is busy, where its sums began, and the sums; when it came
        # to its round's port, for which target it is in line, and what that takes; when all data are out; its last
        # fence; what was spent on looking.
        self.launch, self.at = [0] * queues, [0] * queues
        self.until, self.since = [0.0] * queues, [0.0] * queues
        self.work, self.port = [0.0] * queues, [0.0] * queues
        self.came, self.target, self.taken = [0.0] * queues, [0] * queues, [0.0] * queues
        self.out_at, self.last = [0.0] * queues, [0.0] * queues
        self.fence = [(0.0, 0.0)] * queues
        self.look = [0.0] * queues
        self.events: list[tuple[float, int, int, int, int]] = []
        self.order = count()
        self.ended = [0] * launches
        self.settled = False

    def run(self) -> None:
        """Runs all launches; raises `ExecutionError` if the program gets stuck."""
        for device in range(len(self.queues_of)):
            self._push(0.0, _BEGIN, device, 0)
        events = self.events
        while events and not self.settled:
            now, _, kind, which, launch = heappop(events)
            if kind == _STORE:
                self.came[which], self.target[which], self.taken[which] = now, 0, 0.0
                self._store(which, now)
            elif kind == _PORT:
                self._next_in_line(which, now)
            else:
                self._begin(which, launch, now)
        if (self.waiting or self.unmet) and not self.settled:
            (launch, number), queues = next(iter(self.waiting.items()))
            raise ExecutionError(
                f"launch {launch + 1} is stuck: block {queues[0]} waits for arrival {number}, which never comes"
            )

    def _push(self, time: float, kind: int, which: int, launch: int = 0) -> None:
        heappush(self.events, (time, next(self.order), kind, which, launch))

    def _begin(self, device: int, launch: int, now: float) -> None:
        """A GPU begins a launch, and says so to those that store to it."""
        self.begun[launch][device] = now
        for other, later in self.unmet.pop((launch, device), ()):
            self._start(other, later)
        self._start(device, launch)

    def _start(self, device: int, launch: int) -> None:
        """Starts the blocks of a GPU, once it may store to the others."""
        start = self.begun[launch][device]
        if start is None or self.started[device] >= launch:
            return
        least = launch - self.blocks.staged
        for other in self.blocks.receivers[device] if least >= 0 else ():
            begun = self.begun[least][other]
            if begun is None:
                self.unmet.setdefault((least, other), []).append((device, launch))
                return
            start = max(start, begun + self.rates.announce_s)
        self.started[device] = launch
        for queue in self.queues_of[device]:
            self.launch[queue], self.at[queue] = launch, 0
            self.until[queue] = self.out_at[queue] = self.last[queue] = start
            self.fence[queue] = (0.0, 0.0)
            self.look[queue] = 0.0
            self._restart(queue, start)
            self._go_on(queue)
        if not self.queues_of[device]:
            self._end(device, launch, start)

    def _restart(self, queue: int, time: float, port: float = 0.0) -> None:
        self.since[queue], self.work[queue], self.port[queue] = time, 0.0, port

    def _both(self, queue: int) -> float:
        """When a block is done with what it did since it last waited."""
        work, port, power = self.work[queue], self.port[queue], self.power
        if not port:
            return self.since[queue] + work
        return float(self.since[queue] + (work**power + port**power) ** (1 / power))

    def _latest(self, queue: int, numbers: tuple[int, ...]) -> tuple[float, int] | None:
        """The last of some arrivals, and which one it is; None, and the block waits, if one is still to come."""
        launch = self.launch[queue]
        arrivals = self.arrivals[launch]
        latest, last = -1.0, NONE
        for number in numbers:
            time = arrivals[number]
            if time is None:
                self.waiting.setdefault((launch, number), []).append(queue)
                return None
            if time > latest:
                latest, last = time, number
        return latest, last

    def _go_on(self, queue: int) -> None:
        """Takes a block to its next round's port, or to its end, or lets it wait."""
        rounds = self.blocks.rounds[queue]
        while self.at[queue] < len(rounds):
            looks_s, wait_for, lead_s, work_s, needs, _, targets, _, _ = rounds[self.at[queue]]
            flags = self._latest(queue, wait_for)
            packets = None if flags is None else self._latest(queue, needs)
            if flags is None or packets is None:
                return
            if looks_s:
                self.look[queue] += looks_s
                self.work[queue] += looks_s
                self.until[queue] = self._both(queue) if self.blocks.packets else self.until[queue] + looks_s
            self._after(queue, *flags)
            if self.blocks.packets:
                self._read(queue, lead_s + work_s, needs, packets)
            else:
                self.work[queue] += lead_s
                self.until[queue] += lead_s
            if targets:
                self._push(self.until[queue], _STORE, queue)
                return
            self.at[queue] += 1
        self._leave(queue)

    def _after(self, queue: int, time: float, number: int) -> None:
        """A block is not further than `time`, when the arrival of this number let it go on."""
        if time > self.until[queue]:
            self.until[queue] = time
            self.look[queue] = self.looked[self.launch[queue]][number]
            self._restart(queue, time)

    def _read(self, queue: int, work_s: float, needs: tuple[int, ...], packets: tuple[float, int]) -> None:
        """A round of packets: its work, and not before those that it needs have come."""
        self.work[queue] += work_s
        self.until[queue] = self._both(queue)
        if needs:
            landed = self.landed[self.launch[queue]]
            self.last[queue] = max(self.last[queue], *(landed[number] for number in needs))
            latest, number = packets
            self._after(queue, latest + self.rates.packets.step_s, number)

    def _store(self, queue: int, now: float, turn: bool = False) -> None:
        """Stores a round to its targets from the current one on, until it must wait for its turn."""
        me = self.blocks.device[queue]
        found = self.blocks.rounds[queue][self.at[queue]]
        launch, targets = self.launch[queue], found.targets
        while self.target[queue] < len(targets):
            device = targets[self.target[queue]]
            number = found.arrival + self.target[queue]
            if device == HERE:
                self._arrive(queue, launch, number, now, now)
            else:
                if not turn:
                    self.first[queue] = max(self.served[me], self.done[queue])
                    self.done[queue] = self.first[queue] + found.load
                    if self.out_free[me] > now or self.line[me]:
                        self.line[me].append(queue)
                        self._call(me)
                        return
                turn = False
                self.served[me] = self.first[queue]
                self._send(queue, me, device, found.load, number, now)
            self.target[queue] += 1
        self._stored(queue, now)

    def _call(self, device: int) -> None:
        """Sees to it that one of those in line comes next."""
        if self.line[device] and not self.called[device]:
            self.called[device] = True
            self._push(self.out_free[device], _PORT, device)

    def _next_in_line(self, device: int, now: float) -> None:
        self.called[device] = False
        queue = min(self.line[device], key=self.first.__getitem__)
        self.line[device].remove(queue)
        self._store(queue, now, turn=True)
        self._call(device)

    def _send(self, queue: int, me: int, device: int, load: float, number: int, now: float) -> None:
        """One target's data on their way out of this GPU and into the other."""
        out, into = load * self.out_s[me], load * self.in_s
        free = self.in_free[device]
        end = max(now + out, max(free, now) + into)
        self.in_free[device] = end
        self.out_free[me] = max(now + out, end - self.rates.ports.queue_s)
        self.taken[queue] += out
        if end > self.out_at[queue]:
            self.out_at[queue] = end
        # Slices of packets cut through: what the first one has brought can be used.
        seen = end - max(out, into) if self.blocks.packets else end
        self._arrive(queue, self.launch[queue], number, seen, end)

    def _arrive(self, queue: int, launch: int, number: int, seen: float, landed: float) -> None:
        self.arrivals[launch][number] = seen
        self.landed[launch][number] = landed
        self.looked[launch][number] = self.look[queue]
        for other in self.waiting.pop((launch, number), ()):
            self._go_on(other)

    def _stored(self, queue: int, now: float) -> None:
        """The last target had its turn: the block goes on, and its flag behind the data."""
        found = self.blocks.rounds[queue][self.at[queue]]
        self.at[queue] += 1
        self.port[queue] += self.taken[queue]
        if not self.blocks.packets:
            self.work[queue] += found.work_s
            self.until[queue] = max(self._both(queue), self.came[queue] + found.work_s)
            self.out_at[queue] = max(self.out_at[queue], self.until[queue])
        self.last[queue] = max(self.last[queue], self.out_at[queue])
        if now > self.until[queue]:
            self.until[queue] = now
            self._restart(
                queue, now, 0.0 if self.blocks.packets else found.load * self.out_s[self.blocks.device[queue]]
            )
        if found.flag != NONE:
            self._raise_flag(queue, found.flag)
        self._go_on(queue)

    def _raise_flag(self, queue: int, flag: int) -> None:
        launch = self.launch[queue]
        if self.blocks.packets:
            away = here = self.until[queue] + self.own_s
        else:
            begin, end = self.fence[queue]
            if self.out_at[queue] > begin:
                begin = max(self.out_at[queue], end)
                end = begin + self.rates.flags.fence_s
                self.fence[queue] = begin, end
            away, here = end + self.rates.flags.flag_s, end + self.own_s
        self._arrive(queue, launch, flag, away, away)
        self._arrive(queue, launch, flag + 1, here, here)

    def _leave(self, queue: int) -> None:
        """A block has nothing left: it ends when all that it sent and needed is there."""
        tail_s = self.blocks.tail_s[queue]
        self.work[queue] += tail_s
        self.look[queue] += tail_s
        end = max(self._both(queue) if tail_s else self.until[queue], self.last[queue])
        if not self.blocks.packets:
            end = max(end, self.fence[queue][1], self.out_at[queue]) + self.rates.flags.fence_s
        device, launch = self.blocks.device[queue], self.launch[queue]
        if end >= self.ends[launch][device]:
            self.ends[launch][device], self.looks[launch][device] = end, self.look[queue]
        self.left[launch][device] -= 1
        if not self.left[launch][device]:
            self._end(device, launch, self.ends[launch][device])

    def _end(self, device: int, launch: int, end: float) -> None:
        self.ends[launch][device] = end
        self.ended[launch] += 1
        if self.ended[launch] == len(self.queues_of) and launch >= 2:
            self._settle(launch)
        if launch + 1 < self.launches:
            self._push(end + self.rates.launch_s, _BEGIN, device, launch + 1)

    def _settle(self, launch: int) -> None:
        """Whether all GPUs took as long for the last two launches: then the next ones take no longer either."""
        last = self.ends[launch - 2 : launch + 1]
        times = [b - a for before, after in pairwise(last) for a, b in zip(before, after, strict=True)]
        if max(times) - min(times) <= _ALIKE * max(times):
            self.settled = True
            del self.ends[launch + 1 :], self.looks[launch + 1 :]
