"""The budget of work: its estimated duration, announced before it begins, and its deadline."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import islice
from math import isqrt
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.connectivity import breadth_first

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology


class Deadline(NamedTuple):
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


class SlowerError(Exception):
    """A simulation ended early: the call takes longer than it may."""


# What takes longer than about this is refused.
MOST_SECONDS = 60
_FLOW = 150e-9
_BOUND = 2e-3
_ROUTE = 800e-9
# Of a link that a tree is grown over; between 5 and 25 µs on tori, meshes, hypercubes, switches and fat
# trees.
_TREE = 15e-6
# For each of the additions of a least tree: 8 s for 350,000 (10 groups of 16 GPUs), 1 s for 180,000 (hypercube).
SECONDS_A_SUM = 25e-6
# Of an event of a simulation: one in an array of many, one that waits for its turn.
_EVENT = {"waves": 300e-9, "heap": 2.5e-6}


def of_flows(topology: Topology, flows: int) -> float:
    """About the seconds of so many flows through all links."""
    return _FLOW * flows * len(topology.links)


def of_bound(topology: Topology, ranks: int) -> float:
    """About the seconds of all bounds of an allreduce of so many ranks."""
    return _BOUND + of_flows(topology, 3 * ranks)


def of_routes(links: int, searches: int) -> float:
    """About the seconds of so many searches of routes, each of which looks at so many links."""
    return _ROUTE * searches * links


def of_trees(topology: Topology, roots: int) -> float:
    """About the seconds of packing trees from so many roots, each of which is grown breadth first."""
    # How many links a search breadth first from the first member looks at until it has reached the others.
    members, out, ends = topology.member_places.tolist(), topology.out_links, topology.ends[1].tolist()
    came = breadth_first(members[0], lambda here: [ends[link] for link in out[here]])
    place = {device: number for number, device in enumerate(came)}
    last = max(place[came[device]] for device in members if device in came)
    return _TREE * roots * sum(len(out[device]) for device in islice(came, last + 1))


def most_events(engine: str) -> int:
    """Up to how many events a simulation by this engine (``waves``, ``heap``) is not refused."""
    return int(MOST_SECONDS / _EVENT[engine])


def check_events(engine: str, pieces: int, stages: int) -> None:
    """Raises `InputError` for a simulation of every stage with so many pieces that would take too long."""
    events, most = pieces * stages, most_events(engine)
    if events <= most:
        return
    larger = f"up to {_rounded(most // stages):,} pieces work: take larger ones (chunk=)"
    instead = larger if stages <= most else "take a schedule of fewer sends"
    if engine != "waves":
        instead += ", or service='static'"
    many = f"{pieces:,} pieces in {stages:,} stages are {events:,} events"
    raise InputError(f"{many}, about {words(_EVENT[engine] * events)}; {instead}")


def check(what: str, topology: Topology, seconds: float, instead: str) -> None:
    """Raises `InfeasibleError` for what would take longer than `MOST_SECONDS`.

    what: the subject of the sentence. seconds: as the functions above give them. instead: what else to do.
    """
    if seconds > MOST_SECONDS:
        # Exact for machines whose ranks have equally many links each; a little less is sure.
        most = max(2, isqrt(int(topology.ranks**2 * MOST_SECONDS / seconds)))
        raise InfeasibleError(
            f"{what} on {topology.name} would take about {words(seconds)} ({topology.ranks:,} ranks, "
            f"{len(topology.links):,} links); a machine like this works up to about {_rounded(most):,} ranks: take a "
            f"smaller one, or {instead}"
        )


def words(seconds: float) -> str:
    """A long time, rounded."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{_rounded(int(seconds / size)):,} {unit}"
    return f"{_rounded(int(seconds)):,} seconds"


def _rounded(number: int) -> int:
    """Down to two digits."""
    power = int(10 ** max(0, len(str(number)) - 2))
    return number // power * power


Progress = Callable[[int, int], None]

_asked: ContextVar[threading.Event | None] = ContextVar("asked", default=None)


def asked_to_stop() -> bool:
    """True if Ctrl-C or `stop` came in the `stoppable` work around this: a search then returns the best that it has."""
    event = _asked.get()
    return event is not None and event.is_set()


def stop() -> None:
    """Ends the `stoppable` work around this as Ctrl-C does, such as a search that has found what nothing can beat."""
    if (event := _asked.get()) is not None:
        event.set()


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


Found = TypeVar("Found")
# What a limit allows for reading the machine, for proving the schedule and for writing it.
_GRACE, _LEAST_GRACE_S = 0.1, 1.0
# Python drops an exception that comes in a finalizer or while it collects garbage: the end comes again after
# this.
_AGAIN_S = 2.0


class _Over(BaseException):
    """The end of work: no `except Exception` takes it for an answer."""


@contextmanager
def _silence() -> Iterator[None]:
    """In the work within, the user is not told of an `_Over` that Python drops."""
    before = sys.unraisablehook

    def unless_over(dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, _Over):
            before(dropped)

    sys.unraisablehook = unless_over
    try:
        yield
    finally:
        # Whoever has set a hook of their own meanwhile keeps it.
        if sys.unraisablehook is unless_over:
            sys.unraisablehook = before


def within(seconds: float | None, what: str, work: Callable[[], Found], *, spare: bool = True) -> Found:
    """``work()``, ended after this many seconds and a tenth, at least one more second, by an `InfeasibleError`.

    A solver that was given the same limit has ended by then. None: no limit. spare: False for not a moment
    more. (Not a context, between whose body and end the exception could come unseen.)
    """
    if seconds is None:
        return work()

    # A class of its own, so that limits within limits know theirs.
    class Over(_Over):
        pass

    worker, lock, ended, raised = ctypes.c_ulong(threading.get_ident()), threading.Lock(), threading.Event(), False
    # Longer waits than TIMEOUT_MAX the operating system does not know.
    wait = min(seconds + spare * max(_GRACE * seconds, _LEAST_GRACE_S), threading.TIMEOUT_MAX)

    def end() -> None:
        nonlocal raised
        pause = wait
        while not ended.wait(pause):
            with lock:
                if not ended.is_set():
                    raised = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(worker, ctypes.py_object(Over))
            pause = _AGAIN_S

    def finish() -> None:
        with lock:
            ended.set()
        # One that was raised and has not come yet comes here. (Taken back instead, it leaves CPython 3.11 and
        # 3.12 looking for it in every call ever after, and a profiler waiting for it.)
        with suppress(Over):
            while raised:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(worker, ctypes.py_object(Over))

    watch = threading.Thread(target=end, daemon=True)
    try:
        try:
            watch.start()
            with until(monotonic() + wait, Over), _silence():
                return work()
        finally:
            finish()
    except Over:
        finish()
        late = f"no {what} within {seconds:g} s; allow more time, or take an algorithm without a search"
        raise InfeasibleError(late) from None
