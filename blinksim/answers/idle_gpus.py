"""What idle GPUs of a node would add to a collective of the others as relays (Blink+)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from blinksim.algorithms.registry import REDUCE_AND_SPREAD
from blinksim.collective import ON_TREES, Collective
from blinksim.errors import InfeasibleError
from blinksim.machines import Question
from blinksim.topology.graph import Topology
from blinksim.topology.selection import IDLE
from blinksim.units import format_rate

IDLE_GPUS = "idle GPUs"
# Relays are worth a line from this many times the rate without them.
_WORTH = Fraction(21, 20)
# Additions for a least tree, up to which the best trees take about 0.2 s: of 7 of 8 GPUs 25,000 (0.11 s), of
# 2 of 72 21,000 (0.16 s), of 4 of 72 89,000 (0.35 s), of 8 of 16 170,000 (0.6 s).
_MOST_WORK = 50_000


@dataclass(frozen=True)
class IdleGpus:
    """What idle GPUs would add as relays that reduce and multicast.

    part: the machine with them. rate: algbw in bytes/s that trees through them attain on the links. times: as
    much as is possible without them.
    """

    part: Topology
    collective: Collective
    rate: Fraction
    times: float

    def words(self, *, carried: bool = False) -> str:
        """The line, with what to ask for. carried: what runs such a schedule in place of its rate."""
        asked = f"as relays {self.times:.3g} times the rate%s: relays=idle relays_reduce=True"
        if carried:
            return f"{asked % ''}; {carrier(self.part, self.collective)}"
        rates = f"{format_rate(self.rate)} in place of {format_rate(float(self.rate) / self.times)}"
        return asked % f" on the links ({rates} algbw at {self.part.rates} rates)"


def carrier(part: Topology, collective: Collective) -> str:
    """What runs a schedule through relays, in words."""
    if part.device(part.members[0]).library != "nccl":
        return "nothing loads it yet"
    if part.ranks > 2 or collective.name not in REDUCE_AND_SPREAD:
        return "blinksim run executes it"
    return "NCCL loads its chains (format=nccl-graph-set)"


def idle_gpus(question: Question, part: Topology, wanted: Collective, before: Fraction) -> IdleGpus | None:
    """What the GPUs that idle beside a selected part would add.

    before: the best algbw without them, bytes/s. None where they add nothing worth it, on several nodes, for
    collectives without trees, where the question says what relays there are, and where the best trees would
    take long.
    """
    if part.nodes > 1 or part.relays or question.relays is not None or wanted.name not in ON_TREES:
        return None
    whole = question.whole()
    gpus, rate = len(whole.holders), Fraction(0)
    if gpus > part.ranks and 3**part.ranks * gpus + 2**part.ranks * gpus**2 <= _MOST_WORK:
        # Loads a solver.
        from blinksim.algorithms.blinkplus import tree_search

        helped = replace(question, relays=IDLE, relays_reduce=True, collective=wanted).part(whole)
        with suppress(InfeasibleError):
            search = tree_search(helped, wanted)
            rate = search.best().rate * len(search.roots) * search.hops.unit
    return IdleGpus(helped, wanted, rate, float(rate / before)) if rate > _WORTH * before else None
