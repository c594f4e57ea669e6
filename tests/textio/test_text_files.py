"""Reading with limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from blinksim.errors import FileError
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


def test_an_export_shows_its_summary_not_its_files() -> None:
    found = text_files.Exported(files={"": "x" * 10_000}, summary="two rings", facts=("verified",))
    assert "two rings" in repr(found)
    assert len(repr(found)) < 200
