"""Plugins: files from outside the package that register algorithms and timing models, and their errors.

A file is named where a name goes (``--algorithm pairs.py``), so that nothing runs that nobody named, and so
that worker processes and the commands after ``next:`` find it as well.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_loader
from inspect import unwrap
from pathlib import Path
from traceback import extract_tb
from typing import Any, TypeVar

from blinksim.errors import FileError, InfeasibleError, InputError, PluginError
from blinksim.textio.text_files import MIB, read_bytes

PYTHON = (".py",)
Made = TypeVar("Made")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# The contents of the files that have run, by their resolved paths.
_have_run: dict[str, str] = {}
_running: list[str] = []
# What entries are built on, beside the files that have some.
_NO_ENTRY = "__init__.py", "registry.py", "timing_model.py"


def entries(package: str, files: str, word: str, make: Callable[[str, Path, str], Made]) -> list[Made]:
    """What each file of a package says that it is (``ENTRY = …``), read without running it: lists are quick.

    files: a pattern. make: from what is said, up to a line that ends with a bracket, the file and its text.
    Raises `PluginError` with the place for a file that says nothing, and for what cannot be used.
    """
    pattern, made = re.compile(rf"^{word} = (.*?\))$", re.MULTILINE | re.DOTALL), list[Made]()
    paths = (path for folder in import_module(package).__path__ for path in Path(folder).glob(files))
    for path in sorted(path for path in paths if path.name not in _NO_ENTRY):
        text = path.read_text(encoding="utf-8")
        said = pattern.search(text)
        with blamed(str(path), str(path), text.count("\n", 0, said.start()) + 1 if said else None):
            if said is None:
                raise InputError(f"says no {word}; add one, as in CONTRIBUTING.md, or move the file away")
            made.append(make(said[1], path, text))
    return made


def split(name: str, endings: Iterable[str] = PYTHON) -> tuple[Path, str] | None:
    """The file and the name in it of ``FILE`` or ``FILE:NAME`` (then empty), None if no file is named.

    endings: what names of such files end in.
    """
    found = re.fullmatch(rf"(.+(?:{'|'.join(map(re.escape, endings))}))(?::([^:/]+))?", name)
    return None if found is None else (Path(found[1]), found[2] or "")


def digest(path: Path) -> str:
    """Tells two contents of a file apart; raises `FileError` if it cannot be read."""
    return sha256(read_bytes(path, MIB, "file")).hexdigest()


def running() -> str:
    """The file that runs just now, empty if there is none: where what is registered comes from."""
    return _running[-1] if _running else ""


def run(path: Path) -> str:
    """Runs a Python file, unless it has been run as it is; returns the path by which `running` called it.

    Raises `FileError` if it cannot be read or is not Python, and `PluginError` if it raises.
    """
    home, contents = os.path.realpath(path), digest(path)
    if _have_run.get(home) == contents:
        return home
    spec = spec_from_loader(f"blinksim_plugin_{contents[:12]}_{path.stem}", None, origin=home)
    assert spec is not None
    module = module_from_spec(spec)
    module.__file__ = home
    try:
        code = compile(read_bytes(path, MIB), home, "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        why = getattr(error, "msg", None) or str(error) or "it is nested too deeply"
        raise FileError(path, f"is not Python: {why}", getattr(error, "lineno", None)) from None
    sys.modules[spec.name] = module
    _running.append(home)
    try:
        with blamed(str(path), home):
            exec(code, module.__dict__)
    finally:
        _running.pop()
    _have_run[home] = contents
    return home


def named(registry: Mapping[str, Any], name: str, path: Path, what: str, how: str) -> str:
    """Which of the names that a file has registered is meant.

    registry: entries by name, each with the `file` that it comes from. name: empty if the file has only
    one. how: it is registered.
    """
    home = os.path.realpath(path)
    there = [key for key, entry in registry.items() if entry.file == home]
    if not there:
        raise FileError(path, f"registers no {what}; put {how} before it")
    if name and name not in there:
        raise FileError(path, f"registers no {what} {name!r}, only {', '.join(there)}")
    if not name and len(there) > 1:
        raise FileError(path, f"registers {', '.join(there)}; say which, as in {path}:{there[0]}")
    return name or there[0]


def new_name(name: object, what: str, taken: Iterable[str], registry: Mapping[str, Any]) -> str:
    """`name`, if something new may be called so.

    taken: names of the package. The same file, or a later cell of a notebook, replaces what it registered.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"{name!r} cannot name {what}: take letters, digits and _, such as 'my_own'")
    if name in taken:
        raise InputError(f"{what} is called {name!r} already; take another name")
    if name in registry and registry[name].file not in ("", running()):
        raise InputError(f"{what} {name!r} is registered by {registry[name].file} already; take another name")
    return name


def advice(name: str, endings: Iterable[str] = PYTHON) -> str:
    """What to say after an unknown name: that a file of this name is there, if it is."""
    return next((f"(or the file {name}{end})" for end in endings if os.path.isfile(f"{name}{end}")), "")


@contextmanager
def blamed(what: str, file: str = "", line: int | None = None) -> Iterator[None]:
    """Turns whatever the code inside raises into a `PluginError` that names `what` and the line in `file`.

    `InfeasibleError` is an answer and passes. What the code prints goes to stderr: stdout holds the answer.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (InfeasibleError, PluginError, KeyboardInterrupt):
        raise
    except BaseException as error:
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file]
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        words = " ".join(str(error).split()) or "no message"
        raise PluginError(f"{located(what, file, lines[-1] if lines else line)}: {kind}{words}") from error


def located(what: str, file: str, line: int | None) -> str:
    """`what`, with the place of its code if that is in a file."""
    shown = os.path.relpath(file) if os.path.isabs(file) and not os.path.relpath(file).startswith("..") else file
    place = f"{shown}:{line}" if line else shown
    return place if what in (shown, file) else f"{what} ({place})" if file else what


def source_of(thing: Callable[..., Any]) -> tuple[str, int | None]:
    """The file and the first line of a function."""
    code = getattr(unwrap(thing), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", None)
