"""Rates of links by generation from ``models/link_rates.yaml``, for formats that name parts but not rates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

from blinksim import data_files
from blinksim.errors import InputError
from blinksim.units import parse_rate, parse_time

RATES = ("nominal", "nccl")
_GFX = re.compile(r"(?:gfx)?([0-9]{1,2}[0-9a-f]{2})")


@dataclass(frozen=True)
class LinkRates:
    """One column of the table: bytes/s in one direction, and seconds.

    nvlink: (sm, holds for that sm only, rate of a lane), ascending. xgmi: (gfx number, generation, rate of a
    link). pcie: rate of a lane by transfer rate in GT/s as text (``"2.5"``, ``"8"``). pcie_by_sm: (compute
    capability from which GPUs have it, rate of a lane), ascending. cpus: (rate of an
    interconnect, what a CPU has whose it is). local: a connection without a limit of its own. timing:
    (latency, overhead) by what a link is.
    """

    name: str
    nvlink: tuple[tuple[int, bool, Fraction], ...]
    xgmi: tuple[tuple[int, str, Fraction], ...]
    pcie: Mapping[str, Fraction]
    pcie_by_sm: tuple[tuple[int, Fraction], ...]
    pcie_unknown_rate: str
    pcie_unknown_lanes: int
    cpus: tuple[tuple[Fraction, Mapping[str, Any]], ...]
    local: Fraction
    net_unknown: Fraction
    timing: Mapping[str, tuple[float, float]] = field(hash=False)

    def nvlink_lane(self, sm: int) -> Fraction | None:
        """The rate of an NVLink lane of a GPU of compute capability `sm` (70 for 7.0); None if it has no NVLink."""
        rates = [rate for start, only, rate in self.nvlink if (sm == start if only else sm >= start)]
        return rates[-1] if rates else None

    def xgmi_link(self, gcn: str) -> tuple[str, Fraction]:
        """The generation of GPUs that RCCL calls `gcn`, such as ``gfx942``, and the rate of its xGMI links."""
        match = _GFX.fullmatch(gcn.lower())
        # Such as 0x942, and 0 for an unknown GPU.
        number = int(match[1], 16) if match else 0
        return next((name, rate) for start, name, rate in reversed(self.xgmi) if number >= start)

    def cpu_link(self, arch: str, vendor: str, family: int | None, model: int | None) -> Fraction:
        """The rate of the interconnect of a CPU; family and model as its CPUID says, None where not known."""
        own = {"arch": arch, "vendor": vendor, "family": family}
        return next(
            rate
            for rate, wanted in self.cpus
            if all(wanted.get(key, value) == value for key, value in own.items())
            and ("models_from" not in wanted or (model is not None and model >= wanted["models_from"]))
        )


@cache
def load(rates: str) -> LinkRates:
    """The column `rates` of the table; raises `InputError` unless it is one of `RATES`."""
    from blinksim.textio import yaml_nodes

    if rates not in RATES:
        raise InputError(f"unknown rates {rates!r}: an imported machine has {' or '.join(RATES)}")
    path = data_files.folder("models") / "link_rates.yaml"
    table: dict[str, Any] = yaml_nodes.plain(path, "table of link rates")
    unknown, timing = table["pcie_unknown"], table["timing"].items()
    return LinkRates(
        name=rates,
        nvlink=tuple((row["sm"], row.get("only", False), parse_rate(row[rates])) for row in table["nvlink_lane"]),
        xgmi=tuple((row["gfx"], row["name"], parse_rate(row[rates])) for row in table["xgmi_lane"]),
        pcie={f"{row['transfer_rate']:g}": parse_rate(row[rates]) for row in table["pcie_lane"]},
        pcie_by_sm=tuple((row["sm"], parse_rate(row[rates])) for row in table["pcie_lane"] if "sm" in row),
        pcie_unknown_rate=f"{unknown['transfer_rate']:g}",
        pcie_unknown_lanes=unknown["lanes"],
        cpus=tuple((parse_rate(row[rates]), row) for row in table["cpu_link"]),
        local=parse_rate(table["local"]),
        net_unknown=parse_rate(table["net_unknown"]),
        timing={kind: (parse_time(row["latency"]), parse_time(row["overhead"])) for kind, row in timing},
    )
