"""Runs of a schedule on an executor: compiled, executed, data checked; times as JSON or as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import import_module
from math import isfinite
from statistics import mean, median, pstdev
from typing import Any, Literal, Unpack, get_args

from blinksim.collective import Collective, busbw_factor
from blinksim.errors import BlinksimError, unknown
from blinksim.gpu.execution.gpu_devices import require_cupy
from blinksim.gpu.execution.task import Outcome, RunKeywords, RunOptions, Task
from blinksim.gpu.programs.dtypes import DtypeName, ReductionName, element_type
from blinksim.results import Result, keyed
from blinksim.schedule.model import Schedule, ScheduleLike, as_schedule, refuse
from blinksim.timing.projection_result import of_part
from blinksim.units import in_GBps

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
    **options: Unpack[RunKeywords],
) -> Execution:
    """Run a schedule on random data, and compare every rank's output with the collective's definition.

    A wrong result is no error: look at `Execution.wrong`.

    Parameters
    ----------
    schedule : Schedule, Synthesis or Together
        What to run; of several groups, their schedules side by side.
    size : int, float or str, optional
        Bytes, or text such as ``"256MiB"``, of all groups together if there are several. It is rounded down to
        whole elements; `Execution.rounding` says so. Default: as for `blinksim.simulate`.
    executor : {"numpy", "cupy", "auto"}
        "numpy" runs the program once on the CPU; "cupy" runs and times it on GPUs; "auto" is "cupy" where there
        are CuPy and GPUs enough.
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
    if executor not in EXECUTORS:
        raise unknown("executor", executor, EXECUTORS)
    given = schedule, schedule.sized(size), element_type(dtype), op, in_place, RunOptions.gather(**options)
    task = Task(*given)
    program, outcome = import_module(EXECUTORS[executor]).run(task, check)
    keys = "collective=schedule.collective algorithm=schedule.algorithm op dtype=kind.name count"
    asked = keyed(task, f"{keys} itemsize=kind.itemsize size_bytes in_place tolerance=reference.tolerance")
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
        keys = "machine collective root algorithm members relays links rates size_bytes used_bytes rounding count dtype"
        keys += " op in_place executor hardware ops slices piece_bytes protocol staged ok checked wrong max_error"
        keys += " tolerance time_s algbw_GBps=algbw busbw_GBps=busbw groups?"
        what, finite = self.collective, self.max_error is not None and isfinite(self.max_error)
        more: dict[str, Any] = {"collective": what.name, "root": what.root if what.rooted else None}
        more |= {"op": self.op if what.reduces or self.groups else None, "rounding": self.rounding or None}
        more |= {"groups": list(self.groups) or None, "checked": self.wrong is not None}
        return keyed(self, keys, **more, max_error=self.max_error if finite else None) | spread

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
