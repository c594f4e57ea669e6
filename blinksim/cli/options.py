"""Options that commands share: machine, nodes, members, links and rates."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypedDict, TypeVar

import click

from blinksim.cli.numbers import Integer, Whole
from blinksim.cli.output import note, typed
from blinksim.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.question import Question
    from blinksim.schedule.model import Schedule

P = ParamSpec("P")
R = TypeVar("R")

MACHINE_HELP = (
    "MACHINE: a name from `blinksim topo list`, a YAML file, an NCCL topo.xml, text of `nvidia-smi topo -m`, a shape "
    "such as torus:4x4, or - for standard input."
)

_OPTIONS = (
    click.option("--nodes", type=Whole(1), default=1, show_default=True, help="Nodes, joined by its fabric."),
    click.option(
        "--ranks-per-node",
        type=Whole(1),
        help="Ranks on every node, placed card by card in file order.  [default: all its GPUs]",
    ),
    click.option(
        "--members",
        "--ranks",
        "members",
        metavar="LIST",
        help="The GPUs to run on, by number (0,1,4 or 0-3) or name; rank order is list order.  [default: all]",
    ),
    click.option(
        "--relays",
        metavar="none|idle|LIST",
        help="GPUs without a rank that may forward.  [default: those that the machine file names]",
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
        help="A what-if; may be repeated: 'without gpu3', 'without gpu0-gpu3', 'without nic[0-3]', "
        "'degrade gpu0-gpu3 lanes=1', 'replace xe bandwidth=53GB/s', 'add gpu0-gpu5 nvlink lanes=1', "
        "'nvswitch can=forward'. It changes every node, or one if it names it (n0.gpu0).",
    ),
    click.option(
        "--without-in-network", is_flag=True, help="Switches neither multicast nor reduce: --edit 'without in-network'."
    ),
)


def root_option(command: Callable[P, R]) -> Callable[P, R]:
    """Adds --root, which is None where it is not given: only some collectives take one."""
    text = "Root rank of broadcast, reduce, gather, scatter.  [default: 0]"
    return click.option("--root", type=Integer(), help=text)(command)


def traffic_option(command: Callable[P, R]) -> Callable[P, R]:
    """Adds --traffic, which names the traffic matrix of an alltoallv."""
    text = "For alltoallv: the bytes from every rank to every other, as CSV or .npy, a row per rank (blinksim traffic)."
    return click.option("--traffic", metavar="FILE", help=text)(command)


def collective_of(name: str, root: int | None, traffic: str | None) -> Collective:
    """The collective that a command line names, with its root and the matrix in the file `traffic`."""
    from blinksim.collective import ALLTOALLV, Collective

    if traffic is None:
        if name.lower() == ALLTOALLV:
            raise InputError(
                "alltoallv needs --traffic FILE: the bytes from every rank to every other (blinksim traffic)"
            )
        return Collective.parse(name, root)
    from blinksim.formats.traffic_files import read_traffic

    return Collective.parse(name, root, read_traffic(traffic))


def where_options(command: Callable[P, R]) -> Callable[P, R]:
    """Adds --workers and --cluster: where the work is done."""
    text = "A dask scheduler to work on instead, such as tcp://host:8786."
    command = click.option("--cluster", metavar="ADDRESS", help=text)(command)
    text = "Processes on this machine."
    return click.option("--workers", type=Whole(1), default=1, show_default=True, help=text)(command)


def check_where(machine: str, workers: int, cluster: str | None) -> None:
    """Refuses processes that cannot read the machine's description."""
    if machine == "-" and (cluster or workers != 1):
        raise InputError("other processes cannot read standard input; name the machine's file")


def sizes_option(default: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Adds --sizes, as `blinksim.units.parse_sizes` reads them."""
    text = "Doubling from one size to another, with a factor as in 1KiB:1GiB:x4, or a list 1MiB,64MiB; 64M is 64MiB."
    return click.option("--sizes", default=default, show_default=True, help=text)


def plot_y_option(command: Callable[P, R]) -> Callable[P, R]:
    """Adds --plot-y: what the pictures of sizes and nodes show."""
    names = click.Choice(["algbw", "busbw", "time"])
    text = "What the picture shows upwards."
    return click.option("--plot-y", type=names, default="algbw", show_default=True, help=text)(command)


def check_picture(plot: str | None, plot_y: str, *, force: bool) -> None:
    """Refuses a picture that cannot be written before any work is done, and --plot-y without a picture."""
    if plot:
        from blinksim import plots

        plots.check(plot, force=force)
    elif plot_y != "algbw":
        raise InputError("--plot-y says what a picture shows; name its file with --plot")


def machine_options_at(rates: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As `machine_options`, for a command that has another default of --rates, in words."""
    text = f"Table of bandwidths: nominal, seed, nccl, measured, or a YAML file.  [default: {rates}]"

    def add(command: Callable[P, R]) -> Callable[P, R]:
        command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{MACHINE_HELP}"
        for option in reversed((*_OPTIONS, click.option("--rates", metavar="NAME|FILE", help=text))):
            command = option(command)
        return command

    return add


def machine_options(command: Callable[P, R]) -> Callable[P, R]:
    """Adds the options that `question_of` understands, and what MACHINE may be to the help text."""
    return machine_options_at("nominal")(command)


def output_options(*, table: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Adds --json and -q, and for commands whose answer is a table --csv."""

    def one_of(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
        if value and context.params.get("as_json"):
            raise InputError("--json and --csv are two forms of the answer; choose one")
        return value

    def add(command: Callable[P, R]) -> Callable[P, R]:
        command = click.option("-q", "--quiet", is_flag=True, help="No notes on stderr.")(command)
        if table:
            text = "Print the rows as CSV."
            command = click.option("--csv", "as_csv", is_flag=True, callback=one_of, help=text)(command)
        return click.option("--json", "as_json", is_flag=True, is_eager=True, help="Print one JSON object.")(command)

    return add


class ScheduleMachineOptions(TypedDict):
    """What `schedule_machine_options` adds to a command."""

    machine: str | None
    rates: str | None
    edits: tuple[str, ...]
    members: str | None
    nodes: int
    root: int


def schedule_machine_options(command: Callable[P, R]) -> Callable[P, R]:
    """Adds the options that say on which machine a schedule runs."""
    texts = {
        "machine": "The machine, instead of the one in the file; files of MSCCL and MSCCL++ name none.",
        "rates": "Rates for --machine.  [default: nominal]",
        "edits": "A what-if, such as 'without gpu0-gpu3'; may be repeated.",
        "members": "For files of MSCCL and MSCCL++: the GPUs of their ranks, in order.  [default: all]",
        "nodes": "For files of MSCCL and MSCCL++: nodes of the machine.",
        "root": "For files of MSCCL and MSCCL++, which do not name it: the root.",
    }
    for option in (
        click.option("--root", type=Whole(0), default=0, show_default=True, help=texts["root"]),
        click.option("--nodes", type=Whole(1), default=1, show_default=True, help=texts["nodes"]),
        click.option("--members", metavar="LIST", help=texts["members"]),
        click.option("--edit", "edits", multiple=True, metavar="EDIT", help=texts["edits"]),
        click.option("--rates", metavar="NAME|FILE", help=texts["rates"]),
        click.option("--machine", metavar="MACHINE", help=texts["machine"]),
    ):
        command = option(command)
    return command


def read_schedule(schedule: str, options: ScheduleMachineOptions) -> Schedule:
    """The schedule of a file or a name, on the machine that the options name."""
    from blinksim.answers.checks.read_schedule import moved_to
    from blinksim.answers.checks.read_schedule import read_schedule as read
    from blinksim.question import Question

    question = Question(
        options["machine"] or "",
        nodes=options["nodes"],
        members=options["members"],
        rates=options["rates"],
        edits=options["edits"],
    )
    if question.machine:
        return read(schedule, question, root=options["root"])
    for key, value in (("members", question.members), ("rates", question.rates)):
        if value is not None:
            raise InputError(f"--{key} says what --machine is; give --machine too")
    found = read(schedule)
    if not question.edits:
        return found
    moved = moved_to(found, question)
    if isinstance(moved, tuple):
        raise InfeasibleError(f"{schedule} does not run after this edit: {moved[0]}")
    return moved


class MachineOptions(TypedDict):
    """What `machine_options` adds to a command."""

    nodes: int
    ranks_per_node: int | None
    members: str | None
    relays: str | None
    relays_reduce: bool
    links: str | None
    edits: tuple[str, ...]
    without_in_network: bool
    rates: str | None


class TextOptions(TypedDict):
    """What `output_options` adds to a command."""

    as_json: bool
    quiet: bool


class TableOptions(TextOptions):
    """What `output_options` adds to a command whose answer is a table."""

    as_csv: bool


def question_of(machine: str, options: MachineOptions) -> Question:
    """The question that a command line asks; raises `KeyError` without the options of `machine_options`.

    What was assumed of a machine that is read from another tool's file is noted on stderr.
    """
    from blinksim.question import Question

    question = Question(
        machine,
        nodes=options["nodes"],
        ranks_per_node=options["ranks_per_node"],
        members=options["members"],
        relays=options["relays"],
        relays_reduce=options["relays_reduce"],
        links=options["links"],
        edits=(*options["edits"], *(["without in-network"] if options["without_in_network"] else [])),
        rates=options["rates"],
    )
    if os.path.isfile(machine) and not machine.lower().endswith((".yaml", ".yml")):
        from blinksim.machines import remarks

        for remark in remarks(question.node()):
            note(f"{machine}: {remark}", quiet=bool(dict(options).get("quiet")))
    return question


def command_line(question: Question, collective: str = "", root: int | None = None, traffic: str | None = None) -> str:
    """The machine, a collective and the options as they are typed."""
    words = [typed(str(question.machine)), *([collective] if collective else [])]
    words += [] if root is None else ["--root", str(root)]
    words += [] if traffic is None else ["--traffic", typed(traffic)]
    for key, default in (
        ("nodes", 1),
        ("ranks_per_node", None),
        ("members", None),
        ("relays", None),
        ("links", None),
        ("rates", None),
    ):
        value = getattr(question, key)
        if value != default:
            words += [f"--{key.replace('_', '-')}", shlex.quote(str(value))]
    words += ["--relays-reduce"] if question.relays_reduce else []
    return " ".join([*words, *(f"--edit {shlex.quote(edit)}" for edit in question.edits)])
