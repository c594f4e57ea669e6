"""Schedules run for real: one program, interpreted by NumPy and by GPUs, and checked against the definition."""

from __future__ import annotations

from blinksim.execution.execution_result import Execution
from blinksim.execution.run import EXECUTORS, execute
from blinksim.programs.compile import compile_schedule
from blinksim.programs.dtypes import ELEMENT_TYPES, REDUCTIONS
from blinksim.programs.handover import PROTOCOLS
from blinksim.programs.program import ExecutionError

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
