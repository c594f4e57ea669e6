"""The question of an answer: a machine, nodes, members, links, rates and edits.

The command line, sweeps and the Python interface ask in the same words. All fields but the machine are text
or numbers, so that a question can be printed, compared, kept in a journal and sent to another process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import prod
from typing import Any, Literal

from blinksim import machines
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.machines import MachineLike, RatesName
from blinksim.results import keyed
from blinksim.topology.cluster import place
from blinksim.topology.graph import Topology
from blinksim.topology.selection import ALL, IDLE, NONE, Names, class_names, listed, names_text, relay_names


@dataclass(frozen=True)
class Question:
    """A question's machine, the part of it that takes part, and the rates and edits.

    Parameters
    ----------
    machine : str, path or Topology
        Whatever `blinksim.load` takes, or one node as a topology.
    nodes : int
        Number of nodes, joined by the machine's fabric.
    ranks_per_node : int, optional
        Ranks on every node, placed card by card in file order. Default: all its GPUs.
    members : str, optional
        The GPUs to run on, such as ``0,1,4``, ``0-3`` or ``gpu0,gpu3``. Numbers count the GPUs before any
        edit.
    relays : str, optional
        GPUs without a rank that may forward: ``none``, ``idle`` (every GPU that is no member) or a list.
        Default: those that the machine file names.
    relays_reduce : bool
        Relays may also reduce and multicast.
    links : str, optional
        Link classes separated by commas, or ``all``. Default: what the machine file says.
    rates : str, optional
        The name of a table of rates, or a rates file. Default: ``nominal``; what NCCL chooses is at ``nccl``,
        and a projection that pins its rates is at those.
    edits : tuple of str
        What-ifs such as ``degrade gpu0-gpu3 lanes=1``; bandwidths in them are nominal at the rates ``nccl`` and
        ``measured``, else in the terms of the table.
    collective : Collective, optional
        What the members must be connected for. Default: for everything, each with each both ways.

    Raises
    ------
    InputError, InfeasibleError
        Nothing is checked until `whole` or `part` is called; these raise as `blinksim.load` and
        `Topology.select` do.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.Question("dgx1-v100", members="0,1,4").part().members
    ('gpu0', 'gpu1', 'gpu4')
    """

    machine: MachineLike = ""
    nodes: int = 1
    ranks_per_node: int | None = None
    members: str | None = None
    relays: Literal["none", "idle"] | str | None = None
    relays_reduce: bool = False
    links: str | None = None
    rates: RatesName | str | None = None
    edits: tuple[str, ...] = ()
    collective: Collective | None = None

    @classmethod
    def of(
        cls,
        machine: MachineLike,
        *,
        members: Names | None = None,
        relays: Names | None = None,
        links: str | Sequence[str] | None = None,
        edits: str | Sequence[str] = (),
        **settings: Any,
    ) -> Question:
        """A question from Python values: members and relays also as lists of numbers and names, a single edit as text.

        settings: nodes, ranks_per_node, relays_reduce, rates and collective. Raises `InputError` for a name
        that is none of these.
        """
        known = {field.name for field in fields(cls)}
        for name in settings:
            if name not in known:
                raise InputError(f"a question has no {name!r}; it has {', '.join(sorted(known))}")
        return cls(
            machine,
            members=None if members is None else names_text(members),
            relays=None if relays is None else names_text(relays) or NONE,
            links=None if links is None else names_text(links),
            edits=(edits,) if isinstance(edits, str) else tuple(edits),
            **settings,
        )

    @classmethod
    def of_part(cls, part: Topology, machine: Topology) -> Question:
        """The question about a selected part of a machine; NCCL sees the links that the part leaves out."""
        whole = replace(machine, members=part.members, relays=part.relays)
        alike = whole.selected().link_classes == part.link_classes
        return cls(whole, links=None if alike else ",".join(part.link_classes))

    @property
    def table(self) -> str:
        """The table of rates in force: the one named, else ``nominal``."""
        return machines.NOMINAL if self.rates is None else self.rates

    def preferring(self, rates: str | None) -> Question:
        """The question at `rates`, unless it names rates itself."""
        return self if rates is None or self.rates is not None else replace(self, rates=rates)

    def preferring_known(self, rates: str) -> Question:
        """As `preferring`, if the machine has these rates; else the question itself."""
        wanted = self.preferring(rates)
        try:
            wanted.node()
        except InputError:
            return self
        return wanted

    def settings(self) -> dict[str, Any]:
        """All settings but the machine and the collective, as JSON values."""
        left_out = ("machine", "collective")
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}

    def node(self) -> Topology:
        """One node, before any edit. Raises as `blinksim.load` does, and if a topology has other rates than asked."""
        if not isinstance(self.machine, Topology):
            return machines.load(self.machine, rates=self.table)
        if self.rates is not None:
            found = preferring(self.machine, self.rates)
            if found is not self.machine:
                return found
        # A table that leaves classes out is labelled like "seed (qpi: nominal)", and one in a file by the
        # name in it.
        loaded = self.machine.loaded_from[1] if self.machine.loaded_from is not None else None
        known = (None, machines.NOMINAL, loaded, self.machine.rates, self.machine.rates.partition(" (")[0])
        if self.rates not in known:
            raise InputError(
                f"{self.machine.name} is loaded at {self.machine.rates} rates; give its name instead for {self.rates}"
            )
        return self.machine

    def whole(self) -> Topology:
        """The whole machine: loaded, edited, replicated. Raises as `blinksim.load` does."""
        return machines.assemble(self.node(), self.nodes, self.edits)

    def part(self, whole: Topology | None = None, collective: Collective | None = None) -> Topology:
        """The selected part of the machine, as `Topology.select` gives it.

        whole: what `whole` returned, if it is known. collective: in place of the question's own. Raises
        `InputError` for names and numbers that the machine does not have, and `InfeasibleError` for members
        that no link joins.
        """
        whole = self.whole() if whole is None else whole
        members = self.member_names(whole)
        relays = None if self.relays is None else self.relay_names(whole, members)
        if self.relays_reduce and not relays:
            raise InputError("relays_reduce= says what relays may do; name some with relays=")
        classes = self.link_classes(whole)
        wanted = collective or self.collective
        return whole.select(members, relays, classes, relays_reduce=self.relays_reduce, collective=wanted)

    def member_names(self, whole: Topology) -> tuple[str, ...]:
        """The devices that hold ranks, in rank order."""
        if self.members is None:
            return place(whole, self.ranks_per_node)
        if self.ranks_per_node is not None:
            raise InputError("members= and ranks_per_node= both choose the members; give one of them")
        return tuple(whole.device(name).name for name in listed(self.members, self._numbered(whole), "members"))

    def relay_names(self, whole: Topology, members: Sequence[str]) -> tuple[str, ...]:
        """The devices that `relays` names."""
        if self.relays in (None, NONE):
            return ()
        holders = [device.name for device in whole.devices if device.holds]
        numbered = None if self.relays in (IDLE, ALL) else self._numbered(whole)
        return tuple(whole.device(name).name for name in relay_names(self.relays, members, holders, numbered))

    def link_classes(self, whole: Topology) -> tuple[str, ...] | None:
        """The link classes that `links` names, None for the machine's default."""
        return None if self.links is None else class_names(self.links, whole.link_classes)

    def described(self, topology: Topology) -> dict[str, Any]:
        """The machine as an answer in JSON describes it, so that it can be checked again."""
        source = self.machine.name if isinstance(self.machine, Topology) else os.fspath(self.machine)
        part = {"machine": topology.name, "members": topology.members, "relays": topology.relays}
        part |= {"links": topology.default_links(), "rates": topology.rates, "source": source}
        keys = "machine source nodes edits members relays relays_reduce? links rates rates_source=table"
        return keyed(self, keys, **part)

    def _numbered(self, whole: Topology) -> list[str]:
        """The GPUs that numbers count: those of the machine before any edit."""
        unedited = whole if not self.edits else machines.assemble(self.node(), self.nodes)
        return [device.name for device in unedited.devices if device.holds]


def preferring(topology: Topology, rates: str) -> Topology:
    """A topology at another table of rates, where it was loaded without naming one and its machine has that table.

    Any other topology comes back as it is; its `rates` say so.
    """
    return topology if topology.rates != machines.NOMINAL else at_rates(topology, rates)


def at_rates(topology: Topology, rates: str) -> Topology:
    """A topology at another table of rates of its machine; as it is where that has none, or it is of no machine.

    Edits stay: they are made of that table too; a link that was changed otherwise keeps what it has.
    """
    if topology.loaded_from is None or rates == topology.loaded_from[1]:
        return topology
    name, table = topology.loaded_from
    load = machines.this_machine if name == machines.HERE else partial(machines.load, name)
    try:
        nodes = (load(rates=one) for one in (table, rates))
        before, after = (machines.assemble(node, topology.nodes or 1, topology.edits) for node in nodes)
    except BlinksimError:
        return topology
    fabric = after.fabric if topology.fabric == before.fabric else topology.fabric
    # Whatever their lanes.
    changed = {replace(a, lanes=1): b for a, b in zip(before.links, after.links, strict=True)}
    links = tuple(replace(changed.get(replace(x, lanes=1), x), lanes=x.lanes) for x in topology.links)
    # Edits of links have taken away what was measured of them.
    as_it_is = (topology.execution, topology.nccl_rates) == (before.execution, before.nccl_rates)
    now: Any = {"links": links, "fabric": fabric, "rates": after.rates, "loaded_from": (name, rates)}
    now["of_nominal"] = after.of_nominal
    now |= {key: getattr(after, key) if as_it_is else None for key in ("execution", "nccl_rates")}
    return replace(topology, **now)


def group_of(question: Question, text: str, collective: Collective) -> tuple[Question, str | None]:
    """The question of a group such as ``0,1:allreduce:64MiB``, and its size. collective: if it names none."""
    members, *more = text.split(":")
    if not members or len(more) > 2:
        raise InputError(f"group={text}: write members, collective and size, like 0,1:allreduce:64MiB")
    wanted = Collective.of(more[0]) if more and more[0] else collective
    return replace(question, members=members, collective=wanted), more[1] if more[1:] else None


def mesh_groups(shape: str, ranks: int, axis: int | None = None) -> list[str]:
    """The members of the groups of a device mesh such as ``2x4``, whose last axis is the innermost.

    axis: only the groups along this axis, counted from 0. Raises `InputError` for a mesh of other than
    `ranks` ranks.

    >>> mesh_groups("2x4", 8)
    ['0,4', '1,5', '2,6', '3,7', '0,1,2,3', '4,5,6,7']
    """
    sides = [int(side) for side in shape.split("x") if re.fullmatch("[0-9]{1,6}", side)]
    if "x".join(map(str, sides)) != shape or prod(sides) != ranks:
        raise InputError(f"mesh={shape}: the product of its sides must be {ranks}, as in 2x{ranks // 2}")
    if axis is not None and not 0 <= axis < len(sides):
        raise InputError(f"axis={axis}: a mesh of {shape} has axes 0 to {len(sides) - 1}")
    groups, apart = list[str](), ranks
    for number, side in enumerate(sides):
        apart //= side
        if side > 1 and axis in (None, number):
            firsts = (rank for rank in range(ranks) if rank // apart % side == 0)
            groups += [",".join(str(rank + apart * step) for step in range(side)) for rank in firsts]
    return groups
