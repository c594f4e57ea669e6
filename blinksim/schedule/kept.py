"""The schedules that were built last in this process, so that a question asked again is not worked out again.

A topology never changes, and an edited one is another key, so what is kept never grows stale.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from blinksim.schedule.ways import Parallel

# Sends of all kept schedules together: some 30 bytes each.
MOST_SENDS = 4_000_000
# By the hash of the key, which takes milliseconds for a large topology.
_kept: OrderedDict[int, tuple[Hashable, Parallel]] = OrderedDict()


def kept(key: Hashable, build: Callable[[], Parallel]) -> Parallel:
    """What `build` gave for an equal key before, or gives now; those not asked for longest make room."""
    place = hash(key)
    before, found = _kept.get(place, (None, None))
    if found is None or before != key:
        found = build()
        if found.held > MOST_SENDS:
            return found
        _kept[place] = key, found
        while sum(other.held for _, other in _kept.values()) > MOST_SENDS:
            _kept.popitem(last=False)
    _kept.move_to_end(place)
    return found


def forget() -> None:
    """Drops all that is kept."""
    _kept.clear()
