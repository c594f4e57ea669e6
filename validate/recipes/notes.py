"""What recipes share: results written after every run, and where they come from."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

import blinksim
from blinksim.gpu.execution.gpu_devices import require_cupy
from blinksim.gpu.execution.run import Execution

# The same in every row of a file.
CONSTANT = ("machine", "members", "relays", "links", "rates", "root", "executor", "hardware", "checked", "ok")


class Notebook:
    """A JSON file that is rewritten after every entry.

    resume: go on with what the file holds, if it is from the same GPUs, driver and versions.
    """

    def __init__(self, path: Path, provenance: dict[str, Any], resume: bool = False) -> None:
        self.path, self.content = path, dict[str, Any](provenance=provenance)
        self.deadline = float("inf")
        if resume and path.exists():
            old = json.loads(path.read_text())
            if all(
                old["provenance"].get(key) == provenance[key] for key in provenance if key not in ("date", "command")
            ):
                self.content = old

    def has(self, part: str, **keys: Any) -> bool:
        """True if an entry with these values is there already."""
        return any(all(entry.get(key) == keys[key] for key in keys) for entry in self.content.get(part, []))

    def add(self, part: str, entry: Any) -> None:
        self.content.setdefault(part, []).append(entry)
        temporary = self.path.with_suffix(".tmp")
        parts = [f'"provenance": {json.dumps(self.content["provenance"], indent=1)}']
        for name, entries in self.content.items():
            if name != "provenance":
                lines = ",\n".join(json.dumps(entry) for entry in entries)
                parts.append(f'"{name}": [\n{lines}\n]')
        temporary.write_text("{\n" + ",\n".join(parts) + "\n}\n")
        temporary.replace(self.path)

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() > self.deadline


def measured(run: Execution) -> tuple[float, float, float]:
    """(microseconds, algbw, busbw) of a run on GPUs, both in GB/s."""
    assert run.time_s is not None
    assert run.algbw is not None
    assert run.busbw is not None
    return run.time_s * 1e6, run.algbw / 1e9, run.busbw / 1e9


def provenance(gpus: int, command: str) -> dict[str, Any]:
    cupy = require_cupy()
    runtime = cupy.cuda.runtime
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "gpus": [runtime.getDeviceProperties(gpu)["name"].decode() for gpu in range(gpus)],
        "driver": driver[0] if driver else "unknown",
        "cuda_runtime": runtime.runtimeGetVersion(),
        "cuda_driver": runtime.driverGetVersion(),
        "cupy": cupy.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "blinksim": blinksim.__version__,
        # A copy of the tree without its history takes the commit from the environment.
        "commit": os.environ.get("BLINKSIM_COMMIT") or commit(),
        "environment": {
            key: value
            for key, value in os.environ.items()
            if key.startswith(("NCCL_", "BLINKSIM_")) and key not in ("NCCL_VERSION", "BLINKSIM_COMMIT")
        },
    }


def commit() -> str:
    """The commit of this checkout, with "-dirty" behind it if the code that measures is another; or "unknown"."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)

    head = git("rev-parse", "HEAD")
    if head.returncode:
        return "unknown"
    same = git("diff", "--quiet", "HEAD", "--", "blinksim", "validate/recipes").returncode == 0
    return head.stdout.strip() + ("" if same else "-dirty")
