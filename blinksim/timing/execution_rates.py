"""Constants of running a program on GPUs behind an NVSwitch, for `blinksim.gpu.program_time`.

A machine's file states them under ``execution``, calibrated by measurements; they say nothing about the links
that alpha-beta takes into account, and hold for the GPUs of one node that a switch joins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blinksim.timing.origin import FitError, Origin

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology


@dataclass(frozen=True, slots=True)
class PortRates:
    """A GPU's way out to the switch and in from it.

    Parameters
    ----------
    out, into : float
        Bytes/s.
    fan : float
        How much longer a transfer takes the way out, as a share, for every further GPU that the sender stores to.
    queue_s : float
        How far a receiver may be behind before it holds up what its sender has for others.
    posted_s : float
        How long the way out may be busy with what blocks have stored before the next one has to wait for its turn.
    uneven : float
        By how much, as a share, half of the blocks get more of the way out than an even share, and the others less.
    turns_s : float
        After how long it is the other half of the blocks that get more. 0: never.
    first_s, drift : float
        Blocks that begin together store to the same GPU at the same time, and drift apart: a receiver may be `first_s`
        behind when a launch begins, and for every second from then on by this share of it more, up to `queue_s`.
        drift 0: `queue_s` from the start.
    """

    out: float
    into: float
    fan: float
    queue_s: float
    posted_s: float = 0.0
    uneven: float = 0.0
    turns_s: float = 0.0
    first_s: float = 0.0
    drift: float = 0.0


@dataclass(frozen=True, slots=True)
class PacketRates:
    """Packets, which carry their flags (ll128).

    Parameters
    ----------
    piece_s, round_s : float
        Of a block, for the first round of a piece, and for each round.
    local_s, inbox_s : float
        Of a block, for 7680 bytes of a source in its own buffers, and of one in an inbox.
    step_s, own_s : float
        From the arrival of data until what a waiting block makes of it is stored; from the end of an op until another
        block of the same GPU has seen its flag.
    soft : float
        The exponent n of (work^n + port^n)^(1/n), the time of a block that does not wait.
    wire : float
        How many bytes ports carry for a byte of packets.
    far_s : float
        Of a block, for each round once the data lie in memory instead of the cache (`FlagRates.cache_bytes`).
    """

    piece_s: float
    round_s: float
    local_s: float
    inbox_s: float
    step_s: float
    own_s: float
    soft: float
    wire: float = 1.0
    far_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FlagRates:
    """Flags behind the data (simple).

    Parameters
    ----------
    before_s, piece_s, round_s : float
        Of a block, for each piece before and after it looks at its flags, and for each round.
    far_s, cache_bytes : float
        Of a block, for each round once the data lie in memory instead of the cache, and bytes of that cache.
    byte_s : float
        Of a block, for each byte and target.
    fence_s, flag_s, own_s : float
        What a fence takes, and then the way of a flag to another GPU and within one.
    soft : float
        As in `PacketRates`.
    look_s : float
        Of a block, for looking at the flags of a piece, also where they are raised already; an op that only waits then
        spends no `piece_s`. 0: `before_s` and `piece_s` hold it.
    load : float
        How much of a round's work, as a share, comes before its data leave: they are loaded first.
    """

    before_s: float
    piece_s: float
    round_s: float
    far_s: float
    cache_bytes: float
    byte_s: float
    fence_s: float
    flag_s: float
    own_s: float
    soft: float
    look_s: float = 0.0
    load: float = 0.0


@dataclass(frozen=True, slots=True)
class ExecutionRates:
    """The constants of a machine.

    Parameters
    ----------
    hardware : str
        Name of the GPUs.
    measured : Origin
        Where the constants come from.
    gpus : tuple of int
        The numbers of GPUs that were measured.
    blocks : int
        Thread blocks that a GPU runs at once.
    launch_s : float
        From the end of a GPU's last block until its next launch begins.
    announce_s : float
        Until a GPU has heard that another has begun.
    visit_s : float
        What a block spends on each op that it looks at, also on one whose turn it is not.
    ports : PortRates
    packets : PacketRates
    flags : FlagRates
    error : FitError, optional
        Of the points that were not fitted.
    """

    hardware: str
    measured: Origin
    gpus: tuple[int, ...]
    blocks: int
    launch_s: float
    announce_s: float
    visit_s: float
    ports: PortRates
    packets: PacketRates
    flags: FlagRates
    error: FitError | None = None


def uncovered(part: Topology) -> str:
    """Why these constants do not time programs on a selected topology; empty if they do."""
    if part.execution is None:
        return f"{part.name} at {part.rates} rates has no measured constants of running programs"
    if part.nodes > 1:
        return "its constants are those of one node"
    if part.relays:
        return "it knows no relays"
    others = [device.name for device in part.devices if device.name not in part.members]
    if len(others) != 1:
        return "its constants are those of GPUs around a switch"
    ways = {(link.lane_bandwidth, link.lanes, others[0] in (link.src, link.dst)) for link in part.links}
    if len(part.links) != 2 * part.ranks or len(ways) != 1 or not ways.pop()[2]:
        return "its constants are those of GPUs with equal links to a switch"
    return ""
