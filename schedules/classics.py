"""The schedules that ship in schedules/: the source documents' machines with their best schedules, by one command.

    python schedules/classics.py schedules

Blink's figure 1 (rings n/2b, trees n/3b), the DGX-1 with P100 and V100 for 2 to 8 GPUs (Blink, section 3.2), Blink+'s
tenants, MXNet's multi-trees on p3.16xlarge, and one Aurora node.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blinksim import machines
from blinksim.answers.synthesize import Synthesis, synthesize
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.formats.schedule_json import write_schedule


@dataclass(frozen=True)
class Classic:
    """One schedule that ships: what it is called and how it is made."""

    name: str
    machine: str
    collective: str
    algorithm: str
    members: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    links: tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Synthesis:
        """Synthesizes it anew."""
        whole = machines.load(self.machine)
        part = whole.select(self.members or None, self.relays, self.links, relays_reduce=self.algorithm == "blinkplus")
        return synthesize(part, Collective(self.collective), self.algorithm, **self.options)


def classics() -> Iterator[Classic]:
    """All of them, in the order of the documents."""
    yield Classic("blink-figure-1-rings", "full:4", "broadcast", "rings")
    yield Classic("blink-figure-1-trees", "full:4", "broadcast", "packed")
    for machine in ("dgx1-p100", "dgx1-v100"):
        for count in range(2, 9):
            members = tuple(f"gpu{i}" for i in range(count))
            yield Classic(f"{machine}-{count}-allreduce", machine, "allreduce", "packed", members)
        yield Classic(f"{machine}-8-allgather", machine, "allgather", "packed")
        # The whole DGX-1V needs 24 channels to reach its bound, more than NCCL before 2.25 takes.
        channels = 24 if machine == "dgx1-v100" else 16
        yield Classic(f"{machine}-8-chains", machine, "allreduce", "chains", options={"channels": channels})
    for a, b in ((0, 1), (0, 3)):
        idle = tuple(f"gpu{i}" for i in range(4) if i not in (a, b))
        for collective in ("broadcast", "allreduce"):
            name = f"blinkplus-tenant-{a}-{b}-{collective}"
            yield Classic(name, "dgx1-v100", collective, "blinkplus", (f"gpu{a}", f"gpu{b}"), idle)
    yield Classic("p3.16xlarge-mxnet-allreduce", "p3.16xlarge", "allreduce", "mxnet")
    yield Classic("aurora-node-allreduce", "aurora", "allreduce", "packed", links=("mdfi", "xe"))


def write_all(folder: Path) -> None:
    """Makes and writes every classic into `folder`, replacing what is there under the same names.

    Raises `BlinksimError` if one does not verify: nothing wrong is shipped.
    """
    for classic in classics():
        made = classic.make()
        if not made.verdict.ok:
            raise BlinksimError(f"{classic.name} does not verify: {made.verdict.reasons[0]}")
        write_schedule(made.schedule, folder / f"{classic.name}.json", force=True)
        rate, bound = float(made.rate) / 1e9, float(made.bounds.rate) / 1e9
        print(f"{classic.name:<34}{rate:8.2f} of {bound:8.2f} GB/s, {made.schedule.chunks} trees, gap {made.gap}")


if __name__ == "__main__":
    write_all(Path(sys.argv[1] if len(sys.argv) > 1 else "schedules"))
