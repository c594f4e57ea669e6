"""A topology at a glance: a headline, and one row for each kind of link."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING

from blinksim.textio.text_table import count
from blinksim.topology.elements import DEVICE_KINDS
from blinksim.units import exact_GBps, format_time

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology


def headline(topology: Topology) -> str:
    """What it is made of, at which rates, and after which edits."""
    counts = [f"{sum(d.kind == kind for d in topology.devices)} {kind}" for kind in DEVICE_KINDS]
    present = ", ".join(text for text in counts if not text.startswith("0 "))
    links = ", ".join(f"{sum(link.kind == kind for link in topology.links)} {kind}" for kind in topology.link_classes)
    edited = "".join(f"\n  edited: {edit}" for edit in topology.edits)
    return (
        f"<Topology {topology.name}: {count(topology.nodes, 'node')}, {count(topology.ranks, 'member')}\n"
        f"  devices: {present}\n"
        f"  links (directed): {links or 'none'}; rates: {topology.rates}{edited}>"
    )


def html(topology: Topology) -> str:
    """The headline, and a table of the links: how many of each class, lanes and bandwidth there are."""
    import pandas as pd

    kinds = Counter(
        (link.kind, link.lanes, link.bandwidth, link.latency, link.overhead, link.bus is not None)
        for link in topology.links
    )
    order = {kind: number for number, kind in enumerate(topology.link_classes)}
    rows = [
        {
            "class": kind,
            "links": times,
            "lanes": lanes,
            "GB/s": exact_GBps(bandwidth),
            "latency": format_time(latency),
            "overhead": format_time(overhead),
            "duplex": "half" if half else "full",
        }
        for (kind, lanes, bandwidth, latency, overhead, half), times in sorted(
            kinds.items(), key=lambda entry: (order[entry[0][0]], -entry[0][2])
        )
    ]
    most = 12
    more = f"<p>… {count(len(rows) - most, 'more kind')}</p>" if len(rows) > most else ""
    return f"<pre>{escape(repr(topology))}</pre>{pd.DataFrame(rows[:most]).to_html(index=False)}{more}"
