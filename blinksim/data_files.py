"""Paths of the data folders: inside an installed package, or at the top of a checkout."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from blinksim.errors import MissingError


@lru_cache
def folder(name: str) -> Path:
    """The folder ``topologies``, ``models`` or ``schedules``, or ``docs``, of which an installation has the glossary.

    Raises `MissingError` if the installation lacks it.
    """
    package = Path(__file__).parent
    installed, checkout = package / "_data" / name, package.parent
    if installed.is_dir():
        return installed
    if (checkout / "pyproject.toml").is_file() and (checkout / name).is_dir():
        return checkout / name
    raise MissingError(f"blinksim's data folder {name!r} is not at {installed}; install blinksim again")


def files(name: str, pattern: str = "*.yaml") -> dict[str, Path]:
    """The files in the data folder `name` that match `pattern`, such as ``rates/*.yaml``, by name, sorted."""
    path = folder(name) / pattern
    return _listed(path, path.parent.is_dir() and path.parent.stat().st_mtime_ns)


# By the pattern, and when a file was last added to its folder or taken away.
_listed = lru_cache(lambda path, changed: {one.stem: one for one in sorted(path.parent.glob(path.name))})
