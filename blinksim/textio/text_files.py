"""Reading text files with a limit on their size, and tables of CSV; writing files and folders whole or not at all.

The order of steps in writing is that of Pillai et al., All File Systems Are Not Created Equal, OSDI 2014:
write under another name, fsync, rename, fsync the folder. The other name cannot be guessed and is created
exclusively, so that nobody with write access to the folder can lay a link in its place.
"""

from __future__ import annotations

import csv
import errno
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from blinksim import data_files
from blinksim.errors import FileError, InputError, nearest_names

Made = TypeVar("Made")

MIB = 2**20
# The path that stands for standard input.
STDIN = "-"

# What came through each standard input so far, as a machine is read more than once on the way to an answer;
# and how much was asked for: less than that came, and the input has ended.
_received: dict[BinaryIO, tuple[bytes, int]] = {}


def standard_input(most: int) -> bytes:
    """The first `most` bytes of standard input, again at every call; raises `FileError` if they cannot be read."""
    if sys.stdin is None:
        raise FileError("standard input", "is closed")
    source = sys.stdin.buffer
    have, asked = _received.get(source, (b"", 0))
    if len(have) < most and len(have) in (0, asked):
        with _refused("standard input", "cannot be read"):
            have += source.read(most - len(have))
        _received[source] = have, most
    return have[:most]


def shown(path: str | os.PathLike[str]) -> str:
    """What messages call a path."""
    return "standard input" if os.fspath(path) == STDIN else os.fspath(path)


def read_bytes(path: str | os.PathLike[str], limit: int, what: str = "file") -> bytes:
    """The content of `path` or of standard input (`STDIN`), at most `limit` bytes; `what` names the kind of file.

    Raises `FileError` if it is missing (offers the nearest names), a directory, unreadable or larger. Never
    reads more than `limit` + 1 bytes, so that devices and pipes without end are refused too.
    """
    place = Path(path)
    with _refused(path, f"cannot read this {what}"):
        try:
            if os.fspath(path) == STDIN:
                path, data = shown(path), standard_input(limit + 1)
            else:
                with place.open("rb") as file:
                    # Room for all that is asked is taken at once; pipes and devices have more than they say.
                    there = min(limit, os.fstat(file.fileno()).st_size)
                    data = file.read(there + 1)
                    data += file.read(limit - there) if len(data) > there else b""
        except FileNotFoundError:
            raise FileError(path, f"no such {what}{_near(place)}") from None
        except IsADirectoryError:
            raise FileError(path, f"this is a folder; name a {what} in it") from None
    if len(data) > limit:
        size = f"{limit // MIB} MiB" if limit >= MIB else f"{limit} bytes"
        raise FileError(path, f"is larger than {size}; that is no {what}")
    return data


def read_text(path: str | os.PathLike[str], limit: int = MIB, what: str = "file") -> str:
    """The text of the UTF-8 file `path`; raises `FileError` as `read_bytes`, and for anything that is not text."""
    return decode(path, read_bytes(path, limit, what), what)


def decode(path: str | os.PathLike[str], data: bytes, what: str = "file", encoding: str = "utf-8-sig") -> str:
    """UTF-8 text of `data`; raises `FileError` naming line and column of the first fault.

    encoding: ``utf-8-sig`` leaves a byte order mark out, ``utf-8`` keeps it.
    """
    path = shown(path)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FileError(path, "is not UTF-8 text but UTF-16, as PowerShell's > writes it; save it in UTF-8")
    if b"\0" in data:
        place = line_and_column(data.decode("latin-1"), data.index(b"\0"))
        raise FileError(path, f"is not text (it holds a zero byte), so it is no {what}", *place)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        place = line_and_column(data.decode("latin-1"), error.start)
        raise FileError(path, "is not UTF-8 text; save it in that encoding", *place) from None


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """Both from 1, of a character by its number from 0."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _near(place: Path) -> str:
    try:
        names = sorted(entry.name for entry in place.parent.iterdir())
    except (OSError, ValueError):
        return f"; there is no folder {place.parent} either" if place.parent != Path(".") else ""
    near = nearest_names(place.name, names, 2, 0.7)
    return f"; did you mean {' or '.join(str(place.with_name(name)) for name in near)}?" if near else ""


def read_rows(path: Path, make: Callable[[dict[str, str]], Made], what: str) -> list[Made]:
    """What `make` makes of every row, by the names in the first line; lines before it that begin with # are left out.

    Raises `FileError` with the line of a row of another length, and of one that `make` refuses; what: what a
    row is.
    """
    lines = read_text(path, what="table").splitlines()
    first = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    table, made = csv.reader(lines[first:]), list[Made]()

    try:
        names = next(filter(None, table), [])
        for row in filter(None, table):
            if len(row) != len(names):
                raise InputError(f"{len(row)} cells, and the head has {len(names)}")
            made.append(make(dict(zip(names, row, strict=True))))
    except (KeyError, ValueError, ZeroDivisionError, InputError, csv.Error) as error:
        number, why = first + table.line_num, f"{'no column ' * isinstance(error, KeyError)}{error}"
        raise FileError(shown(path), f"is no {what}: {lines[number - 1]:.80} ({why})", number) from None
    return made


def read_words(of: str) -> dict[str, str]:
    """What names of a sort stand for, from ``models/words.csv``; raises `FileError` as `read_rows`."""
    rows = read_rows(data_files.folder("models") / "words.csv", dict, "name in words")
    return {row["name"]: row["words"] for row in rows if row["of"] == of}


@dataclass(frozen=True)
class Exported:
    """A schedule in a runtime's format, with instructions to load it there.

    Attributes
    ----------
    files : mapping of str to str
        Text by file name; the only key is empty where there is one file.
    summary : str
        What it holds, in a line.
    facts : tuple of str
        What was checked.
    environment : mapping of str to str
        Variables and their values, in which ``{file}`` is where the file went, and ``{folder}`` the folder of
        it.
    proof : tuple of str
        What shows that the runtime uses it; ``{file}`` and ``{folder}`` as above, ``{python}`` the file's
        name as Python writes it.
    notes : tuple of str
        What to know.
    caution : str
        What to beware of.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.export(bs.synthesize("dgx1-v100", "allreduce", "chains").schedule, "nccl-graph")
    >>> found.variables("graph.xml")["NCCL_GRAPH_FILE"]
    'graph.xml'
    """

    files: Mapping[str, str] = field(repr=False)
    summary: str
    facts: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    proof: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    caution: str = ""

    def variables(self, file: str) -> dict[str, str]:
        """The environment for a file (or folder) written to `file`."""
        folder, given = os.path.dirname(file) or ".", self.environment.items()
        return {name: value.replace("{file}", file).replace("{folder}", folder) for name, value in given}


def most_channels(given: int | None, default: int, highest: int, why: str) -> int:
    """The limit on channels in force; raises `InputError` unless it lies between 1 and `highest`."""
    if given is not None and not 1 <= given <= highest:
        raise InputError(f"{given} channels: give 1 to {highest} ({why})")
    return default if given is None else given


PathLike = str | os.PathLike[str]

# What file systems answer that know no hard links, or no fsync of folders.
_UNKNOWN_HERE = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EMLINK, errno.EXDEV)


def check_target(path: PathLike, force: bool = False) -> Path:
    """The place that `path` stands for, if a file may be written there; work that takes long asks before it starts.

    Raises `InputError` if the file exists and `force` is not given, and `FileError` if `path` is a folder, in
    none, or in one that takes no files.
    """
    with _refused(path):
        place, kind = _place(path)
        if kind is not None and stat.S_ISDIR(kind):
            raise FileError(path, "this is a folder; name a file in it")
        if kind is not None and stat.S_ISREG(kind) and not force:
            raise _exists(path)
        special = kind is not None and not stat.S_ISREG(kind)
        if not special and not place.parent.is_dir():
            raise FileError(path, f"there is no folder {place.parent}; create it first")
        if not os.access(path if special else place.parent, os.W_OK):
            raise FileError(path, f"cannot be written: the folder {place.parent} takes no new files")
    return place


def check_folder(path: PathLike, force: bool = False) -> Path:
    """The place that `path` stands for, if a folder may be written there.

    Raises `InputError` if it holds files and `force` is not given, and `FileError` if it is a file or the
    current folder, or lies where no folder can be made.
    """
    with _refused(path):
        place, kind = _place(path)
        if kind is not None and not stat.S_ISDIR(kind):
            raise FileError(path, "is a file; name a folder")
        if place == Path.cwd():
            raise FileError(path, "is the current folder, which cannot be replaced; name a new one")
        if kind is not None and any(place.iterdir()) and not force:
            raise _full(path)
        above = next(folder for folder in place.parents if folder.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise FileError(path, f"cannot be written: {above} takes no new folders")
    return place


def write_text(path: PathLike, text: str, force: bool = False) -> None:
    """Writes `text` as UTF-8; see `write_bytes`."""
    write_bytes(path, text.encode("utf-8"), force)


def write_bytes(path: PathLike, data: bytes, force: bool = False) -> None:
    """Writes a file: it is there whole and on disk, or not at all; one that is replaced keeps its mode and its owner.

    Raises `InputError` if `path` exists and `force` is not given, also if another process was quicker, and
    `FileError` if it cannot be written. Devices and pipes, such as /dev/stdout, are written to directly.
    """
    place = check_target(path, force)
    with _refused(path):
        if Path(path).exists() and not Path(path).is_file():
            Path(path).write_bytes(data)
            return
        temporary = _other_name(place)
        try:
            _create(temporary, data, like=place if force else None)
            _publish(path, temporary, place, force)
            _sync(place.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_folder(path: PathLike, files: Mapping[str, str], force: bool = False) -> None:
    """Writes a folder with these files, text by name: all of them are there, and nothing else, or the folder is not.

    With `force` a folder of an earlier write is replaced; names count as earlier ones if they differ from new
    ones in numbers only. Raises `InputError` if it holds files and `force` is not given or they are others,
    and `FileError` if it cannot be written.
    """
    place = check_folder(path, force)
    with _refused(path):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = _other_name(place)
        temporary.mkdir()
        try:
            for name, text in files.items():
                _create(temporary / name, text.encode("utf-8"))
            _sync(temporary)
            if place.exists():
                temporary.chmod(stat.S_IMODE(place.stat().st_mode))
            _exchange(path, temporary, place, set(files) if force else None)
            _sync(place.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _refused(path: PathLike, what: str = "cannot be written") -> Iterator[None]:
    """What the operating system refuses becomes a `FileError`. what: is refused."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise FileError(path, f"{what}: {getattr(error, 'strerror', None) or error}") from None


def _exists(path: PathLike) -> InputError:
    return InputError(f"{path} exists and is not overwritten; add force=True, or choose another name")


def _full(path: PathLike) -> InputError:
    return InputError(f"{path} is a folder with files in it; add force=True, or name a new one")


def _place(path: PathLike) -> tuple[Path, int | None]:
    """Where `path` leads, through links so that a link to a file stays one, and the mode of what is there.

    A link whose file is gone counts as that file.
    """
    place = Path(os.path.realpath(path))
    try:
        # Not of `place`: /dev/stdout leads to a pipe, whose name is none that can be opened.
        return place, os.stat(path).st_mode
    except FileNotFoundError:
        return place, stat.S_IFREG if os.path.islink(path) else None


def _other_name(place: Path) -> Path:
    """A name beside `place` that nobody can guess, short enough for every name that `place` may have."""
    # It loads much that only what writes needs.
    import secrets

    return place.with_name(f".blinksim-{secrets.token_hex(12)}.part")


def _create(path: Path, data: bytes, like: Path | None = None) -> None:
    """A new file with `data` on disk, with the mode and the owner of `like`, if that exists."""
    old = like.stat() if like is not None and like.exists() else None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # Nobody may read what will be private before its mode is set.
    with open(os.open(path, flags, 0o666 if old is None else 0o600), "wb") as file:
        file.write(data)
        file.flush()
        if old is not None:
            with suppress(OSError):
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
        os.fsync(file.fileno())


def _publish(path: PathLike, temporary: Path, place: Path, force: bool) -> None:
    """Gives a finished file its name; of several that do so at once without `force`, one succeeds."""
    if force:
        os.replace(temporary, place)
        return
    try:
        os.link(temporary, place, follow_symlinks=False)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        if error.errno not in _UNKNOWN_HERE:
            raise
        try:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        except FileExistsError:
            raise _exists(path) from None
        os.replace(temporary, place)


def _exchange(path: PathLike, temporary: Path, place: Path, files: set[str] | None) -> None:
    """Gives a finished folder its name, in place of an empty one, or one with `files` of an earlier write."""
    try:
        os.rename(temporary, place)  # Succeeds where nothing is, or an empty folder.
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if files is None:
        raise _full(path)
    shape = partial(re.sub, r"[0-9]+", "#")
    shapes = set(map(shape, files))
    foreign = sorted(entry.name for entry in place.iterdir() if entry.is_dir() or shape(entry.name) not in shapes)
    if foreign:
        raise InputError(f"{path} holds {foreign[0]!r}, which is not of an earlier export; name another folder")
    earlier = _other_name(place)
    os.rename(place, earlier)
    try:
        os.rename(temporary, place)
    except OSError:
        os.rename(earlier, place)
        raise
    shutil.rmtree(earlier, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Waits until the names in `folder` are on disk, where the file system can do that."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # A folder that takes files but cannot be read.
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _UNKNOWN_HERE:
            raise
    finally:
        os.close(handle)
