"""Rates of links by generation from ``models/link_rates.yaml``, for formats that name parts but not rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

from blinksim import data_files
from blinksim.errors import InputError
from blinksim.units import parse_rate, parse_time

RATES = ("nominal", "nccl")


@dataclass(frozen=True, slots=True)
class CpuRow:
    """Which CPUs an interconnect rate holds for; None fits every CPU."""

    name: str
    rate: Fraction
    arch: str | None = None
    vendor: str | None = None
    family: int | None = None
    models_from: int | None = None


@dataclass(frozen=True)
class LinkRates:
    """One column of the table: bytes/s in one direction, and seconds.

    nvlink: (sm, holds for that sm only, rate of a lane), ascending. xgmi: (gfx number, generation, rate of a
    link). pcie: rate of a lane by transfer rate in GT/s as text (``"2.5"``, ``"8"``). local: a connection
    without a limit of its own. timing: (latency, overhead) by what a link is.
    """

    name: str
    nvlink: tuple[tuple[int, bool, Fraction], ...]
    xgmi: tuple[tuple[int, str, Fraction], ...]
    pcie: Mapping[str, Fraction]
    pcie_unknown_rate: str
    pcie_unknown_lanes: int
    cpus: tuple[CpuRow, ...]
    local: Fraction
    net_unknown: Fraction
    timing: Mapping[str, tuple[float, float]] = field(hash=False)

    def nvlink_lane(self, sm: int) -> Fraction | None:
        """The rate of an NVLink lane of a GPU of compute capability `sm` (70 for 7.0); None if it has no NVLink."""
        rates = [rate for start, only, rate in self.nvlink if (sm == start if only else sm >= start)]
        return rates[-1] if rates else None

    def xgmi_lane(self, gfx: int) -> tuple[str, Fraction]:
        """Generation and rate of an xGMI link of a GPU of AMD with the number `gfx` (0x942), 0 for an unknown one."""
        return next((name, rate) for start, name, rate in reversed(self.xgmi) if gfx >= start)

    def cpu_link(self, arch: str, vendor: str, family: int | None, model: int | None) -> CpuRow:
        """The row for the interconnect of a CPU; family and model as its CPUID says, None where not known."""
        return next(
            row
            for row in self.cpus
            if row.arch in (None, arch)
            and row.vendor in (None, vendor)
            and row.family in (None, family)
            and (row.models_from is None or (model is not None and model >= row.models_from))
        )


@cache
def load(rates: str) -> LinkRates:
    """The column `rates` of the table; raises `InputError` unless it is one of `RATES`."""
    from blinksim.textio import yaml_nodes

    if rates not in RATES:
        raise InputError(f"unknown rates {rates!r}: an imported machine has {' or '.join(RATES)}")
    path = data_files.folder("models") / "link_rates.yaml"
    table: dict[str, Any] = yaml_nodes.plain(path, "table of link rates")
    return LinkRates(
        name=rates,
        nvlink=tuple((row["sm"], row.get("only", False), parse_rate(row[rates])) for row in table["nvlink_lane"]),
        xgmi=tuple((row["gfx"], row["name"], parse_rate(row[rates])) for row in table["xgmi_lane"]),
        pcie={f"{row['transfer_rate']:g}": parse_rate(row[rates]) for row in table["pcie_lane"]},
        pcie_unknown_rate=f"{table['pcie_unknown']['transfer_rate']:g}",
        pcie_unknown_lanes=table["pcie_unknown"]["lanes"],
        cpus=tuple(
            CpuRow(row["name"], parse_rate(row[rates]), *map(row.get, ("arch", "vendor", "family", "models_from")))
            for row in table["cpu_link"]
        ),
        local=parse_rate(table["local"]),
        net_unknown=parse_rate(table["net_unknown"]),
        timing={
            kind: (parse_time(row["latency"]), parse_time(row["overhead"])) for kind, row in table["timing"].items()
        },
    )
