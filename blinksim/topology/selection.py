"""Selection of the part of a machine that a collective runs on: lists of devices, and what connects them.

A list is ``0,1,4``, ``0-3``, ``gpu0,gpu3``, ``n[0-3].gpu0``, or a sequence. Two members belong together if
each can reach the other along directed links, so the groups are the strongly connected components.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import filterfalse
from numbers import Integral
from typing import TYPE_CHECKING

from blinksim.errors import InfeasibleError, InputError, nearest_names
from blinksim.graphs.connectivity import breadth_first, grouped, joined_labels
from blinksim.textio.name_ranges import expand

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.graphs.arrays import Ints
    from blinksim.topology.graph import Topology

Names = str | Iterable[int | str]
"""Devices as text such as ``0-3`` or ``gpu0,gpu3``, or as numbers and names."""

NONE, IDLE, ALL = "none", "idle", "all"
_RANGE = re.compile(r"([0-9]{1,4000})((-|:|–|\.\.\.?)([0-9]{0,4000}))?")


def names_text(names: Names) -> str:
    """Devices as one line of text, the form in which a question can be printed, compared and sent elsewhere."""
    return names if isinstance(names, str) else ",".join(str(name) for name in _several(names))


def _several(names: Iterable[int | str], argument: str = "members") -> Iterable[int | str]:
    if not isinstance(names, Iterable):
        raise InputError(f"{argument}={names!r}: give a list of numbers and names of GPUs, such as [0, 1, 'gpu4']")
    return names


def listed(names: Names, holders: Sequence[str], argument: str) -> tuple[str, ...]:
    """The devices that `names` lists, in its order.

    holders: the GPUs and tiles that numbers count. argument: what the caller calls the list, for messages.
    Raises `InputError` for a number that no GPU has, a range that runs backwards or is cut short, an empty
    name and anything but numbers and names; names are not looked up.
    """
    known, chosen = frozenset(holders), list[str]()
    for name in names.split(",") if isinstance(names, str) else _several(names, argument):
        if isinstance(name, str):
            part, text = name.strip(), names if isinstance(names, str) else name
            chosen += [part] if part in known else _part(part, text, holders, argument)
        elif isinstance(name, Integral) and not isinstance(name, bool) and name >= 0:
            chosen += _part(str(int(name)), str(name), holders, argument)
        else:
            raise InputError(f"{argument}={name!r}: give numbers and names of GPUs, such as [0, 1, 'gpu4']")
    return tuple(chosen)


def _part(part: str, text: str, holders: Sequence[str], argument: str) -> Sequence[str]:
    """What one entry of a list names that is no GPU's name: a number, a range, or names by a pattern."""
    span = _RANGE.fullmatch(part)
    if span and span[2] and (span[3] != "-" or not span[4]):
        raise InputError(f"{argument}={part} is no range; write it like {span[1]}-{span[4] or len(holders) - 1}")
    if span:
        low, high = int(span[1]), int(span[4] or span[1])
        if high < low:
            raise InputError(f"{argument}={part} runs backwards; write {high}-{low}")
        if high >= len(holders):
            raise InputError(f"{argument}={part}: the machine has GPUs 0 to {len(holders) - 1}")
        return holders[low : high + 1]
    if " " in part:
        raise InputError(f"{argument}={text!r}: write commas between the names, like {','.join(part.split())}")
    if not part:
        raise InputError(f"{argument}={text!r}: a name is missing between the commas; write it like 0,1,4")
    return expand(part)


def relay_names(
    relays: Names, members: Sequence[str], holders: Sequence[str], numbered: Sequence[str] | None = None
) -> tuple[str, ...]:
    """The devices that `relays` names: ``none``, ``idle`` or ``all`` for holders without a rank, or a list.

    numbered: the devices that numbers count, where they are not `holders` (before an edit, say). Raises as
    `listed`.
    """
    if not isinstance(relays, str):
        return listed(relays, numbered or holders, "relays")
    if relays == NONE:
        return ()
    if relays in (IDLE, ALL):
        return tuple(filterfalse(frozenset(members).__contains__, holders))
    if near := nearest_names(relays.lower(), (IDLE, NONE), 1, 0.7):
        raise InputError(f"relays={relays}: did you mean {near[0]}?")
    return listed(relays, numbered or holders, "relays")


def class_names(links: str | Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """The link classes that `links` names: ``all``, or some of `known` in the order given.

    Raises `InputError` if there is none; names are not looked up.
    """
    given = tuple(dict.fromkeys(kind.strip() for kind in (links.split(",") if isinstance(links, str) else links)))
    if not (named := tuple(kind for kind in given if kind)):
        raise InputError(f"links= names no link class: name at least one of {', '.join(known)}, or {ALL}")
    return tuple(known) if named == (ALL,) else named


def labels(topology: Topology) -> Ints:
    """For every device a number that it shares with the devices that it can reach, and they it."""
    if topology.link_columns.goes_back:
        return joined_labels(len(topology.devices), *topology.ends)
    from scipy.sparse import csgraph, csr_array

    count = len(topology.devices)
    links = csr_array(([1] * len(topology.links), topology.ends), shape=(count, count))
    return csgraph.connected_components(links, connection="strong")[1].astype(int)


def unserved(topology: Topology, collective: Collective | None = None) -> list[str]:
    """The members that some data cannot reach or leave, in rank order; empty if the collective is possible.

    From the root of a broadcast or scatter, links must lead to every member; to that of a reduce or gather,
    from every member; otherwise, and without a collective, between all members both ways.
    """
    places = topology.member_places
    if collective is not None:
        collective.check_ranks(topology.ranks)
    if collective is None or not collective.rooted or topology.link_columns.goes_back:
        label = labels(topology)[places]
        there = (label == label[collective.root if collective is not None and collective.rooted else 0]).tolist()
    else:
        tail, head = topology.ends[::-1] if collective.collects else topology.ends
        near = grouped(zip(tail.tolist(), head.tolist(), strict=True))
        found = breadth_first(int(places[collective.root]), lambda place: near.get(place, ()))
        there = [place in found for place in places.tolist()]
    return [name for name, reached in zip(topology.members, there, strict=True) if not reached]


def require_served(topology: Topology, collective: Collective) -> None:
    """Raises `InfeasibleError` if the links do not lead the data of `collective` to where it must be."""
    if lost := unserved(topology, collective):
        listed = " ".join(lost[:8]) + (" …" if len(lost) > 8 else "")
        raise InfeasibleError(f"{topology.name}: the links do not carry the data of {collective} to or from {listed}")


def neighbours(topology: Topology, *, inside: bool = False) -> dict[str, set[str]]:
    """The devices that links join with each device, either way; inside: those of the same node."""
    node = {device.name: device.node for device in topology.devices}
    ways = [(link.src, link.dst) for link in topology.links if not inside or node[link.src] == node[link.dst]]
    near = grouped([*ways, *((dst, src) for src, dst in ways)])
    return {name: {*near.get(name, ())} for name in node}


def require_connected(
    part: Topology, whole: Topology, classes: Sequence[str], collective: Collective | None = None
) -> None:
    """Raises `InfeasibleError` unless the members of `part`, selected from `whole` by link `classes`, are connected.

    With a collective, as far as it needs them to be (`unserved`).

    The message lists the groups of members and whatever would connect them: further link classes, or idle
    GPUs that forward.
    """
    if not unserved(part, collective):
        return
    groups = part.components()
    listed = [" ".join(group[:8]) + (" …" if len(group) > 8 else "") for group in groups]
    parts = " | ".join(listed[:8]) + (f" | … ({len(groups)} groups)" if len(groups) > 8 else "")

    def joins(links: Sequence[str], relays: Sequence[str]) -> bool:
        return not unserved(whole.select(part.members, relays, links, connected=False), collective)

    cures = []
    others = [kind for kind in whole.link_classes if kind not in classes]
    if enough := [kind for kind in others if joins([*classes, kind], part.relays)]:
        cures.append(f"links={','.join([*classes, enough[0]])}")
    elif others and joins(whole.link_classes, part.relays):
        cures.append(f"links=all (adds {', '.join(others)})")
    idle = [*filterfalse({*part.members}.__contains__, whole.holders)]
    if idle and joins(classes, idle):
        cures.append("relays=idle (forwards through GPUs that are not members)")
    if not cures and idle and others and joins(whole.link_classes, idle):
        cures.append("links=all together with relays=idle")
    cure = f"{' or '.join(cures)} would connect them" if cures else "no link or idle GPU does: take one part alone"
    used = f"{', '.join(classes)} {'does' if len(classes) == 1 else 'do'}" if classes else "an empty set of links does"
    raise InfeasibleError(f"{part.name}: {used} not connect the members: {parts}; {cure}")
