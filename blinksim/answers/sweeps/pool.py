"""Independent pieces of work here, on several processes, or on the workers of a dask.distributed cluster.

A worker that dies (for want of memory, say) takes its piece down with it, never the others. Dask's scheduling: Rocklin,
Dask: Parallel computation with blocked algorithms and task scheduling, SciPy 2015.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from blinksim._version import __version__
from blinksim.errors import InputError, MissingError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
R = TypeVar("R")
# Seconds within which a scheduler must answer.
PATIENCE_S = 10
DIED = "the process that worked on it died, perhaps for want of memory"


def finished(
    work: Callable[[T], R], items: Sequence[T], workers: int = 1, cluster: str | None = None
) -> Iterator[tuple[T, R | None]]:
    """(item, result) as they are finished, in any order; None where the process that worked on it died.

    work: a function of a module, which raises nothing. workers: processes of this machine. cluster: the address of a
    dask scheduler (``tcp://host:8786``) instead. Raises `InputError` if it does not answer or its workers have another
    version of blinksim, and `MissingError` if dask.distributed is not installed.
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
            versions = set(client.run(_version).values())
        except ModuleNotFoundError:
            raise InputError(f"the workers at {address} have no blinksim; install it on every machine") from None
        if not versions:
            raise InputError(f"the scheduler at {address} has no workers; start some with `dask worker {address}`")
        if versions != {__version__}:
            there = ", ".join(sorted(versions))
            raise InputError(f"the workers at {address} have blinksim {there}, this is {__version__}; install the same")
        futures = {client.submit(work, item, pure=False): place for place, item in enumerate(items)}
        for future in dask.as_completed(list(futures), loop=client.loop):
            died = future.status == "error"
            yield items[futures[future]], None if died else future.result()
            future.release()
