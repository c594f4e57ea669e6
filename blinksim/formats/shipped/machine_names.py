"""Names of the machines that come with blinksim: canonical names, titles and aliases."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from blinksim import data_files
from blinksim.errors import InputError, unknown
from blinksim.formats import machine_yaml, rate_tables
from blinksim.formats.rate_tables import Outline, RateTable
from blinksim.textio.text_files import read_rows

MachineName = Literal[
    "a3-highgpu-8g", "a3-megagpu-8g", "a3-ultragpu-8g", "alps", "aurora", "bm.gpu.h100.8", "bm.gpu4.8",
    "dgx-a100", "dgx-spark", "dgx-spark-pair", "dgx1-p100", "dgx1-v100", "dgx2", "frontier", "gaudi2",
    "gaudi3", "gb200-nvl4", "gb200-nvl72", "gb200-nvl8", "gb300-nvl72", "hgx-b200", "hgx-b300",
    "hgx-h100", "hgx-h20", "hgx-h200", "hgx-h800", "jupiter", "k2200-ethernet", "k2200-ntb", "l40s-pcie",
    "leonardo", "mi250", "mi300a", "mi300x", "mi325x", "mi355x", "nd-a100-v4", "nd-h100-v5", "nd-h200-v5",
    "nd40rs-v2", "p3.16xlarge", "p3dn.24xlarge", "p4d.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge",
    "p6-b200.48xlarge", "p6-b300.48xlarge", "perlmutter", "polaris", "rtx-pro-6000-pcie", "tpu-v5p",
    "trn2-ultra", "trn2.48xlarge",
]  # fmt: skip
"""The machines of the catalogue, for editors."""

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
    return sorted(path.stem for path in data_files.files("topologies"))


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
    lowered = name.lower()
    if few := _AMBIGUOUS.get(lowered, name.split(",") if "," in name else ()):
        raise InputError(f"{name!r} is more than one machine; say {' or '.join(few)}, or compare them")
    known = {path.stem.lower(): path for path in data_files.files("topologies")}
    wanted = ALIASES.get(lowered, lowered)
    if wanted not in known:
        hint = "(blinksim topo list lists them; a file ends in .yaml or .xml; a shape is written like "
        hint += "ring:8; your own box: nvidia-smi topo -m > box.txt; blinksim project box.txt allreduce 1MiB)"
        raise unknown("machine", name, [*(path.stem for path in known.values()), *ALIASES], hint=hint)
    return known[wanted]


def shared_rates() -> dict[str, RateTable]:
    """The tables beside the models, by the name of their file."""
    return {path.stem: rate_tables.read(path) for path in data_files.files("models", "rates/*.yaml")}
