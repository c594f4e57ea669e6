"""The first answer on well-known machines beside the best of all algorithms, NCCL's prediction and the bound.

``python benchmarks/first_answers.py`` writes the table of docs/measurements/first-answers.md,
in about five minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import blinksim as bs
from blinksim.algorithms.registry import REGISTRY
from blinksim.errors import BlinksimError
from blinksim.units import format_time

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "measurements" / "first-answers.md"
SIZE = "1GiB"
# The default may take this share more time than the best of all.
MOST_APART = 0.03
# Ranks up to which a search is made: on more, few_steps takes minutes, and routes for every pair of ranks do too.
MOST_RANKS = {"few_steps": 32, "direct": 256, "two_shot": 256}
HEAD = ("machine", "what it is", "default", "best of all", "more", "NCCL", "at least")


@dataclass(frozen=True)
class Case:
    """A machine, who takes part, and the size. slow: its table row takes more than some seconds."""

    label: str
    machine: str
    nodes: int = 1
    members: str | None = None
    edit: str = ""
    slow: bool = False
    size: str = SIZE

    @cached_property
    def part(self) -> bs.Topology:
        """The part that takes part, at the rates of the data sheets."""
        name = str(ROOT / self.machine) if "/" in self.machine else self.machine
        edits = [self.edit] if self.edit else []
        return bs.load(name, nodes=self.nodes, edits=edits).select(self.members)


CASES = (
    Case("2 p5.48xlarge, each EFA drawn", "p5.48xlarge", 2, slow=True),
    Case("8 p5.48xlarge, each EFA drawn", "tests/data/machines/p5.yaml", 8, slow=True),
    Case("8 p5.48xlarge, four EFA as one", "tests/data/machines/p5b.yaml", 8, slow=True),
    Case("64 p5.48xlarge, each EFA drawn", "tests/data/machines/p5.yaml", 64, slow=True),
    Case("64 p5.48xlarge, four EFA as one", "tests/data/machines/p5b.yaml", 64, slow=True),
    Case("2 p4d.24xlarge", "p4d.24xlarge", 2),
    Case("8 p4d.24xlarge", "p4d.24xlarge", 8, slow=True),
    Case("2 HGX H100 on eight rails", "hgx-h100", 2, slow=True),
    Case("8 HGX H100 on eight rails", "hgx-h100", 8, slow=True),
    Case("16 nodes of Aurora", "aurora", 16, slow=True),
    Case("DGX-1V, GPUs 0 and 3, two NVLinks", "dgx1-v100", members="0,3"),
    Case("DGX-1V, GPUs 0 and 1, one NVLink", "dgx1-v100", members="0,1"),
    Case("torus of 4 x 4", "torus:4x4", slow=True),
    Case("the same, one link at half its rate", "torus:4x4", edit="degrade gpu0-gpu1 bandwidth=12.5GB/s", slow=True),
    Case("4 HGX H100, fat tree 2:1", "tests/data/machines/hgx-h100-2to1.yaml", 4, slow=True),
    Case("8 HGX H100, fat tree 2:1", "tests/data/machines/hgx-h100-2to1.yaml", 8, slow=True),
    Case("dragonfly, 20 GPUs", "dragonfly:5x4x1", slow=True),
    Case("dragonfly, 72 GPUs", "dragonfly:9x4x2", slow=True),
)
# Of small messages; searches that the default leaves out may come before it by any share.
SMALL = (
    Case("2 HGX H100 on eight rails", "hgx-h100", 2, slow=True, size="1MiB"),
    Case("2 DGX A100", "dgx-a100", 2, slow=True, size="1MiB"),
    Case("DGX A100", "dgx-a100", size="1MiB"),
    Case("DGX-1V", "dgx1-v100", slow=True, size="1MiB"),
    Case("torus of 4 x 4", "torus:4x4", slow=True, size="1MiB"),
)
TABLES = {"# Is the first": CASES, "## Small messages": SMALL}


@dataclass(frozen=True)
class Row:
    """A case with its answers. all: those of every algorithm that has one, quickest first. nccl: None where NCCL
    does not run."""

    case: Case
    default: bs.Projection
    all: tuple[bs.Projection, ...]
    nccl: bs.Projection | None

    @property
    def more(self) -> float:
        """The share of its time that the default takes more than the best of all."""
        return self.default.time_s / min(self.default.time_s, self.all[0].time_s) - 1

    @property
    def least_s(self) -> float:
        """Seconds that any algorithm needs."""
        assert self.default.least is not None
        return self.default.least.time_s

    def cells(self) -> tuple[str, ...]:
        """The row of the page."""
        at = [f"`{self.case.machine}`", *([f"`{self.case.edit}`"] if self.case.edit else [])]
        at += [f"`--nodes {self.case.nodes}`"] if self.case.nodes > 1 else []
        at += [f"`--members {self.case.members}`"] if self.case.members else []
        best = min((self.default, *self.all), key=lambda found: found.time_s)
        nccl = f"{format_time(self.nccl.time_s)}, {self.nccl.details['nccl_algorithm']}" if self.nccl else "-"
        return (
            self.case.label,
            " ".join(at),
            f"{format_time(self.default.time_s)}, {self.default.algorithm}",
            f"{format_time(best.time_s)}, {best.algorithm} of {len(self.all)}",
            f"{100 * self.more:.1f} %",
            nccl,
            format_time(self.least_s),
        )


def answered(case: Case) -> Row:
    """The answers of one case."""
    return Row(case, bs.project(case.part, "allreduce", case.size, algorithm="best"), tuple(_every(case)), _nccl(case))


def _every(case: Case) -> list[bs.Projection]:
    """What every algorithm of the registry answers, quickest first; those that cannot run here have no answer."""
    found = []
    for name, entry in REGISTRY.items():
        # What switches compute is another question, and so is what is made for one size.
        if entry.in_network or "size" in entry.options() or case.part.ranks > MOST_RANKS.get(name, case.part.ranks):
            continue
        try:
            found.append(bs.project(case.part, "allreduce", case.size, algorithm=name))
        except BlinksimError:
            continue
    return sorted(found, key=lambda projection: projection.time_s)


def _nccl(case: Case) -> bs.Projection | None:
    try:
        return bs.project(case.part, "allreduce", case.size, algorithm="nccl")
    except BlinksimError:
        return None


def table(rows: Iterable[Row]) -> str:
    """The rows as the page shows them."""
    lines = [HEAD, ("---",) * len(HEAD), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    for title, cases in TABLES.items():
        above, old, below = parted(PAGE.read_text(encoding="utf-8"), title)
        new = table(answered(case) for case in cases)
        PAGE.write_text(above + new + below, encoding="utf-8")
        print("as it was" if new == old else f"changed: {PAGE}, {title}")


def parted(text: str, title: str) -> tuple[str, str, str]:
    """The page above the table below a title, the table, and the page below."""
    start = text.index(f"| {HEAD[0]} |", text.index(title))
    end = text.index("\n\n", start)
    return text[:start], text[start:end], text[end:]


if __name__ == "__main__":
    main()
