"""What would take too long, told before the work: about how many seconds a search takes, and how large it may be.

The searches that grow fastest are those with a pass over all links for every rank: flows for a bound, routes and trees
for a schedule. So the seconds grow as ranks times links, and the ranks that work as the root of the time allowed. The
constants are CPU seconds on one core of a server of 2023, rounded up; docs/limits.md has what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import TYPE_CHECKING

from blinksim.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

MOST_SECONDS = 60
"""What takes longer than about this is refused."""
_FLOW = 150e-9
_BOUND = 2e-3
_ROUTE = 800e-9
# Of a link that a tree is grown over; between 5 and 25 µs on tori, meshes, hypercubes, switches and fat trees.
_TREE = 15e-6
# Of an event of a simulation: one in an array of many, one that waits for its turn, one that shares its link.
_EVENT = {"waves": 300e-9, "heap": 2.5e-6, "shares": 5e-6}


def of_flows(topology: Topology, flows: int) -> float:
    """About the seconds of so many flows through all links."""
    return _FLOW * flows * len(topology.links)


def of_bound(topology: Topology, ranks: int) -> float:
    """About the seconds of all bounds of an allreduce of so many ranks."""
    return _BOUND + of_flows(topology, 3 * ranks)


def of_routes(links: int, searches: int) -> float:
    """About the seconds of so many searches of routes, each of which looks at so many links."""
    return _ROUTE * searches * links


def of_trees(topology: Topology, roots: int) -> float:
    """About the seconds of packing trees from so many roots, each of which is grown breadth first."""
    return _TREE * roots * _looked_at(topology)


def _looked_at(topology: Topology) -> int:
    """How many links a search breadth first from the first member looks at until it has reached the others."""
    links, index, out = topology.links, topology.index, topology.out_links
    wanted = {index[name] for name in topology.members}
    level = [index[topology.members[0]]]
    reached, looked = set(level), 0
    while level and not wanted <= reached:
        here, level = level, []
        for device in here:
            looked += len(out[device])
            new = {index[links[number].dst] for number in out[device]} - reached
            reached |= new
            level += new
            if wanted <= reached:
                break
    return looked


def most_events(engine: str) -> int:
    """Up to how many events a simulation by this engine (``waves``, ``heap``, ``shares``) is not refused."""
    return int(MOST_SECONDS / _EVENT[engine])


def check_events(engine: str, pieces: int, stages: int) -> None:
    """Raises `InputError` for a simulation of every stage with so many pieces that would take too long."""
    events, most = pieces * stages, most_events(engine)
    if events <= most:
        return
    if stages > most:
        instead = "take a schedule of fewer sends"
    else:
        instead = f"up to {_rounded(most // stages):,} pieces work: take larger ones (chunk=)"
    if engine != "waves":
        instead += ", or service='static'"
    raise InputError(
        f"{pieces:,} pieces in {stages:,} stages are {events:,} events, about {words(_EVENT[engine] * events)}; "
        f"{instead}"
    )


def check(what: str, topology: Topology, seconds: float, instead: str) -> None:
    """Raises `InfeasibleError` for what would take longer than `MOST_SECONDS`.

    what: the subject of the sentence. seconds: as the functions above give them. instead: what else to do.
    """
    if seconds > MOST_SECONDS:
        # Exact for machines whose ranks have equally many links each; a little less is sure.
        most = max(2, isqrt(int(topology.ranks**2 * MOST_SECONDS / seconds)))
        raise InfeasibleError(
            f"{what} on {topology.name} would take about {words(seconds)} ({topology.ranks:,} ranks, "
            f"{len(topology.links):,} links); a machine like this works up to about {_rounded(most):,} ranks: take a "
            f"smaller one, or {instead}"
        )


def check_routes(what: str, topology: Topology, pairs: Sequence[tuple[int, int]]) -> None:
    """Raises `InfeasibleError` if the routes between these pairs of devices would take minutes to find."""
    if of_routes(len(topology.links), min(topology.ranks, len(pairs))) <= MOST_SECONDS:
        return
    seconds = of_routes(topology.router.looked_at, topology.router.searches(pairs))
    instead = "another algorithm, such as chain or ring, whose ranks send to their neighbours"
    check(f"finding the routes of {what}", topology, seconds, instead)


def words(seconds: float) -> str:
    """A long time, rounded."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{_rounded(int(seconds / size)):,} {unit}"
    return f"{_rounded(int(seconds)):,} seconds"


def _rounded(number: int) -> int:
    """Down to two digits."""
    power = int(10 ** max(0, len(str(number)) - 2))
    return number // power * power
