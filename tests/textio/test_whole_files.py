"""Writing whole or not at all: disks that fill, writers that race, links that were laid before, modes, long names."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blinksim.errors import FileError, InputError
from blinksim.textio import text_files
from blinksim.textio.text_files import write_bytes, write_folder, write_text

SET = {"manifest.json": "{}", "chain0.xml": "<a/>", "chain1.xml": "<b/>"}


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file may grow beyond `limit` bytes, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    write_text(path, "one é")
    with pytest.raises(InputError, match="exists and is not overwritten; add force=True"):
        write_text(path, "two")
    assert path.read_text(encoding="utf-8") == "one é"
    write_text(path, "three", force=True)
    assert path.read_text() == "three"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.yaml"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new", force=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_link_to_nothing_is_written_through_with_force_only(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(InputError, match="link exists and is not overwritten"):
        write_text(tmp_path / "link", "new")
    assert not (tmp_path / "gone").exists()
    write_text(tmp_path / "link", "new", force=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "gone").read_text() == "new"


def test_folders_in_the_way_or_missing(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="this is a folder"):
        write_text(tmp_path, "x", force=True)
    with pytest.raises(FileError, match=r"there is no folder .*nowhere; create it first"):
        write_text(tmp_path / "nowhere" / "a", "x")


def test_pipes_are_written_to_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join(timeout=10)
    assert got == ["through"]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with full_disk(1000), pytest.raises(FileError, match="cannot be written: File too large"):
        write_text(path, "new" * 1000, force=True)
    with full_disk(1000), pytest.raises(FileError, match="cannot be written"):
        write_text(tmp_path / "b", "new" * 1000)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_what_is_written_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    real_sync, real_link, real_replace = os.fsync, os.link, os.replace

    def sync(handle: int) -> None:
        done.append("fsync of the folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "fsync of the file")
        real_sync(handle)

    def link(src: Path, dst: Path, *, follow_symlinks: bool) -> None:
        done.append("named")
        real_link(src, dst, follow_symlinks=follow_symlinks)

    def replace(src: Path, dst: Path) -> None:
        done.append("named")
        real_replace(src, dst)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "replace", replace)
    write_text(tmp_path / "a", "one")
    write_text(tmp_path / "a", "two", force=True)
    assert done == ["fsync of the file", "named", "fsync of the folder"] * 2


def test_a_link_laid_in_the_way_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if somebody guessed the other name."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda size: "guessed")
    (tmp_path / ".blinksim-guessed.part").symlink_to(victim)
    with pytest.raises(FileError, match="cannot be written: File exists"):
        write_text(tmp_path / "a", "theirs")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "a").exists()


def test_the_other_name_is_different_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    real = os.replace

    def replace(src: Path, dst: Path) -> None:
        seen.add(src.name)
        real(src, dst)

    monkeypatch.setattr(os, "replace", replace)
    for _ in range(5):
        write_text(tmp_path / "a", "x", force=True)
    assert len(seen) == 5


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o444])
def test_a_replaced_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(mode)
    write_text(path, "new", force=True)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_text() == "new"


def test_a_new_file_has_the_mode_of_every_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "a", "x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_longest_names_work(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 126 + "abc")
    assert len(os.fsencode(path.name)) == 255
    write_text(path, "one")
    write_text(path, "two", force=True)
    assert path.read_text() == "two"
    with pytest.raises(FileError, match="File name too long"):
        write_text(tmp_path / ("a" * 256), "x")


def test_of_many_writers_one_succeeds(tmp_path: Path) -> None:
    script = """
import sys
from blinksim.errors import InputError
from blinksim.textio.text_files import write_text
print("ready", flush=True)
sys.stdin.readline()
for name in range(100):
    try:
        write_text(f"{name}", sys.argv[1])
        print(name)
    except InputError as error:
        assert "exists and is not overwritten" in str(error)
"""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script, text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        for text in ("one", "two", "three")
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    won = {text: writer.communicate()[0].split() for text, writer in zip(("one", "two", "three"), writers, strict=True)}
    assert all(writer.returncode == 0 for writer in writers)
    assert sorted(int(name) for names in won.values() for name in names) == list(range(100))
    for text, mine in won.items():
        assert all((tmp_path / name).read_text() == text for name in mine)


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(src: Path, dst: Path, *, follow_symlinks: bool) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write_text(tmp_path / "a", "one")
    with pytest.raises(InputError, match="exists"):
        text_files._publish("a", tmp_path / "none", tmp_path / "a", False)
    assert (tmp_path / "a").read_text() == "one"
    assert names(tmp_path) == ["a"]


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_is_whole_or_absent(tmp_path: Path) -> None:
    with full_disk(1000), pytest.raises(FileError, match="cannot be written: File too large"):
        write_folder(tmp_path / "set", {"a": "x", "b": "y" * 2000})
    assert names(tmp_path) == []
    write_folder(tmp_path / "new" / "set", SET)
    assert names(tmp_path / "new" / "set") == sorted(SET)
    assert names(tmp_path / "new") == ["set"]


def test_a_replaced_folder_keeps_nothing_of_the_old_one(tmp_path: Path) -> None:
    place = tmp_path / "set"
    write_folder(place, {**SET, "chain12.xml": "<stale/>"})
    with pytest.raises(InputError, match="with files in it; add force=True"):
        write_folder(place, SET)
    with full_disk(1000), pytest.raises(FileError, match="cannot be written"):
        write_folder(place, {**SET, "chain0.xml": "y" * 2000}, force=True)
    assert len(names(place)) == 4
    place.chmod(0o700)
    write_folder(place, SET, force=True)
    assert names(place) == sorted(SET)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert names(tmp_path) == ["set"]


def test_other_files_are_never_removed(tmp_path: Path) -> None:
    place = tmp_path / "set"
    write_folder(place, SET)
    (place / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'notes.txt', which is not of an earlier export"):
        write_folder(place, SET, force=True)
    assert names(place) == sorted([*SET, "notes.txt"])
    assert names(tmp_path) == ["set"]


def test_an_empty_folder_is_filled_and_odd_places_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set").mkdir()
    write_folder(tmp_path / "set", SET)
    assert names(tmp_path / "set") == sorted(SET)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="is a file"):
        write_folder(tmp_path / "file", SET, force=True)
    with pytest.raises(FileError, match="Not a directory"):
        write_folder(tmp_path / "file" / "below", SET, force=True)
    monkeypatch.chdir(tmp_path / "set")
    with pytest.raises(FileError, match="is the current folder"):
        write_folder(".", SET, force=True)


def _put(text: str, place: Path, failed: list[str]) -> None:
    try:
        write_folder(place, {"a": text, "b": text})
    except InputError:
        failed.append(text)


def test_of_two_writers_of_a_folder_one_succeeds(tmp_path: Path) -> None:
    for number in range(30):
        place, failed = tmp_path / str(number), list[str]()
        writers = [threading.Thread(target=_put, args=(text, place, failed)) for text in ("one", "two")]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert len(failed) == 1
        winner = {"one": "two", "two": "one"}[failed[0]]
        assert {(place / name).read_text() for name in ("a", "b")} == {winner}


def test_standard_output_is_written_to(tmp_path: Path) -> None:
    script = "from blinksim.textio.text_files import write_bytes; write_bytes('/dev/stdout', b'through')"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"through"
    write_bytes("/dev/null", b"nowhere")
