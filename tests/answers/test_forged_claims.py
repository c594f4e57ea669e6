"""A claim is accepted exactly when it is true and shown: forged bound files and schedules, against schedules and cuts.

What may be accepted is decided without the code that checks certificates: no accepted bound lies below the rate of a
schedule that a second interpreter finds right, and an accepted "exact" is that rate.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import independent_check
import pytest
from all_branching import best_rate
from all_cuts import best_cut, sides
from forgeries import forge, systematic
from hypothesis import given, strategies as st
from strategies import topologies

import blinksim as bs
from blinksim.answers import verify as verification
from blinksim.answers.verify import FileVerdict
from blinksim.bounds.certificates import Cut, Partition
from blinksim.bounds.lengths import Lengths
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.formats.schedule_json import to_text
from blinksim.machines import Question
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps

GB = 10**9
QUESTIONS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("dgx1-v100", {"members": "0,1,2,3,4,7"}, "allreduce"),
    ("dgx1-v100", {"members": "0,5", "relays": "idle"}, "allgather"),
    ("ring:6", {}, "allgather"),
    ("switch:4", {}, "alltoall"),
    ("full:3", {}, "broadcast"),
    ("ring:5", {"edits": ("without gpu0->gpu1",)}, "reducescatter"),
    ("dgx-a100", {"members": "0-3", "nodes": 1}, "gather"),
    ("rails:2x2", {}, "allreduce"),
    ("switch:4", {"edits": ("switch can=forward,multicast,reduce_into_reader",)}, "allreduce"),
    ("switch:3", {"edits": ("switch can=forward,multicast,reduce",)}, "allreduce"),
)


def bound_file(machine: str, setting: dict[str, Any], collective: str) -> dict[str, Any]:
    """What `bound --json` prints."""
    question = Question(machine, **setting)
    part = question.part()
    found = bs.bound(part, collective)
    text = json.dumps(
        {
            "schema_version": 1,
            "command": "bound",
            **question.described(part),
            **found.to_dict(),
            "trees_per_root": found.trees_per_root,
        }
    )
    document: dict[str, Any] = json.loads(text)
    return document


def judged(document: Any, file: Path) -> FileVerdict | None:
    """The verdict on a document, None if it is refused as bad input. Any other error is a fault."""
    file.write_text(json.dumps(document))
    try:
        found = bs.verify_file(file)
    except BlinksimError as refused:
        said = str(refused)
    else:
        assert json.dumps(found.to_dict())
        return found
    assert "\n" not in said
    return None


@cache
def attainable(machine: str, setting: str, collective: Collective) -> Fraction:
    """The rate of a schedule that is right by a second opinion."""
    given = json.loads(setting)
    whole = Question(machine, nodes=given["nodes"], edits=tuple(given["edits"]), rates=given["rates"]).whole()
    part = whole.select(given["members"], given["relays"], given["links"] or None, relays_reduce=given["reduce"])
    schedule = bs.synthesize(part, collective).schedule
    assert independent_check.check(schedule) == []
    return independent_check.rate(schedule)


@cache
def attainable_in_network(machine: str, setting: str, collective: Collective, grants: frozenset[str]) -> Fraction:
    """The same where switches do what is granted, by a search over all moves."""
    given = json.loads(setting)
    whole = Question(machine, nodes=given["nodes"], edits=tuple(given["edits"]), rates=given["rates"]).whole()
    part = whole.select(given["members"], given["relays"], given["links"] or None, relays_reduce=given["reduce"])
    best = best_rate(part, collective.name, collective.root, grants)
    return Fraction(best / GB).limit_denominator(1000) * GB


def truth(document: dict[str, Any], grants: Collection[str] = ()) -> Fraction:
    """What is attainable in the question that a document puts."""
    setting = {key: document.get(key, []) for key in ("members", "relays", "links", "edits")}
    setting |= {"nodes": document.get("nodes", 1), "rates": document.get("rates_source", "nominal")}
    setting["reduce"] = document.get("relays_reduce", False)
    collective = Collective.parse(document["collective"], document.get("root"))
    machine = document.get("source", document.get("machine"))
    if grants:
        return attainable_in_network(machine, json.dumps(setting), collective, frozenset(grants))
    return attainable(machine, json.dumps(setting), collective)


def assert_true(document: dict[str, Any], found: FileVerdict, told: str) -> None:
    """An accepted bound file says nothing that is false."""
    best = truth(document)
    for entry in document["bounds"]:
        claimed = Fraction(entry["rate_exact"]) * GB
        if entry["scope"] == "reduce-scatter + allgather":
            halves = [truth({**document, "collective": name}) for name in ("reducescatter", "allgather")]
            best_here = 1 / sum(1 / half for half in halves)
        elif entry["certificate"].get("grants"):
            best_here = truth(document, entry["certificate"]["grants"])
        else:
            best_here = best
        assert claimed >= best_here, (told, entry)
        if found.proved and entry.get("kind") == "exact":
            assert claimed == best_here, (told, entry)
    assert Fraction(document.get("rate_exact", document["bounds"][0]["rate_exact"])) * GB >= best or (
        document["bounds"][0]["scope"] == "reduce-scatter + allgather"
    )


def campaign(tmp_path: Path, count: int, seed: int) -> dict[str, int]:
    """`count` forged bound files; what became of them."""
    numbers = random.Random(seed)
    originals = [bound_file(*question) for question in QUESTIONS]
    tally = dict.fromkeys(("accepted", "not proved", "wrong", "refused"), 0)
    file = tmp_path / "forged.json"
    for number in range(count):
        original = originals[number % len(originals)]
        told, document = forge(original, numbers, len(original["members"]))
        found = judged(document, file)
        if found is None:
            tally["refused"] += 1
        elif not found.ok:
            tally["wrong"] += 1
        else:
            tally["accepted" if found.proved else "not proved"] += 1
            assert_true(document, found, told)
    return tally


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: f"{question[0]} {question[2]}")
def test_what_bound_prints_is_proved(question: Any, tmp_path: Path) -> None:
    found = judged(bound_file(*question), tmp_path / "bound.json")
    assert found is not None
    assert found.proved, found


@pytest.mark.slow
def test_none_of_many_forgeries_is_accepted(tmp_path: Path) -> None:
    tally = campaign(tmp_path, 500, seed=2)
    assert tally["wrong"] + tally["refused"] > 325


@pytest.mark.slow
def test_every_value_of_a_claim_in_every_way(tmp_path: Path) -> None:
    original, met = bound_file("full:3", {}, "allgather"), 0
    for told, document in systematic(original, 3):
        found = judged(document, tmp_path / "forged.json")
        if found is not None and found.ok:
            assert_true(document, found, told)
        met += 1
    assert met > 2000


@pytest.mark.parametrize(
    ("forgery", "says"),
    [
        ({"scope": "lengths"}, "scope is 'lengths', and must be 'cut'"),
        ({"shares": [2, 1, 1, 1, 1, 1]}, "its shares"),
        ({"machine": "dgx1-v100"}, "machine is 'dgx1-v100', and must be 'ring:6'"),
        ({"rates": "measured"}, "rates is 'measured', and must be 'nominal'"),
        ({"busbw_GBps": 60.0}, "busbw_GBps is 60.0, and must be 50.0"),
        ({"trees_per_root": 7}, "trees_per_root is 7, and must be 2"),
        ({"kind": "upper"}, "kind is 'upper', and must be 'exact'"),
        ({"checked": 1}, "checked is 1, and must be True"),
        ({"schema_version": 2}, "schema_version is 2, and must be 1"),
        ({"command": "synth"}, "command is 'synth', and must be 'bound'"),
        ({"rate_exact": "1/0"}, "rate_exact is '1/0', and must be '60'"),
        ({"rate_exact": 60}, "rate_exact is 60, and must be '60'"),
    ],
)
def test_a_forged_head_is_named(forgery: dict[str, Any], says: str, tmp_path: Path) -> None:
    found = judged(bound_file("ring:6", {}, "allgather") | forgery, tmp_path / "bound.json")
    assert found is not None
    assert not found.ok
    assert says in " ".join(found.reasons)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("root", "0"), ("relays_reduce", "yes"), ("nodes", True), ("members", []), ("source", 0)],
        *[("shares", [1, 0, 0]), ("shares", "1"), ("collective", ["broadcast"]), ("rates_source", None)],
    ],
)
def test_a_question_of_another_type_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    assert judged(bound_file("full:3", {}, "broadcast") | {key: value}, tmp_path / "bound.json") is None


def test_unequal_blocks_prove_another_problem(tmp_path: Path) -> None:
    # On a ring of six with 25 GB/s each way, 60 GB/s are attained; all blocks but one empty, 50 would be the most.
    document = bound_file("ring:6", {}, "allgather")
    part = bs.load("ring:6").select()
    lone = Cut.of(part, Collective("allgather"), [f"gpu{i}" for i in range(1, 6)], shares=[1, 5, 1, 1, 1, 1])
    entry = document["bounds"][0]
    entry |= {"rate_exact": exact_GBps(lone.rate), "certificate": lone.to_dict(), "algbw_GBps": float(lone.rate) / 1e9}
    document |= {"rate_exact": entry["rate_exact"], "algbw_GBps": entry["algbw_GBps"]}
    assert lone.rate < 60 * GB
    found = judged(document, tmp_path / "bound.json")
    assert found is not None
    assert "are those of another problem" in found.reasons[0]
    # With the blocks named in the question, it is the same sum and true.
    own = bs.bound(part, "allgather", shares=(1, 5, 1, 1, 1, 1))
    stated = {key: document[key] for key in ("machine", "source", "members", "links", "rates")} | own.to_dict()
    found = judged(json.loads(json.dumps(stated)), tmp_path / "bound.json")
    assert found is not None
    assert found.ok


def test_an_upper_bound_made_exact_is_not_proved(tmp_path: Path) -> None:
    # 75 GB/s is a cut; what uncoded schedules attain is 62.5.
    document = bound_file("dgx1-v100", {"members": "0,1,2,3,4,7"}, "allreduce")
    cut = next(entry for entry in document["bounds"] if entry["scope"] == "cut")
    assert cut["kind"] == "upper"
    cut["kind"] = "exact"
    found = judged(document, tmp_path / "bound.json")
    assert found is not None
    assert found.ok
    assert found.unproved == ("cut: not proved: that some schedule attains 75 GB/s (none was found that does)",)


def test_what_nobody_derives_is_not_proved(tmp_path: Path) -> None:
    found = judged(bound_file("full:3", {}, "allgather") | {"optimal": True, "losses": []}, tmp_path / "bound.json")
    assert found is not None
    assert (found.ok, found.unproved) == (True, ("not proved: optimal, losses",))


# --- random machines, random witnesses ----------------------------------------------------------------------------


@given(st.data())
def test_a_sum_is_accepted_exactly_when_it_is_the_sum(data: st.DataObject) -> None:
    """Any side, partition or lengths: the right sums are accepted, all others refused, and none is below the truth."""
    topology = data.draw(topologies(max_devices=6, relays=True))
    name = data.draw(st.sampled_from(COLLECTIVES))
    collective = Collective(name, data.draw(st.integers(0, topology.ranks - 1)) if Collective(name).rooted else 0)
    made = bs.synthesize(topology, collective)
    assert independent_check.check(made.schedule) == []
    attained = independent_check.rate(made.schedule)
    for certificate in _witnesses(data, topology, collective):
        right = certificate.rate
        assert certificate.check(topology, collective, right) == []
        assert right >= attained
        if isinstance(certificate, Cut):
            assert right >= best_cut(topology, collective)
        factor = data.draw(st.fractions(Fraction(1, 4), 4))
        assert bool(certificate.check(topology, collective, right * factor)) == (factor != 1)


def _witnesses(data: st.DataObject, topology: Topology, collective: Collective) -> list[Cut | Partition | Lengths]:
    names = [device.name for device in topology.devices]
    found: list[Cut | Partition | Lengths] = []
    part = {name: data.draw(st.integers(0, 2)) for name in names}
    groups = [[name for name in names if part[name] == number] for number in sorted(set(part.values()))]
    lengths = {
        link.name: Fraction(data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3))) for link in topology.links
    }
    side = data.draw(st.sampled_from([sorted(one) for one in sides(topology)]))
    for make in (
        lambda: Cut.of(topology, collective, side),
        lambda: Partition.of(topology, collective, groups),
        lambda: Lengths.of(topology, collective, lengths),
    ):
        try:
            found.append(make())
        except InputError:
            continue
    return found


# --- schedules ----------------------------------------------------------------------------------------------------


def schedule_file(machine: str, collective: str, algorithm: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(to_text(bs.synthesize(machine, collective, algorithm).schedule))
    return document


SCHEDULES = (("ring:4", "allreduce", "ring"), ("full:3", "allgather", "packed"), ("full:4", "allreduce", "binary"))


def forged_schedules(tmp_path: Path, count: int, seed: int) -> int:
    """The claims of schedules forged; how many were accepted."""
    numbers, accepted = random.Random(seed), 0
    originals = [schedule_file(*one) for one in SCHEDULES]
    for number in range(count):
        original = originals[number % len(originals)]
        ranks = len(original["machine"]["members"])
        told, claim = forge(original["bound"], numbers, ranks)
        found = judged(original | {"bound": claim}, tmp_path / "forged.json")
        if found is None or not found.proved or not claim:
            continue
        accepted += 1
        rate = Fraction(found.details["rate_exact"])
        if found.details["bound_exact"] is not None:
            best = Fraction(found.details["bound_exact"])
            assert Fraction(claim.get("rate_exact", best)) == best >= rate, told
            assert Fraction(claim.get("gap_exact", 1 - rate / best)) == 1 - rate / best, told
            assert claim.get("kind") != "exact" or rate == best, told
    return accepted


def test_no_forged_claim_of_a_schedule_is_accepted(tmp_path: Path) -> None:
    assert forged_schedules(tmp_path, 150, seed=3) < 60


@pytest.mark.slow
def test_none_of_many_forged_claims_of_schedules_is_accepted(tmp_path: Path) -> None:
    assert forged_schedules(tmp_path, 1500, seed=4) < 600


def test_a_bound_of_many_ranks_is_shown_to_be_attained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = bound_file("ring:66", {}, "allgather")
    assert document["bounds"][0]["kind"] == "exact"
    found = judged(document, tmp_path / "bound.json")
    assert found is not None
    assert found.ok
    assert found.unproved == ()
    # Where it would take too long, the answer says about how long.
    monkeypatch.setattr(verification, "_PATIENCE", 0.01)
    found = judged(document, tmp_path / "bound.json")
    assert found is not None
    assert "building one for these 66 ranks would take about" in found.unproved[0]
