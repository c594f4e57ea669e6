"""Pool for independent work: several local processes, or the workers of a dask.distributed cluster.

A worker that dies (for want of memory, say) takes down the piece that killed it, never the others. On a
cluster its pieces go to other workers, as often as the scheduler allows
(``distributed.scheduler.allowed-failures``). Dask's scheduling: Rocklin, Dask: Parallel computation with
blocked algorithms and task scheduling, SciPy 2015.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

from blinksim._version import __version__
from blinksim.errors import InputError, MissingError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
R = TypeVar("R")
# Seconds within which a scheduler must answer.
PATIENCE_S = 10
# Seconds after which a cluster that has lost all workers is given up, between two looks at them, and at what is ready.
ALONE_S = 60
_LOOK_S = 1.0
_NAP_S = 0.02
DIED = "the process that worked on it died, perhaps for want of memory"


def check(workers: int, cluster: str | None) -> None:
    """Raises `InputError` for a number of processes that cannot be, and if two places for the work are named."""
    if workers < 1:
        raise InputError(f"{workers} workers; give at least 1")
    if cluster is not None and workers != 1:
        raise InputError("cluster= and workers= both say where the work is done; give one of them")


def finished(
    work: Callable[[T], R], items: Sequence[T], workers: int = 1, cluster: str | None = None
) -> Iterator[tuple[T, R | None]]:
    """(item, result) as they are finished, in any order; None where the process that worked on it died.

    work: a function of a module, which raises nothing. workers: processes of this machine. cluster: the address of a
    dask scheduler (``tcp://host:8786``) instead. Raises `InputError` if it does not answer, goes away or stays without
    workers, or if these cannot do the work or have another version of blinksim, and `MissingError` if dask.distributed
    is not installed.
    """
    if cluster is not None:
        return _on_cluster(work, items, cluster)
    if workers == 1 or len(items) < 2:
        return ((item, work(item)) for item in items)
    return _in_processes(work, items, workers)


def _in_processes(work: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[tuple[T, R | None]]:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # A forked copy would inherit the threads of a progress bar or a notebook, half alive.
    context = get_context("spawn")
    left = list(items)
    while left:
        # Once a worker has died nobody knows which piece killed it; from then on each is tried by itself.
        alone = len(left) < len(items) or workers == 1
        batch = left[:1] if alone else left
        # Workers end with this end of the pipe: when the work is given up, and when this process is killed.
        lifeline, held = context.Pipe(duplex=False)
        with ProcessPoolExecutor(min(workers, len(batch)), context, _end_with, (lifeline,)) as pool:
            futures = {pool.submit(work, item): place for place, item in enumerate(batch)}
            done: set[int] = set()
            try:
                for future in as_completed(futures):
                    place = futures[future]
                    yield batch[place], future.result()
                    done.add(place)
            except BrokenProcessPool:
                if alone:
                    yield batch[0], None
                    done.add(0)
                else:
                    workers = 1
            except BaseException:
                held.close()
                raise
            finally:
                pool.shutdown(cancel_futures=True)
                held.close()
                lifeline.close()
        left = [item for place, item in enumerate(batch) if place not in done] + left[len(batch) :]


def _end_with(lifeline: Connection) -> None:
    """In a worker: ends it, whatever it is doing, once the other end of the pipe is closed."""
    # Ctrl-C goes to every process of a terminal; the first one says what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_wait_and_end, args=(lifeline,), daemon=True).start()


def _wait_and_end(lifeline: Connection) -> None:
    try:
        lifeline.poll(None)
    finally:
        os._exit(1)


def _version() -> str:
    return __version__


def _on_cluster(work: Callable[[T], R], items: Sequence[T], address: str) -> Iterator[tuple[T, R | None]]:
    try:
        import distributed
    except ImportError:
        raise MissingError("cluster= needs dask.distributed: pip install 'blinksim[cluster]'") from None
    try:
        # Some of dask's functions have no types.
        dask: Any = distributed
        client = dask.Client(address, timeout=PATIENCE_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        advice = "start one with `dask scheduler`, then `dask worker ADDRESS` on every machine"
        raise InputError(f"no dask scheduler answers at {address!r} ({type(error).__name__}); {advice}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=PATIENCE_S)
            versions = set(client.run(_version).values())
        except ModuleNotFoundError:
            raise InputError(f"the workers at {address} have no blinksim; install it on every machine") from None
        except TimeoutError:
            advice = f"start some with `dask worker {address}`"
            raise InputError(f"the scheduler at {address} has no workers; {advice}") from None
        if versions != {__version__}:
            there = ", ".join(sorted(versions))
            raise InputError(f"the workers at {address} have blinksim {there}, this is {__version__}; install the same")
        killed = []
        for item, found in _submitted(work, items, client, address):
            if found is None:
                killed.append(item)
            else:
                yield item, found
        # The scheduler blames all work that waits at a worker for its deaths: alone, each shows what it does.
        for item in killed:
            yield from _submitted(work, [item], client, address)


def _submitted(work: Callable[[T], R], items: Sequence[T], client: Any, address: str) -> Iterator[tuple[T, R | None]]:
    """(item, result) as they are finished; None for work whose worker died again and again."""
    import distributed
    from distributed import CancelledError, KilledWorker

    dask: Any = distributed
    futures = {client.submit(work, item, pure=False): item for item in items}
    # Results are fetched as soon as they are there: what still lies at a worker that dies is computed again.
    waiting = dask.as_completed(list(futures), loop=client.loop, with_results=True, raise_errors=False)
    for future, found in _as_finished(waiting, client, address):
        if isinstance(found, CancelledError):
            raise InputError(f"the scheduler at {address} is gone; start it again, with its workers")
        if future.status == "error":
            error = found[1]
            if not isinstance(error, (KilledWorker, MemoryError)):
                raise InputError(
                    f"a worker at {address} cannot do this work ({type(error).__name__}: {error}); all need the same "
                    "blinksim and the same files"
                )
            found = None
        yield futures[future], found
        future.release()


def _as_finished(waiting: Any, client: Any, address: str) -> Iterator[tuple[Any, Any]]:
    """Futures and what came of them, as they are finished; raises `InputError` once no worker has been there for long.

    Futures of a scheduler that goes away count as finished.
    """
    seen = looked = monotonic()
    while not waiting.is_empty():
        ready = list(waiting.next_batch(block=False))
        yield from ready
        now = monotonic()
        if ready:
            seen = now
        elif now - looked > _LOOK_S:
            looked = now
            with suppress(OSError):  # The scheduler is gone as well; the futures will say so.
                seen = now if client.scheduler_info()["workers"] else seen
            if now - seen > ALONE_S:
                raise InputError(f"all workers at {address} are gone; start some with `dask worker {address}`")
        else:
            sleep(_NAP_S)
