"""Fewer links are never faster: the best schedule of a machine takes at most what that of a poorer one takes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import example, given, settings, strategies as st

import blinksim as bs
from blinksim.answers.project import answer, schedules
from blinksim.collective import Collective
from blinksim.schedule.verify import verify
from blinksim.timing.contest import evened, without_narrow
from blinksim.timing.simulator import simulate

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall")
# A port of one node, and links of one node, by machine.
PORTS = {"dgx1-v100": "nic0", "p4d": "efa0", "p5": "efa0", "mi300x": "nic0", "hgx-h100": "nic0", "aurora": "nic0"}
SLOWER = {"dgx1-v100": "gpu0-gpu3 lanes=1", "mi300x": "gpu0-gpu1 bandwidth=20GB/s", "p4d": "gpu0-nvswitch lanes=6"}
# On four nodes another collective of each machine; the others repeat what two nodes show.
FAMILIES = [
    pytest.param(nodes, machine, name, marks=[pytest.mark.alike] if nodes == 4 and number != turn % 5 else [])
    for nodes in (2, 4)
    for turn, machine in enumerate(PORTS, start=4)
    for number, name in enumerate(COLLECTIVES)
]
# What rounding of times leaves.
CLOSE = 1.001


def all_best(machine: str, nodes: int, edit: str, name: str, sizes: Sequence[int]) -> list[float]:
    """What the best schedule takes at each size; it runs on the machine asked for, within its bound."""
    contest = schedules(bs.Question(machine, nodes=nodes, edits=(edit,) if edit else ()), Collective(name), sizes)
    found = [contest.answers(size, best=True)[0] for size in sizes]
    for one in found:
        schedule = contest.at(one.size).candidates[one.algorithm].schedule
        assert {link.key for link in schedule.topology.links} == {link.key for link in contest.topology.links}
        assert schedule.topology.link_columns.bandwidths == contest.topology.link_columns.bandwidths
        assert verify(schedule).ok
    assert all(one.time_s >= one.size / float(contest.bound.rate) for one in found)
    return [one.time_s for one in found]


def best(machine: str, nodes: int, edit: str, name: str, size: int) -> float:
    return all_best(machine, nodes, edit, name, [size])[0]


def chain(machine: str, nodes: int) -> list[list[str]]:
    """Edits of the same part, first of one node and then of all."""
    port, link = PORTS[machine], SLOWER.get(machine)
    edits = [[f"without n{nodes - 1}.{port}", f"without {port}"]]
    if link is not None:
        ends, change = link.split()
        one = "-".join(f"n{nodes - 1}.{end}" for end in ends.split("-"))
        edits.append([f"degrade {one} {change}", f"degrade {link}"])
    return edits


def check(machine: str, nodes: int, name: str, sizes: Sequence[int]) -> None:
    for edits in chain(machine, nodes):
        richer, poorer = (all_best(machine, nodes, edit, name, sizes) for edit in edits)
        for size, more, less in zip(sizes, richer, poorer, strict=True):
            assert more <= CLOSE * less, (edits, size, more, less)


@pytest.mark.parametrize(
    ("machine", "name"), [("dgx1-v100", "allgather"), ("mi300x", "broadcast"), ("p4d", "allreduce")]
)
def test_a_poorer_node_is_never_slower_than_all_so_poor(machine: str, name: str) -> None:
    check(machine, 2, name, [2**20])


@pytest.mark.parametrize(("machine", "port"), [("mi300x", "nic0"), ("hgx-h100", "nic0"), ("p5", "efa0")])
def test_a_port_more_costs_a_broadcast_nothing(machine: str, port: str) -> None:
    healthy, poorer = (best(machine, 2, edit, "broadcast", 2**26) for edit in ("", f"without {port}"))
    assert healthy <= CLOSE * poorer


def test_narrow_links_between_leaves_gain_nothing() -> None:
    fabric = "fabric shape=tree leaf_nodes=4 oversubscription="
    times = [best("hgx-h100", 16, f"{fabric}{over}", "allreduce", 2**30) for over in (1, 2, 4)]
    assert times[0] <= CLOSE * times[1] <= CLOSE**2 * times[2]


@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100"])
def test_narrow_links_between_leaves_gain_nothing_by_symmetry(machine: str) -> None:
    """So many ranks have trees by symmetry; one copy for a leaf is sent on sooner where links could carry them all."""
    fabric = "fabric shape=tree leaf_nodes=8 oversubscription="
    parts = [bs.Question(machine, nodes=48, edits=(f"{fabric}{over}",)).part() for over in (1, 2)]
    wide, narrow = (bs.project(part, "allreduce", "256MiB", "packed").time_s for part in parts)
    assert wide <= CLOSE * narrow


def test_an_exchange_loses_nothing_by_adapters_more() -> None:
    healthy, poorer = (best("p5", 2, edit, "alltoall", 2**20) for edit in ("", "without efa0"))
    assert healthy <= CLOSE * poorer


def test_a_slow_link_costs_no_more_than_none() -> None:
    slow, none = (
        best("mi300x", 1, edit, "allreduce", 2**26)
        for edit in ("degrade gpu0-gpu1 bandwidth=20GB/s", "without gpu0-gpu1")
    )
    assert slow <= CLOSE * none


@pytest.mark.parametrize("name", ["allgather", "reducescatter"])
def test_a_slow_link_of_one_node_costs_no_more_than_none(name: str) -> None:
    edits = "degrade n0.gpu0-n0.gpu1 bandwidth=5GB/s", "without n0.gpu0-n0.gpu1"
    slow, none = (all_best("mi325x", 2, edit, name, [2**12, 2**26, 2**30]) for edit in edits)
    assert all(some <= CLOSE * less for some, less in zip(slow, none, strict=True))


def test_a_link_more_costs_few_bytes_nothing() -> None:
    """Eight trees of two hops use every link of the healthy box, and 30 of 32 are enough for those without a pair."""
    pairs = ("gpu0-gpu1", "gpu0-gpu3", "gpu1-gpu2", "gpu4-gpu7")
    sizes = [2**3, 2**10, 2**14]
    healthy = all_best("dgx1-v100", 1, "", "allgather", sizes)
    assert healthy[0] == pytest.approx(3.8e-6, rel=1e-3)
    for pair in pairs:
        poorer = all_best("dgx1-v100", 1, f"without {pair}", "allgather", sizes)
        assert all(more <= CLOSE * less for more, less in zip(healthy, poorer, strict=True)), pair


def test_a_slow_link_of_every_node_costs_no_more_than_none() -> None:
    """One in eight of its class, it is left out, too."""
    edits = "degrade gpu1-cpu0 bandwidth=5GB/s", "without gpu1-cpu0"
    slow, none = (all_best("perlmutter", 8, edit, "broadcast", [2**20, 2**26]) for edit in edits)
    assert all(some <= CLOSE * less for some, less in zip(slow, none, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "machine", "name"), FAMILIES)
def test_families(machine: str, name: str, nodes: int) -> None:
    check(machine, nodes, name, [2**10, 2**20, 2**26, 2**30])


@pytest.mark.slow
def test_a_port_less_of_one_node_lowers_the_bound() -> None:
    """The links of all ports carry every byte 4 x 31 times, whatever a linear program finds."""
    poorer = bs.Question("p5", nodes=4, edits=("without n1.efa0",)).part()
    assert bs.bound(poorer, "allreduce").rate == Fraction(31975 * 10**9, 124)


def test_evened_leaves_what_all_nodes_have() -> None:
    part = bs.Question("p5", nodes=3, edits=("without n1.efa0", "degrade n2.efa5-fabric bandwidth=5GB/s")).part()
    even = evened(part)
    assert even is not None
    assert {link.key for link in even.links} < {link.key for link in part.links}
    for node in range(3):
        assert f"n{node}.efa0" not in even.index
        [port] = even.links_between(f"n{node}.efa5", "fabric")
        assert port.bandwidth == 5 * 10**9
    # What all nodes have alike is not made again.
    own = {link.key: link for link in part.links}
    assert {link.dst for link in even.links if link is not own[link.key]} == {
        "fabric",
        *(f"n{n}.efa5" for n in range(3)),
    }
    assert evened(bs.Question("p5", nodes=3).part()) is None


def test_links_narrower_than_others_of_their_class_are_left_out() -> None:
    edits = "degrade n0.gpu0-n0.gpu1 bandwidth=5GB/s", "without n0.gpu0-n0.gpu1"
    slow, none = (bs.Question("mi300x", nodes=2, edits=(edit,)).part() for edit in edits)
    poorer = without_narrow(slow)
    assert poorer is not None
    assert {link.key for link in poorer.links} == {link.key for link in none.links}
    assert without_narrow(none) is None


def test_nodes_without_a_port_in_common_are_not_evened() -> None:
    edits = *(f"without n1.nic{number}" for number in range(3)), "without n0.nic3"
    assert evened(bs.Question("dgx1-v100", nodes=2, edits=edits).part()) is None


@pytest.mark.parametrize("size", [2**10, 2**20, 2**30])
def test_programs_on_narrower_links_are_not_quicker(size: int) -> None:
    """Constants of programs are those of equal links, and launches count without them too."""
    part, edit = bs.load("dgx-a100"), "degrade gpu5-nvswitch lanes="
    could = [
        answer(bs.Question(part, edits=edits), Collective("allreduce"), [size])[0].could
        for edits in ((), (f"{edit}11",), (f"{edit}6",))
    ]
    times = [found.best.time_s for found in could if found is not None]
    assert len(times) == 3
    assert times[0] <= CLOSE * times[1] <= CLOSE**2 * times[2]
    # Times of many bytes on links hold more than those of programs, and then count no launches.
    programs = [found.best.runs_as.startswith("as a program on the GPUs") for found in could if found is not None]
    assert programs == [True, size < 2**30, size < 2**30]


@pytest.mark.parametrize(
    ("machine", "nodes", "edit"),
    [
        ("mi300x", 1, "degrade gpu0-gpu1 bandwidth=20GB/s"),
        ("perlmutter", 2, "degrade n0.nic0-fabric bandwidth=8GB/s"),
        ("p4d.24xlarge", 2, "degrade n0.efa0-fabric bandwidth=2GB/s"),
    ],
)
def test_no_latency_makes_an_edit_quicker(machine: str, nodes: int, edit: str) -> None:
    """What a slow link costs the machine's library is no less where that link also has more latency."""
    for size in (2**20, 2**28):
        asked = [bs.load(machine, nodes=nodes, edits=one) for one in ((), edit, f"{edit} latency=50us")]
        healthy, slow, late = (bs.expect(one, ["allreduce"], [size]).takes[0].time_s for one in asked)
        assert healthy <= slow <= late * (1 + 1e-9)


@pytest.mark.parametrize(
    ("machine", "nodes", "edit"),
    [
        ("hgx-h100", 1, "degrade gpu0-nvswitch lanes=1"),
        ("dgx-a100", 1, "degrade gpu0-nvswitch lanes=3"),
        ("hgx-h100", 2, "without nic[0-3]"),
    ],
)
def test_lost_bandwidth_costs_a_start_nothing(machine: str, nodes: int, edit: str) -> None:
    """Few bytes wait for steps, not for links: the latency of these is as before, whatever lanes are lost."""
    healthy, edited = (bs.load(machine, nodes=nodes, edits=one) for one in ((), edit))
    ratios = []
    for size in (2**10, 2**30):
        before, after = (bs.expect(one, ["allreduce"], [size]).takes[0].time_s for one in (healthy, edited))
        ratios.append(after / before)
    assert 1 - 1e-12 <= ratios[0] < 1.05
    # Without half of its adapters NCCL takes trees on HGX H100, and not NVLS, which leaves a part of all adapters idle.
    assert ratios[1] > 1.74


@pytest.mark.slow
@settings(max_examples=3)
@given(
    node=st.integers(1, 4),
    port=st.sampled_from([("hgx-h100", "nic0"), ("dgx1-v100", "nic1"), ("mi300x", "nic2")]),
    collective=st.sampled_from(["allgather", "reducescatter"]),
)
def test_whichever_node_lacks_a_port_takes_as_long(node: int, port: tuple[str, str], collective: str) -> None:
    name, nic = port
    edited = (bs.load(name, nodes=5, edits=[f"without n{place}.{nic}"]) for place in (0, node))
    first, other = (answer(one, Collective(collective), [2**26])[0] for one in edited)
    assert first.least is not None
    assert other.least is not None
    assert (first.time_s, first.least.time_s) == (other.time_s, other.least.time_s)
    assert first.could is not None
    assert other.could is not None
    best, again = first.could.best, other.could.best
    assert (best.algorithm, best.time_s) == (again.algorithm, again.time_s)


@pytest.mark.parametrize(("machine", "nodes"), [("p5en", 4), ("p5", 8)])
def test_an_adapter_more_costs_an_allreduce_nothing(machine: str, nodes: int) -> None:
    """Ranks that have adapters left take over what others lose, on as many nodes as there are."""
    lost, sizes = ("without n1.efa11", "without n3.efa2", "without n0.efa15"), (2**20, 2**26, 2**30)
    parts = [bs.load(machine, nodes=nodes, edits=lost[:many]) for many in (1, 2, 3)]
    names = "hierarchical,hierarchical_direct"
    times = [[bs.rank(one, "allreduce", size, "alpha-beta", names).best.time_s for one in parts] for size in sizes]
    for one, two, three in times:
        assert one <= CLOSE * two <= CLOSE**2 * three


@settings(max_examples=5)
@given(
    machine=st.sampled_from(["aurora", "mi300x", "frontier", "hgx-h100"]),
    collective=st.sampled_from(["allreduce", "allgather", "broadcast", "alltoall"]),
    lost=st.lists(st.integers(0, 3), min_size=2, max_size=3),
)
@example("aurora", "allreduce", [1, 2, 3])
@example("frontier", "alltoall", [1, 2])
def test_a_library_waits_for_the_slowest_node(machine: str, collective: str, lost: list[int]) -> None:
    """What is lost on several nodes costs what it costs where it is lost on all: losses do not add up."""
    edits = tuple(f"without n{node}.nic{nic}" for node, nic in enumerate(lost))
    several, *alike = (
        bs.expect(bs.load(machine, nodes=4, edits=one), [collective], [2**30]).takes[0].time_s
        for one in (edits, *((f"without nic{nic}",) for nic in lost))
    )
    assert several == pytest.approx(max(alike))


@pytest.mark.parametrize("nodes", [4, 16])
def test_other_adapters_lost_on_two_nodes_cost_no_more_than_one_lost_on_all(nodes: int) -> None:
    """Seven ports send to eight in seven parts, and not in 56, each with a start of its own."""
    lost = (("without nic1",), ("without n0.nic1", "without n1.nic2"))
    machines = [bs.load("aurora", nodes=nodes, edits=edits) for edits in lost]
    found = [bs.project(one, "allreduce", 2**30, "hierarchical_multiplying", model="alpha-beta") for one in machines]
    everywhere, two = (one.time_s for one in found)
    assert everywhere * 0.99 < two <= everywhere * 1.002


@pytest.mark.parametrize(
    ("machine", "nodes", "name", "size", "lost"),
    [
        ("hgx-h200", 2, "allreduce", 2**18, ("n0.nic6", "n0.nic5")),
        ("hgx-h200", 2, "allreduce", 2**22, ("n0.nic6", "n0.nic5")),
        ("p6-b200", 2, "allreduce", 2**18, ("n0.efa4", "n0.efa3")),
        ("p6-b200", 4, "allreduce", 2**18, ("n3.efa5", "n3.efa1")),
        ("a3-megagpu-8g", 4, "allgather", 2**22, ("n0.nic6", "n1.nic6")),
        ("a3-megagpu-8g", 4, "allgather", 2**22, ("n0.nic1", "n0.nic3")),
    ],
)
def test_what_a_lost_adapter_leaves_is_divided_no_finer_than_pays(
    machine: str, nodes: int, name: str, size: int, lost: tuple[str, str]
) -> None:
    """With one adapter lost messages went in seven parts, with two in six, which is a start less: 5.5 % quicker."""
    edits = [tuple(f"without {adapter}" for adapter in lost[:number]) for number in range(3)]
    times = list[float]()
    for edited in edits:
        contest = schedules(bs.Question(machine, nodes=nodes, edits=edited), Collective(name), [size])
        found = contest.answers(size, best=True)[0]
        assert verify(contest.at(size).candidates[found.algorithm].schedule).ok
        times.append(found.time_s)
    assert all(richer <= CLOSE * poorer for richer, poorer in pairwise(times))


def test_nothing_is_searched_for_that_gains_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many ranks paths take seconds to find; rails without one adapter come within 3 % of the bound."""
    from blinksim.algorithms import packed

    monkeypatch.setattr(packed, "build", lambda *_, **__: pytest.fail("paths were looked for"))
    job = bs.Question("p5", nodes=4, edits=("without n1.efa0",)), Collective("alltoall"), [2**28]
    found = schedules(*job)
    assert "within 3 %" in found.left_out["packed"]
    best = found.answers(2**28, best=True)[0]
    assert 0.97 * best.time_s <= 2**28 / float(found.bound.rate) <= best.time_s


@pytest.mark.parametrize(("nodes", "size"), [(4, 2**10), (4, 2**20)])
def test_few_bytes_go_over_one_adapter_of_a_gpu(nodes: int, size: int) -> None:
    """Four adapters hang from one port of a GPU of p5: every message starts there, and a part of one is a message."""
    contest = schedules(bs.Question("p5", nodes=nodes), Collective("alltoall"), [size])
    [found] = contest.answers(size, best=True)[:1]
    schedule = contest.at(size).candidates[found.algorithm].schedule
    assert verify(schedule).ok
    assert 0.85 <= found.time_s / simulate(schedule, size).time_s <= 1.05
    first = [schedule.links_of(route)[0] for route in schedule.route.tolist()]
    node = schedule.topology.device_nodes
    crossing = (node[schedule.src] != node[schedule.dst]) & (schedule.src == schedule.topology.index["n0.gpu0"])
    columns = schedule.step, schedule.route, schedule.channel, schedule.dst
    messages = set(zip(*(column[crossing].tolist() for column in columns), strict=True))
    assert len(messages) == nodes - 1
    assert len({first[send] for send in crossing.nonzero()[0].tolist()}) == 1
