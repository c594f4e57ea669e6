"""What comes with blinksim is reachable by name from any folder: schedules and published measurements."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from statistics import median

import pytest

from blinksim.cli.main import run
from blinksim.errors import InputError
from blinksim.formats.schedule_json import read_schedule
from blinksim.formats.shipped import machine_names

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("ending", ["", ".json"])
@pytest.mark.parametrize(
    "line", ["verify {}", "simulate {} 1MiB", "run {} 1000", "export {} --format mscclpp-json", "verify {} --json"]
)
def test_a_ready_schedule_is_found_by_name(capsys: pytest.CaptureFixture[str], line: str, ending: str) -> None:
    assert run(line.format(f"dgx1-v100-2-allreduce{ending}").split()) == 0
    assert "allreduce" in capsys.readouterr().out


def test_every_ready_schedule_is_listed_as_its_file_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedules", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    files = {path.stem: json.loads(path.read_text()) for path in (ROOT / "schedules").glob("*.json")}
    assert {row["name"]: (row["algorithm"], row["machine"], row["ranks"]) for row in rows} == {
        name: (held["algorithm"], held["machine"]["name"], len(held["machine"]["members"]))
        for name, held in files.items()
    }


def test_a_file_of_ones_own_goes_first(tmp_path: Path) -> None:
    ring = (ROOT / "schedules" / "blink-figure-1-rings.json").read_text()
    (tmp_path / "dgx1-v100-2-allreduce").write_text(ring)
    assert read_schedule("dgx1-v100-2-allreduce").algorithm == "rings"
    assert read_schedule("dgx1-v100-2-allreduce.json").collective.name == "allreduce"
    with pytest.raises(InputError, match="no such schedule"):
        read_schedule("./dgx1-v100-2-allreduce.json")


def test_a_misspelt_name_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "dgx1-v100-9-allreduce"]) == 2
    assert "did you mean 'dgx1-v100-8-allreduce'" in capsys.readouterr().err


def test_measured_times_are_summed_up_in_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["measured", "hgx-h100", "--csv"]) == 0
    cells = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert run(["measured", "hgx-h100"]) == 0
    shown = capsys.readouterr().out
    jobs = {(cell["collective"], cell["nodes"] == "1") for cell in cells}
    assert len(shown.splitlines()) <= len({cell["set"] for cell in cells}) + len(jobs) + 8
    for name in {cell["set"] for cell in cells}:
        [line] = [line for line in shown.splitlines() if name in line]
        assert int(line.split()[-1]) == sum(cell["set"] == name for cell in cells)
    wanted = [cell for cell in cells if cell["collective"] == "alltoall" and cell["nodes"] == "1"]
    errors = [abs(float(cell["expected_error_pct"])) for cell in wanted if cell["fitted"] == "False"]
    [line] = [line for line in shown.splitlines() if "alltoall" in line and "on 1 node" in line]
    assert line.split()[7] == str(len(wanted))
    assert line.split()[-3:] == [f"{median(errors):.1f}", "%", "-"]
    assert run(["measured", "aurora"]) == 0
    assert "Intra-node (section 4.1)" in capsys.readouterr().out


def test_the_published_table_is_printed_cell_by_cell(capsys: pytest.CaptureFixture[str]) -> None:
    lines = (ROOT / "models" / "aurora-projected.csv").read_text().splitlines()
    published = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert run(["measured", "aurora", "--csv"]) == 0
    printed = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    for key, source in (("published_model_ms", "model_ms"), ("nodes", "nodes")):
        assert [float(row[key]) for row in printed] == [float(row[source]) for row in published]
    # Two published cells are further from their own equation than the last digit that is printed.
    wide = [row for row in printed if abs(float(row["model_ms"]) / float(row["published_model_ms"]) - 1) > 0.02]
    assert len(wide) <= 2
    assert run(["measured", "aurora", "--why"]) == 0
    out = capsys.readouterr().out
    with (ROOT / "models" / "measured" / "aurora.csv").open() as file:
        times = {(row["nodes"], row["gpus"], row["size_bytes"]): row["time_us"] for row in csv.DictReader(file)}
    for row in printed:
        gpus = int(row["nodes"]) * int(row["ranks_per_node"])
        assert float(row["measured_ms"]) == float(times[row["nodes"], str(gpus), row["size_bytes"]]) / 1e3
        assert f"{float(row['measured_ms']):.4g}" in out
    # Beside them what the document prints, which the notes are about.
    cells = [line.split() for line in out.splitlines() if re.match(r" +\d", line)]
    assert len(cells) == len(published)
    for cell, row in zip(cells, published, strict=True):
        assert float(cell[6]) == float(row["model_ms"])
        assert cell[9:] == [row["efficiency_pct"], "%", *row["note"].split()]
    command = out.splitlines()[-1].removeprefix("next: blinksim ").split()
    assert run(command) == 0


def test_a_machine_without_measurements_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["measured", "aurorra"]) == 2
    assert "did you mean 'aurora'?" in capsys.readouterr().err


def test_the_help_of_topo_cuts_no_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topo", "--help"]) == 0
    assert "..." not in capsys.readouterr().out.replace("[ARGS]...", "")


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_of_machines_fits_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By maker and year, no line longer than the terminal, and every name whole."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(["topo", "list"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    words = set(re.split(r"[\s,]+", text))
    assert set(machine_names.names()) | set(machine_names.ALIASES) <= words
    blocks = [block.splitlines() for block in text.split("\n\n")[1:-2]]
    assert [block[0] for block in blocks] == sorted((block[0] for block in blocks), key=str.lower)
    for block in blocks:
        years = [int(line[2:6]) for line in block[1:] if line[2:6].strip()]
        assert years == sorted(years)
    assert {machine_names.outline(name).maker for name in machine_names.names()} == {block[0] for block in blocks}


def test_machines_are_listed_by_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a name, a maker, another name or what it is, whatever the case; of no machine, that is said."""
    for word, some in (
        ("P6", "p6-b200.48xlarge"),
        ("amazon", "p5e.48xlarge"),
        ("ndv5", "nd-h100-v5"),
        ("GB200", "gb200-nvl72"),
    ):
        assert run(["topo", "list", word, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert some in {row["name"] for row in rows}
        assert all(word.lower() in f"{row} ".lower() for row in rows)
        assert len(rows) < len(machine_names.names())
    assert run(["topo", "list", "h300"]) == 2
    assert "no machine that blinksim knows has 'h300'" in capsys.readouterr().err
