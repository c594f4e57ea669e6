"""What ``--json`` prints is what docs/answer.schema.json says, for every command; jsonschema is the judge."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from blinksim.cli.main import run

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "answer.schema.json").read_text())
JUDGE = jsonschema.Draft202012Validator(SCHEMA)
TIMES = ROOT / "validate" / "results" / "nccl-tuning-4gpu.csv"
LOCATED = ROOT / "tests" / "data" / "located"
LOG = str(ROOT / "tests" / "data" / "nccl_tests" / "h200x8-allreduce.txt")

LINES = {
    "project": "project dgx1-v100 allreduce 1MiB",
    "project, a preset": "project aurora allreduce 2GB --nodes 4 --model aurora-projection",
    "project, NCCL": "project dgx1-v100 allreduce 1MiB --algorithm nccl",
    "project, simulated": "project dgx1-v100 allreduce 1MiB --algorithm ring --model simulate",
    "compare": "compare dgx1-v100 allreduce --sizes 1MiB,4MiB --algorithms ring,direct",
    "compare, with a search": "compare dgx1-v100 allgather --sizes 64KiB --algorithms ring --members 0-3 --search 0.3",
    "compare, machines": "compare p5,trn2 allreduce --sizes 1GiB --price p5=55",
    "compare, calls": "compare p5,hgx-h200 allreduce --bytes 1GB --bucket 25MiB",
    "bound": "bound dgx1-v100 broadcast --members 0,1 --relays idle",
    "bound, with traffic": "bound switch:8 alltoallv --traffic {folder}/t.csv",
    "project, experts": "project hgx-h100 dispatch --nodes 8 --tokens 8",
    "bound, of experts": "bound switch:8 combine --tokens 8",
    "bound groups": "bound dgx1-v100 --group 0,1:allreduce:1MiB --group 2,3:allgather:2MiB",
    "synth groups": "synth dgx1-v100 --mesh 2x4 --axis 1",
    "project groups": "project dgx1-v100 allreduce 1MiB --mesh 2x4",
    "traffic": "traffic --ranks 8 --tokens 64",
    "place": "place dgx1-v100 2",
    "place, a mesh": "place dgx1-v100 --mesh 2x4",
    "synth": "synth dgx1-v100 allreduce --members 0-3",
    "synth, at a size": "synth dgx1-v100 allreduce --members 0-3 --size 64KiB",
    "synth, an elementary one": "synth dgx1-v100 reduce --members 0-3 --algorithm chain --root 1",
    "synth list": "synth --list",
    "verify": "verify {folder}/s.json",
    "verify a bound": "verify {folder}/b.json",
    "run": "run {folder}/s.json 1000 --check",
    "simulate": "simulate {folder}/s.json 1MiB",
    "export": "export {folder}/s.json --format mscclpp-json",
    "sweep": "sweep dgx1-v100 allreduce --sizes 1MiB --vary rates=nominal,seed",
    "diagnose": f"diagnose {LOG} --machine hgx-h200",
    "expect": "expect hgx-h200 --sizes 1MiB",
    "expect, of a log": f"expect hgx-h200 --check {LOG}",
    "health": "health dgx1-v100",
    "locate": f"locate hgx-h100 {LOCATED}/all.txt {LOCATED}/gpu0145.txt {LOCATED}/even.txt",
    "calibrate": f"calibrate {LOG} --machine hgx-h200",
    "tune": f"tune hgx-h200 {TIMES} --members 0-3 --no-nvls",
    "advise": "advise dgx1-v100 --members 0-3",
    "schedules": "schedules",
    "measured": "measured aurora",
    "reproduce": "reproduce aurora",
    "topo list": "topo list",
    "topo show": "topo show dgx1-v100",
    "topo check": "topo check dgx1-v100",
    "topo check rules": "topo check --rules",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("answers")


def answer(capsys: pytest.CaptureFixture[str], line: str) -> Any:
    status = run([*line.split(), "--json"])
    captured = capsys.readouterr()
    assert status in (0, 1), captured.err
    return json.loads(captured.out)


@pytest.fixture
def answers(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    if not (folder / "s.json").exists():
        assert run(["synth", "dgx1-v100", "allreduce", "--members", "0-3", "-o", str(folder / "s.json"), "-q"]) == 0
        assert run(["traffic", "--ranks", "8", "--tokens", "64", "-o", str(folder / "t.csv")]) == 0
        capsys.readouterr()
        (folder / "b.json").write_text(json.dumps(answer(capsys, "bound dgx1-v100 allreduce")))
    return folder


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", LINES)
def test_every_command_keeps_to_it(answers: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    found = answer(capsys, LINES[name].format(folder=answers))
    JUDGE.validate(found)
    assert found["command"] == name.partition(",")[0].removesuffix(" a bound")


def test_every_command_of_the_schema_is_run() -> None:
    assert set(SCHEMA["properties"]["command"]["enum"]) == {
        name.partition(",")[0].removesuffix(" a bound") for name in LINES
    }


def test_a_key_that_is_gone_or_another_type_is_noticed(answers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, LINES["bound"])
    for key, value in (("rate_exact", "0.5"), ("bounds", []), ("schema_version", 2), ("command", "bounds")):
        for broken in ({k: v for k, v in found.items() if k != key}, {**copy.deepcopy(found), key: value}):
            with pytest.raises(jsonschema.ValidationError):
                JUDGE.validate(broken)


def test_a_comparison_of_machines_names_them_in_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, LINES["compare, machines"])
    assert isinstance(found["caveat"], str)
    for broken in (found | {"caveat": []}, found | {"rows": [{"time_s": 1.0}]}):
        with pytest.raises(jsonschema.ValidationError):
            JUDGE.validate(broken)


def test_rows_of_compare_say_what_the_library_takes_as_project_does(capsys: pytest.CaptureFixture[str]) -> None:
    # As the schema describes takes_s, could_take_s and time_s of a row.
    projected = answer(capsys, "project dgx1-v100 allreduce 4MiB")
    rows = answer(capsys, "compare dgx1-v100 allreduce --sizes 4MiB")["rows"]
    assert {row["takes_s"] for row in rows} == {projected["time_s"]}
    assert {row["could_take_s"] for row in rows} == {min(row["time_s"] for row in rows)}
    assert min(row["time_s"] for row in rows) != projected["time_s"]
