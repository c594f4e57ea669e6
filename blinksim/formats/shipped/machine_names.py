"""The machines that come with blinksim, by name: which there are, what they are, and what else people call them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from blinksim import data_files
from blinksim.errors import InputError, unknown
from blinksim.formats import machine_yaml, rate_tables
from blinksim.formats.link_table import Outline
from blinksim.formats.rate_tables import RateTable

MachineName = Literal[
    "aurora",
    "dgx-a100",
    "dgx1-p100",
    "dgx1-v100",
    "hgx-h100",
    "hgx-h200",
    "k2200-ethernet",
    "k2200-ntb",
    "mi250",
    "p3.16xlarge",
    "p4d.24xlarge",
    "p5.48xlarge",
]
"""The machines of the catalogue, for editors."""

ALIASES = {
    "a100": "dgx-a100",
    "dgx-1p": "dgx1-p100",
    "dgx-1v": "dgx1-v100",
    "dgx1p": "dgx1-p100",
    "dgx1v": "dgx1-v100",
    "dgx-h100": "hgx-h100",
    "dgx-h200": "hgx-h200",
    "dgxa100": "dgx-a100",
    "h100": "hgx-h100",
    "h200": "hgx-h200",
    "p3": "p3.16xlarge",
    "p4d": "p4d.24xlarge",
    "p5": "p5.48xlarge",
}
"""Other names that people use for the machines of the catalogue."""

_AMBIGUOUS = {
    "dgx1": ("dgx1-v100", "dgx1-p100"),
    "dgx-1": ("dgx1-v100", "dgx1-p100"),
    "k2200": ("k2200-ntb", "k2200-ethernet"),
}


def names() -> list[str]:
    """The names of the catalogue's machines, sorted."""
    return [path.stem for path in data_files.files("topologies")]


def outline(name: str) -> Outline:
    """The head of the catalogue's machine `name`: title, maker, year; raises `InputError` for other names."""
    return machine_yaml.outline(catalogue_file(name))


def describe(name: str) -> str:
    """The title of the catalogue's machine `name`; raises `InputError` for other names."""
    return outline(name).title


def also_called(name: str) -> list[str]:
    """The aliases of the catalogue's machine `name`, sorted."""
    return sorted(alias for alias, machine in ALIASES.items() if machine == name)


def rate_names(name: str) -> list[str]:
    """Names of the rate tables for the catalogue's machine `name`: its own, `nominal` first, then models/rates.

    Raises `InputError` for other names.
    """
    head = outline(name)
    own = head.rate_names()
    shared = [table for table, found in shared_rates().items() if found.machine in ("", head.name)]
    return own + [table for table in shared if table not in own]


def catalogue_file(name: str) -> Path:
    """The file of the catalogue's machine `name`; raises `InputError` with the nearest names for others."""
    lowered = name.lower()
    if lowered in _AMBIGUOUS:
        raise InputError(f"{name!r} is more than one machine; say {' or '.join(_AMBIGUOUS[lowered])}")
    known = {path.stem.lower(): path for path in data_files.files("topologies")}
    wanted = ALIASES.get(lowered, lowered)
    if wanted not in known:
        hint = "(blinksim topo list lists them; a file ends in .yaml or .xml; a form is written like ring:8)"
        raise unknown("machine", name, [*(path.stem for path in known.values()), *ALIASES], hint=hint)
    return known[wanted]


def shared_rates() -> dict[str, RateTable]:
    """The tables beside the models, by the name of their file."""
    paths = sorted((data_files.folder("models") / "rates").glob("*.yaml"))
    return {path.stem: rate_tables.read(path) for path in paths}
