"""Subsets of GPUs ranked by bound."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import comb

import pytest

from blinksim import budget
from blinksim.answers.place import Placements, place
from blinksim.answers.project import answer
from blinksim.bounds.compute import bound
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import Question, load
from blinksim.topology.graph import Topology
from blinksim.traffic import Traffic

GB = 10**9


def test_the_two_quads_are_the_best_four_of_a_v100_machine() -> None:
    rows = place(load("dgx1-v100"), 4)
    assert len(rows) == 70
    assert [row.members for row in rows[:2]] == [
        ("gpu0", "gpu1", "gpu2", "gpu3"),
        ("gpu4", "gpu5", "gpu6", "gpu7"),
    ]
    assert rows[0].rate == rows[1].rate == 75 * GB  # three lanes
    assert rows[2].rate is not None
    assert rows[2].rate < 75 * GB
    connected = [row for row in rows if row.connected]
    assert rows[: len(connected)] == connected
    assert [row.rate for row in connected] == sorted((row.rate for row in connected), key=lambda rate: -(rate or 0))
    apart = [row for row in rows if not row.connected]
    assert apart
    assert all("not connected: gpu" in row.words and row.to_dict()["rate_exact"] is None for row in apart)


def test_idle_gpus_join_what_is_apart() -> None:
    machine = load("dgx1-v100")
    alone, helped = place(machine, 2), place(machine, 2, relays="idle")
    assert sum(not row.connected for row in alone) == 12
    assert all(row.connected and len(row.relays) == 6 for row in helped)
    named = place(machine, 2, relays=["gpu7"])
    assert len(named) == 21
    assert all(row.relays == ("gpu7",) for row in named)


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
@pytest.mark.parametrize(("edit", "status"), [(["--edit", "without gpu0-gpu1"], 1), ([], 0)])
def test_the_exit_status_is_the_same_in_every_form(
    capsys: pytest.CaptureFixture[str], form: list[str], edit: list[str], status: int
) -> None:
    assert run(["place", "ring:2", "2", *edit, *form]) == status
    assert capsys.readouterr().out


def test_symmetry_changes_no_answer() -> None:
    machine = load("dgx1-v100")
    swap = tuple((i + 4) % 8 if i < 8 else i for i in range(len(machine.devices)))
    part = machine.select(links=["nvlink"])
    symmetric = replace(part, symmetries=(swap[:8],))
    with_it = {row.members: row.rate for row in place(symmetric, 3, Collective("allgather"))}
    without = {row.members: bound_of(part, row.members) for row in place(symmetric, 3)}
    assert with_it == without
    # With the exchange of the quads and that of the GPUs in each, four choices are alike.
    assert {row.alike for row in place(symmetric, 3)} == {4}


def bound_of(machine: Topology, members: Sequence[str]) -> Fraction | None:
    part = machine.select(members, connected=False)
    return bound(part, Collective("allgather")).rate if len(part.components()) == 1 else None


def gpus(words: str) -> set[str]:
    """The GPUs that words such as GPUs 0-2, 5 name."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", words)
    return {f"gpu{number}" for first, last in spans for number in range(int(first), int(last or first) + 1)}


def exact(rows: Placements) -> list[tuple[str, set[tuple[str, ...]]]]:
    """What a row of the text says, as the choices that it stands for."""
    said = []
    for _, words in rows.equals():
        count, every = len(rows[0].members), rows.candidates
        kept, _, rest = words.partition(" and any ")
        if words.startswith("all "):
            said.append((words, set(combinations(every, count))))
        elif rest or words.startswith("any "):
            out = gpus(words.partition(" without ")[2])
            mine = gpus(kept) if rest else set()
            said.append((words, {one for one in combinations(every, count) if mine <= {*one} and not out & {*one}}))
    return said


@pytest.mark.parametrize(
    ("machine", "edit", "count", "words"),
    [
        ("hgx-h200", "", 4, ["all 70 choices are alike"]),
        ("hgx-h200", "degrade gpu5-nvswitch lanes=12", 4, ["any 4 without GPU 5", "GPU 5 and any 3 others"]),
        ("hgx-h200", "degrade gpu5-nvswitch lanes=12", 8, ["GPUs 0-7"]),
        ("dgx1-v100", "", 4, ["GPUs 0-3 or 1 other", "GPUs 0,3-4,7 or 1 other"]),
        ("line:4", "", 3, ["GPUs 1-2 and any other", "GPUs 0,3 and any other"]),
    ],
)
def test_choices_with_equal_rates_are_one_row(machine: str, edit: str, count: int, words: list[str]) -> None:
    rows = place(load(machine, edits=[edit] if edit else []), count)
    assert [said for _, said in rows.equals()][: len(words)] == words
    rates = {row.members: (row.rate, row.in_network) for row in rows}
    assert sum(1 for _ in rows.equals()) == len(set(rates.values()))
    for said, choices in exact(rows):
        first = next(row for row, text in rows.equals() if text == said)
        assert {one for one, rate in rates.items() if rate == rates[first.members]} == choices


@pytest.mark.parametrize(
    ("machine", "edits"),
    [
        ("rails:4x3", []),
        ("rails:4x3", ["without n0.nic0"]),
        ("rails:4x3", ["without n0.nic[0-1]"]),
        ("fattree:4x3", []),
        ("fattree:4x3", ["degrade n1.gpu0-n1.switch bandwidth=5GB/s"]),
        ("fattree:3x4", ["without n2.gpu3"]),
        # Other nodes take the GPUs on the rails that a damaged node has left.
        ("rails:4x3", ["without n1.gpu[0-1]"]),
        ("rails:4x3", ["without n1.gpu0", "without n2.gpu1"]),
        ("rails:3x4", ["without n1.gpu[0-1]", "without n2.gpu[2-3]"]),
        ("rails:3x4", ["degrade n0.gpu0-n0.switch bandwidth=5GB/s", "without n1.gpu[0-1]"]),
        ("rails:3x4", ["without n1.nic[0-1]"]),
    ],
)
@pytest.mark.parametrize("count", [4, 6])
def test_the_best_even_division_is_as_good_as_any_choice(
    monkeypatch: pytest.MonkeyPatch, machine: str, edits: list[str], count: int
) -> None:
    cluster = load(machine, edits=edits)
    every = place(cluster, count)
    monkeypatch.setattr("blinksim.answers.place.LIMIT", 25)
    divided = place(cluster, count)
    assert every.whole
    assert not divided.whole
    assert len(divided) <= cluster.nodes
    assert divided[0].rate == every[0].rate
    rates = {row.members: row.rate for row in every}
    assert all(rates[row.members] == row.rate for row in divided)

    def sizes(members: Sequence[str]) -> list[int]:
        return sorted(Counter(name.partition(".")[0] for name in members).values())

    for row in divided:
        assert row.rate == max(rate or 0 for members, rate in rates.items() if sizes(members) == sizes(row.members))


def test_sixteen_of_thirty_two_gpus_are_two_whole_nodes() -> None:
    machine = load("hgx-h200", nodes=4)
    found = place(machine, 16)
    assert found[0].members == machine.members[:16]
    # Adapters carry 400 GB/s out of a node: half of the data twice, over both nodes.
    assert found[0].rate == Fraction(800, 3) * GB
    assert found.equals()[0][1] == "GPUs 0-7 of n0-1"
    assert "of 2 even divisions are connected" in found.sentence()
    traffic = Traffic([[1 - (a == b) for b in range(16)] for a in range(16)])
    assert place(machine, 16, Collective("alltoallv", traffic=traffic))[0].members == found[0].members
    # A node that has lost adapters is left out.
    worse = place(load("hgx-h200", nodes=4, edits=["without n0.nic[0-3]"]), 16)
    assert worse[0].members == machine.members[8:24]
    assert worse[0].rate == found[0].rate


def test_gpus_that_can_be_exchanged_are_chosen_among_millions() -> None:
    (row,) = found = place("gb200-nvl72", 4)
    assert row.alike == comb(72, 4)
    assert found.equals()[0][1] == f"GPUs 0-3 or {comb(72, 4) - 1} others"
    assert row.rate == Fraction(900 * 4, 6) * GB
    worse = place(load("gb200-nvl72", edits=["degrade gpu1-nvswitch lanes=2"]), 4)
    assert worse[0].members == ("gpu0", "gpu2", "gpu3", "gpu4")
    assert worse[0].alike == comb(71, 4)


def test_ranking_is_by_the_bound_of_each_subset() -> None:
    machine = load("dgx1-p100")
    collective = Collective("allgather")
    for row in place(machine, 6, collective):
        assert row.rate == bound(machine.select(row.members), collective).rate
    assert {row.members for row in place(machine, 6)} == set(combinations(machine.members, 6))


def test_a_traffic_matrix_is_of_ranks_in_file_order_so_that_symmetric_choices_differ() -> None:
    matrix = Traffic([[0, 9, 1], [2, 0, 7], [4, 3, 0]])
    skewed = Collective("alltoallv", traffic=matrix)
    # The ends are slower, so that the mirrored line is the same machine, and the mirrored traffic is not.
    capacities = [4 * GB, 10 * GB, 10 * GB, 4 * GB]
    machine = load("line:5@10GB/s").edit("degrade gpu0-gpu1 bandwidth=4GB/s").edit("degrade gpu3-gpu4 bandwidth=4GB/s")
    with pytest.raises(InputError, match="the traffic is of 3 ranks, and there are 2"):
        place(machine, 2, skewed)
    rates = {}
    for row in place(machine, 3, skewed, relays="idle"):
        # Cuts of a line: what crosses each link, either way, over its bandwidth.
        at = [int(name[3:]) for name in row.members]
        cells = [(i, j, int(matrix.matrix[i, j])) for i in range(3) for j in range(3)]
        right = [sum(held for i, j, held in cells if at[i] <= link < at[j]) for link in range(4)]
        left = [sum(held for i, j, held in cells if at[j] <= link < at[i]) for link in range(4)]
        longest = max(Fraction(max(cut), rate) for *cut, rate in zip(right, left, capacities, strict=True))
        assert row.rate == matrix.size / longest
        rates[row.members] = row.rate
    assert len(rates) == 10
    assert rates["gpu0", "gpu1", "gpu2"] != rates["gpu2", "gpu3", "gpu4"]


@pytest.mark.slow
def test_processes_rank_choices_alike() -> None:
    machine = load("ring:6")
    assert place(machine, 3, workers=2).rows() == place(machine, 3).rows()


def test_places_for_the_work_must_be_one() -> None:
    with pytest.raises(InputError, match="0 workers"):
        place("ring:6", 3, workers=0)
    with pytest.raises(InputError, match="give one of them"):
        place("ring:6", 3, workers=2, cluster="tcp://a:1")


def test_a_box_with_a_switch_has_one_answer() -> None:
    rows = place(load("dgx-a100"), 4)
    assert {row.rate for row in rows} == {Fraction(200) * GB}  # 300 GB/s times 4 / (2 x 3)


def test_what_cannot_be_ranked() -> None:
    machine = load("dgx1-v100")
    with pytest.raises(InputError, match="choose 2 to 8"):
        place(machine, 9)
    with pytest.raises(InputError, match="none, idle"):
        place(machine, 2, relays="all")
    for many in (load("torus:8x8"), load("tpu-v5p", nodes=2)):
        with pytest.raises(InputError, match="too many to rank"):
            place(many, 8)


def test_gpus_of_a_node_that_only_rails_tell_apart_are_chosen_among_millions() -> None:
    """72 GPUs on NVSwitches, each on one of four rails: half of them on each of two nodes, and one whole domain."""
    rows = place(load("gb200-nvl72", nodes=2), 72)
    assert [[*nodes_of(row.members).values()] for row in rows] == [[36, 36], [72]]
    # Every node sends 50 GB/s for each of its GPUs, and 900 inside: a hair more than one domain alone.
    alone = Fraction(900 * GB * 72, 2 * 71)
    assert rows[1].rate == alone
    assert rows[0].rate is not None
    assert alone < rows[0].rate < 2 * alone


def nodes_of(members: Sequence[str]) -> Counter[str]:
    return Counter(name.partition(".")[0] for name in members)


def test_tiles_are_chosen_among_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["place", "aurora", "4"]) == 0
    sentence, _, heading, *_ = capsys.readouterr().out.splitlines()
    assert sentence.startswith("4 of aurora's 12 tiles for allreduce: ")
    assert heading.split()[0] == "tiles"
    with pytest.raises(InputError, match="13 tiles: choose 2 to 12 of aurora"):
        place(load("aurora"), 13)


def test_choices_whose_bounds_take_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    machine = load("ring:6")
    assert len(place(machine, 3, report=said.append)) == 20
    # A symmetry leaves fewer kinds of choice than choices.
    kinds = len(said)
    assert said[-1] == f"ranking 3 GPUs of ring:6, {kinds - 1} of {kinds} kinds of choice"
    assert kinds < 20
    monkeypatch.setattr(budget, "MOST_SECONDS", 0.5 * kinds * budget.of_bound(machine, 3))
    with pytest.raises(InfeasibleError, match=f"3 of 6 GPUs of ring:6: {kinds} choices differ") as caught:
        place(machine, 3)
    assert f"up to about {kinds // 2} work" in str(caught.value)


def test_a_size_takes_what_project_says_on_every_choice_that_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    machine = load("dgx1-v100")
    rows = place(machine, 2, size="16MiB", top=2)
    timed = [row for row in rows if row.answer is not None]
    assert [row.members for row in timed] == [row.members for row, _ in rows.equals()[:2]]
    for row in timed:
        assert row.answer is not None
        asked = Question("dgx1-v100", members=",".join(row.members))
        assert row.answer.times() == answer(asked, Collective("allreduce"), [2**24])[0].times()
    assert run(["place", "dgx1-v100", "2", "--size", "16MiB", "--top", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["rows"]
    assert shown == rows.rows()
    assert shown[0]["cannot_take_less_s"] <= min(shown[0]["time_s"], shown[0]["could_take_s"])
    assert run(["place", "dgx1-v100", "2", "--size", "16MiB", "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert "  with NCCL  could take  cannot take less\n" in out
    # As project says it of each figure.
    assert "\n  GB/s at nominal rates, could take at measured rates, cannot take less at nominal rates, times " in out


def test_the_three_figures_stand_beside_every_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["place", "torus:2x2", "2", "--size", "1GB"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  GPUs 0")]
    assert [row.count(" ms") for row in rows] == [3, 0]
