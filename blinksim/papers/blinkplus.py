"""Blink+ (student project, UC Berkeley, 2022): side channels through idle GPUs, modelled and as logged.

The report computes with 20 GB/s a link. Its logs of two V100 show 22.9, and with several channels a limit
that is none of links: one cap, fitted to the logs of tenant 0-1 at 1 GiB, also gives those of tenant 0-3.

Blink+ launches one collective per tree on a stream of its own; with a fourth channel the total stays at about
60 GB/s although the links would give 80 (section 4.4: scheduling of CUDA kernels; its logs have 66.6 GB/s
with three channels and 61.8 with four). A cap per GPU, in each direction, shows that. It is a property of the
machine that no data sheet has: without it links alone count, which is the theory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from statistics import geometric_mean

from blinksim.algorithms import blinkplus
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.machines import load
from blinksim.papers.tables import Figure, Table, published_rows
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule
from blinksim.timing.measured_constants import fit_line
from blinksim.timing.simulator import simulate
from blinksim.topology.graph import Topology
from blinksim.units import parse_rate

# Blink+ report, section 4.4, for a V100.
BLINKPLUS_CAP = Fraction(60 * 10**9)
# The attribute of a GPU in a machine file: what several channels reach together, such as 62GB/s.
ATTRIBUTE = "channels_together"


def machine_cap(topology: Topology) -> Fraction | None:
    """The least cap in bytes/s that a machine's GPUs state, None if none does; raises `InputError` if it is no rate."""
    stated = [device.attributes[ATTRIBUTE] for device in topology.devices if ATTRIBUTE in device.attributes]
    return min((parse_rate(str(text)) for text in stated), default=None)


def with_cap(schedule: Schedule, cap: Fraction | None = BLINKPLUS_CAP) -> Schedule:
    """The same schedule where no GPU sends or receives more than `cap` bytes/s; a lower capacity stays.

    cap: None for what the machine states (`machine_cap`); if it states nothing, nothing changes. The schedule
    loses its bound, which does not know the cap.
    """
    cap = machine_cap(schedule.topology) if cap is None else cap
    if cap is None:
        return schedule
    if cap <= 0:
        raise InputError("a cap must be a positive rate")
    devices = tuple(
        replace(d, capacity=cap if d.capacity is None else min(cap, d.capacity)) if d.holds or "reduce" in d.can else d
        for d in schedule.topology.devices
    )
    return replace(schedule, topology=replace(schedule.topology, devices=devices), bound={})


TITLE = "Blink+, 2022"
# The links between the two GPUs of each tenant.
OWN = {"0,1": 1, "0,3": 2}
# Operation, tenant and channels with which speedup the report claims, where it does (section 4.3).
_CLAIMS = {("broadcast", "0,1", 3): 3.0, ("broadcast", "0,3", 3): 1.5, ("allreduce", "0,1", 3): 3.0,
           ("allreduce", "0,3", 3): 1.5, ("broadcast", "0,1", 4): 4.0, ("broadcast", "0,3", 4): 2.0}  # fmt: skip
_MIB = 2**20


@cache
def logs() -> dict[tuple[str, str, int], dict[int, float]]:
    """Seconds by bytes, for each operation, tenant and number of channels (section 4.2, raw logs)."""
    times: dict[tuple[str, str, int], dict[int, float]] = {}
    for row in published_rows("blinkplus_measured.csv"):
        key = row["operation"], row["tenant"], OWN[row["tenant"]] + int(row["n_side_channels"])
        times.setdefault(key, {})[int(row["size_MiB"]) * _MIB] = float(row["time_us"]) / 1e6
    return times


@cache
def fitted() -> tuple[float, Fraction]:
    """A link and the cap in bytes/s, from the logs of tenant 0-1 at 1 GiB alone.

    The cap is the geometric mean of what several channels reached, so that too much and too little weigh the same.
    """
    mine = [(channels, 2**30 / times[2**30]) for (_, tenant, channels), times in logs().items() if tenant == "0,1"]
    alone = [rate for channels, rate in mine if channels == 1]
    return sum(alone) / len(alone), Fraction(round(geometric_mean(rate for channels, rate in mine if channels > 1)))


@cache
def side_channels(operation: str, tenant: str, channels: int | None = None, gpus: int = 4) -> Schedule:
    """So many chains between two GPUs of a DGX-1V, its links as the logs have them.

    channels: None for all that fit. gpus: how many of the machine's GPUs take part, the tenant's two included.
    """
    machine = load("dgx1-v100").edit(f"replace nvlink bandwidth={fitted()[0] / 1e9:.6f}GB/s")
    ends = [f"gpu{number}" for number in tenant.split(",")]
    idle = [f"gpu{number}" for number in range(gpus) if f"gpu{number}" not in ends]
    through = idle if channels is None or channels > OWN[tenant] else []
    part = machine.select(ends, through, relays_reduce=True)
    return blinkplus.build(part, Collective(operation), channels=channels)


def speedup(operation: str, tenant: str, channels: int, size: int, cap: Fraction | None) -> float:
    """How much quicker `size` bytes are over so many channels than over the tenant's own links."""
    few, many = (side_channels(operation, tenant, number) for number in (OWN[tenant], channels))
    times = [simulate(with_cap(machine, cap), size, most_events=200_000).time_s for machine in (few, many)]
    return times[0] / times[1]


def tables() -> Iterator[Table]:
    """Channels that fit, what the report claims, what its logs show, and lines through the logs."""
    rows = []
    for row, gpus in product(published_rows("blinkplus_tenants.csv"), (4, 8)):
        tenant, said = row["tenant"], float(row[f"chains_max_{gpus}gpu"])
        fit = float(blinkplus.lanes(side_channels("broadcast", tenant, gpus=gpus)))
        rows.append(Figure(f"tenant {tenant}, {gpus} GPUs", said, fit, "channels"))
    yield Table("Channels that fit", "section 4.1 for 0,1 and 0,3; the others by counting links", tuple(rows))
    theory, shown = [], []
    for (operation, tenant, channels), claim in _CLAIMS.items():
        name = f"{operation} {tenant}, {channels} channels"
        few, many = (side_channels(operation, tenant, number) for number in (OWN[tenant], channels))
        rates = [float(rate(box) or 0) for box in (few, many)]
        theory.append(Figure(name, claim, rates[1] / rates[0], "times"))
        alone, times = logs()[operation, tenant, OWN[tenant]], logs()[operation, tenant, channels]
        ours = speedup(operation, tenant, channels, 2**30, fitted()[1])
        shown.append(Figure(name, alone[2**30] / times[2**30], ours, "times"))
    yield Table("Speedup in theory", "sections 4.1 and 4.3; ours: the rate of the chains by links alone", tuple(theory))
    link, cap = (float(value) / 1e9 for value in fitted())
    source = f"section 4.2, raw logs; ours: simulated with {link:.1f} GB/s a link and at most {cap:.1f} GB/s for a GPU"
    yield Table("Measured speedup at 1 GiB", source, tuple(shown))
    small = [Figure(f"{operation} {tenant}, 3 channels", None, speedup(operation, tenant, 3, 64, fitted()[1]), "times",
                    "a broadcast through a neighbour takes two sends instead of one" * (operation == "broadcast"))
             for operation, tenant, channels in _CLAIMS if channels == 3]  # fmt: skip
    yield Table("Speedup at 64 bytes", "no log is of such sizes; ours as above", tuple(small))
    lines = []
    for row in published_rows("blinkplus_alphabeta_fit.csv"):
        key = row["operation"], row["tenant"], OWN[row["tenant"]] + int(row["n_side_channels"])
        alpha, beta, _ = fit_line(list(logs()[key].items()))
        name = f"{key[0]} {key[1]}, {key[2]} channels"
        lines.append(Figure(f"{name}: start", float(row["alpha_us"]), 1e6 * alpha, "us"))
        lines.append(Figure(f"{name}: rate", float(row["beta_inv_GBps"]), 1e-9 / beta, "GB/s"))
    yield Table("A start and a rate through the logs", "fitted to the raw logs, relative errors", tuple(lines))
