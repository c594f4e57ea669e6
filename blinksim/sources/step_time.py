"""A training step: computation, and the exposed part of the communication.

Gradients become ready during the backward pass; their allreduces run one after another beside it, and what is left
when the computation ends is exposed (S. Li et al., "PyTorch Distributed", VLDB 2020, section 3.2; SISCI-NCCL thesis,
Cubedo 2021, section 6.7: collectives 12 times quicker, batches only a little).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blinksim.errors import InputError


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together: ready_s after the start of the step, time_s of communication."""

    ready_s: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Step:
    """One training step in seconds. communication_s: all of it; exposed_s: what computation does not hide."""

    compute_s: float
    communication_s: float
    exposed_s: float

    @property
    def time_s(self) -> float:
        return self.compute_s + self.exposed_s

    @property
    def efficiency(self) -> float:
        """The share of the step in which the GPU computes."""
        return self.compute_s / self.time_s if self.time_s else 1.0

    def images_per_second(self, batch: int, ranks: int) -> float:
        """Samples per second of all ranks with `batch` samples each."""
        return batch * ranks / self.time_s


def step(compute_s: float, buckets: Sequence[Bucket]) -> Step:
    """The step whose buckets are reduced in the order in which they are ready, one at a time."""
    if compute_s < 0 or any(b.ready_s < 0 or b.time_s < 0 for b in buckets):
        raise InputError("times of a training step must not be negative")
    end = 0.0
    for bucket in sorted(buckets, key=lambda b: b.ready_s):
        end = max(end, bucket.ready_s) + bucket.time_s
    return Step(compute_s, sum(b.time_s for b in buckets), max(0.0, end - compute_s))


def overlapped(compute_s: float, communication_s: float, overlap: float = 0.0) -> Step:
    """The step of which a share `overlap` of the computation (0 to 1) can hide communication."""
    if compute_s < 0 or communication_s < 0 or not 0 <= overlap <= 1:
        raise InputError("give times of 0 s or more, and an overlap from 0 to 1")
    return Step(compute_s, communication_s, max(0.0, communication_s - overlap * compute_s))


def speedup(before: Step, factor: float, overlap: float = 0.0) -> float:
    """How much shorter the step gets when its communication gets `factor` times quicker (Amdahl 1967)."""
    if factor <= 0:
        raise InputError(f"a factor of {factor}: give a positive one")
    after = overlapped(before.compute_s, before.communication_s / factor, overlap)
    return before.time_s / after.time_s if after.time_s else 1.0
