"""Schedules run for real: one program, interpreted by NumPy and by GPUs, and checked against the definition."""

from __future__ import annotations

from blinksim.execution.compile import compile_schedule
from blinksim.execution.dtypes import ELEMENT_TYPES, REDUCTIONS
from blinksim.execution.execution_result import Execution
from blinksim.execution.options import PROTOCOLS
from blinksim.execution.program import ExecutionError
from blinksim.execution.run import EXECUTORS, execute

__all__ = [
    "ELEMENT_TYPES",
    "EXECUTORS",
    "PROTOCOLS",
    "REDUCTIONS",
    "Execution",
    "ExecutionError",
    "compile_schedule",
    "execute",
]
