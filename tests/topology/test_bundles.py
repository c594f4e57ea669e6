"""Links of neighbours taken together: against a count of the links one by one."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings, strategies as st
from strategies import clusters_with_nics, topologies

from blinksim import machines
from blinksim.topology.graph import Topology
from blinksim.topology.routes import Bundles


def check(topology: Topology) -> None:
    """Every neighbour once, in the order of the links; widths are ordered; turns are shared as bandwidths are."""
    bundles, widths = Bundles(topology), dict[float, set[Fraction]]()
    for place, device in enumerate(topology.devices):
        leaving = [number for number, link in enumerate(topology.links) if link.src == device.name]
        ends = [topology.index[topology.links[number].dst] for number in leaving]
        assert list(bundles[place]) == list(dict.fromkeys(ends))
        for end, (bundle, rank) in bundles[place].items():
            links = [topology.links[number] for number, other in zip(leaving, ends, strict=True) if other == end]
            alone = [link.bandwidth for link in links if link.bus is None]
            shared = {link.bus: link.bandwidth for link in links if link.bus is not None}
            widths.setdefault(rank, set()).add(sum((*alone, *shared.values()), Fraction(0)))
            chosen = [topology.links[number] for number in bundle]
            assert set(chosen) <= set(links)
            if all(link.bus is None for link in chosen):
                assert len({Fraction(chosen.count(link)) / link.bandwidth for link in chosen}) == 1
    assert all(len(found) == 1 for found in widths.values())
    ranked = [found.pop() for _, found in sorted(widths.items())]
    assert ranked == sorted(ranked)
    assert len(set(ranked)) == len(ranked)


@settings(max_examples=25, deadline=None)
@given(machine=st.one_of(topologies(max_devices=7), clusters_with_nics()))
def test_neighbours_of_random_machines(machine: Topology) -> None:
    check(machine)


def test_neighbours_over_links_of_several_classes() -> None:
    for name in ("dgx1-v100", "mi250", "aurora"):
        check(machines.load(name).select(links="all"))
