"""Several groups that share a machine: what all of them can do at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from warnings import warn

from blinksim import budget
from blinksim.algorithms.building.joint_trees import fair
from blinksim.bounds.together import Group, Together
from blinksim.collective import Collective
from blinksim.errors import InputError, OutdatedWarning
from blinksim.machines import MachineLike, Question, group_of
from blinksim.topology.selection import ALL, IDLE
from blinksim.units import size_of

# GPUs of a node that hold no rank of a group.
OTHERS = "others"
# For each of the additions of a least tree: 8 s for 350,000 (10 groups of 16 GPUs), 1 s for 180,000 (hypercube).
SECONDS_A_SUM = 25e-6


def together(
    machine: Question | MachineLike, groups: Iterable[str], collective: Collective | str = "allreduce"
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
    question = machine if isinstance(machine, Question) else Question(machine)
    if question.relays == ALL:
        warn("relays=all of groups is now relays=others", OutdatedWarning, stacklevel=2)
    elif question.relays == OTHERS:
        question = replace(question, relays=ALL)
    if question.members is not None or question.ranks_per_node is not None:
        raise InputError("groups name their members; leave members= and ranks_per_node= out")
    whole, fallback = question.whole(), Collective.of(collective)
    asked = [group_of(question, text, fallback) for text in groups]
    if len({size is None for _, size in asked}) != 1:
        raise InputError("groups: give one or more, and a size to all of them or to none")
    taken = {name for one, _ in asked for name in one.member_names(whole)}
    idle = [device.name for device in whole.devices if device.holds and device.name not in taken]
    found = list[Group]()
    for one, size in asked:
        if one.relays == IDLE:
            # Without idle GPUs nothing is asked of any.
            one = replace(one, relays=",".join(idle) or None, relays_reduce=one.relays_reduce and bool(idle))
        found.append(Group(one.part(whole), one.collective or fallback, None if size is None else size_of(size)))
    used = {name for group in found for name in (*group.part.members, *group.part.relays)}
    order = [device.name for device in whole.devices if device.name in used]
    shared = whole.select(order, links=found[0].part.default_links(), connected=False)
    seconds = SECONDS_A_SUM * sum(group.work for group in found)
    budget.check("the bound of these groups", shared, seconds, "name fewer GPUs as relays")
    return fair(shared, found)
