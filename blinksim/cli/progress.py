"""What takes long says so on stderr: a moving line on a terminal, else lines now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

PATIENCE_S = 1.0
# Seconds of computing after which a command says that it is still at work; then after each time three times as long.
FIRST_WORD_S = 8.0

# What is being done, the innermost last, and how many moving lines say so already.
_doing: list[str] = []
_moving: list[object] = []


class Working:
    """A line on a terminal that shows what a command does, after the first second; calling it changes the text.

    Used as a context: ``with Working("building") as say: … say("building ring, 1 of 9")``. Where stderr is no terminal
    `still_at_work` prints the text if the work takes long. Leaves nothing behind on a terminal.
    """

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self.what = what
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        if not quiet and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)

    def __call__(self, what: str) -> None:
        self.what = _doing[-1] = what

    def _show(self) -> None:
        if self._done.wait(PATIENCE_S):
            return
        # Slow to import, and not needed by what is quick.
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar, moving():
            task = bar.add_task(self.what, total=None)
            while not self._done.wait(0.2):
                bar.update(task, description=self.what)

    def __enter__(self) -> Working:
        _doing.append(self.what)
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        _doing.pop()
        if self._thread is not None:
            self._thread.join()


@contextmanager
def moving() -> Iterator[None]:
    """A moving line is shown meanwhile, so that no other need be."""
    _moving.append(None)
    try:
        yield
    finally:
        _moving.pop()


@contextmanager
def still_at_work(command: str, *, quiet: bool = False) -> Iterator[None]:
    """A line on stderr when the work within takes long, and again ever later, unless a moving line shows that.

    Time is what this process computes, so that a busy machine does not count.
    """
    done, start = threading.Event(), time.process_time()

    def watch() -> None:
        due = FIRST_WORD_S
        while not done.wait(0.5):
            used = time.process_time() - start
            if used >= due:
                if not _moving:
                    what = _doing[-1] if _doing else command
                    print(f"still at work after {used:.0f} s: {what} (Ctrl-C ends it)", file=sys.stderr, flush=True)
                due = 3 * used

    thread = threading.Thread(target=watch, daemon=True)
    if not quiet:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if not quiet:
            thread.join()
