"""A format of schedules is one file: it is found by its name, written by `export` and read where files are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_tree import ROOT

import blinksim as bs
from blinksim.errors import InfeasibleError, InputError
from blinksim.formats import runtimes
from blinksim.formats.registry import FORMATS

SOURCE = '''"""Names of algorithms, as files: a ring by its name alone."""

import json

import blinksim as bs
from blinksim.formats.registry import Format
from blinksim.schedule.candidate import Candidate
from blinksim.textio.text_files import Exported


def write(schedule, channels):
    return Exported(files={"": json.dumps({"by_name": schedule.algorithm})}, summary="a name")


def read(given, part, root):
    return Candidate(bs.synthesize(part, "allgather", given.document["by_name"]).schedule)


FORMAT = Format("by-name", write, takes=lambda given: "by_name" in (given.document or ()), read=read)
'''


@pytest.fixture
def by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One more file among the formats."""
    (tmp_path / "by_name.py").write_text(SOURCE)
    monkeypatch.setattr(runtimes, "__path__", [*runtimes.__path__, str(tmp_path)])
    yield
    import sys

    sys.modules.pop(f"{runtimes.__name__}.by_name", None)


def test_every_format_is_called_as_its_file() -> None:
    assert {name: form.name for name, form in FORMATS.items()} == {name: name for name in FORMATS}
    assert {"msccl-xml", "nccl-graph"} <= FORMATS.keys()
    with pytest.raises(KeyError):
        FORMATS["registry"]


def test_a_file_dropped_in_is_a_format(by_name: None, tmp_path: Path) -> None:
    assert "by-name" in FORMATS
    ring = bs.synthesize("full:4", "allgather", "ring").schedule
    file = tmp_path / "ring.json"
    bs.write(bs.export(ring, "by_name"), file)
    assert json.loads(file.read_text()) == {"by_name": "ring"}
    again = bs.read_schedule(file, "full:4")
    assert (again.algorithm, again.sends) == ("ring", ring.sends)
    assert bs.simulate(again, "1MiB").time_s == bs.simulate(ring, "1MiB").time_s


def test_the_example_of_the_guide_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = (ROOT / "CONTRIBUTING.md").read_text().split("```python\n")
    [example] = (block.partition("```")[0] for block in blocks if "FORMAT = " in block)
    (tmp_path / "lines.py").write_text(example)
    monkeypatch.setattr(runtimes, "__path__", [*runtimes.__path__, str(tmp_path)])
    ring = bs.synthesize("full:4", "allgather", "ring").schedule
    [text] = bs.export(ring, "lines").files.values()
    assert [line.split()[1:] for line in text.splitlines()] == [
        [*map(str, ends)] for ends in zip(ring.src, ring.dst, strict=True)
    ]


def test_without_the_file_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown format 'by_name'"):
        bs.export(bs.synthesize("full:4", "allgather", "ring").schedule, "by_name")


@pytest.mark.parametrize("name", [*FORMATS])
def test_a_wrong_schedule_is_exported_in_no_format(name: str) -> None:
    from dataclasses import replace

    ring = bs.synthesize("dgx1-v100", "allreduce", "ring").schedule
    # Its rings are those of a right one, but nobody adds.
    with pytest.raises(InputError, match="the schedule is wrong and is not exported: gpu0"):
        bs.export(replace(ring, op=0 * ring.op, bound={}), name)


def test_a_format_may_be_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    ring = bs.synthesize("full:4", "allgather", "ring").schedule
    with pytest.raises(InfeasibleError, match="msccl-xml is only read"):
        replace(FORMATS["msccl-xml"], write=None).export(ring)
