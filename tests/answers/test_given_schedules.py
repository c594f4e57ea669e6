"""Schedules from files beside algorithms: timed alike, named by their files, refused where they do not fit."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.cli.main import run
from blinksim.errors import InfeasibleError, InputError

SIZES = ["64KiB", "64MiB"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bs.Schedule:
    """A schedule as mine.json and, as others write it, theirs.xml and theirs-plan.json."""
    monkeypatch.chdir(tmp_path)
    schedule = bs.synthesize("dgx1-v100", "allreduce", "chain").schedule
    bs.write(schedule, "mine.json")
    bs.write(bs.export(schedule, "msccl-xml"), "theirs.xml")
    bs.write(bs.export(schedule, "mscclpp-json"), "theirs-plan.json")
    return schedule


Capture = pytest.CaptureFixture[str]


def answer(capsys: Capture, *words: str) -> str:
    assert run(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("model", ["alpha-beta", "simulate"])
def test_a_file_takes_as_long_as_the_algorithm_that_it_holds(files: bs.Schedule, model: str) -> None:
    names: list[str | bs.Schedule] = ["chain", "mine.json", "theirs.xml", "theirs-plan.json", files]
    found = bs.compare("dgx1-v100", "allreduce", SIZES, names, model=model)
    assert len(found.projections) == len(SIZES)
    for projections in found.projections:
        assert len(projections) == len(names)
        times = {projection.algorithm: projection.time_s for projection in projections}
        assert times["mine.json"] == times["chain (given)"] == times["chain"]
        assert times["theirs.xml"] == pytest.approx(times["chain"])
        assert times["theirs-plan.json"] == pytest.approx(times["chain"])


def test_rows_csv_json_and_sweeps_name_the_file(files: bs.Schedule, capsys: Capture) -> None:
    words = ("compare", "dgx1-v100", "allreduce", "--algorithms", "ring,mine.json,theirs.xml", "--sizes", "1MiB,64MiB")
    assert {row["algorithm"] for row in csv.DictReader(io.StringIO(answer(capsys, *words, "--csv")))} == {
        "ring", "mine.json", "theirs.xml",
    }  # fmt: skip
    found = json.loads(answer(capsys, *words, "--json", "--rates", "nccl"))
    assert {row["rates"] for row in found["rows"]} == {"nccl"}
    assert "theirs.xml" in answer(capsys, *words)
    assert "theirs.xml" in answer(capsys, *words, "--model", "alpha-beta,simulate")
    answer(capsys, *words, "--plot", "mine.svg")
    # Labels are drawn as paths; what they say is in the comments of the picture.
    assert "theirs.xml" in Path("mine.svg").read_text()
    Path("my_own.xml").write_bytes(Path("theirs.xml").read_bytes())
    words = ("compare", "dgx1-v100", "allreduce", "--algorithms", "ring,my_own.xml", "--sizes", "1MiB,64MiB")
    answer(capsys, *words, "--plot", "own.svg")
    assert "my_own.xml" in Path("own.svg").read_text()
    used = files.topology.links[files.links_of(int(files.route[0]))[0]].name
    cut = f"without {used.split()[0].replace('->', '-')}"
    swept = bs.sweep("dgx1-v100", "allreduce", ["1MiB"], {"edit": ["none", cut]},
                     algorithms=["mine.json", "theirs.xml"])  # fmt: skip
    reasons = {(row["edit"], row["asked"]): row["reason"] for row in swept.rows()}
    assert reasons["none", "mine.json"] == reasons[cut, "theirs.xml"] == ""
    ends = used.split()[0].split("->")
    lost = [f"does not run on dgx1-v100: the link {a}->{b} (" for a, b in (ends, ends[::-1])]
    assert any(words in reasons[cut, "mine.json"] for words in lost)
    assert bs.project("dgx1-v100", "allreduce", "1MiB", algorithm="mine.json").algorithm == "mine.json"


def test_a_journal_knows_that_a_file_changed(files: bs.Schedule, tmp_path: Path) -> None:
    def again() -> bs.Sweep:
        return bs.sweep("dgx1-v100", "allreduce", ["1MiB"], algorithms=["mine.json"], journal=tmp_path / "journal")

    first = again()
    assert again().resumed == 1
    bs.write(bs.synthesize("dgx1-v100", "allreduce", "ring").schedule, "mine.json", force=True)
    other = again()
    assert other.resumed == 0
    assert other.rows()[0]["time_s"] != first.rows()[0]["time_s"]


def test_what_does_not_fit_the_question_is_refused(files: bs.Schedule) -> None:
    with pytest.raises(InputError, match=r"mine\.json is of allreduce, not of allgather"):
        bs.compare("dgx1-v100", "allgather", SIZES, ["mine.json"])
    with pytest.raises(InfeasibleError, match=r"mine\.json runs on gpu0, .*; here dgx1-v100 has gpu0, gpu1$"):
        bs.compare(bs.load("dgx1-v100").select("0-1"), "allreduce", SIZES, ["mine.json"])
    with pytest.raises(InputError, match=r"theirs\.xml is for 8 ranks, and dgx1-v100 has 2 members here"):
        bs.compare(bs.load("dgx1-v100").select("0-1"), "allreduce", SIZES, ["theirs.xml"])
    with pytest.raises(InputError, match=r"no such XML file; did you mean theirs\.xml"):
        bs.compare("dgx1-v100", "allreduce", SIZES, ["their.xml"])
    with pytest.raises(InputError, match="unknown algorithm 'rng'"):
        bs.compare("dgx1-v100", "allreduce", SIZES, ["rng"])
    half = Path("mine.json").read_text().replace('"algorithm": "chain"', '"algorithm": "half"')
    document = json.loads(half)
    for key in ("chunk", "src", "dst", "op", "step", "route", "channel"):
        document[key] = document[key][:-1]
    Path("half.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"half\.json is wrong: gpu\d \(rank \d\) ends without"):
        bs.compare("dgx1-v100", "allreduce", SIZES, ["half.json"])


def test_helpers_of_a_schedule_must_be_in_the_question() -> None:
    part = bs.load("dgx1-v100").select("0-1", "2-3", relays_reduce=True)
    schedule = bs.synthesize(part, "allreduce", "blinkplus").schedule
    assert bs.compare(part, "allreduce", SIZES, [schedule]).algorithms == ("blinkplus (given)",)
    with pytest.raises(InfeasibleError, match="uses the relay gpu2; name its relays with relays=gpu2,gpu3"):
        bs.compare(bs.load("dgx1-v100").select("0-1"), "allreduce", SIZES, [schedule])
    with pytest.raises(InfeasibleError, match="reduces on the relay gpu2; relays_reduce=True"):
        bs.compare(bs.load("dgx1-v100").select("0-1", "2-3"), "allreduce", SIZES, [schedule])


def test_two_given_schedules_of_one_algorithm_have_rows_of_their_own(files: bs.Schedule) -> None:
    found = bs.compare("dgx1-v100", "allreduce", ["1MiB"], [files, files, "chain"])
    assert sorted(found.algorithms) == ["chain", "chain (given)", "chain (given) 2"]


def test_commands_take_programs_with_a_machine(files: bs.Schedule, capsys: Capture) -> None:
    theirs = answer(capsys, "simulate", "theirs.xml", "1MiB", "--machine", "dgx1-v100").splitlines()[0]
    mine = answer(capsys, "simulate", "mine.json", "1MiB").splitlines()[0]
    assert theirs.split(" takes ")[1] == mine.split(" takes ")[1]
    assert "correct" in answer(capsys, "run", "theirs.xml", "64KiB", "--machine", "dgx1-v100")
    assert "correct" in answer(capsys, "run", "theirs-plan.json", "64KiB", "--machine", "dgx1-v100")
    assert "on dgx1-v100 its loads allow" in answer(capsys, "verify", "theirs.xml", "--machine", "dgx1-v100")
    assert "on dgx1-v100 its loads allow" in answer(capsys, "verify", "theirs-plan.json", "--machine", "dgx1-v100")
    slower = answer(capsys, "simulate", "mine.json", "1MiB", "--edit", "replace nvlink bandwidth=10GB/s")
    assert slower.splitlines()[0] != mine
    assert "\n  edited replace nvlink bandwidth=10GB/s\n" in slower
    assert "\n  edited replace nvlink" in answer(capsys, "verify", "mine.json", "--edit", "replace nvlink lanes=2")
    used = files.topology.links[files.links_of(int(files.route[0]))[0]].name.split()[0].replace("->", "-")
    for words, message in (
        (("simulate", "theirs.xml", "1MiB"), "name its machine with --machine"),
        (("simulate", "mine.json", "1MiB", "--rates", "nccl"), "give --machine too"),
        (("simulate", "mine.json", "1MiB", "--machine", "dgx1-v100", "--members", "0-7"), "names its own members"),
        (
            ("simulate", "mine.json", "1MiB", "--edit", f"without {used}"),
            "does not run after this edit: the link",
        ),
    ):
        assert run(list(words)) in (2, 3)
        assert message in capsys.readouterr().err
