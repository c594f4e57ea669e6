"""A packing under way: how far it is, when it must end, and whether it should begin at all."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from blinksim.errors import InfeasibleError
from blinksim.limits import effort

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

Progress = Callable[[int, int], None]


class Watch:
    """Passes progress on, and ends the packing when its time is over; without a limit, only what is foreseen begins."""

    def __init__(self, progress: Progress | None, time_limit: float | None) -> None:
        self._progress, self._limit = progress, time_limit
        self._end = None if time_limit is None else monotonic() + time_limit

    def __call__(self, done: int, wanted: int) -> None:
        if self._progress:
            self._progress(done, wanted)
        if self._end is not None and monotonic() > self._end:
            raise InfeasibleError(f"packing found {done} of {wanted} trees in {self._limit} s; allow more time")

    def check(self, topology: Topology, roots: int) -> None:
        """Raises `InfeasibleError` if packing trees from so many roots would take minutes and has no limit."""
        if self._end is None:
            seconds = effort.of_trees(topology, roots)
            instead = "another algorithm, such as ring or chain_tree, or give a time limit (time_limit=) and see"
            effort.check("packing the trees", topology, seconds, instead)
