"""The clock of a calibration, without a GPU: what it asks of the executor and of NCCL, and what it refuses."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import MissingError
from blinksim.gpu.execution import gpu_devices, run as runs
from blinksim.gpu.execution.run import GpuClock
from blinksim.topology.shapes import one_switch


class Device:
    """A GPU with 132 processors."""

    attributes = {"MultiProcessorCount": 132}  # noqa: RUF012 - as CuPy has it

    def __init__(self, gpu: int) -> None:
        self.gpu = gpu

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


class FakeNccl:
    """Notes what is launched."""

    version = "2.28.9"

    def __init__(self, gpus: range) -> None:
        self.gpus, self.streams, self.closed = list(gpus), [None] * len(gpus), False
        self.launched: list[tuple[int, str, list[int]]] = []

    def launch(self, sent: list[Any], got: list[Any], count: int, kind: Any, op: str, collective: str) -> None:
        assert op == "sum"
        assert kind.name == "float32"
        self.launched.append((count, collective, [len(x) for x in (*sent, *got)]))

    def finish(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class FakeWatch:
    """Two iterations of a millisecond."""

    def __init__(self, gpus: list[int], streams: list[object]) -> None:
        assert len(gpus) == len(streams)

    def time(self, launch: Callable[[], None], finish: Callable[[], None]) -> list[float]:
        launch()
        finish()
        return [1e-3, 1e-3]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(getDeviceCount=lambda: 4, getDeviceProperties=lambda gpu: {"name": b"NVIDIA T1000"})
    cuda = SimpleNamespace(runtime=runtime, Device=Device)
    fake = SimpleNamespace(cuda=cuda, full=np.full, zeros=np.zeros, float32=np.float32)
    for module in (runs, gpu_devices):
        monkeypatch.setattr(module, "require_cupy", lambda: fake)
    monkeypatch.setattr(runs, "Nccl", FakeNccl)
    monkeypatch.setattr(runs, "Stopwatch", FakeWatch)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    answer = SimpleNamespace(stdout="==NVSMI LOG==\n\nDriver Version    : 580.159.04\nCUDA Version : 13.0\n")
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: answer)


@pytest.mark.usefixtures("machine")
def test_it_knows_the_machine() -> None:
    clock = GpuClock()
    assert (clock.gpus, clock.blocks, clock.hardware) == (4, 132, "NVIDIA T1000")
    assert (clock.driver, clock.nccl_version) == ("580.159.04", "2.28.9")
    assert os.environ["NCCL_NVLS_ENABLE"] == "0"
    for gpus in (1, 5):
        with pytest.raises(MissingError, match=f"{gpus} GPUs are wanted, and 4 are here"):
            GpuClock(gpus)


@pytest.mark.usefixtures("machine")
def test_it_times_nccl_on_the_first_gpus() -> None:
    clock = GpuClock(3)
    assert clock.time_nccl(3, "allgather", 3 << 20) == [1e-3, 1e-3]
    assert clock.time_nccl(3, "reduce", 1 << 10) == [1e-3, 1e-3]
    nccl: Any = clock.nccl[3]
    assert nccl.launched == [(3 << 18, "allgather", [3 << 18] * 6), (1 << 8, "reduce", [1 << 8] * 6)]
    clock.close()
    assert all(one.closed for one in vars(clock)["nccl"].values())


@pytest.mark.usefixtures("machine")
def test_it_runs_schedules_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, dict[str, object]]] = []

    def execute(schedule: object, size: int, **options: object) -> SimpleNamespace:
        seen.append((size, options))
        return SimpleNamespace(times_s=(2e-6, 3e-6))

    monkeypatch.setattr(runs, "execute", execute)
    schedule = REGISTRY["ring"].build(one_switch(2).select(), Collective("allreduce"))
    clock = GpuClock(2)
    assert clock.time(schedule, 1024, "ll128", None) == (2e-6, 3e-6)
    clock.time(schedule, 2048, "simple", 16)
    options = {"executor": "cupy", "check": False}
    assert seen == [
        (1024, {**options, "protocol": "ll128", "slices": None}),
        (2048, {**options, "protocol": "simple", "slices": 16}),
    ]
