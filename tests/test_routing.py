"""Routings: what they refuse, replicas, files, and what is drawn, against counts by hand and the draws of others."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import blinksim as bs
from blinksim.bounds.experts import token_bytes
from blinksim.cli.main import run
from blinksim.errors import FileError, InputError


@pytest.mark.parametrize(
    ("experts", "placement", "why"),
    [
        ([[0, 1]], 2, "ranks x tokens x k experts, not"),
        ([[[0.5]], [[1]]], 2, "ranks x tokens x k experts, not"),
        ([[["a"]], [["b"]]], 2, "ranks x tokens x k experts, not"),
        (np.zeros((2, 0, 1), int), 2, "ranks x tokens x k experts, not"),
        ([[[0]]], 1, "2 to 8,192 ranks"),
        ([[[0]], [[2]]], 2, "expert 2 is wanted"),
        ([[[0]], [[-2]]], 2, "is wanted"),
        ([[[1]], [[0]]], 3, "not equally many"),
        ([[[1]], [[0]]], 0, "not equally many"),
        ([[[1]], [[0]]], [[0], []], "a placement has"),
        ([[[1]], [[0]]], [[0], [2]], r"expert 1 is on \[2\]; ranks are 0 to 1"),
        ([[[1]], [[0]]], [[0], [-1]], "expert 1 is on"),
        ([[[0]], [[1]]], 2, "no token goes to another rank"),
        ([[[-1]], [[-1]]], 2, "no token goes to another rank"),
    ],
)
def test_what_is_no_routing(experts: Any, placement: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        bs.Routing(experts, placement)


@st.composite
def routings(draw: st.DrawFn) -> tuple[Any, list[list[int]], int]:
    ranks, tokens, k, count = (draw(st.integers(low, high)) for low, high in ((2, 6), (1, 4), (1, 3), (2, 5)))
    number = st.integers(-1, count - 1)
    ids = [[[draw(number) for _ in range(k)] for _ in range(tokens)] for _ in range(ranks)]
    held = [draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=3, unique=True)) for _ in range(count)]
    return ids, held, draw(st.integers(1, 3))


@given(routings())
@settings(max_examples=60, deadline=None)
def test_every_token_goes_once_to_the_nearest_replicas(case: tuple[Any, list[list[int]], int]) -> None:
    ids, held, per_node = case
    ranks, counts = len(ids), Counter[tuple[int, int]]()
    for source, rows in enumerate(ids):
        for row in rows:
            wanted = set()
            for expert in filter(lambda one: one >= 0, row):
                near = [rank for rank in sorted(held[expert]) if rank // per_node == source // per_node]
                others = near or sorted(held[expert])
                wanted.add(source if source in near else others[(source - 0) % len(held[expert]) % len(others)])
            counts.update((source, rank) for rank in wanted)
    try:
        found = bs.Routing(ids, held, ranks_per_node=per_node, token_size=10)
    except InputError:
        assert not any(source != rank for source, rank in counts)
        return
    mine = {(i, j): int(n) for (i, j), n in np.ndenumerate(found.tokens) if n}
    # Which of several replicas takes its turn is free where none is on the rank itself.
    assert {pair[0]: sum(n for p, n in mine.items() if p[0] == pair[0]) for pair in mine}.keys() == {
        pair[0] for pair in counts
    }
    for source, rows in enumerate(ids):
        for rank in range(ranks):
            able = [
                any(e >= 0 and rank in held[e] and (source not in held[e] or rank == source) for e in row)
                for row in rows
            ]
            assert mine.get((source, rank), 0) <= sum(able)
    sole = [expert for expert, ranks_of in enumerate(held) if len(ranks_of) == 1]
    for source, rows in enumerate(ids):
        for expert in sole:
            sure = sum(expert in row for row in rows)
            assert mine.get((source, held[expert][0]), 0) >= sure
    assert found == bs.Routing(np.array(ids), tuple(map(tuple, held)), ranks_per_node=per_node, token_size="10")
    assert found.size == 10 * max(
        *found.tokens.sum(axis=0).tolist(), *(sum(max(row) >= 0 for row in rows) for rows in ids)
    )


def test_a_replica_of_the_own_node_serves() -> None:
    """Expert 0 is on ranks 0 and 4, in two nodes of four: no token leaves its node for it."""
    ids = np.zeros((8, 5, 1), dtype=int)
    found = bs.Routing(ids, [[0, 4]], ranks_per_node=4, token_size=1)
    assert found.tokens[:4, 0].tolist() == [5] * 4
    assert found.tokens[4:, 4].tolist() == [5] * 4
    assert found.tokens.sum() == 40
    # Elsewhere the replicas take turns: ranks 2 and 6 go to the first, the odd ones to the second.
    far = bs.Routing(ids, [[0, 4]], ranks_per_node=1, token_size=1)
    assert far.tokens[[1, 2, 3, 5, 6, 7]].sum(axis=0).tolist() == [10, 0, 0, 0, 20, 0, 0, 0]


@pytest.mark.parametrize("name", ["r.npy", "r.csv"])
def test_files_keep_the_experts(tmp_path: Path, name: str) -> None:
    routing = bs.draw_routing(8, tokens=30, experts=16, top_k=3, hot=0.5)
    bs.write_routing(routing, tmp_path / name)
    held = tmp_path / "held.csv"
    held.write_text("# expert by expert\n" + "\n".join(str(expert // 2) for expert in range(16)))
    assert bs.read_routing(tmp_path / name, ranks=8) == routing
    assert bs.read_routing(tmp_path / name, held, ranks=8) == routing
    if name == "r.npy":
        flat = tmp_path / "flat.npy"
        np.save(flat, routing.experts.reshape(-1, 3).astype(np.int64))
        assert bs.read_routing(flat, 16, ranks=8) == routing


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0,1\n2,x\n", "t.csv:2: entry 2, 'x', is no whole number"),
        ("0,1\n2\n", "t.csv: all tokens have as many experts each"),
        ("0;1\n", "t.csv:1: has semicolons between its entries"),
        ("", "t.csv: all tokens have as many experts each, -1 for none, and there is at least one"),
        ("0,1\n1,0\n1,1\n", "t.csv: 3 tokens are not as many for each of 2 ranks"),
        ("0,1\n9999999999,0\n", "t.csv: 10000000000 experts are not"),
        ("0,1\n40000,0\n", "t.csv: 40002 experts are not"),
        ("0\n1\n", "t.csv: no token goes to another rank"),
    ],
)
def test_one_message_for_a_wrong_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(text)
    with pytest.raises(FileError, match=why):
        bs.read_routing("t.csv", ranks=2)
    assert run(["bound", "ring:2@25GB/s", "dispatch", "--routing", "t.csv"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def nodes_by_scores(random: np.random.Generator, tokens: int, weight: Any, nodes: int, limit: int, k: int) -> Any:
    """As DeepEP's tests route: a score for every expert, the nodes with the highest, the k highest in them."""
    scores = np.log(weight) + random.gumbel(size=(tokens, len(weight)))
    by_node = scores.reshape(tokens, nodes, -1)
    chosen = np.argsort(-by_node.max(axis=2), axis=1)[:, :limit]
    masked = np.full_like(by_node, -np.inf)
    np.put_along_axis(masked, chosen[:, :, None], np.take_along_axis(by_node, chosen[:, :, None], axis=1), axis=1)
    return np.argsort(-masked.reshape(tokens, -1), axis=1)[:, :k]


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_a_limit_of_nodes_is_drawn_as_scores_draw_it(skew: float) -> None:
    """Two ranks a node, four nodes, three experts each: how often each set of experts is chosen."""
    found = bs.draw_routing(
        8, tokens=4000, experts=24, top_k=3, skew=skew, node_limit=2, ranks_per_node=2, seed=1
    ).experts.reshape(-1, 3)
    assert all(len(set(row)) == 3 and len({e // 6 for e in row}) <= 2 for row in found.tolist())
    counts = np.bincount(found.ravel(), minlength=24)
    # The popularity of each expert is drawn with the seed: by rank, as the Zipf weights in the order of the counts.
    weight = np.arange(1, 25, dtype=float) ** -skew
    order = np.random.default_rng(1).permutation(weight / weight.sum())
    by_scores = nodes_by_scores(np.random.default_rng(5), len(found), order, 4, 2, 3)
    expected = np.bincount(by_scores.ravel(), minlength=24)
    assert np.abs(counts - expected).max() < 6 * np.sqrt(expected.max())
    ours, theirs = (Counter(len({e // 6 for e in row}) for row in rows.tolist()) for rows in (found, by_scores))
    assert abs(ours[1] - theirs[1]) < 6 * np.sqrt(theirs[1] + 1)


def test_even_draws_reach_ranks_as_they_must() -> None:
    """16 experts on each of 16 ranks: a rank is missed with the chance that all 8 experts are elsewhere."""
    found = bs.draw_routing(16, tokens=4096, experts=256, top_k=8, seed=2)
    missed = np.prod([(240 - i) / (256 - i) for i in range(8)])
    assert found.tokens.mean() == pytest.approx(4096 * (1 - missed), rel=2e-3)


def test_a_hot_expert_gets_its_part() -> None:
    found = bs.draw_routing(8, tokens=5000, experts=64, top_k=4, hot=0.5, seed=3)
    most = np.bincount(found.experts.ravel(), minlength=64).max() / 40000
    assert most == pytest.approx(0.5 + 0.5 * 4 / 64, abs=0.02)
    assert all(len(set(row)) == 4 for row in found.experts[0].tolist())


def test_seeds_repeat_and_what_cannot_be_drawn() -> None:
    assert bs.draw_routing(8, tokens=9, seed=4) == bs.draw_routing(8, tokens=9, seed=4)
    assert bs.draw_routing(8, tokens=9, seed=4) != bs.draw_routing(8, tokens=9, seed=5)
    for settings_, why in (
        ({"top_k": 300}, "300 of 256 experts"),
        ({"tokens": 0}, "tokens=0"),
        ({"hot": 2}, "hot=2"),
        ({"skew": 11}, "skew=11"),
        ({"node_limit": 2}, "node_limit=2"),
        ({"node_limit": 1, "ranks_per_node": 4, "experts": 8, "top_k": 5}, "node_limit=1: 5 of 8 experts on 2 nodes"),
        ({"experts": 4}, "not equally many|4 experts"),
    ):
        with pytest.raises(InputError, match=why):
            bs.draw_routing(8, **settings_)


def test_bytes_of_a_token() -> None:
    """As DeepEP counts them: (1 + 4/128)/2 of 16 bits, and 16 bits."""
    for hidden in (128, 2560, 7168):
        assert token_bytes(hidden, "fp8") == 2 * hidden * (1 + 4 / 128) / 2
        assert token_bytes(hidden, "bf16") == token_bytes(hidden, "fp16") == 2 * hidden
    assert token_bytes(130, "fp8") == 130 + 2 * 4


def test_dispatch_and_combine_are_each_other_s_dual() -> None:
    routing = bs.draw_routing(4, tokens=9, experts=8, top_k=2)
    there = bs.Collective("dispatch", routing=routing)
    assert there.dual == bs.Collective("combine", routing=routing)
    assert there.dual.dual == there
    assert [one.reduces for one in (there, there.dual)] == [False, True]
    assert [one.collects for one in (there, there.dual)] == [False, True]
    anything: Any = [[0]]
    for name, given_ in (("dispatch", {}), ("allreduce", {"routing": routing}), ("combine", {"traffic": anything})):
        with pytest.raises(InputError):
            bs.Collective(name, **given_)
    for side in combinations(range(4), 2):
        far = sorted(set(range(4)) - set(side))
        assert there.between(side, far, 4) == there.dual.between(far, side, 4)


LINES = (
    ("bound ring:4@1GB/s dispatch --experts 8 --size 1MiB", "bound it without a size"),
    ("bound ring:4@1GB/s dispatch --experts 6 --topk 2", "not equally many on 4 ranks; take 8, or say where each is"),
    ("bound ring:4@1GB/s allreduce --experts 6", "allreduce takes no --experts 6"),
    ("project ring:4@1GB/s dispatch 1MiB", "dispatch takes no size 1MiB, which --tokens gives"),
    (
        "project ring:4@1GB/s dispatch 1MiB --experts 8",
        "busiest link's; blinksim project ring:4@1GB/s dispatch --experts 8",
    ),
    (
        "project ring:4@1GB/s combine --experts 8 --algorithm ring",
        "there is no ring combine; algorithms that have it: direct",
    ),
    (
        "synth ring:4@1GB/s combine --experts 8 --algorithm ring",
        "there is no ring combine; algorithms that have it: direct",
    ),
    ("synth ring:4@1GB/s allreduce --experts 8", "allreduce takes no --experts 8"),
    ("project ring:4@1GB/s dispatch --placement t.csv", "name a file, or say how many"),
    ("project ring:4@1GB/s dispatch --routing r.npy --skew 1", "skew is of experts that are drawn"),
    ("compare ring:4@1GB/s dispatch", "dispatch needs a routing, which is the experts of every token"),
    ("advise ring:4@1GB/s combine", "combine needs a routing"),
    ("traffic --routing r.npy --skew 1", "skew is of experts that are drawn"),
    ("traffic --ranks 8 --node-limit 9", "node_limit=9"),
    ("bound ring:3@1GB/s dispatch --routing r.npy", "of 4 ranks, and there are 3"),
)


@pytest.mark.parametrize(("line", "why"), LINES)
def test_what_the_command_line_refuses(
    line: str, why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bs.write_routing(bs.draw_routing(4, tokens=9, experts=8, top_k=2), "r.npy")
    assert run(shlex.split(line)) == (3 if "there is no" in why else 2)
    err = capsys.readouterr().err
    assert why in err
    assert len(err.splitlines()) == 1


def test_a_sweep_of_tokens_says_where_its_times_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "p5", "dispatch"]) == 0
    assert re.search(r"^  from, .*: an estimate: ", capsys.readouterr().out, re.MULTILINE)


def test_the_least_time_of_tokens_is_that_of_their_bytes() -> None:
    wanted = bs.Collective("dispatch", routing=bs.draw_routing(4, tokens=9, experts=8, top_k=2))
    with pytest.raises(bs.BlinksimError, match="without a size"):
        bs.time_bound("switch:4", wanted, "1MiB")
    for algorithm in ("direct", "packed"):
        found = bs.project("switch:4", wanted, algorithm=algorithm)
        assert found.least is not None
        assert found.least.time_s == bs.bound("switch:4", wanted).time(found.size) <= found.time_s
