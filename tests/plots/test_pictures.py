"""Pictures: what is drawn is what the objects say; files in every format; what a picture cannot hold is refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

import blinksim as bs
from blinksim import plots
from blinksim.answers.sweep import sweep
from blinksim.cli.main import run
from blinksim.errors import InputError
from blinksim.plots.topology_plot import view

ORANGE = "#D55E00"


def test_link_width_is_bandwidth_and_the_cut_is_marked() -> None:
    part = bs.load("dgx1-v100").select([f"gpu{i}" for i in (0, 1, 2, 3, 4, 7)])
    found = bs.bound(part, "allreduce")
    axes = plots.topology(part, found).axes[0]
    places = view(part).places
    name_at = {tuple(round(x, 6) for x in spot): name for name, spot in places.items()}
    crossing = set()
    widths: dict[float, set[float]] = {}
    for line in axes.lines:
        if line.get_zorder() == 0:
            continue
        a, b = (name_at[tuple(round(float(v), 6) for v in spot)] for spot in np.asarray(line.get_xydata()))
        rate = float(part.links_between(a, b)[0].bandwidth) / 1e9
        widths.setdefault(rate, set()).add(line.get_linewidth())
        if to_hex(line.get_color()).upper() == ORANGE:
            crossing.add(frozenset((a, b)))
    # GPUs 0-3 | 4 | 7: the links 0-4, 3-7 and 4-7 join the parts.
    assert crossing == {frozenset(("gpu0", "gpu4")), frozenset(("gpu3", "gpu7")), frozenset(("gpu4", "gpu7"))}
    assert set(widths) == {25.0, 50.0}
    assert max(widths[25.0]) < min(widths[50.0])
    assert "62.5 GB/s" in axes.get_title(loc="left")


def test_a_bound_that_cuts_all_ranks_apart_marks_no_link() -> None:
    """Every link of a DGX-1V then crosses; a legend of what is not drawn would say nothing."""
    machine = bs.load("dgx1-v100").select()
    drawn, plain = plots.topology(machine, bs.bound(machine, "allreduce")), plots.topology(machine)
    axes = drawn.axes[0]
    assert "all 8 ranks" in axes.get_title(loc="left")
    assert "shaded" not in axes.get_title(loc="left")
    looks = [[(line.get_color(), line.get_linestyle()) for line in one.axes[0].lines] for one in (drawn, plain)]
    assert looks[0] == looks[1]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["nvlink, 25 to 50 GB/s each way"]


def test_a_legend_says_which_links_share_their_bandwidth() -> None:
    """Two links on one bus have one bandwidth together, and others have it each way."""
    bus, pair = ("gpu0", "gpu1"), ("gpu2", "gpu3")
    ends = [("bridge", *bus, "one"), ("bridge", *pair, None), ("pcie", "gpu1", "gpu2", "two")]
    ends += [(kind, b, a, own) for kind, a, b, own in ends]
    links = [bs.Link(a, b, kind, Fraction(12 * 10**9), bus=own) for kind, a, b, own in ends]
    machine = bs.Topology("t", tuple(bs.Device(f"gpu{rank}", "gpu") for rank in range(4)), tuple(links))
    legend = plots.topology(machine).axes[0].get_legend()
    assert legend is not None
    shown = [text.get_text() for text in legend.get_texts()]
    assert sorted(shown) == ["bridge, 12 GB/s each way or on a shared bus", "pcie, 12 GB/s on a shared bus"]


@pytest.mark.parametrize(
    ("machine", "nodes"), [("aurora", 1), ("hgx-h200", 2), ("p3.16xlarge", 1), ("fattree:4x4", 1), ("torus:3x3", 1)]
)
def test_no_two_devices_share_a_place(machine: str, nodes: int) -> None:
    topology = bs.load(machine, nodes=nodes)
    spots = {(round(x, 3), round(y, 3)) for x, y in view(topology).places.values()}
    assert len(spots) == len(topology.devices)
    assert plots.topology(topology).axes[0].get_legend() is not None


def test_trees_have_a_panel_each() -> None:
    schedule = bs.synthesize(bs.load("full:4@20GB/s"), "broadcast").schedule
    drawn = plots.trees(schedule)
    assert len(drawn.axes) == schedule.chunks == 3
    # Three sends a tree, each an arrow.
    arrows = [sum(text.arrow_patch is not None for text in axes.texts if hasattr(text, "arrow_patch"))
              for axes in drawn.axes]  # fmt: skip
    assert arrows == [3, 3, 3]
    assert [axes.get_title() for axes in drawn.axes] == ["1/3 of the data"] * 3


def test_what_a_picture_cannot_hold_is_refused() -> None:
    with pytest.raises(InputError, match="too many to draw"):
        plots.topology(bs.load("torus:32x32"))
    point = sweep("ring:4@25GB/s", "allreduce", ["1MiB"])
    with pytest.raises(InputError, match="vary something"):
        plots.sweep(point)
    with pytest.raises(InputError, match="no column of numbers"):
        plots.sweep(point, "algorithm")


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_commands_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str) -> None:
    shown, swept, trees = (tmp_path / f"{name}.{ending}" for name in ("machine", "sweep", "trees"))
    assert run(["synth", "full:4@20GB/s", "broadcast", "--plot", str(trees)]) == 0
    assert f"drawn: {trees}" in capsys.readouterr().out
    assert run(["topo", "show", "dgx1-v100", "--plot", str(shown), "--bottleneck", "allgather"]) == 0
    assert run(["topo", "show", "dgx1-v100", "--plot", str(shown)]) == 2
    assert "add --force" in capsys.readouterr().err
    assert run(["topo", "show", "dgx1-v100", "--bottleneck", "allgather"]) == 2
    sizes = ["--sizes", "1MiB,16MiB"]
    assert run(["sweep", "ring:4@25GB/s", "allreduce", *sizes, "--plot", str(swept), "--algorithms", "ring,chain"]) == 0
    start = b"\x89PNG" if ending == "png" else b"<?xml"
    assert all(path.read_bytes().startswith(start) for path in (shown, swept, trees))


def test_trees_of_too_many_ranks_are_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    def never(*given: object, **named: object) -> None:
        raise AssertionError("it was synthesised")

    monkeypatch.setattr("blinksim.answers.synthesize.synthesize", never)
    assert run(["synth", "switch:400", "allgather", "--plot", str(tmp_path / "trees.png")]) != 0
    assert "401 devices are too many to draw (at most 400)" in capsys.readouterr().err


@pytest.mark.slow
def test_trees_that_are_alike_are_drawn_once() -> None:
    """Of 4,096 trees that are turned into each other one, over the node that it starts from and boxes for others."""
    made = bs.synthesize(bs.load("hgx-h100", nodes=512), "allgather")
    [axes] = plots.trees(made).axes
    assert axes.get_title() == "0.0244 % of the data, 4,096 alike"
    # To the NIC and the switch, from there to the seven others, over the fabric to six boxes.
    assert sum(getattr(text, "arrow_patch", None) is not None for text in axes.texts) == 1 + 1 + 7 + 1 + 6
    # Trees written out are told apart by their shapes.
    drawn = plots.trees(bs.synthesize("torus:4x4", "allgather"))
    assert sum(int(axes.get_title().split(", ")[1].split()[0]) for axes in drawn.axes) == 32
