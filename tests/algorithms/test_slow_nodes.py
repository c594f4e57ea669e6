"""Where ports are slow or lost, ranks hand data to others of their node, or the node hands its own to other nodes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

import blinksim as bs

GB = 10**9

NAMES = "hierarchical", "hierarchical_direct", "hierarchical_multiplying"


# Straight messages fill what is left of a port: 14/8 of the data over fifteen halves of a port.
STRAIGHT = {"degrade n5.nic3-fabric3 bandwidth=25GB/s": Fraction(25 * 15 * 8, 14)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("machine", "edit", "nodes", "evenly", "else_"),
    [
        # Nothing lost: 2 (n - 1) / n of the data over eight ports of 50 GB/s.
        ("hgx-h100", "", 8, Fraction(400 * 8, 14), Fraction(400 * 8, 14)),
        # A quarter of the data over the port that two GPUs share, once; the other nodes pass 13/7 over eight ports.
        # Evenly: a seventh over each port, of which seven ports of seven nodes get a part; these pass 12/7 over eight.
        # In few steps, routes past all GPUs with ports do the same.
        ("hgx-h100", "without n0.nic0", 8, 50 / (Fraction(12, 7 * 8) + Fraction(1, 7 * 7)), Fraction(4900, 23)),
        ("hgx-h100", "without n0.nic0", 4, 50 / (Fraction(4, 3 * 8) + Fraction(1, 7 * 3)), Fraction(700, 3)),
        # NVLinks of a GPU without a port pass most: 7/8 of the data as its node sums it, 1/8 to the GPUs with ports,
        # and 7/8 to all. Of two nodes one sums all.
        ("hgx-h100", "without n0.nic0", 2, Fraction(450 * 8, 15), Fraction(450 * 8, 15)),
        # All ports that are left carry a quarter of the data either way.
        ("hgx-h100", "without n0.nic[0-3]", 8, Fraction(200), Fraction(200)),
        # Half a port is an eighth of the data in a node that hands it over; the others pass 13/7. Evenly: as above, as
        # a seventh of a shard is the least that other GPUs take.
        ("hgx-h100", "degrade n5.nic3-fabric3 bandwidth=25GB/s", 8, Fraction(4900, 23), Fraction(200)),
        # A little slower is better than to hand over: 14/8 of the data over 48 GB/s.
        ("hgx-h100", "degrade n5.nic3-fabric3 bandwidth=48GB/s", 8, Fraction(48 * 64, 14), Fraction(48 * 64, 14)),
        # Without rails every GPU gets the same: of four nodes three pass 4/3 and get 1/3 over eight times four ports.
        ("p5", "without n0.efa[0-3]", 4, Fraction(400 * 3, 5), Fraction(200)),
        # Lost on every node: 14/8 over seven ports, or over 31 of which gpu0 has three; in few steps an eighth of that
        # over three of four.
        ("hgx-h100", "without nic0", 8, Fraction(50 * 7 * 8, 14), Fraction(50 * 7 * 8, 14)),
        ("p5", "without efa0", 8, Fraction(50 * 31 * 8, 4 * 14), Fraction(50 * 3 * 8 * 8, 4 * 14)),
        # The ranks that a node has left pass the shards of the one that it lost, over seven ports.
        ("hgx-h100", "without n1.gpu3", 8, Fraction(50 * 7 * 8, 14), Fraction(50 * 7 * 8, 14)),
    ],
)
def test_rates_by_hand(name: str, machine: str, edit: str, nodes: int, evenly: Fraction, else_: Fraction) -> None:
    made = bs.synthesize(bs.load(machine, nodes=nodes, edits=edit or ()), "allreduce", name)
    assert made.verdict.ok
    straight = STRAIGHT.get(edit, evenly)
    assert made.rate == (else_ if name == NAMES[2] else straight if name == NAMES[1] else evenly) * GB


@given(st.sets(st.integers(0, 7), min_size=1, max_size=6))
def test_all_ports_that_are_left_carry_the_same(lost: set[int]) -> None:
    """They carry all data once, of which each of the others' gets a seventh of what one sends, beside 12/7 of 1/8."""
    edits = [f"without n2.nic{nic}" for nic in sorted(lost)]
    made = bs.synthesize(bs.load("hgx-h100", nodes=8, edits=edits), "allreduce", "hierarchical_direct")
    each = Fraction(1, 8 - len(lost))
    assert made.verdict.ok
    assert made.rate == 50 * GB / max(each, Fraction(12, 7 * 8) + each / 7)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nodes", [3, 4, 6, 8])
def test_other_ports_lost_on_every_node(nodes: int, name: str) -> None:
    """All have seven ports left, and pass 2 (n - 1) / n of the data; some of it twice, as rails are not the same.

    Ports that no node has lost would carry it alone on three or four nodes, and on eight there is none.
    """
    edits = [f"without n{node}.nic{node}" for node in range(nodes)]
    made = bs.synthesize(bs.load("hgx-h100", nodes=nodes, edits=edits), "allreduce", name)
    assert made.verdict.ok
    of_all, of_common = (Fraction(50 * ports * nodes, 2 * (nodes - 1)) for ports in (7, 8 - nodes))
    assert max(of_common, Fraction(6, 7) * min(of_all, Fraction(225))) * GB <= made.rate <= of_all * GB


LOST = st.tuples(st.integers(0, 5), st.sampled_from(("nic", "gpu")), st.integers(0, 7))


@given(
    st.integers(2, 6),
    st.lists(LOST, max_size=6),
    st.sampled_from(
        [
            *((name, collective) for name in NAMES for collective in ("allreduce", "allgather", "reducescatter")),
            *((NAMES[2], collective) for collective in ("broadcast", "reduce")),
            ("scatter_allgather", "broadcast"),
        ]
    ),
)
def test_any_lost_ports_and_gpus(nodes: int, lost: list[tuple[int, str, int]], made_by: tuple[str, str]) -> None:
    """Some GPU is in all nodes, the last one; the root of a broadcast need not be."""
    edits = [f"without n{node}.{what}{place}" for node, what, place in sorted({*lost}) if node < nodes and place < 4]
    name, collective = made_by
    machine = bs.load("hgx-h100", nodes=nodes, edits=edits)
    root = (machine.ranks - 1) * (collective in ("broadcast", "reduce"))
    made = bs.synthesize(machine, bs.Collective(collective, root=root), name)
    assert made.verdict.ok
    assert made.rate <= made.bound.rate


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nodes", [3, 8])
def test_shards_of_a_gpu_that_one_node_lost(nodes: int, name: str) -> None:
    """The node gets what the others have by seven ports; or NVLinks of the others send 7/8 of all, and a bit of 1/8."""
    machine, ranks = bs.load("hgx-h100", nodes=nodes, edits=["without n1.gpu3"]), 8 * nodes - 1
    for collective in ("allgather", "reducescatter"):
        made = bs.synthesize(machine, collective, name)
        assert made.verdict.ok
        ports = Fraction(50 * 7 * ranks, ranks - 7)
        assert Fraction("0.97") * min(ports, Fraction(450 * 8, 7)) * GB <= made.rate <= ports * GB


@pytest.mark.parametrize(
    ("machine", "lost", "least"),
    [
        ("aurora", ("n2.card1.t0",), 0.9),
        ("dgx1-v100", ("n0.gpu5",), 0.85),
        ("trn2", ("n0.chip2.0", "n1.chip0.2"), 0.65),
    ],
)
def test_trees_inside_nodes_leave_out_what_is_lost(machine: str, lost: tuple[str, ...], least: float) -> None:
    """No two tiles of other number have a link between cards, and no chips that are not beside each other."""
    part = bs.load(machine, nodes=3, edits=[f"without {one}" for one in lost])
    for collective in ("allreduce", "allgather", "reducescatter"):
        made = bs.synthesize(part, collective, "hierarchical_trees")
        assert made.verdict.ok
        assert least * made.bound.rate <= made.rate <= made.bound.rate


@pytest.mark.parametrize("nodes", [2, 9])
def test_a_broadcast_passes_the_gpus_that_all_nodes_have(nodes: int) -> None:
    machine = bs.load("hgx-h100", nodes=nodes, edits=["without n1.gpu3"])
    for collective in ("broadcast", "reduce"):
        made = bs.synthesize(machine, collective, "hierarchical_multiplying")
        assert made.verdict.ok
        assert made.rate == 7 * 50 * GB
    # A root that other nodes lack sends by another one's rail, past that one's NVLinks.
    lost = bs.load("hgx-h100", nodes=nodes, edits=["without n1.gpu0"])
    made = bs.synthesize(lost, "broadcast", "hierarchical_multiplying")
    assert made.verdict.ok
    assert 6 * 50 * GB <= made.rate <= 7 * 50 * GB
    lost = bs.load("hgx-h100", nodes=9, edits=[f"without n{node}.gpu{node}" for node in range(8)])
    with pytest.raises(bs.InfeasibleError, match="no GPU is in all of them"):
        bs.synthesize(lost, "broadcast", "hierarchical_multiplying")


@given(
    st.integers(2, 6),
    st.sets(st.integers(0, 7), min_size=1, max_size=7),
    st.booleans(),
    st.sampled_from(("allgather", "reducescatter")),
    st.sampled_from(("hierarchical", "hierarchical_direct")),
)
def test_shards_pass_all_ports_that_are_left(
    nodes: int, lost: set[int], everywhere: bool, collective: str, name: str
) -> None:
    """What a node lacks comes in by all its ports, evenly, and goes from GPUs with ports to the seven others.

    Or as with few steps, on routes past all GPUs with ports, where NVLinks would hold it up.
    """
    edits = [f"without {'' if everywhere else 'n1.'}nic{nic}" for nic in sorted(lost)]
    machine, ports = bs.load("hgx-h100", nodes=nodes, edits=edits), 8 - len(lost)
    made, few = (bs.synthesize(machine, collective, one) for one in (name, "hierarchical_multiplying"))
    evenly = min(Fraction(450 * ports, 7), Fraction(nodes, nodes - 1) * 50 * ports) * GB
    assert made.verdict.ok
    assert made.rate in (evenly, few.rate)
    assert max(made.rate, few.rate) * Fraction("1.03") >= evenly
