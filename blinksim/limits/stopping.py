"""A search that Ctrl-C ends with what it has so far."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

_asked: ContextVar[threading.Event | None] = ContextVar("asked", default=None)


def asked_to_stop() -> bool:
    """True if Ctrl-C came in the `stoppable` work around this: then a search returns the best that it has."""
    event = _asked.get()
    return event is not None and event.is_set()


@contextmanager
def stoppable() -> Iterator[None]:
    """In the work within, the first Ctrl-C only makes `asked_to_stop` true; the second one raises as ever.

    Ctrl-C comes to the main thread alone, so in others this changes nothing.
    """
    event = threading.Event()
    token = _asked.set(event)
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None

    def ask(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    # Whoever ignores Ctrl-C, or has a handler outside Python, keeps that.
    takes = main and callable(before)
    if takes:
        signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        if takes:
            signal.signal(signal.SIGINT, before)
        _asked.reset(token)
