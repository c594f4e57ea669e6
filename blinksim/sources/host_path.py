"""What lies between a GPU and another host: PCIe, host memory, a bridge, a DMA engine, a mailbox handshake.

A chunk goes hop by hop, and chunks follow each other, so a path is a pipeline: all hops once, and the slowest hop for
every further chunk (SISCI-NCCL thesis, Cubedo 2021, sections 1.4, 2.4, 3.3.3, 4.2). Without GPUDirect two stops are
added, at the memories of both hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from blinksim.cost.protocols import protocol
from blinksim.errors import InputError, unknown
from blinksim.sources.host_constants import HostConstants, host_constants

PCIE_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
# Bytes up to which crossovers are looked for.
_MOST_BYTES = 2**40


def pcie_bandwidth(generation: int, lanes: int, *, exact: bool = True) -> Fraction:
    """Bytes/s of a PCIe link in one direction.

    exact: after the line code (7.877 GB/s for generation 3 x8); otherwise the thesis's table 2.1, which rounds a lane
    of generation 3, 4 and 5 up to 1, 2 and 4 GB/s. Raises `InputError` for another generation or width.
    """
    known = host_constants().lanes
    if generation not in known:
        raise InputError(f"PCIe generation {generation}: known are {', '.join(map(str, known))}")
    if lanes not in PCIE_WIDTHS:
        raise InputError(f"PCIe x{lanes}: links have {', '.join(map(str, PCIE_WIDTHS))} lanes")
    lane = known[generation]
    code = lane.code if exact or generation <= 2 else Fraction(1)
    return lane.transfers * code / 8 * lanes


# --- one way to move bytes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mover:
    """A way to move bytes: start_s seconds, then bandwidth in bytes/s. PIO starts early, DMA is quick once started."""

    name: str
    start_s: float
    bandwidth: float

    def __post_init__(self) -> None:
        if self.start_s < 0 or self.bandwidth <= 0:
            raise InputError(f"{self.name}: needs a start of 0 s or more and a positive bandwidth")

    def time(self, size: float) -> float:
        """Seconds for `size` bytes."""
        return self.start_s + size / self.bandwidth


def quickest(movers: Sequence[Mover], size: float) -> Mover:
    """The mover with the least time for `size` bytes; the first of equals."""
    if not movers:
        raise InputError("no way to move bytes is given")
    return min(movers, key=lambda mover: mover.time(size))


def crossover(low: Mover, high: Mover) -> float | None:
    """Bytes from which `high` (later start, more bandwidth) is as quick as `low`; None if it never is, 0 if always."""
    if high.start_s <= low.start_s and high.bandwidth >= low.bandwidth:
        return 0.0
    slope = 1 / low.bandwidth - 1 / high.bandwidth
    return (high.start_s - low.start_s) / slope if slope > 0 and high.start_s > low.start_s else None


def start_for_crossover(low: Mover, bandwidth: float, size: float) -> float:
    """Seconds of start with which a mover of `bandwidth` bytes/s draws level with `low` at `size` bytes.

    So a published crossover gives the start that was not published. Raises `InputError` if `bandwidth` is not higher.
    """
    if bandwidth <= low.bandwidth:
        raise InputError(f"{bandwidth} B/s is not more than the {low.bandwidth} B/s of {low.name}; they never cross so")
    return low.time(size) - size / bandwidth


# --- paths --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hop:
    """A stretch that a chunk crosses in one go: bytes/s; latency overlaps with the next chunk, overhead does not."""

    name: str
    bandwidth: float
    latency_s: float = 0.0
    overhead_s: float = 0.0


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
        part = size / count / float(protocol(name).efficiency)
        busy = [hop.overhead_s + part / hop.bandwidth for hop in self.hops]
        return sum(busy) + sum(hop.latency_s for hop in self.hops) + (count - 1) * max(busy)


def between_hosts(gpu: Hop, wire: Hop, *, gpudirect: bool) -> HostPath:
    """The path from a GPU over `wire` (NTB or Ethernet) to a GPU of another host; `gpu` is a GPU's own PCIe link.

    gpudirect: the wire reads and writes GPU memory, so a chunk crosses all three links in one go, at the pace of the
    slowest. Without it the chunk is stored in the memory of both hosts: two stops more.
    """
    if gpudirect:
        slowest = min(gpu.bandwidth, wire.bandwidth)
        latency = 2 * gpu.latency_s + wire.latency_s
        return HostPath((Hop(f"GPU to GPU over {wire.name}", slowest, latency, wire.overhead_s),))
    return HostPath((Hop("GPU to host memory", gpu.bandwidth, gpu.latency_s, gpu.overhead_s),
                     Hop(f"host to host over {wire.name}", wire.bandwidth, wire.latency_s, wire.overhead_s),
                     Hop("host memory to GPU", gpu.bandwidth, gpu.latency_s, gpu.overhead_s)))  # fmt: skip


# --- two transports between hosts -----------------------------------------------------------------------------------


def transport(name: str, *, gpudirect: bool = False, constants: HostConstants | None = None) -> HostPath:
    """The path of one message between GPUs of two hosts of the thesis by ``socket`` or ``ntb``.

    Every message pays the start of its transport: TCP's, or the plugin's handshake (two PIO messages and the start of
    the DMA engine) and its threads. constants: in place of `models/host-path.yaml`. Raises `InputError` for another
    name.
    """
    data = constants or host_constants()
    gpu = Hop("GPU", float(data.value("gpu_bandwidth")))
    if name == "socket":
        over = replace(wire("ethernet"), overhead_s=data.seconds("socket_message"))
        # TCP copies through host memory, whatever the devices can.
        return between_hosts(gpu, over, gpudirect=False)
    if name == "ntb":
        start = 2 * data.seconds("pio_message") + data.seconds("dma_start") + data.seconds("plugin_message")
        return between_hosts(gpu, replace(wire("ntb"), overhead_s=start), gpudirect=gpudirect)
    raise unknown("transport", name, ("socket", "ntb"))


def paths_cross(low: HostPath, high: HostPath, chunk: float = _MOST_BYTES) -> int | None:
    """The least size in bytes at which `high` is quicker than `low`, by bisection; None if it never is.

    chunk: bytes of a chunk at most. `high` must be the one that gains with size.
    """

    def gains(size: int) -> bool:
        return high.time(size, chunk) < low.time(size, chunk)

    small, large = 0, _MOST_BYTES
    if not gains(large):
        return None
    while large - small > 1:
        middle = (small + large) // 2
        small, large = (small, middle) if gains(middle) else (middle, large)
    return large


def bootstrap_time(ranks: int, constants: HostConstants | None = None) -> float:
    """Seconds until all ranks know each other's addresses, over sockets (thesis, listings 3.1 and 3.2).

    Every rank tells the root its address and gets its successor's, one after another at the root; then an allgather
    of the addresses around the ring takes n - 1 messages in a row over connections that are made once. Raises
    `InputError` for less than one rank.
    """
    if ranks < 1:
        raise InputError(f"{ranks} ranks cannot start; give at least 1")
    if ranks == 1:
        return 0.0
    data = constants or host_constants()
    connect, message = data.seconds("bootstrap_connect"), data.seconds("socket_message")
    return 2 * ranks * connect + connect + (ranks - 1) * message


# --- the mailbox protocol -----------------------------------------------------------------------------------------


def most_channels() -> int:
    """Segments per communicator of the SISCI plugin, and so channels of a connection."""
    return int(host_constants().value("most_channels"))


@dataclass(frozen=True, slots=True)
class Mailbox:
    """The SISCI plugin's handshake, for every chunk: RECV_REQUESTED by PIO, the transfer by DMA, SEND_NOTIFIED by PIO.

    pio_s: seconds until a PIO message is there. dma_start_s: seconds to start the DMA engine. bandwidth: bytes/s of the
    link, which all channels share. (Thesis, section 4.2.5.)
    """

    pio_s: float
    dma_start_s: float
    bandwidth: float

    def cycle(self, chunk: float) -> float:
        """Seconds from one request of a channel to its next."""
        return 2 * self.pio_s + self.dma_start_s + chunk / self.bandwidth

    def time(self, size: float, chunk: float, channels: int = 1) -> float:
        """Seconds for `size` bytes in chunks of `chunk` bytes at most, chunk i on channel i mod `channels`.

        Each channel has a DMA queue of its own and does one chunk after another; the link serves what is ready first.
        Raises `InputError` for channels outside 1 to what a connection has (256).
        """
        if not 1 <= channels <= most_channels():
            raise InputError(f"{channels} channels: a connection has 1 to {most_channels()}")
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
        return min(most_channels(), ceil(self.cycle(chunk) * self.bandwidth / chunk - 1e-9))


def wire(name: str, *, exact: bool = True) -> Hop:
    """What joins the nodes of the thesis: ``ethernet`` (1 Gb/s) or ``ntb`` (PXH810, PCIe generation 3 x8).

    Without latency: the thesis prints none. Raises `InputError` for another name.
    """
    data = host_constants()
    if name == "ethernet":
        return Hop("Ethernet", float(data.value("ethernet_bandwidth")))
    if name == "ntb":
        generation, lanes = (int(data.value(key)) for key in ("ntb_generation", "ntb_lanes"))
        return Hop("NTB", float(pcie_bandwidth(generation, lanes, exact=exact)))
    raise unknown("wire", name, ("ethernet", "ntb"))
