"""Calls of a group, and the rules that choose the schedule for each by collective and size, from a file or built in.

Collective calls compiled for the fixed memory of a group: segments, and the parts a long call moves in.

A segment is the memory that a rank lends to the others: of fixed size, used by every program in its turn.
Each part of a call (`Launch`) is a staged program of one rank's view, fitted to it.

A segment has notes (what went wrong, and the heralds: two words per rank for the launches that it has begun
and what it called), flags, the rounds that blocks have begun, inboxes for packets and inboxes for data with
flags behind them. Flags and inboxes have two halves, for even and odd rounds. Data and packets never share a
byte: data might look like the number of a round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path

import numpy as np

from blinksim import data_files
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import ON_TREES, Collective
from blinksim.errors import FileError, InputError, blamed_on, one_of, unknown
from blinksim.gpu.execution.emulate import emulate, wire_piece
from blinksim.gpu.programs.fit import quicker_protocol
from blinksim.gpu.programs.of_calls import Call, Segment, call_program, launched
from blinksim.gpu.programs.program import INPUT, OUTPUT, PROTOCOLS, Program
from blinksim.results import count, names
from blinksim.schedule.model import Schedule
from blinksim.textio import text_files
from blinksim.textio.strict_json import Entry, parse
from blinksim.timing.execution_model import Auto, Executed
from blinksim.timing.measured_constants import uncovered
from blinksim.topology.graph import Topology
from blinksim.topology.shapes import one_switch
from blinksim.units import format_size_about, size_of


def signature_of(call: Call, first: int, length: int, program: bytes = b"") -> int:
    """32 bits, never 0, that stand for a launch of a call: ranks whose calls or programs differ have different ones."""
    digest = hashlib.blake2b(f"{call}; {first}+{length}".encode() + program, digest_size=4).digest()
    return int.from_bytes(digest, "little") or 1


@dataclass(frozen=True, slots=True)
class Choice:
    """A schedule, and how it hands data on: ``ll128`` or ``simple``. lane_blocks: as in `Rule`."""

    schedule: Schedule
    protocol: str
    lane_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """For vectors of a collective up to so many bytes (None: any): an algorithm's name or a schedule, a protocol.

    lane_blocks: so many thread blocks for every lane of the schedule's machine, and nothing leaves a GPU any
    other way (`blinksim.gpu.execution.emulate`); None for as many as are quickest.
    """

    collective: str
    up_to: int | None
    what: str | Schedule
    protocol: str
    lane_blocks: int | None = None

    def __post_init__(self) -> None:
        one_of("collective of a group", self.collective, ON_TREES)
        if isinstance(self.what, str) and self.what not in REGISTRY:
            raise unknown("algorithm", self.what, REGISTRY)
        if isinstance(self.what, Schedule) and self.what.collective.name != self.collective:
            raise InputError(f"its schedule is for {self.what.collective.name}, not {self.collective}")
        if isinstance(self.what, Schedule) and self.what.groups:
            raise InputError("its schedule is of several groups, which blinksim.torch.new_groups makes of it")
        one_of("protocol", self.protocol, PROTOCOLS)
        alone = isinstance(self.what, Schedule) and self.protocol == "simple"
        if self.lane_blocks is not None and (self.lane_blocks < 1 or not alone):
            raise InputError("lane_blocks is 1 or more, for a schedule of its own machine by the protocol simple")


@cache
def _switch_rules(ranks: int) -> tuple[Rule, ...]:
    """What was quickest on so many H200 (models/README.md): rules for two, four and eight and more."""
    alike = "2" if ranks == 2 else "4" if ranks < 8 else "8"

    def rule(row: dict[str, str]) -> Rule | None:
        limit = size_of(row["up_to"]) if row["up_to"] else None
        return Rule(row["collective"], limit, row["algorithm"], row["protocol"]) if row["ranks"] == alike else None

    rules = text_files.read_rows(data_files.folder("models") / "job_rules.csv", rule, "rule of jobs")
    return tuple(filter(None, rules))


# Of the vectors that `JobPlan.predicted` asks about; a rule ends half way to the next one.
_SIZES = tuple(1 << power for power in range(10, 29, 2))


@dataclass(frozen=True)
class JobPlan:
    """The rules of a group; the first one that fits a call is taken.

    topology: the selected part that the ranks are, in rank order. origin: where the rules are from, for
    people.

    Examples
    --------
    >>> from blinksim.gpu.programs.of_calls import Call
    >>> from blinksim.gpu.jobs.job_plan import JobPlan
    >>> from blinksim.gpu.programs.dtypes import element_type
    >>> plan = JobPlan.for_switch(4)
    >>> choice = plan.choose(Call("allreduce", 1000, element_type("float32")))
    >>> choice.schedule.algorithm, choice.protocol
    ('two_shot', 'll128')
    """

    topology: Topology
    rules: tuple[Rule, ...]
    origin: str = "built-in rules"

    def __post_init__(self) -> None:
        for name in ON_TREES:
            last = (rule for rule in self.rules if rule.up_to is None and isinstance(rule.what, str))
            if not any(rule.collective == name for rule in last):
                raise InputError(f"{self.origin}: no rule for {name} of any size; add one without up_to")

    @property
    def ranks(self) -> int:
        return self.topology.ranks

    @cached_property
    def relays(self) -> tuple[str, ...]:
        """The devices beside the ranks that its schedules use. Their processes take part in every call."""
        found = dict[str, None]()
        for schedule in (rule.what for rule in self.rules if isinstance(rule.what, Schedule)):
            others = {*schedule.src.tolist(), *schedule.dst.tolist()} - {*schedule.device_of.tolist()}
            found |= dict.fromkeys(schedule.topology.devices[place].name for place in sorted(others))
        return tuple(found)

    @property
    def fingerprint(self) -> str:
        """Equal for plans that choose the same."""
        from blinksim.formats.schedule_json import to_text

        rows = []
        for rule in self.rules:
            what = rule.what if isinstance(rule.what, str) else to_text(rule.what)
            rows.append((rule.collective, rule.up_to, what, rule.protocol, rule.lane_blocks))
        digest = hashlib.blake2b(repr((self.ranks, rows)).encode(), digest_size=4).hexdigest()
        return f"{self.origin} ({digest})"

    @classmethod
    def for_switch(cls, ranks: int) -> JobPlan:
        """The rules for GPUs that a switch joins."""
        return cls(one_switch(ranks).select(), _switch_rules(ranks))

    @classmethod
    def predicted(cls, topology: Topology) -> JobPlan:
        """What `blinksim.answers.project.project` finds quickest on a selected machine, from 1 KiB to 256 MiB: by the
        model ``execution`` where the machine has its constants, else by alpha-beta.

        Of eight algorithms on four H200 this choice is 4 % slower than the quickest in the mean, at worst 37
        %; the built-in rules are the quickest everywhere.
        """
        from blinksim.answers.project import project

        called = topology.execution is not None and topology.execution.job is not None
        model = Auto() if uncovered(topology) else Executed(calls="graph" if called else "successive")
        rules: list[Rule] = []
        for name in ON_TREES:
            for size in _SIZES:
                projection = project(topology, name, size, model=model)
                schedule = REGISTRY[projection.algorithm].build(topology, Collective(name))
                protocol = str(projection.details.get("protocol") or quicker_protocol(schedule, size))
                rule = Rule(name, None if size == _SIZES[-1] else 2 * size, projection.algorithm, protocol)
                if rules and (rules[-1].collective, rules[-1].what, rules[-1].protocol) == (name, rule.what, protocol):
                    rules.pop()
                rules.append(rule)
        return cls(topology, tuple(rules), f"the model {model.name} of {topology.name}")

    @classmethod
    def of(cls, topology: Topology, text: str, place: str | Path = "the plan") -> JobPlan:
        """From the text of a plan: a JSON list of rules, which go before the built-in ones.

        A rule has ``collective``, ``algorithm`` (a name) or ``schedule`` (a schedule file, relative to the
        plan), and may have ``up_to`` (a size such as ``1MiB``; default: any), ``protocol`` (``ll128``, or by
        default ``simple``) and, with a schedule, ``lane_blocks`` (see `Rule`). Raises `FileError` for a text
        that is no such list, and `InputError` for names that do not exist.
        """
        document = Entry(place, "", parse(place, text.encode(), "plan"))
        from blinksim.formats.schedule_json import read_schedule

        # A file that many rules name is read once.
        read, rules = lru_cache(read_schedule), list[Rule]()
        optional = dict.fromkeys(("up_to", "algorithm", "schedule", "lane_blocks")) | {"protocol": "simple"}
        for row in document.items():
            fields = row.fields(("collective",), optional)
            limit, name, file, lanes, protocol = (fields[key] for key in optional)
            if (name.value is None) == (file.value is None):
                raise row.wrong("needs either an algorithm or a schedule")
            named = file.value is None
            what: str | Schedule = name.text() if named else read(Path(row.path).parent / file.text())
            with blamed_on(row.wrong):
                up_to = None if limit.value is None else size_of(limit.text())
                lane_blocks = None if lanes.value is None else lanes.whole(1, 64)
                rules.append(Rule(fields["collective"].text(), up_to, what, protocol.text(), lane_blocks))
        for rule in rules:
            if isinstance(rule.what, Schedule) and (there := rule.what.topology.ranks) != topology.ranks:
                raise FileError(place, f"a schedule for {rule.collective} is for {there} ranks, not {topology.ranks}")
        plan = cls(topology, (*rules, *_switch_rules(topology.ranks)), f"{place}")
        if plan.relays:
            what = f"a schedule relays through {names(plan.relays)}, which are no ranks of the group"
            raise FileError(place, f"{what}; groups of blinksim.torch.new_groups have relays")
        return plan

    @classmethod
    def read(cls, topology: Topology, path: str | Path) -> JobPlan:
        """From a file; see `of`."""
        return cls.of(topology, text_files.read_text(Path(path)), path)

    def choose(self, call: Call) -> Choice:
        """The schedule for a call."""
        for rule in self.rules:
            if rule.collective != call.collective or (rule.up_to is not None and call.nbytes > rule.up_to):
                continue
            schedule = rule.what
            if isinstance(schedule, str):
                schedule = REGISTRY[schedule].build(self.topology, call.what)
            # A schedule from a file is for one root.
            if schedule.collective == call.what:
                return Choice(schedule, rule.protocol, rule.lane_blocks)
        raise InputError(f"{self.origin}: no rule for {call}")

    def with_rules(self, rules: Sequence[Rule], origin: str) -> JobPlan:
        """The same with other rules in front."""
        return replace(self, rules=(*rules, *self.rules), origin=origin)


# Words of the notes: what went wrong, then two heralds of each rank.
FIRST_HERALD, MOST_RANKS = 8, 64
NOTES_BYTES = 8 * (FIRST_HERALD + 2 * MOST_RANKS)
# Codes in the first word, as in calls.cu.
GAVE_UP, MISMATCH, TOLD_SO = 1, 2, 3


@dataclass(frozen=True)
class Launch:
    """What one launch does.

    program: with the places of INPUT and OUTPUT where they are in the caller's vectors. by: the algorithm and
    the protocol. says, signature: what is called. at: bytes to add to both addresses of the
    caller. written: (parts, bytes of each, bytes from one to the next) of what this rank's output gets.
    rounds: how often the program runs, each time `step` bytes further on in the caller's vectors.
    """

    program: Program
    by: str
    says: str
    signature: int
    at: int
    written: tuple[int, int, int]
    rounds: int = 1
    step: int = 0


@dataclass(eq=False)
class Planner:
    """Makes the launches of calls for one rank.

    blocks: how many thread blocks a launch has at most, long ones beside computing and those of wires half as
    many. packets: False if the links may split the lines of packets.
    """

    plan: JobPlan
    rank: int
    segment: Segment
    blocks: int
    packets: bool = True

    def launches(self, call: Call) -> list[Launch]:
        """The launches of a call, the same on all ranks but for the addresses.

        Raises `InputError` for a call that cannot be, `InfeasibleError` if its schedule does not fit the
        memory.
        """
        choice, size, parts = self.plan.choose(call), call.kind.itemsize, call.parts(self.plan.ranks)
        whole, found = call.count // parts, list[Launch]()
        made = launched(call, self.plan.ranks, self.segment, partial(self._program, call))
        for program, first, length, rounds in made:
            moved = rounds * length
            gathers = call.collective == "allgather"
            written = (parts, moved * size, whole * size) if gathers else (1, moved * size, 0)
            keeps = (call.collective, self.rank == call.root) in (("reduce", False), ("broadcast", True))
            if keeps or self.rank >= self.plan.ranks:
                written = (0, 0, 0)  # a relay has no output
            if len(program.devices) < self.plan.ranks + len(self.plan.relays):
                # Relays have nothing to do in it, and count it.
                idle = np.zeros((len(self.plan.relays), 4), dtype=np.int64)
                sizes, flags = np.concatenate([program.sizes, idle]), np.append(program.flags, idle[:, 0])
                devices = (*program.devices, *self.plan.relays)
                program = replace(program, devices=devices, sizes=sizes, flags=flags)
            by = f"{choice.schedule.algorithm} by {'ll128' if program.packets else 'simple'}"
            if choice.lane_blocks is not None:
                by = f"{choice.schedule.algorithm} on lanes of {count(choice.lane_blocks, 'block')}"
            # What must be the same on all ranks, for their parts to fit together.
            names = "key", "length", "queue_start", "sources", "destinations", "waits", "waits", "signals"
            cut = np.array([program.slices, program.piece_units, program.order, program.packets])
            arrays = *(getattr(program, name) for name in names), cut
            signature = signature_of(call, first, moved, b"".join(array.tobytes() for array in arrays))
            part = f", elements {first} to {first + moved}" if moved < whole else ""
            says = f"{call} ({format_size_about(call.nbytes)}){part}"
            buffer = {"allgather": OUTPUT, "reducescatter": INPUT}.get(call.collective)
            if buffer is not None and length != whole:
                # Parts lie `whole` elements apart in the caller's vector, and not `length`.
                sources, destinations = program.sources.copy(), program.destinations.copy()
                for rows in (sources, destinations):
                    there = rows[:, -2] == buffer
                    rows[there, -1] += rows[there, -1] // length * np.int64(whole - length)
                program = replace(program, sources=sources, destinations=destinations)
            found.append(Launch(program, by, says, signature, first * size, written, rounds, length * size))
        return found

    def _program(self, call: Call, length: int) -> Program:
        choice, parts = self.plan.choose(call), call.parts(self.plan.ranks)
        if choice.lane_blocks is None:
            return call_program(call, choice.schedule, choice.protocol == "ll128" and self.packets, self.blocks, length)
        elements, schedule = length * parts, choice.schedule
        piece, most = wire_piece(schedule, elements * call.kind.itemsize), max(1, self.blocks // 2)
        lanes, in_place = choice.lane_blocks, parts == 1
        wires = emulate(schedule, elements, call.kind, lanes, piece, in_place=in_place, staged=True, most_blocks=most)
        return wires[0]
