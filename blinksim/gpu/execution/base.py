"""What an executor is given, and what it gives back: a task is prepared once, and then run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

from blinksim.errors import InputError
from blinksim.gpu.execution.emulate import WIRE_PIECE, emulate
from blinksim.gpu.execution.options import RunOptions
from blinksim.gpu.execution.reference import Reference
from blinksim.gpu.programs.compile import compile_schedule
from blinksim.gpu.programs.dtypes import ElementType, check_reduction
from blinksim.gpu.programs.program import Program
from blinksim.schedule.model import Schedule


@dataclass(frozen=True)
class Task:
    """A schedule for a vector of `size_bytes`, rounded down to whole elements, and how to run it.

    Raises `InputError` for an unknown reduction, for a size below one element, and for options that exclude each other.
    """

    schedule: Schedule
    size_bytes: int
    kind: ElementType
    op: str
    in_place: bool
    options: RunOptions

    def __post_init__(self) -> None:
        check_reduction(self.op)
        if self.count < 1:
            kind = self.kind
            raise InputError(f"{self.size_bytes} bytes hold no element of {kind.name}, which has {kind.itemsize}")
        if self.in_place and self.options.emulation.lane_blocks is not None:
            raise InputError("an emulated machine runs out of place, and its lanes' blocks are its slices")

    @property
    def count(self) -> int:
        """Elements of the vector."""
        return self.size_bytes // self.kind.itemsize

    @cached_property
    def reference(self) -> Reference:
        """What every rank starts with, and what it must end with."""
        schedule = self.schedule
        return Reference(schedule.collective, schedule.topology.ranks, self.count, self.kind, self.op)

    def program(self, protocol: str, staged: bool = False) -> Program:
        """The schedule compiled to hand data on in this way; an emulated machine knows only one way."""
        blocks, piece_bytes = self.options.emulation.lane_blocks, self.options.cut.piece_bytes
        if blocks is not None:
            piece_bytes = WIRE_PIECE if piece_bytes is None else piece_bytes
            return emulate(self.schedule, self.count, self.kind, blocks, piece_bytes)[0]
        packets = protocol == "ll128"
        return compile_schedule(
            self.schedule, self.count, self.kind, in_place=self.in_place, packets=packets, staged=staged
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run showed; the fields are those of `blinksim.gpu.execution.execution_result.Execution`."""

    wrong: int | None = None
    max_error: float | None = None
    times_s: tuple[float, ...] = ()
    hardware: tuple[str, ...] = ()


class Executor(ABC):
    """Runs one task: `prepare` it, then `run` it."""

    @abstractmethod
    def prepare(self, task: Task) -> Program:
        """Compiles the task for the devices at hand, fits the program to them, and allocates its memory.

        Raises `MissingError` or `InfeasibleError` if the devices cannot run it.
        """

    @abstractmethod
    def run(self, check: bool) -> Outcome:
        """Runs the prepared program, and compares its outputs with the collective's definition if `check` is set.

        Raises `ExecutionError` if the program gets stuck.
        """
