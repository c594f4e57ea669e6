"""Calls that people write without looking anything up work, and wrong ones are refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import blinksim as bs

MACHINE = Path("topologies/dgx1-v100.yaml")
NATURAL: dict[str, Callable[[], object]] = {
    "compare": lambda: bs.compare("dgx1-v100", "allreduce", ["1MiB"]),
    "simulate": lambda: bs.simulate(ring(), "256KiB"),
    "execute": lambda: bs.execute(ring(), "1MB"),
    "advise": lambda: bs.advise(bs.load("dgx1-v100", rates="nccl"), size="256MiB"),
    "place": lambda: bs.place("dgx1-v100", 4, "allgather"),
    "contest": lambda: bs.contest("dgx1-v100", "allreduce"),
    "project": lambda: bs.project("dgx1-v100", "allreduce", "256MiB"),
    "bound": lambda: bs.bound("dgx1-v100", "allreduce"),
    "select": lambda: bs.load("dgx1-v100").select([0, 1, 2]),
    "select text": lambda: bs.load("dgx1-v100").select("0-3"),
    "select idle": lambda: bs.load("dgx1-v100").select([0, 5], "idle"),
    "float size": lambda: bs.project("dgx1-v100", "allreduce", 1e9),
    "edit": lambda: bs.load("dgx1-v100", edits="without gpu0"),
    "path": lambda: bs.verify(Path("schedules/dgx1-v100-8-allreduce.json")),
    "losses": lambda: bs.losses("dgx1-v100", "broadcast", root=1),
    "synthesize": lambda: bs.synthesize("dgx1-v100", "all_gather", "ring"),
    "sweep": lambda: bs.sweep("dgx1-v100", "allreduce", ["1MiB", 2**21]),
    "sweep of a file": lambda: bs.sweep(MACHINE, "allreduce", ["1MiB"], algorithms=["ring"]),
    "check": lambda: bs.check(MACHINE),
    "rank": lambda: bs.rank(MACHINE, "all-reduce", "1MiB", algorithms="ring,chain"),
    "place over": lambda: bs.place(MACHINE, 2, links="nvlink,pcie"),
    "plot": lambda: bs.plot.topology(MACHINE),
    "models": lambda: bs.across_models(MACHINE, "allreduce", ["1MiB"], ["alpha-beta"], ["ring"]),
    "question": lambda: bs.Question(MACHINE, members="0-3").part(),
}


def ring() -> bs.Schedule:
    return bs.synthesize("dgx1-v100", "allgather", "ring").schedule


@pytest.mark.parametrize("name", NATURAL)
def test_natural_calls_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[1])
    assert NATURAL[name]() is not None


WRONG: dict[str, Callable[[], object]] = {
    "no machine": lambda: bs.project("dgx1-v1000", "allreduce", 1),
    "a number": lambda: bs.bound(7, "allreduce"),  # type: ignore[arg-type]
    "no collective": lambda: bs.bound("dgx1-v100", "allreduse"),
    "no size": lambda: bs.project("dgx1-v100", "allreduce", "1 MiBi"),
    "half a byte": lambda: bs.project("dgx1-v100", "allreduce", 1.5),
    "no schedule": lambda: bs.verify(7),  # type: ignore[arg-type]
    "simulate": lambda: bs.simulate(ring(), "much"),
    "execute": lambda: bs.execute(ring(), -1),
    "place": lambda: bs.place("dgx1-v100", 4, "gpu"),
    "compare": lambda: bs.compare("dgx1-v100", "allreduce", ["x"]),
    "advise": lambda: bs.advise("dgx1-v1000"),
    "algorithm": lambda: bs.synthesize("dgx1-v100", "allreduce", "rinf"),
    "check": lambda: bs.check(7),  # type: ignore[arg-type]
    "rank": lambda: bs.rank(7, "allreduce", 1),  # type: ignore[arg-type]
    "sweep": lambda: bs.sweep(7, "allreduce"),  # type: ignore[arg-type]
    "question": lambda: bs.Question(7).part(),  # type: ignore[arg-type]
    "load": lambda: bs.load(7),  # type: ignore[arg-type]
    "plot": lambda: bs.plot.topology("dgx1-v1000"),
    "place over": lambda: bs.place("dgx1-v100", 2, links="nvlimk"),
    "root": lambda: bs.bound("dgx1-v100", "allreduce", root=1),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused_in_a_line(name: str) -> None:
    with pytest.raises(bs.InputError) as refused:
        WRONG[name]()
    assert "\n" not in str(refused.value)
    assert "--" not in str(refused.value)
