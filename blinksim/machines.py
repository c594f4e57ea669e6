"""Machines from a catalogue name, a machine file, an NCCL topology file, text of nvidia-smi, or a formula.

The question of an answer: a machine, nodes, members, links, rates and edits.

The command line, sweeps and the Python interface ask in the same words. All fields but the machine are text
or numbers, so that a question can be printed, compared, kept in a journal and sent to another process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

from blinksim.collective import Collective
from blinksim.errors import BlinksimError, FileError, InfeasibleError, InputError, MissingError, unknown
from blinksim.formats import machine_yaml, nvidia_smi, rate_tables
from blinksim.formats.rate_tables import RateTable
from blinksim.formats.shipped import known_gpus, machine_names
from blinksim.formats.shipped.machine_names import MEASURED, catalogue_file, measured_rates, shared_rates
from blinksim.results import keyed, names
from blinksim.textio import name_ranges, text_files, yaml_nodes
from blinksim.textio.text_files import STDIN
from blinksim.topology import rules
from blinksim.topology.cluster import place
from blinksim.topology.elements import copies, regarded
from blinksim.topology.graph import Topology
from blinksim.topology.selection import ALL, IDLE, NONE, Names, class_names, listed, names_text, relay_names
from blinksim.units import whole

# What `this_machine` calls the machine that it asks.
HERE = "nvidia-smi"
NOMINAL = "nominal"
_YAML = (".yaml", ".yml")
_XML = (".xml",)
_TEXT = (".txt", ".log")
# What a machine is called that has no file to be called after.
_STDIN_NAME = "stdin"


MachineLike = str | os.PathLike[str] | Topology
"""A machine as public functions take it: what `load` takes, or a topology."""

RatesName = Literal["nominal", "nccl", "seed", "measured", "aurora-chain"]
"""The tables of rates that machines of the catalogue have; `machine_names.rate_names` says which one has which."""


def load(
    name_or_path: str | os.PathLike[str],
    nodes: int = 1,
    rates: RatesName | str | os.PathLike[str] = "nominal",
    edits: str | Sequence[str] = (),
    like: str | os.PathLike[str] | None = None,
) -> Topology:
    """Load a machine, or a cluster of alike nodes.

    Parameters
    ----------
    name_or_path : str or path
        A name of the catalogue (case does not matter), a machine file (.yaml, .yml), an NCCL topology file
        (.xml), what ``nvidia-smi topo -m`` printed (.txt), a shape such as ``torus:4x4@50GB/s``, or ``-`` for
        standard input.
    nodes : int
        Number of nodes, joined by the machine's fabric; they may stand before a name, as in ``2xp5``.
    rates : str or path
        The name of a table of rates that the machine has, such as ``nominal``, or a rates file.
    edits : str or sequence of str
        What-ifs such as ``degrade gpu0-gpu3 lanes=1``. One that names devices of the machine file changes
        every node, one that names a device of the cluster (``n0.gpu0``) only that.
    like : str or path, optional
        The machine that an NCCL topology file is of, for files that leave out GPUs, NVLinks or network ports:
        these are taken from it. Of text of nvidia-smi only the GPUs and their NVLinks are kept. GPUs of another
        model are refused.

    Returns
    -------
    Topology
        The whole machine; `Topology.select` gives the part that a collective runs on.

    Raises
    ------
    InputError
        For unknown names and files that cannot be used.
    InfeasibleError
        For several nodes of a machine without a fabric.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.load("dgx1-v100").ranks
    8
    >>> bs.load("hgx-h200", nodes=2, edits=["without gpu7"]).ranks
    14
    """
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise InputError(f"{name_or_path!r:.60} is not a machine; give a name, a path or a Topology")
    asked = Question(os.fspath(name_or_path).strip(), nodes)
    name, nodes = str(asked.machine), asked.nodes
    changes = (edits,) if isinstance(edits, str) else tuple(edits)
    table = os.fspath(rates).strip()
    if like is not None:
        xml = Path(name).suffix.lower() in _XML
        if not (xml or Path(name).suffix.lower() in _TEXT or _is_smi(name)):
            neither = f"{name} is neither a topology file (.xml) nor text of nvidia-smi"
            raise InputError(f"{neither}; like={os.fspath(like)} completes what these leave out")
        twin = load(like, rates=NOMINAL if xml else table)
        found = _described(name, _XML, table, like=twin) if xml else _described(name, _TEXT, NOMINAL)
        own, others = ({known_gpus.model(one.device(gpu)) for gpu in one.members} for one in (found, twin))
        if "" not in own | others and own != others:
            said = f"{found.name} has {' and '.join(sorted(own))}, and {twin.name} has {' and '.join(sorted(others))}"
            raise InputError(f"{said}; name the machine that it is")
        return assemble(found if xml else known_gpus.completed(found, twin), nodes, changes)
    name = _as_catalogued(name)
    node = _node(name, table)
    return _assembled(id(node), node, whole(nodes, "nodes"), changes, (name, table))


def this_machine(rates: RatesName | str = "nominal") -> Topology:
    """This computer's own GPUs, as nvidia-smi describes them.

    Parameters
    ----------
    rates : str
        The name of a table of rates, as `load` takes it.

    Returns
    -------
    Topology
        One node.

    Raises
    ------
    MissingError
        Without GPUs, or if nvidia-smi does not answer.

    Examples
    --------
    >>> import blinksim as bs
    >>> try:
    ...     found = bs.this_machine()
    ... except bs.MissingError:
    ...     found = None  # no GPUs here
    """
    import subprocess

    advice = "name a machine, as in: blinksim advise hgx-h200"
    ask = partial(subprocess.run, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    text = ""
    for arguments in (["-L"], ["topo", "-m"], ["nvlink", "-s"]):
        try:
            done = ask(["nvidia-smi", *arguments])
        except FileNotFoundError:
            raise MissingError(f"no GPUs found here (there is no nvidia-smi); {advice}") from None
        except (OSError, subprocess.TimeoutExpired):
            raise MissingError(f"nvidia-smi does not answer; {advice}") from None
        # Old drivers have no `nvlink -s`, and GPUs without NVLink end it with an error.
        text += done.stdout if done.returncode == 0 or arguments[0] == "topo" else ""
    if not nvidia_smi.looks_like(text):
        raise MissingError(f"nvidia-smi lists no GPUs; {advice}")
    return replace(_described(HERE, _TEXT, rates, text), loaded_from=(HERE, rates))


def as_topology(machine: MachineLike | Question) -> Topology:
    """A topology as it is, the part of a question, or what `load` makes of a name or a path.

    Raises `InputError` as `load` does, and for anything that is none of these.
    """
    part = machine.part() if isinstance(machine, Question) else machine
    return part if isinstance(part, Topology) else load(part)


def assemble(node: Topology, nodes: int = 1, edits: Sequence[str] = ()) -> Topology:
    """`node` after `edits`, as a cluster of `nodes` nodes; edits and errors are those of `load`."""
    return _assembled(id(node), node, whole(nodes, "nodes"), tuple(edits))


# Machines that are equal may differ in what was measured of them; the same one shares what is found of it. An
# answer asks for its machine at several rates, with its edits and without.
@lru_cache(maxsize=16)
def _assembled(
    number: int, node: Topology, nodes: int, edits: tuple[str, ...], read: tuple[str, str] | None = None
) -> Topology:
    """As `assemble`. node: `number` in memory; read: the name and the table, if it is as it was read from these."""
    if read:
        # What-ifs at the rates of a source document or of a file are in its own terms.
        both = [node, _node(read[0], NOMINAL)] if read[1] in ("nccl", "measured") else []
        pairs = zip(*((one.fabric, *one.links) for one in both), strict=True)
        shares = {new.kind: new.lane_bandwidth / old.lane_bandwidth for new, old in pairs if new and old}
        node = regarded(node, loaded_from=read, of_nominal=shares)
    joined = node.fabric
    later = [edit for edit in edits if nodes > 1 and _NAMES_A_NODE.search(edit)]
    for edit in edits:
        node = node if edit in later else node.edit(edit)
        if nodes > 1 and joined and not node.fabric:
            lost = f"none of the {joined.kind} ports that join {nodes} nodes"
            raise InfeasibleError(f"{edit!r} leaves {node.name} {lost}")
    if nodes > 1 and not node.fabric and (twin := known_gpus.like(node)):
        cure = f"complete it with blinksim topo import and like={twin.name!r}"
        raise InfeasibleError(f"{node.name} describes no fabric to join {nodes} nodes with; {cure}")
    cluster = node if nodes == 1 else node.replicate(nodes)
    every = f"n[0-{nodes - 1}]."
    for edit in later:
        # A device without the name of a node stands for those of all: degrade nic7-fabric7 …
        named = lambda name: every * (node.index.keys() >= {*name_ranges.expand(name[0])}) + name[0]  # noqa: E731
        cluster = cluster.edit(_NAME.sub(named, edit))
    return cluster


def check(machine: MachineLike) -> list[rules.Finding]:
    """Check a machine against the rules that ``blinksim topo check --rules`` lists.

    A machine read from NCCL's topology file or from nvidia-smi is also compared with those of the catalogue.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology.

    Returns
    -------
    list of Finding
        Errors first; empty if no rule finds anything.

    Raises
    ------
    InputError
        As `load` does.

    Examples
    --------
    >>> import blinksim as bs
    >>> machine = bs.load("dgx1-v100")
    >>> bs.check(machine)
    []
    >>> [finding.rule for finding in bs.check(machine.replace("nvlink", latency=0, overhead=0))]
    ['latency-given']
    """
    topology = as_topology(machine)
    found = rules.check(topology, lambda keys: _place(topology, keys))
    return found + (known_gpus.compare(topology) if topology.source.startswith(known_gpus.RECORDED) else [])


def _place(topology: Topology, keys: tuple[str, ...]) -> str:
    """The file and line of what keys lead to: in the rates file that the machine was loaded at, else in its own."""
    if topology.edits:
        return ""
    for name in reversed(topology.loaded_from or ()):
        if name.lower().endswith(_YAML):
            line = yaml_nodes.load(name, text_files.read_text(name), "file").line_of(keys)
            if line is not None:
                return f"{name}:{line}"
    return ""


def catalogue() -> dict[str, str]:
    """The machines that come with blinksim.

    Returns
    -------
    dict of str to str
        What each machine is, by the name that `load` takes, sorted.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.catalogue()["dgx1-v100"]
    'NVIDIA DGX-1, eight V100'
    """
    return {name: machine_names.outline(name).title for name in machine_names.names()}


def assumptions(machine: MachineLike) -> list[str]:
    """What the machine's file marks as assumed: of its structure, then the numbers of each link class.

    Empty for what has no machine file.
    """
    name = "" if isinstance(machine, Topology) else os.fspath(machine).strip()
    own = Path(name).suffix.lower() in _YAML or (name == STDIN and _kind_of(text_files.read_text(STDIN)) is _YAML)
    try:
        path = name if own else catalogue_file(name)
    except InputError:
        return []
    return machine_yaml.outline(path).assumptions()


def remarks(topology: Topology, assumed: bool = True) -> list[str]:
    """What was `assumed` of a machine that a topology file or a table describes, and what was passed over in it."""
    said = topology.source.split("; ")[1:] if topology.source.startswith(known_gpus.RECORDED) else []
    return [one for one in said if assumed or not one.startswith("assumed")]


# How nodes will be joined is changed before they are, and what joins them can afterwards.
_NAMES_A_NODE = re.compile(r"(?:^|[\s>-])n(?:[0-9]+|\[[0-9]+-[0-9]+\])\.|^fabric(?!\s+(?!can=)\w+=)|[\s>-]fabric")
# A name or a range of names, whole.
_NAME = re.compile(r"(?<![\w.\]])[a-zA-Z](?:[\w.]|\[[0-9]+-[0-9]+\])*")


def _node(name: str, rates: str) -> Topology:
    if not name:
        raise InputError("no machine given; blinksim topo list lists the known ones")
    if name == STDIN:
        text = text_files.read_text(STDIN, what="machine")
        if not text.strip():
            reason = "is empty; a machine is read as in: nvidia-smi topo -m | blinksim … -"
            raise FileError(text_files.shown(STDIN), reason)
        kind = _kind_of(text)
        return _from_yaml(Path(STDIN), rates) if kind is _YAML else _described(_STDIN_NAME, kind, rates, text)
    suffix = Path(name).suffix.lower()
    if suffix in _YAML:
        return _from_yaml(Path(name), rates)
    if suffix in (*_XML, *_TEXT):
        return _described(name, _XML if suffix in _XML else _TEXT, rates)
    generated = _from_form(name, rates)
    if generated is not None:
        return generated
    try:
        path = catalogue_file(name)
    except InputError:
        if os.path.isfile(name) and _is_smi(name):
            return _described(name, _TEXT, rates)
        if os.path.exists(name):
            kinds = "files that end in .yaml, .yml, .xml, text of nvidia-smi, or NCCL's debug log"
            raise FileError(name, f"a machine is read from {kinds}") from None
        if "/" in name:
            raise FileError(name, "no such machine file") from None
        if ":" in name:
            from blinksim.topology.shapes import FORMS

            hint = "(blinksim topo list has an example of each)"
            raise unknown("shape", name.partition(":")[0], FORMS, hint=hint) from None
        raise
    return _from_yaml(path, rates)


def _as_catalogued(name: str) -> str:
    """The name in the catalogue of a file that says just what that machine's does; otherwise as it is."""
    if Path(name).suffix.lower() not in _YAML:
        return name
    with suppress(InputError):
        head = machine_yaml.outline(name)
        known = catalogue_file(head.name)
        both = ([machine_yaml.read(path, rates) for rates in head.rate_names()] for path in (name, known))
        own, other = ([(one, one.execution, one.nccl_rates) for one in found] for found in both)
        return known.stem if own == other else name
    return name


def _kind_of(text: str) -> tuple[str, ...]:
    """The endings of files with such text: a topology file's, those of what nvidia-smi printed, or a machine file's."""
    return _XML if text.lstrip().startswith("<") else _TEXT if nvidia_smi.looks_like(text) else _YAML


def _described(
    name: str, kind: tuple[str, ...], rates: str, text: str | None = None, like: Topology | None = None
) -> Topology:
    """The machine in a topology file or text of nvidia-smi, neither of which holds rates, at those given.

    text: what the file called `name` holds, if it is none.
    """
    from blinksim.nccl.files import topo_file

    table = _rates_file(rates) or shared_rates().get(rates)
    at = NOMINAL if table is not None or rates == MEASURED else rates
    if kind is _XML:
        machine = topo_file.read(name, at, like) if text is None else topo_file.read_text(text, name, at, like)
    else:
        machine = nvidia_smi.read_text(text or text_files.read_text(name, what="file of nvidia-smi"), name, at)
    return known_gpus.with_constants(machine, rates) if table is None else rate_tables.apply(machine, table)


def _is_smi(name: str) -> bool:
    with suppress(FileError):
        return nvidia_smi.looks_like(text_files.read_text(name))
    return False


def _from_yaml(path: Path, rates: str) -> Topology:
    table, head = _rates_file(rates), machine_yaml.outline(path)
    if table is not None or rates == NOMINAL:
        return machine_yaml.read(path, table or rates)
    tables = shared_rates() | ({} if (own := measured_rates(head.name)) is None else {MEASURED: own})
    # A machine's own table goes before a file of the same name.
    if rates in head.rate_names() or rates in tables:
        return machine_yaml.read(path, rates if rates in head.rate_names() else tables[rates])
    if head.source.startswith(known_gpus.RECORDED) and rates in (MEASURED, "nccl"):
        return known_gpus.with_constants(machine_yaml.read(path), rates)
    known = [*head.rate_names(), *(name for name, found in tables.items() if found.machine in ("", head.name))]
    has = names(_having(rates), ", ")
    hint = f"({f'{rates} is of {has}; ' * bool(has)}or a rates file, such as rates.yaml)"
    raise unknown(f"rates for {head.name}:", rates, known, hint=hint)


# Asked for wherever a table that a machine may lack is preferred.
_having = lru_cache(lambda rates: [name for name in machine_names.names() if rates in machine_names.rate_names(name)])


def _from_form(name: str, rates: str) -> Topology | None:
    if ":" not in name:
        return None
    from blinksim.topology import shapes

    topology = shapes.from_text(name)
    if topology is None or rates == topology.rates:
        return topology
    table = _rates_file(rates) or shared_rates().get(rates)
    if table is None:
        raise InputError(f"{name} has no rates {rates!r}; write its bandwidth behind @, as in ring:8@25GB/s")
    return rate_tables.apply(topology, table)


def _rates_file(rates: str) -> RateTable | None:
    """The table in the file that `rates` names, None if it is the name of a table."""
    return replace(rate_tables.read(rates), own=True) if rates.lower().endswith(_YAML) or "/" in rates else None


@dataclass(frozen=True)
class Question:
    """A question's machine, the part of it that takes part, and the rates and edits.

    Parameters
    ----------
    machine : str, path or Topology
        Whatever `blinksim.load` takes, or one node as a topology.
    nodes : int
        Number of nodes, joined by the machine's fabric; they may stand before a name, as in ``2xp5``.
    ranks_per_node : int, optional
        Ranks on every node, card by card in file order, GPUs without a NIC last. Default: all its GPUs.
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

    def __post_init__(self) -> None:
        name = self.machine if isinstance(self.machine, str) else ""
        if (several := re.fullmatch("([1-9][0-9]{0,8})x([^,]+)", name)) and not os.path.exists(name):
            if self.nodes != 1:
                raise InputError(f"{name} says how many nodes there are; leave nodes={self.nodes} out")
            if re.fullmatch("(mi|[abhlvp])[0-9]{2,3}[asx]?", several[2], re.IGNORECASE):
                many = f"{name}: {several[1]} GPUs or {several[1]} boxes?"
                raise InputError(f"{many} one box is {several[2]}, boxes are {several[2]} with nodes={several[1]}")
            object.__setattr__(self, "machine", several[2])
            object.__setattr__(self, "nodes", int(several[1]))

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
        given = {"members": members, "relays": relays, "links": links}
        settings |= {name: names_text(names) for name, names in given.items() if names is not None}
        if settings.get("relays") == "":
            settings["relays"] = NONE
        return cls(machine, edits=(edits,) if isinstance(edits, str) else tuple(edits), **settings)

    @classmethod
    def of_part(cls, part: Topology, machine: Topology) -> Question:
        """The question about a selected part of a machine; NCCL sees the links that the part leaves out."""
        whole = replace(machine, members=part.members, relays=part.relays)
        alike = whole.selected().link_classes == part.link_classes
        return cls(whole, links=None if alike else ",".join(part.link_classes))

    @property
    def table(self) -> str:
        """The table of rates in force: the one named, else ``nominal``."""
        return NOMINAL if self.rates is None else self.rates

    def preferring_known(self, rates: str | None) -> Question:
        """The question at `rates`, unless it names rates itself, or the machine does not have these."""
        wanted = self if rates is None or self.rates is not None else replace(self, rates=rates)
        with suppress(InputError):
            wanted.node()
            return wanted
        return self

    def settings(self) -> dict[str, Any]:
        """All settings but the machine and the collective, as JSON values."""
        left_out = ("machine", "collective")
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}

    def node(self) -> Topology:
        """One node, before any edit. Raises as `blinksim.load` does, and if a topology has other rates than asked."""
        if not isinstance(self.machine, Topology):
            return load(self.machine, rates=self.table)
        if self.rates is not None:
            found = preferring(self.machine, self.rates)
            if found is not self.machine:
                return found
        # A table that leaves classes out is labelled like "seed (qpi: nominal)", and one in a file by the
        # name in it.
        loaded = self.machine.loaded_from[1] if self.machine.loaded_from is not None else None
        known = (None, NOMINAL, loaded, self.machine.rates, self.machine.rates.partition(" (")[0])
        if self.rates not in known:
            there = f"{self.machine.name} is loaded at {self.machine.rates} rates"
            raise InputError(f"{there}; give its name instead for {self.rates}")
        return self.machine

    def whole(self) -> Topology:
        """The whole machine: loaded, edited, replicated. Raises as `blinksim.load` does."""
        return assemble(self.node(), self.nodes, self.edits)

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
        numbered = None if self.relays in (IDLE, ALL) else self._numbered(whole)
        return tuple(whole.device(name).name for name in relay_names(self.relays, members, whole.holders, numbered))

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
        return list((assemble(self.node(), self.nodes) if self.edits else whole).holders)


def preferring(topology: Topology, rates: str) -> Topology:
    """A topology at another table of rates, where it was loaded without naming one and its machine has that table.

    Any other topology comes back as it is; its `rates` say so.
    """
    return topology if topology.rates != NOMINAL else at_rates(topology, rates)


def at_rates(topology: Topology, rates: str) -> Topology:
    """A topology at another table of rates of its machine; as it is where that has none, or it is of no machine.

    Edits stay: they are made of that table too; a link that was changed otherwise keeps what it has.
    """
    if topology.loaded_from is None or rates == topology.loaded_from[1]:
        return topology
    if rates in topology.at_rates:
        return topology.at_rates[rates]
    name, table = topology.loaded_from
    again = this_machine if name == HERE else partial(load, name)
    try:
        nodes = (again(rates=one) for one in (table, rates))
        before, after = (assemble(node, topology.nodes or 1, topology.edits) for node in nodes)
    except BlinksimError:
        return topology.at_rates.setdefault(rates, topology)
    # Edits of links have taken away what was measured of them.
    as_it_is = (topology.execution, topology.nccl_rates) == (before.execution, before.nccl_rates)
    if as_it_is and topology == before:
        # What others ask for too, with all that is known of it, such as its cluster of many nodes.
        return topology.at_rates.setdefault(rates, after)
    fabric = after.fabric if topology.fabric == before.fabric else topology.fabric
    # Whatever their lanes.
    own, known = (copies(one.links, lanes=[1] * len(one.links)) for one in (topology, before))
    changed = dict(zip(known, after.links, strict=True))
    links = tuple(copies([changed.get(link, link) for link in own], lanes=[link.lanes for link in topology.links]))
    now: Any = {"links": links, "fabric": fabric, "rates": after.rates, "loaded_from": (name, rates)}
    now["of_nominal"] = after.of_nominal
    now |= {key: getattr(after, key) if as_it_is else None for key in ("execution", "nccl_rates")}
    return topology.at_rates.setdefault(rates, replace(topology, **now))


def at_nominal(topology: Topology) -> Topology:
    """A topology at nominal rates, for bounds, unless it was loaded at those of a file that nobody measured.

    What NCCL counts of links is no bound, as 16 GB/s between CPUs joined by 192; nor is what was measured.
    """
    named = topology.loaded_from is not None and topology.loaded_from[1] in get_args(RatesName)
    return at_rates(topology, NOMINAL) if named or topology.rates.startswith(MEASURED) else topology


def mesh_groups(shape: str, ranks: int, axis: int | None = None) -> list[str]:
    """The members of the groups of a device mesh such as ``2x4``, whose last axis is the innermost.

    axis: only the groups along this axis, counted from 0. Raises `InputError` for a mesh of other than
    `ranks` ranks.

    >>> mesh_groups("2x4", 8)
    ['0,4', '1,5', '2,6', '3,7', '0,1,2,3', '4,5,6,7']
    """
    sides = [int(side) for side in shape.split("x") if re.fullmatch("[0-9]{1,6}", side)]
    if "x".join(map(str, sides)) != shape or prod(sides) != ranks:
        raise InputError(f"mesh={shape}: the product of its sides must be {ranks}, in numbers as in 2x{ranks // 2}")
    if axis is not None and not 0 <= axis < len(sides):
        raise InputError(f"axis={axis}: a mesh of {shape} has axes 0 to {len(sides) - 1}")
    groups, apart = list[str](), ranks
    for number, side in enumerate(sides):
        apart //= side
        if side > 1 and axis in (None, number):
            firsts = (rank for rank in range(ranks) if rank // apart % side == 0)
            groups += [",".join(str(rank + apart * step) for step in range(side)) for rank in firsts]
    return groups
