"""Where the data that people edit lies: topologies, models and schedules.

An installed package carries the three folders as `blinksim/_data`; in a checkout they are at the top level.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from blinksim.errors import MissingError

FOLDERS = ("topologies", "models", "schedules")


def folder(name: str) -> Path:
    """The directory of one of `FOLDERS`; raises `MissingError` if this installation has lost it."""
    packaged = Path(str(resources.files("blinksim"))) / "_data" / name
    checkout = Path(__file__).resolve().parents[1] / name
    for place in (packaged, checkout):
        if place.is_dir():
            return place
    raise MissingError(f"the data folder {name!r} is not where blinksim is installed ({packaged}); install it again")


def files(name: str, pattern: str) -> list[Path]:
    """The files of a data folder that match a glob pattern such as ``*.yaml``, by name."""
    return sorted(folder(name).glob(pattern))
