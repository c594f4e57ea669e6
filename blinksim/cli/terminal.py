"""Output of all commands: answers as text, JSON and CSV; notes, progress and messages on stderr."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import click

from blinksim.errors import InputError, printable
from blinksim.units import format_size

if TYPE_CHECKING:
    from blinksim.textio.text_files import Exported

# Of the keys that ``--json`` prints: one is added without a new version, and removed or renamed with one.
SCHEMA_VERSION = 1
PATIENCE_S = 1.0
# Seconds of computing after which a command says that it is still at work; then after each time three times as long.
FIRST_WORD_S = 1.5

# Python arguments that messages name: options of the same name, and those that take no value and stand for True.
_NAMES = (
    "algorithm algorithms axis busbw calls channels chunk cluster collective format group lane_blocks like links "
    "machine members mesh model nodes protocol ranks_per_node rates relays root search service size time "
    "time_limit trees workers"
)
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in _NAMES.split()} | {"edits": "--edit"}
FLAGS = {"alike": "--alike", "force": "--force", "relays_reduce": "--relays-reduce"}
# Text in quotes is quoted from the user, such as the edit 'degrade gpu0-gpu3 lanes=1'; an apostrophe is no quote.
_QUOTED = r"(?<![\w=])(?:'[^'\n]*'|\"[^\"\n]*\")(?!\w)"
_ARGUMENT = r"(?<![\w-])(?P<name>[a-z][a-z_]*)=(?:(?P<word>True|False)\b|'(?P<quoted>[\w-]+)')?(?=(?P<next>\S)?)"
_PIECE = re.compile(f"{_QUOTED}|{_ARGUMENT}")

# What is being done and since when by `time.monotonic`, the innermost last; and the line that says so on a terminal.
_doing: list[tuple[str, float]] = []
_moving: list[str] = []
_drawing = threading.Lock()


@dataclass(eq=False)
class EscapedStream:
    """A stream that everything printed passes: no text of a file or of a user controls the terminal.

    What the terminal's encoding lacks is escaped instead of refused.
    """

    raw: TextIO

    @property
    def encoding(self) -> str:
        """One that click finds able; it would go around this stream if it did not."""
        return "utf-8"

    def write(self, text: str) -> int:
        """Prints `text`, escaped."""
        self.raw.write(printable(text, getattr(self.raw, "encoding", None) or "utf-8"))
        return len(text)

    def flush(self) -> None:
        """As of the stream."""
        self.raw.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self.raw, name)


def flagged(name: str) -> bool:
    """True if the command that runs has a flag of this name, and it was given."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.params.get(name))


def note(text: str) -> None:
    """A line for people, on stderr."""
    if not flagged("quiet"):
        with _drawing:
            _draw("")
            print(text, file=sys.stderr)


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows as CSV with a heading; the columns are the keys of the first row."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def answer(
    command: str,
    said: Callable[[], Mapping[str, object]],
    text: Callable[[], object] = lambda: None,
    rows: Callable[[], Sequence[Mapping[str, object]]] = list,
    forms: Mapping[str, Callable[[], str]] | None = None,
) -> bool:
    """Prints an answer in the form that the command line asks for: said as JSON, rows as CSV, or by `text`.

    forms: others, by what --format calls them. True if text is wanted, which a command may print itself.
    """
    given = click.get_current_context().params
    form = given.get("format") or next((form for form in ("csv", "json") if given.get(form)), "text")
    if form == "csv":
        click.echo(csv_text(rows()), nl=False)
    elif form in ("json", "yaml"):
        # As ``docs/answer.schema.json`` describes it.
        one = {"schema_version": SCHEMA_VERSION, "command": command, **said()}
        if form == "json":
            click.echo(json.dumps(one, indent=2, ensure_ascii=False, allow_nan=False))
        else:
            from blinksim.textio import yaml_nodes

            click.echo(yaml_nodes.dump(one), nl=False)
    elif forms and form in forms:
        click.echo(forms[form](), nl=False)
    else:
        text()
        return True
    return False


@contextmanager
def written(target: str | None, write: Callable[[str], object]) -> Iterator[str | None]:
    """Writes a file, if one is wanted, and gives its name to what prints the answer, or None if it is not there.

    An error in writing is raised once the answer is printed: an answer is not lost.
    """
    failure = None
    if target:
        try:
            write(target)
        except InputError as error:
            failure = error
    yield target if failure is None else None
    if failure is not None:
        raise failure


def drawn(target: str | None, force: bool, kind: str, *given: object, **more: object) -> None:
    """Writes the picture `blinksim.plots` has of this kind, if one is wanted, and says where it is.

    That goes to stderr if stdout is for a program.
    """
    if target:
        from blinksim import plots

        file = plots.save(getattr(plots, kind)(*given, **more), target, force=force)
        click.echo(f"drawn: {file}", err=flagged("csv") or flagged("json"))


def show_export(exported: Exported, output: str | None) -> None:
    """Prints where an export is, how to load it and what to know; or the export, and all that on stderr."""
    target, say = output or "FILE", note if output is None else click.echo
    if output is None:
        click.echo(exported.files[""], nl=False)
    else:
        facts = "".join(f"  {fact}\n" for fact in exported.facts)
        click.echo(f"{output}: {exported.summary}\n{facts}")
    if exported.environment:
        say("  set, for one command:")
        for name, value in exported.variables(target).items():
            say(f"    export {name}={shlex.quote(value)}")
    for line in (*proof_lines(exported, target), *(f"  note     {line}" for line in exported.notes)):
        say(line)
    if exported.caution:
        say(f"  caution  {exported.caution}")


def proof_lines(exported: Exported, output: str) -> list[str]:
    """What shows that a runtime uses the file that went to `output`; nothing where nothing is known to."""
    if not exported.proof:
        return []
    head = "in force if the log (NCCL_DEBUG=INFO) of rank 0 says:" if exported.environment else "try it:"
    return [f"  {head}", *(f"    {with_name(line, output)}" for line in exported.proof)]


def with_name(line: str, output: str) -> str:
    """A line of advice with the file's name, quoted for a shell or for Python."""
    folder = typed(os.path.dirname(output) or ".")
    for place, words in {"{python}": repr(output), "{file}": typed(output), "{folder}": folder}.items():
        line = line.replace(place, words)
    return line


def typed(path: str) -> str:
    """A file name as it is typed in a command; FILE for what came through standard input."""
    return "FILE" if path == "-" else shlex.quote(f"./{path}" if path.startswith("-") else path)


def typed_size(size: int) -> str:
    """A size in bytes as it is typed in a command."""
    return format_size(size).replace(" ", "")


def as_typed(message: str) -> str:
    """A message of the library in the words of the command line: ``nodes=4`` becomes ``--nodes 4``."""
    return _PIECE.sub(_option, message)


def _option(piece: re.Match[str]) -> str:
    name, word, quoted, following = piece.group("name", "word", "quoted", "next")
    if name in FLAGS and word != "False":
        return FLAGS[name]
    if name not in OPTIONS or word:
        return piece.group()
    if quoted:
        return f"{OPTIONS[name]} {quoted}"
    return OPTIONS[name] + " " * (following is not None and following not in ",;.:)")


def _draw(text: str) -> None:
    """Puts a line in place of the moving one of a terminal; empty text takes it away."""
    if text or _moving:
        raw, columns = getattr(sys.stderr, "raw", sys.stderr), shutil.get_terminal_size().columns
        raw.write(f"\r\x1b[K{printable(text, raw.encoding or 'utf-8')[: columns - 1]}")
        raw.flush()
    _moving[:] = [text] if text else []


@dataclass(frozen=True)
class Working:
    """What a command does, as the lines of `still_at_work` say it; calling it changes the text.

    Used as a context: ``with Working("building") as say: … say("building ring, 1 of 9")``. Leaves nothing behind on a
    terminal.
    """

    what: str

    def __call__(self, what: str) -> None:
        _doing[-1] = what, _doing[-1][1]

    def __enter__(self) -> Working:
        _doing.append((self.what, time.monotonic()))
        return self

    def __exit__(self, *_: object) -> None:
        with _drawing:
            _doing.pop()
            _draw("")


@contextmanager
def still_at_work(command: str, *, quiet: bool = False) -> Iterator[None]:
    """Says on stderr what takes long: in a moving line on a terminal, else in a line after more and more time.

    Between two lines that time is what this process computes, so that a busy machine does not count.
    """
    done, start = threading.Event(), time.process_time()

    def watch() -> None:
        due = FIRST_WORD_S
        while not done.wait(0.2):
            used = time.process_time() - start
            with _drawing:
                what, since = _doing[-1] if _doing else (command, 0.0)
                moves, seconds = bool(_doing) and sys.stderr.isatty(), time.monotonic() - since
                if moves and seconds > PATIENCE_S:
                    _draw(f"{what} ({seconds:.0f} s)")
                if used >= due and not moves:
                    print(f"still at work after {used:.0f} s: {what} (Ctrl-C ends it)", file=sys.stderr, flush=True)
                due = 3 * used if used >= due else due

    thread = threading.Thread(target=watch, daemon=True)
    if not quiet:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if not quiet:
            thread.join()
