"""Work that has an end, in any thread: what takes longer than a limit is ended from outside.

Limits of single solvers do not hold the time that stands beside them: bounds, proofs, linear programs. So another
thread raises an exception in the one that works, as soon as that runs Python code again; a call into C is not
interrupted.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from blinksim.errors import InfeasibleError

Found = TypeVar("Found")
# What a limit allows for reading the machine, for proving the schedule and for writing it.
_GRACE, _LEAST_GRACE_S = 0.1, 1.0


def within(seconds: float | None, what: str, work: Callable[[], Found]) -> Found:
    """``work()``, ended after this many seconds and a tenth, at least one more second, by an `InfeasibleError`.

    A solver that was given the same limit has ended by then. None: no limit. (Not a context, between whose body and
    end the exception could come unseen.)
    """
    if seconds is None:
        return work()

    # A class of its own, so that limits within limits know theirs; no `except Exception` takes it for an answer.
    class Over(BaseException):
        pass

    worker, lock, done, raised = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False, False

    def end() -> None:
        nonlocal raised
        with lock:
            if not done:
                raised = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(worker, ctypes.py_object(Over))

    # Longer waits than this the operating system does not know.
    timer = threading.Timer(min(seconds + max(_GRACE * seconds, _LEAST_GRACE_S), threading.TIMEOUT_MAX), end)
    timer.daemon = True
    try:
        try:
            timer.start()
            return work()
        finally:
            timer.cancel()
            with lock:
                done = True
                if raised:  # and perhaps not come yet: the work has ended, and so nothing should
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(worker, None)
    except Over:
        raise InfeasibleError(
            f"no {what} within {seconds:g} s; allow more time, or take an algorithm without a search"
        ) from None
