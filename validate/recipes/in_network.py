"""Collectives whose switches multicast and reduce: rates by hand, beside bounds, schedules, runs and simulations.

    PYTHONPATH=. python3 validate/recipes/in_network.py [--quick] [--size 16GiB]

For every case: the rate by a formula, the bound that grants what the switches can, the rate and the gap of a schedule,
if it is verified and gives the right result with the NumPy executor, and the algbw of a simulation at `--size`. It ends
with an error if a bound or a schedule misses its formula. No GPU is needed, and none is used.

B: a GPU's port to its switch; b: its NIC; n: GPUs of a node; N: of all nodes; m: nodes; U: uplink of a leaf switch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import blinksim as bs
from blinksim.answers.synthesize import Synthesis
from blinksim.errors import BlinksimError
from blinksim.results import table
from blinksim.units import exact_GBps
from validate.recipes.arguments import arguments, script

READS, ADDS = "can=forward,multicast,reduce_into_reader", "can=forward,multicast,reduce"
SHARP = f"fabric {ADDS}"
GB = 10**9


@dataclass(frozen=True)
class Case:
    """A collective by an algorithm on a machine; `formula` gives `rate` in GB/s."""

    machine: str
    collective: str
    algorithm: str
    formula: str
    rate: Fraction
    nodes: int = 1
    edits: tuple[str, ...] = ()
    members: str | None = None
    note: str = ""

    @property
    def where(self) -> str:
        """The machine and what is said of it, for people."""
        nodes = f" x {self.nodes}" if self.nodes > 1 else ""
        return f"{self.machine.partition('@')[0]}{nodes}{f', {self.note}' if self.note else ''}"


@dataclass(frozen=True)
class Row:
    """What was found for a case; rates in bytes/s."""

    case: Case
    found: Synthesis = field(repr=False)
    wrong: int | None
    simulated: float

    @property
    def bound(self) -> Fraction:
        """The bound that holds for the schedule."""
        bound = self.found.bound
        assert bound is not None
        return bound.rate

    @property
    def faults(self) -> list[str]:
        """What is not as it must be, in words."""
        due = self.case.rate * GB
        checks = (
            (self.bound == due, f"the bound is {exact_GBps(self.bound)} GB/s"),
            (self.found.rate == due, f"the schedule reaches {exact_GBps(self.found.rate)} GB/s"),
            (self.found.gap == 0, f"the gap is {self.found.gap}"),
            (self.found.verdict.ok and not self.found.verdict.unproved, "the schedule is not verified"),
            (self.wrong == 0, f"{self.wrong} elements of the result are wrong"),
            (self.simulated <= self.found.rate, "the simulation is faster than the links"),
        )
        return [words for right, words in checks if not right]

    def cells(self) -> tuple[str, ...]:
        case = self.case
        return (
            case.where, case.collective, case.algorithm, case.formula, exact_GBps(case.rate * GB),
            exact_GBps(self.bound), exact_GBps(self.found.rate), str(self.found.gap),
            "yes" if self.found.verdict.ok else "no", "right" if self.wrong == 0 else f"{self.wrong} wrong",
            f"{self.simulated / GB:.4g}",
        )  # fmt: skip


HEAD = (
    "machine", "collective", "algorithm", "by hand", "GB/s", "bound", "schedule", "gap", "verified", "run", "simulated",
)  # fmt: skip


def one_switch(machine: str, port: int, n: int, members: str | None = None) -> Iterator[Case]:
    """All collectives of trees on one switch with n ports of `port` GB/s."""

    def case(name: str, algorithm: str, formula: str, rate: Fraction) -> Case:
        return Case(machine, name, algorithm, formula, rate, members=members, note=f"{n} GPUs")

    for algorithm in ("nvls", "packed_in_network"):
        yield case("allreduce", algorithm, "B n/(n+1)", Fraction(port * n, n + 1))
    for name in ("reduce", "broadcast"):
        yield case(name, "nvls", "B", Fraction(port))
    for name in ("allgather", "reducescatter"):
        yield case(name, "packed_in_network", "B n/(n-1)", Fraction(port * n, n - 1))


def other_switches(machine: str, switch: str, port: int, n: int, members: str | None = None) -> Iterator[Case]:
    """The allreduce of the same machine where the switch adds in flight, and where it forwards."""
    yield Case(
        machine, "allreduce", "sharp", "B", Fraction(port), 1, (f"{switch} {ADDS}",), members, f"{n} GPUs, in flight"
    )
    by_hand = Fraction(port * n, 2 * (n - 1))
    edits = ("without in-network",)
    yield Case(machine, "allreduce", "packed", "B n/(2(n-1))", by_hand, 1, edits, members, f"{n} GPUs, forwarding")


def several_nodes() -> Iterator[Case]:
    """Nodes of HGX H200: eight NICs of 50 GB/s, ports of 450 GB/s."""
    b, n, port = 50, 8, 450
    for m in (2, 3, 4):
        yield Case("hgx-h200", "allreduce", "packed_in_network", "n b m/(2(m-1)), at most B n/(n+1)",
                   min(Fraction(n * b * m, 2 * (m - 1)), Fraction(port * n, n + 1)), m)  # fmt: skip
    yield Case("hgx-h200", "allreduce", "nvls_tree", "n b", Fraction(n * b), 2)
    for algorithm in ("sharp", "packed_in_network"):
        yield Case("hgx-h200", "allreduce", algorithm, "n b", Fraction(n * b), 4, (SHARP,), note="SHARP")
    for name in ("reduce", "broadcast"):
        yield Case("hgx-h200", name, "sharp", "n b", Fraction(n * b), 4, (SHARP,), note="SHARP")
    for name in ("allgather", "reducescatter"):
        due = Fraction((port + b) * 4 * n, 4 * n - 1)
        yield Case("hgx-h200", name, "packed_in_network", "(B+b) N/(N-1)", due, 4, (SHARP,), note="SHARP")


def two_levels() -> Iterator[Case]:
    """Leaf switches below one spine, with less bandwidth up than in; all of them add and multicast."""
    narrow = "fattree:16x1@50GB/s,50GB/s,8:1"
    for algorithm in ("sharp", "packed_in_network"):
        yield Case(narrow, "allreduce", algorithm, "min(b, U)", Fraction(25), edits=(SHARP,), note="8:1")
    for name in ("reduce", "broadcast"):
        yield Case(narrow, name, "sharp", "min(b, U)", Fraction(25), edits=(SHARP,), note="8:1")
    for name in ("allgather", "reducescatter"):
        # Twelve of sixteen shards enter a leaf.
        yield Case(narrow, name, "sharp", "U N/(N-4)", Fraction(25 * 16, 12), edits=(SHARP,), note="8:1")
    yield Case(narrow, "allreduce", "packed", "U 4/(2(4-1))", Fraction(50, 3), note="8:1, forwarding")
    # Uplinks of 25 GB/s, downlinks of 100: the spine sends on each shard three times, or takes it three times.
    up = tuple(f"degrade fabric.leaf{leaf}->fabric bandwidth=25GB/s" for leaf in range(4))
    down = tuple(f"degrade fabric->fabric.leaf{leaf} bandwidth=25GB/s" for leaf in range(4))
    open_ = narrow.replace("8:1", "2:1")
    edits = ("fabric can=forward,multicast", *up)
    yield Case(
        open_, "allreduce", "packed_in_network", "U", Fraction(25), edits=edits, note="narrow up, multicast only"
    )
    for name, slow, can in (("allgather", up, "multicast"), ("reducescatter", down, "reduce")):
        way = "up" if slow is up else "down"
        edits = (f"fabric can=forward,{can}", *slow)
        yield Case(open_, name, "sharp", "b N/(N-1)", Fraction(50 * 16, 15), edits=edits, note=f"narrow {way}")
        note = f"narrow {way}, forwarding"
        yield Case(open_, name, "packed", "4 U/3", Fraction(4 * 25, 3), edits=slow, note=note)
    edits = (SHARP, f"n[0-3].switch {READS}")
    half = "fattree:4x2@50GB/s,50GB/s,2:1"
    yield Case(half, "allreduce", "packed_in_network", "b + B/2", Fraction(75), edits=(SHARP,), note="2:1")
    # By NVLS and the NIC of one GPU, B n/(n+1) at most; what is left of the NICs adds each GPU's own copies.
    yield Case(
        "fattree:4x4@100GB/s,25GB/s,2:1",
        "allreduce",
        "packed_in_network",
        "b + B (n-1)/(n+1)",
        Fraction(85),
        edits=edits,
        note="2:1, NVLS inside",
    )


def cases(quick: bool = False) -> Iterator[Case]:
    """All cases; quick: without the 72 GPUs and several nodes."""
    yield from one_switch("hgx-h200", 450, 8)
    yield from one_switch("hgx-h200", 450, 5, "0-4")
    yield from other_switches("hgx-h200", "nvswitch", 450, 8)
    yield from other_switches("hgx-h200", "nvswitch", 450, 5, "0-4")
    yield from two_levels()
    if not quick:
        yield from several_nodes()
        yield from one_switch("gb200-nvl72", 900, 72)
        yield from other_switches("gb200-nvl72", "nvswitch", 900, 72)


def row(case: Case, size: str = "16GiB") -> Row:
    """Bounds, builds, verifies, runs and simulates one case."""
    machine = bs.load(case.machine, nodes=case.nodes, edits=list(case.edits)).select(case.members)
    found = bs.synthesize(machine, case.collective, case.algorithm)
    ranks = len(found.schedule.topology.members)
    run = bs.execute(found.schedule, int(2**20 // (4 * ranks)) * 4 * ranks)
    return Row(case, found, run.wrong, bs.simulate(found.schedule, size).algbw)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="one node of eight GPUs, and small fabrics")
    parser.add_argument("--size", default="16GiB", help="of the simulation")
    given = parser.parse_args()
    rows = [row(case, given.size) for case in cases(given.quick)]
    print(table(HEAD, [one.cells() for one in rows], left=(0, 1, 2, 3, 8, 9)))
    wrong = [f"{one.case.where}, {one.case.collective} by {one.case.algorithm}: {fault}"
             for one in rows for fault in one.faults]  # fmt: skip
    if wrong:
        raise BlinksimError("not as by hand: " + "; ".join(wrong))


if __name__ == "__main__":
    script(main, __file__)
