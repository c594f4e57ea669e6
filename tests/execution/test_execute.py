"""The public door: arguments, rounding, results as JSON and as nccl-tests' table."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from inspect import signature
from typing import NoReturn

import pytest

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import InputError, MissingError
from blinksim.gpu.execution import numpy_executor
from blinksim.gpu.execution.run import EXECUTORS, Execution, execute
from blinksim.gpu.execution.task import RunOptions
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES, REDUCTIONS
from blinksim.schedule.model import Schedule
from blinksim.topology.shapes import fully_connected


def build(name: str = "ring", collective: str = "allreduce", ranks: int = 4) -> Schedule:
    return REGISTRY[name].build(fully_connected(ranks).select(), Collective(collective))


def test_odd_size_is_rounded_down_and_says_so() -> None:
    run = execute(build(), 1_000_003, op="prod", dtype="int32")
    assert run.ok
    assert run.wrong == 0
    assert run.count == 250_000
    assert run.rounding == "1000003 bytes hold 250000 elements of int32 and 3 bytes more; ran 1000000 bytes"
    assert run.to_dict()["rounding"] == run.rounding
    assert execute(build(), 1000).rounding == ""


@pytest.mark.parametrize(("size", "needed"), [("4TiB", "44 TiB"), ("1MiB", "11 MiB")])
def test_buffers_beyond_the_memory_are_refused_with_what_they_take(
    monkeypatch: pytest.MonkeyPatch, size: str, needed: str
) -> None:
    def full(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(numpy_executor, "poison", full)
    with pytest.raises(InputError, match=f"^the buffers of 4 ranks take {needed}, more memory than there is: take a"):
        execute(build("two_shot"), size)


@pytest.mark.parametrize("dtype", sorted(ELEMENT_TYPES))
@pytest.mark.parametrize("op", sorted(REDUCTIONS))
def test_every_type_and_reduction(dtype: str, op: str) -> None:
    run = execute(
        build("two_shot"), 1003 * ELEMENT_TYPES[dtype].itemsize, op=op, dtype=dtype, in_place=op == "sum", seed=3
    )
    assert run.wrong == 0
    exact = not ELEMENT_TYPES[dtype].floating or op in ("min", "max")
    assert (run.tolerance == "exact") == exact
    if exact:
        assert run.max_error == 0


def test_a_million_elements_and_three() -> None:
    assert execute(build(), 4 * 1_000_003, slices=3, piece_bytes=40_000).wrong == 0


def test_an_edited_parent_is_noticed() -> None:
    schedule = build("binary", "broadcast", 7)
    src = schedule.src.copy()
    last = int(schedule.sends) - 1
    # A leaf that another leaf of the same step is said to feed.
    src[last] = schedule.dst[last - 1]
    run = execute(replace(schedule, src=src), 4096)
    assert not run.ok
    assert run.wrong == 1024
    assert run.to_dict()["max_error"] is None  # what nobody wrote is not a number, and JSON has none for that
    assert execute(replace(schedule, src=src), 4096, check=False).wrong is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 3}, "3 bytes hold no element of float32, which has 4"),
        ({"executor": "numpi"}, "unknown executor 'numpi': did you mean 'numpy'"),
        ({"dtype": "flaot32"}, "unknown element type 'flaot32': did you mean 'float32'"),
        ({"op": "summ"}, "unknown reduction 'summ': did you mean 'sum'"),
        ({"iterations": 0}, "at least one iteration"),
        ({"slices": 0}, "slices must be at least 1"),
        ({"piece_bytes": 0}, "piece_bytes must be at least 1"),
        ({"slices": 9}, "only 8 run at once"),
        ({"warmup": -1}, "no fewer than 0 to warm up"),
        ({"timeout_s": 0.0}, "timeout_s is more than 0, not 0.0"),
        ({"seed": -1}, "a seed is a whole number from 0 on, not -1"),
        ({"protocol": "ll12"}, "unknown protocol 'll12': did you mean 'll128'"),
        ({"slize": 2}, "unknown option 'slize': did you mean 'slices'"),
        ({"size_bytes": 4096}, "unknown option 'size_bytes'"),
        ({"size": "4 kilobytes"}, "'4 kilobytes' has the unit 'kilobytes'"),
        ({"size": 4096.5}, "4096.5 is not a whole, positive number of bytes"),
        ({"size": 0}, "0 is not a whole, positive number of bytes"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        execute(build(), **{"size": 4096, **arguments})  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize("size", [4096, "4096", "4KiB", 4096.0])
def test_a_size_is_a_number_or_text(size: int | float | str) -> None:
    run = execute(build(), size)
    assert (run.size_bytes, run.wrong) == (4096, 0)
    assert isinstance(run.size_bytes, int)


def test_every_option_is_a_keyword() -> None:
    gathered = RunOptions.gather(slices=3, protocol="simple", iterations=7, seed=2)
    assert gathered == replace(RunOptions(), slices=3, protocol="simple", iterations=7, seed=2)


def test_every_executor_runs_a_task() -> None:
    for module in EXECUTORS.values():
        assert list(signature(import_module(module).run).parameters) == ["task", "check"]


def test_without_cupy_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingError, match=r"needs CuPy: pip install 'blinksim\[gpu-cuda13\]'") as caught:
        execute(build(), 4096, executor="cupy")
    assert caught.value.exit_code == 4


def timed(run: Execution, *times: float) -> Execution:
    return replace(run, executor="cupy", times_s=times)


def test_times_become_bandwidths() -> None:
    run = timed(execute(build(), 4_000_000), 2e-3, 1e-3, 3e-3)
    assert run.time_s == 2e-3
    assert run.algbw == pytest.approx(2e9)
    assert run.busbw == pytest.approx(3e9)  # 2 (n - 1) / n
    values = run.to_dict()
    assert values["busbw_GBps"] == pytest.approx(3.0)
    assert (values["min_s"], values["max_s"]) == (1e-3, 3e-3)
    assert values["cv_percent"] == pytest.approx(40.82, abs=0.01)
    assert json.loads(json.dumps(values)) == values
    assert "busbw 3.0 GB/s" in repr(run)
    assert run.to_frame()["busbw_GBps"].tolist() == [pytest.approx(3.0)]


def test_numpy_claims_no_time() -> None:
    values = execute(build(), 4096).to_dict()
    assert values["time_s"] is None
    assert values["busbw_GBps"] is None
    assert values["ok"] is True
