"""Groups that share a machine against a linear program over all trees, and against rates known by hand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, product
from random import Random

import networkx as nx
import pytest
from scipy.optimize import linprog

import blinksim as bs
from blinksim.answers.bound import together
from blinksim.bounds.together import Together
from blinksim.machines import Question, mesh_groups
from blinksim.schedule.loads import link_loads, rate as loaded_rate
from blinksim.topology.graph import Device, Link, Topology

GB = 10**9
Machine = dict[tuple[int, int], int]


def machine_of(random: Random, gpus: int, *, uneven: bool) -> Machine:
    """A connected machine: GB/s of the links from GPU to GPU, the same both ways unless `uneven`."""
    pairs = {(random.randrange(b), b) for b in range(1, gpus)}
    pairs |= {pair for pair in combinations(range(gpus), 2) if random.random() < 0.4}
    widths = {pair: random.randint(1, 4) for pair in sorted(pairs)}
    return widths | {(b, a): random.randint(1, 4) if uneven else width for (a, b), width in widths.items()}


def topology_of(widths: Machine, gpus: int) -> Topology:
    links = [Link(f"gpu{a}", f"gpu{b}", "link", Fraction(w * GB), 1, 1e-6) for (a, b), w in widths.items()]
    names = tuple(f"gpu{i}" for i in range(gpus))
    return Topology(
        "drawn", tuple(Device(name, "gpu") for name in names), tuple(links), names, collective_links=("link",)
    )


def trees_of(widths: Machine, members: set[int], helpers: set[int]) -> list[tuple[tuple[int, int], ...]]:
    """All trees over the members and some helpers, whose leaves are members."""
    pairs, found = [(a, b) for a, b in widths if a < b and members | helpers >= {a, b}], []
    for count in range(1, len(members | helpers)):
        for chosen in combinations(pairs, count):
            graph = nx.Graph(chosen)
            ends = {v for v in graph if graph.degree(v) == 1}
            if members <= set(graph) and ends <= members and nx.is_tree(graph):
                found.append(chosen)
    return found


def through(widths: Machine, members: set[int], helpers: set[int]) -> list[tuple[tuple[int, ...], ...]]:
    """All trees over the members whose every edge is a path through helpers that only forward."""
    graph, pairs = nx.Graph(list(widths)), [*combinations(sorted(members), 2)]
    paths = {pair: [p for p in nx.all_simple_paths(graph, *pair) if helpers.issuperset(p[1:-1])] for pair in pairs}
    shapes = trees_of(dict.fromkeys([*pairs, *((b, a) for a, b in pairs)], 1), members, set())
    return [tuple(map(tuple, ways)) for shape in shapes for ways in product(*(paths[pair] for pair in shape))]


def fairest(
    widths: Machine,
    gpus: int,
    groups: list[tuple[set[int], str, Fraction]],
    relays: bool,
    *,
    forward: bool = False,
    between: frozenset[int] = frozenset(),
) -> list[float]:
    """The max-min fair rates in GB/s by HiGHS: every tree from every root has a rate of its own, each way.

    Variables: the common rate, the rate of every group, the trees. between: what forwards for all, of no group.
    """
    used: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    equal, count = list[dict[int, float]](), 1 + len(groups)
    for number, (members, name, _) in enumerate(groups, 1):
        helpers = {*range(gpus)} - members if relays else {*between}
        trees = (through if forward else trees_of)(widths, members, helpers)
        roots = {way[end] for tree in trees for way in tree for end in (0, -1)} if name == "allreduce" else members
        roots = {min(members)} if name in ("broadcast", "reduce") else roots
        ways = {"allreduce": (False, True), "reduce": (True,), "reducescatter": (True,)}.get(name, (False,))
        whole = dict[int, float]()
        for root in sorted(roots):
            sums = list[dict[int, float]]()
            for inward in ways:
                sums.append({})
                for tree in trees:
                    way_of = {(way[0], way[-1]): way for one in tree for way in (one, one[::-1])}
                    if root not in (ends := nx.Graph(list(way_of))):
                        continue
                    for edge in nx.bfs_edges(ends, root):
                        for a, b in pairwise(way_of[edge]):
                            hop = (b, a) if inward else (a, b)
                            used[hop][count] = used[hop].get(count, 0.0) + 1.0
                    sums[-1][count] = 1.0
                    count += 1
            if len(ways) == 2:
                equal.append({**sums[0], **dict.fromkeys(sums[1], -1.0)})
            if name in ("allgather", "reducescatter"):
                equal.append({**sums[0], number: -1.0 / len(roots)})
            else:
                whole |= sums[0]
        if whole:
            equal.append({**whole, number: -1.0})
    rows, most = list(used.values()), [float(widths[pair]) for pair in used]

    def largest(variable: int, least: dict[int, float], free: set[int]) -> float:
        """The most of a variable, where groups have at least so much, and `free` ones the common rate."""
        more = [{number: -1.0} for number in least] + [{0: float(groups[n - 1][2]), n: -1.0} for n in free]
        ends = [-rate for rate in least.values()] + [0.0] * len(free)
        some = [[row.get(v, 0.0) for v in range(count)] for row in [*rows, *more]]
        same = [[row.get(v, 0.0) for v in range(count)] for row in equal]
        goal = [-1.0 if v == variable else 0.0 for v in range(count)]
        found = linprog(goal, some, [*most, *ends], same, [0.0] * len(same))
        assert found.fun is not None
        return -float(found.fun)

    held, free = dict[int, float](), {*range(1, len(groups) + 1)}
    while free:
        common = largest(0, held, free)
        now = held | {number: common * float(groups[number - 1][2]) * (1 - 1e-9) for number in free}
        stuck = {number for number in free if largest(number, now, set()) < now[number] * (1 + 1e-5)}
        assert stuck
        held |= {number: now[number] for number in stuck}
        free -= stuck
    return [held[number] for number in sorted(held)]


def drawn(seed: int, names: tuple[str, ...], *, forward: bool = False) -> tuple[Together, list[float]]:
    """Groups on a machine, with relays that reduce, that only forward, or none. Their answer, and the fair rates."""
    random = Random(seed)
    while True:
        gpus = random.randint(4, 5)
        widths = machine_of(random, gpus, uneven=random.random() < 0.3)
        if len(widths) > 16:
            continue
        relays = forward or random.random() < 0.7
        groups = []
        for _ in range(random.randint(2, 3)):
            members = {*random.sample(range(gpus), random.randint(2, 3))}
            groups.append((members, random.choice(names), Fraction(random.randint(1, 3))))
        texts = [f"{','.join(map(str, sorted(m)))}:{name}:{int(w)}" for m, name, w in groups]
        question = Question(topology_of(widths, gpus))
        question = replace(question, relays="others", relays_reduce=not forward) if relays else question
        try:
            found = together(question, texts)
        except bs.InfeasibleError:
            continue
        return found, fairest(widths, gpus, groups, relays, forward=forward)


def drawn_nodes(seed: int, names: tuple[str, ...]) -> tuple[Together, list[float]]:
    """Groups across two nodes of two GPUs and two NICs, which ways of various lengths and widths lead to."""
    random = Random(seed)
    while True:
        # By node: two GPUs, two PCIe switches, two NICs; then the fabric, and what stands for links of a second class.
        kinds, widths, links = ["gpu", "pcie", "nic"], dict[tuple[int, int], int](), list[Link]()
        name = [f"n{node}.{kind}{i}" for kind in kinds for node in range(2) for i in range(2)] + ["fabric"]
        count = len(name)
        for node in (0, 2):
            gpus, switches, nics = ([first + node, first + node + 1] for first in (0, 4, 8))
            pairs = [*zip(gpus, switches, strict=True), *zip(switches, nics, strict=True), *((nic, 12) for nic in nics)]
            pairs += [
                pair
                for pair in ((gpus[0], gpus[1]), (switches[0], switches[1]), (gpus[0], nics[1]))
                if random.random() < 0.5
            ]
            for a, b in [*pairs, *(random.sample(pairs, 1) if random.random() < 0.5 else [])]:
                width, kind, way = random.randint(1, 4), "pcie", [a, b]
                if (a, b) in widths:
                    kind, way, count = "second", [a, count, b], count + 1
                links += [Link(name[x], name[y], kind, Fraction(width * GB), 1, 1e-6) for x, y in ((a, b), (b, a))]
                widths |= {ends: width for one in (way, way[::-1]) for ends in pairwise(one)}
        devices = [Device(one, one.split(".")[-1].rstrip("01"), int(one[1]) if one[0] == "n" else -1) for one in name]
        machine = Topology("drawn", (*devices,), (*links,), (*name[:4],), collective_links=("pcie", "second"))
        groups = [
            ({*random.sample(range(4), 2)}, random.choice(names), Fraction(random.randint(1, 3))) for _ in range(3)
        ]
        # Groups inside a node are not asked to leave it: the rates of what does are not those of this oracle.
        if all({one // 2 for one in members} == {0, 1} for members, _, _ in groups):
            texts = [f"{','.join(map(str, sorted(m)))}:{what}:{int(w)}" for m, what, w in groups]
            return together(machine, texts), fairest(
                widths, 4, groups, False, forward=True, between=frozenset(range(4, count))
            )


def assert_best(found: Together, fair: list[float]) -> None:
    assert found.check() == []
    assert found.exact
    assert [float(group.rate) / GB for group in found.groups] == pytest.approx(fair, rel=1e-5)
    # The schedules hold what they promise, and no link carries more than it can.
    carried = defaultdict[str, Fraction](Fraction)
    for group in found.groups:
        assert group.schedule is not None
        assert bs.verify(group.schedule).ok
        assert (loaded_rate(group.schedule) or 0) >= group.rate
        for link, load in zip(group.part.links, link_loads(group.schedule), strict=True):
            carried[link.name] += Fraction(load) * group.rate
    assert all(carried[link.name] <= link.bandwidth * (1 + Fraction(1, 10**6)) for link in found.machine.links)


@pytest.mark.parametrize("seed", range(12))
def test_allreduces_on_drawn_machines(seed: int) -> None:
    assert_best(*drawn(seed, ("allreduce",)))


ANY = ("allreduce", "broadcast", "reduce", "allgather", "reducescatter")


@pytest.mark.parametrize("seed", range(8))
def test_any_collectives_on_drawn_machines(seed: int) -> None:
    assert_best(*drawn(1000 + seed, ANY))


@pytest.mark.parametrize("seed", range(8))
def test_relays_that_only_forward_lie_on_any_way(seed: int) -> None:
    """From one GPU of a tree to the next there are several ways; trees of one rate take several."""
    found, fair = drawn(3000 + seed, ANY, forward=True)
    assert_best(found, fair)
    for group in found.groups:
        assert group.schedule is not None
        ends = {int(end) for end in (*group.schedule.src, *group.schedule.dst)}
        assert {group.part.devices[end].name for end in ends} == {*group.part.members}


@pytest.mark.parametrize("seed", range(6))
def test_ways_over_several_nics(seed: int) -> None:
    """What goes from GPU to GPU is divided among ways of any length, in any ratio; links may be parallel."""
    assert_best(*drawn_nodes(seed, ANY))


@pytest.mark.parametrize(
    ("machine", "shape", "rates"),
    [
        ("p5", "2x8", {50, Fraction(1800, 7)}),
        ("p5", "8x2", {Fraction(2000, 11)}),
        ("p5en", "4x4", {100, Fraction(700, 3)}),
        ("p4d", "2x8", {Fraction(25, 4), Fraction(1200, 7)}),
        ("p4d", "4x4", {Fraction(25, 2), Fraction(575, 3)}),
        ("a3-mega", "8x2", {100, 300}),
        ("a3-mega", "4x4", {50, Fraction(800, 3)}),
    ],
)
def test_meshes_over_nics(machine: str, shape: str, rates: set[Fraction]) -> None:
    """Four EFA of 12.5 GB/s a GPU on p5, one for two GPUs on p4d; certificates and schedules agree."""
    found = together(Question(machine, nodes=2), mesh_groups(shape, 16))
    assert {group.rate / GB for group in found.groups} == rates
    assert found.exact
    assert not found.check()
    assert not found.faults()
    assert bs.verify(found.schedule).ok


def test_mixed_groups_over_nics() -> None:
    """A pair across nodes has its four NICs; the broadcast of three GPUs has those of its farther GPU."""
    groups = ["0,8:allreduce:64MiB", "0-7:allgather:256MiB", "1,2,11:broadcast:16MiB"]
    found = together(Question("p5", nodes=2), groups)
    assert [group.rate for group in found.groups] == [50 * GB, Fraction(3600 * GB, 7), 50 * GB]
    assert found.exact
    assert not found.faults()
    least = max(float(group.size / group.rate) for group in found.groups if group.size)
    time_s = bs.simulate(found, sum(group.size for group in found.groups if group.size)).time_s
    assert least <= time_s <= 1.06 * least


def test_a_ring_of_one_way() -> None:
    """Trees away from a root need no links back."""
    widths = {(0, 1): 1, (1, 2): 1, (2, 0): 1}
    for what in ("broadcast", "reduce"):
        found = together(topology_of(widths, 3), [f"0-2:{what}"])
        assert found.groups[0].rate == GB
        assert not found.faults()


def test_what_has_more_than_the_others_leaves_rates_exact() -> None:
    """Only one of eighteen groups is limited by the first certificate; pairs inside nodes have all their links."""
    found = together(Question("mi250", nodes=2), mesh_groups("16x2", 32))
    assert found.exact
    assert {group.rate for group in found.groups} == {Fraction(728 * GB, 11), Fraction(200 * GB)}


@pytest.mark.slow
def test_many_drawn_machines() -> None:
    for seed in range(200):
        assert_best(*drawn(2000 + seed, ("allreduce",) if seed % 2 else ANY))
        assert_best(*drawn(4000 + seed, ("allreduce",) if seed % 2 else ANY, forward=True))


@pytest.mark.parametrize(
    ("groups", "direct", "times"),
    [
        (["0,1"], 50, 7),
        (["0-3"], 100, 3),
        (["0,1", "2,3", "4,5", "6,7"], 50, 4),
        (["0-3", "4-7"], 100, 2),
    ],
)
def test_a_full_mesh(groups: list[str], direct: int, times: int) -> None:
    """Through all other GPUs; without them every group has its own links only."""
    alone = together("full:8@50GB/s", groups)
    assert {group.rate for group in alone.groups} == {Fraction(direct * GB)}
    assert alone.exact
    found = together(Question("full:8@50GB/s", relays="others", relays_reduce=True), groups)
    assert {group.rate for group in found.groups} == {Fraction(times * direct * GB)}
    assert found.exact
    assert found.check() == []


@pytest.mark.parametrize("machine", ["full:8@50GB/s", "hypercube:3@50GB/s", "dgx1-v100", "mi355x", "hgx-h100"])
@pytest.mark.parametrize("shape", ["2x4", "4x2", "2x2x2"])
@pytest.mark.parametrize("relays", [{}, {"relays": "others", "relays_reduce": True}], ids=["none", "others"])
def test_meshes_of_eight(machine: str, shape: str, relays: dict[str, object]) -> None:
    found = together(Question.of(machine, **relays), mesh_groups(shape, 8))  # type: ignore[arg-type]
    assert found.check() == []
    assert found.exact
    assert all(group.schedule and bs.verify(group.schedule).ok for group in found.groups)


@pytest.mark.parametrize("relays", [{}, {"relays": "others", "relays_reduce": True}], ids=["none", "others"])
def test_alone_is_as_if_asked_alone(relays: dict[str, object]) -> None:
    """Also of groups that are alike but for one link."""
    question = Question.of("full:6@50GB/s", edits="replace gpu0-gpu3 bandwidth=70GB/s", **relays)  # type: ignore[arg-type]
    groups = ["0,3", "1,4", "2,5", "0-2", "3-5", "0,3:broadcast"]
    each = [together(question, [group]).groups[0] for group in groups]
    assert [group.alone for group in together(question, groups).groups] == [group.rate for group in each]
    assert len({group.alone for group in each[:2]}) == 2


@pytest.mark.parametrize("whole", ["0-7", "0-7:reduce"])
def test_a_collective_of_many_beside_those_that_go_one_way(whole: str) -> None:
    """Trees towards a root of their own: a certificate that schedules attain is proof of itself."""
    found = together("mesh:4x2@50GB/s", [whole, "0,1:allgather", "3-5:broadcast"])
    assert found.check() == []
    assert found.exact
    assert found.faults() == []


def test_sizes_set_the_ratio() -> None:
    """Twice the bytes, twice the rate: both end together, when their common link has carried all."""
    line = topology_of({(0, 1): 1, (1, 0): 1, (1, 2): 3, (2, 1): 3}, 3)
    found = together(Question(line, relays="others", relays_reduce=True), ["0,1:allreduce:1GB", "0,2:allreduce:2GB"])
    assert [group.rate for group in found.groups] == [Fraction(GB, 3), Fraction(2 * GB, 3)]
    assert "all done in 3 s at the earliest" in found.sentence()


def test_full_links_are_those_of_a_group_alone_or_shared() -> None:
    """On a line 0-1-2 both groups need the link 0-1; the pair 1-2 beside them has the other."""
    line = topology_of({(0, 1): 1, (1, 0): 1, (1, 2): 3, (2, 1): 3}, 3)
    found = together(Question(line, relays="others", relays_reduce=True), ["0,1", "0,2", "1,2"])
    first = ["gpu0->gpu1 (link)", "gpu1->gpu0 (link)"]
    assert [found.full_links(n) for n in range(2)] == [(first, [1]), (first, [0])]
    assert [row["beside"] for row in found.rows()] == [[1], [0], [1]]
    assert "GPUs 0,2" in found.text()


@pytest.mark.parametrize("relays", [{}, {"relays": "others", "relays_reduce": True}], ids=["none", "others"])
def test_schedules_side_by_side_take_the_time_of_the_bound(relays: dict[str, object]) -> None:
    """Pieces and hops take their time; apart, each group alone takes what it takes beside the other."""
    groups = ["0,1:allreduce:1GiB", "2-4:allgather:2GiB"]
    found = together(Question.of("full:8@50GB/s", **relays), groups)  # type: ignore[arg-type]
    least = max(group.size / group.rate for group in found.groups if group.size)
    time_s = bs.simulate(found, sum(group.size for group in found.groups if group.size)).time_s
    assert least <= time_s <= 1.02 * float(least)
    if not relays:
        alone = max(bs.simulate(group.schedule, group.size).time_s for group in found.groups)  # type: ignore[arg-type]
        assert time_s == pytest.approx(alone, rel=0.01)


def test_side_by_side_on_a_link_that_all_need() -> None:
    """Two broadcasts over one link, 1 and 2 GB at 1 GB/s: 3 s, whichever comes first."""
    line = topology_of({(0, 1): 1, (1, 0): 1}, 2)
    for sizes in ((1, 2), (2, 1)):
        found = together(line, [f"0,1:broadcast:{size}GB" for size in sizes])
        assert bs.simulate(found, 3 * GB).time_s == pytest.approx(3, rel=1e-4)


def test_the_groups_of_a_mesh() -> None:
    assert mesh_groups("2x4", 8) == ["0,4", "1,5", "2,6", "3,7", "0,1,2,3", "4,5,6,7"]
    assert mesh_groups("2x4", 8, 1) == ["0,1,2,3", "4,5,6,7"]
    assert mesh_groups("2x2x2", 8, 1) == ["0,2", "1,3", "4,6", "5,7"]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (["0,1", "2,3:allreduce:1MiB"], "a size to all of them or to none"),
        (["0,1:alltoall"], "not alltoall"),
        (["0,1:allreduce:1MiB:4"], "write members, collective and size"),
        ([], "give one or more"),
        (["0"], "two"),
    ],
)
def test_what_is_refused(groups: list[str], words: str) -> None:
    with pytest.raises(bs.BlinksimError, match=words):
        together("dgx1-v100", groups)


@pytest.mark.parametrize("shape", ["2x3", "8", "x", "2x4x", "02x4", "-2x-4"])
def test_meshes_that_are_none(shape: str) -> None:
    if shape == "8":
        assert mesh_groups(shape, 8) == ["0,1,2,3,4,5,6,7"]
    else:
        with pytest.raises(bs.InputError, match="product of its sides"):
            mesh_groups(shape, 8)


def test_what_would_take_minutes_is_refused() -> None:
    with pytest.raises(bs.InfeasibleError, match="name fewer GPUs as relays"):
        together(Question("gb300-nvl72", relays="others", relays_reduce=True), mesh_groups("18x4", 72))


@pytest.mark.parametrize("sizes", [(1_000_003, 2**26), (25_000_000, 2**30), (4097, 10**7)])
def test_sizes_of_any_ratio(sizes: tuple[int, int]) -> None:
    """Two pairs that relay for each other on a full mesh of four: nobody ends later than the certificate says."""
    question = bs.Question("full:4@50GB/s", relays="others", relays_reduce=True)
    groups = [f"{pair}:allreduce:{size}" for pair, size in zip(("0,1", "2,3"), sizes, strict=True)]
    found = bs.together(question, groups)
    assert found.exact
    assert not found.check()
    assert not found.faults()
    times = [size / group.rate for size, group in zip(sizes, found.groups, strict=True)]
    assert max(times) == pytest.approx(float(1 / found.proofs[0].rate))


@pytest.mark.parametrize("ratio", [10**6, 10**9, 10**10])
def test_small_groups_beside_huge_ones(ratio: int) -> None:
    """Both end together on what they share; elsewhere the small one has all that the huge one leaves."""
    line = topology_of({(0, 1): 1, (1, 0): 1, (1, 2): 3, (2, 1): 3}, 3)
    found = together(line, [f"0,1:allreduce:{ratio}", "0-2:broadcast:1", "1,2:allreduce:1"])
    assert found.exact
    assert not found.faults()
    common = Fraction(GB, ratio + 1)
    assert [group.rate for group in found.groups] == [ratio * common, common, 3 * GB - common]


def test_sizes_that_differ_too_much_are_refused_in_words() -> None:
    question = Question("dgx1-v100", relays="others", relays_reduce=True)
    with pytest.raises(bs.InfeasibleError, match=r"1e\+09 times the size of another; beyond 1,000,000 "):
        together(question, ["0,1:allreduce:1000000001", "2,3:allreduce:1", "0-3:allreduce:3"])


def test_groups_across_nodes_beside_groups_inside() -> None:
    """Of a mesh of two nodes without switches: rails of NICs, and links of other classes inside."""
    rails = [f"{gpu},{gpu + 8}" for gpu in range(8)]
    found = bs.together(bs.Question("mi300x", nodes=2), [*rails, "0-7", "8-15"])
    assert found.exact
    assert not found.faults()
    for number in (0, 8):
        alone = bs.bound(found.groups[number].part, "allreduce")
        assert found.groups[number].alone == alone.rate


@pytest.mark.parametrize(
    ("machine", "groups", "alone"), [("dgx1-v100", ("0,1", "2,3,4"), 112.5), ("mesh:2x3", ("1,3", "0,2,4"), 43.75)]
)
def test_alone_is_what_one_question_says_through_relays_that_only_forward(
    machine: str, groups: tuple[str, str], alone: float
) -> None:
    found = bs.together(bs.Question(machine, relays="others"), groups)
    idle = bs.Question(machine, relays="idle", members=groups[1]).part()
    assert found.groups[1].alone == bs.bound(idle, "allreduce").rate == alone * 10**9
    assert not found.faults()
    assert all(group.rate <= group.alone for group in found.groups)


def test_groups_inside_nodes_of_a_cluster_are_as_on_one_node() -> None:
    """The NICs of p5 lead out of a node and back into it, at an eighth of what NVLink carries: nobody goes that way."""
    found = bs.together(bs.Question("p5", nodes=2), ["0-7", "8-11", "12-15:allgather"])
    alone = [bs.bound(bs.load("p5").select(members), name).rate for members, name in (
        (range(8), "allreduce"), (range(4), "allreduce"), (range(4, 8), "allgather")
    )]  # fmt: skip
    assert [group.alone for group in found.groups] == alone == [group.rate for group in found.groups]
    assert found.exact
    assert not found.faults()
