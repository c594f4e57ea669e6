"""What-if edits of a machine, each of which returns a new topology and leaves the given one unchanged.

Targets: a device (``gpu3``), both directions of a pair (``gpu0-gpu3``), one direction (``gpu0->gpu3``), or,
where whole classes make sense, a link class (``xe``). Names take the ranges of machine files: ``nic[0-3]``,
``gpu[0-3]-nvswitch``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import filterfalse
from typing import TYPE_CHECKING, Any, TypeVar

from blinksim.errors import InputError, blamed_on, each_of, in_runs, one_of, unknown
from blinksim.graphs.connectivity import grouped, summed
from blinksim.results import count
from blinksim.textio.name_ranges import RANGE, expand, paired
from blinksim.textio.text_files import read_words
from blinksim.topology.elements import ABILITIES, FABRIC, LINK_PROPERTIES, Fabric, Link, among, regarded, rewired
from blinksim.units import format_rate, parse_rate, parse_time, whole

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

LinkLike = TypeVar("LinkLike", Link, Fabric)
VERBS = read_words("edit")
# Of links between GPUs, and to their switches.
BETWEEN_GPUS = "nvlink", "xgmi"
OTHER_EDITS = "nvswitch can=forward,multicast; fabric shape=tree leaf_nodes=4 oversubscription=2"
IN_NETWORK = "in-network"
# The hyphen between two devices, not that of a range.
_HYPHEN = re.compile(r"-(?!>|[0-9]*\])")


def _devices(topology: Topology, text: str) -> list[str]:
    """The devices that a name or a range of names stands for."""
    return [topology.device(name).name for name in expand(text.strip())]


def _pairs(topology: Topology, target: str) -> tuple[bool, list[tuple[str, str]]] | None:
    """True if ``a-b`` means both ways, and the pairs that it or ``a->b`` names; None if `target` is no such text."""
    arrow = "->" in target
    parts = target.split("->") if arrow else _HYPHEN.split(target)
    if len(parts) != 2:
        return None
    first, second = (_devices(topology, part) for part in parts)
    for few, many in ((first, second), (second, first)):
        # Switches between the nodes stand beside the ports of each node: n[0-1].nic[0-7]-fabric[0-7].
        if len(few) > 1 and {topology.device(name).kind for name in few} == {FABRIC}:
            few *= max(1, len(many) // len(few))
    with blamed_on(target):
        return not arrow, paired(first, second)


def _matching(topology: Topology, target: str, *, classes: bool) -> set[tuple[str, str, str]]:
    if classes and target in topology.edited_classes:
        return {link.key for link in topology.links if link.kind == target}
    if (found := _pairs(topology, target)) is None and target in topology.index:
        near = sorted({link.dst for link in topology.links if link.src == target})
        link, beside = f"{target}-{near[0] if near else 'gpu0'}", ", ".join(in_runs(near)) or "nothing"
        what = f"{target} is a device, and a link has two ends, as in {link}"
        raise InputError(f"{what}; {target} is linked to {beside}")
    if found is None:
        known, written = topology.edited_classes, "(a link is written gpu0-gpu3"
        if not (classes and known):
            topology.device(target, "device or link", f"{written}; for a node less lower nodes=)")
        hint = f"{written}; link classes: {', '.join(known)})"
        raise unknown("link", target, [*known, *topology.index], hint=hint)
    both, pairs = found
    keys = set[tuple[str, str, str]]()
    for a, b in pairs:
        links = [*topology.links_between(a, b), *(topology.links_between(b, a) if both else ())]
        if not links:
            others = ", ".join(sorted({link.dst for link in topology.links if link.src == a}))
            missing = f"{a}{'-' if both else '->'}{b}" if len(pairs) > 1 else target
            raise InputError(f"{topology.name} has no link {missing}; {a} is linked to {others or 'nothing'}")
        keys |= {link.key for link in links}
    return keys


def without(topology: Topology, *targets: str) -> Topology:
    """`topology` without the devices and links named; a removed member gives its rank up.

    A card takes its tiles with it: without ``card0`` there are no ``card0.t0`` and ``card0.t1``.

    >>> import blinksim as bs
    >>> bs.load("dgx1-v100").without("gpu3", "gpu0-gpu4").ranks
    7
    """
    before = topology
    for target in targets:
        if target == IN_NETWORK:
            # Switches, and other devices but GPUs and tiles, then neither multicast nor reduce.
            devices = tuple(replace(d, can=d.can - d.in_network) if d.in_network else d for d in topology.devices)
            fabric = topology.fabric and replace(topology.fabric, can=frozenset())
            topology = replace(topology, devices=devices, fabric=fabric)
            continue
        gone, keys = set[str](), set[tuple[str, str, str]]()
        ends = "->" in target or _HYPHEN.search(target)
        if target in topology.index or (RANGE.search(target) and not ends):
            gone = set(_devices(topology, target))
        else:
            keys = _matching(topology, target, classes=False)
        # The tiles of a card are named after it.
        gone |= {name for name in topology.index if name.rpartition(".")[0] in gone}
        if set(topology.members) <= gone:
            raise InputError(f"without {target} no member is left")
        members = tuple(name for name in topology.members if name not in gone)
        topology = _cut(unmeasured(topology) if keys else topology, members, gone, keys)
    return _noted(before, topology, "without", *targets)


def _cut(
    topology: Topology, members: tuple[str, ...], gone: Collection[str], keys: Collection[tuple[str, str, str]] = ()
) -> Topology:
    """`topology` with these members, without the devices in `gone` and their links, and without links by key."""
    if (fabric := topology.fabric) is not None and not set(fabric.ports).isdisjoint(gone):
        ports = tuple(filterfalse(gone.__contains__, fabric.ports))
        levels = tuple(replace(level, planes=min(level.planes, len(ports))) for level in fabric.levels)
        planes = min(fabric.planes, len(ports))
        fabric = replace(fabric, ports=ports, planes=planes, levels=levels) if ports else None
    there = (d.name not in gone for d in topology.devices)
    used = (x.src not in gone and x.dst not in gone and x.key not in keys for x in topology.links)
    relays = tuple(filterfalse(gone.__contains__, topology.relays))
    ends = {one.name for one in topology.devices if one.holds or one.kind == "nic"}.intersection(gone)
    led = (((x.src, x.kind), x.bandwidth) for x in topology.links if x.dst in ends and x.src not in gone)
    kept = {"members": members, "relays": relays, "lost": summed([*topology.lost.items(), *led])}
    return among(topology, there, used, fabric=fabric, symmetries=(), **kept)


def enable(topology: Topology, target: str, abilities: Iterable[str]) -> Topology:
    """`topology` where the device that `target` names, a range of them or the ``fabric``, can do just `abilities`.

    ``fabric`` stands for all switches between the nodes.
    """
    can = frozenset(abilities)
    each_of("ability", can, ABILITIES)
    # As of a machine file's fabric: all that joins the nodes, also where one of several switches has this
    # name.
    whole_fabric = target == FABRIC
    if whole_fabric and topology.fabric is not None:
        changed = replace(topology, fabric=replace(topology.fabric, can=can))
    else:
        outside = [device.name for device in topology.devices if device.kind == FABRIC]
        chosen = set(outside if whole_fabric and outside else _devices(topology, target))
        devices = tuple(replace(d, can=can) if d.name in chosen else d for d in topology.devices)
        # What GPUs and switches can do is part of what makes devices alike.
        changed = replace(topology, devices=devices, symmetries=topology.symmetries if whole_fabric else ())
    return _noted(topology, changed, target, can=",".join(ability for ability in ABILITIES if ability in can))


def rewire(topology: Topology, **changes: str) -> Topology:
    """One node whose copies will be joined by another fabric of the same ports; see `fabric.rewired`."""
    if topology.fabric is None:
        what = "already is a cluster" if topology.nodes > 1 else "describes no fabric"
        raise InputError(f"{topology.name} {what}; edit the fabric of a machine file, before its nodes are joined")
    return _noted(topology, replace(topology, fabric=rewired(topology.fabric, changes)), FABRIC, **changes)


def _noted(before: Topology, after: Topology, *words: str, **changes: Any) -> Topology:
    """`after`, or `before` where no link, device or fabric differs, which remembers the edit that made it."""
    after = before if all(getattr(after, of) == getattr(before, of) for of in ("links", "devices", "fabric")) else after
    text = " ".join((*words, *(f"{name}={value}" for name, value in changes.items())))
    return regarded(after, edits=(*before.edits, text))


def unmeasured(topology: Topology) -> Topology:
    """`topology` without what was measured on the machine as it is: its links are about to change."""
    return regarded(topology, execution=None, nccl_rates=None)


def subset(topology: Topology, members: Iterable[str]) -> Topology:
    """`topology` with only these GPUs or tiles, as members in the order given; all forwarders stay.

    >>> import blinksim as bs
    >>> bs.load("dgx1-v100").subset(["gpu3", "gpu0"]).members
    ('gpu3', 'gpu0')
    """
    if not (chosen := tuple(members)):
        raise InputError("no members: name at least one GPU")
    each_of("device", chosen, topology.index)
    return _cut(topology, chosen, {*topology.holders} - {*chosen})


def _changed(topology: Topology, link: LinkLike, changes: dict[str, Any]) -> LinkLike:
    values = {key: _value(key, value) for key, value in changes.items()}
    if "bandwidth" in values:
        values["lane_bandwidth"] = values.pop("bandwidth") * topology.of_nominal.get(link.kind, 1)
    return replace(link, **values)


def _value(key: str, value: Any) -> Any:
    """A property of a link, given as a number or as text; a bandwidth in bytes/s, exact."""
    one_of("property of a link", key, LINK_PROPERTIES)
    if key == "lanes":
        if (lanes := whole(value, key)) < 1:
            raise InputError(f"lanes={lanes}: leave the link out if it has none")
        return lanes
    if key != "bandwidth":
        return parse_time(value) if isinstance(value, str) else float(value)
    try:
        return parse_rate(value) if isinstance(value, str) else Fraction(value)
    except (ValueError, OverflowError):
        raise InputError(f"bandwidth={value!r} is not a number of bytes/s") from None


def replace_links(topology: Topology, target: str, **changes: Any) -> Topology:
    """`topology` with other properties for the links of a pair or a class, the fabric's included.

    Changes: lanes (count), nominal bandwidth (of one lane and direction: bytes/s or text), latency and
    overhead (s or text). At other rates a link loses the same share of what it has there.

    >>> import blinksim as bs
    >>> bs.bound(bs.load("dgx1-p100").replace("nvlink", bandwidth=10 * 10**9), "broadcast").rate_GBps
    40.0
    """
    if not changes:
        raise InputError(f"replace {target}: say what becomes different, as in {VERBS['replace']}")
    keys = _matching(topology, target, classes=True)
    links = tuple(_changed(topology, link, changes) if link.key in keys else link for link in topology.links)
    _check_buses(topology.links, links, target)
    fabric, of_class = topology.fabric, target in topology.link_classes
    if fabric is not None and target == fabric.kind:
        fabric, of_class = _changed(topology, fabric, changes), True
        fabric.pairs([("port", "fabric")])  # refuses what no link can have
    kept = topology.symmetries if of_class else ()
    edited = regarded(unmeasured(topology), known={}, links=links, fabric=fabric, symmetries=kept)
    return _noted(topology, edited, "replace", target, **changes)


def _check_buses(before: Sequence[Link], after: Sequence[Link], target: str) -> None:
    """Raises `InputError` if only some of the links that share a bus got another bandwidth: a bus has one."""
    pairs = ((old, new) for old, new in zip(before, after, strict=True) if old.bus is not None)
    for bus, answers in grouped((old.bus, old.bandwidth != new.bandwidth) for old, new in pairs).items():
        if len({*answers}) == 2:
            shared = ", ".join(link.name for link in before if link.bus == bus)
            raise InputError(f"{target} is half duplex: change all links of its bus alike ({shared})")


def degrade(topology: Topology, target: str, **changes: Any) -> Topology:
    """As `replace_links` for the links of one pair; refuses what makes any of them quicker.

    >>> import blinksim as bs
    >>> bs.bound(bs.load("dgx1-v100").degrade("gpu0-gpu3", lanes=1), "allreduce").rate / 10**9
    Fraction(575, 7)
    """
    if not changes:
        raise InputError(f"degrade {target}: say what is left, as in {VERBS['degrade']}")
    edited = replace_links(topology, target, **changes)
    ports = [one.pairs([("port", "fabric")]) if one else [] for one in (topology.fabric, edited.fabric)]
    for before, after in zip((*topology.links, *ports[0]), (*edited.links, *ports[1]), strict=True):
        if after.bandwidth > before.bandwidth:
            share = topology.of_nominal.get(before.kind, 1)
            raised = " to ".join(format_rate(link.bandwidth / share) for link in (before, after))
            raised += f", lanes={after.lanes} of {format_rate(after.lane_bandwidth / share)}"
            raise InputError(f"degrade {target} would raise {before.name} from {raised}; use replace for that")
        if after.latency + after.overhead < before.latency + before.overhead:
            raise InputError(f"degrade {target} would make {before.name} quicker; use replace for that")
    return _noted(topology, edited, "degrade", target, **changes)


def add(topology: Topology, target: str, kind: str, **changes: Any) -> Topology:
    """`topology` with a link of an existing class more: between an unlinked pair, or lanes added to a linked one."""
    if (found := _pairs(topology, target)) is None:
        raise InputError(f"{target!r} is not a link; write it as in {VERBS['add']}")
    both, pairs = found
    if (example := next((link for link in topology.links if link.kind == kind), None)) is None:
        raise unknown("link class", kind, topology.link_classes)
    # A half-duplex class stays half duplex: the two directions of a new pair share one bus.
    new = {}
    for pair in pairs:
        bus = f"{pair[0]}-{pair[1]} {kind}" if example.bus is not None and both else None
        for a, b in (pair, pair[::-1]) if both else (pair,):
            new[a, b, kind] = _changed(topology, replace(example, src=a, dst=b, lanes=1, bus=bus), changes)
    grown, given = [], ["lane_bandwidth" if key == "bandwidth" else key for key in changes if key != "lanes"]
    for link in topology.links:
        more = new.pop(link.key, None)
        if more and any(getattr(more, field) != getattr(link, field) for field in given):
            raise InputError(f"{link.name} exists; add only lanes to it, and use replace for its other properties")
        grown.append(replace(link, lanes=link.lanes + more.lanes) if more else link)
    _check_buses(topology.links, grown, target)
    grown_topology = replace(unmeasured(topology), links=(*grown, *new.values()), symmetries=())
    return _noted(topology, grown_topology, "add", target, kind, **changes)


def _no_verb(topology: Topology, verb: str, words: Sequence[str]) -> Topology:
    """Raises `InputError` for changes without a verb, with one and a class that there is."""
    # A word that names no class is most often of adapters, whose links come last.
    kind = verb if verb in topology.edited_classes else topology.edited_classes[-1]
    replaced = " ".join(("replace", kind, *words))
    raise unknown("edit", verb, VERBS, hint=f"(as in: {replaced}; {OTHER_EDITS})")


def parsed(text: str) -> Callable[[Topology], Topology]:
    """What an edit written as text does to a topology; see `VERBS` for one example of each.

    Raises `InputError` for anything else, and for what no machine can have.
    """
    verb, *words = text.split() or [""]
    given = [word.split("=", 1) for word in words if "=" in word]
    changes = dict(given)
    if verb not in VERBS and len(words) == len(changes) > 0:
        # What a device can do, another fabric, or changes that lack their verb.
        if [*changes] == ["can"]:
            return lambda topology: enable(topology, verb, changes["can"].split(","))
        if verb == FABRIC:
            return lambda topology: rewire(topology, **changes)
        return partial(_no_verb, verb=verb, words=words)
    one_of("edit", verb, VERBS, hint=f"(as in: {VERBS['degrade'].split(' | ')[0]}; {OTHER_EDITS})")
    for key in sorted(changes):
        _value(key, changes[key])
    if len(changes) < len(given):
        raise InputError(f"the edit {text!r} gives a property twice")
    targets = [word for word in words if "=" not in word]
    if len(targets) != 1 + (verb == "add") or (verb == "without" and changes):
        raise InputError(f"cannot read the edit {text!r}; write one at a time, as in: {VERBS[verb]}")
    carry_out: Sequence[Callable[..., Topology]] = without, degrade, replace_links, add
    act = dict(zip(VERBS, carry_out, strict=True))[verb]
    return lambda topology: act(topology, *targets, **changes)


def apply(topology: Topology, text: str) -> Topology:
    """`topology` after an edit written as on the command line; raises as `parsed`, and for what it lacks.

    >>> import blinksim as bs
    >>> machine = bs.load("dgx1-v100")
    >>> machine.edit("degrade gpu0-gpu3 lanes=1") == machine.degrade("gpu0-gpu3", lanes=1)
    True
    """
    return parsed(text)(topology)


def lacking(recorded: Topology, complete: Topology) -> dict[Link, int] | None:
    """The lanes between GPUs and to switches that `complete` has and `recorded` lacks; None where it has others.

    All switches count as one, and a link between two GPUs for both its directions.
    """
    had, has = (
        {
            frozenset((link.src, link.dst if link.dst in machine.members else "")): link
            for link in reversed(machine.links)
            if link.kind in BETWEEN_GPUS and link.src in machine.members
        }
        for machine in (recorded, complete)
    )
    lanes = {ends: link.lanes for ends, link in had.items()}
    fewer = {link: link.lanes - lanes.get(ends, 0) for ends, link in reversed(has.items())}
    if had.keys() - has.keys() or min(fewer.values(), default=0) < 0:
        return None
    return {link: lanes for link, lanes in fewer.items() if lanes}


def losing(fewer: dict[Link, int], complete: Topology) -> Iterator[tuple[str, str]]:
    """What links lack, in words, and the edits that take it; GPUs in a row that lack alike at once."""
    alike = grouped(((link.dst, link.lanes - lanes, link.lanes), link.src) for link, lanes in fewer.items())
    for (other, left, of), sources in alike.items():
        for run in in_ranges(sources):
            ends = f"{run}-{other}"
            who = ends if other in complete.members else run
            words = f"{who} {'have' if '[' in run else 'has'} {left} of {count(of, 'lane')}"
            yield words, f"degrade {ends} lanes={left}" if left else f"without {ends}"


def in_ranges(gpus: Iterable[str]) -> list[str]:
    """The names, those of GPUs in a row as a range: ``gpu[0-7]``."""
    return [re.sub(r"([0-9]+) to .*\D([0-9]+)", r"[\1-\2]", run) for run in in_runs(gpus)]
