"""Schedules between the least latency and the best bandwidth: low packings, few rounds for some sizes, and few steps.

The candidates of a Pareto front in the sense of SCCL (Cai et al., PPoPP 2021): steps cost latency, rounds for a number
of chunks cost bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING

from blinksim.budget import asked_to_stop
from blinksim.errors import BlinksimError
from blinksim.textio.text_table import count
from blinksim.units import format_size

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.schedule.model import Schedule
    from blinksim.topology.graph import Topology

MOST_RANKS = 16
"""Ranks up to which these searches take seconds."""
# Chunks per rank (of the whole vector, for broadcast and reduce), and steps more than the fewest, that are tried.
_CHUNKS = (1, 2, 3, 4, 6, 8)
_MORE_STEPS = 2
# Bytes for which few rounds are searched for.
_SIZES = (2**12, 2**16, 2**20, 2**24)
# Seconds of one search, and of looking for fewer trees.
_EACH = 3.0
_POLISH = 0.5

Found = tuple[str, "Schedule"]
"""What the answer calls it, and the schedule."""
Say = Callable[[str], None]


def tradeoffs(topology: Topology, collective: Collective, seconds: float, seed: int, say: Say) -> Iterator[Found]:
    """Candidates, as far as they are found in about `seconds`; none on more than `MOST_RANKS` ranks.

    say: called with a progress message.
    """
    if topology.ranks <= MOST_RANKS:
        end = monotonic() + seconds
        yield from _low_packings(topology, collective, seed, say)
        yield from _few_rounds(topology, collective, min(_EACH, seconds / (3 * len(_SIZES))), say)
        yield from _few_steps(topology, collective, end, seed, say)


def _low_packings(topology: Topology, collective: Collective, seed: int, say: Say) -> Iterator[Found]:
    """The best mixture of all trees of each height, up to the height that attains the bound."""
    from blinksim.algorithms.building.polish import COLLECTIVES, polish

    if collective.name not in COLLECTIVES:
        return
    say("packing low trees")
    try:
        points = polish(topology, collective, seconds=_POLISH, seed=seed).points
    except BlinksimError:
        return  # too many trees to compare
    for point in points:
        yield f"packed of height {point.height}", point.schedule


def _few_rounds(topology: Topology, collective: Collective, seconds: float, say: Say) -> Iterator[Found]:
    """The quickest messages for each of some sizes."""
    from blinksim.algorithms.few_rounds import build

    for size in _SIZES:
        if asked_to_stop():
            return
        say(f"few rounds for {format_size(size)}")
        try:
            # A front counts steps that follow each other, and so whole messages.
            found = build(topology, collective, size=size, time_limit=seconds, pieces=1)
            yield f"few_rounds for {format_size(size)}", found
        except BlinksimError:
            return


def _few_steps(topology: Topology, collective: Collective, end: float, seed: int, say: Say) -> Iterator[Found]:
    from blinksim.algorithms.few_steps import find

    phases = 2 if collective.name == "allreduce" else 1
    per_rank = topology.ranks if collective.name == "alltoall" else 1
    for chunks in (per_rank * number for number in _CHUNKS):
        steps: int | None = None
        for _ in range(_MORE_STEPS + 1):
            left = end - monotonic()
            if left <= 0 or asked_to_stop():
                return
            say(f"few steps with {count(chunks, 'chunk')}")
            try:
                found = find(topology, collective, chunks=chunks, steps=steps, time_limit=min(left, _EACH), seed=seed)
            except BlinksimError:
                break
            yield (
                f"few_steps of {count(chunks, 'chunk')}, {count(found.steps, 'step')}, {count(found.rounds, 'round')}",
                found.schedule,
            )
            if found.rate == found.bounds.rate:
                break
            steps = found.steps + phases
