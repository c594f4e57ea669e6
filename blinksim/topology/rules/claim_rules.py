"""Rules about what a machine file claims beside devices and links: abilities and symmetries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blinksim.topology.rules.rule import Breach, rule

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology


@rule("in-network", "warning", "see what the page on machine files says about switches that multicast and reduce")
def _in_network(topology: Topology) -> Iterator[str]:
    """Only switches multicast and reduce, and facts about that have a source."""
    yield from (doubt for device in topology.devices for doubt in device.doubts())


@rule("symmetric-generators", "warning", "correct or drop these symmetries; they are ignored")
def _symmetric(topology: Topology) -> Iterator[Breach]:
    """The symmetries given map the machine onto itself."""
    if not topology.symmetries:
        return
    from blinksim.topology import symmetry

    wrong = len(topology.symmetries) - len(symmetry.automorphisms(topology))
    if wrong:
        message = f"{wrong} of {len(topology.symmetries)} symmetries do not map the machine onto itself"
        yield Breach(message, ("symmetries",))
