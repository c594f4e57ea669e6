"""What a machine's library takes, alone: no test of it searches for the schedules that an answer puts beside it."""

from __future__ import annotations

from collections.abc import Sequence

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
