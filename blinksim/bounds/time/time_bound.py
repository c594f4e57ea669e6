"""The best of all lower bounds on the time of a collective for one size.

They hold for messages over links with latency, overhead and bandwidth, as `blinksim.simulation` times them: data is
divisible, and what passes through a device goes on while it arrives. They say nothing of launches or of protocols.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from blinksim.bounds.assumptions import NOTHING
from blinksim.bounds.best_known import best_known
from blinksim.bounds.certificates.certificate import Certificate, Phases
from blinksim.bounds.time.clock_search import best_clock
from blinksim.bounds.time.theorems.crossing_pairs import CrossingPairs
from blinksim.bounds.time.theorems.message_counts import SecondMessage, ServedTwice
from blinksim.bounds.time.theorems.nodes_informed import NodesInformed
from blinksim.bounds.time.theorems.potentials import Potentials
from blinksim.bounds.time.theorems.random_clock import RandomClock
from blinksim.bounds.time.theorems.small_sizes import Coverage, Informed, OneStep
from blinksim.bounds.time.theorems.straddling import Straddling
from blinksim.bounds.time.theorems.theorem import Stated, Theorem
from blinksim.bounds.time.theorems.timed_prices import TimedPrices
from blinksim.bounds.time.theorems.tree_cost import TreeCost
from blinksim.bounds.time.time_certificate import TimeCertificate
from blinksim.bounds.time.windows import Windows
from blinksim.collective import Collective
from blinksim.topology.graph import Topology

THEOREMS: tuple[type[Theorem], ...] = (
    OneStep,
    Informed,
    NodesInformed,
    Coverage,
    CrossingPairs,
    SecondMessage,
    ServedTwice,
    Straddling,
    TreeCost,
    Potentials,
    RandomClock,
    TimedPrices,
)
# Ranks up to which messages are counted: beyond, bandwidths and distances set the time.
_COUNTED = 128
_KEPT = 4096


def best_time(
    topology: Topology, collective: Collective, size: int, proofs: Sequence[Certificate], grants: Sequence[str] = ()
) -> TimeCertificate:
    """The certificate of the latest time; of equal ones, the one that assumes least.

    proofs: certificates of rates. grants: what switches may do beside forwarding; what counts messages then says
    nothing.
    """
    best: TimeCertificate | None = None
    for found in fluid_times(topology, collective, size, proofs):
        best = found if best is None or _order(found) < _order(best) else best
    for theorem in () if grants or topology.ranks > _COUNTED else THEOREMS:
        best = _stated(theorem, topology, collective, size, 0 if best is None else best.time) or best
    assert best is not None, "a certificate of a rate has windows"
    return best


def all_times(
    topology: Topology, collective: Collective, size: int, proofs: Sequence[Certificate], grants: Sequence[str] = ()
) -> tuple[TimeCertificate, ...]:
    """The certificate of the latest time of every kind, as `best_time` takes it: the latest first."""
    counted = () if grants or topology.ranks > _COUNTED else THEOREMS
    stated = (_stated(theorem, topology, collective, size) for theorem in counted)
    best: dict[str, TimeCertificate] = {}
    for found in (*fluid_times(topology, collective, size, proofs), *(entry for entry in stated if entry)):
        if found.kind not in best or _order(found) < _order(best[found.kind]):
            best[found.kind] = found
    return tuple(sorted(best.values(), key=_order))


def _order(certificate: TimeCertificate) -> tuple[int, bool]:
    return -certificate.time, certificate.assumes != NOTHING


def fluid_times(
    topology: Topology, collective: Collective, size: int, proofs: Sequence[Certificate]
) -> Iterator[TimeCertificate]:
    """What holds for bytes that flow, however many messages they are in."""
    for proof in proofs:
        if not isinstance(proof, Phases):
            yield Windows.of(topology, collective, size, proof)
    clock = best_clock(topology, collective, size)
    if clock is not None:
        yield clock


def _stated(
    theorem: type[Theorem], topology: Topology, collective: Collective, size: int, low: int = 0
) -> Stated | None:
    """The latest time after `low` by a theorem that counts messages, of all places where it says something."""
    best: tuple[tuple[str, ...], ...] | None = None
    for place in theorem.places(topology, collective):
        time = theorem.stated(topology, collective, size, place).latest(low)
        if time:
            low, best = time, place
    return None if best is None else Stated.of(theorem, topology, collective, size, best, low)


@lru_cache(maxsize=_KEPT)
def least_time(topology: Topology, collective: Collective, size: int, grants: tuple[str, ...] = ()) -> TimeCertificate:
    """As `best_time`, from the bounds on the rate that every answer states."""
    return best_time(topology, collective, size, best_known(topology, collective, grants).certificates, grants)
