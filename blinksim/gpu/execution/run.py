"""Runs of a schedule on an executor: compiled, executed, data checked; times as JSON or as a table.

Clocks that time schedules and NCCL's collectives on the GPUs of this machine, for calibration and tuning.

NCCL is timed with the algorithm, protocol and channels that a tuner plugin forces.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from math import isfinite
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any, Literal, get_args

from blinksim.collective import ON_TREES, Collective, busbw_factor
from blinksim.errors import BlinksimError, MissingError, one_of
from blinksim.gpu.execution.gpu_devices import ITERATIONS, Nccl, Stopwatch, names_of, require_cupy
from blinksim.gpu.execution.task import Outcome, RunOptions, Task
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES, DtypeName, ReductionName, element_type
from blinksim.nccl.tuner import tuner_files
from blinksim.nccl.tuner.tuner_files import MOST_BYTES, Choice, TuningRule, runs
from blinksim.results import Result, keyed
from blinksim.schedule.model import Schedule, ScheduleLike, as_schedule, refuse
from blinksim.timing.projection_result import of_part
from blinksim.units import in_GBps

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
        # Switches that reduce are another machine than the one whose rings are fitted; NCCL reads this when
        # it starts.
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
        return execute(schedule, size, executor="cupy", protocol=protocol, slices=slices, check=False).times_s

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
                allowed = [name for name in ON_TREES if runs(name, *choice[:2])]
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


ExecutorName = Literal["numpy", "cupy"]
# By name, the module whose `run` runs a task; it is imported when it is used.
EXECUTORS = {name: f"blinksim.gpu.execution.{name}_executor" for name in get_args(ExecutorName)}


def executor_for(schedule: Schedule) -> ExecutorName:
    """What "auto" stands for: "cupy" on a computer with CuPy and a GPU for each device of a schedule, else "numpy"."""
    try:
        present = require_cupy().cuda.runtime.getDeviceCount()
        refuse(schedule, "no GPU kernel does that")
    except BlinksimError:
        return "numpy"
    devices = [*schedule.topology.members, *schedule.topology.relays]
    real = all(schedule.topology.device(name).kind in ("gpu", "tile") for name in devices)
    return "cupy" if real and len(devices) <= present else "numpy"


def execute(
    schedule: ScheduleLike,
    size: int | float | str | None = None,
    *,
    executor: ExecutorName | Literal["auto"] = "numpy",
    op: ReductionName | str = "sum",
    dtype: DtypeName | str = "float32",
    in_place: bool = False,
    check: bool = True,
    **options: Any,
) -> Execution:
    """Run a schedule on random data, and compare every rank's output with the collective's definition.

    A wrong result is no error: look at `Execution.wrong`.

    Parameters
    ----------
    schedule : Schedule, Synthesis or Together
        What to run; of several groups, their schedules side by side.
    size : int, float or str, optional
        Bytes, or text such as ``"256MiB"``, of all groups together if there are several. It is rounded down
        to whole elements; `Execution.rounding` says so. Default: as for `blinksim.simulate`.
    executor : {"numpy", "cupy", "auto"}
        "numpy" runs the program once on the CPU; "cupy" runs and times it on GPUs; "auto" is "cupy" where
        there are CuPy and GPUs enough.
    op : {"sum", "prod", "min", "max"}
        How contributions are combined.
    dtype : str
        An element type, such as float32, bfloat16 or int32.
    in_place : bool
        Use one buffer for input and output.
    check : bool
        Compare the outputs.
    **options
        The fields of `blinksim.gpu.execution.task.RunOptions`, by name.

    Returns
    -------
    Execution
        Whether the data are right, and on GPUs how long it took.

    Raises
    ------
    InputError
        For bad arguments.
    ExecutionError
        If the program gets stuck.
    MissingError
        For "cupy" without CuPy, GPUs or peer access.
    InfeasibleError
        For ll128 over links that may split a line.

    Examples
    --------
    >>> import blinksim as bs
    >>> machine = bs.load("dgx1-v100").select("0-3")
    >>> schedule = bs.synthesize(machine, "allreduce", "ring").schedule
    >>> bs.execute(schedule, "1MiB", dtype="int32").wrong
    0
    """
    schedule = as_schedule(schedule)
    if executor == "auto":
        executor = executor_for(schedule)
    one_of("executor", executor, EXECUTORS)
    given = schedule, schedule.sized(size), element_type(dtype), op, in_place, RunOptions.gather(**options)
    task = Task(*given)
    program, outcome = import_module(EXECUTORS[executor]).run(task, check)
    asked = keyed(task, "@Execution.how")
    asked |= keyed(program, "ops slices staged") | {"executor": executor}
    asked["links"], asked["groups"] = schedule.topology.default_links(), tuple(map(str, schedule.groups))
    asked["piece_bytes"] = program.piece_units * program.unit * program.kind.itemsize
    asked["protocol"] = "ll128" if program.packets else "simple"
    return Execution(**of_part(schedule.topology, **asked), **asdict(outcome))


@dataclass(frozen=True, kw_only=True)
class Execution(Outcome, Result):
    """The run of one collective, with its check and its times if asked for.

    Attributes
    ----------
    machine, members, relays, links, rates
        The machine of the schedule and who took part.
    collective, algorithm, op, dtype, in_place
        What ran.
    executor : str
        What ran it.
    size_bytes : int
        What was asked for; `used_bytes` is what whole elements make of it.
    count, itemsize : int
        Elements of the vector, and bytes of one.
    ops, slices, piece_bytes : int
        The program: operations, parts of every chunk, and what a block moves at once.
    protocol, staged
        How data were handed on.
    wrong : int, optional
        Elements outside the tolerance on all ranks; None if not checked.
    max_error : float, optional
        The largest absolute error; infinite if a result is no number.
    tolerance : str
        What counts as right.
    groups : tuple of str
        Collective and members of each, if several run side by side.
    times_s : tuple of float
        Seconds of each timed iteration on GPUs; empty for NumPy, whose time says nothing about a machine.
    hardware : tuple of str
        Names of the GPUs, in the order of the devices.

    Examples
    --------
    >>> import blinksim as bs
    >>> schedule = bs.synthesize(bs.load("dgx1-v100").select("0-3"), "allreduce", "ring").schedule
    >>> found = bs.execute(schedule, "64KiB")
    >>> found.ok, found.count
    (True, 16384)
    """

    machine: str
    collective: Collective
    algorithm: str
    members: tuple[str, ...]
    relays: tuple[str, ...]
    links: tuple[str, ...]
    rates: str
    executor: str
    op: str
    dtype: str
    size_bytes: int
    count: int
    itemsize: int
    in_place: bool
    ops: int
    slices: int
    piece_bytes: int
    protocol: str = "simple"
    staged: bool = False
    tolerance: str = "exact"
    groups: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if no element was found wrong (also when nothing was checked)."""
        return not self.wrong

    @property
    def used_bytes(self) -> int:
        return self.count * self.itemsize

    @property
    def time_s(self) -> float | None:
        """Median of the timed iterations."""
        return median(self.times_s) if self.times_s else None

    @property
    def algbw(self) -> float | None:
        """Bytes/s of the vector."""
        return self.used_bytes / self.time_s if self.time_s else None

    @property
    def busbw(self) -> float | None:
        """algbw times the collective's factor, comparable with link bandwidth; None of several groups."""
        if self.groups or self.algbw is None:
            return None
        return self.algbw * float(busbw_factor(self.collective.name, len(self.members)))

    @property
    def algbw_GBps(self) -> float | None:  # noqa: N802 - GBps is the unit's name
        """algbw in GB/s; None without a time."""
        return None if self.algbw is None else in_GBps(self.algbw)

    rate_GBps = algbw_GBps  # noqa: N815

    @property
    def busbw_GBps(self) -> float | None:  # noqa: N802
        """busbw in GB/s; None without a time."""
        return None if self.busbw is None else in_GBps(self.busbw)

    @property
    def rounding(self) -> str:
        """How a size that is not a whole number of elements was rounded; empty if it was not."""
        if self.used_bytes == self.size_bytes:
            return ""
        held = f"{self.size_bytes} bytes hold {self.count} elements of {self.dtype}"
        return f"{held} and {self.size_bytes - self.used_bytes} bytes more; ran {self.used_bytes} bytes"

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints; each carries its unit."""
        spread: dict[str, Any] = {}
        if self.times_s:
            spread = {"min_s": min(self.times_s), "max_s": max(self.times_s)}
            spread["cv_percent"] = 100 * pstdev(self.times_s) / mean(self.times_s)
            spread["times_s"] = list(self.times_s)
        what, finite = self.collective, self.max_error is not None and isfinite(self.max_error)
        more: dict[str, Any] = {"collective": what.name, "root": what.root if what.rooted else None}
        more |= {"op": self.op if what.reduces or self.groups else None, "rounding": self.rounding or None}
        more |= {"groups": list(self.groups) or None, "checked": self.wrong is not None}
        return keyed(self, "@Execution", **more, max_error=self.max_error if finite else None) | spread

    def rows(self) -> list[dict[str, Any]]:
        """One row with the keys of `to_dict`, without the samples."""
        row = {key: value for key, value in self.to_dict().items() if key != "times_s"}
        return [{key: ",".join(v) if isinstance(v, list) else v for key, v in row.items()}]

    def __repr__(self) -> str:
        checked = "not checked" if self.wrong is None else "correct" if self.ok else f"{self.wrong} elements wrong"
        timed = ""
        if self.time_s is not None:
            busbw = "" if self.busbw is None else f", busbw {self.busbw / 1e9:.1f} GB/s"
            timed = f", {self.time_s * 1e6:.1f} us{busbw}"
        what = f"{self.algorithm} {self.collective} on {self.machine}, {len(self.members)} ranks"
        what = f"{' beside '.join(self.groups)} on {self.machine}" if self.groups else what
        data = f"{self.used_bytes} bytes of {self.dtype}{', in place' if self.in_place else ''}"
        return f"<Execution {self.executor}: {what}\n  {data}: {checked}{timed}>"
