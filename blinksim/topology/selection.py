"""Lists of devices as people write them: ``0,1,4``, ``0-3``, ``gpu0,gpu3``, ``n[0-3].gpu0``, or a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from numbers import Integral
from typing import TYPE_CHECKING, Any

from blinksim.errors import InputError, unknown
from blinksim.textio.name_ranges import expand, has_range
from blinksim.topology.parts import regarded

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.topology.graph import Topology

Names = str | Iterable[int | str]
"""Devices as text such as ``0-3`` or ``gpu0,gpu3``, or as numbers and names."""

NONE, IDLE, ALL = "none", "idle", "all"
_DIGITS = 9


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _number(text: str) -> int:
    """The value of ASCII digits; beyond nine digits any number is larger than every machine."""
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= _DIGITS else 10**_DIGITS


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
    Raises `InputError` for a number that no GPU has, a range that runs backwards or is cut short, an empty name and
    anything but numbers and names; names are not looked up.
    """
    if isinstance(names, str):
        return tuple(name for part in names.split(",") for name in _part(part.strip(), names, holders, argument))
    known = frozenset(holders)
    chosen: list[str] = []
    for name in _several(names, argument):
        if isinstance(name, str):
            chosen += [name] if name in known else _part(name.strip(), name, holders, argument)
        elif isinstance(name, Integral) and not isinstance(name, bool) and name >= 0:
            chosen += _part(str(int(name)), str(name), holders, argument)
        else:
            raise InputError(f"{argument}={name!r}: give numbers and names of GPUs, such as [0, 1, 'gpu4']")
    return tuple(chosen)


def _part(part: str, text: str, holders: Sequence[str], argument: str) -> Sequence[str]:
    """What one entry of a list names: a number, a range or a name."""
    first, dash, last = part.partition("-")
    if _is_number(first) and (not dash or _is_number(last)):
        low, high = _number(first), _number(last or first)
        if high < low:
            raise InputError(f"{argument}={part} runs backwards; write {high}-{low}")
        if high >= len(holders):
            raise InputError(f"{argument}={part}: the machine has GPUs 0 to {len(holders) - 1}")
        return holders[low : high + 1]
    if _is_number(first) and dash and not last:
        raise InputError(f"{argument}={part}: the range has no end; write it like {first}-{len(holders) - 1}")
    if " " in part:
        raise InputError(f"{argument}={text!r}: write commas between the names, like {','.join(part.split())}")
    if not part:
        raise InputError(f"{argument}={text!r}: a name is missing between the commas; write it like 0,1,4")
    return expand(part) if has_range(part) and part not in holders else (part,)


def relay_names(
    relays: Names, members: Sequence[str], holders: Sequence[str], numbered: Sequence[str] | None = None
) -> tuple[str, ...]:
    """The devices that `relays` names: ``none``, ``idle`` for every holder that is no member, or a list.

    numbered: the devices that numbers count, where they are not `holders` (before an edit, say). Raises as `listed`.
    """
    if not isinstance(relays, str):
        return listed(relays, numbered or holders, "relays")
    if relays == NONE:
        return ()
    if relays == IDLE:
        taken = frozenset(members)
        return tuple(name for name in holders if name not in taken)
    near = get_close_matches(relays.lower(), (IDLE, NONE), n=1, cutoff=0.7)
    if near:
        raise InputError(f"relays={relays}: did you mean {near[0]}?")
    return listed(relays, numbered or holders, "relays")


def class_names(links: str | Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """The link classes that `links` names: ``all``, or some of `known` in the order given.

    Raises `InputError` if there is none; names are not looked up.
    """
    given = tuple(dict.fromkeys(kind.strip() for kind in (links.split(",") if isinstance(links, str) else links)))
    named = tuple(kind for kind in given if kind)
    if not named:
        raise InputError(f"links= names no link class: name at least one of {', '.join(known)}, or {ALL}")
    return tuple(known) if named == (ALL,) else named


def select(
    topology: Topology,
    members: Names | None,
    relays: Names | None,
    links: str | Iterable[str] | None,
    relays_reduce: bool,
    connected: bool,
    collective: Collective | None,
) -> Topology:
    """As `Topology.select`."""
    holders = [device.name for device in topology.devices if device.holds]
    chosen = topology.members if members is None else listed(members, holders, "members")
    if not chosen:
        raise InputError("no members: name at least one GPU")
    wanted = [name for name in topology.relays if name not in chosen] if relays is None else relays
    helpers = relay_names(wanted, chosen, holders)
    classes = topology.default_links() if links is None else class_names(links, topology.link_classes)
    for kind in classes:
        if kind not in topology.link_classes:
            raise unknown(f"link class of {topology.name}:", kind, topology.link_classes)
    keep = {*chosen, *helpers}
    for name in helpers if members is None else (*chosen, *helpers):
        topology.device(name)
    can = frozenset(("forward", "multicast", "reduce") if relays_reduce else ("forward",))
    # A switch named as a relay keeps its own abilities. The new topology refuses a member that is also a relay.
    turned = {name for name in helpers if topology.device(name).holds} - {*chosen}
    kept = [
        replace(device, can=can) if device.name in turned else device
        for device in topology.devices
        if not device.holds or device.name in keep
    ]
    roles: dict[str, Any] = {
        "members": chosen,
        "relays": helpers,
        "collective_links": classes,
        "inter_node_links": (),
    }
    if len(kept) == len(topology.devices) and not turned and {*classes} == {*topology.link_classes}:
        result = regarded(topology, **roles).pruned()
    else:
        names = {device.name for device in kept}
        among = (x for x in topology.links if x.kind in classes and x.src in names and x.dst in names)
        result = replace(
            topology, devices=tuple(kept), links=tuple(among), symmetries=topology.restricted(kept), **roles
        ).pruned()
    if connected:
        from blinksim.topology import connectivity

        connectivity.require_connected(result, topology, classes, collective)
    return result
