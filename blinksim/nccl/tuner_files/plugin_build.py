"""Builds the tuner plugin with the system's C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from blinksim.errors import MissingError
from blinksim.textio.text_files import MIB, read_bytes
from blinksim.textio.whole_files import check_target, write_bytes

SOURCE = Path(__file__).with_name("tuner_plugin.c")
# A build of this file has 20 kB.
_MOST_BYTES = 8 * MIB
_FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden")


def compile_command(compiler: str, target: str | Path) -> list[str]:
    """What builds the plugin: one command, also without blinksim."""
    return [compiler, *_FLAGS, "-o", os.fspath(target), os.fspath(SOURCE)]


def build(target: str | Path, *, compiler: str | None = None, force: bool = False) -> Path:
    """Writes the plugin to `target`.

    Parameters
    ----------
    target : path
        A file name, such as ``libnccl-tuner-blinksim.so``.
    compiler : str, optional
        Default: ``$CC``, else ``cc``.
    force : bool
        Replace a file that exists.

    Raises
    ------
    MissingError
        Without a compiler, or if it fails.
    InputError, FileError
        As `check_target` does.
    """
    place = check_target(target, force)
    name = compiler or os.environ.get("CC") or "cc"
    if shutil.which(name) is None:
        raise MissingError(f"there is no C compiler {name!r}; install one (apt install gcc), or name one with CC=…")
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "plugin.so"
        done = subprocess.run(compile_command(name, built), capture_output=True, text=True, check=False)
        if done.returncode != 0 or not built.exists():
            raise MissingError(f"{name} cannot build {SOURCE.name}: {(done.stderr or done.stdout).strip()[:500]}")
        write_bytes(place, read_bytes(built, _MOST_BYTES), force)
    return place
