"""MXNet's ways to add up gradients: where multi-tree overtakes, and who wins for which keys (wiki page)."""

from __future__ import annotations

from functools import cache

import pytest

import blinksim as bs
from blinksim.errors import InputError
from blinksim.papers.mxnet import OPERATION_S, WAYS, KeyValueStore

MILLION = 10**6


@cache
def store(operation_s: float = OPERATION_S) -> KeyValueStore:
    return KeyValueStore(bs.load("p3.16xlarge").select(), operation_s)


@pytest.mark.parametrize(("keys", "before_wait"), [(1, 1), (12, 1), (12, 150)])
def test_multi_tree_overtakes_between_1m_and_10m_float32(keys: int, before_wait: int) -> None:
    crossing = store().crossover(keys=keys, before_wait=before_wait)
    assert MILLION <= crossing <= 10 * MILLION
    below, above = (store().times([count] * keys, before_wait) for count in (crossing // 2, crossing * 2))
    assert below["single_tree"] < below["multi_tree"]
    assert above["multi_tree"] < above["single_tree"]


def test_the_crossover_is_found_from_copies_and_links() -> None:
    """By hand for one key: 98 copies more to issue against what the busiest links of a level carry."""
    each = OPERATION_S
    assert [store().operations(way) for way in WAYS] == [14, 112, 14, 8]
    found = store().crossover()
    # Twice the cost of a copy, twice the crossover; without it multi-tree is quicker from far smaller arrays on.
    assert store(2 * each).crossover() == pytest.approx(2 * found, rel=0.03)
    assert store(each / 50).crossover() < found / 20
    # The range that the constant's label states.
    assert store(5.1e-6).crossover() == pytest.approx(MILLION, rel=0.03)
    assert store(50e-6).crossover() == pytest.approx(9.85 * MILLION, rel=0.03)


def test_many_small_keys_want_few_copies_and_large_ones_all_links() -> None:
    small = store().times([10_000] * 40, 150)
    assert list(small)[-1] == "multi_tree"
    assert small["multi_tree"] > 5 * small["single_tree"]
    assert small["parameter_server"] <= small["single_tree"] * 1.01
    large = store().times([20 * MILLION])
    assert large["ring"] < large["multi_tree"] < large["single_tree"]
    assert large["multi_tree"] < large["parameter_server"] / 2
    # Servers of several keys on different GPUs work side by side, trees from one root do not.
    spread = store().times([10 * MILLION] * 16, 150)
    assert spread["parameter_server"] < spread["single_tree"]


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'multi_tree'"):
        store().time("multitree", [8])
    with pytest.raises(InputError, match="1 element"):
        store().time("ring", [0])
    with pytest.raises(InputError, match="do not cross"):
        store().crossover("multi_tree", "single_tree")
