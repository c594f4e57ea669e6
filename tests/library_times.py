"""What a machine's library takes, alone, without a search for the schedules that an answer puts beside it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import blinksim as bs
from blinksim.collective import Collective
from blinksim.timing.library_model import Library
from blinksim.timing.projection_result import Projection


def taken(
    question: bs.Question, collective: str, sizes: Sequence[int], library: Library | None = None
) -> list[Projection]:
    """The first figure of an answer for each size in bytes, with its terms and interval."""
    model, whole = (library or Library()).at(question)
    return model.times(whole, Collective(collective), sizes)


ENDS = "interval_low_s", "interval_high_s"
# Whose times are compared with one another.
COMPARED = ("allreduce", "allgather", "reducescatter", "broadcast")


def contradictions(found: Sequence[Projection]) -> list[str]:
    """What contradicts itself: a figure below that of fewer bytes, or an order of figures that cannot be.

    A published time is the figure even where another run published a longer one of fewer bytes. Beyond all published
    sizes the rate does not fall. found: what one question takes, by size.
    """
    wrong = list[str]()
    for less, more in pairwise(found):
        published = more.details["basis"] == "measured" and more.time_s < less.time_s
        rises = {key: less.details[key] <= more.details[key] * (1 + 1e-12) for key in ENDS[published:]}
        rises["time"] = published or less.time_s <= more.time_s * (1 + 1e-12)
        wrong += [f"{more.size}: {key} falls" for key, held in rises.items() if not held]
    told = [place for place, one in enumerate(found) if one.details["basis"] in ("measured", "between", "lent")]
    for less, more in pairwise(found[max(told, default=len(found)) :]):
        held = more.time_s / more.size <= less.time_s / less.size * (1 + 1e-9)
        wrong += [] if held else [f"{more.size}: the rate falls"]
    for one in found:
        assert one.least is not None
        figures = one.least.time_s, one.details[ENDS[0]], one.time_s, one.details[ENDS[1]]
        wrong += [] if all(a <= b * (1 + 1e-12) for a, b in pairwise(figures)) else [f"{one.size}: {figures}"]
    return wrong
