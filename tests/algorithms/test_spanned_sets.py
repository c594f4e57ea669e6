"""Which relays trees span: the sets are tried until one attains the bound, and one that fails costs no answer."""

from __future__ import annotations

from fractions import Fraction

import pytest

from blinksim.algorithms.packed import _Builder
from blinksim.bounds import bound
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.limits.watch import Watch
from blinksim.machines import load

Answers = dict[tuple[int, ...], Fraction]


def tried(answers: Answers) -> tuple[list[tuple[int, ...]], tuple[Fraction, str]]:
    """The sets asked for, in order, and the answer; a set without a rate holds no trees."""
    part = load("dgx1-v100").select(["gpu0", "gpu1"], relays="idle", relays_reduce=True)
    collective = Collective("allreduce")
    builder = _Builder(part, collective, bound(part, collective), None, 0, Watch(None, None))
    assert len(builder.vertex_sets) == 2
    builder.vertex_sets = list(answers)
    asked: list[tuple[int, ...]] = []

    def packed(spanned: tuple[int, ...]) -> tuple[Fraction, str]:
        asked.append(spanned)
        if not answers[spanned]:
            raise InfeasibleError("the links do not reach every member")
        return answers[spanned] * builder.bound.rate, f"trees of {len(spanned)}"

    return asked, builder._spanning_best(packed)


HALF, WHOLE, NONE = Fraction(1, 2), Fraction(1), Fraction(0)


def test_the_first_that_attains_the_bound_ends_the_search() -> None:
    asked, (_, trees) = tried({(0, 1): WHOLE, (0, 1, 2): WHOLE})
    assert asked == [(0, 1)]
    assert trees == "trees of 2"


def test_the_best_is_taken() -> None:
    assert tried({(0, 1): HALF, (0, 1, 2): WHOLE})[1][1] == "trees of 3"
    assert tried({(0, 1): HALF, (0, 1, 2): HALF})[1][1] == "trees of 2"


def test_a_set_on_which_nothing_fits() -> None:
    assert tried({(0, 1): HALF, (0, 1, 2): NONE})[1][1] == "trees of 2"
    assert tried({(0, 1): NONE, (0, 1, 2): HALF})[1][1] == "trees of 3"
    with pytest.raises(InfeasibleError, match="do not reach"):
        tried({(0, 1): NONE, (0, 1, 2): NONE})
