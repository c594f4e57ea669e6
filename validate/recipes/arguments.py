"""The command line of a recipe: the options that all of them have, and how a script ends."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from blinksim.errors import BlinksimError


def arguments(doc: str | None, gpus: int | None = None, budget: float | None = None) -> argparse.ArgumentParser:
    """A parser with ``--gpus``, ``--out`` and ``--budget``, those that have a default here; `doc` is the help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if gpus is not None:
        parser.add_argument("--gpus", type=int, default=gpus)
        parser.add_argument("--out", type=Path, default=Path("."))
    if budget is not None:
        parser.add_argument("--budget", type=float, default=budget, help="seconds after which no further run begins")
    return parser


def add_steps(parser: argparse.ArgumentParser, what: str, run: str | None = "schedules") -> None:
    """Adds ``--make FOLDER`` to write `what` where there is no GPU, and the option `run` to use it where there is."""
    parser.add_argument("--make", type=Path, metavar="FOLDER", help=f"write the {what} there and stop")
    parser.add_argument(f"--{run}", type=Path, metavar="FOLDER", help=f"take the {what} that are there")


def take_steps(
    parser: argparse.ArgumentParser,
    given: argparse.Namespace,
    make: Callable[[Path], object],
    use: Callable[[Path], object],
    run: str = "schedules",
) -> None:
    """Does what `add_steps` offers, with the folder that was given; the parser ends the process where none was."""
    folder = getattr(given, run)
    if given.make:
        make(given.make)
    elif folder:
        use(folder)
    else:
        parser.error(f"give --make FOLDER or --{run} FOLDER")


def script(main: Callable[[], None], file: str) -> None:
    """Runs `main`; an error of blinksim ends the process with one line and the error's exit status."""
    try:
        main()
    except BlinksimError as error:
        print(f"{Path(file).name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
