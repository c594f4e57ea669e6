"""Times NCCL's collectives with the algorithm, protocol and channels that a tuner plugin forces."""

from __future__ import annotations

import os
import re
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from blinksim.errors import MissingError
from blinksim.gpu.execution.gpu_devices import require_cupy
from blinksim.gpu.execution.gpu_timing import ITERATIONS, Stopwatch
from blinksim.gpu.execution.nccl_calls import COLLECTIVES, Nccl
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.nccl.tuner_files import dialects, plugin_build
from blinksim.nccl.tuner_files.tuning_rule import MOST_BYTES, Choice, TuningRule, runs

_KIND = ELEMENT_TYPES["float32"]
# Long runs need fewer iterations for the same accuracy.
_LONG, _FEW = 2**27, 6


class ChoiceClock:
    """The first GPUs of this machine, on which NCCL runs what it is told to.

    The plugin is built into a folder of its own and put in force through the environment, which NCCL reads when the
    first communicator of the process is made; every choice gets communicators that read its own file of rules.

    gpus: how many; default, all. least_channels: NCCL_MIN_NCHANNELS. nvls: False sets NCCL_NVLS_ENABLE=0. Raises
    `MissingError` without CuPy, NCCL, two GPUs or a C compiler.
    """

    def __init__(self, gpus: int | None = None, *, least_channels: int | None = None, nvls: bool = True) -> None:
        self.cupy = require_cupy()
        present = int(self.cupy.cuda.runtime.getDeviceCount())
        self.gpus = present if gpus is None else gpus
        if not 2 <= self.gpus <= present:
            raise MissingError(f"{self.gpus} GPUs are wanted, and {present} are here; NCCL is tuned on two at least")
        self.folder = tempfile.TemporaryDirectory(prefix="blinksim-tune-")
        place = Path(self.folder.name)
        self.rules = place / "rules.csv"
        os.environ["NCCL_TUNER_PLUGIN"] = str(plugin_build.build(place / dialects.PLUGIN))
        os.environ["NCCL_TUNER_CONFIG_FILE"] = str(self.rules)
        if least_channels:
            os.environ["NCCL_MIN_NCHANNELS"] = str(least_channels)
        if not nvls:
            os.environ["NCCL_NVLS_ENABLE"] = "0"
        self.nccl: dict[Choice | None, Nccl] = {}
        self.buffers: dict[int, tuple[list[Any], list[Any]]] = {}

    def communicators(self, choice: Choice | None) -> Nccl:
        """Those that run a choice, or NCCL's own for None."""
        if choice not in self.nccl:
            self.rules.write_text(rules_text(choice), encoding="utf-8")
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
        nccl, count = self.communicators(choice), size // _KIND.itemsize
        if count not in self.buffers:
            self.buffers = {count: self._buffers(count)}
        sent, got = self.buffers[count]
        launch = partial(nccl.launch, sent, got, count, _KIND, "sum", collective)
        iterations = _FEW if size >= _LONG else ITERATIONS
        return median(Stopwatch(nccl.gpus, nccl.streams).time(launch, nccl.finish, iterations=iterations))

    def _buffers(self, count: int) -> tuple[list[Any], list[Any]]:
        cupy = self.cupy
        sent, got = [], []
        for gpu in range(self.gpus):
            with cupy.cuda.Device(gpu):
                sent.append(cupy.full(count, gpu + 1, dtype=cupy.float32))
                got.append(cupy.zeros(count, dtype=cupy.float32))
                cupy.cuda.Device(gpu).synchronize()
        return sent, got

    def close(self) -> None:
        """Ends the communicators and removes the plugin."""
        for nccl in self.nccl.values():
            nccl.close()
        self.folder.cleanup()


def rules_text(choice: Choice | None) -> str:
    """A file that forces one choice wherever NCCL runs it; for None, one without rules."""
    rules = []
    if choice is not None:
        allowed = [name for name in COLLECTIVES if runs(name, *choice[:2])]
        rules = [TuningRule(name, 0, MOST_BYTES, *choice) for name in allowed]
    return dialects.export(rules, "nccl").files[""]
