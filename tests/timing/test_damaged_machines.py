"""Times of a library on edited machines: their terms are those of its choice there, however the machine is named."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from library_times import taken

import blinksim as bs
from blinksim.answers.project import answer
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.timing.library_model import Library
from blinksim.timing.nccl_model import weakest

ENDS = "interval_low_s", "interval_high_s"
# What NCCL's algorithms run on, and what the terms of the others call that.
RUN_ON = {"ring": "ring", "tree": "chain", "nvls": "NVLS channel", "nvls_tree": "NVLS channel"}
EDITS = [
    ("hgx-h100", 4, "without nic0"),
    ("hgx-h100", 2, "without n0.nic[0-3]"),
    ("hgx-h200", 2, "without in-network"),
    ("hgx-h200", 2, "degrade gpu0-nvswitch lanes=2"),
    ("hgx-h200", 1, "nvswitch can=forward"),
    ("dgx1-v100", 1, "without gpu0-gpu3"),
    ("dgx1-v100", 2, "without nic0"),
    ("p4d", 4, "without efa0"),
    ("p5", 2, "without n0.efa[0-3]"),
]


@pytest.mark.parametrize(("machine", "nodes", "edit"), EDITS)
@pytest.mark.parametrize("size", [2**16, 2**24, 2**30])
def test_terms_and_bottleneck_are_of_the_choice(machine: str, nodes: int, edit: str, size: int) -> None:
    model, whole = Library().at(bs.Question(machine, nodes=nodes, edits=(edit,)))
    [found] = model.times(whole, Collective("allreduce"), [size])
    algorithm, _, protocol = found.details["choice"].partition(" ")
    words = [*(term.name for term in found.terms), found.bottleneck]
    assert found.bottleneck in words[:-1]
    # 2 x p5 were published with more than a ring's bus bandwidth at 1 GiB.
    assert algorithm or (machine, size, words[0]) == ("p5", 2**30, "not by a ring")
    for word in words:
        if word.startswith("latency of ") and "," in word:
            assert word == f"latency of {algorithm}, {protocol}"
        if word.startswith("bandwidth of "):
            assert RUN_ON[algorithm] in word
            assert not any(other in word for other in {*RUN_ON.values()} - {RUN_ON[algorithm]})
        # NVLS sends chunks through ports of switches, rings send in steps.
        if word.endswith((" chunks", "through a port")):
            assert algorithm == "nvls"
        if word.endswith(" steps") or word == "turn of the ring":
            assert algorithm == "ring"
    assert sum(term.time_s for term in found.terms) == pytest.approx(found.time_s)


def test_a_damaged_cluster_that_picks_otherwise_says_so_in_its_terms() -> None:
    """Without an adapter of each node rings beat NVLS; the time stays the healthy one times the ratio of the models."""
    healthy, damaged = (
        answer(bs.Question("hgx-h100", nodes=4, edits=edits), Collective("allreduce"), [2**30])[0]
        for edits in ((), ("without nic0",))
    )
    assert healthy.bottleneck == "bandwidth of 8 NVLS channels"
    assert (damaged.details["choice"], damaged.bottleneck) == ("ring Simple", "bandwidth of 7 rings")
    expected = [one.details["nccl_expects_s"] for one in (healthy, damaged)]
    ratio = min(expected[1].values()) / min(expected[0].values())
    # The links lose hardly more; NCCL's model knows which of them it uses.
    assert healthy.bound is not None
    assert damaged.bound is not None
    assert healthy.bound.rate / damaged.bound.rate == Fraction(8, 7)
    assert ratio == pytest.approx(1.1365, rel=1e-4)
    assert damaged.time_s / healthy.time_s == pytest.approx(ratio)


@pytest.mark.parametrize("left", [0.7, 0.57, 0.4])
def test_a_slow_adapter_costs_as_much_on_few_nodes_as_on_many(left: float) -> None:
    """A ring goes through each node, so that what is lost to one adapter does not depend on how many there are."""
    lost, others = list[float](), [f"nic{number}" for number in (0, 1, 3)]
    for nodes in (2, 3, 4, 8):
        only = [f"without n{node}.{nic}" for node in range(nodes) for nic in others]
        gpus, slow = [4 * node + 2 for node in range(nodes)], f"degrade n0.nic2-fabric bandwidth={25 * left:g}GB/s"
        asked = (bs.Question.of("perlmutter", nodes=nodes, members=gpus, edits=[*only, *edit]) for edit in ((), [slow]))
        healthy, damaged = (taken(one, "allreduce", [2**28])[0] for one in asked)
        assert (healthy.details["choice"], damaged.details["choice"]) == ("ring Simple", "ring Simple")
        lost.append(damaged.time_s / healthy.time_s)
    assert max(lost) / min(lost) < 1.01
    assert 1 < min(lost) <= max(lost) <= 1 / left


@pytest.mark.parametrize(
    ("machine", "port"),
    [("hgx-h100", "n2.nic3-fabric3"), pytest.param("p5", "n1.efa9-fabric", marks=pytest.mark.alike)],
)
def test_the_job_waits_for_a_slow_port(machine: str, port: str) -> None:
    """NCCL cannot see that a cable or a switch carries less, so the channels of that port hold up all others."""
    rate = bs.load(machine, nodes=4).links_between(*port.split("-"))[0].bandwidth
    left = [float(rate * share) / 1e9 for share in (1, Fraction(1, 2), Fraction(1, 8))]
    edits = [f"degrade {port} bandwidth={one:g}GB/s" for one in left]
    asked = [bs.Question.of(machine, nodes=4, edits=edit) for edit in edits]
    sound, half, eighth = (taken(one, "allreduce", [2**32])[0].time_s for one in asked)
    assert 1.6 * sound < half <= 2 * sound
    assert 6.4 * sound < eighth <= 8 * sound


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("rate", [20.1, 40, 45])
def test_one_slow_adapter_costs_what_all_as_slow_do(nodes: int, rate: float) -> None:
    """Channels fill 40 or 48 of its 50 GB/s: what they leave free is lost first."""
    edits = f"degrade n0.nic0-fabric0 bandwidth={rate}GB/s", f"replace ib bandwidth={rate}GB/s"
    one, every = (taken(bs.Question("hgx-h100", nodes=nodes, edits=(edit,)), "allreduce", [2**30])[0] for edit in edits)
    assert one.time_s == pytest.approx(every.time_s, rel=1e-9)


@pytest.mark.parametrize(
    ("machine", "nic"), [("aurora", "nic0"), ("p5", "efa0"), ("hgx-h100", "nic0"), ("perlmutter", "nic0")]
)
@pytest.mark.parametrize("collective", ["alltoall", "reducescatter"])
def test_an_adapter_lost_on_one_node_costs_no_more_than_on_all(machine: str, nic: str, collective: str) -> None:
    """What runs where all nodes lack it runs where one does: rails are aligned over those that all have."""
    sizes, asked = [2**16, 2**20, 2**26, 2**30], Collective(collective)
    one, every = (
        answer(bs.Question(machine, nodes=4, edits=(f"without {name}",)), asked, sizes) for name in (f"n0.{nic}", nic)
    )
    for richer, poorer in zip(one, every, strict=True):
        assert richer.time_s <= poorer.time_s * (1 + 1e-9)
        assert richer.could is not None
        assert poorer.could is not None
        assert richer.could.best.time_s <= poorer.could.best.time_s * (1 + 1e-9)


@pytest.mark.parametrize(("machine", "nic"), [("aurora", "nic0"), ("mi300x", "nic0"), ("frontier", "nic0")])
def test_a_library_without_a_model_waits_for_the_node_that_lost_an_adapter(machine: str, nic: str) -> None:
    """Trees could leave that node the fewest bytes: no library is known to build them."""
    edits = (f"without n3.{nic}", f"without {nic}")
    asked = (bs.Question(machine, nodes=8, edits=(edit,)) for edit in edits)
    one, every = (Library().at(one)[0].times(one.part(), Collective("allreduce"), [10**9])[0] for one in asked)
    assert one.time_s == pytest.approx(every.time_s, rel=1e-9)


def test_a_slightly_slow_port_costs_slightly_more() -> None:
    """Also where routes are shared out among equal ports, of which it is none any more."""
    edits = [[], ["degrade n1.efa0-fabric bandwidth=24GB/s"], ["degrade n1.efa0-fabric bandwidth=5GB/s"]]
    asked = (bs.Question.of("p5en", nodes=2, edits=edit) for edit in edits)
    sound, slow, slower = (taken(one, "alltoall", [2**29])[0].time_s for one in asked)
    assert sound <= slow <= 25 / 24 * sound * (1 + 1e-9)
    assert slow <= slower <= 5 * sound


@pytest.mark.parametrize(("machine", "port"), [("hgx-h100", "n1.nic3-fabric3"), ("p5en", "n1.efa0-fabric")])
def test_an_exchange_waits_for_a_slow_port(machine: str, port: str) -> None:
    """Every port carries as much of an alltoall, so what one takes longer the job does; without it there is no wait."""
    size, asked = 2**32, Collective("alltoall")
    rate = bs.load(machine, nodes=2).links_between(*port.split("-"))[0].bandwidth
    left = [float(rate * share) / 1e9 for share in (1, Fraction(1, 2), Fraction(1, 8))]
    edits = [(f"degrade {port} bandwidth={one:g}GB/s",) for one in left]
    sound, half, eighth = (answer(bs.Question(machine, nodes=2, edits=one), asked, [size])[0] for one in edits)
    [without] = answer(bs.Question(machine, nodes=2, edits=(f"without {port.partition('-')[0]}",)), asked, [size])
    assert 1.8 * sound.time_s < half.time_s <= 2 * sound.time_s * (1 + 1e-9)
    assert 7 * sound.time_s < eighth.time_s <= 8 * sound.time_s * (1 + 1e-9)
    assert eighth.meanwhile is not None
    assert eighth.meanwhile.time_s == pytest.approx(without.time_s)
    assert without.time_s < eighth.time_s / 3
    assert eighth.could is not None
    assert eighth.could.best.time_s < sound.time_s


ALIKE = [
    ("hgx-h100", ("without nic0", "without gpu3", "degrade gpu0-nvswitch lanes=9")),
    ("dgx1-v100", ("without nic0", "without gpu5", "degrade gpu0-gpu3 lanes=1")),
    ("mi300x", ("without nic0", "without gpu0")),
    ("aurora", ("without nic0", "without card5.t1")),
]


@pytest.mark.parametrize(("machine", "edit"), [(name, edit) for name, edits in ALIKE for edit in edits])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_machine_loaded_with_edits_has_the_answer_of_its_name_and_edits(machine: str, edit: str, nodes: int) -> None:
    [named] = answer(bs.Question(machine, nodes=nodes, edits=(edit,)), Collective("allreduce"), [2**26])
    for table in ("nominal", "measured"):
        try:
            loaded = bs.load(machine, nodes, table, edit)
        except bs.InputError:
            continue
        found = bs.project(loaded, "allreduce", 2**26)
        assert isinstance(found, bs.Answer)
        assert found.edits == (edit,)
        assert (found.details, found.terms, found.weakest) == (named.details, named.terms, named.weakest)
        assert (found.time_s, found.low_s, found.high_s) == (named.time_s, named.low_s, named.high_s)
        assert found.least == named.least
        if table == "nominal":
            assert found.text() == named.text()


@pytest.mark.parametrize(
    ("machine", "members", "edit"),
    [("hgx-h100", "0-3", "without nic7"), ("dgx1-v100", "0,1,2,3", "degrade gpu0-gpu3 lanes=1")],
)
def test_a_part_of_a_machine_loaded_with_edits_has_the_answer_of_its_name(
    machine: str, members: str, edit: str
) -> None:
    [named] = answer(bs.Question(machine, members=members, edits=(edit,)), Collective("allreduce"), [2**26])
    for asked in (
        bs.load(machine, edits=edit).select(members),
        bs.Question(machine, members=members, edits=(edit,)).part(),
    ):
        found = bs.project(asked, "allreduce", 2**26)
        assert isinstance(found, bs.Answer)
        assert found.text() == named.text()


@pytest.mark.parametrize(("edit", "other"), [("without card5.t1", True), ("without nic0", False)])
def test_a_time_before_by_other_data_says_so(edit: str, other: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 12 tiles of Aurora a time was published, of 11 none; the latter looks shorter for that alone."""
    assert run(["project", "aurora", "allreduce", "1GB", "--edit", edit, "--before"]) == 0
    [before] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  before ")]
    assert ("; by other data: " in before) is other
    assert ("alcf-2025" in before) is other


@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(1, 16)])
def test_rccl_waits_for_a_slow_link_of_a_mesh(share: Fraction) -> None:
    """All 28 links carry the same share of an allreduce, so the time is what the slowest needs for it."""
    healthy = taken(bs.Question("mi300x"), "allreduce", [2**30])[0].time_s
    edits = f"degrade gpu2-gpu5 bandwidth={float(64 * share)}GB/s", "without gpu2-gpu5"
    slow, lost = (taken(bs.Question("mi300x", edits=(edit,)), "allreduce", [2**30])[0].time_s for edit in edits)
    assert slow / healthy == pytest.approx(float(1 / share), rel=0.1)
    assert lost < 1.1 * healthy


@pytest.mark.slow
def test_the_same_published_time_is_no_other_data(capsys: pytest.CaptureFixture[str]) -> None:
    """Of two p5 it says, besides, that no ring on these links is as quick, which its multiple does not say last."""
    asked = ["project", "p5", "allreduce", "1GiB", "--nodes", "2", "--edit", "without n1.efa0", "--before"]
    assert run(asked) == 0
    out = capsys.readouterr().out
    assert "measured at this point: NCCL 2.22.3, aws-p5-n16-2223; times 1.031 for the edits" in out
    assert "; by other data: " not in out


@pytest.mark.parametrize("lanes", [17, 16, 15, 12, 9, 8])
def test_a_gpu_with_fewer_lanes_takes_as_many_times_longer(lanes: int) -> None:
    """All GPUs send and receive alike through a switch that adds, whichever bandwidth NCCL plans its channels with."""
    question = bs.Question("hgx-h100", edits=(f"degrade gpu3-nvswitch lanes={lanes}",))
    asked = replace(question, edits=()), question
    [healthy], [damaged] = (taken(one, "allreduce", [2**33]) for one in asked)
    assert damaged.details["choice"] == "nvls Simple"
    assert damaged.time_s / healthy.time_s == pytest.approx(18 / lanes, rel=0.02)


# A link of each machine, how many lanes it has, and what one carries by its data sheet (GB/s).
WIDE = [
    ("hgx-h100", 1, "gpu5-nvswitch", 18, 25),
    ("p5", 2, "n0.gpu5-n0.nvswitch", 18, 25),
    ("dgx-a100", 1, "gpu0-nvswitch", 12, 25),
    ("hgx-b200", 1, "gpu5-nvswitch", 18, 50),
    ("dgx1-v100", 1, "gpu0-gpu3", 2, 25),
]


@pytest.mark.parametrize(("machine", "nodes", "link", "lanes", "lane"), WIDE)
def test_half_of_a_link_is_the_same_by_lanes_and_by_nominal_bandwidth(
    machine: str, nodes: int, link: str, lanes: int, lane: int
) -> None:
    edits = f"degrade {link} lanes={lanes // 2}", f"degrade {link} bandwidth={lane / 2}GB/s"
    questions = [bs.Question(machine, nodes=nodes, edits=(edit,)) for edit in edits]
    fewer, slower = (taken(one, "allreduce", [2**28])[0] for one in questions)
    assert slower.time_s == fewer.time_s
    assert all(slower.details[f"interval_{end}_s"] == fewer.details[f"interval_{end}_s"] for end in ("low", "high"))
    assert slower.terms == fewer.terms
    assert len({weakest(Library().at(one)[1]) for one in questions}) == 1
    for table in ("nominal", "nccl", "measured"):
        try:
            links = [bs.load(machine, nodes, table, edit).links for edit in edits]
        except bs.InputError:
            continue
        widths = [{one.key: one.bandwidth for one in found} for found in links]
        assert widths[0] == widths[1]


@pytest.mark.parametrize(
    ("machine", "nodes", "kind", "lane"),
    [("hgx-h100", 1, "nvlink", 25), ("dgx1-v100", 1, "nvlink", 25), ("p4d", 1, "nvlink", 25), ("p5", 2, "efa", 12.5)],
)
@pytest.mark.parametrize("size", [2**20, 2**28])
def test_slower_links_are_never_quicker(machine: str, nodes: int, kind: str, lane: float, size: int) -> None:
    """Edits speak of nominal bandwidth; that of today changes nothing, and less of it takes no less time."""
    edits = [(), *((f"replace {kind} bandwidth={share * lane}GB/s",) for share in (1, 0.98, 0.9, 0.75, 0.5, 0.25))]
    questions = [bs.Question(machine, nodes=nodes, edits=edit) for edit in edits]
    times = [taken(question, "allreduce", [size])[0].time_s for question in questions]
    assert times[1] == pytest.approx(times[0])
    assert all(richer <= poorer * (1 + 1e-9) for richer, poorer in pairwise(times)), times


@pytest.mark.parametrize(("machine", "port", "lane"), [("p4d", "efa", 12.5), ("perlmutter", "nic", 25)])
@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
def test_slow_ports_of_a_node_cost_what_they_lose(
    machine: str, port: str, lane: float, nodes: int, collective: str
) -> None:
    """NCCL lays other channels at a node whose bandwidth is between its steps, of which all nodes take the first ones.

    At 0.7 of p4d's it finds eight of 4 GB/s there, two a port, and takes four, one a port, as many as elsewhere.
    """
    shares, times = (1, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05), []
    for share in shares:
        edits = tuple(f"degrade n0.{port}{i}-fabric bandwidth={share * lane}GB/s" for i in range(4))
        question = bs.Question(machine, nodes=nodes, edits=edits)
        times.append(taken(question, collective, [2**28])[0].time_s)
    assert all(richer <= poorer * (1 + 1e-9) for richer, poorer in pairwise(times)), times
    assert all(time <= times[0] / share * 1.12 for share, time in zip(shares, times, strict=True)), times


def test_a_node_without_an_adapter_carries_what_the_others_do() -> None:
    """Rings enter and leave by every adapter: with seven of eight all send a seventh more through each.

    Of a time a little longer than rings are known to take beside NCCL's model, so much longer is their part.
    """
    found = {}
    for edit in ("", "without n0.nic0", "without nic0"):
        question = bs.Question("hgx-h100", nodes=4, edits=(edit,) if edit else ())
        found[edit] = taken(question, "allreduce", [2**33])[0]
    expected = {edit: one.details["nccl_expects_s"] for edit, one in found.items()}
    assert expected["without n0.nic0"] == expected["without nic0"]
    ring = expected["without nic0"]["ring Simple"] / expected[""]["ring Simple"]
    assert ring == pytest.approx(8 / 7, rel=0.002)
    rings = (found["without n0.nic0"].time_s - found[""].time_s) / (ring - 1)
    assert expected[""]["ring Simple"] < rings <= found[""].time_s * (1 + 1e-9)
    # The bound of the cluster rises by as much where all nodes lack one, and the starts of steps do not.
    start = found[""].terms[0].time_s / found[""].time_s
    longer = max(ring, start + (1 - start) * 8 / 7)
    assert (found["without nic0"].time_s - found[""].time_s) / (longer - 1) == pytest.approx(rings)


@pytest.mark.parametrize(("machine", "nodes"), [("hgx-h100", 1), ("hgx-h100", 2), ("gb200-nvl72", 1), ("p5en", 8)])
def test_switches_that_do_not_add_are_the_same_by_edit_and_by_setting(machine: str, nodes: int) -> None:
    question = bs.Question(machine, nodes=nodes)
    [by_setting] = taken(question, "allreduce", [2**30], Library(multicast=False))
    for edit in ("without in-network", "nvswitch can=forward"):
        [by_edit] = taken(replace(question, edits=(edit,)), "allreduce", [2**30])
        ends = [
            (one.time_s, one.details["interval_low_s"], one.details["interval_high_s"]) for one in (by_edit, by_setting)
        ]
        assert ends[0] == pytest.approx(ends[1])


@pytest.mark.parametrize("collective", ["allreduce", "reducescatter"])
@pytest.mark.parametrize("nodes", [2, 8, 10])
@pytest.mark.parametrize("machine", ["hgx-h100", "p5", "a3-megagpu-8g", "hgx-b200"])
def test_fewer_choices_are_no_quicker_where_nobody_published_that(machine: str, nodes: int, collective: str) -> None:
    """NCCL takes the best by its own model; runs that do not say whether switches added tell as much of both."""
    sizes = [2**power for power in range(10, 34, 2)]
    models = [Library(multicast=adds).at(bs.Question(machine, nodes=nodes)) for adds in (True, False)]
    found = [model.times(whole, Collective(collective), sizes) for model, whole in models]
    for more, fewer in zip(*found, strict=True):
        assert fewer.time_s >= more.time_s * (1 - 1e-9)
        [stated, without] = [model.stated(more.collective, more.size) for model, _ in models]
        assert stated is not None
        assert without is not None
        assert fewer.least is not None
        assert fewer.time_s <= more.time_s * without.time_s / stated.time_s * 1.1 or fewer.time_s == fewer.least.time_s


@pytest.mark.parametrize("collective", ["alltoall", "broadcast"])
def test_switches_that_add_are_nothing_to_what_adds_nothing(collective: str) -> None:
    """The published time stays the figure where switches that add are taken away from what they do nothing for."""
    edited = bs.project(bs.load("hgx-h100", edits="nvswitch can=forward"), collective, "256MiB")
    whole = bs.project("hgx-h100", collective, "256MiB")
    ends = [[one.time_s, one.details["interval_low_s"]] for one in (edited, whole)]
    assert ends[0] == pytest.approx(ends[1])
    assert "unchanged by the edits" in edited.details["origin"]


@pytest.mark.parametrize(("machine", "nodes"), [("p5.48xlarge", 1), ("hgx-h100", 1), ("p5.48xlarge", 2)])
def test_what_is_called_unchanged_is_no_other_figure(machine: str, nodes: int) -> None:
    """Runs with switches set not to add stand in for those that cannot; where these take longer, that is said."""
    both = [bs.load(machine, nodes=nodes, edits=edits) for edits in ("without in-network", ())]
    edited, whole = (bs.project(one, "allreduce", "64MiB") for one in both)
    library, part = Library(multicast=False).at(bs.Question(machine, nodes=nodes))
    [off] = library.times(part, whole.collective, [2**26])
    assert edited.time_s == pytest.approx(off.time_s)
    origin = edited.details["origin"]
    assert "unchanged by the edits" in origin
    # Once.
    assert origin.count("switches set not to add") == 1
    if nodes == 1:
        assert edited.time_s > 1.1 * whole.time_s
        assert "; as with switches set not to add, otherwise unchanged by the edits" in origin


def test_fewer_links_take_no_less_where_their_routes_have_fewer_starts() -> None:
    """A scatter's messages to the GPU without an adapter leave by the root's own, with less overhead than NVLink's."""
    whole, less = (
        bs.project(bs.load("hgx-h100", nodes=3, edits=edit), "scatter", "1KiB") for edit in ((), "without gpu7-nic7")
    )
    assert less.time_s >= whole.time_s * (1 - 1e-12)
    assert "unchanged by the edits" in less.details["origin"]


def test_fewer_gpus_of_several_nodes_take_what_so_many_take() -> None:
    """Without a GPU of each node there is less to scatter to; a lower latency takes less, too."""
    less = bs.project(bs.load("dgx1-v100", nodes=2, edits="without gpu7"), "scatter", "256MiB")
    whole = bs.project(bs.load("dgx1-v100", nodes=2), "scatter", "256MiB")
    assert less.time_s < whole.time_s


def test_scatter_on_links_that_lead_one_way() -> None:
    devices = [bs.Device(f"gpu{rank}", "gpu") for rank in range(4)]
    links = [bs.Link("gpu0", f"gpu{rank}", "nvlink", Fraction(50 * 10**9)) for rank in (1, 2, 3)]
    star = bs.Topology("star", tuple(devices), tuple(links), tuple(one.name for one in devices))
    assert bs.project(star, "scatter", 2**20, model="library").time_s > 0


def test_lost_links_lengthen_only_their_part_of_a_published_time() -> None:
    """The 248 ms that 192 tiles of Aurora were published to take are not those of the adapters.

    2 GB cross the 256 adapters of 25 GB/s 60 times in 18.75 ms, and half of them in twice that: at least so much is
    added, and nobody knows of more, so that the interval reaches to twice the time.
    """
    edits = [(), *((f"without nic{which}",) for which in ("7", "[6-7]", "[4-7]", "[2-7]", "[1-7]"))]
    asked = [bs.Question("aurora", nodes=16, edits=edit) for edit in edits]
    models = [Library().at(question) for question in asked]
    found = [model.times(whole, Collective("allreduce"), [2 * 10**9])[0] for model, whole in models]
    healthy, half = found[0], found[3]
    assert healthy.details["basis"] == "measured"
    assert half.bound is not None
    assert half.bound.rate * 2 * 60 == 256 * 25 * 10**9
    assert healthy.time_s + 0.018 < half.time_s < healthy.time_s + 2 * 0.01875
    assert half.details["interval_high_s"] == pytest.approx(2 * healthy.details["interval_high_s"], rel=0.01)
    for figure in ("interval_low_s", "time_s", "interval_high_s"):
        times = [one.time_s if figure == "time_s" else one.details[figure] for one in found]
        assert all(richer < poorer for richer, poorer in pairwise(times)), (figure, times)


def test_a_library_without_a_model_waits_for_a_slow_port() -> None:
    """Chains and trees send a node's bytes over all of its ports: at 0.1 of 25 GB/s an eighth of them take seconds."""
    ports = [("n3", 12.5), ("n3", 0.1), ("n0", 0.1)]
    edits = [(), *((f"degrade {node}.nic2-fabric bandwidth={rate}GB/s",) for node, rate in ports)]
    questions = [bs.Question("aurora", nodes=16, edits=edit) for edit in edits]
    times = [taken(question, "allreduce", [2 * 10**9])[0].time_s for question in questions]
    assert times[0] < times[1] < 1.25 * times[0]
    # Which node it is does not matter.
    assert times[2] == pytest.approx(times[3])
    alone = 2 * 2e9 * 15 / 16 / 8 / 0.1e9
    assert alone < times[2] < 3 * alone


@pytest.mark.parametrize("adapter", ["efa1", "efa4"])
def test_nccl_keeps_its_choice_where_an_adapter_is_slow_and_waits_for_it(adapter: str) -> None:
    """It does not see the cable, so that it does not turn to trees that leave that adapter out."""
    question = bs.Question("p5en", nodes=4, edits=(f"degrade n3.{adapter}-fabric bandwidth=5GB/s",))
    (sound, before), (slow, after) = Library().at(bs.Question("p5en", nodes=4)), Library().at(question)
    one, other = (by.times(at, Collective("allreduce"), [2**28])[0] for by, at in ((sound, before), (slow, after)))
    assert other.details["choice"] == one.details["choice"] == "ring LL128"
    assert 4 * one.time_s < other.time_s < 5 * one.time_s
    assert other.details["nccl_expects_s"] == one.details["nccl_expects_s"]


@pytest.mark.parametrize(
    ("machine", "nodes", "edit"),
    [
        ("aurora", 2, "without n0.nic1"),
        ("aurora", 16, "without n0.nic1"),
        ("aurora", 64, "without n[0-2].nic1"),
        ("frontier", 4, "without n1.nic0"),
        ("p5", 2, "without n0.efa3"),
        ("p5", 4, "without n[0-2].efa3"),
        ("hgx-h100", 4, "degrade n1.nic0-fabric0 bandwidth=25GB/s"),
        ("hgx-h100", 1, "degrade gpu0-nvswitch lanes=9"),
        ("dgx1-v100", 1, "without gpu0-gpu3"),
        ("mi300x", 1, "degrade gpu0-gpu1 bandwidth=32GB/s"),
        ("gaudi3", 2, "without n0.gpu0-n0.gpu1"),
    ],
)
@pytest.mark.parametrize("collective", ["allreduce", "alltoall"])
def test_no_more_is_known_of_a_damaged_machine_than_of_the_whole_one(
    machine: str, nodes: int, edit: str, collective: str
) -> None:
    """Both ends of its interval are as many times the time away, or farther; but none is below the bound."""
    questions = [bs.Question(machine, nodes=nodes, edits=edits) for edits in ((), (edit,))]
    models = [Library().at(one) for one in questions]
    for size in (2**16, 2**24, 2**30):
        whole, less = (model.times(at, Collective(collective), [size])[0] for model, at in models)
        low, high = ([one.details[end] / one.time_s for one in (whole, less)] for end in ENDS)
        assert less.least is not None
        assert low[1] <= low[0] * (1 + 1e-9) or less.details[ENDS[0]] == less.least.time_s
        assert high[1] >= high[0] * (1 - 1e-9)


@pytest.mark.parametrize("collective", ["alltoall", "allreduce"])
def test_a_range_of_nodes_is_each_of_them(collective: str) -> None:
    """What is taken from several nodes has one time, however it is written."""
    written = [("without n[0-2].nic1",), tuple(f"without n{node}.nic1" for node in range(3))]
    machines = [bs.load("aurora", nodes=4, edits=edits) for edits in written]
    one, other = (answer(machine, Collective(collective), [2**16])[0] for machine in machines)
    assert one.time_s == other.time_s
    assert [one.details[end] for end in ENDS] == [other.details[end] for end in ENDS]


def test_a_lost_adapter_costs_as_much_where_another_node_lacks_gpus() -> None:
    """The cluster waits for its slowest node, of whatever GPUs others have."""
    nic, card = "without n1.nic0", "without n3.card2"
    whole, one, gpus, both = (
        taken(bs.Question("aurora", nodes=4, edits=edits), "allreduce", [2_000_000_000])[0].time_s
        for edits in ((), (nic,), (card,), (nic, card))
    )
    assert one > 1.01 * whole
    assert both / gpus == pytest.approx(one / whole, rel=0.01)
