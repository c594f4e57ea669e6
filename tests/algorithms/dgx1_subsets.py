"""The classes of connected GPU subsets of a DGX-1, with bounds and ring counts from tests/golden/blink_subsets.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

from blinksim.machines import load
from blinksim.topology.graph import Topology

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
MACHINES = {"DGX-1P": ("dgx1-p100", 20 * 10**9), "DGX-1V": ("dgx1-v100", 25 * 10**9)}


@dataclass(frozen=True)
class Subset:
    """One class: a representative and its row. lane: bytes/s of one NVLink in one direction."""

    machine: str
    gpus: str
    row: dict[str, str]

    @property
    def lane(self) -> int:
        return MACHINES[self.machine][1]

    @property
    def size(self) -> int:
        """How many subsets are like this one."""
        return int(self.row["class_size"])

    def value(self, column: str) -> Fraction:
        return Fraction(self.row[column])

    def topology(self) -> Topology:
        return part(self.machine, self.gpus)

    def __str__(self) -> str:
        return f"{self.machine} {self.gpus}"


@cache
def machine(name: str) -> Topology:
    return load(MACHINES[name][0])


def part(name: str, gpus: str) -> Topology:
    """The subset ``0-1-4`` of a machine."""
    return machine(name).select([f"gpu{number}" for number in gpus.split("-")])


def connected() -> Iterator[Subset]:
    """One subset of every class that NVLinks connect."""
    with (GOLDEN / "blink_subsets.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["nvlink_connected"] == "yes":
                yield Subset(row["machine"], row["subset"], row)
