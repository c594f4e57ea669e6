"""What edits took from a machine: devices and links that are gone, and links that carry less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blinksim.topology.graph import Link, Topology


@dataclass(frozen=True)
class Changes:
    """devices: names that are gone. gone: links. weaker: links as they are now, with bytes/s before."""

    devices: tuple[str, ...] = ()
    gone: tuple[Link, ...] = ()
    weaker: tuple[tuple[Link, float], ...] = ()

    @property
    def places(self) -> set[str]:
        """The devices at which something changed."""
        links = (*self.gone, *(link for link, _ in self.weaker))
        return {*self.devices, *(end for link in links for end in (link.src, link.dst))}

    def without(self, kind: str, before: Topology) -> Changes:
        """The same without what happened to devices of a kind, and to their links."""
        lost = {device.name for device in before.devices if device.kind == kind}
        return Changes(
            tuple(name for name in self.devices if name not in lost),
            tuple(link for link in self.gone if not {link.src, link.dst} & lost),
            tuple(entry for entry in self.weaker if not {entry[0].src, entry[0].dst} & lost),
        )


def changes(before: Topology | None, after: Topology) -> Changes:
    """What `after` lacks of `before`; a whole class that became slower is another rate, not a damage."""
    if before is None:
        return Changes()
    now = {link.key: link for link in after.links}
    lost = tuple(device.name for device in before.devices if device.name not in after.index)
    gone = tuple(link for link in before.links if link.key not in now)
    weaker = [
        (now[link.key], float(link.bandwidth))
        for link in before.links
        if link.key in now and now[link.key].bandwidth < link.bandwidth
    ]
    count = {kind: sum(link.kind == kind for link in now.values()) for kind in after.link_classes}
    slower = {kind for kind in count if sum(link.kind == kind for link, _ in weaker) == count[kind] > 2}
    return Changes(lost, gone, tuple(entry for entry in weaker if entry[0].kind not in slower))
