"""A thousand changes of the schedules of groups that share a machine: refused, or right by a second opinion."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import cycle
from pathlib import Path
from typing import Any

import independent_check
import pytest
from independent_check import check
from schedule_mutants import STRICTER, mutants

import blinksim as bs
from blinksim.bounds.together import Together
from blinksim.errors import BlinksimError
from blinksim.schedule.model import PER_SEND, Schedule, rebase

GROUPS = {
    "pairs": ("full:8@50GB/s", ["0,1", "2,3", "4,5", "6,7"]),
    "mixed": ("full:8@50GB/s", ["0,1", "2,3:broadcast", "4-7:allgather"]),
    "tenants": ("dgx1-v100", ["0,1", "2,3:allgather", "4-7:reducescatter"]),
    "quads": ("mi355x", ["0-3", "4-7"]),
}
EACH = 250


def changed(document: dict[str, Any], luck: random.Random) -> str:
    """The file with one send, chunk or route other than it was."""
    found = json.loads(json.dumps(document))
    lists = [found[key] for key, value in found.items() if isinstance(value, list) and value and key != "machine"]
    lists += [
        value for part in found.values() if isinstance(part, dict) for value in part.values() if isinstance(value, list)
    ]
    rows = luck.choice([rows for rows in lists if len(rows) > 1])
    place = luck.randrange(len(rows))
    match luck.randrange(4):
        case 0:
            del rows[place]
        case 1:
            rows.append(rows[place])
        case 2:
            other = luck.randrange(len(rows))
            rows[place], rows[other] = rows[other], rows[place]
        case _:
            inner, key = rows, place
            while isinstance(inner[key], (list, dict)) and inner[key]:
                inner = inner[key]
                key = luck.choice([*inner]) if isinstance(inner, dict) else luck.randrange(len(inner))
            value = inner[key]
            inner[key] = value + luck.choice([1, -1]) if type(value) is int else f"{value}1"
    return json.dumps(found)


def together(name: str) -> Together:
    machine, groups = GROUPS[name]
    return bs.together(bs.Question(machine, relays="others", relays_reduce=True), groups)


def judged(
    name: str, documents: list[dict[str, Any]], path: Path, agrees: Callable[[Schedule], bool]
) -> tuple[int, int]:
    """How many of `EACH` changed files are refused, and how many are right, by the second opinion too."""
    luck, right = random.Random(name), 0
    for number in range(EACH):
        path.write_text(changed(documents[number % len(documents)], luck))
        try:
            schedule = bs.read_schedule(path)
            believed = bs.verify_file(path).ok
        except BlinksimError:
            continue
        if believed:
            assert agrees(schedule)
            right += 1
    return EACH - right, right


@pytest.mark.parametrize("name", GROUPS)
def test_mutants_are_refused_or_right(name: str, tmp_path: Path) -> None:
    documents = []
    for number, group in enumerate(together(name).groups):
        assert group.schedule is not None
        bs.write(group.schedule, tmp_path / f"{number}.json")
        assert bs.verify_file(tmp_path / f"{number}.json").ok
        documents.append(json.loads((tmp_path / f"{number}.json").read_text()))
    refused, right = judged(name, documents, tmp_path / "mutant.json", lambda schedule: check(schedule) == [])
    assert refused > right


@pytest.mark.parametrize("name", GROUPS)
def test_mutants_of_a_file_of_several_groups_are_refused_or_right(name: str, tmp_path: Path) -> None:
    """All schedules in one file; the second opinion looks at each group's, cut out of the file anew."""
    path = tmp_path / "groups.json"
    bs.write(together(name), path)
    document = json.loads(path.read_text())
    assert document["version"] == 3
    assert bs.verify_file(path).proved

    def agrees(schedule: Schedule) -> bool:
        faults = [fault for one in apart(schedule) for fault in check(one)]
        return faults == [] and bs.execute(schedule, 4000 * len(GROUPS[name][1]), dtype="int32", op="prod").ok

    refused, right = judged(name, [document], path, agrees)
    assert refused > right > 0


def falsified(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Copies of the file with one false word about its bound, by what that is."""
    copies = {
        what: json.loads(json.dumps(document)) for what in ("more", "less", "gap", "sum", "cut", "lost", "below", "new")
    }
    bounds = {what: copy["bound"] for what, copy in copies.items()}
    proofs = {what: bound["certificate"] for what, bound in bounds.items()}
    rate = Fraction(document["bound"]["rate_exact"])
    bounds["more"]["rate_exact"], bounds["less"]["rate_exact"] = str(rate + 1), str(rate - 1)
    bounds["gap"]["gap_exact"] = "1/2"
    proofs["sum"]["distance_exact"] = str(Fraction(proofs["sum"]["distance_exact"]) * 2)
    bounds["cut"]["certificate"] = {"kind": "cut", "side": [document["groups"][0]["members"][0]]}
    proofs["lost"]["lengths"].popitem()
    proofs["below"]["lengths"][next(iter(proofs["below"]["lengths"]))] = "-1"
    proofs["new"]["lengths"]["gpu0->gpu99 (link)"] = "1"
    return copies


@pytest.mark.parametrize(
    ("machine", "groups", "most"),
    [
        # Blink+'s four V100: each pair has 62.5 GB/s beside the other.
        ("dgx1-v100", ["0,1:allreduce:1GiB", "2,3:allreduce:1GiB"], 125),
        # Of 7 x 50 GB/s of each GPU, all of which carry something, a pair of pairs has 300 each.
        ("full:8@50GB/s", ["0,1", "2,3"], 600),
        # Four GPUs that reduce on every path have twice what they have by themselves, 100.
        ("full:8@50GB/s", ["0-3", "4-7"], 400),
    ],
)
def test_a_file_of_groups_proves_that_no_schedule_is_faster(
    machine: str, groups: list[str], most: int, tmp_path: Path
) -> None:
    """With the rate of all by hand; what is false of the bound is refused, what only is said otherwise is not."""
    question = bs.Question(machine, relays="others", relays_reduce=True)
    question = replace(question, edits=("without gpu[4-7]",)) if "1GiB" in groups[0] else question
    path, found = tmp_path / "groups.json", bs.together(question, groups)
    bs.write(found, path)
    said = bs.verify_file(path)
    assert said.proved
    assert said.details == {"rate_exact": str(most), "bound_exact": str(most), "gap_exact": "0"}
    document = json.loads(path.read_text())
    for what, copy in falsified(document).items():
        path.write_text(json.dumps(copy))
        verdict = bs.verify_file(path)
        assert not verdict.ok, what
        assert all(reason.startswith("its bound: ") for reason in verdict.reasons)
    proof = document["bound"]["certificate"]
    for key in ("price_exact", "distance_exact"):
        proof[key] = str(2 * Fraction(proof[key]))
    proof["lengths"] = {name: str(2 * Fraction(length)) for name, length in proof["lengths"].items()}
    path.write_text(json.dumps(document))
    assert bs.verify_file(path).proved


def apart(schedule: Schedule) -> list[Schedule]:
    """The schedules of groups by the definition of the file: whose chunks they are says the order of the shares."""
    chunks = iter(range(schedule.chunks))
    found = []
    for group in schedule.groups:
        mine, left = list[int](), group.share
        while left > 0:
            mine.append(next(chunks))
            left -= schedule.share(mine[-1])
        assert left == 0
        sends = [send for send in range(schedule.sends) if schedule.chunk[send] in mine]
        columns = {key: getattr(schedule, key)[sends] for key in PER_SEND}
        columns["chunk"] = columns["chunk"] - mine[0]
        columns |= {key: getattr(schedule, key)[mine] for key in ("share_num", "origin", "target")}
        part = schedule.topology.select(
            group.members, group.relays, relays_reduce=group.relays_reduce, links="all", connected=False
        )
        whole = replace(schedule.topology, members=part.members, relays=part.relays)
        given = {"topology": whole, "collective": group.collective, "share_den": sum(columns["share_num"].tolist())}
        placed = rebase(replace(schedule, groups=(), **columns, **given), part)
        assert isinstance(placed, Schedule), placed
        found.append(replace(placed, topology=part))
    return found


def overloaded(found: Together) -> set[str]:
    """What would carry more than it can if all groups had their rates, added up send by send."""
    carried, most = defaultdict[str, Fraction](Fraction), dict[str, Fraction]()
    for number in range(len(found.machine.links)):
        most |= independent_check.shared(found.machine, number)
    for group in found.groups:
        assert group.schedule is not None
        for name, load in independent_check.loads(group.schedule).items():
            carried[name] += load * group.rate
    return {name for name, rate in carried.items() if rate > most[name] * (1 + Fraction(1, 10**6))}


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS)
def test_mutants_of_groups_side_by_side(name: str) -> None:
    """One group has a damaged schedule, that of another group, or a higher rate; the others are as they were."""
    found = together(name)
    assert found.faults() == []
    luck, wrong, right = random.Random(name), list[str](), 0
    parts = list[tuple[int, str, Schedule]]()
    for number, group in cycle(enumerate(found.groups)):
        if len(parts) >= EACH and number == 0:
            break
        assert group.schedule is not None
        parts += [(number, *one) for one in mutants(group.schedule, luck)]
        parts += [(number, "that of another", other.schedule) for other in found.groups if other.schedule]
        parts += [(number, f"rate {luck.randint(101, 300)}", group.schedule) for _ in range(5)]
    for number, kind, schedule in luck.sample(parts, EACH):
        group = found.groups[number]
        times = Fraction(int(kind.split()[1]), 100) if kind.startswith("rate") else 1
        groups = list(found.groups)
        groups[number] = replace(group, schedule=schedule, rate=group.rate * times)
        mutant = replace(found, groups=tuple(groups))
        foreign = (schedule.topology, schedule.collective) != (group.part, group.collective)
        faults, really = mutant.faults(), foreign or bool(check(schedule)) or bool(overloaded(mutant))
        if really:
            assert faults, (kind, schedule)
            wrong.append(kind)
        elif faults:
            assert any(words in fault for fault in faults for words in STRICTER), (kind, faults)
        else:
            right += 1
    assert len(wrong) > EACH / 2
    assert right > 0
    assert {*wrong} >= {"drop", "redirect", "other chunk", "wrong route"}
