"""The scale-up + scale-out projection against arithmetic done by hand."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

import blinksim as bs
from blinksim import machines
from blinksim.answers.project import rank
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.machines import Question
from blinksim.results import Term, total
from blinksim.timing import projection
from blinksim.timing.projection_result import Projection
from blinksim.topology.elements import Fabric
from blinksim.topology.graph import Device, Link, Topology
from blinksim.units import format_size, parse_rate

GB = 10**9


def duplex(a: str, b: str, kind: str, rate: str, lanes: int = 1) -> list[Link]:
    return [Link(x, y, kind, parse_rate(rate), lanes) for x, y in ((a, b), (b, a))]


def aurora_node(pcie: str = "42GB/s") -> Topology:
    """Six cards of two tiles, a full Xe plane for the first and one for the second tiles, eight NICs."""
    tiles = [f"card{c}.t{t}" for c in range(6) for t in range(2)]
    links = [x for c in range(6) for x in duplex(f"card{c}.t0", f"card{c}.t1", "mdfi", "180GB/s")]
    for a, b in itertools.combinations(range(6), 2):
        links += [x for t in range(2) for x in duplex(f"card{a}.t{t}", f"card{b}.t{t}", "xe", "15GB/s")]
    links += [x for tile in tiles for x in duplex(tile, "host", "pcie", pcie)]
    links += [x for n in range(8) for x in duplex("host", f"nic{n}", "host-nic", "55GB/s")]
    names = tuple(f"nic{n}" for n in range(8))
    return Topology(
        "aurora",
        (*(Device(t, "tile") for t in tiles), Device("host", "cpu"), *(Device(n, "nic") for n in names)),
        tuple(links),
        collective_links=("mdfi", "xe"),
        inter_node_links=("pcie", "host-nic", "slingshot"),
        fabric=Fabric("switch", names, "slingshot", parse_rate("23GB/s")),
    )


def switched_node(gpus: int = 8, lanes: int = 12, nics: int = 8) -> Topology:
    """GPUs on one NVSwitch, 25 GB/s a lane, and NICs of 25 GB/s."""
    links = [x for g in range(gpus) for x in duplex(f"gpu{g}", "nvswitch", "nvlink", "25GB/s", lanes)]
    links += [x for n in range(nics) for x in duplex("cpu", f"nic{n}", "pcie", "32GB/s")]
    names = tuple(f"nic{n}" for n in range(nics))
    devices = [Device(f"gpu{g}", "gpu") for g in range(gpus)] + [Device("nvswitch", "switch"), Device("cpu", "cpu")]
    return Topology(
        "switched",
        (*devices, *(Device(n, "nic") for n in names)),
        tuple(links),
        collective_links=("nvlink",),
        inter_node_links=("pcie", "ib"),
        fabric=Fabric("switch", names, "ib", parse_rate("25GB/s")),
    )


AURORA = aurora_node()


def milliseconds(terms: tuple[Term, ...]) -> float:
    return 1e3 * total(terms)


def run(nodes: int, ranks: int | None, size: float, preset: str = "aurora-projection") -> float:
    return milliseconds(projection.project(AURORA, nodes, ranks, round(size * GB), preset))


@pytest.mark.parametrize(
    ("size", "nodes", "ranks", "expected"),
    [(2, 16, 12, 47.698), (1, 32, 6, 39.772), (2, 3, 10, 44.783), (2, 3, 1, 144.928)],
)
def test_cells_that_are_not_printed(size: int, nodes: int, ranks: int, expected: float) -> None:
    assert run(nodes, ranks, size) == pytest.approx(expected, abs=5e-4)


def test_scale_out_saturates() -> None:
    preset = projection.load_preset("aurora-projection")
    times = [milliseconds(projection.equations(preset, 2 * GB, n, 1)) for n in (2, 4, 8, 16, 10**9)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(217.391, abs=5e-4)


# --- the equations as written ---------------------------------------------------------------------------------------


def test_chain_between_nodes() -> None:
    chain = projection.load_preset("aurora-chain")
    assert milliseconds(projection.equations(chain, 2 * GB, 2, 1)) == pytest.approx(396.0, abs=0.05)
    assert chain.constants is not None
    faster = {**chain.constants, "nic": Fraction(25 * GB)}
    assert milliseconds(projection.equations(chain, 2 * GB, 2, 1, faster)) == pytest.approx(382.1, abs=0.05)
    for nodes, expected in ((4, 1188), (8, 2772), (16, 5940)):
        assert milliseconds(projection.equations(chain, 2 * GB, nodes, 1)) == pytest.approx(expected, abs=0.5)


def test_chain_in_a_node() -> None:
    chain = projection.load_preset("aurora-chain")
    assert milliseconds(projection.equations(chain, 875 * 10**6, 1, 2)) == pytest.approx(118.4, abs=0.05)


def test_chain_preset_takes_its_bandwidths_from_the_machine() -> None:
    machine = aurora_node(pcie="55GB/s")
    for nodes, ranks, size, expected in ((2, 1, 2 * GB, 396.0), (1, 2, 875 * 10**6, 118.4)):
        terms = projection.project(machine, nodes, ranks, size, "aurora-chain")
        assert milliseconds(terms) == pytest.approx(expected, abs=0.05)


def test_equation_5_is_equation_4_for_two_nodes_of_four_ranks() -> None:
    terms = projection.equations(projection.load_preset("aurora-as-written"), 2 * GB, 2, 4)
    by_hand = 1 / (2 * 15) + 2 * 2 / (0.8 * 4 * 23) * (2 - 1) / 2 + 1 / (2 * 15)
    assert total(terms) == pytest.approx(by_hand, rel=1e-12)


def test_as_written_gives_what_the_tables_do_not_have() -> None:
    assert run(2, 2, 2, "aurora-as-written") == pytest.approx(187.7, abs=0.05)
    assert run(1, 2, 0.875, "aurora-as-written") == pytest.approx(63.2, abs=0.05)
    for nodes, ranks in ((2, 4), (16, 12), (3, 10), (1, 4), (1, 12)):
        assert run(nodes, ranks, 2, "aurora-as-written") == run(nodes, ranks, 2)


def test_mdfi_is_hidden_or_added() -> None:
    # Both exchanges move half of the vector over MDFI: Z / 180 GB/s in all.
    assert run(4, 12, 2, "aurora-projection-mdfi") - run(4, 12, 2) == pytest.approx(2e3 / 180)
    for ranks in (1, 2):
        assert run(4, ranks, 2, "aurora-projection-mdfi") == run(4, ranks, 2)


def test_terms_add_up_and_name_their_limits() -> None:
    terms = projection.project(AURORA, 16, 12, 2 * GB, "aurora-projection-pcie")
    assert [term.limit for term in terms] == ["xe", "slingshot", "xe", "pcie", "pcie"]
    assert [1e3 * t.time_s for t in terms] == pytest.approx([11.111, 25.476, 11.111, 7.937, 7.937], abs=5e-4)
    assert sum(term.time_s for term in terms) == pytest.approx(total(terms), rel=1e-15)
    assert total(terms) == math.fsum(term.time_s for term in terms)


# --- one bandwidth at a time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rate"), [("xe", 53), ("slingshot", 25), ("pcie", 64), ("mdfi", 220)])
def test_an_edit_changes_the_terms_of_its_class_alone(kind: str, rate: int) -> None:
    cluster = AURORA.replicate(4)
    before = projection.project(cluster, 4, 12, 2 * GB, "aurora-projection-pcie")
    edited = cluster.edit(f"replace {kind} bandwidth={rate}GB/s")
    after = projection.project(edited, 4, 12, 2 * GB, "aurora-projection-pcie")
    old = {"xe": 15, "slingshot": 23, "pcie": 42, "mdfi": 180}[kind]
    for a, b in zip(before, after, strict=True):
        assert b.time_s == pytest.approx(a.time_s * (old / rate if a.limit == kind else 1), rel=1e-12)
    assert any(term.limit == kind for term in before) is (kind != "mdfi")


def test_one_node_with_a_fabric_stands_for_the_cluster() -> None:
    for preset in ("aurora-projection", "aurora-projection-pcie", "projection"):
        assert projection.project(AURORA, 3, 10, GB, preset) == projection.project(
            AURORA.replicate(3), 3, 10, GB, preset
        )


def test_the_fabric_of_a_single_node_can_be_edited() -> None:
    edit = "replace slingshot bandwidth=25GB/s"
    for preset in ("aurora-projection", "aurora-chain", "projection"):
        alone = projection.project(AURORA.edit(edit), 4, 12, GB, preset)
        assert alone == projection.project(AURORA.replicate(4).edit(edit), 4, 12, GB, preset)
        assert alone == projection.project(AURORA.edit(edit).replicate(4), 4, 12, GB, preset)
        assert total(alone) < total(projection.project(AURORA, 4, 12, GB, preset))
    for wrong, text in (("degrade slingshot bandwidth=25GB/s", "would raise"), ("replace slingshot lanes=0", "lanes")):
        with pytest.raises(InputError, match=text):
            AURORA.edit(wrong)


def test_a_lost_nic_counts_on_every_node() -> None:
    lame = AURORA.replicate(2).without("n1.nic3")
    whole, less = (projection.project(m, 2, 12, GB, "aurora-projection")[1] for m in (AURORA, lame))
    assert less.time_s == pytest.approx(whole.time_s * 8 / 7, rel=1e-12)
    for everywhere in (AURORA.without("nic3"), AURORA.without("nic3").replicate(2)):
        assert projection.project(everywhere, 2, 12, GB, "aurora-projection")[1] == less


def test_links_of_idle_tiles_do_not_count() -> None:
    slow = AURORA.edit("replace card4.t0-card5.t0 bandwidth=1GB/s")
    assert projection.project(slow, 2, 4, GB, "aurora-projection") == projection.project(
        AURORA, 2, 4, GB, "aurora-projection"
    )
    assert total(projection.project(slow, 2, 12, GB, "aurora-projection")) > 0.15


def test_bottleneck_table() -> None:
    rows = projection.bottlenecks("aurora-projection-pcie", 2 * GB, 16, 12)
    assert rows[0].change == ""
    assert 1e3 * rows[0].time_s == pytest.approx(63.571, abs=5e-4)
    out, xe, pcie = 25.47554, 22.22222, 15.87302
    expected = {
        "xe 15 GB/s -> 53 GB/s": out + xe * 15 / 53 + pcie,
        "nic 23 GB/s -> 25 GB/s": out * 23 / 25 + xe + pcie,
        "nic_efficiency 0.8 -> 1": out * 0.8 + xe + pcie,
        "nic 23 GB/s -> 11 GB/s, nic_efficiency 0.8 -> 1": out * 18.4 / 11 + xe + pcie,
        "nic 23 GB/s -> 8 GB/s, nic_efficiency 0.8 -> 1": out * 18.4 / 8 + xe + pcie,
        "pcie 42 GB/s -> 55 GB/s": out + xe + pcie * 42 / 55,
        "pcie 42 GB/s -> 64 GB/s": out + xe + pcie * 42 / 64,
        "mdfi 180 GB/s -> 196 GB/s": out + xe + pcie,
        "mdfi 180 GB/s -> 220 GB/s": out + xe + pcie,
    }
    assert {row.settings: round(1e3 * row.time_s, 3) for row in rows[1:]} == {
        key: round(value, 3) for key, value in expected.items()
    }
    assert rows[1].settings.startswith("xe")
    for row in rows:
        assert total(row.terms) == row.time_s
        assert row.saved_s == rows[0].time_s - row.time_s
        assert row.ratio == rows[0].time_s / row.time_s
        assert row.source


def test_bottleneck_of_two_tiles_is_mdfi_inside_the_node() -> None:
    rows = projection.bottlenecks("aurora-projection", 2 * GB, 2, 2)
    time = {row.settings: 1e3 * row.time_s for row in rows}
    assert time["mdfi 180 GB/s -> 220 GB/s"] == pytest.approx(63.44, abs=0.01)
    assert time["mdfi 180 GB/s -> 196 GB/s"] == pytest.approx(64.55, abs=0.01)
    assert time["xe 15 GB/s -> 53 GB/s"] == time[""]
    assert not any(key.startswith("pcie") for key in time)


# --- what the answers say --------------------------------------------------------------------------------------------


def answer(
    size: str, nodes: int, ranks: int, edits: tuple[str, ...] = (), model: str = "aurora-projection"
) -> Projection:
    question = Question("aurora", nodes=nodes, ranks_per_node=ranks, rates="seed", edits=edits)
    return rank(question, "allreduce", size, model=model).best


@pytest.mark.parametrize(
    ("nodes", "ranks", "edits", "bottleneck", "percent"),
    [
        # Twice 1 GB over six Xe links of 15 GB/s, and 2 GB over eight NICs at 0.8 of 23 GB/s: 22.2 and 13.6 ms.
        (2, 12, (), "xe: reduce-scatter between cards, allgather between cards", 62.1),
        (16, 12, (), "slingshot: allreduce between nodes", 53.4),
        # 47.6 ms on Xe links at 7 GB/s, and 25.5 ms on NICs.
        (16, 12, ("degrade card0.t0-card1.t0 bandwidth=7GB/s",), "xe: reduce-scatter", 65.1),
        (4, 1, (), "slingshot: allreduce between nodes", 100),
    ],
)
def test_the_bottleneck_is_the_class_that_takes_most(
    nodes: int, ranks: int, edits: tuple[str, ...], bottleneck: str, percent: float
) -> None:
    found = answer("2GB", nodes, ranks, edits)
    assert found.bottleneck.startswith(bottleneck)
    assert 100 * found.details["bottleneck_busy"] == pytest.approx(percent, abs=0.05)
    assert found.bottleneck_words == f"{found.bottleneck}, busy {percent:.0f} % of the time"


@pytest.mark.parametrize("model", ["aurora-projection", "aurora-chain"])
def test_two_ranks_of_one_node_sit_on_two_cards(model: str) -> None:
    rates = projection.load_preset(model).rates
    assert rates is not None
    machine = machines.load("aurora", rates=rates)
    found = rank(Question("aurora", ranks_per_node=2, rates=rates), "allreduce", "2GB", model=model).best
    assert found.members == ("card0.t0", "card1.t0")
    assert {link.kind for link in machine.links if {link.src, link.dst} == set(found.members)} == {"xe"}
    assert {term.limit for term in found.terms} <= {"xe", "memory"}
    assert answer("2GB", 2, 2).members == ("n0.card0.t0", "n0.card0.t1", "n1.card0.t0", "n1.card0.t1")
    alone = machine.subset(["card0.t0", "card0.t1", "card1.t1"])
    with pytest.raises(InfeasibleError, match=r"card0\.t0 has no xe link"):
        projection.project(alone, 1, 2, 2 * GB, model)


@pytest.mark.parametrize(
    ("nodes", "ranks", "by_hand"),
    [
        # Latency and overhead of a message: 1.9 us on Xe and MDFI, 1.35 us on Slingshot, four times to reach 16 nodes;
        # ten times that at the pace of the published tables for two nodes, in bytes.
        (16, 12, 10 * (2 * 1.9e-6 + 4 * 1.35e-6) / (35.8e-3 / 2e9)),
        (2, 1, 10 * 1.35e-6 / (108.7e-3 / 2e9)),
        (1, 12, 10 * 4 * 1.9e-6 / (10.5e-3 / 875e6)),
    ],
)
def test_sizes_that_latencies_decide_are_refused(nodes: int, ranks: int, by_hand: float) -> None:
    least = answer("2GB", nodes, ranks).details["holds_from_bytes"]
    assert by_hand <= least < 2 * by_hand
    assert least.bit_count() == 1
    assert answer(str(least), nodes, ranks).time_s == pytest.approx(run(nodes, ranks, least / GB) / 1e3)
    for size in (least - 1, 1024):
        with pytest.raises(InfeasibleError, match=f"holds from {format_size(least)} on: "):
            answer(str(size), nodes, ranks)


@pytest.mark.parametrize("model", ["aurora-projection", "aurora-projection-mdfi", "aurora-chain", "projection"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 12])
def test_more_nodes_are_refused_no_fewer_sizes(model: str, ranks: int) -> None:
    """They pass more messages, whose latencies the equations leave out."""
    aurora = Question("aurora", ranks_per_node=ranks)
    least = [
        rank(replace(aurora, nodes=nodes), "allreduce", 10**11, model).best.details["holds_from_bytes"]
        for nodes in (2, 3, 4, 8, 64, 1024)
    ]
    assert least == sorted(least)


def test_an_edit_of_links_that_no_term_has_says_so() -> None:
    edits = ("replace mdfi bandwidth=50GB/s", "replace xe bandwidth=50GB/s")
    hidden = "replace mdfi bandwidth=50GB/s; changes nothing: no term has mdfi"
    for ranks, said in ((12, hidden), (2, edits[0])):
        found = answer("2GB", 2, ranks, edits)
        told = [text for label, text in found.facts(edits) if label == "edited"]
        assert told[0] == said
        assert (found.time_s == answer("2GB", 2, ranks, edits[1:]).time_s) is (said == hidden)
        assert ("changes nothing" in told[1]) is (ranks == 2)


# --- any machine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 10, 12])
@pytest.mark.parametrize("nodes", [2, 3, 16])
def test_derived_levels_are_the_aurora_reading_with_mdfi_added(nodes: int, ranks: int) -> None:
    derived = replace(projection.load_preset("projection"), nic_efficiency=Fraction(4, 5))
    ours = projection.project(AURORA, nodes, ranks, 2 * GB, derived)
    assert milliseconds(ours) == pytest.approx(run(nodes, ranks, 2, "aurora-projection-mdfi"), rel=1e-12)


def test_a_switched_node_reaches_the_bus_bandwidth_of_its_links() -> None:
    terms = projection.project(switched_node(), 1, None, 8 * GB)
    assert [term.limit for term in terms] == ["nvlink", "nvlink"]
    assert total(terms) == pytest.approx(2 * 7 / 8 * 8 / 300)  # 2(n-1)/n of 8 GB at 12 lanes of 25 GB/s


def test_a_switched_cluster_by_hand() -> None:
    inside, ports = 7 / 8 * 8 / 300, 8 * 25
    expected = {
        "allreduce": 2 * inside + 2 * 8 * 3 / 4 / ports,
        "reducescatter": inside + 8 * 3 / 4 / ports,
        "allgather": inside + 8 * 3 / 4 / ports,
        "broadcast": 2 * inside + 8 / ports,
        "reduce": 2 * inside + 8 / ports,
    }
    for name, time in expected.items():
        terms = projection.project(switched_node().replicate(4), 4, 8, 8 * GB, collective=name)
        assert total(terms) == pytest.approx(time, rel=1e-12), name
    # A rank drives one port; with four ports to eight ranks, the ports set the pace.
    half = projection.project(switched_node(), 4, 4, 8 * GB)
    assert half[1].time_s == pytest.approx(2 * 8 * 3 / 4 / 100)
    narrow = projection.project(switched_node(nics=4), 4, 8, 8 * GB)
    assert narrow[1].time_s == pytest.approx(2 * 8 * 3 / 4 / 100)


def test_two_sockets_share_the_link_between_them() -> None:
    links = [x for g in range(4) for x in duplex(f"gpu{g}", f"cpu{g // 2}", "pcie", "16GB/s")]
    node = Topology(
        "sockets",
        (*(Device(f"gpu{g}", "gpu") for g in range(4)), Device("cpu0", "cpu"), Device("cpu1", "cpu")),
        (*links, *duplex("cpu0", "cpu1", "upi", "20GB/s")),
    )
    assert projection.levels(node, node.members) == (
        projection.Exchange("pcie", 2, Fraction(16 * GB)),
        projection.Exchange("upi", 2, Fraction(10 * GB)),
    )
    assert total(projection.project(node, 1, 4, 4 * GB)) == pytest.approx(2 * (4 * 0.5 / 16 + 2 * 0.5 / 10))


def test_a_bus_gives_each_direction_half_and_a_device_its_capacity() -> None:
    devices = (Device("gpu0", "gpu", capacity=Fraction(3 * GB)), Device("gpu1", "gpu"))
    wide = Topology("pair", devices, tuple(duplex("gpu0", "gpu1", "wire", "10GB/s")))
    assert projection.levels(wide, wide.members)[0].bandwidth == 3 * GB
    bus = Topology("pair", devices, tuple(replace(x, lane_bandwidth=Fraction(4 * GB), bus="b") for x in wide.links))
    assert projection.levels(bus, bus.members)[0].bandwidth == 2 * GB


@pytest.mark.parametrize(
    ("nodes", "ranks", "size", "preset", "expected"),
    [
        (16, 12, 2 * GB, "aurora-projection", 47.698),
        (32, 6, GB, "aurora-projection", 39.772),
        (3, 10, 2 * GB, "aurora-projection", 44.783),
        (16, 12, 2 * GB, "aurora-projection-pcie", 63.571),
        (1, 12, 875 * 10**6, "aurora-projection", 10.532),
        (2, 1, 2 * GB, "aurora-chain", 396.001),
        (1, 2, 875 * 10**6, "aurora-chain", 118.376),
    ],
)
def test_the_machine_of_the_catalogue(nodes: int, ranks: int, size: int, preset: str, expected: float) -> None:
    rates = projection.load_preset(preset).rates
    assert rates is not None
    machine = machines.load("aurora", rates=rates)
    assert milliseconds(projection.project(machine, nodes, ranks, size, preset)) == pytest.approx(expected, abs=5e-4)
    loaded = projection.load_preset(preset)
    ours = projection.machine_constants(machine, machine.members[:ranks], nodes, loaded)
    assert loaded.constants is not None
    assert {role: ours[role] for role in loaded.uses} == {role: loaded.constants[role] for role in loaded.uses}
    assert ours["nics_per_node"] == 8


def test_every_machine_of_the_catalogue_has_a_projection() -> None:
    for name in ("dgx1-v100", "dgx-a100", "hgx-h100", "p3.16xlarge", "k2200-ntb"):
        machine = machines.load(name)
        terms = projection.project(machine, 2 if machine.fabric else 1, None, GB)
        assert len(terms) == 3 if machine.fabric else 2
        assert all(term.time_s > 0 and term.limit for term in terms)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "ranks", "preset", "error", "text"),
    [
        (2, 3, "aurora-projection", InfeasibleError, "take 2 or 4"),
        (2, 3, "projection", InfeasibleError, "unequal size"),
        (1, 1, "aurora-projection", InputError, "at least two ranks"),
        (1, 1, "projection", InputError, "at least two ranks"),
        (1, 4, "aurora-projection-pcie", InfeasibleError, "2 nodes or more"),
        (2, 14, "aurora-projection", InputError, "has 12"),
        (0, 2, "aurora-projection", InputError, "at least 1"),
        (2, 0, "aurora-projection", InputError, "give 1 to 12"),
        (2, 4, "aurora-projektion", InputError, "aurora-projection"),
    ],
)
def test_refused(nodes: int, ranks: int, preset: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        projection.project(AURORA, nodes, ranks, GB, preset)


@pytest.mark.parametrize(("lost", "kind", "left"), [("card0.t0-card1.t0", "xe", 4), ("card0.t0-card0.t1", "mdfi", 0)])
def test_ranks_that_lack_links_are_not_alike(lost: str, kind: str, left: int) -> None:
    machine = bs.load("aurora", rates="seed", edits=[f"without {lost}"])
    with pytest.raises(InfeasibleError, match=rf"has {left} {kind} links and others have"):
        projection.project(machine, 1, None, 2 * 10**9, "aurora-projection")


def test_refused_machines_and_collectives() -> None:
    with pytest.raises(InfeasibleError, match=r"class 'mdfi'.*nvlink.*model 'projection'"):
        projection.project(switched_node(), 2, 4, GB, "aurora-projection")
    with pytest.raises(InfeasibleError, match="alltoall"):
        projection.project(AURORA, 2, 4, GB, collective="alltoall")
    with pytest.raises(InfeasibleError, match="allreduce"):
        projection.project(AURORA, 2, 4, GB, "aurora-projection", collective="allgather")
    with pytest.raises(InfeasibleError, match="no fabric"):
        projection.project(replace(AURORA, fabric=None), 2, 4, GB)
    with pytest.raises(InputError, match="cluster of 2 nodes"):
        projection.project(AURORA.replicate(2), 3, 4, GB)
    with pytest.raises(InfeasibleError, match="does not connect"):
        projection.project(AURORA.subset(["card0.t0", "card1.t1"]), 1, 2, GB)
    uneven = replace(AURORA.replicate(2), members=("n0.card0.t0", "n0.card0.t1", "n1.card0.t0"))
    with pytest.raises(InfeasibleError, match="1 and 2 ranks"):
        projection.project(uneven, 2, None, GB)
    with pytest.raises(InfeasibleError, match="needs a machine"):
        projection.bottlenecks("projection", GB, 2, 2)


TEXT = """title: t
source: s
constants:
  nic_efficiency: {value: 1, source: s}
presets:
  mine: {title: t, reading: derived}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("reading: derived", "reading: chain", "also needs constants: device_to_host"),
        ("reading: derived", "reading: derivd", "did you mean 'derived'"),
        ("value: 1,", "value: 1.5,", "out of range"),
        ("value: 1,", "value: one,", "nic_efficiency"),
        ("{value: 1, source: s}", "{value: 1}", r":4:19: constant nic_efficiency has no 'source'; add it"),
        ("nic_efficiency:", "nic_eficiency:", "did you mean 'nic_efficiency'"),
        ("derived}", "derived, uses: [xe]}", "uses 'xe'"),
        ("derived}", "derived, pcie: 3}", "unknown answer '3'"),
        ("derived}", "derived", "is not valid YAML"),
        ("presets:\n", "preset:\n", "did you mean 'presets'"),
        ("title: t\nsource", "- a\nsource", "is not valid YAML"),
        ("presets:\n", "what_if: 3\npresets:\n", r":5:10: .*must be a list"),
        ("derived}", "derived, uses: 3}", r":6:44: .*must be a list"),
        ("derived}", "derived, rates: [a]}", r":6:45: .*must be a text"),
        ("value: 1,", "value: 1e999999999,", "must be a positive number"),
        (TEXT, "just text", "must be a mapping"),
    ],
)
def test_a_broken_model_file_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "projection.yaml"
    path.write_text(TEXT)
    assert [preset.name for preset in projection.read_presets(path)] == ["mine"]
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(FileError, match=message) as caught:
        projection.read_presets(path)
    assert str(caught.value).startswith(str(path))


def test_every_number_of_the_models_has_a_source() -> None:
    known = {name: projection.load_preset(name) for name in projection.presets()}
    assert {"projection", "aurora-projection", "aurora-projection-pcie", "aurora-chain"} <= known.keys()
    assert projection.load_preset("projection:aurora-chain") is known["aurora-chain"]
    for preset in known.values():
        assert preset.source
        assert all(change.source for change in preset.what_if)


@pytest.mark.parametrize("rates", ["nominal", "measured"])
@pytest.mark.parametrize("machine", ["hgx-h100", "hgx-h200"])
def test_no_time_stands_beside_a_bound_that_it_beats(machine: str, rates: str) -> None:
    """Programs may exceed what others measured of links: then these are no bound."""
    text = bs.project(bs.load(machine, rates=rates), "allreduce", "256MiB", algorithm="ring").text()
    shares = re.findall("of which this is ([0-9.]+) %", text)
    assert all(float(share) <= 100 for share in shares)
    assert shares or rates == "measured"


def test_latencies_between_the_nodes_of_an_edited_cluster_count() -> None:
    """Its links say them, where the fabric of a machine does otherwise: four messages to reach 16 nodes take 5.4 us."""
    with pytest.raises(InfeasibleError, match=r"wait for each other take 9\.2 us"):
        answer("1MiB", 16, 12, edits=("without n3.nic0",))


def test_levels_of_a_node_are_told_apart() -> None:
    found = bs.project("aurora", "allreduce", "875MB", model="projection")
    assert len({term.name for term in found.terms}) == len(found.terms) == 4
    assert "reduce-scatter in the node over mdfi" in {term.name for term in found.terms}


def test_a_preset_of_another_machine_names_those_that_it_holds_for() -> None:
    """Also where the machine lacks the preset's rates, which are of others too."""
    for machine in ("p5", "dgx1-v100"):
        with pytest.raises(InfeasibleError, match=r"holds for aurora: it needs links of class 'mdfi'"):
            bs.rank(machine, "allreduce", "1GiB", model="aurora-projection")
