"""Tasks of executors, and the options of a run.

An executor is a module with a function ``run``, which is given a task, and gives back its program and what it
showed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from blinksim.errors import InputError, each_of, one_of, unknown
from blinksim.gpu.execution.emulate import WIRE_PIECE, emulate
from blinksim.gpu.execution.reference import AnyReference, Reference, References
from blinksim.gpu.programs.dtypes import REDUCTIONS, ElementType
from blinksim.gpu.programs.of_calls import compile_schedule
from blinksim.gpu.programs.program import PROTOCOLS, Program, lay_out_side_by_side
from blinksim.schedule.model import Schedule

MOST_LANE_BLOCKS = 1024


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run beside what it computes.

    Parameters
    ----------
    slices : int, optional
        Parts of every chunk, each with blocks of its own; `blinksim.gpu.programs.fit` chooses what is left
        out.
    piece_bytes : int, optional
        What a block moves at once; on an emulated machine, what a lane sends at once.
    protocol : {"simple", "ll128"}, optional
        ``simple`` raises flags behind the data; ``ll128`` sends packets, which saves time on every step and
        moves 16 bytes for 15 of data. The default is, on GPUs, the one that the simulation of the program or,
        on GPUs that nobody measured, `blinksim.gpu.programs.fit` expects to be quicker, if the links allow
        packets; on the CPU and for emulated machines, ``simple``.
    staged : bool, optional
        Copy what comes from another device out of an inbox, so that GPUs that are ahead go on with the next
        launch. Packets are always staged, so False takes ``simple``. The default with ``simple`` is, on GPUs,
        to stage where `blinksim.gpu.programs.fit` expects that to be quicker and memory suffices; elsewhere,
        not to.
    lane_blocks : int, optional
        The schedule's machine on the devices at hand, lane by lane (`blinksim.gpu.execution.emulate`): thread
        blocks for every lane of a link. The default runs the schedule as it is.
    lane_rate : float, optional
        Bytes/s that such a block moves at most, on GPUs.
    gpus : sequence of int, optional
        CUDA devices in rank order. The default is 0, 1, 2, …. The CPU ignores this and all up to `timeout_s`.
    threads : int, optional
        Threads of a block: at least 64, with packets 32, and by default 512, the most. Fewer threads make a
        lane slower and leave room for more blocks.
    warmup, iterations : int
        Launches before the timed ones, and timed launches.
    apart : bool
        No iteration begins before all GPUs have ended the one before.
    timeout_s : float
        How long a GPU waits for another before the run ends with an error.
    seed : int, optional
        Of a random order of the blocks, where NumPy interprets the program. The default runs each block for
        as long as it can.
    """

    slices: int | None = None
    piece_bytes: int | None = None
    protocol: str | None = None
    staged: bool | None = None
    lane_blocks: int | None = None
    lane_rate: float | None = None
    gpus: Sequence[int] | None = None
    threads: int | None = None
    warmup: int = 5
    iterations: int = 20
    apart: bool = False
    timeout_s: float = 5.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("slices", "piece_bytes"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"{name} must be at least 1")
        if self.protocol not in (None, *PROTOCOLS):
            raise unknown("protocol", str(self.protocol), PROTOCOLS)
        if self.staged is False and self.protocol == "ll128":
            raise InputError("packets always go through inboxes; leave staged out, or take protocol=simple")
        if (lanes := self.lane_blocks) is not None and lanes > MOST_LANE_BLOCKS:
            most = f"give at most {MOST_LANE_BLOCKS}"
            raise InputError(f"lane_blocks={lanes}: no GPU runs so many thread blocks at once; {most}")
        if self.lane_rate is not None and (lanes is None or self.lane_rate <= 0):
            raise InputError("lane_rate is for the blocks of lanes (lane_blocks), and more than 0")
        if self.warmup < 0 or self.iterations < 1:
            raise InputError("a timed run needs at least one iteration, and no fewer than 0 to warm up")
        if not self.timeout_s > 0:
            raise InputError(f"timeout_s is more than 0, not {self.timeout_s}")
        if self.seed is not None and self.seed < 0:
            raise InputError(f"a seed is a whole number from 0 on, not {self.seed}")
        if lanes is not None and self.protocol not in (None, "simple"):
            raise InputError("the lanes of an emulated machine use the protocol simple")
        if lanes is not None and self.staged:
            raise InputError("an emulated machine hands data on without inboxes")

    @classmethod
    def gather(cls, **keywords: Any) -> RunOptions:
        """Options from keywords; raises `InputError` for a name that is none, with the nearest names."""
        each_of("option", keywords, [entry.name for entry in fields(cls)])
        return cls(**keywords)

    @property
    def wanted(self) -> str | None:
        """The requested protocol, or None for a free choice."""
        return "simple" if self.staged is False else self.protocol


@dataclass(frozen=True)
class Task:
    """A schedule for a vector of `size_bytes`, rounded down to whole elements, and how to run it.

    Of several groups each has its share of the size. Raises `InputError` for an unknown reduction, for a size
    below one element, and for options that exclude each other.
    """

    schedule: Schedule
    size_bytes: int
    kind: ElementType
    op: str
    in_place: bool
    options: RunOptions

    def __post_init__(self) -> None:
        one_of("reduction", self.op, REDUCTIONS)
        if self.count < 1 or any(count < 1 for count in self.counts):
            empty = f"{self.size_bytes} bytes hold no element{' of every group' if self.counts else ''}"
            raise InputError(f"{empty} of {self.kind.name}, which has {self.kind.itemsize}")
        if self.in_place and self.counts:
            raise InputError("groups run out of place: a GPU may be in several")
        if self.options.lane_blocks is not None and (self.in_place or self.options.slices is not None):
            raise InputError("an emulated machine runs out of place, and its lanes' blocks are its slices")

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Elements of each group's vector; none of a single collective."""
        return tuple(int(self.size_bytes * one.share) // self.kind.itemsize for one in self.schedule.groups)

    @property
    def count(self) -> int:
        """Elements of the vector, or of those of all groups."""
        return sum(self.counts) if self.counts else self.size_bytes // self.kind.itemsize

    @cached_property
    def reference(self) -> AnyReference:
        """What every rank starts with, and what it must end with."""
        schedule = self.schedule
        if self.counts:
            layout, places = lay_out_side_by_side(schedule, self.counts, self.kind.itemsize)
            each = [
                Reference(one.collective, len(one.members), count, self.kind, self.op, seed)
                for seed, (one, count) in enumerate(zip(schedule.groups, self.counts, strict=True), 1)
            ]
            return References(tuple(each), places, tuple(size for size, _ in layout.sizes))
        return Reference(schedule.collective, schedule.topology.ranks, self.count, self.kind, self.op)

    def program(self, protocol: str, staged: bool = False) -> Program:
        """The schedule compiled to hand data on in this way; an emulated machine knows only one way."""
        blocks, piece_bytes = self.options.lane_blocks, self.options.piece_bytes
        if blocks is not None:
            piece_bytes = WIRE_PIECE if piece_bytes is None else piece_bytes
            return emulate(self.schedule, self.counts or self.count, self.kind, blocks, piece_bytes)[0]
        how = {"in_place": self.in_place, "packets": protocol == "ll128", "staged": staged}
        return compile_schedule(self.schedule, self.counts or self.count, self.kind, **how)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run showed; the fields are those of `blinksim.gpu.execution.run.Execution`."""

    wrong: int | None = None
    max_error: float | None = None
    times_s: tuple[float, ...] = ()
    hardware: tuple[str, ...] = ()
