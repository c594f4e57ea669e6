"""How the devices of a program hand data on: which ones they store to, and which flags they need.

The two protocols are NCCL's, by its names: flags behind the data, and packets that carry the flag.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from blinksim.gpu.programs.program import Program

ProtocolName = Literal["simple", "ll128"]
PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)


def receivers(program: Program) -> list[list[int]]:
    """For each device, the other devices that it stores to."""
    found: list[set[int]] = [set() for _ in program.devices]
    source = np.repeat(program.op_device, np.diff(program.destination_start))
    for device, target in zip(source.tolist(), program.destinations[:, 0].tolist(), strict=True):
        if device != target:
            found[device].add(target)
    return [sorted(targets) for targets in found]


def by_flag(program: Program) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which rows of `waits` and of `signals` a GPU needs: all, or the local ones where packets signal the rest."""
    waited, signalled = np.ones(len(program.waits), dtype=bool), np.ones(len(program.signals), dtype=bool)
    if program.packets:
        most = int(program.flags.max(initial=0)) + 1
        signalled = program.signals[:, 0] == np.repeat(program.op_device, np.diff(program.signal_start))
        inside = program.signals[signalled] @ np.array([most, 1])
        awaited = np.repeat(program.op_device, np.diff(program.wait_start)) * most + program.waits[:, 0]
        waited = np.isin(awaited, inside)
    return waited, signalled
