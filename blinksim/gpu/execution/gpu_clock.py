"""Times schedules and NCCL's collectives on the GPUs of this machine, for a calibration."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from functools import partial

from blinksim.errors import MissingError
from blinksim.gpu.execution.gpu_devices import require_cupy
from blinksim.gpu.execution.gpu_timing import Stopwatch
from blinksim.gpu.execution.nccl_calls import Nccl
from blinksim.gpu.execution.run import execute
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.schedule.model import Schedule

_KIND = ELEMENT_TYPES["float32"]


class GpuClock:
    """The first GPUs of this machine, each timed by `Stopwatch`: 5 iterations to warm up, and 20 that count.

    gpus: how many; default, all. Raises `MissingError` without CuPy, NCCL or two GPUs.
    """

    def __init__(self, gpus: int | None = None) -> None:
        # Switches that reduce are another machine than the one whose rings are fitted; NCCL reads this when it starts.
        os.environ["NCCL_NVLS_ENABLE"] = "0"
        self.cupy = require_cupy()
        runtime = self.cupy.cuda.runtime
        present = int(runtime.getDeviceCount())
        self.gpus = present if gpus is None else gpus
        if not 2 <= self.gpus <= present:
            raise MissingError(f"{self.gpus} GPUs are wanted, and {present} are here; a calibration needs two at least")
        self.hardware = str(runtime.getDeviceProperties(0)["name"].decode())
        self.blocks = int(self.cupy.cuda.Device(0).attributes["MultiProcessorCount"])
        self.driver = _driver()
        self.nccl: dict[int, Nccl] = {}
        self.nccl_version = self._nccl(2).version

    def _nccl(self, gpus: int) -> Nccl:
        if gpus not in self.nccl:
            self.nccl[gpus] = Nccl(range(gpus))
        return self.nccl[gpus]

    def time(self, schedule: Schedule, size: int, protocol: str, slices: int | None) -> Sequence[float]:
        """Seconds of each iteration of a schedule; size: bytes of float32."""
        packets = "ll128" if protocol == "ll128" else "simple"
        found = execute(schedule, size, executor="cupy", protocol=packets, slices=slices, check=False)  # type: ignore[arg-type]
        return found.times_s

    def time_nccl(self, gpus: int, collective: str, size: int) -> Sequence[float]:
        """Seconds of each iteration of NCCL's own collective; size: bytes of float32."""
        cupy, nccl, count = self.cupy, self._nccl(gpus), size // _KIND.itemsize
        sent, got = [], []
        for gpu in nccl.gpus:
            with cupy.cuda.Device(gpu):
                sent.append(cupy.full(count, gpu + 1, dtype=cupy.float32))
                got.append(cupy.zeros(count, dtype=cupy.float32))
                cupy.cuda.Device(gpu).synchronize()
        launch = partial(nccl.launch, sent, got, count, _KIND, "sum", collective)
        return Stopwatch(nccl.gpus, nccl.streams).time(launch, nccl.finish)

    def close(self) -> None:
        """Ends the communicators."""
        for nccl in self.nccl.values():
            nccl.close()


def _driver() -> str:
    """The driver's version, as nvidia-smi says it; empty if it does not."""
    try:
        done = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"Driver Version\s*:\s*(\S+)", done.stdout)
    return found[1] if found else ""
