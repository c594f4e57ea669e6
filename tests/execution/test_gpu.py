"""On real GPUs: `make test-gpu`. Where there are fewer GPUs than ranks, ranks share them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import COLLECTIVES, ROOTED, Collective
from blinksim.errors import MissingError
from blinksim.gpu.execution.cupy_executor import Kernels, Runner
from blinksim.gpu.execution.gpu_devices import map_devices, require_cupy
from blinksim.gpu.execution.reference import Reference
from blinksim.gpu.execution.run import execute
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES, REDUCTIONS
from blinksim.gpu.programs.fit import fit
from blinksim.gpu.programs.of_calls import compile_schedule
from blinksim.gpu.programs.program import ExecutionError
from blinksim.gpu.programs.tables import HEAD_WORDS
from blinksim.schedule.model import Schedule
from blinksim.topology.shapes import fully_connected

try:
    GPUS = require_cupy().cuda.runtime.getDeviceCount()
except MissingError:
    GPUS = 0

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS == 0, reason="needs a GPU and CuPy")]


def build(name: str, collective: str, ranks: int = 4, root: int = 0) -> Schedule:
    return REGISTRY[name].build(fully_connected(ranks).select(), Collective(collective, root))


def spread(ranks: int) -> list[int]:
    """Rank r on GPU r, or neighbours together where there are too few."""
    return [rank * GPUS // ranks if ranks > GPUS else rank for rank in range(ranks)]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("in_place", [False, True])
def test_every_collective(collective: str, in_place: bool) -> None:
    if in_place and collective == "alltoall":
        in_place = False
    root = 2 if collective in ROOTED else 0
    for count in (1, 1_000_003):
        run = execute(
            build("direct", collective, 4, root),
            4 * count,
            executor="cupy",
            in_place=in_place,
            gpus=spread(4),
            warmup=1,
            iterations=3,
        )
        assert run.wrong == 0


@pytest.mark.parametrize("dtype", sorted(ELEMENT_TYPES))
@pytest.mark.parametrize("op", sorted(REDUCTIONS))
def test_every_type_and_reduction(dtype: str, op: str) -> None:
    size = 100_003 * ELEMENT_TYPES[dtype].itemsize
    run = execute(build("ring", "allreduce"), size, executor="cupy", dtype=dtype, op=op, gpus=spread(4), iterations=2)
    assert run.wrong == 0


@pytest.mark.parametrize("name", ["ring", "chain", "double_binary", "halving_doubling", "two_shot"])
def test_eight_ranks(name: str) -> None:
    run = execute(build(name, "allreduce", 8), 1 << 22, executor="cupy", gpus=spread(8), warmup=1, iterations=3)
    assert run.wrong == 0


def test_packets_that_never_come_end_in_an_error() -> None:
    """Warps that have nothing to wait for go on while the others give up, and must not wait for them."""
    schedule = build("halving_doubling", "allreduce")
    kind = ELEMENT_TYPES["float32"]
    program = compile_schedule(schedule, 1 << 16, kind, packets=True)
    chosen = map_devices(program, schedule.topology, spread(4))
    kernels = Kernels(program, "sum", chosen)
    program = fit(program, kernels.blocks)
    runner = Runner(program, kernels, chosen, timeout_s=0.3)
    runner.load(Reference(schedule.collective, 4, 1 << 16, kind))
    for queue in range(int(runner.heads[2][0])):
        runner.tables[2][HEAD_WORDS + queue * int(runner.heads[2][1])] = 0
    # The kernels run on streams of their own, which do not wait for what was written just now.
    for gpu in set(chosen):
        runner.cupy.cuda.Device(gpu).synchronize()
    runner.launch()
    with pytest.raises(ExecutionError, match=r"gave up after 0.3 s of waiting for piece"):
        runner.synchronize()


def test_a_bad_program_ends_in_an_error() -> None:
    schedule = build("ring", "allreduce")
    kind = ELEMENT_TYPES["float32"]
    program = compile_schedule(schedule, 1 << 20, kind)
    chosen = map_devices(program, schedule.topology, spread(4))
    kernels = Kernels(program, "sum", chosen)
    program = fit(program, kernels.blocks)
    signals, flags = program.signals.copy(), program.flags + 1
    signals[0, 1] = program.flags[signals[0, 0]]
    runner = Runner(replace(program, signals=signals, flags=flags), kernels, chosen, timeout_s=0.3)
    runner.load(Reference(schedule.collective, 4, 1 << 20, kind))
    runner.launch()
    with pytest.raises(ExecutionError, match=r"gave up after 0.3 s of waiting for piece"):
        runner.synchronize()
    assert execute(schedule, 1 << 20, executor="cupy", gpus=spread(4)).wrong == 0
