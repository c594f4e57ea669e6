"""The best rate of a collective on a machine, what would change it, and the least time for a size.

Also what several groups can do at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from warnings import warn

from blinksim import budget
from blinksim.algorithms.registry import REGISTRY
from blinksim.bounds.bound_result import Bound, BoundResult
from blinksim.bounds.compute import bound as bound_of, in_flight as in_flight_of, keeps
from blinksim.bounds.sensitivity import Change, LevelBound, level_bounds, link_changes, nic_gain
from blinksim.bounds.time.time_bound import TimeBound, all_times, least_time
from blinksim.bounds.together import Group, Together
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import BlinksimError, InfeasibleError, InputError, OutdatedWarning
from blinksim.machines import MachineLike, Question, as_topology
from blinksim.schedule.loads import link_loads, rate
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Topology
from blinksim.topology.selection import ALL, IDLE
from blinksim.units import size_of

# GPUs of a node that hold no rank of a group.
OTHERS = "others"
# Ranks up to which schedules are built to see if one attains a bound.
_MOST_RANKS = 256
# Of 30 draws on five machines 29 have exact rates at this ratio of sizes, and the other lacks a part in 10^7; at ten
# times as much it is 22, at a hundred times 21, at a thousand times 16.
_MOST_RATIO = 10**6


def bound(
    machine: Question | MachineLike,
    collective: CollectiveLike = "allreduce",
    *,
    root: int | None = None,
    shares: tuple[int, ...] = (),
) -> BoundResult:
    """The best algorithm bandwidth of a collective, as an exact fraction with a certificate.

    Parameters
    ----------
    machine : str, path, Topology or Question
        A name of the catalogue, a machine file, a topology, or the part of a question. Of a whole
        machine the default members take part.
    collective : str or Collective
        Such as ``"allreduce"``.
    root : int, optional
        The root's rank, for the collectives that have one. Default: 0.
    shares : tuple of int, optional
        Weights of the ranks' parts where they are unequal (allgather, reducescatter, gather, scatter).

    Returns
    -------
    BoundResult
        Every bound with its scope, tightest first; `most`, in bytes/s, exact, is what nothing exceeds. It may
        grant what switches can do beyond forwarding, as the last bound does; `rate` is of forwarding only.

    Raises
    ------
    InputError
        For fewer than two members, a root that is no rank, or shares that do not fit.
    InfeasibleError
        If the links do not connect the members.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.bound("dgx1-v100", "allreduce").most / 10**9
    Fraction(600, 7)
    >>> adding = bs.bound("hgx-h100", "allreduce")  # NVLink switches add
    >>> float(adding.most / 10**9), round(float(adding.rate / 10**9), 1)
    (400.0, 257.1)
    """
    topology, wanted = as_topology(machine), Collective.of(collective, root)
    return _with_schedules(bound_of(topology, wanted, shares=shares, in_network=True))


def in_flight(found: BoundResult) -> Bound | None:
    """The bound if the machine's switches that reduce into readers reduced in flight; None if there are none."""
    other = in_flight_of(found)
    return None if other is None else _with_schedules(other).in_network


def _with_schedules(found: BoundResult) -> BoundResult:
    """The bounds, with the one that switches attain marked so if an algorithm of theirs does."""
    granted = found.in_network
    if granted is None or granted.exact or found.shares:
        return found
    exact = attained_in_network(found.topology, found.collective, granted)
    return replace(found, bounds=(*found.bounds[:-1], replace(granted, exact=exact)))


def attained_in_network(topology: Topology, collective: Collective, bound: Bound) -> bool:
    """True if a schedule whose switches do what a bound grants attains it: those that need such switches are built."""
    if topology.ranks > _MOST_RANKS:
        return False
    for entry in REGISTRY.values():
        if entry.in_network and entry.supports(collective.name):
            with suppress(BlinksimError):
                schedule = entry.build(topology, collective)
                if rate(schedule) == bound.rate and keeps(schedule, bound.assumes) and verify(schedule).ok:
                    return True
    return False


def losses(
    machine: MachineLike, collective: CollectiveLike = "allreduce", *, root: int | None = None, one_lane: bool = False
) -> list[Change]:
    """The bound after each single link loss, worst first; links of a class with the same loss are one row.

    Parameters
    ----------
    machine, collective, root
        As `bound` takes them.
    one_lane : bool
        Lose one lane of a link instead of the whole link.

    Returns
    -------
    list of Change
        What is lost, the pairs of devices that it may happen to, and the bound before and after.

    Raises
    ------
    InputError, InfeasibleError
        As `bound` does.

    Examples
    --------
    >>> import blinksim as bs
    >>> worst = bs.losses("dgx1-v100", "allreduce")[0]
    >>> round(float(worst.after) / 1e9, 2)
    78.57
    """
    return link_changes(as_topology(machine).selected(), Collective.of(collective, root), -1 if one_lane else None)


def gains(machine: MachineLike, collective: CollectiveLike = "allreduce", *, root: int | None = None) -> list[Change]:
    """The bound with one lane more on one link, or with one NIC more on every node, best first.

    Parameters
    ----------
    machine, collective, root
        As `bound` takes them.

    Returns
    -------
    list of Change
        What is added, the pairs of devices that it may be added to, and the bound before and after.

    Raises
    ------
    InputError, InfeasibleError
        As `bound` does.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.gains("dgx1-p100", "broadcast")[0].ratio >= 1
    True
    """
    part, wanted = as_topology(machine).selected(), Collective.of(collective, root)
    return [*filter(None, [nic_gain(part, wanted)]), *link_changes(part, wanted, 1)]


def levels(
    machine: MachineLike,
    collective: CollectiveLike = "allreduce",
    *,
    root: int | None = None,
    schedule: Schedule | None = None,
) -> list[LevelBound]:
    """Bounds of the GPUs, the nodes and the nodes below each level of switches, and which of them limits.

    Parameters
    ----------
    machine, collective, root
        As `bound` takes them.
    schedule : Schedule, optional
        One of this collective on this machine; the answer then says what it sends through every level.

    Returns
    -------
    list of LevelBound
        One for every level, the GPUs first, each with a certificate of its own.

    Raises
    ------
    InputError, InfeasibleError
        As `bound` does, and for a schedule of something else.

    Examples
    --------
    >>> import blinksim as bs
    >>> [(row.level, row.limits) for row in bs.levels("fattree:16x8@300GB/s,50GB/s,4:1", "alltoall")]
    [('GPU', False), ('node', False), ('4 nodes', True)]
    """
    found = bound(as_topology(machine).selected(), collective, root=root)
    if schedule is None:
        return level_bounds(found)
    if (schedule.topology, schedule.collective) != (found.topology, found.collective):
        wanted = f"{found.collective} on {found.topology.name} with the same members and links"
        raise InputError(f"the schedule is of {schedule.collective} on {schedule.topology.name}, not of {wanted}")
    return level_bounds(found, link_loads(schedule))


def time_bound(
    machine: MachineLike, collective: CollectiveLike, size: int | float | str, *, root: int | None = None
) -> TimeBound:
    """A lower bound on the time of a collective: latency, overhead and bandwidth together.

    It holds for messages over the links alone, as the models ``alpha-beta`` and ``simulate`` time them, at
    the rates that the machine was loaded with. Launches, protocols and measured constants are not in it.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology. Of a whole machine the default members take
        part.
    collective : str or Collective
        Such as ``"allreduce"``.
    size : int or str
        Bytes, or text such as ``"1MiB"``.
    root : int, optional
        The root's rank, for the collectives that have one. Default: 0.

    Returns
    -------
    TimeBound
        The latest time that a theorem gives, and those of the others, each with a certificate.

    Raises
    ------
    InputError
        For a size that is no whole number of bytes, fewer than two members, and a root that is no rank.
    InfeasibleError
        If the links do not connect the members.

    Examples
    --------
    >>> import blinksim as bs
    >>> print(bs.time_bound("dgx1-v100", "allreduce", "64MiB").sentence())
    allreduce of 64 MiB on dgx1-v100: at least 786.6 us on the links alone (straddling)
    """
    return from_rates(bound(machine, collective, root=root), size_of(size))


def from_rates(found: BoundResult, size: int) -> TimeBound:
    """The bounds on the time of `size` bytes, with the certificates of a bound on the rate at hand."""
    topology, collective = found.topology, found.collective
    proofs = [entry.certificate for entry in found.bounds if not entry.grants]
    # What every projection states, and beside it the theorems that say less.
    best = least_time(topology, collective, size)
    others = (entry for entry in all_times(topology, collective, size, proofs) if entry.kind != best.kind)
    able = least_time(topology, collective, size, found.in_network.grants) if found.in_network else None
    return TimeBound(topology, collective, size, (best, *(one for one in others if one.time <= best.time)), able)


def together(
    machine: Question | MachineLike,
    groups: Iterable[str],
    collective: Collective | str = "allreduce",
    size: int | float | str | None = None,
) -> Together:
    """What several groups can do at once.

    Parameters
    ----------
    machine : Question, str, path or Topology
        Which machine, at which rates and after which edits; a question also says what relays each group has:
        ``idle`` GPUs are in no group, ``others`` are those of other groups too.
    groups : iterable of str
        The members of each, with a collective and a size where wanted: ``"0,1"``, ``"0-3:allgather"`` or
        ``"0,1:allreduce:64MiB"``. With sizes all groups end at the same time, if none waits for another;
        without any, all have the same algbw.
    collective : str or Collective
        Of groups that name none.
    size : int or str, optional
        Bytes, or text such as ``"64MiB"``, of groups that name none.

    Returns
    -------
    Together
        The most that all have at once, max-min fair, with certificates; what each has alone; schedules.

    Raises
    ------
    InputError
        For groups that cannot be read, sizes of some groups only, and collectives without trees.
    InfeasibleError
        If the links do not connect the members of a group.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.together("dgx1-v100", ["0-3:allreduce:64MiB", "4-7:allreduce:64MiB"]).sentence()
    '2 groups on dgx1-v100 at once: all done in 894.8 us at the earliest, which schedules attain'
    """
    from blinksim.algorithms.building.joint_trees import fair

    question = machine if isinstance(machine, Question) else Question(machine)
    if question.relays == ALL:
        warn("relays=all of groups is now relays=others", OutdatedWarning, stacklevel=2)
    elif question.relays == OTHERS:
        question = replace(question, relays=ALL)
    if question.members is not None or question.ranks_per_node is not None:
        raise InputError("groups name their members; leave members= and ranks_per_node= out")
    whole, fallback = question.whole(), Collective.of(collective)
    asked = list[tuple[Question, int | float | str | None]]()
    for text in groups:
        members, *more = text.split(":")
        if not members or len(more) > 2:
            raise InputError(f"group={text}: write members, collective and size, like 0,1:allreduce:64MiB")
        run = Collective.of(more[0]) if more and more[0] else fallback
        asked.append((replace(question, members=members, collective=run), more[1] if more[1:] else size))
    if len({own is None for _, own in asked}) != 1:
        raise InputError("groups: give one or more, and a size to all of them or to none")
    taken = {name for one, _ in asked for name in one.member_names(whole)}
    idle = [name for name in whole.holders if name not in taken]
    found = list[Group]()
    for one, own in asked:
        if one.relays == IDLE:
            # Without idle GPUs nothing is asked of any.
            one = replace(one, relays=",".join(idle) or None, relays_reduce=one.relays_reduce and bool(idle))
        if len({whole.device(name).node for name in one.member_names(whole)}) == 1 and not (one.links or one.relays):
            # As on that node by itself: not out of it and back through its NICs.
            one = replace(one, links=",".join(whole.collective_links) or None)
        found.append(Group(one.part(whole), one.collective or fallback, None if own is None else size_of(own)))
    used = {name for group in found for name in (*group.part.members, *group.part.relays)}
    order = [device.name for device in whole.devices if device.name in used]
    kinds = {kind for group in found for kind in group.part.default_links()}
    shared = whole.select(order, links=[kind for kind in whole.link_classes if kind in kinds], connected=False)
    seconds = budget.SECONDS_A_SUM * sum(group.work for group in found)
    budget.check("the bound of these groups", shared, seconds, "name fewer GPUs as relays")
    together = fair(shared, found)
    sizes = [float(group.weight) for group in together.groups]
    if max(sizes) > _MOST_RATIO * min(sizes) and (not together.exact or together.faults()):
        most = f"one of these groups has {max(sizes) / min(sizes):.3g} times the size of another"
        raise InfeasibleError(f"{most}; beyond {_MOST_RATIO:,} some have no exact rates: bound them apart")
    return together
