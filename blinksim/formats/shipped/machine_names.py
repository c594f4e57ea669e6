"""Names of the machines that come with blinksim: canonical names, titles and aliases."""

from __future__ import annotations

from pathlib import Path

from blinksim import data_files
from blinksim.errors import InputError, unknown
from blinksim.formats import machine_yaml, rate_tables
from blinksim.formats.rate_tables import Outline, RateTable
from blinksim.textio.text_files import read_rows

_FILE = data_files.folder("models") / "machine_aliases.csv"
ALSO = dict(read_rows(_FILE, lambda row: (row["machine"], sorted(row["also"].split())), "machine"))
"""The aliases of machines, by canonical name."""
ALIASES = dict(sorted((other, machine) for machine, others in ALSO.items() for other in others))
"""Other names that people use for the machines of the catalogue."""

MEASURED = "measured"
"""What rates that were measured are called, in a machine's file or in `measured_rates`."""

_OF_SEVERAL = _FILE.with_name("ambiguous_names.csv")
_AMBIGUOUS = dict(read_rows(_OF_SEVERAL, lambda row: (row["name"], row["machines"].split()), "name"))


def names() -> list[str]:
    """The names of the catalogue's machines, sorted."""
    return sorted(data_files.files("topologies"))


def outline(name: str) -> Outline:
    """The head of the catalogue's machine `name`: title, maker, year; raises `InputError` for other names."""
    return machine_yaml.outline(catalogue_file(name))


def rate_names(name: str) -> list[str]:
    """Names of the rate tables for the catalogue's machine `name`: its own, `nominal` first, then models/rates.

    Raises `InputError` for other names.
    """
    head = outline(name)
    own = head.rate_names()
    own += [MEASURED] if MEASURED not in own and measured_rates(head.name) is not None else []
    shared = [table for table, rates in shared_rates().items() if rates.machine in ("", head.name)]
    return own + [table for table in shared if table not in own]


def measured_rates(name: str) -> RateTable | None:
    """The table of what links of the machine called `name` reach by published times; None where there is none."""
    path = data_files.folder("models") / "rates" / MEASURED / f"{name}.yaml"
    return rate_tables.read(path) if path.is_file() else None


def catalogue_file(name: str) -> Path:
    """The file of the catalogue's machine `name`; raises `InputError` with the nearest names for others."""
    if few := _AMBIGUOUS.get(name.lower(), name.split(",") if "," in name else ()):
        raise InputError(f"{name!r} is more than one machine; say {' or '.join(few)}, or compare them")
    known = {stem.lower(): path for stem, path in data_files.files("topologies").items()}
    if (wanted := ALIASES.get(name.lower(), name.lower())) not in known:
        from blinksim.topology.shapes import FORMS

        hint = "(blinksim topo list lists them; a file ends in .yaml or .xml; a shape is written like "
        hint += "ring:8; your own box: nvidia-smi topo -m > box.txt; blinksim project box.txt allreduce 1MiB)"
        shapes = [example.partition("@")[0] for example, _ in FORMS.values()]
        raise unknown("machine", name, [*(path.stem for path in known.values()), *ALIASES, *shapes], hint=hint)
    return known[wanted]


def shared_rates() -> dict[str, RateTable]:
    """The tables beside the models, by the name of their file."""
    return {stem: rate_tables.read(path) for stem, path in data_files.files("models", "rates/*.yaml").items()}
