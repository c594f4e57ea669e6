"""The schedules that come with blinksim, by the name of their file."""

from __future__ import annotations

import os
from pathlib import Path

from blinksim import data_files
from blinksim.errors import unknown


def names() -> list[str]:
    """The names of the schedules, sorted."""
    return [path.stem for path in data_files.files("schedules", "*.json")]


def located(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """`path`, or the file of the schedule of that name that comes with blinksim.

    A file that is there goes first, and a path with a folder in it means that folder. Raises `InputError` with the
    nearest names for a bare name without an ending that is neither.
    """
    text = os.fspath(path)
    if os.path.exists(text) or text != os.path.basename(text):
        return path
    file = data_files.folder("schedules") / f"{text.removesuffix('.json')}.json"
    if os.path.isfile(file):
        return file
    if Path(text).suffix or not text or text == "-":
        return path
    raise unknown("schedule", text, names(), hint="(blinksim schedules lists them; a file ends in .json)")
