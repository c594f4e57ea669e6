"""Which stages a delivery starts: a stage is ready for a piece when everything that it waits for has delivered it.

The engines that go event by event share this. A joint takes no time, so it passes on at once.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from blinksim.simulation.work import Work

END, SEVERAL = -1, -2
Successors = list[tuple[int, ...]]


def successors(work: Work) -> Successors:
    """For each stage the stages that wait for it, in order."""
    order = np.lexsort((work.after, work.before))
    starts = np.searchsorted(work.before[order], np.arange(work.count + 1)).tolist()
    after = work.after[order].tolist()
    return [tuple(after[a:b]) for a, b in pairwise(starts)]


class Arrivals:
    """The deliveries of a run so far, for stages that wait for several.

    An item is a piece at a stage, the number ``base + stage``: engines choose the base of each piece. only[stage]: the
    only stage that waits for `stage`, if that one waits for nothing else; `END` if none waits; else `SEVERAL`.
    """

    __slots__ = ("_follow", "_latest", "_missing", "_need", "_several", "_timeless", "only")

    def __init__(self, work: Work) -> None:
        self._follow = follow = work.once(successors)
        self._need, self._timeless = work.fan_in.tolist(), work.timeless.tolist()
        self._several = [n > 1 or joint for n, joint in zip(self._need, self._timeless, strict=True)]
        self.only = [self._only(targets) for targets in follow]
        self._latest: dict[int, int] = {}
        self._missing: dict[int, int] = {}

    def _only(self, targets: tuple[int, ...]) -> int:
        if not targets:
            return END
        return SEVERAL if len(targets) > 1 or self._several[targets[0]] else targets[0]

    def after(self, stage: int, base: int, done: int) -> list[tuple[int, int]]:
        """(time, item) of each item that is ready once `stage` delivers the piece of `base`, at the time `done`."""
        ready: list[tuple[int, int]] = []
        several = self._several
        for target in self._follow[stage]:
            if several[target]:
                self._collect(target, base, done, ready)
            else:
                ready.append((done, base + target))
        return ready

    def _collect(self, target: int, base: int, done: int, ready: list[tuple[int, int]]) -> None:
        item = base + target
        latest = self._latest.get(item, 0)
        latest = done if done > latest else latest
        missing = self._missing.get(item, self._need[target]) - 1
        if missing:
            self._latest[item], self._missing[item] = latest, missing
            return
        self._latest.pop(item, None)
        self._missing.pop(item, None)
        if not self._timeless[target]:
            ready.append((latest, item))
            return
        for behind in self._follow[target]:
            if self._several[behind]:
                self._collect(behind, base, latest, ready)
            else:
                ready.append((latest, base + behind))

    def check_complete(self) -> None:
        """An engine calls this at the end of a run: no stage may still wait for a delivery."""
        assert not self._missing, "every wait must come to an end"
