"""Runs a function in one process per rank, as a job does, and hands back what each returned or raised."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from blinksim.gpu.jobs.backend import SharedMemoryBackend
from blinksim.gpu.jobs.group import FolderStore, Group
from blinksim.gpu.jobs.job_plan import JobPlan
from blinksim.gpu.programs.of_calls import Segment

# Small: messages of a few hundred KB take several launches.
SEGMENT = Segment.of(2 << 20)
Work = Callable[[int, Any], Any]
DEAD = "no answer"


def small_group(rank: int, ranks: int, folder: Path, timeout_s: float = 5.0, plan: JobPlan | None = None) -> Group:
    store = FolderStore(folder, timeout_s=20)
    return Group(store, rank, plan or JobPlan.for_switch(ranks), SharedMemoryBackend(), SEGMENT, timeout_s)


def run_ranks(work: Work, ranks: int, given: Any = None) -> list[Any]:
    """What ``work(rank, given)`` returns on every rank; `DEAD` for a process that ended without an answer."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
    processes = [context.Process(target=_run, args=(work, rank, given, pipe[1])) for rank, pipe in enumerate(pipes)]
    for process in processes:
        process.start()
    for _, end in pipes:
        end.close()  # so that the end of a process is seen
    answers = [_receive(pipe) for pipe, _ in pipes]
    for process in processes:
        process.join(30)
        assert not process.is_alive(), "a rank hangs"
    for answer in answers:
        assert not isinstance(answer, AssertionError), answer
    return answers


def _receive(pipe: Connection) -> Any:
    try:
        return pipe.recv() if pipe.poll(60) else DEAD
    except EOFError:
        return DEAD


def _run(work: Work, rank: int, given: Any, pipe: Connection) -> None:
    try:
        pipe.send(work(rank, given))
    except Exception:
        pipe.send(AssertionError(traceback.format_exc()))


def equal(a: Any, b: Any) -> bool:
    """Equal arrays, to the bit."""
    return bool(np.array_equal(np.asarray(a).view(np.uint8), np.asarray(b).view(np.uint8)))
