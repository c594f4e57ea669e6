"""Reading with limits, and writing whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from blinksim.errors import FileError, InputError
from blinksim.textio import text_files


def test_text_is_read_with_and_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: \xc3\xa9\r\n")
    assert text_files.read_text(path) == "name: é\r\n"


def test_a_missing_file_offers_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "machine.yaml").write_text("")
    with pytest.raises(FileError, match=r"no such machine file; did you mean .*machine\.yaml\?"):
        text_files.read_text(tmp_path / "machin.yaml", what="machine file")
    with pytest.raises(FileError, match=r"there is no folder .*nowhere either"):
        text_files.read_text(tmp_path / "nowhere" / "machine.yaml")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"ab\nc\x00d", r":2:2: is not text"),
        (b"ab\n\nc\xff", r":3:2: is not UTF-8"),
        (b"x" * 101, "larger than 100 bytes"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)
    with pytest.raises(FileError, match=message):
        text_files.read_text(path, limit=100)


def test_folders_and_odd_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="this is a folder"):
        text_files.read_text(tmp_path)
    with pytest.raises(FileError, match="cannot read this file"):
        text_files.read_text("a\0b")
    with pytest.raises(FileError, match="cannot read this file: File name too long"):
        text_files.read_text("x" * 5000)


def test_an_endless_device_is_refused() -> None:
    with pytest.raises(FileError, match="larger than 1 MiB"):
        text_files.read_text("/dev/zero")


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    text_files.write_text(path, "one é")
    with pytest.raises(InputError, match="exists and is not overwritten; add force=True"):
        text_files.write_text(path, "two")
    assert path.read_text(encoding="utf-8") == "one é"
    text_files.write_text(path, "three", force=True)
    assert path.read_text() == "three"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.yaml"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    text_files.write_text(tmp_path / "link", "new", force=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_folders_in_the_way_or_missing(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="this is a folder"):
        text_files.write_text(tmp_path, "x", force=True)
    with pytest.raises(FileError, match=r"there is no folder .*nowhere; create it first"):
        text_files.write_text(tmp_path / "nowhere" / "a", "x")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(FileError, match="cannot be written: No space left on device"):
        text_files.write_text(path, "new", force=True)
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_pipes_are_written_to_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    text_files.write_text(pipe, "through")
    reader.join(timeout=10)
    assert got == ["through"]
