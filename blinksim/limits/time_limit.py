"""Work that has an end, in any thread: what takes longer than a limit is ended from outside.

Limits of single solvers do not hold the time that stands beside them: bounds, proofs, linear programs. So another
thread raises an exception in the one that works, as soon as that runs Python code again; a call into C is not
interrupted.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from blinksim.errors import InfeasibleError
from blinksim.limits.deadline import until

Found = TypeVar("Found")
# What a limit allows for reading the machine, for proving the schedule and for writing it.
_GRACE, _LEAST_GRACE_S = 0.1, 1.0
# Python drops an exception that comes in a finalizer or while it collects garbage: the end comes again after this.
_AGAIN_S = 2.0


class _Over(BaseException):
    """The end of work: no `except Exception` takes it for an answer."""


class _Silence:
    """While limits wait, the user is not told of an `_Over` that Python drops."""

    def __init__(self) -> None:
        self._lock, self._waiting = threading.Lock(), 0
        self._before = self._hook = sys.unraisablehook

    def __enter__(self) -> None:
        with self._lock:
            self._waiting += 1
            if self._waiting > 1:
                return
            before = self._before = sys.unraisablehook

            def unless_over(dropped: sys.UnraisableHookArgs) -> None:
                if not issubclass(dropped.exc_type, _Over):
                    before(dropped)

            self._hook = sys.unraisablehook = unless_over

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._waiting -= 1
            # Whoever has set a hook of their own meanwhile keeps it.
            if not self._waiting and sys.unraisablehook is self._hook:
                sys.unraisablehook = self._before


_silence = _Silence()


def within(seconds: float | None, what: str, work: Callable[[], Found]) -> Found:
    """``work()``, ended after this many seconds and a tenth, at least one more second, by an `InfeasibleError`.

    A solver that was given the same limit has ended by then. None: no limit. (Not a context, between whose body and
    end the exception could come unseen.)
    """
    if seconds is None:
        return work()

    # A class of its own, so that limits within limits know theirs.
    class Over(_Over):
        pass

    worker, lock, ended, raised = ctypes.c_ulong(threading.get_ident()), threading.Lock(), threading.Event(), False
    # Longer waits than TIMEOUT_MAX the operating system does not know.
    wait = min(seconds + max(_GRACE * seconds, _LEAST_GRACE_S), threading.TIMEOUT_MAX)

    def end() -> None:
        nonlocal raised
        pause = wait
        while not ended.wait(pause):
            with lock:
                if not ended.is_set():
                    raised = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(worker, ctypes.py_object(Over))
            pause = _AGAIN_S

    watch = threading.Thread(target=end, daemon=True)
    try:
        try:
            watch.start()
            with until(monotonic() + wait, Over), _silence:
                return work()
        finally:
            with lock:
                ended.set()
                if raised:  # and perhaps not come yet: the work has ended, and so nothing should
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(worker, None)
    except Over:
        raise InfeasibleError(
            f"no {what} within {seconds:g} s; allow more time, or take an algorithm without a search"
        ) from None
