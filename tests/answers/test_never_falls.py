"""No answer contradicts itself: more bytes take no less time, and nothing beats the bound that stands beside it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, reject, settings, strategies as st
from library_times import taken
from machine_sorts import of_each_sort

import blinksim as bs
from blinksim.answers.measurements.public import question_of
from blinksim.collective import COLLECTIVES, Collective
from blinksim.nccl.tuner.tuner import COLLECTIVES as TIMED
from blinksim.timing.contest import ceiling_of, least_time_of
from blinksim.timing.library_model import Library
from blinksim.timing.measured.public_tables import Cell, cells as cells_of, machines

SIZES = [2**power for power in range(10, 35)]
NODES = (1, 2, 8, 64)
ENDS = "interval_low_s", "interval_high_s"


def contradictions(question: bs.Question, collective: str, sizes: list[int]) -> list[str]:
    """What contradicts itself: a figure below that of fewer bytes, or an order of figures that cannot be.

    A published time is the figure even where another run published a longer one of fewer bytes. Beyond all published
    sizes the rate does not fall.
    """
    model, machine = Library().at(question)
    try:
        found = model.times(machine, Collective(collective), sizes)
    except bs.InfeasibleError:
        return []
    wrong = list[str]()
    for less, more in pairwise(found):
        published = more.details["basis"] == "measured" and more.time_s < less.time_s
        rises = {key: less.details[key] <= more.details[key] * (1 + 1e-12) for key in ENDS[published:]}
        rises["time"] = published or less.time_s <= more.time_s * (1 + 1e-12)
        wrong += [f"{more.size}: {key} falls" for key, held in rises.items() if not held]
    told = [place for place, one in enumerate(found) if one.details["basis"] in ("measured", "between", "lent")]
    for less, more in pairwise(found[max(told, default=len(found)) :]):
        held = more.time_s / more.size <= less.time_s / less.size * (1 + 1e-9)
        wrong += [] if held else [f"{more.size}: the rate falls"]
    for one in found:
        assert one.least is not None
        figures = one.least.time_s, one.details[ENDS[0]], one.time_s, one.details[ENDS[1]]
        wrong += [] if all(a <= b * (1 + 1e-12) for a, b in pairwise(figures)) else [f"{one.size}: {figures}"]
    return wrong


@pytest.mark.parametrize(
    ("machine", "nodes", "collective", "sizes"),
    [
        ("hgx-h800", 1, "reducescatter", (2**13, 2**16, 2**17, 2**31)),
        ("p5.48xlarge", 2, "allgather", (2**16, 2**17, 2**18)),
        ("a3-ultragpu-8g", 2, "allgather", (2**17, 2**18)),
        ("l40s-pcie", 1, "alltoall", (2**13, 2**14)),
        ("polaris", 4, "allreduce", (2**17, 2**18, 2**20)),
        ("hgx-b200", 1, "allreduce", (2**29, 2**32, 2**33, 2**34)),
        ("hgx-b300", 1, "allreduce", (2**27, 2**31, 2**33, 2**34)),
    ],
)
def test_more_bytes_take_no_less(machine: str, nodes: int, collective: str, sizes: tuple[int, ...]) -> None:
    """NCCL changes its choice, runs of several set-ups meet, and factors on NCCL's model fall as the size grows."""
    assert contradictions(bs.Question(machine, nodes=nodes), collective, [*sizes]) == []


@pytest.mark.parametrize(("machine", "size"), [("l40s-pcie", 2**33), ("a3-megagpu-8g", 2**24), ("aurora", 2**28)])
def test_no_end_of_a_guess_falls_as_nodes_are_added_and_it_says_what_raised_it(machine: str, size: int) -> None:
    models = [Library().at(bs.Question(machine, nodes=nodes)) for nodes in (1, 2, 4, 8, 16)]
    found = [model.times(whole, Collective("allreduce"), [size])[0] for model, whole in models]
    guessed = [one for one in found if one.details["basis"] not in ("measured", "between")]
    assert len(guessed) > 1
    for fewer, more in pairwise(guessed):
        assert all(fewer.details[end] <= more.details[end] * (1 + 1e-9) for end in ENDS)
        raised = any(term.name.startswith("what it takes on") for term in more.terms)
        assert raised == ("; no less than on " in more.details["origin"])


def test_a_time_that_is_that_of_fewer_nodes_says_of_how_many() -> None:
    """Six tiles of a node of Aurora were measured on two nodes, and what these tell of more ends at eight."""
    found = [taken(bs.Question("aurora", nodes=n, ranks_per_node=6), "allreduce", [2 * 10**9])[0] for n in (8, 16, 64)]
    first, *more = found
    assert "no less than on" not in first.details["origin"]
    for one in more:
        assert one.details["origin"].endswith("; no less than on 8 nodes")
        assert one.time_s == pytest.approx(first.time_s)


@pytest.mark.parametrize(("machine", "collective"), [("alps", "broadcast"), ("frontier", "alltoall")])
def test_no_time_falls_beyond_the_nodes_that_anybody_measured(machine: str, collective: str) -> None:
    """Alps was measured on 512 nodes; two groups of Frontier's dragonfly are joined by way of the others, too."""
    models = [Library().at(bs.Question(machine, nodes=nodes)) for nodes in (64, 128, 256, 512, 1024)]
    found = [model.times(whole, Collective(collective), [2**30])[0] for model, whole in models]
    guesses = [one for one in found if one.details["basis"] not in ("measured", "between", "fitted")]
    assert [one.time_s for one in guesses] == sorted(one.time_s for one in guesses)
    assert all(one.least is not None and one.time_s < 20 * one.least.time_s for one in found)


def test_launches_on_several_nodes_are_not_told_apart_and_it_says_so() -> None:
    allreduce, words = Collective("allreduce"), "; however calls are launched"
    for nodes in (1, 2):
        models = [Library(set_up=set_up).at(bs.Question("hgx-h100", nodes=nodes)) for set_up in ("graph", "stream")]
        graph, stream = (model.times(whole, allreduce, [2**12])[0] for model, whole in models)
        assert (graph.time_s == stream.time_s) == (nodes > 1) == stream.details["origin"].endswith(words)
        assert words not in graph.details["origin"]


@pytest.mark.parametrize("nodes", [2, 8, 10, 16])
@pytest.mark.parametrize("machine", ["hgx-h100", "p5", "bm.gpu.h100.8", "gb200-nvl8"])
def test_twice_the_bytes_take_at_most_twice_as_long_where_nobody_measured(machine: str, nodes: int) -> None:
    """Also at the least size that was published of a job, from where its times tell of fewer bytes and other nodes.

    Ten nodes of H100 were published from 32 MiB on: 4 MiB took 2.8 times what 2 MiB did.
    """
    model, whole = Library().at(bs.Question(machine, nodes=nodes))
    found = model.times(whole, Collective("allreduce"), [2**power for power in range(14, 31)])
    pairs = [pair for pair in pairwise(found) if {one.details["basis"] for one in pair} != {"measured"}]
    assert max((more.time_s / less.time_s for less, more in pairs), default=1.0) < 2.05


@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
@pytest.mark.parametrize(("machine", "nodes"), [("alps", 4), ("polaris", 8), ("p5", 2), ("rtx-pro-6000-pcie", 1)])
def test_a_published_time_below_that_of_fewer_bytes_says_so(machine: str, nodes: int, collective: str) -> None:
    model, whole = Library().at(bs.Question(machine, nodes=nodes))
    found = model.times(whole, Collective(collective), SIZES)
    for less, more in pairwise(found):
        assert (more.time_s < less.time_s) == more.details["origin"].endswith("; fewer bytes took longer")


@pytest.mark.parametrize(("machine", "nodes"), [("hgx-h100", 1), ("dgx-a100", 1), ("p5en", 1), ("p5", 8)])
@pytest.mark.parametrize("collective", ["scatter", "alltoall", "allgather", "allreduce"])
def test_few_bytes_take_no_more_than_many(machine: str, nodes: int, collective: str) -> None:
    """Below the sizes that were measured, where models know little; and no more than what all ranks do at once."""
    question, sizes = bs.Question(machine, nodes=nodes), [2**power for power in range(0, 14, 3)]
    assert contradictions(question, collective, sizes) == []
    if collective == "scatter":
        model, whole = Library().at(question)
        each, every = (model.times(whole, Collective(name), sizes) for name in ("scatter", "alltoall"))
        assert all(a.time_s <= b.time_s for a, b in zip(each, every, strict=True))


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize(
    ("machine", "nodes"),
    [("p5", 1), ("p5", 2), ("p5", 8), ("hgx-h100", 4), ("mi300x", 1), ("dgx1-v100", 1), ("p4d", 4)],
)
def test_a_broadcast_takes_no_more_than_an_allreduce(machine: str, nodes: int, collective: str) -> None:
    """An allreduce is a reduce and a broadcast; its published times may fall where the size grows, no others do."""
    question, sizes = bs.Question(machine, nodes=nodes), [2**power for power in range(10, 31)]
    model, whole = Library().at(question)
    half, both = (
        [one.time_s for one in model.times(whole, Collective(name), sizes)] for name in (collective, "allreduce")
    )
    assert all(one <= most * (1 + 1e-9) for one, most in zip(half, both, strict=True))
    assert contradictions(question, collective, sizes) == []


@pytest.mark.slow
@pytest.mark.parametrize("machine", [of_each_sort(name, machine=name) for name in sorted(bs.catalogue())])
def test_no_machine_of_the_catalogue_contradicts_itself(machine: str) -> None:
    """Every machine on 1 to 64 nodes, each with another collective; what NCCL's model says of all that NCCL has."""
    node, number = bs.load(machine), sorted(bs.catalogue()).index(machine)
    counts = [nodes for nodes in NODES if nodes * node.ranks > 1 and (nodes == 1 or node.fabric)]
    for place, nodes in enumerate(counts):
        collective, question = COLLECTIVES[(number + place) % len(COLLECTIVES)], bs.Question(machine, nodes=nodes)
        if nodes < 8 or collective in TIMED:
            assert contradictions(question, collective, SIZES) == [], (nodes, collective)
    plan = Library().at(bs.Question(machine, nodes=min(2, counts[-1])))[0].prediction
    for collective in TIMED if plan else ():
        assert plan is not None
        times: dict[tuple[str, str], list[float]] = {}
        for size in SIZES:
            for one in plan.times(collective, size):
                times.setdefault((one.algorithm, one.protocol), []).append(one.time_s)
        assert all(found == sorted(found) for found in times.values()), collective


@pytest.mark.parametrize(("machine", "collective"), [("hgx-h100", "allreduce"), ("hgx-h100", "allgather")])
def test_beyond_what_was_measured_the_rate_of_the_largest_size_stays(machine: str, collective: str) -> None:
    """Of several runs the one that goes on furthest: 16 GiB in 62.3 ms are no 139 ms for 32 GiB."""
    largest, beyond = (bs.project(machine, collective, size) for size in (2**34, 2**35))
    assert largest.details["basis"] == "measured"
    assert beyond.time_s == pytest.approx(2 * largest.time_s)


@pytest.mark.parametrize(("nodes", "published"), [(1, 875 * 10**6), (2, 2 * 10**9), (4, 2 * 10**9)])
def test_fewer_bytes_reach_no_higher_rate_than_the_one_size_that_was_published(nodes: int, published: int) -> None:
    """Aurora was published at one size a job, 17 GB/s on two nodes: the links alone carry far more at others."""
    model, whole = Library().at(bs.Question("aurora", nodes=nodes))
    sizes = [2**power for power in range(22, 35, 3)]
    at, *found = model.times(whole, Collective("allreduce"), [published, *sizes])
    assert at.details["basis"] == "measured"
    for one in found:
        share = one.size / one.time_s / (at.size / at.time_s)
        assert share <= 1 + 1e-9 if one.size < at.size else share == pytest.approx(1), one.size


@given(
    machine=st.sampled_from(["p5", "p5en", "hgx-h100", "hgx-b200", "aurora", "p4d"]),
    nodes=st.sampled_from([2, 3, 4, 8]),
    collective=st.sampled_from(["allreduce", "allgather", "alltoall"]),
    power=st.integers(10, 35),
)
@example(machine="hgx-h100", nodes=2, collective="allreduce", power=32)
@settings(max_examples=12, deadline=None)
def test_no_guess_falls_back_in_bandwidth(machine: str, nodes: int, collective: str, power: int) -> None:
    """Two nodes of H100 had 441 GB/s for 4 GiB and 436 for 8, as rates of ten nodes level off before NCCL's model."""
    less, more = taken(bs.Question(machine, nodes=nodes), collective, [2**power, 2 ** (power + 1)])
    told = "no less than on", "held to", "scaled from the nearest size"
    guess = more.details["basis"] in ("predicted", "links") and less.details["basis"] in ("predicted", "links")
    if guess and not any(words in more.details["origin"] for words in told):
        assert more.busbw >= less.busbw * (1 - 1e-9)


@pytest.mark.parametrize(
    ("machine", "edit", "named"),
    [
        ("hgx-h200", "without gpu7", {"members": "0-6"}),
        ("dgx1-v100", "without gpu7", {"members": "0-6"}),
        ("p5", "without gpu[4-7]", {"nodes": 2, "ranks_per_node": 4}),
        ("aurora", "without card[3-5]", {"nodes": 16, "ranks_per_node": 6}),
        ("aurora", "without card[0-5].t1", {"nodes": 2, "members": "n[0-1].card[0-5].t0"}),
        ("p5", "without gpu[0-3]", {"nodes": 2, "members": "n[0-1].gpu[4-7]"}),
        ("p5", "without n0.gpu7", {"nodes": 2, "members": "n0.gpu[0-6],n1.gpu[0-7]"}),
    ],
)
def test_a_machine_without_a_gpu_is_one_whose_other_gpus_take_part(
    machine: str, edit: str, named: dict[str, Any]
) -> None:
    edited = bs.Question(machine, edits=(edit,), nodes=named.get("nodes", 1))
    chosen = bs.Question(machine, **named)
    times = [
        model.times(whole, Collective("allreduce"), [2**30]) for model, whole in map(Library().at, (edited, chosen))
    ]
    assert times[0][0].time_s == pytest.approx(times[1][0].time_s, rel=1e-12)


@given(
    machine=st.sampled_from(["p5", "aurora", "mi300x"]),
    nodes=st.integers(1, 2),
    asked=st.sampled_from(["allreduce", "allgather", "alltoall"]),
    data=st.data(),
)
@settings(max_examples=3, deadline=None)
def test_lost_gpus_leave_the_members_that_are_left(machine: str, nodes: int, asked: str, data: st.DataObject) -> None:
    """Of whichever nodes they are: the time, its interval and whether it was published."""
    every = bs.load(machine, nodes=nodes).members
    left = data.draw(st.lists(st.sampled_from(every), unique=True, min_size=2, max_size=len(every) - 1))
    names = [gpu for gpu in every if gpu in left]
    edits = tuple(f"without {gpu}" for gpu in every if gpu not in left)
    questions = bs.Question(machine, nodes, edits=edits), bs.Question(machine, nodes, members=",".join(names))
    models = map(Library().at, questions)
    try:
        edited, chosen = (model.times(whole, Collective(asked), [2**28])[0] for model, whole in models)
    except bs.InfeasibleError:  # tiles that no link joins
        reject()
    assert edited.time_s == pytest.approx(chosen.time_s, rel=1e-9)
    for detail in ("interval_low_s", "interval_high_s", "published"):
        assert edited.details[detail] == pytest.approx(chosen.details[detail], rel=1e-9)


def test_terabytes_take_as_many_times_longer_as_they_are_more() -> None:
    """Lengths of pieces times pieces are longer than 64 bits at 1 TB among two GPUs."""
    part = bs.load("hgx-h200", rates="measured").select([0, 1])
    large, larger = (bs.project(part, "allreduce", size, model="execution").time_s for size in (2**36, 2**42))
    assert larger == pytest.approx(64 * large, rel=1e-3)


def test_more_nodes_have_no_lower_bound() -> None:
    """On thousands of GPUs, too, a few bytes take 5.6 us from node to node, not what they take on links alone."""
    least = []
    for nodes in (64, 1000):
        part, asked = bs.load("hgx-h100", nodes=nodes).select(), Collective("allreduce")
        least.append(least_time_of(part, asked, 2**10, ceiling_of(part, asked)).time_s)
    assert 5.6e-6 < least[0] <= least[1]


def test_published_times_that_fall_hold_nothing_of_more_bytes_up() -> None:
    """On 2 and 4 nodes of Alps 1 MiB was published with up to 0.9 and 1.5 ms, 2 MiB with 0.13 to 0.3."""
    cells = [one for one in cells_of("alps") if (one.collective, one.gpus) in (("allreduce", 8), ("allreduce", 16))]
    times = []
    for size in (2**power for power in range(20, 27)):
        found = bs.project(bs.load("alps", nodes=3), "allreduce", size)
        assert min(one.time_s for one in cells if one.size >= size) <= found.time_s
        assert found.time_s <= 1.1 * max(one.time_s for one in cells if one.size == size)
        times.append(found.time_s)
    assert times[-1] > 3 * times[0]


def test_fewer_bytes_than_were_published_reach_no_higher_rate_than_more_of_them() -> None:
    """Where only large sizes of a job were published: Aurora's 44 GB/s fell to 31 at 256 MiB and rose again below."""
    seen = 0
    for machine in machines():
        chosen = [one for one in cells_of(machine) if not one.set.members and "forced" not in one.set.algorithm]
        least = dict[tuple[str, int, int], Cell]()
        for one in sorted(chosen, key=lambda one: -one.size):
            least[one.collective, one.nodes, one.gpus] = one
        for cell in least.values():
            if cell.size < 2**24:
                continue
            model, whole = Library().at(question_of(machine, cell))
            sizes = [*(2**power for power in range(12, 34) if 2**power < cell.size), cell.size]
            found = model.times(whole, Collective(cell.collective), sizes)
            # Runs of other machines of the same links, and constants by protocol, say otherwise.
            told = [one for one in found if one.details["basis"] not in ("lent", "between", "fitted")]
            for less, more in pairwise(told):
                rates = [one.size / one.time_s for one in (less, more)]
                assert rates[0] <= rates[1] * (1 + 1e-9), (cell, less.size)
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
def test_numbers_of_gpus_a_node_that_nobody_published_lie_between_those_that_somebody_did(nodes: int) -> None:
    """Aurora was published on two nodes with 2, 4, 6, 8 and 12 GPUs each: those between are no leap from them."""
    models = [Library().at(bs.Question("aurora", nodes=nodes, ranks_per_node=each)) for each in range(1, 13)]
    times = [model.times(whole, Collective("allreduce"), [10**9])[0].time_s for model, whole in models]
    for few, many in pairwise((2, 4, 6, 8, 12)):
        ends = sorted((times[few - 1], times[many - 1]))
        # More GPUs may have more links between nodes than their neighbors.
        assert all(0.95 * ends[0] <= one <= 1.15 * ends[1] for one in times[few : many - 1]), (few, many)


@pytest.mark.parametrize("machine", ["hgx-b200", "p6-b200", "hgx-b300"])
def test_between_two_runs_the_rate_lies_between_theirs(machine: str) -> None:
    """One run of 8 B200 ends at 512 MiB and 704 GB/s, the other is of 8 GiB and 838 GB/s."""
    sizes = [2**power for power in range(29, 36)]
    each = [bs.project(machine, "allreduce", size).time_s / size for size in sizes]
    assert 1.75 / each[0] == pytest.approx(704e9, rel=1e-3)
    assert 1.75 / each[4] == pytest.approx(838e9, rel=1e-3)
    assert all(more <= less * (1 + 1e-9) for less, more in pairwise(each))


@pytest.mark.parametrize(
    ("machine", "linked", "apart"),
    [("aurora", "card0.t0,card1.t0", "card0.t0,card1.t1"), ("mi250", "gpu0,gpu4", "gpu0,gpu5")],
)
@pytest.mark.parametrize("size", [2**12, 2**20, 10**9])
def test_gpus_without_a_link_are_no_quicker_than_linked_ones(machine: str, linked: str, apart: str, size: int) -> None:
    """No library spreads its bytes over idle GPUs, and of no pair on equal links is it known to be quicker."""
    times = [
        Library().at(question)[0].times(question.part(), Collective("allreduce"), [size])[0]
        for question in (bs.Question(machine, members=linked), bs.Question(machine, members=apart, relays="idle"))
    ]
    assert times[0].time_s <= times[1].time_s * (1 + 1e-9)
