"""From the first measurement to the report on two GPUs, which are a stand-in: no step may need more than there are."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import fake_cupy
import pytest

from blinksim.execute import cupy_p2p

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("notes", "emulated", "ways", "calibration", "program_time", "report", "pictures")
LARGE = 64 << 10


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.module(tmp_path, 2))
    monkeypatch.setattr(fake_cupy.Device, "blocks", 400)
    cupy_p2p.load_kernel.cache_clear()
    monkeypatch.syspath_prepend(str(ROOT / "validate" / "recipes"))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield {name: __import__(name) for name in NAMES}
    cupy_p2p.load_kernel.cache_clear()
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler to build kernels.cu with")
def test_two_gpus_are_enough(recipes: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated, calibration, report = (recipes[name] for name in ("emulated", "calibration", "report"))
    made = {"date": "2026-01-02", "command": "", "gpus": ["Fake GPU"] * 2, "driver": "", "cupy": ""}
    monkeypatch.setattr(recipes["notes"], "provenance", lambda gpus, command: made)
    monkeypatch.setattr(emulated, "LINE_SIZES", (LARGE // 2, LARGE))
    monkeypatch.setattr(emulated, "LINE_PIECES", (4 << 10, 8 << 10))
    monkeypatch.setattr(emulated, "SIZES", (LARGE,))
    monkeypatch.setattr(emulated, "SMALL_SIZES", ())
    monkeypatch.setattr(emulated, "PARTS", {"dgx1-v100": ("01", "034"), "dgx1-p100": ("0123",)})
    # A quad of a DGX-1P has no two devices without a link between them: two GPUs cannot be it.
    names = [case.name for case, _ in emulated.cases(2)]
    assert names
    assert not any("0123" in name for name in names)
    schedules = tmp_path / "schedules"
    emulated.make(schedules, 2)
    emulated.run(schedules, 2, tmp_path, 300, "", 2, (emulated.FULL, emulated.HALF))
    results = {kind: json.loads((tmp_path / f"emulated-2gpu{kind}.json").read_text()) for kind in ("", "-shared")}
    assert {row["case"].split("_")[1] for row in results[""]["cases"]} == {"01"}
    assert {row["case"].split("_")[1] for row in results["-shared"]["cases"]} == {"034"}
    assert {row["wrong"] for content in results.values() for part in ("lines", "cases") for row in content[part]} == {0}
    for content in results.values():
        for line in content["lines"]:
            # What threads of a CPU take would be no law.
            pieces = calibration.pieces_of(line["size_bytes"], line["piece_bytes"])
            line["time_s"] = 1e-4 + 1e-5 * pieces + line["size_bytes"] / 1e9
    found = calibration.predictions(list(results.values()), schedules, 0.2)
    assert len(found["rows"]) == sum(len(content["cases"]) for content in results.values())
    (tmp_path / "emulated-2gpu-predicted.json").write_text(json.dumps(found))
    monkeypatch.setattr(report, "LARGE", LARGE)
    text = report.text(tmp_path)
    assert "| 2 GPUs, program simulated, from 16 MiB: worst error" in text
    assert "### Controls" not in text
    assert "Measured on 2026-01-02 at commit unknown." in text
