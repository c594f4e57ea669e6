"""Bounds as results, and what they assume: rate, scope and certificate, all bounds of a question.

Assumptions are on schedules and switches, in words, with the machine whose switches may do more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from blinksim.bounds.certificates import Certificate, Partition, Phases
from blinksim.bounds.lengths import Lengths
from blinksim.collective import Collective, busbw_factor
from blinksim.results import Rate, Rates, Result, keyed
from blinksim.topology.elements import BRANCHING
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps


@dataclass(frozen=True)
class Bound(Rate):
    """An upper bound: no schedule that meets `assumes` has a higher algbw than `rate`.

    Attributes
    ----------
    scope : str
        cut, partition, tree-optimum, reduce-scatter + allgather, or lengths.
    rate : Fraction
        Bytes/s, exact.
    certificate : Certificate
        What proves it; `check` needs no solver.
    assumes : str
        Which schedules it holds for.
    exact : bool
        Some schedule that meets the assumptions attains it; otherwise it may not be attained.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.bound("dgx1-v100", "broadcast")
    >>> found.headline.scope, found.headline.kind
    ('cut', 'exact')
    """

    scope: str
    rate: Fraction
    certificate: Certificate
    assumes: str
    exact: bool

    @classmethod
    def of(cls, certificate: Certificate, collective: Collective, exact: bool = False) -> Bound:
        """The bound that `certificate` proves, with the scope, rate and assumptions that follow from it."""
        assumes = of_blocks(assumed_by(certificate, collective), collective)
        return cls(scope_of(certificate, collective), certificate.rate, certificate, assumes, exact)

    @property
    def grants(self) -> tuple[str, ...]:
        """Functions granted to switches beyond forwarding, such as ``("multicast", "reduce")``."""
        return getattr(self.certificate, "grants", ())

    @property
    def switches_do(self) -> str:
        """What switches do where it holds: ``add``, ``multicast`` or ``forward``."""
        adds = {"reduce", "reduce_into_reader"} & {*self.grants}
        return "add" if adds else "multicast" if self.grants else "forward"

    @property
    def kind(self) -> str:
        """``exact`` or ``upper``."""
        return "exact" if self.exact else "upper"

    def check(self, topology: Topology, collective: Collective, shares: Sequence[int] = ()) -> list[str]:
        """Reasons why the certificate does not prove the rate, in this scope; empty if it does.

        shares: weights of the ranks' blocks, empty where they are equal.
        """
        reasons = self.certificate.check(topology, collective, self.rate, shares)
        due = Bound.of(self.certificate, collective)
        said = ("scope", self.scope, due.scope), ("assumes", self.assumes, due.assumes)
        return reasons + [f"{what} is {mine!r}, and must be {must!r}" for what, mine, must in said if mine != must]

    def row(self, topology: Topology) -> dict[str, Any]:
        """The bound as a row of a table."""
        return keyed(self, "@Bound.row", words=self.certificate.words(topology))

    def to_dict(self, topology: Topology, collective: Collective, shares: Sequence[int] = ()) -> dict[str, Any]:
        """The bound as JSON; the certificate is checked on the way."""
        checked = not self.check(topology, collective, shares)
        return {**self.row(topology), "certificate": self.certificate.to_dict(), "checked": checked}


@dataclass(frozen=True, repr=False)
class BoundResult(Rates, Result):
    """All bounds of one collective on one selected topology.

    What nothing exceeds is `most`, in bytes/s, of the bound `leading`, where switches multicast and add
    as they can. The command line says it first. The headline is the tightest bound where switches only
    forward; `rate`, `busbw` and `scope` are its own, and switches that add may exceed its rate.

    Attributes
    ----------
    topology : Topology
        The part that takes part.
    collective : Collective
        What is bounded.
    bounds : tuple of Bound
        Each with ``rate`` (bytes/s, exact), ``scope``, ``assumes`` and ``certificate``, the headline first.
    shares : tuple of int
        Weights of the ranks' parts, empty where they are equal.
    even_granted : Bound, optional
        Proof that the rate is no higher where switches multicast and reduce as they can.
    searched : bool
        False where sums alone gave it, as a search would take minutes: a search might find a tighter bound.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.bound("dgx1-v100", "allgather")
    >>> found.scope, found.trees_per_root
    ('cut', 6)
    >>> adding = bs.bound("hgx-h100", "allreduce")
    >>> float(adding.rate / 10**9), float(adding.most / 10**9), adding.leading.switches_do
    (257.14285714285717, 400.0, 'add')
    >>> found.headline.check(found.topology, found.collective)  # reasons against the certificate
    []
    """

    topology: Topology
    collective: Collective
    bounds: tuple[Bound, ...]
    shares: tuple[int, ...] = ()
    even_granted: Bound | None = None
    searched: bool = True

    def __repr__(self) -> str:
        shown = ((f" where switches {x.switches_do}" if x.grants else "", x) for x in self.bounds)
        every = ", ".join(f"{x.scope} {exact_GBps(x.rate)}{where}" for where, x in shown)
        words = self.leading.certificate.words(self.topology)
        named = f"most {exact_GBps(self.most)}, rate {exact_GBps(self.rate)}"
        return f"<BoundResult {self.sentence()}\n  {words}\n  GB/s: {named}; {every}>"

    def rows(self) -> list[dict[str, Any]]:
        """One row per bound."""
        return [entry.row(self.topology) for entry in self.bounds]

    @property
    def headline(self) -> Bound:
        return self.bounds[0]

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates of all bounds, tightest first."""
        return tuple(entry.certificate for entry in self.bounds)

    @property
    def certificate(self) -> Certificate:
        """The certificate of the tightest bound."""
        return self.headline.certificate

    @property
    def in_network(self) -> Bound | None:
        """The bound with all that switches can multicast and reduce, if it is higher than the headline."""
        return next((entry for entry in self.bounds if entry.grants), None)

    def holding(self, abilities: Collection[str]) -> Bound:
        """The tightest bound for schedules that use these functions of switches; the headline for none.

        abilities: as in `grants`.
        """
        if not abilities:
            return self.headline
        every = (*self.bounds, *([self.even_granted] if self.even_granted else []))
        granted = [entry for entry in every if set(abilities) <= set(entry.grants) or entry.assumes == NOTHING]
        return min(granted, key=lambda entry: (entry.rate, not entry.grants), default=self.headline)

    @property
    def leading(self) -> Bound:
        """The bound where switches do what they can: what the sentence and the command line say first."""
        return self.in_network or self.headline

    @property
    def rate(self) -> Fraction:
        """algbw of the headline in bytes/s, where switches only forward; `most` may be higher."""
        return self.headline.rate

    algbw = rate

    @property
    def most(self) -> Fraction:
        """algbw of `leading` in bytes/s, which nothing exceeds: switches do what they can."""
        return self.leading.rate

    @property
    def busbw(self) -> Fraction:
        return self.rate * busbw_factor(self.collective.name, self.topology.ranks)

    @property
    def scope(self) -> str:
        return self.headline.scope

    @property
    def trees_per_root(self) -> int | None:
        """The fewest equal trees that every root needs to attain an allgather's or a reduce-scatter's cut bound.

        None for other collectives, and for a bound that may not be attained. With 1/x = p/q in lowest terms,
        x the rate of one shard, it is q / gcd(q, all bandwidths) (ForestColl, section 4).
        """
        if self.collective.name not in ("allgather", "reducescatter") or not self.headline.exact:
            return None
        rates = {link.bandwidth for link in self.topology.links}
        unit = Fraction(gcd(*(r.numerator for r in rates)), lcm(*(r.denominator for r in rates)))
        return int((self.rate / self.topology.ranks / unit).numerator)

    def scoped(self, scope: str) -> Bound | None:
        """The bound of the given scope, if there is one."""
        return next((entry for entry in self.bounds if entry.scope == scope), None)

    def time(self, size: int) -> float:
        """The least time for `size` bytes in seconds, where switches only forward."""
        return float(size / self.rate)

    def sentence(self) -> str:
        """The answer in one line."""
        best = self.leading
        forwarding = f"; if they only forward, {exact_GBps(self.rate)}"
        switches = f", switches {best.switches_do}{forwarding}" if best.grants else ""
        most = f"{exact_GBps(best.rate)} GB/s algbw ({best.scope}{switches})"
        return f"{self.collective} on {self.topology.title}: at most {most}"

    def to_dict(self) -> dict[str, Any]:
        """JSON with the keys of the command line: those of the headline, then all bounds under ``bounds``."""
        bounds = [entry.to_dict(self.topology, self.collective, self.shares) for entry in self.bounds]
        root, traffic = self.collective.root if self.collective.rooted else None, self.collective.traffic
        asked = {"root": root, "shares": self.shares or None, "traffic": traffic and traffic.lines()}
        return keyed(self, "@BoundResult", **asked, checked=bounds[0]["checked"], bounds=bounds)


NOTHING = "nothing, it holds for every schedule"
COPIED = f"{NOTHING}, with copies and sums of tokens at any GPU and switch"
UNSHARED = "the blocks of the matrix share no data"
NO_CODING = "ordinary sends and sums, no coding"
# Nobody codes here.
KEPT_BY_ALL = ("", NOTHING, NO_CODING, COPIED)
ONLY_TREES = "switches and other devices without a rank only forward, and every element moves along trees"
TWO_PHASES = "every rank reduces an equal shard, then all shards are gathered"
TREES_BRANCH = "every element moves along trees that may branch there"
RELAYS_BRANCH = f"switches only forward, and relays do all that they can; {TREES_BRANCH}"
# What NVLink switches do for NVLS.
NVLS_GRANTS = ("multicast", "reduce_into_reader")
REDUCING_SWITCHES = "switches may multicast and reduce (NVLS)"
EVERY_LINK = "links of every class carry data"
BY_SUMS = "a quick bound; a search, which takes long here, might find a tighter one"


# Scopes from the one that assumes the least to the one that assumes the most.
SCOPES = ("cut", "partition", "lengths", "tree-optimum", "reduce-scatter + allgather")


def scope_of(certificate: Certificate, collective: Collective) -> str:
    """What the bound of a certificate is called: one of `SCOPES`."""
    if isinstance(certificate, Phases):
        return "reduce-scatter + allgather"
    if isinstance(certificate, Lengths) and not collective.personalized:
        return "tree-optimum"
    return certificate.kind


def assumed_by(certificate: Certificate, collective: Collective) -> str:
    """What a certificate's bound assumes besides the machine."""
    if isinstance(certificate, Phases):
        phases = (assumed_by(proof, Collective(name)) for name, proof in certificate.phases)
        return "; ".join(dict.fromkeys((TWO_PHASES, *(assumed for assumed in phases if assumed != NOTHING))))
    if isinstance(certificate, Partition) and collective.name == "allreduce":
        return NO_CODING
    if isinstance(certificate, Lengths):
        if certificate.grants:
            return f"{granted_to_switches(certificate.grants)}; {TREES_BRANCH}"
        if not collective.personalized:
            return RELAYS_BRANCH if certificate.relays else ONLY_TREES
        # Network coding can beat all flows between several pairs (not from one source or to one sink): the
        # butterfly of Ahlswede, Cai, Li and Yeung (2000), with two pairs.
        return NO_CODING if collective.exchanges else NOTHING
    return NOTHING


def of_blocks(assumes: str, collective: Collective) -> str:
    """`assumes`, and what ranks have: blocks of a matrix, or tokens that are copied and summed."""
    if collective.routing is not None and assumes == NOTHING:
        return COPIED
    return assumes if collective.traffic is None else granting(assumes, UNSHARED)


def granted_to_switches(grants: Sequence[str]) -> str:
    """What a certificate lets switches do, in words.

    >>> granted_to_switches(NVLS_GRANTS) == REDUCING_SWITCHES
    True
    >>> granted_to_switches(tuple(BRANCHING))
    'switches may multicast, reduce in flight and reduce (NVLS)'
    """
    return f"switches may {' and '.join(', '.join(BRANCHING[grant] for grant in grants).rsplit(', ', 1))}"


def with_reduction(topology: Topology) -> Topology:
    """The machine where the switches inside nodes multicast and reduce into readers, as NVLink switches do for NVLS.

    One that reduces in flight, as its file says, keeps what it can.
    """
    switches = [d for d in topology.devices if d.kind == "switch" and "reduce" not in d.can]
    lacking = {d.name for d in switches if not d.can.issuperset(NVLS_GRANTS)}
    devices = (replace(d, can=d.can | {*NVLS_GRANTS}) if d.name in lacking else d for d in topology.devices)
    return replace(topology, devices=tuple(devices)) if lacking else topology


def granting(assumes: str, *granted: str) -> str:
    """`assumes` for a bound that also lets the machine do what is `granted`."""
    for grant in granted:
        # A certificate may name by itself what it grants.
        assumes = assumes.removeprefix(f"{grant}; ")
    return "; ".join((*granted, *([] if assumes == NOTHING else [assumes]))) or NOTHING
