"""A schedule compiled, run by an executor, and its data checked."""

from __future__ import annotations

from importlib import import_module
from typing import Literal, Unpack

from blinksim.errors import unknown
from blinksim.execution.dtypes import element_type
from blinksim.execution.execution_result import Execution
from blinksim.execution.executors.base import Executor, Outcome, Task
from blinksim.execution.options import RunKeywords, RunOptions, size_in_bytes
from blinksim.execution.program import Program
from blinksim.schedule.model import Schedule

ExecutorName = Literal["numpy", "cupy"]
# By name, the class that runs a task; its module is imported when it is used.
EXECUTORS = {
    "numpy": "blinksim.execution.executors.numpy_executor:NumpyExecutor",
    "cupy": "blinksim.execution.executors.cupy_executor:CupyExecutor",
}


def execute(
    schedule: Schedule,
    size: int | float | str,
    *,
    executor: ExecutorName = "numpy",
    op: str = "sum",
    dtype: str = "float32",
    in_place: bool = False,
    check: bool = True,
    **options: Unpack[RunKeywords],
) -> Execution:
    """Runs a schedule on pseudo-random data, and compares every rank's output with the collective's definition.

    size: bytes, or text such as ``256MiB``; rounded down to whole elements, and `Execution.rounding` says so. executor:
    "numpy" runs the program once on the CPU; "cupy" on GPUs, timed. op: sum, prod, min or max. dtype: one of
    `ELEMENT_TYPES`. in_place: one buffer for input and output. check: compare the outputs. options: those of
    `blinksim.execution.options`, by name.

    Raises `InputError` for bad arguments, `ExecutionError` if the program gets stuck, and for "cupy" `MissingError`
    without CuPy, GPUs or peer access and `InfeasibleError` for ll128 over links that may split a line. A wrong result
    is no error: look at `Execution.wrong`.
    """
    backend = _executor(executor)
    task = Task(schedule, size_in_bytes(size), element_type(dtype), op, in_place, RunOptions.gather(**options))
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
