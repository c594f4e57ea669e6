"""Ways between GPUs: what moves, on a stand-in that runs the real kernel on the CPU, and the line through the times."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fake_cupy
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from blinksim.cli.main import run
from blinksim.errors import InputError, MissingError
from blinksim.gpu.execution import gpu_devices
from blinksim.gpu.execution.gpu_devices import COPIES, CopyRate, measure_copies
from blinksim.timing.measured_constants import fit_line

needs_compiler = pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler to build kernels.cu with")


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.floats(0, 1e-4), st.floats(1e-12, 1e-9))
def test_a_line_is_found_again(alpha: float, beta: float) -> None:
    points = [(size, alpha + beta * size) for size in (1 << 16, 1 << 20, 1 << 24, 1 << 26)]
    found = fit_line(points)
    assert found[0] == pytest.approx(alpha, abs=1e-6 * points[-1][1])
    assert found[1] == pytest.approx(beta, rel=1e-6)
    assert found[2] < 1e-6


def test_no_line_goes_back_in_time() -> None:
    alpha, beta, worst = fit_line([(1000, 1e-6), (2000, 3e-6)])
    assert alpha == 0
    assert beta > 0
    assert worst > 0.1
    with pytest.raises(InputError, match="at least two sizes"):
        fit_line([(1000, 1e-6), (1000, 2e-6)])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def fake(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with fake_cupy.installed(monkeypatch, built, gpus=3):
        yield


@pytest.mark.slow
@needs_compiler
def test_every_way_of_every_gpu_is_measured(fake: None) -> None:
    found = measure_copies(blocks=(1, 3), sizes=(4096, 20_000), repeats=2)
    counts = Counter(way.kind for way in found)
    assert counts == {"copy engine": 6, "push": 12, "pull": 12, "reduce": 12, "fan-out": 6, "fan-in": 6}
    assert {(way.gpu, way.peers) for way in found if way.kind == "push"} == {
        (a, (b,)) for a in range(3) for b in range(3) if a != b
    }
    assert {(way.gpu, way.peers) for way in found if way.kind == "fan-in"} == {(0, (1, 2)), (1, (0, 2)), (2, (0, 1))}
    for way in found:
        assert way.rate > 0
        assert [size for size, _ in way.samples] == [4096, 20_000]
        assert all(len(times) == 2 for _, times in way.samples)
    assert {way.blocks for way in found if way.kind == "copy engine"} == {0}


@needs_compiler
@pytest.mark.parametrize("way", COPIES)
def test_the_right_bytes_arrive(fake: None, way: str) -> None:
    """GPU 0 sends (or, pulling and fanning in, receives) 5,000 floats; with several blocks no part is left out."""
    bench = gpu_devices._Bench(None, 40_000)

    def view(gpu: int, which: int) -> np.ndarray:
        memory = bench.buffers[gpu][which]
        offset = memory.ptr - memory.raw.ctypes.data
        floats: np.ndarray = memory.raw[offset : offset + 20_000].view(np.float32)
        return floats

    for gpu in range(3):
        view(gpu, 0)[:] = np.arange(5000) * (gpu + 1)
        view(gpu, 1)[:] = 7
    peers = (1, 2) if way.startswith("fan") else (1,)
    assert len(bench.time(way, 0, peers, 0 if way == "copy engine" else 3, 20_000, 2)) == 2
    if way == "pull":
        assert np.array_equal(view(0, 1), view(1, 0))
    elif way == "fan-in":
        assert np.array_equal(view(0, 3), view(1, 0))
        assert np.array_equal(view(0, 4), view(2, 0))
    else:
        wanted = view(0, 0) + (7 if way == "reduce" else 0)
        for peer in peers:
            assert np.array_equal(view(peer, 2), wanted)


@needs_compiler
def test_one_gpu_is_not_enough(
    built: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.module(built, gpus=1))
    with pytest.raises(MissingError, match=r"pairs need two GPUs, and this machine has 1; .* with executor=numpy"):
        measure_copies()
    assert run(["run", "--pairs"]) == 4
    assert "pairs need two GPUs" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.module(built, gpus=2, peers=False))
    with pytest.raises(MissingError, match="no GPU here can access the memory of another"):
        measure_copies()


def test_ways_say_their_units() -> None:
    way = CopyRate("push", 0, (1,), 4, 5e-6, 42e9, 0.02, ((1024, (1e-6, 2e-6)),))
    assert json.loads(json.dumps(way.to_dict())) == {
        "way": "push",
        "gpu": 0,
        "peers": [1],
        "blocks": 4,
        "alpha_s": 5e-6,
        "GBps": 42.0,
        "worst_error_percent": 2.0,
        "samples": [{"size_bytes": 1024, "times_s": [1e-6, 2e-6]}],
    }
