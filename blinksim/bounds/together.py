"""What several groups can do at once on links that they share, with certificates for all of them.

Give every link a length. A byte of each group's size needs at least a certain length, whatever the schedule
(`blinksim.bounds.lengths`); all groups together need the sum, and the machine offers capacity times length
per second. Linear-programming duality, as for one group: any lengths give a valid bound, which is checked
without a solver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from blinksim.bounds.bound_result import ONLY_TREES, RELAYS_BRANCH, Bound
from blinksim.bounds.certificates import listed
from blinksim.bounds.lengths import PROVE_NOTHING, Lengths, checked_lengths, least_use, more_than_forwards, price
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.results import Result, count, keyed, table
from blinksim.schedule.loads import rate, resource_loads, resources
from blinksim.schedule.model import Schedule, Tenant, rebase, side_by_side
from blinksim.schedule.verify import verify
from blinksim.topology.elements import titled
from blinksim.topology.graph import Topology
from blinksim.units import exact_algbw, exact_GBps, format_rate, format_size_about, format_time, in_GBps

# Ranks from which on least trees through relays are sought among few sets of these.
MANY = 8
# Rows of groups in a short answer, and groups up to which each has a row of its own.
_FEW = 4


@dataclass(frozen=True)
class Group:
    """A collective on a part of a machine, beside those of other groups.

    part: its members, and the relays that it may use. size: bytes, None where no group has one. alone, rate:
    algbw in bytes/s that its trees attain if the other groups do nothing, and beside them. schedule: of these
    trees.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.together("dgx1-v100", ["0-3", "4-7"]).groups[0].share
    1.0
    """

    part: Topology
    collective: Collective
    size: int | None = None
    alone: Fraction = Fraction(0)
    rate: Fraction = Fraction(0)
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.part.ranks < 2:
            raise InputError(f"group={','.join(self.part.members)}: a collective needs two GPUs or more")
        if self.collective.personalized:
            raise InputError(f"groups have collectives that trees carry, not {self.collective.name}")

    @property
    def weight(self) -> Fraction:
        """What its algbw counts: groups whose rates are in this ratio end together."""
        return Fraction(self.size or 1)

    def distance(self, lengths: Mapping[str, Fraction]) -> Fraction:
        """The length that a byte of its size needs at least, of those lengths that are in its part."""
        names = {link.name for link in self.part.links}
        names |= {f"{device.name} {way}" for device in self.part.devices for way in ("in", "out")}
        return least_use(self.part, self.collective, lengths) if names & lengths.keys() else Fraction(0)

    @property
    def work(self) -> int:
        """About how many additions its least trees through relays take, for given lengths; 0 without any."""
        gpus, ranks = self.part.ranks + len(self.part.relays), min(self.part.ranks, MANY)
        return 3**ranks * gpus + 2**ranks * gpus**2 if self.part.relays else 0

    def said(self, rate: Fraction) -> str:
        """An algbw in GB/s, and how long its size takes then."""
        return f"{in_GBps(rate):.4g}{f', {format_time(float(self.size / rate))}' if self.size else ''}"

    @property
    def share(self) -> float:
        """Its rate beside the others, as a part of its rate alone."""
        return float(self.rate / self.alone)


# The algbw of groups that keep theirs, None for the others.
Held = Sequence[Fraction | None]


@dataclass(frozen=True)
class SharedLengths:
    """Lengths by link name, as in `Lengths`; others are 0.

    price: capacity times length in bytes/s. distances: the length that a byte of each group needs at least.
    held: the algbw of groups that keep it, bytes/s. rate: bytes/s that another group of weight 1 has at most
    where all of these have theirs at once.
    """

    lengths: tuple[tuple[str, Fraction], ...]
    price: Fraction
    distances: tuple[Fraction, ...]
    held: tuple[Fraction | None, ...]
    rate: Fraction
    assumes: str

    @classmethod
    def of(
        cls, machine: Topology, groups: Sequence[Group], lengths: Mapping[str, Fraction], held: Held
    ) -> SharedLengths:
        """Theorem: the common rate is at most what held groups leave of `price` / sum of weights * distances.

        At the common rate x a group of weight w moves w x bytes/s of its size; each uses its distance of
        length at least. A held group moves its own rate. Per second the machine offers `price` of length.
        Raises `InputError` for lengths that prove nothing.
        """
        kept = checked_lengths(machine, lengths)
        distances, offered = [group.distance(kept) for group in groups], price(machine, kept)
        used = zip(groups, distances, held, strict=True)
        uses = [(group.weight * far if rate is None else 0, (rate or 0) * far) for group, far, rate in used]
        free, taken = (sum(each, start=Fraction(0)) for each in zip(*uses, strict=True))
        if not free:
            raise InputError(PROVE_NOTHING)
        assumes = RELAYS_BRANCH if any(more_than_forwards(group.part) for group in groups) else ONLY_TREES
        rate, links = (offered - taken) / free, tuple(sorted(kept.items()))
        return cls(links, offered, tuple(distances), tuple(held), rate, assumes)

    def check(self, machine: Topology, groups: Sequence[Group]) -> list[str]:
        """Reasons why this does not prove the rate; empty if it does."""
        try:
            fresh = SharedLengths.of(machine, groups, dict(self.lengths), self.held)
        except InputError as error:
            return [str(error)]
        return [] if fresh == self else ["the sums are not those of these lengths"]

    def words(self, groups: Sequence[Group]) -> str:
        """The proof in one sentence."""
        used = [(group, far) for group, far in zip(groups, self.distances, strict=True) if far]
        needed = " + ".join(str(far) for _, far in used) if len(used) < 5 else str(sum(far for _, far in used))
        who = listed(used[0][0].part.members) if len(used) == 1 else f"each of {len(used)} groups"
        many = len(self.lengths)
        links = f"{many} links carry {format_rate(self.price)} together" if many > 1 else self.lengths[0][0]
        carries = "" if many > 1 else f" carries {format_rate(self.price)}"
        times = "once" if needed == "1" else f"{needed} times"
        uses = f"uses {'them' if many > 1 else 'it'} {times}"
        return f"weighted by the certificate, {links}{carries}, and a byte of {who} {uses}"

    def to_dict(self) -> dict[str, Any]:
        """JSON: lengths and distances as exact fractions, rates in GB/s."""
        lengths = {name: str(length) for name, length in self.lengths}
        distances = [str(distance) for distance in self.distances]
        held = [None if rate is None else exact_GBps(rate) for rate in self.held]
        return keyed(self, "@SharedLengths", lengths=lengths, distances=distances, held_exact=held)


@dataclass(frozen=True)
class JointLengths(Lengths):
    """Lengths as proof of what groups have in all, each its share of every byte (`Schedule.groups`)."""

    groups: tuple[Tenant, ...] = ()

    def again(self, topology: Topology, collective: Collective, shares: Sequence[int] = ()) -> JointLengths:
        """Theorem: all rates add up to at most `price` / sum of shares * distances; as of `SharedLengths`.

        collective, shares: those of the groups count. Raises `InputError` for lengths that prove nothing.
        """
        kept, far, relays = checked_lengths(topology, dict(self.lengths)), Fraction(0), set[str]()
        for one in self.groups:
            part = topology.select(one.members, one.relays, relays_reduce=one.relays_reduce, connected=False)
            far += one.share * Group(part, one.collective).distance(kept)
            relays |= {*more_than_forwards(part)}
        if not far:
            raise InputError(PROVE_NOTHING)
        links, offered = tuple(sorted(kept.items())), price(topology, kept)
        return JointLengths(links, offered, far, relays=tuple(sorted(relays)), groups=self.groups)


@dataclass(frozen=True, repr=False)
class Together(Result):
    """What several groups can do at once on a machine: max-min fair, in the ratio of their sizes if known.

    Attributes
    ----------
    machine : Topology
        The links that they share.
    groups : tuple of Group
        Each with its ``part``, ``collective`` and ``size``, its algbw ``alone`` and its ``rate`` beside the
        others (bytes/s, exact), and its ``schedule``.
    proofs : tuple of SharedLengths
        Why no group has more unless one with less loses, the least rate first; `check` needs no solver.

    Examples
    --------
    >>> import blinksim as bs
    >>> shared = bs.Question("full:8@50GB/s", relays="others", relays_reduce=True)
    >>> found = bs.together(shared, ["0,1", "2,3", "4,5", "6,7"])
    >>> [group.rate / 10**9 for group in found.groups], found.exact
    ([Fraction(200, 1), Fraction(200, 1), Fraction(200, 1), Fraction(200, 1)], True)
    """

    machine: Topology
    groups: tuple[Group, ...]
    proofs: tuple[SharedLengths, ...]

    @property
    def amounts(self) -> tuple[Fraction, ...]:
        """What each group moves until all are done: its size, or as much as its rate beside that of others."""
        return tuple(Fraction(group.size or group.rate) for group in self.groups)

    @property
    def schedule(self) -> Schedule:
        """The schedules of all side by side, with a bound, for `simulate` of the sum of `amounts`."""
        found, whole = [group.schedule for group in self.groups if group.schedule], sum(self.amounts)
        size = int(whole) if all(group.size for group in self.groups) else None
        joint = side_by_side(found, [amount / whole for amount in self.amounts], self.machine, size)
        proof = JointLengths(self.proofs[0].lengths, Fraction(0), Fraction(0), groups=joint.groups)
        with suppress(BlinksimError):
            bound = Bound.of(proof.again(self.machine, joint.collective), joint.collective)
            gap, told = 1 - (rate(joint) or 0) / bound.rate, bound.to_dict(self.machine, joint.collective)
            return joint.with_bound(told | {"kind": "upper" if gap else "exact", "gap_exact": str(gap)})
        return joint

    @property
    def exact(self) -> bool:
        """True if no group can have more unless one with less loses."""
        return {proof.rate for proof in self.proofs} == {group.rate / group.weight for group in self.groups}

    def check(self) -> list[str]:
        """Reasons why the certificates do not prove what they claim; empty if they do."""
        return [reason for proof in self.proofs for reason in proof.check(self.machine, self.groups)]

    def faults(self) -> list[str]:
        """Why the schedules do not give all groups their rates at once; empty if they do.

        Each is verified by itself on the links of its group, and nothing may carry more than it can of all.
        """
        shared, faults = resources(self.machine), list[str]()
        carried = [Fraction(0)] * len(shared.rate)
        for group in self.groups:
            who, schedule = listed(group.part.members), group.schedule
            if schedule is None or (schedule.topology, schedule.collective) != (group.part, group.collective):
                faults.append(f"{who}: there is no schedule of {group.collective} on the links of this group")
                continue
            faults += [f"{who}: {reason}" for reason in verify(schedule).reasons]
            placed = rebase(schedule, self.machine)
            if isinstance(placed, tuple):
                faults += placed
            elif not faults:
                loads = resource_loads(placed, shared)
                carried = [sum_ + load * group.rate for sum_, load in zip(carried, loads, strict=True)]
        # Shares without a short common denominator are rounded, each by less than 2^-28 of their sum.
        slack = sum(one.rate * one.schedule.chunks / 2**28 for one in self.groups if one.schedule)
        over = [i for i, most in enumerate(shared.rate) if not faults and carried[i] > most + slack]
        return faults + [f"{shared.name(i)} must carry {format_rate(carried[i])} of all groups" for i in over]

    def full_links(self, number: int) -> tuple[list[str], list[int]]:
        """Links that allow this group no more, by a certificate, and the other groups that it counts there."""
        group = self.groups[number]
        for proof in self.proofs:
            if proof.distances[number] and proof.rate * group.weight == group.rate:
                others = [other for other, far in enumerate(proof.distances) if far and other != number]
                return [name for name, _ in proof.lengths], others
        return [], []

    def rows(self) -> list[dict[str, Any]]:
        """One row per group; beside: the numbers of the groups that `full_links` counts too."""
        rows = list[dict[str, Any]]()
        for number, group in enumerate(self.groups):
            links, beside = self.full_links(number)
            alone, at_once = (group.size and float(group.size / rate) for rate in (group.alone, group.rate))
            more = {"full_links": links, "beside": beside, "alone_s": alone, "at_once_s": at_once}
            rows.append(keyed(group, "@Together.rows", **more))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        first, kind = self.proofs[0], "exact" if self.exact else "upper"
        gap = 1 - min(group.rate / group.weight for group in self.groups) / first.rate
        said: dict[str, Any] = {"kind": kind, "checked": not self.check(), "gap_exact": str(gap)}
        least_s = float(1 / first.rate) if self.groups[0].size else None
        said |= {"assumes": first.assumes, "least_time_s": least_s}
        said["certificates"] = [proof.to_dict() for proof in self.proofs]
        return super().to_dict() | keyed(self, "@Together", **said)

    def sentence(self) -> str:
        """The answer in one line."""
        reach = "which schedules attain" if self.exact else "an upper bound that may not be attained"
        what = f"{count(len(self.groups), 'group')} on {titled(self.machine.name, self.machine.nodes)} at once"
        rate, most = self.proofs[0].rate, max(group.rate for group in self.groups)
        if self.groups[0].size:
            reach = reach.replace("an upper bound", "a floor")
            return f"{what}: all done in {format_time(float(1 / rate))} at the earliest, {reach}"
        more = f", up to {format_rate(most)} where that slows no other" if most > rate else ""
        return f"{what}: each at most {exact_algbw(rate)}{more}, {reach}"

    def text(self) -> str:
        """The sentence, a row for each sort of group, and what is assumed."""
        assumes = f"  it assumes: {self.proofs[0].assumes}"
        return "\n".join((self.sentence(), self._table(_FEW), f"  {self._rates}", assumes))

    def why(self) -> str:
        """The sentence, its proof, and a row for each sort of group."""
        first, used = self.proofs[0], {name for group in self.groups for name in group.part.relays}
        lines = [self.sentence(), f"  {first.words(self.groups)}", f"  it assumes: {first.assumes}", ""]
        lines += [self._table(len(self.groups)), ""]
        relays = [device.name for device in self.machine.devices if device.name in used]
        lines += [f"  relays {listed(relays)}"] if relays else []
        return "\n".join([*lines, f"  {self._rates}"])

    @property
    def _rates(self) -> str:
        return f"links {', '.join(self.machine.link_classes)} at {self.machine.rates} rates"

    def _table(self, most: int) -> str:
        """A row for each group; of many, for each of the first sorts: the same rates, and as many others beside."""
        alike = dict[object, list[int]]()
        for number, group in enumerate(self.groups):
            sort = group.collective, group.size, group.alone, group.rate, len(self.full_links(number)[1])
            alike.setdefault(sort if len(self.groups) > _FEW else number, []).append(number)
        cells = list[tuple[str, ...]]()
        for first, *others in [*alike.values()][:most]:
            group, (links, beside) = self.groups[first], self.full_links(first)
            who = listed(group.part.members) + (f" and {len(others)} alike" if others else "")
            what = f"{group.collective}{f' of {format_size_about(group.size)}' if group.size else ''}"
            full = ", ".join(links) if len(links) < 3 else f"{links[0]} and {len(links) - 1} more"
            shared = "".join(listed(self.groups[number].part.members) for number in beside)
            shared = count(len(beside), "other") if len(beside) > 1 else shared
            rates = map(group.said, (group.alone, group.rate))
            cells.append((who, what, *rates, f"{100 * group.share:.0f} %", full, shared))
        header = ("group", "collective", "alone, GB/s", "at once, GB/s", "of it", "full links", "shared with")
        more = f"\n  … {len(alike) - most} more" if len(alike) > most else ""
        return table(header, cells, left=(0, 1, 5, 6)) + more
