"""Which machines have the constants that the time of programs on GPUs needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology


def uncovered(part: Topology) -> str:
    """Why `blinksim.timing.execution_model` cannot time programs on a selected topology; empty if it can."""
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
