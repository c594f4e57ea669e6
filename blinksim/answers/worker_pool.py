"""Pool for independent work, in local processes or on a dask.distributed cluster, and a journal of what is finished.

A worker that dies (for want of memory, say) takes down the piece that killed it, never the others. On a
cluster its pieces go to other workers, as often as the scheduler allows
(``distributed.scheduler.allowed-failures``). Dask's scheduling: Rocklin, Dask: Parallel computation with
blocked algorithms and task scheduling, SciPy 2015.

A killed run resumes from the journal, write-ahead logging as in Gray and Reuter, Transaction Processing
(1993), chapter 9: one JSON line for each piece, which counts once it is whole and on disk, so a line cut
short by the kill is work not done. So is a line whose checksum does not fit.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from blinksim._version import __version__
from blinksim.errors import FileError, InputError, MissingError, blamed_on
from blinksim.textio.strict_json import parse

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
R = TypeVar("R")
# Seconds within which a scheduler must answer.
PATIENCE_S = 10
# Seconds without a result after which a cluster that has lost all workers is given up.
ALONE_S = 60
Rows = list[dict[str, Any]]
# Bytes of a journal, at most, and how one begins.
_LARGEST = 2**30
_START = b'{"key": "'
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

    work: a function of a module, which raises nothing. workers: processes of this machine. cluster: the
    address of a dask scheduler (``tcp://host:8786``) instead. Raises `InputError` if it does not answer, goes
    away or stays without workers, or if these cannot do the work or have another version of blinksim, and
    `MissingError` if dask.distributed is not installed.
    """
    if cluster is not None:
        return _on_cluster(work, items, cluster)
    if workers == 1 or len(items) < 2:
        return ((item, work(item)) for item in items)
    return _lost_again(partial(_in_processes, work, workers), items)


def _lost_again(
    batch: Callable[[Sequence[T]], Iterator[tuple[T, R | None]]], items: Sequence[T]
) -> Iterator[tuple[T, R | None]]:
    """As `batch` yields them; what it has lost is tried again, each piece by itself.

    Once a worker has died nobody knows which of the pieces that waited there killed it.
    """
    lost = []
    for item, found in batch(items):
        if found is None:
            lost.append(item)
        else:
            yield item, found
    for item in lost:
        yield from batch([item])


def _in_processes(work: Callable[[T], R], workers: int, items: Sequence[T]) -> Iterator[tuple[T, R | None]]:
    """(item, result) as they are finished; None for all that was left when a process died."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # A forked copy would inherit the threads of a progress bar or a notebook, half alive.
    context = get_context("spawn")
    # Workers end with this end of the pipe: when the work is given up, and when this process is killed.
    lifeline, held = context.Pipe(duplex=False)
    with ProcessPoolExecutor(min(workers, len(items)), context, _end_with, (lifeline,)) as pool:
        left = {pool.submit(work, item): item for item in items}
        try:
            for future in as_completed([*left]):
                found = future.result()
                yield left.pop(future), found
        except BrokenProcessPool:
            pass
        except BaseException:
            held.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            held.close()
            lifeline.close()
    yield from ((item, None) for item in left.values())


def _end_with(lifeline: Connection) -> None:
    """In a worker: ends it, whatever it is doing, once the other end of the pipe is closed."""
    # Ctrl-C goes to every process of a terminal; the first one says what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        try:
            lifeline.poll(None)
        finally:
            os._exit(1)

    Thread(target=wait, daemon=True).start()


def _version() -> str:
    return __version__


def _on_cluster(work: Callable[[T], R], items: Sequence[T], address: str) -> Iterator[tuple[T, R | None]]:
    needs = "cluster= needs dask.distributed: pip install 'blinksim[cluster]'"
    with blamed_on(lambda _: MissingError(needs), ImportError):
        import distributed
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
        yield from _lost_again(partial(_submitted, work, client, address), items)


def _submitted(work: Callable[[T], R], client: Any, address: str, items: Sequence[T]) -> Iterator[tuple[T, R | None]]:
    """(item, result) as they are finished; None for work whose worker died again and again.

    Raises `InputError` once no worker has been there for long. Futures of a scheduler that goes away count as
    finished.
    """
    import distributed

    dask: Any = distributed
    left = {client.submit(work, item, pure=False): item for item in items}
    try:
        while left:
            try:
                with client.as_current():
                    ready = dask.wait([*left], ALONE_S, "FIRST_COMPLETED").done
            except TimeoutError:
                if client.scheduler_info()["workers"]:
                    continue
                advice = f"start some with `dask worker {address}`"
                raise InputError(f"all workers at {address} are gone; {advice}") from None
            for future in ready:
                found = None
                try:
                    # Of a worker that dies before this is here, it is worked out again.
                    with suppress(dask.KilledWorker, MemoryError):
                        found = future.result()
                except dask.CancelledError:
                    raise
                except Exception as error:
                    why = f"a worker at {address} cannot do this work ({type(error).__name__}: {error})"
                    raise InputError(f"{why}; all need the same blinksim and the same files") from None
                yield left.pop(future), found
                future.release()
    except (dask.CancelledError, OSError):
        raise InputError(f"the scheduler at {address} is gone; start it again, with its workers") from None


class Journal:
    """Rows by the key of the work that gave them; with no path it keeps nothing.

    found: what an earlier run left. damaged: the numbers of its lines that are not as they were written;
    their work is done again. Raises `FileError` if the file is no journal or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)
        self.found: dict[str, Rows] = {}
        self.damaged = list[int]()
        if self.path is not None and os.path.lexists(self.path):
            with _opened(self.path, os.O_RDWR) as handle:
                if os.fstat(handle).st_size > _LARGEST:
                    raise FileError(self.path, "is larger than 1 GiB; that is no journal of a sweep")
                with open(handle, "rb", closefd=False) as file:
                    data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
                    with suppress(FileError, KeyError, TypeError):
                        entry = parse(self.path, line)
                        if entry["sum"] == self._checksum(entry["key"], entry["rows"]):
                            self.found[entry["key"]] = entry["rows"]
                            continue
                    self.damaged.append(number)
                torn = not whole and (data.startswith(_START) or _START.startswith(data))
                if not self.found and data and not torn:
                    reason = "is no journal of a sweep; name another file, or remove it"
                    raise FileError(self.path, reason, self.damaged[0] if self.damaged else 1)
                os.ftruncate(handle, len(whole))

    @staticmethod
    def _checksum(key: str, rows: object) -> str:
        return sha256(json.dumps([key, rows]).encode("ascii")).hexdigest()

    def add(self, key: str, rows: Rows) -> None:
        """Appends finished work and waits until it is on disk."""
        if self.path is None:
            return
        line = json.dumps({"key": key, "rows": rows, "sum": self._checksum(key, rows)}).encode("ascii") + b"\n"
        with _opened(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as handle:
            with open(handle, "wb", closefd=False) as file:
                file.write(line)
            os.fsync(handle)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """A file handle of a journal, which is no link, no pipe and no device; raises `FileError`."""
    try:
        # A pipe must not wait for its other end.
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise FileError(path, "cannot be used as a journal: it is no ordinary file")
            yield handle
        finally:
            os.close(handle)
    except OSError as error:
        reason = "is a link" if error.errno == errno.ELOOP else error.strerror or error
        raise FileError(path, f"cannot be used as a journal: {reason}") from None
