"""When the work under way must end, for solvers in C, which no exception interrupts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic


@dataclass(frozen=True, slots=True)
class Deadline:
    """at: seconds of `time.monotonic`. over: what is raised in the work after that."""

    at: float
    over: type[BaseException]


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def until(at: float, over: type[BaseException]) -> Iterator[None]:
    """The work within ends at this time of `time.monotonic` by raising `over`, or when the work around it must."""
    around = _current.get()
    token = _current.set(around if around and around.at <= at else Deadline(at, over))
    try:
        yield
    finally:
        _current.reset(token)


def seconds_left(margin: float = 0.0) -> float | None:
    """Seconds until the work must end, None if it need not; raises the end itself once this margin is all that is left.

    margin: in seconds; solvers stop a little before their time.
    """
    deadline = _current.get()
    if deadline is None:
        return None
    left = deadline.at - monotonic()
    if left <= margin:
        raise deadline.over
    return left
