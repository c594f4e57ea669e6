"""What the algorithms of the registry say about themselves, so that no test keeps a list of them."""

from __future__ import annotations

from functools import cache

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.topology.shapes import fully_connected


@cache
def needs_a_power_of_two(name: str) -> bool:
    """True if an algorithm says so of three ranks."""
    entry = REGISTRY[name]
    try:
        entry.build(fully_connected(3).select(), Collective(entry.collectives[0]))
    except InputError as error:
        return "needs a power of two ranks, not 3" in str(error)
    except InfeasibleError:
        pass
    return False
