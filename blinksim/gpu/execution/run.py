"""A schedule compiled, run by an executor, and its data checked."""

from __future__ import annotations

from importlib import import_module
from typing import Literal, Unpack

from blinksim.errors import unknown
from blinksim.gpu.execution.base import Executor, Outcome, Task
from blinksim.gpu.execution.execution_result import Execution
from blinksim.gpu.execution.options import RunKeywords, RunOptions
from blinksim.gpu.programs.dtypes import DtypeName, ReductionName, element_type
from blinksim.gpu.programs.program import Program
from blinksim.schedule.model import ScheduleLike, as_schedule
from blinksim.units import size_of

ExecutorName = Literal["numpy", "cupy"]
# By name, the class that runs a task; its module is imported when it is used.
EXECUTORS = {
    "numpy": "blinksim.gpu.execution.numpy_executor:NumpyExecutor",
    "cupy": "blinksim.gpu.execution.cupy_executor:CupyExecutor",
}


def execute(
    schedule: ScheduleLike,
    size: int | float | str,
    *,
    executor: ExecutorName = "numpy",
    op: ReductionName | str = "sum",
    dtype: DtypeName | str = "float32",
    in_place: bool = False,
    check: bool = True,
    **options: Unpack[RunKeywords],
) -> Execution:
    """Runs a schedule on pseudo-random data, and compares every rank's output with the collective's definition.

    A wrong result is no error: look at `Execution.wrong`.

    Parameters
    ----------
    schedule : Schedule or Synthesis
        What to run.
    size : int, float or str
        Bytes, or text such as ``"256MiB"``. It is rounded down to whole elements; `Execution.rounding` says so.
    executor : {"numpy", "cupy"}
        "numpy" runs the program once on the CPU; "cupy" runs and times it on GPUs.
    op : {"sum", "prod", "min", "max"}
        How contributions are combined.
    dtype : str
        An element type, such as float32, bfloat16 or int32.
    in_place : bool
        Use one buffer for input and output.
    check : bool
        Compare the outputs.
    **options
        The fields of `Cut`, `Transfer`, `Emulation`, `GpuOptions` and `CpuOptions` in `blinksim.gpu.execution.options`,
        by name.

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
    backend = _executor(executor)
    task = Task(as_schedule(schedule), size_of(size), element_type(dtype), op, in_place, RunOptions.gather(**options))
    program = backend.prepare(task)
    outcome = backend.run(check)
    return _report(executor, task, program, outcome)


def _executor(name: str) -> Executor:
    if name not in EXECUTORS:
        raise unknown("executor", name, EXECUTORS)
    module, _, executor = EXECUTORS[name].partition(":")
    made: Executor = getattr(import_module(module), executor)()
    return made


def _report(executor: str, task: Task, program: Program, outcome: Outcome) -> Execution:
    schedule, topology = task.schedule, task.schedule.topology
    return Execution(
        machine=topology.name,
        collective=schedule.collective,
        algorithm=schedule.algorithm,
        members=topology.members,
        relays=topology.relays,
        links=topology.default_links(),
        rates=topology.rates,
        executor=executor,
        op=task.op,
        dtype=task.kind.name,
        size_bytes=task.size_bytes,
        count=task.count,
        itemsize=task.kind.itemsize,
        in_place=task.in_place,
        ops=program.ops,
        slices=program.slices,
        piece_bytes=program.piece_units * program.unit * task.kind.itemsize,
        protocol="ll128" if program.packets else "simple",
        staged=program.staged,
        wrong=outcome.wrong,
        max_error=outcome.max_error,
        tolerance=task.reference.tolerance,
        times_s=outcome.times_s,
        hardware=outcome.hardware,
    )
