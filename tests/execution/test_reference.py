"""The reference against what is written out by hand, and its tolerance against wrong results."""

from __future__ import annotations

import math

import numpy as np
import pytest

from blinksim.collective import Collective
from blinksim.gpu.execution.reference import PERIOD, Reference, input_spans, output_spans
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES, element_type, fold, narrow, widen


def test_spans_of_seven_elements_on_three_ranks() -> None:
    # Slices of 2, 2 and 3 elements.
    expected = {
        "allreduce": ((0, 7), [(-1, 0, 7)]),
        "reduce": ((0, 7), []),
        "reducescatter": ((0, 7), [(-1, 2, 4)]),
        "broadcast": ((0, 0), [(2, 0, 7)]),
        "scatter": ((0, 0), [(2, 2, 4)]),
        "allgather": ((2, 4), [(0, 0, 2), (1, 2, 4), (2, 4, 7)]),
        "gather": ((2, 4), []),
        "alltoall": ((0, 7), [(0, 2, 4), (1, 2, 4), (2, 2, 4)]),
    }
    for name, (begins, ends) in expected.items():
        collective = Collective(name, 2)
        assert input_spans(collective, 3, 1, 7) == [begins]
        assert output_spans(collective, 3, 1, 7) == ends
    assert output_spans(Collective("gather", 2), 3, 2, 7) == expected["allgather"][1]


def test_period_is_prime_and_the_tables_repeat() -> None:
    assert all(PERIOD % divisor for divisor in range(2, math.isqrt(PERIOD) + 1))
    reference = Reference(Collective("allreduce"), 2, PERIOD + 10, ELEMENT_TYPES["int8"])
    data = reference.inputs(1)
    assert data[:10].tolist() == data[PERIOD:].tolist()
    assert reference.inputs(0).tolist() != data.tolist()


@pytest.mark.parametrize("name", sorted(ELEMENT_TYPES))
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_a_plain_fold_is_within_tolerance_and_small_errors_are_not(name: str, op: str) -> None:
    kind = ELEMENT_TYPES[name]
    reference = Reference(Collective("allreduce"), 5, 1001, kind, op)
    total = fold([reference.inputs(rank) for rank in range(5)], op, kind)
    assert reference.compare(0, total)[0] == 0
    missing = fold([reference.inputs(rank) for rank in range(4)], op, kind)
    assert reference.compare(0, missing)[0] > 100
    swapped = total.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    assert reference.compare(0, swapped)[0] == 2
    assert reference.compare(0, total[:-1])[0] >= 1


def test_not_a_number_is_wrong() -> None:
    reference = Reference(Collective("allreduce"), 2, 4, ELEMENT_TYPES["float32"])
    wrong, error = reference.compare(0, np.full(4, np.nan, np.float32))
    assert wrong == 4
    assert error == math.inf


def test_bfloat16_rounds_to_nearest_even() -> None:
    kind = element_type("bf16")
    # 1 + 2^-8 lies halfway between 1 and 1 + 2^-7 and goes to the even one; a little more goes up.
    values = np.array([1.0, 1 + 2**-8, 1 + 2**-8 + 2**-20, 1 + 3 * 2**-8, -np.inf, 3.4e38], dtype=np.float32)
    expected = [1.0, 1.0, 1 + 2**-7, 1 + 2**-6, -np.inf, np.inf]
    assert widen(narrow(values, kind), kind).tolist() == expected
    assert np.isnan(widen(narrow(np.array([np.nan], np.float32), kind), kind)).all()
    every = np.arange(0x7F80, dtype=np.uint16)
    assert (narrow(widen(every, kind), kind) == every).all()


def test_integers_wrap_around() -> None:
    kind = ELEMENT_TYPES["int8"]
    sources = [np.array([100, -128], np.int8), np.array([100, -128], np.int8)]
    assert fold(sources, "sum", kind).tolist() == [-56, 0]
    assert fold(sources, "prod", kind).tolist() == [16, 0]
