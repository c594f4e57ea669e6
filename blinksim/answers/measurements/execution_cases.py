"""What is timed to calibrate the model of running programs: algorithms, sizes and numbers of GPUs behind one switch."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.gpu.programs.compile import compile_schedule
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.fit import fit, worth_staging
from blinksim.gpu.programs.program import Program
from blinksim.schedule.model import Schedule
from blinksim.topology.shapes import one_switch

KIB, MIB, GIB = 2**10, 2**20, 2**30
# Every rank's slice has whole lines of memory, as nccl-tests makes it.
_LINE = 128
_KIND = ELEMENT_TYPES["float32"]


@dataclass(frozen=True, slots=True)
class Case:
    """A run to time.

    Parameters
    ----------
    gpus : int
        How many take part.
    collective, algorithm, protocol : str
        What runs; ``nccl`` as the algorithm is NCCL's own collective, by whatever protocol it takes.
    size : int
        Bytes, before they are rounded down to whole lines.
    slices : int, optional
        Instead of what `blinksim.gpu.programs.fit` takes.
    """

    gpus: int
    collective: str
    algorithm: str
    protocol: str
    size: int
    slices: int | None = None

    @property
    def used(self) -> int:
        """Bytes that really run."""
        return self.size - self.size % (_LINE * self.gpus)

    @property
    def schedule(self) -> Schedule:
        """The schedule of the algorithm on GPUs around one switch."""
        return _schedule(self.gpus, self.collective, self.algorithm)

    def program(self, blocks: int) -> Program:
        """The program as the executor cuts it for GPUs that hold so many thread blocks."""
        packets = self.protocol == "ll128"
        staged = packets or worth_staging(self.schedule, self.used)
        made = compile_schedule(
            self.schedule, max(1, self.used // _KIND.itemsize), _KIND, packets=packets, staged=staged
        )
        return fit(made, blocks, slices=self.slices)


@cache
def _schedule(gpus: int, collective: str, algorithm: str) -> Schedule:
    # No time depends on the rate of the links of this machine, only on which ones there are.
    machine = one_switch(gpus, bandwidth=Fraction(450 * 10**9)).select()
    return REGISTRY[algorithm].build(machine, Collective(collective))


# Twelve runs that tell most constants apart on few GPUs, and again on many.
_PACKETS = (
    ("allreduce", "direct", KIB),
    ("allreduce", "ring", KIB),
    ("allreduce", "double_binary", 64 * KIB),
    ("allreduce", "ring", MIB),
    ("broadcast", "chain", 16 * MIB),
    ("allreduce", "direct", 16 * MIB),
)
_FLAGS = (
    ("allreduce", "ring", MIB),
    ("allreduce", "two_shot", MIB),
    ("allreduce", "ring", 16 * MIB),
    ("allreduce", "direct", 16 * MIB),
    ("allreduce", "ring", 256 * MIB),
    ("reduce", "chain", 64 * MIB),
)
# Of NCCL, on few GPUs and on many.
_NCCL = (
    ("allreduce", 16 * KIB),
    ("allreduce", MIB),
    ("allreduce", 16 * MIB),
    ("allreduce", 256 * MIB),
    ("allgather", 16 * MIB),
    ("reducescatter", 64 * MIB),
    ("broadcast", 16 * MIB),
)


def plan(gpus: int) -> tuple[Case, ...]:
    """At most 40 runs for a machine of so many GPUs: half of them of two GPUs, half of all; 24 of ours, then NCCL's."""
    counts = (2, gpus) if gpus > 2 else (2,)
    ours = [
        Case(count, collective, algorithm, protocol, size)
        for count in counts
        for protocol, rows in (("ll128", _PACKETS), ("simple", _FLAGS))
        for collective, algorithm, size in rows
    ]
    nccl = [Case(count, collective, "nccl", "", size) for count in counts for collective, size in _NCCL]
    return (*ours, *nccl)
