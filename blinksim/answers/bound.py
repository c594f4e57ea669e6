"""The best rate of a collective on a machine, what would change it, and the least time for a size."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from blinksim.answers.idle_gpus import IDLE_GPUS, idle_gpus
from blinksim.bounds import Bound, BoundResult, bound as bound_of, in_flight as in_flight_of
from blinksim.bounds.sensitivity import Change, LevelBound, level_bounds, link_changes, nic_gain
from blinksim.bounds.time.time_bound import TimeBound, all_times, least_time
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import InputError
from blinksim.machines import MachineLike, Question, as_topology
from blinksim.topology.graph import Topology
from blinksim.units import size_of

if TYPE_CHECKING:
    from fractions import Fraction

    from blinksim.schedule.model import Schedule


def bound(
    machine: MachineLike,
    collective: CollectiveLike = "allreduce",
    *,
    root: int | None = None,
    shares: tuple[int, ...] = (),
) -> BoundResult:
    """The best algorithm bandwidth of a collective, as an exact fraction with a certificate.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology. Of a whole machine the default members take
        part.
    collective : str or Collective
        Such as ``"allreduce"``.
    root : int, optional
        The root's rank, for the collectives that have one. Default: 0.
    shares : tuple of int, optional
        Weights of the ranks' parts where they are unequal (allgather, reducescatter, gather, scatter).

    Returns
    -------
    BoundResult
        Every bound with its scope, tightest first; `rate` in bytes/s, exact. The last one may grant what
        switches can do beyond forwarding (`BoundResult.in_network`).

    Raises
    ------
    InputError
        For fewer than two members, a root that is no rank, or shares that do not fit.
    InfeasibleError
        If the links do not connect the members.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.bound("dgx1-v100", "allreduce").rate / 10**9
    Fraction(600, 7)
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
    from blinksim.answers.verify import attained_in_network

    exact = attained_in_network(found.topology, found.collective, granted)
    return replace(found, bounds=(*found.bounds[:-1], replace(granted, exact=exact)))


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
    part = as_topology(machine).selected()
    return link_changes(part, Collective.of(collective, root), -1 if one_lane else None)


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
    from blinksim.schedule.loads import link_loads

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


def idle_lines(question: Question, part: Topology, wanted: Collective, before: Fraction) -> list[str]:
    """The line of `idle_gpus` with its label; none where there is nothing to say."""
    found = idle_gpus(question, part, wanted, before)
    return [] if found is None else [f"{IDLE_GPUS} {found.words()}"]
