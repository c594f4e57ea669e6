"""Subsets of GPUs ranked by bound."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest

from blinksim import budget
from blinksim.answers.place import place
from blinksim.bounds import bound
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import load
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
    assert all(row.words.startswith("not connected: gpu") and row.to_dict()["rate_exact"] is None for row in apart)


def test_idle_gpus_join_what_is_apart() -> None:
    machine = load("dgx1-v100")
    alone, helped = place(machine, 2), place(machine, 2, relays="idle")
    assert sum(not row.connected for row in alone) == 12
    assert all(row.connected and len(row.relays) == 6 for row in helped)
    named = place(machine, 2, relays=["gpu7"])
    assert len(named) == 21
    assert all(row.relays == ("gpu7",) for row in named)


def test_symmetry_changes_no_answer() -> None:
    machine = load("dgx1-v100")
    swap = tuple((i + 4) % 8 if i < 8 else i for i in range(len(machine.devices)))
    part = machine.select(links=["nvlink"])
    symmetric = replace(part, symmetries=(swap[:8],))
    with_it = {row.members: row.rate for row in place(symmetric, 3, Collective("allgather"))}
    without = {row.members: row.rate for row in place(replace(part, symmetries=()), 3, Collective("allgather"))}
    assert with_it == without
    assert max(row.alike for row in place(symmetric, 3)) == 2


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
    with pytest.raises(InputError, match="the traffic matrix is of 3 ranks, and there are 2"):
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
    with pytest.raises(InputError, match="too many to rank"):
        place(load("dgx-a100", nodes=8), 8)


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
