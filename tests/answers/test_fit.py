"""The robust fit: known constants come back, wild points have no say, intervals cover as often as they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from blinksim.answers.logs.fit import Fit, Floats, Timed, fit, fit_sums, student_quantile

SIZES = np.array([2.0**k for k in range(10, 31)] * 2)
TRUE = {"alpha": 20e-6, "beta": 5e-12}


def line(values: Mapping[str, float], names: Sequence[str]) -> tuple[Floats, Floats]:
    """T = alpha + size x beta."""
    parts = {"alpha": np.full(len(SIZES), values["alpha"]), "beta": SIZES * values["beta"]}
    total = parts["alpha"] + parts["beta"]
    return total, np.stack([parts[name] for name in names], axis=1) / total[:, None]


def fitted(seen: Floats, start: Mapping[str, float] = TRUE) -> Fit[str]:
    found = fit(line, seen, start)
    assert found is not None
    return found


@pytest.mark.parametrize("start", [(1e-6, 1e-12), (1e-3, 1e-10), (20e-6, 5e-12)])
def test_exact_times_give_the_constants_exactly(start: tuple[float, float]) -> None:
    found = fitted(line(TRUE, list(TRUE))[0], dict(zip(TRUE, start, strict=True)))
    assert found.values == pytest.approx(TRUE, rel=1e-9)
    assert found.weight.min() > 0.99


def test_wild_times_have_no_say() -> None:
    exact, shares = line(TRUE, list(TRUE))
    seen = exact * np.exp(np.random.default_rng(3).normal(0, 0.05, len(SIZES)))
    clean = fitted(seen)
    for place, factor in ((0, 30.0), (20, 7.0), (41, 0.2)):
        seen[place] *= factor
    found = fitted(seen, {"alpha": 1e-6, "beta": 1e-12})
    assert [int(i) for i in np.flatnonzero(found.weight < 0.05)] == [0, 20, 41]
    # Nothing but what the three points would have added is lost.
    assert found.values == pytest.approx(clean.values, rel=0.02)
    # Least squares on the same logarithms is far off.
    plain = np.linalg.lstsq(shares, np.log(seen / exact), rcond=None)[0]
    assert np.abs(plain).max() > 0.1


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    hits, rounds = np.zeros(2), 150
    for _ in range(rounds):
        found = fitted(line(TRUE, list(TRUE))[0] * np.exp(rng.normal(0, 0.05, len(SIZES))))
        hits += [low <= TRUE[name] <= high for name, (low, high) in found.intervals.items()]
    # Four standard deviations of a count of 150 with 95 %: 7 %.
    assert (np.abs(hits / rounds - 0.95) < 0.072).all()


@pytest.mark.parametrize(("free", "value"), [(3, 3.1824), (5, 2.5706), (10, 2.2281), (30, 2.0423), (1000, 1.9623)])
def test_student_quantiles_are_those_of_the_tables(free: int, value: float) -> None:
    assert student_quantile(0.975, free) == pytest.approx(value, rel=5e-5)


def test_intervals_hold_with_hardly_more_times_than_constants() -> None:
    """With one time more than constants, a fit through all but one of them must not pass for a certain one."""
    truth = {"start": 8e-6, "hop": 2e-6, "byte": 1 / 200e9}
    random, held, many = np.random.default_rng(7), 0, 150
    counts = [{"start": 1.0, "hop": hops, "byte": size} for hops, size in ((1, 1e4), (14, 1e5), (1, 1e7), (7, 4e6))]
    for _ in range(many):
        exact = [sum(truth[name] * count for name, count in one.items()) for one in counts]
        noise = np.exp(random.normal(0, 0.02, len(counts)))
        times = [Timed(time * off, one) for time, off, one in zip(exact, noise, counts, strict=True)]
        found = fit_sums(times, {"start": 6e-6, "hop": 3e-6, "byte": 1 / 150e9})
        assert found is not None
        held += sum(low <= truth[name] <= high for name, (low, high) in found.intervals.items())
    assert held >= 0.9 * 3 * many
