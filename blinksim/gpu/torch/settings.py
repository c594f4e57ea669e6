"""What the environment says about the groups of a job; it must be the same on all ranks.

========================  =============================================================================================
``BLINKSIM_PLAN``         a file of rules: which schedule for which collective and size; or ``predict``, for rules by a
                          model of this machine (default: built-in rules)
``BLINKSIM_BUFFER``       the memory that a group allocates on each GPU, such as ``256MiB`` (default: 193 MiB)
``BLINKSIM_TIMEOUT``      seconds that a rank waits for another before the group fails (default: 10)
``BLINKSIM_BLOCKS``       thread blocks of a launch, at most (default: 128, or one for each of the GPU's processors)
``BLINKSIM_BLOCKING``     1: ``wait`` returns when the data are there, or raises (default: it orders streams only)
``BLINKSIM_LOG``          1: rank 0 says on standard error what runs, once for every kind of call (default: it does not)
========================  =============================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from blinksim.errors import InputError
from blinksim.gpu.jobs.group import TIMEOUT_S
from blinksim.gpu.jobs.segment import Segment
from blinksim.units import size_of

# As a plan: the machine is asked when the group is made.
PREDICT = "predict"


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the variables above; plan is a path, `PREDICT`, or empty."""

    plan: str = ""
    segment: Segment = field(default_factory=Segment)
    timeout_s: float = TIMEOUT_S
    blocks: int | None = None
    blocking: bool = False
    log: bool = False

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Raises `InputError` for a value that cannot be used."""
        buffer = environment.get("BLINKSIM_BUFFER", "")
        return cls(
            environment.get("BLINKSIM_PLAN", ""),
            Segment.of(size_of(buffer)) if buffer else Segment(),
            _number(environment, "BLINKSIM_TIMEOUT", TIMEOUT_S),
            int(_number(environment, "BLINKSIM_BLOCKS", 0)) if environment.get("BLINKSIM_BLOCKS") else None,
            environment.get("BLINKSIM_BLOCKING", "0") not in ("", "0"),
            environment.get("BLINKSIM_LOG", "0") not in ("", "0"),
        )


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "")
    try:
        value = float(text) if text else float(default)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise InputError(f"{name}={text}: give a number above 0")
    return value
