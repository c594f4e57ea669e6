"""The SISCI-NCCL thesis (Cubedo, 2021): the path from a GPU to another host, and gains per training step.

A chunk goes hop by hop, and chunks follow each other, so a path is a pipeline: all hops once, and the slowest
hop for every further chunk (sections 1.4, 2.4, 3.3.3, 4.2). Without GPUDirect two stops are added, at the
memories of both hosts. The thesis prints bandwidths but no latency; `CONSTANTS` marks what is assumed. Its
charts are not data.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from blinksim import data_files
from blinksim.collective import busbw_factor
from blinksim.errors import InputError, unknown
from blinksim.papers.tables import Figure, Table, published_rows
from blinksim.textio.text_files import read_rows
from blinksim.timing.simulation_options import efficiency

TITLE = "SISCI-NCCL thesis, 2021"
PCIE_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
# Transfers per second of a lane by generation, and the share of them that is data (table 2.1; generation 6:
# flits).
_LANES = {1: (Fraction("2.5e9"), Fraction(8, 10)), 2: (Fraction("5e9"), Fraction(8, 10)),
          3: (Fraction("8e9"), Fraction(128, 130)), 4: (Fraction("16e9"), Fraction(128, 130)),
          5: (Fraction("32e9"), Fraction(128, 130)), 6: (Fraction("64e9"), Fraction(242, 256))}  # fmt: skip
# Bytes up to which crossovers are looked for.
_MOST_BYTES = 2**40


@dataclass(frozen=True, slots=True)
class Constant:
    """value: bytes/s, seconds or a count. source: where it is printed, or why it is `assumed` to be so."""

    value: float
    source: str
    assumed: bool


# What the host paths of the thesis are made of.
CONSTANTS: Mapping[str, Constant] = {
    row["name"]: Constant(float(row["value"]), row["source"], row["assumed"] == "yes")
    for row in read_rows(data_files.folder("models") / "cubedo_constants.csv", dict, "constant of a path")
}


def pcie_bandwidth(generation: int, lanes: int, *, exact: bool = True) -> Fraction:
    """Bytes/s of a PCIe link in one direction.

    exact: after the line code (7.877 GB/s for generation 3 x8); otherwise the thesis's table 2.1, which
    rounds a lane of generation 3, 4 and 5 up to 1, 2 and 4 GB/s. Raises `InputError` for another generation
    or width.
    """
    if generation not in _LANES:
        raise InputError(f"PCIe generation {generation}: known are {', '.join(map(str, _LANES))}")
    if lanes not in PCIE_WIDTHS:
        raise InputError(f"PCIe x{lanes}: links have {', '.join(map(str, PCIE_WIDTHS))} lanes")
    transfers, code = _LANES[generation]
    return transfers * (code if exact or generation <= 2 else 1) / 8 * lanes


# --- one way to move bytes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hop:
    """A stretch that a chunk crosses in one go: bytes/s; latency overlaps with the next chunk, overhead does not.

    Also a way to move bytes: PIO starts early, DMA is quick once started.
    """

    name: str
    bandwidth: float
    latency_s: float = 0.0
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        if self.start_s < 0 or self.bandwidth <= 0:
            raise InputError(f"{self.name}: needs a start of 0 s or more and a positive bandwidth")

    @property
    def start_s(self) -> float:
        """Seconds before the first byte is there."""
        return self.latency_s + self.overhead_s

    def time(self, size: float) -> float:
        """Seconds for `size` bytes in one go."""
        return self.start_s + size / self.bandwidth


def crossover(low: Hop, high: Hop) -> float | None:
    """Bytes from which `high` (later start, more bandwidth) is as quick as `low`; None if it never is, 0 if always."""
    if high.start_s <= low.start_s and high.bandwidth >= low.bandwidth:
        return 0.0
    slope = 1 / low.bandwidth - 1 / high.bandwidth
    return (high.start_s - low.start_s) / slope if slope > 0 and high.start_s > low.start_s else None


def start_for_crossover(low: Hop, bandwidth: float, size: float) -> float:
    """Seconds of start with which a hop of `bandwidth` bytes/s draws level with `low` at `size` bytes.

    So a published crossover gives the start that was not published. Raises `InputError` if `bandwidth` is not
    higher.
    """
    if bandwidth <= low.bandwidth:
        raise InputError(f"{bandwidth} B/s is not more than the {low.bandwidth} B/s of {low.name}; they never cross so")
    return low.time(size) - size / bandwidth


# --- paths --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostPath:
    """From one GPU's memory to another's: the hops between places where a chunk is stored."""

    hops: tuple[Hop, ...]

    @property
    def stops(self) -> int:
        """Places between the two ends where a chunk is stored."""
        return len(self.hops) - 1

    @property
    def bandwidth(self) -> float:
        """Bytes/s of the slowest hop."""
        return min(hop.bandwidth for hop in self.hops)

    def time(self, size: float, chunk: float, name: str = "simple") -> float:
        """Seconds for `size` bytes in chunks of `chunk` bytes at most, by protocol `name`."""
        if size <= 0 or chunk <= 0:
            raise InputError("a path moves at least a byte, in chunks of at least a byte")
        count = ceil(size / chunk)
        part = size / count / float(efficiency(name))
        busy = [hop.overhead_s + part / hop.bandwidth for hop in self.hops]
        return sum(busy) + sum(hop.latency_s for hop in self.hops) + (count - 1) * max(busy)


def between_hosts(gpu: Hop, wire: Hop, *, gpudirect: bool) -> HostPath:
    """The path from a GPU over `wire` (NTB or Ethernet) to a GPU of another host; `gpu` is a GPU's own PCIe link.

    gpudirect: the wire reads and writes GPU memory, so a chunk crosses all three links in one go, at the pace
    of the slowest. Without it the chunk is stored in the memory of both hosts: two stops more.
    """
    if gpudirect:
        slowest = min(gpu.bandwidth, wire.bandwidth)
        latency = 2 * gpu.latency_s + wire.latency_s
        return HostPath((Hop(f"GPU to GPU over {wire.name}", slowest, latency, wire.overhead_s),))
    between = replace(wire, name=f"host to host over {wire.name}")
    return HostPath((replace(gpu, name="GPU to host memory"), between, replace(gpu, name="host memory to GPU")))


# Segments per communicator of the SISCI plugin, and so channels of a connection.
MOST_CHANNELS = int(CONSTANTS["most_channels"].value)


@dataclass(frozen=True, slots=True)
class Mailbox:
    """The SISCI plugin's handshake, for every chunk: RECV_REQUESTED by PIO, the transfer by DMA, SEND_NOTIFIED by PIO.

    pio_s: seconds until a PIO message is there. dma_start_s: seconds to start the DMA engine. bandwidth:
    bytes/s of the link, which all channels share. (Thesis, section 4.2.5.)
    """

    pio_s: float
    dma_start_s: float
    bandwidth: float

    def cycle(self, chunk: float) -> float:
        """Seconds from one request of a channel to its next."""
        return 2 * self.pio_s + self.dma_start_s + chunk / self.bandwidth

    def time(self, size: float, chunk: float, channels: int = 1) -> float:
        """Seconds for `size` bytes in chunks of `chunk` bytes at most, chunk i on channel i mod `channels`.

        Each channel has a DMA queue of its own and does one chunk after another; the link serves what is
        ready first. Raises `InputError` for channels outside 1 to what a connection has (256).
        """
        if not 1 <= channels <= MOST_CHANNELS:
            raise InputError(f"{channels} channels: a connection has 1 to {MOST_CHANNELS}")
        if size <= 0 or chunk <= 0:
            raise InputError("a mailbox moves at least a byte, in chunks of at least a byte")
        count = ceil(size / chunk)
        part = size / count / self.bandwidth
        ready = [0.0] * channels
        free = 0.0
        for number in range(count):
            channel = number % channels
            free = max(ready[channel] + self.pio_s + self.dma_start_s, free) + part
            ready[channel] = free + self.pio_s
        return max(ready)

    def channels_needed(self, chunk: float) -> int:
        """The least number of channels with which the link never waits for a handshake."""
        return min(MOST_CHANNELS, ceil(self.cycle(chunk) * self.bandwidth / chunk - 1e-9))


# --- two transports between hosts -----------------------------------------------------------------------------------


def wire(name: str, *, exact: bool = True) -> Hop:
    """What joins the nodes of the thesis: ``ethernet`` (1 Gb/s) or ``ntb`` (PXH810, PCIe generation 3 x8).

    Without latency: the thesis prints none. Raises `InputError` for another name.
    """
    if name == "ethernet":
        return Hop("Ethernet", CONSTANTS["ethernet_bandwidth"].value)
    if name == "ntb":
        generation, lanes = (int(CONSTANTS[key].value) for key in ("ntb_generation", "ntb_lanes"))
        return Hop("NTB", float(pcie_bandwidth(generation, lanes, exact=exact)))
    raise unknown("wire", name, ("ethernet", "ntb"))


def transport(name: str, *, gpudirect: bool = False, seconds: Mapping[str, float] | None = None) -> HostPath:
    """The path of one message between GPUs of two hosts of the thesis by ``socket`` or ``ntb``.

    Every message pays the start of its transport: TCP's, or the plugin's handshake (two PIO messages and the
    start of the DMA engine) and its threads. seconds: in place of those of `CONSTANTS`. Raises `InputError`
    for another name.
    """
    value = {key: constant.value for key, constant in CONSTANTS.items()} | dict(seconds or {})
    gpu = Hop("GPU", value["gpu_bandwidth"])
    if name == "socket":
        # TCP copies through host memory, whatever the devices can.
        return between_hosts(gpu, replace(wire("ethernet"), overhead_s=value["socket_message"]), gpudirect=False)
    if name == "ntb":
        start = 2 * value["pio_message"] + value["dma_start"] + value["plugin_message"]
        return between_hosts(gpu, replace(wire("ntb"), overhead_s=start), gpudirect=gpudirect)
    raise unknown("transport", name, ("socket", "ntb"))


def paths_cross(low: HostPath, high: HostPath, chunk: float = _MOST_BYTES) -> int | None:
    """The least size in bytes at which `high` is quicker than `low`, by bisection; None if it never is.

    chunk: bytes of a chunk at most. `high` must be the one that gains with size.
    """
    sizes = range(1, _MOST_BYTES + 1)
    place = bisect_left(sizes, True, key=lambda size: high.time(size, chunk) < low.time(size, chunk))
    return sizes[place] if place < len(sizes) else None


def bootstrap_time(ranks: int) -> float:
    """Seconds until all ranks know each other's addresses, over sockets (thesis, listings 3.1 and 3.2).

    Every rank tells the root its address and gets its successor's, one after another at the root; then an
    allgather of the addresses around the ring takes n - 1 messages in a row over connections that are made
    once. Raises `InputError` for less than one rank.
    """
    if ranks < 1:
        raise InputError(f"{ranks} ranks cannot start; give at least 1")
    if ranks == 1:
        return 0.0
    connect, message = CONSTANTS["bootstrap_connect"].value, CONSTANTS["socket_message"].value
    return 2 * ranks * connect + connect + (ranks - 1) * message


# --- a training step ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One training step in seconds. communication_s: all of it; exposed_s: what computation does not hide."""

    compute_s: float
    communication_s: float
    exposed_s: float

    @property
    def time_s(self) -> float:
        return self.compute_s + self.exposed_s


def step(compute_s: float, buckets: Sequence[tuple[float, float]]) -> Step:
    """The step whose gradients are reduced one bucket at a time, beside the backward pass (S. Li et al., VLDB 2020).

    buckets: when each is ready, seconds after the start of the step, and the seconds that its allreduce
    takes.
    """
    if compute_s < 0 or any(value < 0 for bucket in buckets for value in bucket):
        raise InputError("times of a training step must not be negative")
    end = 0.0
    for ready, time in sorted(buckets):
        end = max(end, ready) + time
    return Step(compute_s, sum(time for _, time in buckets), max(0.0, end - compute_s))


def overlapped(compute_s: float, communication_s: float, overlap: float = 0.0) -> Step:
    """The step of which a share `overlap` of the computation (0 to 1) can hide communication."""
    if compute_s < 0 or communication_s < 0 or not 0 <= overlap <= 1:
        raise InputError("give times of 0 s or more, and an overlap from 0 to 1")
    return Step(compute_s, communication_s, max(0.0, communication_s - overlap * compute_s))


def speedup(before: Step, factor: float, overlap: float = 0.0) -> float:
    """How much shorter the step gets when its communication gets `factor` times quicker (Amdahl 1967)."""
    if factor <= 0:
        raise InputError(f"a factor of {factor}: give a positive one")
    after = overlapped(before.compute_s, before.communication_s / factor, overlap)
    return before.time_s / after.time_s if after.time_s else 1.0


def tables() -> Iterator[Table]:
    """PCIe, protocols, hosts and messages, and training."""
    lanes = [
        Figure(f"PCIe {generation} x{width}", float(row[f"x{width}_GBps"]),
               float(pcie_bandwidth(generation, width)) / 1e9, "GB/s", "rounded up there" * (generation > 2))
        for generation, row in enumerate(published_rows("cubedo_pcie.csv"), start=1)
        for width in (1, 4, 8, 16)
    ]  # fmt: skip
    yield Table("PCIe links", "table 2.1; ours: by the line code", tuple(lanes))
    ethernet, ntb = wire("ethernet"), wire("ntb")
    gpu = Hop("GPU", CONSTANTS["gpu_bandwidth"].value)
    printed = (("simple", 1), ("ll", 0.5), ("ll128", 0.9375))
    shares = [Figure(f"data in what {name} sends", said, float(efficiency(name))) for name, said in printed]
    stops = [between_hosts(gpu, ntb, gpudirect=direct).stops for direct in (False, True)]
    yield Table(
        "Links, protocols and counts",
        "sections 1.4, 3.3.1, 3.3.3, 4.2.3 and 5.3",
        (
            Figure("PCIe 3 x8, the NTB adapter", 63, 8 * ntb.bandwidth / 1e9, "Gb/s"),
            Figure("PCIe 4 x16", 252, 8 * float(pcie_bandwidth(4, 16)) / 1e9, "Gb/s"),
            Figure("NTB over Ethernet", 63.04, ntb.bandwidth / ethernet.bandwidth, "times"),
            *shares,
            Figure("stops more without GPUDirect", 2, stops[0] - stops[1]),
            Figure("channels of a connection", 256, MOST_CHANNELS),
            Figure("busbw over algbw, allreduce on 4 ranks", 1.5, float(busbw_factor("allreduce", 4))),
        ),
    )
    socket, plugin = transport("socket"), transport("ntb")
    crossing = paths_cross(socket, plugin)
    mailbox = Mailbox(CONSTANTS["pio_message"].value, CONSTANTS["dma_start"].value, ntb.bandwidth)
    low, pio = Hop("PIO", 1e9, overhead_s=0.5e-6), "PIO at an assumed 1 GB/s"
    starts = {count: 1e6 * start_for_crossover(low, ntb.bandwidth, 4 * count) for count in (8000, 10000)}
    named = {f"start of DMA if PIO crosses at {count:,} float32": us for count, us in starts.items()}
    dma = [Figure(name, None, us, "us", pio) for name, us in named.items()]
    alone, four = (2**26 / mailbox.time(2**26, 2**18, channels) / 1e9 for channels in (1, 4))
    assumed = "from assumed latencies"
    yield Table(
        "Messages between two hosts",
        "sections 4.2.5, 5.5 and 5.6; ours: staged in host memory, times as assumed in `CONSTANTS`",
        (
            Figure("NTB quicker than sockets from", (8000, 10000), (crossing or 0) / 4, "float32", assumed),
            *dma,
            Figure("64 MiB in chunks of 256 KiB, 1 channel", None, alone, "GB/s", assumed),
            Figure("64 MiB in chunks of 256 KiB, 4 channels", None, four, "GB/s", assumed),
            Figure("channels that hide the handshake", None, mailbox.channels_needed(2**18), "", assumed),
            Figure("bootstrap of 4 ranks", None, 1e6 * bootstrap_time(4), "us", assumed),
        ),
    )
    large = socket.time(2**30, 2**20) / transport("ntb", gpudirect=True).time(2**30, 2**22)
    idle = [
        Figure(f"{row['model']} over {row['interconnect']}: a step with them 12 times quicker", None,
               speedup(overlapped(float(row["gpu_usage"]), 1 - float(row["gpu_usage"])), 12), "times",
               f"GPUs at work {100 * float(row['gpu_usage']):.1f} % of the step")
        for row in published_rows("cubedo_table61.csv")
    ]  # fmt: skip
    quicker = "collectives of EfficientNetB0 quicker over NTB"
    rows = (Figure(quicker, 12, large, "times", "ours: 1 GiB by GPUDirect"), *idle)
    yield Table("Training", "section 6.7, table 6.1; no gain of a step is printed", rows)
