"""What a schedule says about its bound: proved by its certificate and by itself, or not at all."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import blinksim as bs
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.schedule.model import Schedule

GB = 10**9


def ring(collective: str = "allreduce") -> Schedule:
    """A ring on a full graph of four: 200/3 GB/s of 100 possible in an allreduce (two ways, 12 links of 25 GB/s)."""
    return bs.synthesize("full:4", collective, "ring").schedule


@pytest.mark.parametrize(
    ("claim", "wrong", "unproved"),
    [
        ({}, "", ""),
        ({"scope": "tree-optimum"}, "scope is 'tree-optimum'", ""),
        ({"rate_exact": "49"}, "rate_exact is '49', and must be '50'", ""),
        ({"rate_exact": 50}, "rate_exact is 50", ""),
        ({"gap_exact": "1/4"}, "gap_exact is '1/4', but 1 - rate/bound is", ""),
        ({"gap_exact": "0/0"}, "gap_exact is '0/0'", ""),
        ({"kind": "best"}, "kind is 'best', and must be exact or upper", ""),
        ({"certificate": {}}, "unknown kind of certificate", ""),
        # Sentences are for people, and another version may put them otherwise.
        ({"assumes": "nothing"}, "", ""),
        ({"words": "every link is full"}, "", ""),
        ({"least_steps": 2}, "", "not proved: least_steps"),
    ],
)
def test_every_claim_is_held_against_the_certificate(claim: dict[str, Any], wrong: str, unproved: str) -> None:
    schedule = ring()
    found = bs.verify(schedule.with_bound({**schedule.bound, **claim}))
    assert found.ok == (not wrong)
    assert wrong in " ".join(found.reasons)
    assert bool(found.unproved) == bool(unproved)
    assert unproved in " ".join(found.unproved)


@pytest.mark.parametrize("claim", [{"rate_exact": "x"}, {"rate_exact": "1/0"}, {"rate_exact": "1e99999999999"}])
def test_a_rate_that_is_none_is_wrong_without_a_certificate_too(claim: dict[str, Any]) -> None:
    assert "not a fraction" in bs.verify(ring().with_bound(claim)).reasons[0]


def test_a_bound_below_the_schedule_does_not_hold() -> None:
    assert "the bound does not hold here" in bs.verify(ring().with_bound({"rate_exact": "1"})).reasons[0]


def test_a_bound_without_a_certificate_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = ring()
    rate = bs.verify(schedule).facts.rate
    assert rate is not None
    forged = schedule.with_bound({"rate_exact": str(rate / GB), "gap_exact": "0", "kind": "exact"})
    found = bs.verify(forged)
    assert found.ok
    assert (found.facts.bound, found.facts.gap) == (None, None)
    assert found.unproved == ("not proved, as there is no certificate: rate_exact, gap_exact, kind",)
    bs.write(forged, tmp_path / "ring.json")
    assert run(["verify", str(tmp_path / "ring.json")]) == 5
    assert "bound unknown" in capsys.readouterr().out
    # Without any claim there is nothing to prove.
    bs.write(schedule.with_bound({}), tmp_path / "bare.json")
    assert run(["verify", str(tmp_path / "bare.json")]) == 0
    assert "no certificate: rate of the schedule" in capsys.readouterr().out


def test_verify_says_the_gap_as_synth_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In per cent: 30 GB/s of 125/2."""
    file = str(tmp_path / "s.json")
    assert run(["synth", "dgx1-v100", "allreduce", "--algorithm", "ring", "--members", "0-5", "-o", file]) == 0
    assert "52 % below the bound" in capsys.readouterr().out
    assert run(["verify", file]) == 0
    assert "gap 52 %" in capsys.readouterr().out


def test_a_schedule_that_is_wrong_has_no_gap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A send less makes its loads no better."""
    file = tmp_path / "s.json"
    bs.write(bs.synthesize("full:4", "allgather", "packed").schedule, file)
    assert run(["verify", str(file)]) == 0
    assert "gap 0 %" in capsys.readouterr().out
    document = json.loads(file.read_text())
    document |= {name: document[name][:-1] for name in ("chunk", "src", "dst", "op", "step", "route", "channel")}
    file.write_text(json.dumps(document))
    assert run(["verify", str(file)]) == 1
    said = capsys.readouterr().out
    assert "never reaches" in said
    assert "gap" not in said


def test_only_a_schedule_that_attains_a_bound_shows_that_it_is_exact() -> None:
    best, tree = bs.synthesize("full:4", "allreduce").schedule, bs.synthesize("full:4", "allreduce", "binary").schedule
    assert best.bound["kind"] == "exact"
    assert not bs.verify(best).unproved
    # The bound is attained, but not by this schedule, and no sum shows it.
    assert tree.bound["kind"] == "upper"
    found = bs.verify(tree.with_bound({**tree.bound, "kind": "exact"}))
    assert found.ok
    assert "that some schedule attains" in found.unproved[0]


def test_the_scope_of_two_phases_is_shown_by_no_single_schedule() -> None:
    # The ring on a ring attains the cut of its phases; but what it assumes of a schedule is not looked into.
    schedule = bs.synthesize("ring:4", "allreduce", "ring").schedule
    phases = bs.bound("ring:4", "allreduce").scoped("reduce-scatter + allgather")
    assert phases is not None
    claim = phases.to_dict(schedule.topology, schedule.collective)
    assert bs.verify(schedule.with_bound({**claim, "kind": "upper"})).ok
    assert bs.verify(schedule.with_bound({**claim, "kind": "exact"})).unproved


@pytest.mark.parametrize("edit", ["degrade gpu0-gpu3 lanes=1", "replace gpu0-gpu3 lanes=4"])
def test_an_edited_machine_has_a_bound_of_its_own(
    edit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "ring.json")
    line = ["synth", "dgx1-v100", "allreduce", "--members", "0,1,2,3", "--algorithm", "ring", "-o", file]
    assert run(line) == 0
    capsys.readouterr()
    assert run(["verify", file, "--edit", edit, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    part = bs.load("dgx1-v100", edits=edit).select("0-3")
    # The witness is that of the old machine: a bound that holds, if not always the tightest.
    assert Fraction(found["bound_exact"]) * GB >= bs.bound(part, "allreduce").rate
    rate = Fraction(found["rate_exact"])
    assert Fraction(found["gap_exact"]) == 1 - rate / Fraction(found["bound_exact"])


def test_few_steps_states_the_gap_of_its_loads(capsys: pytest.CaptureFixture[str]) -> None:
    part = bs.load("hgx-h100").select("0-3")
    made = bs.synthesize(part, Collective("reducescatter"), "few_steps")
    # Every rank sends three shards of four out of its port, once: that is the bound.
    assert made.gap == 0
    assert made.schedule.bound["gap_exact"] == "0"
    assert bs.verify(made.schedule).facts.gap == 0


@pytest.mark.parametrize(
    "algorithm",
    [
        "packed",
        "ring",
        "few_steps",
        "binary",
        "direct",
        "mxnet",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("blink", "chains")),
    ],
)
def test_what_synthesis_claims_is_proved(algorithm: str) -> None:
    try:
        schedule = bs.synthesize("dgx1-v100", "allreduce", algorithm).schedule
    except bs.InfeasibleError:
        pytest.skip("not on this machine")
    found = bs.verify(schedule)
    assert (found.ok, found.unproved) == (True, ())
    assert schedule.bound


def test_a_file_in_other_words_is_proved_and_put_into_those_of_this_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule, file = ring(), tmp_path / "ring.json"
    bs.write(schedule.with_bound({**schedule.bound, "words": "full", "assumes": "little"}), file)
    assert run(["verify", str(file)]) == 0
    said = f"its bound in words of now: {schedule.bound['words']}; it assumes {schedule.bound['assumes']}"
    assert said in capsys.readouterr().out
    bs.write(schedule, file, force=True)
    assert run(["verify", str(file)]) == 0
    assert "of now" not in capsys.readouterr().out
