"""The few runs of two and four H200 in validate/results from which constants predict all others, and round guesses.

Forty runs of our programs, with packets and with flags, small and large; and 24 of NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator

from blinksim.answers.measurements.execution_fit import Case
from blinksim.timing.measured_constants import ExecutionRates, FlagRates, Origin, PacketRates, PortRates

US = 1e-6
KIB, MIB, GIB = 2**10, 2**20, 2**30
GUESSES = ExecutionRates(
    hardware="NVIDIA H200",
    measured=Origin("round guesses"),
    gpus=(2, 4),
    blocks=132,
    launch_s=8 * US,
    announce_s=0.5 * US,
    visit_s=0.6 * US,
    ports=PortRates(
        out=370e9,
        into=400e9,
        fan=0.025,
        queue_s=15 * US,
        posted_s=1.5 * US,
        uneven=0.5,
        turns_s=300 * US,
        first_s=1 * US,
        drift=0.04,
    ),
    packets=PacketRates(0.5 * US, 0.5 * US, 0.25 * US, 0.4 * US, 1 * US, 1 * US, 2.5, far_s=0.6 * US),
    flags=FlagRates(
        0.7 * US,
        1 * US,
        0.4 * US,
        0.4 * US,
        25.0 * 2**20,
        0.014e-9,
        0.7 * US,
        1.2 * US,
        1 * US,
        4.0,
        0.45 * US,
        load=0.3,
    ),
)
# Of NCCL, on two and on four GPUs: bytes by collective. A step of Simple is what such sets determine worst.
NCCL = {
    "allreduce": (16 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB),
    "allgather": (4 * MIB, 16 * MIB),
    "reducescatter": (16 * MIB, GIB),
    "reduce": (4 * MIB, 16 * MIB),
}


def ours() -> Iterator[Case]:
    """Small and large ones, of both counts of GPUs."""
    for gpus, name in ((2, "direct"), (4, "direct"), (4, "ring"), (2, "chain_tree")):
        yield Case(gpus, "allreduce", name, "ll128", KIB)
    yield Case(4, "allreduce", "double_binary", "ll128", 64 * KIB)
    yield Case(4, "allreduce", "direct", "ll128", 256 * KIB)
    packets = [
        ("allreduce", "ring", MIB), ("allreduce", "direct", MIB), ("allgather", "direct", MIB),
        ("reduce", "double_binary", MIB), ("broadcast", "chain", MIB), ("allreduce", "two_shot", 4 * MIB),
        ("allreduce", "ring", 16 * MIB), ("allreduce", "direct", 16 * MIB), ("reducescatter", "direct", 16 * MIB),
        ("broadcast", "chain", 16 * MIB), ("allreduce", "direct", 64 * MIB), ("allgather", "ring", 64 * MIB),
    ]  # fmt: skip
    flags = [
        ("allreduce", "ring", MIB), ("allreduce", "ring", 4 * MIB), ("allreduce", "ring", 16 * MIB),
        ("allreduce", "ring", 256 * MIB), ("allreduce", "ring", GIB), ("allreduce", "two_shot", MIB),
        ("allreduce", "two_shot", 16 * MIB), ("allreduce", "two_shot", GIB), ("allreduce", "direct", MIB),
        ("allreduce", "direct", 16 * MIB), ("allreduce", "direct", GIB), ("broadcast", "chain", MIB),
        ("broadcast", "chain", 16 * MIB), ("broadcast", "chain", 64 * MIB), ("reduce", "chain", MIB),
        ("reduce", "chain", 16 * MIB), ("reduce", "chain", 64 * MIB), ("allgather", "direct", 64 * MIB),
    ]  # fmt: skip
    for number, (collective, name, size) in enumerate(packets):
        yield Case(2 if number % 3 == 2 else 4, collective, name, "ll128", size)
    for number, (collective, name, size) in enumerate(flags):
        yield Case(2 if number % 3 == 2 else 4, collective, name, "simple", size)
    yield Case(2, "allreduce", "ring", "ll128", 16 * MIB)
    # Ops that only wait; pieces that follow each other on a block.
    yield Case(4, "allgather", "direct", "simple", MIB)
    for name, size in (("ring", 4 * MIB), ("two_shot", 256 * MIB)):
        yield Case(2, "allreduce", name, "simple", size)
