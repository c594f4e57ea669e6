"""Pictures of machines: grids, trees and groups, damage marked, large clusters summarised, nothing cut."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from canvas import outside, texts
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

import blinksim as bs
from blinksim import plots
from blinksim.cli.main import run
from blinksim.graphs.connectivity import grouped
from blinksim.plots.topology_plot import changes, view
from blinksim.topology.graph import Topology

RED = "#c00000"


def red_links(machine: Topology, before: Topology) -> dict[frozenset[str], str]:
    """The style of each red line, by the devices at its ends."""
    places = {(round(x, 5), round(y, 5)): name for name, (x, y) in view(before).places.items()}
    axes = plots.topology(machine, before=before).axes[0]
    found = {}
    for line in axes.lines:
        if to_hex(line.get_color()) == RED:
            points = np.asarray(line.get_xydata()).round(5)
            ends = [places[float(points[end][0]), float(points[end][1])] for end in (0, -1)]
            found[frozenset(ends)] = str(line.get_linestyle())
    return found


def test_a_torus_is_rows_and_columns() -> None:
    places = view(bs.load("torus:3x4")).places
    # gpu0 to gpu3 are the first row; the last dimension counts fastest.
    assert [len({round(places[f"gpu{4 * row + column}"][1], 6) for column in range(4)}) for row in range(3)] == [1] * 3
    assert [len({round(places[f"gpu{4 * row + column}"][0], 6) for row in range(3)}) for column in range(4)] == [1] * 4
    assert len({place[0] for place in places.values()}) == 4
    axes = plots.topology(bs.load("torus:3x4")).axes[0]
    curved = [line for line in axes.lines if len(np.asarray(line.get_xydata())) > 2]
    # One link around for each row and each column.
    assert len(curved) == 3 + 4


def test_a_spine_stands_above_its_leaves_and_these_above_the_nodes() -> None:
    machine = bs.load("fattree:4x4")
    places = view(machine).places
    ends = {(link.src, link.dst) for link in machine.links}
    fabric = {device.name for device in machine.devices if device.kind == "fabric"}
    leaves = {dst for src, dst in ends if dst in fabric and src not in fabric}
    spines = fabric - leaves
    assert spines
    top = max(y for name, (_, y) in places.items() if name not in fabric)
    assert min(places[name][1] for name in leaves) > top
    assert min(places[name][1] for name in spines) > max(places[name][1] for name in leaves)


def test_a_large_cluster_is_one_node_and_boxes(p5: Path) -> None:
    machine = bs.load(str(p5), nodes=64)
    drawn = plots.topology(machine)
    boxes = [patch for patch in drawn.axes[0].patches if isinstance(patch, FancyBboxPatch)]
    # One frame around the node in full, five nodes, and one box for the other 58.
    assert len(boxes) == 7
    words = texts(drawn)
    assert "58 more" in words
    assert "32 links" in words
    width, height = drawn.get_size_inches()
    assert max(width, height) <= 17
    assert len(drawn.axes[0].lines) < 200


def test_removed_and_degraded_links_are_marked() -> None:
    before = bs.load("dgx1-v100").select(connected=False)
    after = before.edit("without gpu0-gpu3").edit("degrade gpu0-gpu4 lanes=1")
    found = red_links(after, before)
    assert set(found) == {frozenset(("gpu0", "gpu3")), frozenset(("gpu0", "gpu4"))}
    assert found[frozenset(("gpu0", "gpu3"))] == "--"
    assert found[frozenset(("gpu0", "gpu4"))] == "-"
    words = texts(plots.topology(after, before=before))
    assert "removed: gpu0-gpu3" in words
    assert "degraded: gpu0-gpu4" in words
    assert "25 of 50 GB/s" in words
    assert red_links(before, before) == {}


def test_a_removed_gpu_keeps_its_place() -> None:
    before = bs.load("dgx1-v100").select(connected=False)
    drawn = plots.topology(before.edit("without gpu5"), before=before)
    assert "removed: gpu5" in texts(drawn)
    markers = [tuple(np.asarray(entry.get_offsets())[0]) for entry in drawn.axes[0].collections]
    assert view(before).places["gpu5"] in markers


def test_a_class_at_another_rate_is_no_damage() -> None:
    before = bs.load("aurora")
    assert changes(before, before.edit("replace xe bandwidth=15GB/s")).weaker == ()
    assert len(changes(before, before.edit("without card0.t0")).devices) == 1
    assert changes(None, before).gone == ()


def test_damage_to_one_node_of_many_is_the_node_in_full(p5: Path) -> None:
    before = bs.load(str(p5), nodes=16)
    words = texts(plots.topology(before.edit("without n7.gpu0-n7.nvswitch"), before=before))
    assert "removed: n7.gpu0-n7.nvswitch" in words
    assert "n7" in words.splitlines()
    assert "n0\n8 GPUs" in words


@pytest.mark.parametrize(
    ("machine", "nodes"),
    [("aurora", 1), ("aurora", 2), ("hgx-h200", 4), ("fattree:4x4", 1), ("torus:4x4x3", 1), ("dgx1-v100", 1)],
)
def test_nothing_is_cut(machine: str, nodes: int) -> None:
    drawn = plots.topology(bs.load(machine, nodes=nodes))
    assert outside(drawn) == []
    axes = drawn.axes[0]
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for marker in axes.collections:
        for x, y in np.asarray(marker.get_offsets()):
            assert left + 0.3 < x < right - 0.3
            assert low + 0.3 < y < high - 0.3


def test_dollars_in_a_name_are_no_mathematics(tmp_path: Path) -> None:
    machine = replace(bs.load("dgx1-v100").select("0-3"), name="a$x^{$")
    schedule = bs.synthesize(machine, "allreduce", "double_binary").schedule
    pictures = (plots.topology(machine), plots.trees(schedule), plots.gantt(bs.simulate(schedule, 2**20, pieces=2)))
    for number, drawn in enumerate(pictures):
        picture = plots.save(drawn, tmp_path / f"{number}.svg").read_text()
        # A text in SVG stands under a comment that says what is printed.
        assert "a$x^{$" in picture


def test_links_are_drawn_once_each() -> None:
    machine = bs.load("dgx1-v100").select()
    axes = plots.topology(machine).axes[0]
    assert all(isinstance(line, Line2D) for line in axes.lines)
    assert len(axes.lines) == len(machine.links) // 2


def test_the_command_marks_what_its_edits_took(tmp_path: Path) -> None:
    target = tmp_path / "box.svg"
    edits = ["--edit", "without gpu0-gpu3", "--edit", "degrade gpu0-gpu4 lanes=1"]
    assert run(["topo", "show", "dgx1-v100", *edits, "--plot", str(target)]) == 0
    picture = target.read_text()
    assert "<!-- removed: gpu0-gpu3 -->" in picture
    assert "<!-- degraded: gpu0-gpu4 -->" in picture


@pytest.fixture
def p5(tmp_path: Path) -> Path:
    """Eight GPUs at one switch, each with a PCIe switch and four NICs."""
    rows = [f'  - {{between: ["pciesw{gpu}", "efa[{4 * gpu}-{4 * gpu + 3}]"], class: pcie}}' for gpu in range(8)]
    text = """\
name: p5
devices:
  - {name: "gpu[0-7]", kind: gpu}
  - {name: nvswitch, kind: switch}
  - {name: "pciesw[0-7]", kind: pcie}
  - {name: "efa[0-31]", kind: nic}
link_classes:
  nvlink: {bandwidth: 25GB/s, latency: 0.3us, overhead: 1us, source: test}
  pcie: {bandwidth: 64GB/s, latency: 1us, overhead: 0us, source: test}
  efa: {bandwidth: 100Gb/s, latency: 5us, overhead: 0us, source: test}
links:
  - {between: ["gpu[0-7]", nvswitch], class: nvlink, lanes: 18}
  - {between: ["gpu[0-7]", "pciesw[0-7]"], class: pcie}
"""
    end = """
collective_links: [nvlink]
inter_node_links: [pcie, efa]
fabric: {shape: switch, ports: ["efa[0-31]"], class: efa}
"""
    path = tmp_path / "p5.yaml"
    path.write_text(text + "\n".join(rows) + end)
    return path


def test_a_dragonfly_is_drawn_as_a_circle_of_routers() -> None:
    """The routers on one circle, every GPU outside of it and nearer to its own router than to those of other groups."""
    machine = bs.load("dragonfly:5x4x2")
    places = view(machine).places
    routers = [name for name in places if name.startswith("router")]
    centre = np.mean([places[name] for name in routers], axis=0)
    radius = {name: math.dist(place, centre) for name, place in places.items()}
    assert max(radius[name] for name in routers) == pytest.approx(min(radius[name] for name in routers))
    assert min(radius[name] for name in machine.members) > radius["router0"]
    for name in machine.members:
        near = min(routers, key=lambda router: math.dist(places[router], places[name]))
        assert int(near.removeprefix("router")) // 4 == int(name.removeprefix("gpu")) // 8
    assert len({(round(x, 3), round(y, 3)) for x, y in places.values()}) == len(places)


def test_a_crowded_circle_has_a_place_for_everything() -> None:
    """More devices around a circle than fit at the usual distance: they stand closer."""
    machine = bs.load("dragonfly:9x4x2")
    places = view(machine).places
    assert len({(round(x, 3), round(y, 3)) for x, y in places.values()}) == len(machine.devices)


def test_every_kind_has_a_ring_of_its_own() -> None:
    """On a DGX-1: straight out from the middle of two GPUs their PCIe switch and its NIC."""
    machine = bs.load("dgx1-v100")
    places = view(machine).places
    centre = np.mean([places[name] for name in machine.members], axis=0)
    rings = grouped((device.kind, round(math.dist(places[device.name], centre), 6)) for device in machine.devices)
    assert [len({*radii}) for radii in rings.values()] == [1] * 4
    assert len({radius for radii in rings.values() for radius in radii}) == 4
    for pair in range(4):
        out = np.mean([places[f"gpu{2 * pair}"], places[f"gpu{2 * pair + 1}"]], axis=0) - centre
        for name in (f"pciesw{pair}", f"nic{pair}"):
            place = np.array(places[name]) - centre
            assert place / np.hypot(*place) == pytest.approx(out / np.hypot(*out))
