"""How soon messages can have reached all ranks of two nodes, against every schedule of messages without bytes."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings, strategies as st

import blinksim as bs
from blinksim.bounds.time.message_counts import Port, spread


def test_two_nodes_of_eight_by_hand() -> None:
    """1.9 us inside and one start every 1.3 us; 5.6 us over the own NIC, every 0.9 us; 6.6 us over another one's NIC.

    Outside: 5.6; 6.5; 6.6; 7.4; 7.5 by the second rank's NIC, and by the first one outside; 7.9; 8.3 twice.
    """
    part = bs.Question("hgx-h200", nodes=2).part()
    found = bs.time_bound(part, "allgather", "4KiB").best
    assert found.kind == "nodes-informed"
    assert found.to_dict()["time_us"] == "8.3"
    assert found.check(part, bs.Collective("allgather"), 4096) == []


@settings(max_examples=25)
@given(st.lists(st.integers(1, 6), min_size=4, max_size=4), st.integers(1, 2))
def test_no_order_of_messages_is_quicker(delays: list[int], inside: int) -> None:
    """Four ranks, each with one port: every order in which they hear, and whoever tells whom."""
    spacing, near, far, back = delays
    near, far, back = near + spacing, far + spacing, back + spacing
    ports = (Port(spacing, near, far),), (Port(spacing, back, near),)
    least = min(max(heard) for order in permutations(range(1, 4)) for heard in ways(order, ports, inside))
    assert max(map(max, spread(ports, (inside, 4 - inside)))) <= least


def ways(order: tuple[int, ...], ports: tuple[tuple[Port], tuple[Port]], inside: int) -> list[list[int]]:
    """When the ranks hear, for each choice of who tells them, one after another in this order."""
    found = [([0, *[-1] * 3], [0] * 4)]
    for rank in order:
        more = []
        for heard, free in found:
            for teller in (one for one in range(4) if heard[one] >= 0):
                port = ports[teller >= inside][0]
                start = max(free[teller], heard[teller])
                then, busy = heard.copy(), free.copy()
                then[rank] = start + (port.outside if rank >= inside else port.inside)
                busy[teller] = start + port.spacing
                more.append((then, busy))
        found = more
    return [heard for heard, _ in found]
