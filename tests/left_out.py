"""What is forgotten of the published times before one of them is asked for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy
from functools import cache
from operator import attrgetter

from blinksim.timing.library_model import Library
from blinksim.timing.measured.public_tables import Cell, band_of

LEFT_OUT: dict[str, Callable[[Cell], Hashable]] = {
    "other sizes": attrgetter("size"),
    "other sets": attrgetter("set.name"),
    "other jobs": attrgetter("nodes", "gpus"),
    "nothing": type,
}
"""By what stays known: in what the published times that are forgotten are like the one that is asked for."""


@cache
def _unlike(kept: str, figure: Hashable) -> Callable[[Cell], bool]:
    """One function for all that are alike, as a model works out once what it says of the same knowledge."""
    return lambda one: LEFT_OUT[kept](one) != figure


def sample_of(cell: Cell) -> Hashable:
    """What counts once where shares are those of a sample: what a run takes of sizes that are near is alike."""
    return cell.set.name, cell.collective, cell.nodes, cell.gpus, cell.dtype, band_of(cell.size)


def without(model: Library, kept: str, cell: Cell) -> Library:
    """A copy of a model that knows what is kept beside a published time."""
    found = copy(model)
    if kept in LEFT_OUT:
        found.published, found.constants = _unlike(kept, LEFT_OUT[kept](cell)), kept != "nothing"
    return found
