"""Options that commands share: which machine, how many nodes, who takes part, over which links, at which rates."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

import click

from blinksim.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])

MACHINE_HELP = (
    "MACHINE: a name from `blinksim topo list`, a YAML file, an NCCL topo.xml, text of `nvidia-smi topo -m`, or a "
    "shape such as torus:4x4."
)

_OPTIONS = (
    click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes, joined by its fabric."),
    click.option(
        "--ranks-per-node",
        type=click.IntRange(1),
        help="Ranks on every node, placed card by card in file order.  [default: all its GPUs]",
    ),
    click.option(
        "--members",
        "--ranks",
        "members",
        metavar="LIST",
        help="The GPUs that take part, by number (0,1,4 or 0-3) or name; rank order is list order.  [default: all]",
    ),
    click.option(
        "--relays",
        metavar="none|idle|LIST",
        default="none",
        show_default=True,
        help="GPUs without a rank that may forward.",
    ),
    click.option("--relays-reduce", is_flag=True, help="Relays may also reduce and multicast (Blink+'s helpers)."),
    click.option(
        "--links",
        metavar="CLASSES",
        help="Link classes to use, such as nvlink or xe,mdfi, or all.  [default: what the machine file says]",
    ),
    click.option(
        "--edit",
        "edits",
        multiple=True,
        metavar="EDIT",
        help="A what-if; may be repeated: 'without gpu3', 'without gpu0-gpu3', 'degrade gpu0-gpu3 lanes=1', "
        "'replace xe bandwidth=53GB/s', 'add gpu0-gpu5 nvlink lanes=1'. It changes every node, or one if it names it "
        "(n0.gpu0).",
    ),
    click.option(
        "--rates",
        metavar="NAME|FILE",
        default="nominal",
        show_default=True,
        help="Table of bandwidths: nominal, seed, nccl, measured, or a YAML file.",
    ),
)


def root_option(command: F) -> F:
    """Adds --root, which is None where it is not given: only some collectives take one."""
    text = "Root rank of broadcast, reduce, gather, scatter.  [default: 0]"
    return click.option("--root", type=int, help=text)(command)


def sizes_option(default: str) -> Callable[[F], F]:
    """Adds --sizes, as `blinksim.answers.compare.parse_sizes` reads them."""
    text = "Doubling from one size to another, with a factor as in 1KiB:1GiB:x4, or a list 1MiB,64MiB."
    return click.option("--sizes", default=default, show_default=True, help=text)


def machine_options(command: F) -> F:
    """Adds the options that `Setting.of` understands, and what MACHINE may be to the help text."""
    command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{MACHINE_HELP}"
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def output_options(*, table: bool = False) -> Callable[[F], F]:
    """Adds --json and -q, and for commands whose answer is a table --csv."""

    def one_of(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
        if value and context.params.get("as_json"):
            raise InputError("--json and --csv are two forms of the answer; choose one")
        return value

    def add(command: F) -> F:
        command = click.option("-q", "--quiet", is_flag=True, help="No notes on stderr.")(command)
        if table:
            text = "Print the rows as CSV."
            command = click.option("--csv", "as_csv", is_flag=True, callback=one_of, help=text)(command)
        return click.option("--json", "as_json", is_flag=True, is_eager=True, help="Print one JSON object.")(command)

    return add


@dataclass(frozen=True)
class Setting:
    """What a command runs on, as given on the command line."""

    machine: str
    nodes: int = 1
    ranks_per_node: int | None = None
    members: str | None = None
    relays: str = "none"
    relays_reduce: bool = False
    links: str | None = None
    edits: tuple[str, ...] = ()
    rates: str = "nominal"

    @classmethod
    def of(cls, machine: str, options: dict[str, Any]) -> Setting:
        """Takes the options of `machine_options` out of a command's keyword arguments."""
        keys = ("nodes", "ranks_per_node", "members", "relays", "relays_reduce", "links", "edits", "rates")
        return cls(machine, **{key: options.pop(key) for key in keys})

    def load(self) -> Any:
        """The whole machine: loaded, edited, replicated."""
        from blinksim import machines

        return machines.load(self.machine, nodes=self.nodes, rates=self.rates, edits=self.edits)

    def select(self, whole: Any = None) -> Any:
        """The part that takes part, as `Topology.select` gives it."""
        whole = self.load() if whole is None else whole
        members = self.chosen(whole)
        relays = self.relay_names(whole, members)
        if self.relays_reduce and not relays:
            raise InputError("--relays-reduce says what relays may do; name some with --relays")
        return whole.select(members, relays, self.link_classes(whole), relays_reduce=self.relays_reduce)

    def chosen(self, whole: Any) -> tuple[str, ...]:
        """The devices that hold ranks, in rank order."""
        from blinksim.topology.cluster import place

        if self.members is None:
            return place(whole, self.ranks_per_node)
        if self.ranks_per_node is not None:
            raise InputError("--members and --ranks-per-node both say who takes part; give one of them")
        return self.devices(whole, self.members, "--members")

    def relay_names(self, whole: Any, members: tuple[str, ...]) -> tuple[str, ...]:
        """The devices that --relays names; ``idle`` is every GPU that is no member."""
        if self.relays == "none":
            return ()
        if self.relays == "idle":
            return tuple(d.name for d in whole.devices if d.holds and d.name not in members)
        near = get_close_matches(self.relays.lower(), ("idle", "none"), n=1, cutoff=0.7)
        if near:
            raise InputError(f"--relays {self.relays}: did you mean {near[0]}?")
        return self.devices(whole, self.relays, "--relays")

    def devices(self, whole: Any, text: str, option: str) -> tuple[str, ...]:
        """Names of the GPUs in a list such as ``0,1,4``, ``0-3`` or ``gpu0,gpu3``.

        Numbers count the GPUs of the machine file, whatever the edits took away.
        """
        from dataclasses import replace

        unedited = replace(self, edits=()).load() if self.edits else whole
        holders = [device.name for device in unedited.devices if device.holds]
        return tuple(whole.device(name).name for name in _listed(holders, text, option))

    def link_classes(self, whole: Any) -> tuple[str, ...] | None:
        """The classes that --links names, None for the machine's default."""
        if self.links is None:
            return None
        given = tuple(kind.strip() for kind in self.links.split(",") if kind.strip())
        if not given:
            raise InputError("--links names no link class; leave it out for the machine's default, or say all")
        return tuple(whole.link_classes) if given == ("all",) else given

    def command_line(self, collective: str = "", root: int | None = None) -> str:
        """The machine, a collective and the options as they would be typed again."""
        words = [shlex.quote(self.machine), *([collective] if collective else [])]
        words += [] if root is None else ["--root", str(root)]
        for key, default in (("nodes", 1), ("ranks_per_node", None), ("members", None), ("relays", "none"),
                             ("links", None), ("rates", "nominal")):  # fmt: skip
            value = getattr(self, key)
            if value != default:
                words += [f"--{key.replace('_', '-')}", shlex.quote(str(value))]
        words += ["--relays-reduce"] if self.relays_reduce else []
        return " ".join([*words, *(f"--edit {shlex.quote(edit)}" for edit in self.edits)])

    def described(self, topology: Any) -> dict[str, Any]:
        """What an answer in JSON says about the machine, so that it can be checked again."""
        return {
            "machine": topology.name,
            "source": self.machine,
            "nodes": self.nodes,
            "edits": list(self.edits),
            "members": list(topology.members),
            "relays": list(topology.relays),
            **({"relays_reduce": True} if self.relays_reduce else {}),
            "links": list(topology.default_links()),
            "rates": topology.rates,
            "rates_source": self.rates,
        }


def _listed(holders: list[str], text: str, option: str) -> list[str]:
    chosen: list[str] = []
    for part in (piece.strip() for piece in text.split(",")):
        first, dash, last = part.partition("-")
        if first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit())):
            low, high = int(first[:9]), int((last or first)[:9])
            if high < low:
                raise InputError(f"{option} {part} runs backwards; write {high}-{low}")
            if high >= len(holders):
                raise InputError(f"{option} {part}: the machine has GPUs 0 to {len(holders) - 1}")
            chosen += holders[low : high + 1]
        elif part:
            chosen.append(part)
        else:
            raise InputError(f"{option} {text!r}: a name is missing between the commas; write it like 0,1,4")
    return chosen
