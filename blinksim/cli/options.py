"""Options of commands, each declared once (name, type, default, help), for Click and for completion.

The options of a command are the attributes of a class, in the order of its help: `option` and `argument`
declare one, `group` includes those of another class, and a base class adds its own at the end. The command is
a function of such an object; its docstring is the help.

In completion a shell waits for every key, so nothing of it imports more than names, and only the models are
read from files.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, SupportsIndex, SupportsInt, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from blinksim import data_files
from blinksim.cli.terminal import FLAGS, OPTIONS, note, typed
from blinksim.collective import ALLTOALLV, COLLECTIVES, OF_EXPERTS, Collective
from blinksim.errors import InputError, unknown
from blinksim.textio import text_files
from blinksim.units import format_rate

if TYPE_CHECKING:
    from blinksim.cli.commands import Bound, Help, MachineOptions, Project, ScheduleMachineOptions, Sweep, Synth
    from blinksim.machines import Question
    from blinksim.schedule.model import Schedule


RATES = ("nominal", "nccl", "seed", "measured")
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64")
OPERATIONS = ("sum", "prod", "min", "max")


class _Completed(click.types.StringParamType):
    """Text, with names that a shell offers for it.

    names: the values, of the line as far as it is typed. files: a file is a value too. several: values stand
    in a list with commas.
    """

    def __init__(
        self, names: Callable[[click.Context], Iterable[str]], *, files: bool = False, several: bool = False
    ) -> None:
        self._names, self._files, self._several = names, files, several

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that go on as `incomplete` begins; the shell adds files where no name does."""
        before, comma, begun = incomplete.rpartition(",") if self._several else ("", "", incomplete)
        taken = before.split(",") if comma else []
        fitting = [name for name in sorted(self._names(ctx)) if name.startswith(begun) and name not in taken]
        items = [CompletionItem(f"{before}{comma}{name}") for name in fitting]
        return [CompletionItem("", type="file"), *items] if self._files else items


def _algorithms(context: click.Context) -> list[str]:
    """The algorithms that have the collective of the line, and the words that a command takes for a choice of them."""
    from blinksim.algorithms.registry import REGISTRY

    # A line that ends with an option is not taken apart; its words are all arguments.
    words = [str(context.params.get("collective")), *context.args]
    wanted = next((word for word in words if word in COLLECTIVES), None)
    named = [entry.name for entry in REGISTRY.values() if wanted is None or entry.supports(wanted)]
    choices = {"project": ("best", "all", "nccl"), "sweep": ("best", "unsearched", "nccl"), "compare": ("nccl",)}
    return [*named, *choices.get(context.info_name or "", ())]


def _models(context: click.Context) -> Iterable[str]:
    from blinksim.timing.model_registry import names

    return names()


def _formats(context: click.Context) -> list[str]:
    """The formats of an export: of schedules, or of machines."""
    from blinksim.formats.registry import FORMATS, TUNER

    return ["nccl-topo"] if context.parent is not None and context.parent.info_name == "topo" else [*FORMATS, TUNER]


def _data(folder: str, pattern: str = "*.yaml") -> list[str]:
    return [path.stem for path in data_files.folder(folder).glob(pattern)]


_WRITTEN = ("log", "logs", "nccl_graph", "output", "plot", "trace", "traffic")
# By the name of the parameter; those of a sub-command go first.
TYPES = {
    "measured machine": _Completed(lambda _: set(_data("models/measured", "*.csv")) - {"sets"}),
    "algorithm": _Completed(_algorithms, files=True),
    "algorithms": _Completed(_algorithms, several=True, files=True),
    "model": _Completed(_models, files=True),
    "compare model": _Completed(_models, several=True, files=True),
    "rates": _Completed(lambda _: [*RATES, *_data("models/rates")], files=True),
    "relays": _Completed(lambda _: ("none", "idle")),
    "name": _Completed(_formats),
    "nccl_version": _Completed(lambda _: [name[11:] for name in _data("models", "nccl-tuner-*.yaml")]),
    "dtype": _Completed(lambda _: DTYPES),
    "op": _Completed(lambda _: OPERATIONS),
    **dict.fromkeys(("machine", "topo import file"), _Completed(lambda _: _data("topologies"), files=True)),
    **dict.fromkeys(("schedule", "file"), _Completed(lambda _: _data("schedules", "*.json"), files=True)),
    **dict.fromkeys(("collective", "bottleneck"), _Completed(lambda _: COLLECTIVES)),
    **dict.fromkeys(_WRITTEN, _Completed(lambda _: (), files=True)),
}


_MACHINE = "MACHINE: a name from `blinksim topo list`, a file, or a shape such as ring:8."
# What --gpus stands for without a number.
ALL_GPUS = 64
T = TypeVar("T")
Given = TypeVar("Given", bound="Options")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,2})?")


class Whole(click.IntRange):
    """A whole number in a range. Python's own conversion, which click calls, also takes ``\u0663`` and ``1_000``."""

    def convert(
        self, value: str | SupportsInt | SupportsIndex, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        return super().convert(int(_plain(value, _WHOLE, "whole number", param, ctx)), param, ctx)


class Decimal(click.FloatRange):
    """A decimal number in a range."""

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return super().convert(float(_plain(value, _DECIMAL, "number", param, ctx)), param, ctx)


def _plain(
    value: T, pattern: re.Pattern[str], what: str, param: click.Parameter | None, ctx: click.Context | None
) -> T:
    """`value`; refuses text that is not written as `pattern`: ASCII digits, of a length that means something."""
    if isinstance(value, str) and not pattern.fullmatch(value.strip()):
        if "," in value and isinstance(param, Option) and param.rates:
            what += f"; for several: blinksim sweep MACHINE COLLECTIVE --vary {param.opts[0][2:]}={value:.40}"
        raise click.BadParameter(f"{value[:40]!r} is not a {what}.", ctx, param)
    return value


class Option(click.Option):
    """An option. rare: --help leaves it out. rates: the default of --rates, for an option that chooses a machine."""

    rare, rates = False, ""


class Command(click.Command):
    """A command whose --help shows the common options, and `blinksim help` the rare ones, too."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the options: rare ones only if the context has an object, those of machines never."""
        options = [option for option in self.params if isinstance(option, Option)]
        machine = [option for option in options if option.rates]
        rare = [option for option in options if option.rare and not ctx.obj]
        common = [option for option in self.params if option not in [*machine, *rare]]
        click.Command(self.name, params=common).format_options(ctx, formatter)
        if machine or rare:
            formatter.write_paragraph()
        with formatter.indentation():
            if machine:
                formatter.write_text("Which machine and GPUs (--nodes, --members, --edit …): blinksim help machine")
                if machine[0].rates != "nominal":
                    formatter.write_text(f"Default of --rates: {machine[0].rates}")
            if rare:
                name = ctx.command_path.partition(" ")[2]
                formatter.write_text(f"{len(rare)} more options: blinksim help {name}")


class _Declared(NamedTuple):
    """An option or an argument.

    flags: as it is typed, if not by the attribute's name. kind: its values, if the type does not say which.
    bare: what it stands for without a value. rare: --help leaves it out. text: its description, if several
    classes have it; otherwise the docstring of the class describes it.
    """

    default: object = None
    text: str | None = None
    flags: str = ""
    kind: click.ParamType[object] | None = None
    metavar: str | None = None
    required: bool = False
    bare: str | None = None
    rare: bool = False
    positional: bool = False

    def typed(self, name: str) -> list[str]:
        """The option as it is typed."""
        return self.flags.split() or [f"--{name.replace('_', '-')}"]

    def parameter(self, name: str, annotation: str, command: str, text: str | None, rates: str) -> click.Parameter:
        """The parameter for click; the annotation says if it is a flag, or several values."""
        flag, several = annotation.startswith("bool"), annotation.startswith("tuple")
        kind = self.kind or TYPES.get(f"{command} {name}") or TYPES.get(name) or click.STRING
        if self.positional:
            needed = self.required or not (several or annotation.endswith("None"))
            return click.Argument([name], type=kind, required=needed, nargs=-1 if several else 1, metavar=self.metavar)
        more: dict[str, Any] = {"is_flag": True} if flag else {"type": kind, "multiple": several}
        if self.bare is not None:
            more |= {"is_flag": False, "flag_value": self.bare}
        default = bool(self.default) if annotation == "bool" else self.default
        if default is not None or flag:
            more |= {"default": default, "show_default": default is not False and default != ""}
        more |= {"help": self.text or text, "metavar": self.metavar, "required": self.required}
        made = Option([name, *self.typed(name)], **more)
        made.rare, made.rates = self.rare, rates
        return made


class _Group(NamedTuple):
    """The options of another class; rates: the default of --rates there, in words."""

    kind: type[Options]
    rates: str


def option(default: T | None = None, **more: object) -> T:
    """Declares an option with the name and the type of the attribute, and the fields of `_Declared`."""
    return cast("T", _Declared(default, **cast("dict[str, Any]", more)))


def choice(values: str, default: T | None = None, **more: object) -> T:
    """Declares an option with these values, which blanks part."""
    return option(default, kind=click.Choice(values.split()), **more)


def argument(default: T | None = None, **more: object) -> T:
    """Declares an argument, which may be left out if the attribute may be None."""
    return option(default, positional=True, **more)


def group(kind: type[Given], rates: str = "") -> Given:
    """Includes the options of a class at this place; rates: the default of --rates, in words."""
    return cast("Given", _Group(kind, rates))


class Options:
    """The values of a command line as attributes, which subclasses declare.

    A command is such a class with a function to `run`, written ``module:name``. The first paragraph of its
    docstring stands in the list of commands, the others are its help. Options are described below "Options:",
    a line for each, and examples come last.
    """

    run: ClassVar[str]

    def __init_subclass__(cls, run: str | None = None) -> None:
        if run is not None:
            cls.run = run
            COMMANDS[" ".join(re.findall("[A-Z][a-z]*", cls.__name__)).lower()] = cls

    def __init__(self, values: Mapping[str, object]) -> None:
        for name, declared in [entry for kind in type(self).__mro__ for entry in vars(kind).items()]:
            if isinstance(declared, _Group):
                setattr(self, name, declared.kind(values))
            elif isinstance(declared, _Declared):
                setattr(self, name, values[name])

    def check_files(self, folder: bool = False) -> None:
        """Refuses files that cannot be written, before the work, and --plot-y without a picture.

        folder: whether --output names a folder.
        """
        given = vars(self)
        for name in ("output", "times_to", "routing_to", "plugin", "trace"):
            if given.get(name):
                check = text_files.check_folder if folder and name == "output" else text_files.check_target
                check(given[name], given["force"])
        if given.get("plot"):
            from blinksim import plots

            plots.check(given["plot"], force=given["force"])
        elif given.get("plot_y", "algbw") != "algbw":
            raise InputError("--plot-y says what a picture shows; name its file with --plot")

    @classmethod
    def parameters(cls, command: str, rates: str = "") -> Iterator[click.Parameter]:
        """The parameters for click, in the order of the attributes; inherited ones come last."""
        listed = cls.part("Options").replace("{rates}", rates)
        described = re.findall(r"^  (\w+): (.*(?:\n {4,}.*)*)", listed, re.MULTILINE)
        texts = {name: " ".join(text.split()).replace(" [default:", "  [default:") for name, text in described}
        for name, declared in vars(cls).items():
            if isinstance(declared, _Group):
                yield from declared.kind.parameters(command, declared.rates)
            elif isinstance(declared, _Declared):
                yield declared.parameter(name, cls.__annotations__[name], command, texts.get(name), rates)
        for base in cls.__bases__:
            if issubclass(base, Options):
                yield from base.parameters(command, rates)

    @classmethod
    def part(cls, heading: str) -> str:
        """The part of the docstring below a heading, or before all of them."""
        parts = re.split(r"\n\n(?=(?:Options|Examples?):\n)", inspect.cleandoc(cls.__doc__ or ""))
        return next((part for part in parts[1:] if part.startswith(heading)), "") if heading else parts[0]


# The commands by name, those of a group behind it.
COMMANDS: dict[str, type[Options]] = {}


@cache
def built(name: str) -> click.Command:
    """The command of this name for click, with those of its group."""
    options = COMMANDS[name]
    summary, _, about = options.part("").replace("{machine}", _MACHINE).partition("\n\n")
    examples = options.part("Example")

    def carry_out(**values: object) -> None:
        module, _, function = options.run.partition(":")
        getattr(import_module(module), function)(options(values))

    epilog = f"\b\n{examples}" if examples else None
    texts: dict[str, Any] = {"short_help": summary, "help": about or summary, "epilog": epilog}
    if not options.run:
        return click.Group(name, commands=[built(sub) for sub in COMMANDS if sub.startswith(f"{name} ")], **texts)
    # An option that two groups have is one.
    params = {parameter.name: parameter for parameter in options.parameters(name)}
    return Command(name.split()[-1], callback=carry_out, params=[*params.values()], **texts)


def explain(options: Help) -> None:
    """Prints a command with all its options, the options that choose a machine, or what a word means."""
    from blinksim.algorithms.registry import REGISTRY
    from blinksim.formats.shipped.machine_names import ALIASES, names, outline

    word = re.sub("(?i)^what('s| is| are) (an? |the )?|[?]$", "", " ".join(options.words))
    root = click.get_current_context().find_root()
    formatter = root.make_formatter()
    glossary = text_files.read_text(data_files.folder("docs") / "glossary.md")
    meant = {name: f"the algorithm {name}: {entry.summary}" for name, entry in REGISTRY.items()}
    for machine in {*names(), *ALIASES} & {word.lower()}:
        meant[machine] = f"{machine}: {outline(machine).title}, a machine: blinksim topo show {machine}"
    for option in [each for name in COMMANDS for each in built(name).params if word[:1] == "-" and word in each.opts]:
        meant.setdefault(word, f"{word}: {getattr(option, 'help', '')}")
    for entry in re.findall(r"^- (.*(?:\n  .*)*)", glossary, re.MULTILINE):
        meant |= dict.fromkeys(re.findall(r"\*\*(.+?)\*\*", entry), entry)
    # As in all_reduce, all-reduce and links.
    plain = {re.sub("[ _-]|s$", "", name.lower()): name for name in meant} | {x.lower(): x for x in meant}
    if word in COMMANDS or not word:
        context = click.Context(built(word), root, word, obj=True) if word else root
        context.command.format_help(context, formatter)
    if not word:
        with formatter.section("Words"):
            columns = [iter(sorted({*plain.values()}, key=str.lower))] * 3
            for row in zip_longest(*columns, fillvalue=""):
                formatter.write(f"  {'{:26}{:26}{}'.format(*row).rstrip()}\n")
    elif name := plain.get(word.lower(), plain.get(re.sub("[ _-]|s$", "", word.lower()))):
        formatter.write("\n" * (word in COMMANDS))
        formatter.write_text(" ".join(re.sub(r"\*\*|`", "", meant[name]).split()))
        if name == "machine":
            given = [option for option in built("bound").params if isinstance(option, Option) and option.rates]
            click.Command(name, params=[*given], add_help_option=False).format_options(root, formatter)
    elif word not in COMMANDS:
        raise unknown("word", word, [*meant, *COMMANDS], hint="(blinksim help lists them, none of your own files)")
    click.echo(formatter.getvalue(), nl=False)


def option_name(given: object, attribute: str) -> str:
    """The option of an attribute of options or of a question, as it is typed."""
    declared = getattr(type(given), attribute)
    if isinstance(declared, _Declared):
        return declared.typed(attribute)[0]
    return {**OPTIONS, **FLAGS}[attribute]


def typed_options(given: object, *names: str) -> str:
    """Options (default: all) that are not at their defaults in `given`, as typed, each after a blank."""
    words = []
    for name in names or vars(given):
        declared, value, flag = getattr(type(given), name), getattr(given, name), option_name(given, name)
        default = declared.default if isinstance(declared, _Declared) else declared
        for each in value if isinstance(value, tuple) else (value,):
            if each is True:
                words.append(f" {flag}")
            elif each is not None and each is not False and each != default:
                words.append(f" {flag} {each:g}" if isinstance(each, float) else f" {flag} {shlex.quote(str(each))}")
    return "".join(words)


def wanted_of(options: Bound | Project | Synth, question: Question) -> Collective:
    """The collective of a command that knows dispatch and combine, which have options of their own."""
    if options.collective is None:
        raise click.UsageError("Missing argument 'COLLECTIVE'.")
    if of_tokens(options):
        from blinksim.timing.experts import expert_collective

        return expert_collective(question.part(), options.collective.lower(), **vars(options.drawing))
    return collective_of(options.collective, **vars(options.data))


def of_tokens(options: Bound | Project | Sweep | Synth) -> bool:
    """Whether a command is asked about a dispatch or combine; refuses options of these for others."""
    # A seed is of other collectives too.
    own = [name for name in vars(options.drawing) if not hasattr(options, name)]
    name, given = (options.collective or "").lower(), typed_options(options.drawing, *own)
    if name in OF_EXPERTS and not typed_options(options.data):
        return True
    if given:
        raise InputError(f"{name} takes no{given}: only bytes count for the time, or tokens in a dispatch")
    return False


def collective_of(name: str, root: int | None = None, traffic: str | None = None) -> Collective:
    """The collective that a command line names, with its root and the matrix in the file `traffic`."""
    if traffic is None:
        if name.lower() == ALLTOALLV:
            raise InputError("alltoallv needs --traffic FILE, the bytes from every rank to every other")
        return Collective.parse(name, root)
    from blinksim.formats.traffic_files import read_traffic

    return Collective.parse(name, root, read_traffic(traffic))


def schedule_question(where: ScheduleMachineOptions) -> Question:
    """The machine that a schedule is to run on, without a name if the file has it."""
    from blinksim.machines import Question

    given: dict[str, Any] = {"members": where.members, "rates": where.rates}
    for key, value in given.items():
        if value is not None and not where.machine:
            raise InputError(f"--{key} says what --machine is; give --machine too")
    return Question(where.machine or "", where.nodes, edits=where.edits, **given)


def read_schedule(schedule: str, where: ScheduleMachineOptions) -> Schedule:
    """The schedule of a file or a name, on the machine that the options name."""
    from blinksim.answers.verify import read_schedule as read

    question = schedule_question(where)
    return read(schedule, question if question.machine or question.edits else None, root=where.root)


def question_of(machine: str, where: MachineOptions, before: bool = False) -> Question:
    """The question that a command line asks; `before` also asks for the machine before its edits.

    What was assumed of a shape, or of a machine that is read from another tool's file, is noted on stderr.
    """
    from blinksim.machines import Question, remarks
    from blinksim.topology.shapes import BANDWIDTH, FORMS, NO_RATE

    given = {name: value for name, value in vars(where).items() if name != "without_in_network"}
    if where.without_in_network:
        given["edits"] = (*where.edits, "without in-network")
    question = Question(machine, **given)
    shape, at, rate = machine.partition("@")
    if ":" in shape and shape.partition(":")[0].lower() in FORMS and (not at or NO_RATE.fullmatch(rate)):
        # Without building it, which takes time for thousands of GPUs.
        assumed = f"{format_rate(BANDWIDTH)} a lane and direction is assumed; {shape}@50GB/s has another rate"
        note(f"{machine}: {assumed}")
    if os.path.isfile(machine) and not machine.lower().endswith((".yaml", ".yml")):
        for remark in remarks(question.node()):
            note(f"{machine}: {remark}")
    if before and not question.edits:
        raise InputError("--before is about the machine before its edits; give one with --edit")
    return question


def left(was: float, now: float, timed: str = "") -> str:
    """algbw before and after the edits, given in bytes/s, in a line. timed: time and busbw before, where there are."""
    words_of_times = "takes ", "longer", "less time", "as long", "long"
    verb, more, less, alike, high = words_of_times if timed else ("", "lower", "higher", "the same", "high")
    change = was / now - 1 if timed else 1 - now / was
    share = f"{100 * abs(change):.1f} %"
    words = alike if share == "0.0 %" else f"{share} {more if change > 0 else less}"
    words = words if abs(change) < 1 else f"{1 + abs(change):.1f} times as {high}"
    return f"{timed or f'{format_rate(was)} algbw'} without the edit; {verb}{words} with it"


def command_line(question: Question, collective: str = "", root: int | None = None, traffic: str | None = None) -> str:
    """The machine, a collective and the options as they are typed; FILE for what came through standard input."""
    words = [typed(str(question.machine)), *([collective] if collective else [])]
    words += [] if root is None else ["--root", str(root)]
    words += [] if traffic is None else ["--traffic", typed(traffic)]
    names = ("nodes", "ranks_per_node", "members", "relays", "links", "rates", "relays_reduce", "edits")
    return " ".join(words) + typed_options(question, *names)
