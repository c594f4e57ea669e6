"""What moves the data of a group: GPUs through CUDA IPC, or this computer's shared memory and NumPy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.gpu.jobs.segment import Segment
from blinksim.gpu.jobs.turns import Turn

Words = npt.NDArray[np.uint64]


class Backend(ABC):
    """Allocates and shares a rank's segment, and runs turns over the segments of all ranks.

    name: for people. packets: True if the links of this rank keep packets whole. blocks: most blocks of a launch.
    """

    name: str
    packets: bool
    blocks: int

    @abstractmethod
    def allocate(self, segment: Segment) -> str:
        """Allocates this rank's segment, in the state of a new group; returns what another process needs to map it.

        Raises `MissingError` if there is not enough memory.
        """

    @abstractmethod
    def connect(self, rank: int, handles: Sequence[str]) -> None:
        """Maps the segments of all other ranks; handles come from their `allocate`. Raises `MissingError`."""

    def settle(self) -> None:  # noqa: B027 - most have nothing to do
        """Called when all ranks have connected: names that only `connect` needs can go."""

    @abstractmethod
    def launch(self, turn: Turn, op: str, source: Any, target: Any, timeout_s: float) -> None:
        """Runs a turn, or queues it. source, target: the caller's vectors, as this backend addresses memory."""

    @abstractmethod
    def notes(self) -> Words:
        """A copy of this rank's notes, also while a launch runs."""

    @abstractmethod
    def alarmed(self) -> bool:
        """True once a call has failed here; asked before every call, so it must be quick."""

    @abstractmethod
    def finish(self) -> None:
        """Waits until everything launched has ended."""

    @abstractmethod
    def disconnect(self) -> None:
        """Lets go of the segments of others."""

    @abstractmethod
    def free(self) -> None:
        """Frees this rank's own segment, which no other rank maps any more."""
