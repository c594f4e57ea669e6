"""A schedule compiled, run by an executor, and its data checked."""

from __future__ import annotations

from collections.abc import Sequence

from blinksim.errors import InputError, unknown
from blinksim.execution.compile import compile_schedule
from blinksim.execution.dtypes import check_reduction, element_type
from blinksim.execution.emulation.emulate import WIRE_PIECE, emulate
from blinksim.execution.execution_result import Execution
from blinksim.execution.fit import fit, worth_staging
from blinksim.execution.reference import Reference
from blinksim.schedule.model import Schedule

EXECUTORS = ("numpy", "cupy")
# How GPUs hand data on: flags behind them, or packets that carry the flag (NCCL has both by these names).
PROTOCOLS = ("simple", "ll128")
# What the CPU pretends to have: enough for slices to matter, few enough to stay quick.
_CPU_BLOCKS = 8
_CPU_PIECE = 1 << 20


def execute(
    schedule: Schedule,
    size_bytes: int,
    *,
    executor: str = "numpy",
    op: str = "sum",
    dtype: str = "float32",
    in_place: bool = False,
    check: bool = True,
    slices: int | None = None,
    piece_bytes: int | None = None,
    lane_blocks: int | None = None,
    lane_rate: float | None = None,
    threads: int | None = None,
    protocol: str | None = None,
    staged: bool | None = None,
    seed: int | None = None,
    gpus: Sequence[int] | None = None,
    warmup: int = 5,
    iterations: int = 20,
    apart: bool = False,
    timeout_s: float = 5.0,
) -> Execution:
    """Runs a schedule on pseudo-random data, and compares every rank's output with the collective's definition.

    size_bytes: rounded down to whole elements; `Execution.rounding` says so. executor: "numpy" runs the program once on
    the CPU; "cupy" on GPUs, timed. op: sum, prod, min or max. dtype: one of `ELEMENT_TYPES`. slices, piece_bytes: how
    the program is cut (default: chosen by `blinksim.execution.fit`). lane_blocks: emulate the schedule's machine with
    so many thread blocks for every lane of a link (`blinksim.execution.emulation.emulate`; out of place, without
    slices). lane_rate: bytes/s of such a block at most, on GPUs (they slow down, they cannot speed up). threads: of a
    block on a GPU (default 512, the most; without packets, 32 of them raise flags): fewer make a lane slower and leave
    room for more blocks. protocol: one of `PROTOCOLS`; ll128 saves time on every step and moves 16 bytes for 15 of data
    (default: on GPUs the one that `blinksim.execution.fit` expects to be quicker, if the links allow packets; for NumPy
    and lanes ``simple``). staged: what comes from elsewhere is copied out of an inbox, so that GPUs that are ahead go
    on with the next launch (default: with ll128, which always is, and on GPUs where `blinksim.execution.fit` expects it
    to be quicker and memory suffices; lanes and runs with False are not, and take ``simple``). seed: for NumPy, a
    random order of the blocks. gpus: CUDA devices in rank order. apart: no iteration begins before all GPUs have ended
    the one before. timeout_s: how long a GPU waits for another before the run ends with an error.

    Raises `InputError` for bad arguments, `ExecutionError` if the program gets stuck, and for "cupy" `MissingError`
    without CuPy, GPUs or peer access and `InfeasibleError` for ll128 over links that may split a line. A wrong result
    is no error: look at `Execution.wrong`.
    """
    if executor not in EXECUTORS:
        raise unknown("executor", executor, EXECUTORS)
    if protocol not in (None, *PROTOCOLS):
        raise unknown("protocol", str(protocol), PROTOCOLS)
    kind = element_type(dtype)
    check_reduction(op)
    count = size_bytes // kind.itemsize
    if count < 1:
        raise InputError(f"{size_bytes} bytes hold no element of {kind.name}, which has {kind.itemsize}")
    if seed is not None and seed < 0:
        raise InputError(f"a seed is a whole number from 0 on, not {seed}")
    if warmup < 0 or iterations < 1:
        raise InputError("a timed run needs at least one iteration, and no fewer than 0 to warm up")
    if staged is False and protocol == "ll128":
        raise InputError("packets always go through inboxes; leave staged out, or take the protocol simple")
    if lane_rate is not None and (lane_blocks is None or lane_rate <= 0):
        raise InputError("lane_rate is for the blocks of lanes (lane_blocks), and more than 0")
    if lane_blocks is not None:
        if in_place or slices is not None:
            raise InputError("an emulated machine runs out of place, and its lanes' blocks are its slices")
        if protocol not in (None, "simple"):
            raise InputError("the lanes of an emulated machine use the protocol simple")
        if staged:
            raise InputError("an emulated machine hands data on without inboxes")
        protocol = "simple"
        program, _ = emulate(schedule, count, kind, lane_blocks, WIRE_PIECE if piece_bytes is None else piece_bytes)
    else:
        by_itself = False
        if executor == "cupy":
            from blinksim.execution.executors.cupy_executor import has_room, protocol_for

            protocol = protocol_for(schedule, size_bytes, gpus, "simple" if staged is False else protocol)
            by_itself = staged is None and protocol == "simple" and worth_staging(schedule, size_bytes)
        protocol = protocol or "simple"
        how = {"in_place": in_place, "packets": protocol == "ll128"}
        program = compile_schedule(schedule, count, kind, **how, staged=bool(staged) or by_itself)
        if by_itself and not has_room(program, gpus):
            program = compile_schedule(schedule, count, kind, **how)
    reference = Reference(schedule.collective, schedule.topology.ranks, count, kind, op)
    times: tuple[float, ...] = ()
    hardware: tuple[str, ...] = ()
    wrong: int | None = None
    worst: float | None = None
    if executor == "numpy":
        from blinksim.execution.executors.numpy_executor import interpret

        program = fit(
            program, _CPU_BLOCKS, 1 if slices is None else slices, _CPU_PIECE if piece_bytes is None else piece_bytes
        )
        outputs = interpret(program, [reference.inputs(rank) for rank in range(reference.ranks)], op, seed)
        if check:
            results = [reference.compare(rank, output) for rank, output in enumerate(outputs)]
            wrong, worst = sum(bad for bad, _ in results), max((error for _, error in results), default=0.0)
    else:
        from blinksim.execution.executors.cupy_executor import run_on_gpus

        done = run_on_gpus(
            program,
            schedule.topology,
            reference,
            gpus=gpus,
            slices=slices,
            piece_bytes=piece_bytes,
            threads=threads,
            warmup=warmup,
            iterations=iterations,
            timeout_s=timeout_s,
            check=check,
            apart=apart,
            lane_rate=lane_rate,
        )
        program, times, hardware, wrong, worst = done
    topology = schedule.topology
    return Execution(
        machine=topology.name,
        collective=schedule.collective,
        algorithm=schedule.algorithm,
        members=topology.members,
        relays=topology.relays,
        links=topology.default_links(),
        rates=topology.rates,
        executor=executor,
        op=op,
        dtype=kind.name,
        size_bytes=size_bytes,
        count=count,
        itemsize=kind.itemsize,
        in_place=in_place,
        ops=program.ops,
        slices=program.slices,
        piece_bytes=program.piece_units * program.unit * kind.itemsize,
        protocol=protocol,
        staged=program.staged,
        wrong=wrong,
        max_error=worst,
        tolerance=reference.tolerance,
        times_s=times,
        hardware=hardware,
    )
