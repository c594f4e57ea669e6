"""Progress messages on stderr, after a second, if stderr is a terminal."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

PATIENCE_S = 1.0


class Working:
    """A line on a terminal that shows what a command does, after the first second; calling it changes the text.

    Used as a context: ``with Working("building") as say: … say("building ring, 1 of 9")``. Prints nothing where stderr
    is no terminal, and leaves nothing behind.
    """

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._what = what
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        if not quiet and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)

    def __call__(self, what: str) -> None:
        self._what = what

    def _show(self) -> None:
        if self._done.wait(PATIENCE_S):
            return
        # Slow to import, and not needed by what is quick.
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(self._what, total=None)
            while not self._done.wait(0.2):
                bar.update(task, description=self._what)

    def __enter__(self) -> Working:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
