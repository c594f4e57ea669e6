"""Constants of NCCL's search and tuner by version, from ``models/nccl-tuner-<version>.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from blinksim import data_files
from blinksim.errors import unknown

DEFAULT_VERSION = "2.28.3"
PROTOCOLS = ("LL", "LL128", "Simple")
_PREFIX = "nccl-tuner-"


@dataclass(frozen=True, slots=True)
class Generation:
    """Limits by GPU generation in GB/s; tuples are for 1, 2, and 3 or more nodes."""

    name: str
    sm: int
    ll_most: tuple[float, ...]
    ll128_ring_channel: tuple[float, ...]
    ll128_tree_channel: tuple[float, ...]
    tree_channel: tuple[float, ...]
    nvls_tree_channel: tuple[float, ...]
    nvls_efficiency: float


@dataclass(frozen=True)
class Constants:
    """One version's figures, as its file explains them; times in us, bandwidths in GB/s.

    channel_bandwidths, any_port_below: what the search tries, in bytes/s; see `blinksim.nccl.search.search.Rules`.
    """

    version: str
    base_latency: Mapping[str, tuple[float, ...]]
    hop_latency: Mapping[str, Mapping[str, tuple[float, ...]]]
    net_overhead: Mapping[str, float]
    generations: tuple[Generation, ...]
    ll_most_by_cpu: Mapping[str, str]
    tree_correction: tuple[tuple[float, ...], ...]
    nvls_tree_correction_from: int
    nvls_least_gpus: int
    channel_bandwidths: tuple[tuple[int, tuple[Fraction, ...], tuple[Fraction, ...]], ...]
    any_port_below: int

    def generation(self, sm: int) -> Generation:
        """The row for GPUs of compute capability `sm` (90 for 9.0) or later."""
        return next(row for row in self.generations if sm >= row.sm)

    def ll_most(self, sm: int, nnodes: int, vendor: str) -> float:
        """GB/s that the LL protocol reaches at most."""
        row = self.generation(sm)
        if nnodes > 1:
            name = self.ll_most_by_cpu.get(vendor, self.ll_most_by_cpu["default"])
            row = next(generation for generation in self.generations if generation.name == name)
        return row.ll_most[min(nnodes, 3) - 1]


def versions() -> list[str]:
    """The versions of NCCL whose figures lie in models/, oldest first."""
    names = [path.stem.removeprefix(_PREFIX) for path in data_files.files("models", f"{_PREFIX}*.yaml")]
    return sorted(names, key=lambda version: [int(part) for part in version.split(".")])


def nearest(version: str) -> str:
    """The version with figures that stands for `version`: itself, else one that differs in the patch only, else the
    default."""
    known = versions()
    if version in known:
        return version
    branch = version.split(".")[:2]
    return next((name for name in known if name.split(".")[:2] == branch), DEFAULT_VERSION)


@cache
def load(version: str = DEFAULT_VERSION) -> Constants:
    """The figures of NCCL `version`; raises `InputError` with the known ones for others."""
    if version not in versions():
        raise unknown("version of NCCL", version, versions())
    from blinksim.textio import yaml_nodes

    path = data_files.folder("models") / f"{_PREFIX}{version}.yaml"
    table: dict[str, Any] = yaml_nodes.plain(path, "table of NCCL's figures")

    def lists(rows: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
        return {name: tuple(map(float, row)) for name, row in rows.items()}

    def rates(gigabytes: list[float]) -> tuple[Fraction, ...]:
        return tuple(Fraction(str(rate)) * 10**9 for rate in gigabytes)

    for row in table["generations"]:
        # Every list of a row is a limit by number of nodes.
        row |= {key: tuple(map(float, value)) for key, value in row.items() if isinstance(value, list)}
    return Constants(
        version=table["version"],
        base_latency=lists(table["base_latency"]),
        hop_latency={over: lists(rows) for over, rows in table["hop_latency"].items()},
        net_overhead=table["net_overhead"],
        generations=tuple(Generation(**row) for row in table["generations"]),
        ll_most_by_cpu=table["ll_most_by_cpu"],
        tree_correction=tuple(tuple(map(float, row)) for row in table["tree_correction"]),
        nvls_tree_correction_from=table["nvls_tree_correction_from"],
        nvls_least_gpus=table["nvls_least_gpus"],
        channel_bandwidths=tuple(
            (row["sm"], rates(row["one_node"]), rates(row["several_nodes"])) for row in table["channel_bandwidths"]
        ),
        any_port_below=table["any_port_below"],
    )
