"""Backends that move the data of a group: the interface, and one without GPUs, by shared memory and NumPy.

Without GPUs the segments are files in shared memory, and NumPy interprets the programs. It relies on one
process seeing another's stores in order: guaranteed on x86, and elsewhere by the work that the interpreter
does between two stores.
"""

from __future__ import annotations

import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.errors import MissingError
from blinksim.gpu.execution.numpy_executor import move
from blinksim.gpu.jobs.launches import FIRST_HERALD, GAVE_UP, MISMATCH, NOTES_BYTES, TOLD_SO, Launch, Segment
from blinksim.gpu.programs.dtypes import POISON_BYTE, Array
from blinksim.gpu.programs.program import INBOX, INPUT, OUTPUT, SCRATCH, Program, receivers
from blinksim.units import format_size_about

Words = npt.NDArray[np.uint64]


class Backend(ABC):
    """Allocates and shares a rank's segment, and runs launches over the segments of all ranks.

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
    def launch(self, launch: Launch, op: str, source: Any, target: Any, timeout_s: float) -> None:
        """Runs a launch, or queues it. source, target: the caller's vectors, as this backend addresses memory."""

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


# Thread blocks that a launch pretends to have: enough for slices to matter.
_BLOCKS = 8
_SHARED = Path("/dev/shm")
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class _GaveUpError(Exception):
    """A wait took too long, or another rank has failed."""


class SharedMemoryBackend(Backend):
    """This process's rank. `launch` takes one-dimensional arrays and returns when the call is done.

    folder: where the segments are; default, the computer's shared memory.
    """

    name, packets, blocks = "CPU", True, _BLOCKS

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder) if folder else _SHARED if _SHARED.is_dir() else Path(tempfile.gettempdir())
        self.path = Path()
        self.maps: list[_Bytes] = []
        self.epoch, self.before = 0, 0

    def allocate(self, segment: Segment) -> str:
        self.segment = segment
        number, name = tempfile.mkstemp(prefix="blinksim-", dir=self.folder)
        self.path = Path(name)
        try:
            os.posix_fallocate(number, 0, segment.lent)
        except OSError as error:
            self.path.unlink()
            raise MissingError(
                f"{self.folder} has no room for the {format_size_about(segment.lent)} of a group ({error.strerror}); "
                f"take a smaller buffer"
            ) from None
        finally:
            os.close(number)
        self.own = _map(name)
        self.scratch = np.full(segment.scratch, POISON_BYTE, dtype=np.uint8)
        return name

    def connect(self, rank: int, handles: Sequence[str]) -> None:
        self.rank = rank
        for other, name in enumerate(handles):
            if other == rank:
                self.maps.append(self.own)
                continue
            try:
                self.maps.append(_map(name))
            except OSError as error:
                raise MissingError(f"rank {rank} cannot map the memory of rank {other}: {error}") from None

    def settle(self) -> None:
        self.path.unlink()  # a process that is killed leaves nothing behind

    def notes(self) -> Words:
        return self._notes(self.rank).copy()

    def alarmed(self) -> bool:
        return bool(self._notes(self.rank)[0])

    def finish(self) -> None:
        pass

    def disconnect(self) -> None:
        self.maps = []

    def free(self) -> None:
        """The memory goes with the last process that maps it."""

    def _notes(self, rank: int) -> Words:
        return self.maps[rank][:NOTES_BYTES].view(np.uint64)

    def launch(self, launch: Launch, op: str, source: Array, target: Array, timeout_s: float) -> None:
        try:
            # Every round is begun as launches are on GPUs.
            for number in range(launch.rounds):
                epoch, on = self.epoch + 1, number * launch.step
                # Announces the launch, and waits until all others have begun the one before.
                if self.alarmed():
                    raise _GaveUpError
                for other in range(len(self.maps)):
                    self._notes(other)[_herald(self.rank, epoch)] = epoch << 32 | launch.signature
                for other in range(len(self.maps)) if epoch > 1 else ():
                    if other != self.rank:
                        self._has_begun(other, epoch - 1, self.before, timeout_s)
                there = source.view(np.uint8)[launch.input_at + on :], target.view(np.uint8)[launch.output_at + on :]
                _Interpreter(self, launch.program, op, there, epoch, timeout_s).run()
                # Were those that sent data in the same call? They have announced it before.
                for other, targets in enumerate(receivers(launch.program)):
                    if self.rank in targets:
                        self._has_begun(other, epoch, launch.signature, timeout_s)
                self.epoch, self.before = epoch, launch.signature
        except _GaveUpError:
            # Spoils the output and tells the others.
            parts, length, stride = launch.written
            out = target.view(np.uint8)
            for part in range(parts):
                at = launch.output_at + part * stride
                out[at : at + length] = POISON_BYTE
            for other in range(len(self.maps)):
                notes = self._notes(other)
                if not notes[0]:
                    notes[1] = self.rank
                    notes[0] = TOLD_SO

    def _has_begun(self, other: int, epoch: int, signature: int, timeout_s: float) -> None:
        notes = self._notes(self.rank)
        patience = _Patience(self, timeout_s)
        while (seen := int(notes[_herald(other, epoch)])) >> 32 < epoch:
            patience.wait()
        if seen >> 32 == epoch and seen & 0xFFFFFFFF != signature and not notes[0]:
            notes[1:4] = other, seen, epoch << 32 | signature
            notes[0] = MISMATCH
        if notes[0]:
            raise _GaveUpError


class _Patience:
    """How long a rank has been waiting."""

    def __init__(self, backend: SharedMemoryBackend, timeout_s: float) -> None:
        self.backend, self.end = backend, time.monotonic() + timeout_s
        self.tries = 0

    def wait(self) -> None:
        """Lets others work for a moment; raises `_GaveUpError` in the end."""
        if self.backend.alarmed():
            raise _GaveUpError
        if time.monotonic() > self.end:
            self.backend.own[:8].view(np.uint64)[0] = GAVE_UP
            raise _GaveUpError
        self.tries += 1
        time.sleep(0 if self.tries < 100 else 5e-5)


class _Interpreter:
    """Runs a rank's queues over the segments of all, as the kernel does: a block for each queue and slice.

    vectors: what the program calls INPUT and OUTPUT, from where this round begins.
    """

    def __init__(
        self,
        backend: SharedMemoryBackend,
        program: Program,
        op: str,
        vectors: tuple[_Bytes, _Bytes],
        epoch: int,
        timeout_s: float,
    ) -> None:
        self.program, self.op, self.epoch = program, op, epoch
        self.rank, self.patience = backend.rank, _Patience(backend, timeout_s)
        segment, half, kind = backend.segment, epoch % 2, self.program.kind
        inbox, nbytes = segment.inbox(self.program.packets)
        flags = slice(segment.flags_at + half * segment.flags, segment.flags_at + (half + 1) * segment.flags)
        there = slice(inbox + half * nbytes, inbox + (half + 1) * nbytes)
        self.flags = [memory[flags].view(np.uint64) for memory in backend.maps]
        # Of the others their inboxes are mapped.
        self.memory = [{INBOX: memory[there].view(kind.storage)} for memory in backend.maps]
        own = {INPUT: vectors[0], OUTPUT: vectors[1], SCRATCH: backend.scratch}
        self.memory[self.rank] |= {buffer: array.view(kind.storage) for buffer, array in own.items()}

    def run(self) -> None:
        program = self.program
        blocks = [
            self._block(program, int(queue), part)
            for queue in program.queues_of(self.rank)
            for part in range(program.slices)
        ]
        while blocks:
            going = [(block, next(block, None)) for block in blocks]
            blocks = [block for block, state in going if state is not None]
            if blocks and not any(state for _, state in going):
                self.patience.wait()
            else:
                self.patience.tries = 0

    def _block(self, program: Program, queue: int, part: int) -> Generator[bool]:
        """Yields True after a piece, and False when it has to wait."""
        for op, piece in program.op_pieces(queue, part):
            value = (self.epoch << 32) + piece + 1
            for (flag,) in program.rows("waits", op):
                while int(self.flags[self.rank][flag * program.slices + part]) < value:
                    yield False
            move(program, self.op, op, piece, part, self.memory)
            for target, flag in program.rows("signals", op):
                self.flags[target][flag * program.slices + part] = value
            yield True


def _herald(rank: int, epoch: int) -> int:
    return FIRST_HERALD + 2 * rank + epoch % 2


def _map(name: str) -> _Bytes:
    return np.asarray(np.memmap(name, dtype=np.uint8, mode="r+"))
