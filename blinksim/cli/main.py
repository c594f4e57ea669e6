"""The entry point: a lazy group of commands, and one place where errors become messages and exit statuses."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from inspect import cleandoc
from typing import NoReturn

import click

from blinksim._version import __version__
from blinksim.cli.commands import COMMANDS
from blinksim.cli.options import built
from blinksim.cli.terminal import EscapedStream, as_typed, note, still_at_work
from blinksim.collective import COLLECTIVES, spelt
from blinksim.errors import BlinksimError, InputError, OutdatedWarning, nearest_names
from blinksim.textio.text_files import read_words

# The exit status of a bug: EX_SOFTWARE of sysexits.h.
BUG = 70
_DEBUG = "--debug"

_EXAMPLES = {"MACHINE": "hgx-h100", "COLLECTIVE": "allreduce", "SIZE": "256MiB"}
_SUCH_AS = {f"Missing argument '{name}'": f", such as {example}" for name, example in _EXAMPLES.items()}
_FIRST = ("project", "compare", "bound", "advise", "diagnose", "topo", "help")
_MACHINE_FIRST = ("project", "compare", "bound", "synth", "sweep", "advise")
_WITH_SIZE = ("project", "advise")


class Commands(click.Group):
    """The commands, built on use; a misspelt one gets the nearest names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if " " not in name]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return built(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            near = nearest_names(args[0], known, 2, 0.6)
            advice = f"did you mean {' or '.join(near)}?" if near else f"commands: {', '.join(known)}"
            ctx.fail(f"unknown command {args[0]!r}: {advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {name: COMMANDS[name].part("").partition("\n\n")[0] for name in self.list_commands(ctx)}
        for title, names in (("Start here", _FIRST), ("More", [name for name in rows if name not in _FIRST])):
            with formatter.section(title):
                formatter.write_dl([(name, rows[name]) for name in names])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="blinksim", message="%(prog)s %(version)s")
@click.option(_DEBUG, is_flag=True, expose_value=False, help="Show the traceback of a bug; goes with every command.")
def cli() -> None:
    """How fast can a collective be on this multi-GPU machine, how fast will it be, and why?

    \f
    \b
    A first answer:
      blinksim project hgx-h100 allreduce 256MiB
    All options of a command, or what a word of an answer means:
      blinksim help project
      blinksim help busbw
    Exit status: 0 ok, 1 the answer is "no", 2 usage or bad input, 3 not expressible or infeasible,
    4 a missing extra or missing hardware, 5 nothing wrong but not all proved or known, 70 a bug in blinksim.
    The answer goes to stdout, progress to stderr.
    """


# What stands behind the form feed ends the help.
cli.epilog = cleandoc(cli.callback.__doc__ or "").partition("\f")[2].strip("\n")


def _swapped(words: Sequence[str]) -> str:
    """What to say where a collective stands in place of the command or the machine, or a size in its own."""
    bare = spelt("".join(words[:1])) in COLLECTIVES
    words = [*["project"] * bare, *words]
    command, first, second, third = (*words, "", "", "", "")[:4]
    sized = "0" <= second[:1] <= "9" and not os.path.exists(second)
    swapped = command in _MACHINE_FIRST and spelt(first) in COLLECTIVES and second not in COLLECTIVES
    if swapped and not os.path.exists(first):
        known = not (sized or second[:1] in ("", "-"))
        after = words[2 + (known or (sized and command not in _WITH_SIZE)) :]
        size = ["256MiB"] * (bare and not re.match("[0-9]", " ".join(after)))
        meant = shlex.join(["blinksim", command, second if known else "hgx-h100", first, *size, *after])
        return f"{first} is a collective; the machine comes before it: {meant}"
    if sized and command in _WITH_SIZE and first[:1] != "-":
        wanted, rest = (third, words[4:]) if third in COLLECTIVES else ("allreduce", words[3:])
        meant = shlex.join(["blinksim", command, first, wanted, second, *rest])
        return f"{second} is a size; the collective comes before it: {meant}"
    return ""


def _several_machines(words: Sequence[str]) -> str:
    """What to say where machines stand apart, which `compare` takes with commas; empty if they do not."""
    at = next((number for number, word in enumerate(words) if word in COLLECTIVES), 0)
    if at < 3 or "-" in {word[:1] for word in words}:
        return ""
    sizes = ["--sizes", ",".join(words[at + 1 :])] * (at + 1 < len(words))
    meant = shlex.join(["blinksim", "compare", ",".join(words[1:at]), words[at], *sizes])
    return f"several machines are one word, joined by commas: {meant}"


def _without_value(error: click.ClickException, words: Sequence[str]) -> str:
    """What to say where an option stands without its value; empty if none does."""
    context = click.Context(cli)
    command = cli.get_command(context, words[0]) if words else None
    named = error.option_name if isinstance(error, click.BadOptionUsage) else getattr(error, "param", None)
    for parameter in command.params if command else ():
        option = next((name for name in parameter.opts if name in words), "")
        if option and isinstance(parameter, click.Option) and named in (option, parameter):
            after = [*words, "--"][list(words).index(option) + 1]
            value = parameter.make_metavar(context).removesuffix(" RANGE")
            return f"{option} needs a value: {option} {value}" if after.startswith("--") else ""
    return ""


def _words(error: click.ClickException, words: Sequence[str]) -> str:
    """The message, with the option that is meant: where sizes go, and what other tools call so."""
    if missing := _without_value(error, words):
        return missing
    context = getattr(error, "ctx", None)
    known = {name for parameter in context.command.params for name in parameter.opts} if context else set[str]()
    if not isinstance(error, click.NoSuchOption):
        # click has no class of its own for too many arguments.
        extra = "unexpected extra argument" in error.message
        if extra and (parted := re.search(r"(?<!\S)([0-9.]+) ([kKMGT]?i?B)(?!\S)", " ".join(words))):
            return f"{error.message}: a size has no blank; write {parted[1]}{parted[2]}"
        where = sorted({"--size", "--sizes"} & known)
        return f"{error.message.rstrip('.')}: sizes go after {where[-1]}" if extra and where else error.format_message()
    # Options of nccl-tests, mpirun and the like have other names here.
    here = read_words("option").get(error.option_name, "").split()
    meant = next((option for option in here if option in known), None)
    if meant is not None:
        verb, shown = error.option_name.lstrip("-"), f"'{meant}'"
        # The value that it was given.
        value = [*words, "-", "-"][[*words, error.option_name].index(error.option_name) + 1]
        if meant == "--members" and re.fullmatch("[1-9][0-9]?", value):
            shown = f"--members 0-{int(value) - 1}, or blinksim place MACHINE {value}, or --nodes N for whole nodes"
        elif verb in ("without", "degrade") and not value.startswith("-"):
            shown = f"{meant} {shlex.quote(f'{verb} {value}')}"
        return f"{error.message} Did you mean {shown}?"
    if why := read_words("no option").get(error.option_name):
        return f"{error.message.rstrip('.')}: {why}"
    # More alike than click asks for, as the dashes, which all have, count too: --edit is no --quiet.
    near = nearest_names(error.option_name, known, 3, 0.7)
    return click.NoSuchOption(error.option_name, possibilities=near).format_message()


_interrupts: list[int] = []


def interrupt(number: int, frame: object) -> NoReturn:
    """What Ctrl-C calls. It is remembered, as compiled modules make another error of what it raises."""
    _interrupts.append(number)
    raise KeyboardInterrupt


def run(arguments: list[str] | None = None) -> int:
    """Runs one command line and returns its exit status; messages about errors go to stderr."""
    if sys.stdout is None or sys.stderr is None:
        return 2  # Started without stdout or stderr.
    given = sys.argv[1:] if arguments is None else arguments
    words = [word for word in given if word != _DEBUG]
    # The word that is to be explained may be an option.
    words[1:1] = ["--"] * (words[:1] == ["help"] and "--help" not in words)
    quiet = bool({"-q", "--quiet"} & {*words})
    escaped = redirect_stdout(EscapedStream(sys.stdout)), redirect_stderr(EscapedStream(sys.stderr))
    with escaped[0], escaped[1], still_at_work(f"blinksim {words[0]}" if words else "blinksim", quiet=quiet):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", OutdatedWarning)
                warnings.showwarning = lambda message, *_: note(f"blinksim: {as_typed(str(message))}")
                return _run(words)
        except Exception as error:  # The last catch: whatever comes here was foreseen by nobody.
            if _DEBUG in given:
                traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {' '.join(str(error).split()):.200}".rstrip(": ")
            bug = f"this is a bug in blinksim ({what}, {os.path.basename(where.filename)}:{where.lineno})"
            advice = f"please report it where you got blinksim, with this command and what it prints with {_DEBUG}"
            print(f"blinksim: {bug}; {advice}", file=sys.stderr)
            return BUG


def _run(arguments: list[str]) -> int:
    try:
        status = cli.main(args=arguments, prog_name="blinksim", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except BlinksimError as error:
        swapped = _swapped(arguments) if isinstance(error, InputError) else ""
        said, status = str(InputError(swapped)) if swapped else as_typed(str(error)), error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = f" (see {context.command_path} --help)" if context is not None else ""
        # As every other message: on one line, and short enough to be read.
        said = _swapped(arguments) or _several_machines(arguments) or _words(error, arguments)
        said = said.replace("\n\t", " ").rstrip(".")
        said, status = f"{InputError(said)}{_SUCH_AS.get(said, '')}{where}", error.exit_code
    except MemoryError:
        said, status = "not enough memory for this; take a smaller size or fewer ranks", 2
    except (BrokenPipeError, SystemExit):
        # The reader (head, say) has left, perhaps before the answer was known: neither "ok" nor "no" would be true.
        # click ends such a run itself; and Python must not complain at exit that it could not flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        said, status = f"cannot write the answer: {error.strerror or error}", 2
        # A full disk behind standard output, say. Python must not try to flush it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (Exception, KeyboardInterrupt) as error:
        if not (_interrupts or isinstance(error, (click.Abort, KeyboardInterrupt))):
            raise
        said, status = "interrupted", 130
    print(f"blinksim: {said}", file=sys.stderr)
    return status
