"""Clocks that time schedules and NCCL's collectives on the GPUs of this machine, for calibration and tuning.

NCCL is timed with the algorithm, protocol and channels that a tuner plugin forces.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from blinksim.errors import MissingError
from blinksim.gpu.execution.gpu_devices import COLLECTIVES, ITERATIONS, Nccl, Stopwatch, names_of, require_cupy
from blinksim.gpu.execution.run import execute
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.nccl.tuner import tuner_files
from blinksim.nccl.tuner.tuner_files import MOST_BYTES, Choice, TuningRule, runs
from blinksim.schedule.model import Schedule

_KIND = ELEMENT_TYPES["float32"]
_Vectors = tuple[int, list[Any], list[Any]]


class _Clock:
    """The first GPUs of this machine, and the communicators of NCCL on them.

    gpus: how many; default, all. purpose: what takes two of them at least.
    """

    def __init__(self, gpus: int | None, purpose: str) -> None:
        self.cupy = require_cupy()
        present = int(self.cupy.cuda.runtime.getDeviceCount())
        self.gpus = present if gpus is None else gpus
        if not 2 <= self.gpus <= present:
            raise MissingError(f"{self.gpus} GPUs are wanted, and {present} are here; {purpose} two at least")
        self.nccl: dict[Any, Nccl] = {}

    def _timed(self, nccl: Nccl, vectors: _Vectors, collective: str, **how: Any) -> list[float]:
        """Seconds of each iteration of a collective on vectors of `_vectors`."""
        count, sent, got = vectors
        launch = partial(nccl.launch, sent, got, count, _KIND, "sum", collective)
        return Stopwatch(nccl.gpus, nccl.streams).time(launch, nccl.finish, **how)

    def _vectors(self, nccl: Nccl, size: int) -> _Vectors:
        """`size` bytes as elements of float32: how many, what every GPU sends, and room for what it gets."""
        count, sent, got = size // _KIND.itemsize, [], []
        for gpu in nccl.gpus:
            with self.cupy.cuda.Device(gpu):
                sent.append(self.cupy.full(count, gpu + 1, dtype=self.cupy.float32))
                got.append(self.cupy.zeros(count, dtype=self.cupy.float32))
                self.cupy.cuda.Device(gpu).synchronize()
        return count, sent, got

    def close(self) -> None:
        """Ends the communicators."""
        for nccl in self.nccl.values():
            nccl.close()


class GpuClock(_Clock):
    """The first GPUs of this machine, each timed by `Stopwatch`: 5 iterations to warm up, and 20 that count.

    gpus: how many; default, all. Raises `MissingError` without CuPy, NCCL or two GPUs.
    """

    def __init__(self, gpus: int | None = None) -> None:
        # Switches that reduce are another machine than the one whose rings are fitted; NCCL reads this when it starts.
        os.environ["NCCL_NVLS_ENABLE"] = "0"
        super().__init__(gpus, "a calibration needs")
        self.hardware = names_of([0])[0]
        self.blocks = int(self.cupy.cuda.Device(0).attributes["MultiProcessorCount"])
        self.driver = ""
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, check=False, timeout=60)
            driver = re.search(r"Driver Version\s*:\s*(\S+)", done.stdout)
            self.driver = driver[1] if driver else ""
        self.nccl_version = self._nccl(2).version

    def _nccl(self, gpus: int) -> Nccl:
        if gpus not in self.nccl:
            self.nccl[gpus] = Nccl(range(gpus))
        return self.nccl[gpus]

    def time(self, schedule: Schedule, size: int, protocol: str, slices: int | None) -> Sequence[float]:
        """Seconds of each iteration of a schedule; size: bytes of float32."""
        execution = execute(schedule, size, executor="cupy", protocol=protocol, slices=slices, check=False)  # type: ignore[arg-type]
        return execution.times_s

    def time_nccl(self, gpus: int, collective: str, size: int) -> Sequence[float]:
        """Seconds of each iteration of NCCL's own collective; size: bytes of float32."""
        nccl = self._nccl(gpus)
        return self._timed(nccl, self._vectors(nccl, size), collective)


# Long runs need fewer iterations for the same accuracy.
_LONG, _FEW = 2**27, 6


class ChoiceClock(_Clock):
    """The first GPUs of this machine, on which NCCL runs what it is told to.

    The plugin is built into a folder of its own and put in force through the environment, which NCCL reads
    when the first communicator of the process is made; every choice gets communicators that read its own file
    of rules.

    gpus: how many; default, all. least_channels: NCCL_MIN_NCHANNELS. nvls: False sets NCCL_NVLS_ENABLE=0.
    Raises `MissingError` without CuPy, NCCL, two GPUs or a C compiler.
    """

    def __init__(self, gpus: int | None = None, *, least_channels: int | None = None, nvls: bool = True) -> None:
        super().__init__(gpus, "NCCL is tuned on")
        self.vectors: dict[int, _Vectors] = {}
        self.folder = tempfile.TemporaryDirectory(prefix="blinksim-tune-")
        place = Path(self.folder.name)
        self.rules = place / "rules.csv"
        os.environ["NCCL_TUNER_PLUGIN"] = str(tuner_files.build(place / tuner_files.PLUGIN))
        os.environ["NCCL_TUNER_CONFIG_FILE"] = str(self.rules)
        if least_channels:
            os.environ["NCCL_MIN_NCHANNELS"] = str(least_channels)
        if not nvls:
            os.environ["NCCL_NVLS_ENABLE"] = "0"

    def communicators(self, choice: Choice | None) -> Nccl:
        """Those that run a choice, or NCCL's own for None."""
        if choice not in self.nccl:
            # A file that forces one choice wherever NCCL runs it; for None, one without rules.
            forced = []
            if choice is not None:
                allowed = [name for name in COLLECTIVES if runs(name, *choice[:2])]
                forced = [TuningRule(name, 0, MOST_BYTES, *choice) for name in allowed]
            self.rules.write_text(tuner_files.export(forced, "nccl").files[""], encoding="utf-8")
            self.nccl[choice] = Nccl(range(self.gpus))
        return self.nccl[choice]

    @property
    def version(self) -> str:
        """Of NCCL, such as 2.28.9."""
        return self.communicators(None).version

    @property
    def kind(self) -> str:
        """Of the GPUs, by their compute capability: ``sm 90``; empty where there is none, as on AMD's."""
        capability = str(self.cupy.cuda.Device(0).compute_capability)
        return f"sm {capability}" if re.fullmatch("[0-9]+", capability) else ""

    def measure(self, collective: str, size: int, choice: Choice | None) -> float:
        """The median of the seconds of its iterations; size: bytes of float32."""
        nccl = self.communicators(choice)
        if size not in self.vectors:
            self.vectors = {size: self._vectors(nccl, size)}
        iterations = _FEW if size >= _LONG else ITERATIONS
        return median(self._timed(nccl, self.vectors[size], collective, iterations=iterations))

    def close(self) -> None:
        """Ends the communicators and removes the plugin."""
        super().close()
        self.folder.cleanup()
