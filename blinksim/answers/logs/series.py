"""Series of measured times of one collective on part of a machine, from nccl-tests logs naming its GPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass

from blinksim.answers.project import gpus_of
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import InputError
from blinksim.formats.shipped.known_gpus import model, named
from blinksim.machines import MachineLike, as_topology
from blinksim.nccl.logs import tests_log
from blinksim.nccl.logs.tests_log import Run
from blinksim.textio.text_table import count
from blinksim.topology.elements import Device
from blinksim.topology.graph import Topology


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time. size: bytes; time_s: seconds; line: its place in a log, 0 if it comes from none."""

    size: int
    time_s: float
    line: int = 0


@dataclass(frozen=True)
class Series:
    """Measured times of one collective on one selected topology.

    Parameters
    ----------
    topology : Topology
        The part of the machine that was measured.
    collective : Collective
        What was measured.
    samples : tuple of Sample
        Sizes in bytes with times in seconds.

    Examples
    --------
    >>> import blinksim as bs
    >>> from blinksim.answers.logs.series import Sample
    >>> pair = bs.load("dgx1-v100").select([0, 1])
    >>> times = tuple(Sample(size, 5e-6 + size / 20e9) for size in (2**10, 2**20, 2**30))
    >>> found = bs.calibrate(bs.Series(pair, bs.Collective("broadcast"), times))
    >>> round(found.parameter("nvlink", "bandwidth").value / 1e9, 1)
    20.0
    """

    topology: Topology
    collective: Collective
    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, run: Run, topology: Topology) -> Series:
        """All measurements of a test with more than 0 bytes, out of place and in place."""
        samples = tuple(Sample(row.size, row.time_s, row.line) for row in run.rows if row.size)
        root = max(0, run.rows[0].root)
        return cls(topology, Collective(run.collective, root), samples)


def read_series(
    path: str | os.PathLike[str], machine: MachineLike, collective: CollectiveLike = ""
) -> tuple[Series, ...]:
    """The series in a log of nccl-tests, each on the members of `machine` that the log names.

    Parameters
    ----------
    path : str or path
        Text that nccl-tests printed, or its JSON.
    machine : str, path or Topology
        The machine that it was measured on: a name of the catalogue, a machine file, or a topology.
    collective : str or Collective, optional
        Which tests to take, or what they are of if the log does not say.

    Returns
    -------
    tuple of Series
        A topology, a collective and its measured times for each test; `calibrate` takes them.

    Raises
    ------
    FileError
        For a file that is no log of nccl-tests.
    InputError
        For a log of several collectives or of another machine.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("log.txt").write_text('''# Collective test starting: all_reduce_perf
    ... #      size      count   type  redop  root     time   algbw   busbw  #wrong
    ... #       (B)                                    (us)  (GB/s)  (GB/s)
    ...       16384       4096  float    sum    -1    23.73    0.69    1.21       0
    ...    16777216    4194304  float    sum    -1   121.13  138.51  242.39       0
    ...  1073741824  268435456  float    sum    -1  5227.44  205.40  359.46       0
    ... ''')
    >>> import blinksim as bs
    >>> (series,) = bs.read_series("log.txt", "hgx-h200")
    >>> series.topology.ranks, series.samples[-1].time_s
    (8, 0.00522744)
    """
    whole = as_topology(machine)
    wanted = Collective.of(collective).name if collective else ""
    runs = tests_log.select(tests_log.read(path), wanted)
    return tuple(Series.of(run, whole.select(members_of(run, whole))) for run in runs)


def members_of(run: Run, machine: Topology) -> tuple[str, ...]:
    """The members of `machine` (all its nodes) that the test ran on, in rank order.

    A log that does not list its ranks is assumed to cover all members. If it covers fewer, its device numbers
    name them; they count the GPUs of a node in file order. Raises `InputError` where ranks, hosts or numbers
    do not fit.
    """
    ranks = run.ranks or machine.ranks
    hosts = list(dict.fromkeys(place.host for place in run.places))
    if len(hosts) > max(1, machine.nodes):
        raise InputError(f"{run.path}: comes from {len(hosts)} hosts; add nodes={len(hosts)}")
    if ranks == machine.ranks:
        return machine.members
    if 0 < len(hosts) < machine.nodes:
        cure = f"give nodes={len(hosts)}, or ranks_per_node={ranks // machine.nodes} if hosts share a name"
        there = f"not on {gpus_of(machine.name, machine.ranks, machine.nodes)}"
        raise InputError(f"{run.path}: has {ranks} ranks on {count(len(hosts), 'host')}, {there}; {cure}")
    if ranks > machine.ranks:
        there = f"{machine.name} has {machine.ranks}"
        raise InputError(f"{run.path}: has {ranks} ranks, but {there}; is it this machine? For a cluster give nodes=")
    hint = f"{run.path}: comes from {ranks} of the {machine.ranks} GPUs of {machine.name}; name them with members="
    if len(run.places) != ranks:
        raise InputError(hint)
    gpus: list[list[str]] = [[] for _ in range(max(1, machine.nodes))]
    for device in machine.devices:
        if device.holds and device.node >= 0:
            gpus[device.node].append(device.name)
    number = {host: node for node, host in enumerate(hosts)}
    chosen = []
    for place in sorted(run.places, key=lambda place: place.rank):
        node = gpus[number[place.host]]
        if place.device >= len(node):
            raise InputError(f"{hint}: there is no device {place.device} on a node")
        chosen.append(node[place.device])
    if len(set(chosen)) < len(chosen):
        raise InputError(f"{hint}: ranks share a device number")
    return tuple(chosen)


def other_gpus(run: Run, machine: Topology) -> str:
    """What to say if the log names GPUs of another model than the machine's; empty if it does not, or none is known."""
    own = {model(machine.device(name)) for name in machine.members} - {""}
    for name in dict.fromkeys(place.name for place in run.places):
        if own and named(name) and model(Device("gpu", "gpu", attributes={"model": name})) not in own:
            return f"{run.path}: ran on {name}, and the GPUs of {machine.name} are {', '.join(sorted(own))}"
    return ""


def check_members(run: Run, topology: Topology) -> None:
    """Raises `InputError` if the log says that it has another number of ranks than the chosen members."""
    if run.ranks and run.ranks != topology.ranks:
        raise InputError(f"{run.path}: has {run.ranks} ranks, and {topology.ranks} members are chosen")
