"""Balanced trees against the cases of MXNet's own unit test, and against trees that its header made."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import chain, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from blinksim.algorithms import mxnet
from blinksim.algorithms.mxnet import Leaves, grow
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import load
from blinksim.packing import balanced
from blinksim.schedule.loads import rate
from blinksim.schedule.verify import verify

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "mxnet_tree_cases.json").read_text())
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in GOLDEN["cases"]}
RUNS = GOLDEN["reference_runs"]
# Plain arithmetic that NumPy does here, and a check that the searches make as they go.
ARITHMETIC = {"ewisemult", "IsValid"}
HANDLED: set[str] = set()


def cases(fn: str) -> list[Any]:
    HANDLED.add(fn)
    return [pytest.param(case, id=name) for name, case in CASES.items() if case["fn"] == fn]


def square(numbers: list[float]) -> balanced.Weights:
    count = round(len(numbers) ** 0.5)
    return np.array(numbers, dtype=np.float32).reshape(count, count)


def members(labels: list[int], label: int) -> list[int]:
    return [vertex for vertex, own in enumerate(labels) if own == label]


def levels_of(leaves: Sequence[int]) -> list[Sequence[int]]:
    """The levels of the complete binary tree, from the root to the leaves."""
    return [leaves[:: 1 << i] for i in range(balanced.depth_of(len(leaves)), -1, -1)]


def tree_weight(weights: balanced.Weights, leaves: Sequence[int], penalties: bool = False) -> float:
    return float(balanced.tree_weights(weights, np.array([leaves]), penalties)[0])


def flat(levels: list[Sequence[int]]) -> list[int]:
    return list(chain.from_iterable(levels))


def run_id(run: dict[str, Any]) -> str:
    return f"{run['name']}-{'search' if run['backtrack'] else 'halving'}-{run['alpha']}"


@pytest.mark.parametrize("seed", range(6))
def test_one_way_links_do_not_send_the_passes_round_in_circles(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one_way = np.array([[0, 3, 0], [0, 0, 2], [3, 2, 0]], dtype=np.float32)
    passes = []
    once = balanced.differences

    def counted(*given: Any) -> Any:
        passes.append(given)
        assert len(passes) < 20, "the same halves come back"
        return once(*given)

    monkeypatch.setattr(balanced, "differences", counted)
    halves = balanced.bisect(one_way, range(3), Random(seed))
    assert halves[0] == [0], "links 1-2 weigh 4 together, the others 3"


# --- the unit test's cases ------------------------------------------------------------------------------------------


def test_every_case_is_looked_at() -> None:
    assert {case["fn"] for case in CASES.values()} - ARITHMETIC == HANDLED


@pytest.mark.parametrize("case", cases("FormTopology"))
def test_levels(case: dict[str, Any]) -> None:
    levels = levels_of(case["state"])
    assert flat(levels) == case["expect_topo"]
    starts = [0]
    for level in levels:
        starts.append(starts[-1] + len(level))
    assert starts == case["expect_scan"]
    assert len(levels) == case["depth"] + 1


@pytest.mark.parametrize("case", cases("ComputeTreeWeight"))
def test_weight_of_a_tree(case: dict[str, Any]) -> None:
    assert tree_weight(square(case["W"]), case["state"], case["penalty"]) == case["expect"]


@pytest.mark.parametrize("case", cases("Postprocess"))
def test_nobody_sends_twice_once_settled(case: dict[str, Any]) -> None:
    assert balanced.settled(np.array([case["state"]])).tolist()[0] == case["expect"]
    assert len(balanced.sends(case["expect"])) == case["n"] - 1


@pytest.mark.parametrize("case", cases("ComputeDepth"))
def test_depth(case: dict[str, Any]) -> None:
    assert {count: balanced.depth_of(int(count)) for count in case["expect"]} == case["expect"]


@pytest.mark.parametrize("case", [*cases("gemv"), *cases("PermuteMatrix")])
def test_the_matrix_of_the_case_is_that_of_the_machine(case: dict[str, Any]) -> None:
    """The case multiplies it with ones, or permutes it; here the machine's ranks are permuted."""
    machine = load("p3.16xlarge").select()
    order = case.get("P", range(8))
    matrix = mxnet.link_matrix(machine.select([machine.members[i] for i in order]))
    assert (matrix == square(case["W"])).all()
    assert (matrix == matrix.T).all()
    assert matrix.sum(axis=1).tolist() == CASES["Gemv"]["expect"]
    turned = mxnet.link_matrix(machine.select(machine.members[::-1]))
    assert (turned == matrix[::-1, ::-1]).all()


@pytest.mark.parametrize("case", cases("FindBestMove"))
def test_best_swap(case: dict[str, Any]) -> None:
    side, difference = np.array(case["P_temp"]), np.array(case["D"], dtype=np.float64)
    found = balanced.best_swap(square(case["W"]), side, difference, case["used"])
    expected = case["expect"]
    assert (found or (-1, -1, 0)) == (expected["a"], expected["b"], expected["g"])


@pytest.mark.parametrize("case", cases("KernighanLin"))
def test_halves(case: dict[str, Any]) -> None:
    """The published halves, from every start; a brute force over all halves says that none is better."""
    weights, count, labels = square(case["W"]), case["n"], np.array(case["expect"]["P"])
    found = {tuple(sorted(map(tuple, balanced.bisect(weights, range(count), Random(seed))))) for seed in range(30)}
    assert found == {tuple(sorted(tuple(members(case["expect"]["P"], part)) for part in (0, 1)))}

    def crossing(part: np.ndarray[Any, Any]) -> float:
        return float(weights[part[:, None] != part[None, :]].sum())

    halves = [np.array(part) for part in product((0, 1), repeat=count) if sum(part) == count // 2]
    assert crossing(labels) == min(map(crossing, halves))


@pytest.mark.parametrize("case", cases("GetRoot"))
def test_head_of_a_cluster(case: dict[str, Any]) -> None:
    found = balanced.head_of(members(case["P"], case["color"]), case["roots"])
    assert (-1 if found is None else found) == case["expect"]


@pytest.mark.parametrize("case", cases("GetChild"))
def test_child_in_a_cluster(case: dict[str, Any]) -> None:
    found = balanced.child_of(members(case["P"], case["color"]), case["parent"])
    assert (-1 if found is None else found) == case["expect"]


@pytest.mark.parametrize("case", cases("FindBestEdge"))
def test_heaviest_link(case: dict[str, Any]) -> None:
    weights, parent = square(case["W"]), case["parent"]
    ends = balanced.heaviest(weights, parent, members(case["P"], case["dest_cluster"]))
    assert (ends or [-1]) == case["expect"]["b"]
    assert max((weights[parent, end] for end in ends), default=0) == case["expect"]["g"]


@pytest.mark.parametrize("case", cases("KLGenerateBinaryTree"))
def test_next_level(case: dict[str, Any]) -> None:
    heads = case["topo_in"]
    clusters = [members(case["P"], case["P"][head]) for head in heads]
    found = balanced.next_level(square(case["W"]), heads, clusters, Random(0))
    assert found is not None
    assert heads + found[0] == case["expect_topo"]
    assert found[1] == [[head] for head in found[0]]
    assert case["expect_scan"][-1] == len(heads)


@pytest.mark.parametrize("case", cases("UpdateWeight"))
def test_a_used_link_loses_weight(case: dict[str, Any]) -> None:
    lighter = mxnet.penalised(square(case["W"]), tuple(case["topo"][-2:]), case["alpha"])
    assert (lighter.ravel() == np.array(case["expect_W"], dtype=np.float32)).all()


@pytest.mark.parametrize("case", cases("ComputeTreesFromRoot"))
def test_trees_from_a_root(case: dict[str, Any]) -> None:
    (tree,) = grow(square(case["W"]), [case["root"]], penalty=case["alpha"], backtrack=case["backtrack"])
    levels = levels_of(tree)
    assert sum(map(len, levels)) == case["expect_topo_size"]
    assert len(levels) + 1 == case["expect_scan_size"]


@pytest.mark.parametrize("case", cases("IsConnected"))
def test_connected_by_nvlink(case: dict[str, Any]) -> None:
    assert mxnet.connected(square(case["W"])) is case["expect"]


@pytest.mark.slow
@pytest.mark.parametrize("case", cases("ComputeTrees"))
def test_trees_of_random_machines(case: dict[str, Any]) -> None:
    setup, draw = case["randomized"], np.random.default_rng(1)
    first, last = setup["n_range"]
    for count in range(first, last + 1):
        for _ in range(2 if setup["backtrack"] or count > 8 else setup["per_n"]):
            upper = np.triu(draw.integers(1, 4, size=(count, count)), 1)
            weights = (upper + upper.T).astype(np.float32)
            trees = grow(weights, range(count), penalty=setup["alpha"], backtrack=setup["backtrack"])
            assert len(trees) == count
            for tree in trees:
                levels = levels_of(tree)
                assert sum(map(len, levels)) == 2 ** (balanced.depth_of(count) + 1) - 1
                check_tree(weights, tree)


# --- the reference trees ----------------------------------------------------------------------------------------------


def check_tree(weights: balanced.Weights, tree: Leaves) -> None:
    """Spanning, n-1 sends, all on links, everybody heard before sending, ceil(log2 n) rounds."""
    count, depth, sends = len(weights), balanced.depth_of(len(tree)), balanced.sends(tree)
    sent: set[int] = set()
    for _, src, dst in sends:
        assert src not in sent
        assert dst not in sent
        assert weights[src, dst] > 0
        sent.add(src)
    assert sent == set(range(count)) - {tree[0]}
    assert 2 ** (depth - 1) < count <= 2**depth
    assert all(0 <= round_ < depth for round_, _, _ in sends)


def uses(trees: list[Leaves]) -> Counter[str]:
    return Counter(f"{min(a, b)}-{max(a, b)}" for tree in trees for _, a, b in balanced.sends(tree))


@pytest.mark.parametrize("run", [run for run in RUNS if run["backtrack"]], ids=run_id)
def test_searched_trees_are_the_reference(run: dict[str, Any]) -> None:
    weights = square(run["W"])
    trees = grow(weights, range(run["n"]), penalty=run["alpha"], backtrack=True)
    assert [flat(levels_of(tree)) for tree in trees] == [tree["topo"] for tree in run["trees"]]
    assert [tree_weight(weights, tree) for tree in trees] == [tree["weight"] for tree in run["trees"]]
    assert uses(trees) == run["summary"]["link_use"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("run", [run for run in RUNS if not run["backtrack"]], ids=run_id)
def test_halved_trees_have_the_reference_properties(run: dict[str, Any], seed: int) -> None:
    """The reference breaks ties by its library's random numbers, so its trees are not the only right ones."""
    weights = square(run["W"])
    trees = grow(weights, range(run["n"]), penalty=run["alpha"], seed=seed)
    for tree in trees:
        check_tree(weights, tree)
    total = sum(tree_weight(weights, tree) for tree in trees)
    assert total >= 0.95 * run["summary"]["total_weight"]
    if run["n"] == 8:
        assert balanced.halved(weights, 0, Random(seed)) is not None
    if run["alpha"] == 0.7:
        assert len(uses(trees)) == run["summary"]["links_available"]
        assert max(uses(trees).values()) <= run["summary"]["max_uses_of_one_link"] + 1
    assert grow(weights, range(run["n"]), penalty=run["alpha"], seed=seed) == trees


def test_the_penalty_spreads_the_load() -> None:
    """p3.16xlarge: 16 links instead of 12, 5 uses instead of 8, for 15 of 160 weight; nothing weighs more than 20."""
    weights = mxnet.weighted(mxnet.link_matrix(load("p3.16xlarge").select()))
    spread, heavy = (grow(weights, range(8), penalty=p, backtrack=True) for p in (0.7, 1.0))
    assert [(len(uses(t)), max(uses(t).values())) for t in (spread, heavy)] == [(16, 5), (12, 8)]
    for trees, total in ((spread, 145), (heavy, 160)):
        own = [tree_weight(weights, tree) for tree in trees]
        assert sum(own) == total
        assert 16 <= min(own) <= max(own) == 20


@pytest.mark.parametrize("gpus", [(0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5)])
def test_halving_gets_stuck_on_few_gpus_and_is_rescued(gpus: tuple[int, ...]) -> None:
    """The wiki page: "sometimes gets stuck" for 6 GPUs; then all trees are compared."""
    machine = load("p3.16xlarge").select([f"gpu{i}" for i in gpus])
    weights = mxnet.weighted(mxnet.link_matrix(machine))
    rescued = 0
    for seed in range(5):
        trees = grow(weights, range(len(gpus)), seed=seed)
        rescued += sum(balanced.halved(weights, root, Random(seed)) is None for root in range(len(gpus)))
        for tree in trees:
            check_tree(weights, tree)
    assert rescued


@given(st.integers(3, 6), st.randoms(use_true_random=False))
def test_a_search_finds_the_heaviest_spanning_balanced_tree(count: int, random: Random) -> None:
    """Against all ways to let everyone send once: no tree weighs more, nor more than those without penalties."""
    upper = np.triu([[random.choice((0, 1, 2, 3)) for _ in range(count)] for _ in range(count)], 1)
    weights = (upper + upper.T).astype(np.float32)
    best = unpenalized = 0.0
    length = 2 ** balanced.depth_of(count)

    def extend(leaves: list[int], unused: frozenset[int], total: float) -> None:
        nonlocal best, unpenalized
        if len(leaves) == length:
            if not unused:
                best = max(best, total)
                # Where nobody meets another one in two rounds, nothing is taken off.
                unpenalized = max(unpenalized, total) if len(set(leaves[::2])) == length // 2 else unpenalized
            return
        above = leaves[len(leaves) & (len(leaves) - 1)]
        extend([*leaves, above], unused, total)
        for vertex in unused:
            if weights[vertex, above]:
                extend([*leaves, vertex], unused - {vertex}, total + float(weights[vertex, above]))

    extend([0], frozenset(range(1, count)), 0.0)
    found = balanced.search(weights, 0)
    assert (found is not None) == (best > 0)
    if found is not None:
        check_tree(weights, tuple(found))
        assert tree_weight(weights, found) <= best
        if len(set(found[::2])) == length // 2:
            assert tree_weight(weights, found) == unpenalized


# --- the matrix and the schedule --------------------------------------------------------------------------------------


def test_weights_of_pcie() -> None:
    """0 where NVLink connects all GPUs, else 1/n; GPUs 1, 4 of a p3.16xlarge have no NVLink between them."""
    machine = load("p3.16xlarge")
    whole = mxnet.link_matrix(machine.select(links=machine.link_classes))
    assert np.count_nonzero(mxnet.weighted(whole)) == 32
    pair = mxnet.link_matrix(machine.select(["gpu1", "gpu4", "gpu6"], links=machine.link_classes))
    assert mxnet.weighted(pair)[0].tolist() == pytest.approx([0, 1 / 3, 1 / 3])
    assert mxnet.weighted(pair)[1, 2] == 2


def test_a_matrix_that_contradicts_peer_access_is_not_believed() -> None:
    matrix = np.array([[0, 3, 1], [3, 0, 1], [1, 1, 0]], dtype=np.float32)
    peers = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=np.bool_)
    assert (mxnet.corrected(matrix, peers) == matrix).all()
    peers[0, 2] = peers[2, 0] = True
    assert mxnet.corrected(matrix, peers).tolist() == [[0, 2, 2], [2, 0, 1], [2, 1, 0]]


def test_what_is_sliced() -> None:
    assert mxnet.ARRAY_BOUND == 10_000_000
    assert mxnet.sliced(10_000_001, 16, 8)
    assert not mxnet.sliced(10_000_000, 16, 8)
    assert not mxnet.sliced(10_000_001, 15, 8)
    p3 = load("p3.16xlarge").select()
    chunks = [mxnet.build(p3, Collective("allreduce"), elements=10**7 + more).chunks for more in (0, 1)]
    assert chunks == [1, 8]


@pytest.mark.parametrize(
    ("machine", "gpus"),
    [("p3.16xlarge", 8), ("dgx1-p100", 8), ("dgx1-v100", 6), ("dgx1-v100", 5), ("dgx-a100", 8), ("aurora", 12)],
)
@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "reduce"])
def test_schedules_are_right(machine: str, gpus: int, collective: str) -> None:
    whole = load(machine).select()
    part = whole.select(whole.members[:gpus])
    root = gpus - 1 if collective != "allreduce" else 0
    schedule = mxnet.build(part, Collective(collective, root))
    assert verify(schedule).reasons == ()
    depth = (gpus - 1).bit_length()
    trees = gpus if collective == "allreduce" else 1
    assert schedule.steps == depth * (2 if collective == "allreduce" else 1)
    assert schedule.chunks == trees
    assert schedule.sends == trees * (gpus - 1) * (2 if collective == "allreduce" else 1)


def test_many_trees_are_faster_than_one() -> None:
    p3 = load("p3.16xlarge").select()
    one, many = (rate(mxnet.build(p3, Collective("allreduce"), trees=t, backtrack=True)) for t in ("single", "multi"))
    assert one is not None
    assert many is not None
    # No tree is faster than a link allows, no allreduce than the partition bound of 24/7 lanes of 25 GB/s.
    assert 25 * 10**9 <= one < many <= Fraction(24, 7) * 25 * 10**9


def test_refusals() -> None:
    p3 = load("p3.16xlarge").select()
    with pytest.raises(InputError, match="did you mean 'multi'"):
        mxnet.build(p3, Collective("allreduce"), trees="mutli")
    with pytest.raises(InputError, match="runs on the tree of its root"):
        mxnet.build(p3, Collective("broadcast"), trees="multi")
    with pytest.raises(InputError, match="penalty 0"):
        mxnet.build(p3, Collective("allreduce"), penalty=0)
    with pytest.raises(InfeasibleError, match="no tree of 3 rounds from rank 0 that reaches 8 ranks"):
        mxnet.build(load("ring:8").select(), Collective("allreduce"))
    with pytest.raises(InfeasibleError, match=r"too long on 72 ranks \(at most 32\)"):
        algorithm("mxnet").build(load("dgx-a100", nodes=9).select(), Collective("allreduce"))
