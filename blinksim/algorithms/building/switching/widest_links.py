"""The widest link from each device to each of its neighbours, and the switches that whole groups are linked to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from blinksim.structures.arrays import expand, places
from blinksim.topology.graph import Topology

Ints = npt.NDArray[np.int64]


class WidestLinks:
    """The links of a topology by their two ends, of parallel ones the widest, and of equal ones the first."""

    def __init__(self, topology: Topology) -> None:
        self._topology, table = topology, topology.link_columns
        self._devices = len(topology.devices)
        self._rates = sorted({*table.bandwidths})
        place = {rate: number for number, rate in enumerate(self._rates)}
        width = np.array([place[rate] for rate in table.bandwidths], dtype=np.int64)[table.figure]
        key = table.src * self._devices + table.dst
        order = np.lexsort((-width, key))
        first = order[np.diff(key[order], prepend=-1) > 0]
        self._keys, self._links, self._width = key[first], first, width[first]

    def between(self, src: npt.ArrayLike, dst: npt.ArrayLike) -> Ints:
        """The links from devices (M) to neighbours (M), by their numbers."""
        place, known = self._places(np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64))
        assert known.all()
        return self._links[place]

    def switches_of(self, groups: Sequence[Sequence[int]], abilities: Iterable[str]) -> list[dict[int, Fraction]]:
        """For each group of devices the switches with these abilities that all of it are linked to both ways.

        By their numbers, in rising order, each with bytes/s of the narrowest of these links.
        """
        wanted, devices = set(abilities), self._topology.devices
        # Of thousands of switches, only those beside the first of a group can be linked to all of it.
        first = np.array([group[0] for group in groups], dtype=np.int64)
        start, end = (np.searchsorted(self._keys, (first + more) * self._devices) for more in (0, 1))
        owner = np.repeat(np.arange(len(groups)), end - start)
        beside = self._keys[np.repeat(start, end - start) + places(end - start)] % self._devices
        able = np.array([wanted <= devices[number].in_network for number in beside.tolist()], dtype=np.bool_)
        owner, beside = owner[able], beside[able]
        found: list[dict[int, Fraction]] = [{} for _ in groups]
        if not len(owner):
            return found
        bounds = np.cumsum([0, *map(len, groups)])
        case, member = expand(bounds, np.array([one for group in groups for one in group], dtype=np.int64), owner)
        switch = beside[case]
        ways = (self._places(member, switch), self._places(switch, member))
        width = np.minimum(*(np.where(known, self._width[place], -1) for place, known in ways))
        narrowest = np.full(len(owner), len(self._rates))
        np.minimum.at(narrowest, case, width)
        for group, number, least in zip(owner.tolist(), beside.tolist(), narrowest.tolist(), strict=True):
            if least >= 0:
                found[group][number] = self._rates[least]
        return found

    def _places(self, src: Ints, dst: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        key = src * self._devices + dst
        place = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        return place, self._keys[place] == key
