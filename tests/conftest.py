"""Every property test runs on the same examples each time, and is never failed by a slow machine."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from blinksim.algorithms.registry import REGISTRY
from blinksim.timing import projection
from blinksim.timing.model_registry import MODELS

# A shell starts jobs in the background with SIGINT ignored, which the tests of Ctrl-C would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `make test` takes the quick profile, `make test-all` the other.
for profile, examples in (("quick", 12), ("thorough", 50)):
    settings.register_profile(
        profile,
        derandomize=True,
        deadline=None,
        max_examples=examples,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("quick")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Beside what is marked, cases that slow.txt lists run in `make test-all`, and those of alike.txt in `test-every`.

    These are the slower half of the cases of a sort, if they take two seconds, and two of every three of half a second.
    """
    slow, alike = (
        frozenset((Path(__file__).parent / name).read_text(encoding="utf-8").splitlines())
        for name in ("slow.txt", "alike.txt")
    )
    for item in items:
        if item.nodeid in slow or item.nodeid in alike:
            item.add_marker(pytest.mark.slow)
        if item.nodeid in alike:
            item.add_marker(pytest.mark.alike)


def pytest_collection_finish() -> None:
    """Thousands of tests and what they import stay to the end: the collector of garbage need not look at them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture(autouse=True)
def _registries_stay_as_they_are() -> Iterator[None]:
    """What a test, or an example in a docstring, registers is forgotten after it."""
    tables: tuple[dict, ...] = (REGISTRY, MODELS, projection.presets().maps[0])  # type: ignore[type-arg,assignment]
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
