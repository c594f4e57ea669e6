"""Pictures of comparisons and sweeps: what is a line, a bar or a cell, what axes and titles say, nothing cut."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from canvas import outside, texts
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

import blinksim as bs
from blinksim import plots
from blinksim.answers.compare import Comparison
from blinksim.answers.sweep import Sweep, sweep
from blinksim.cli.main import run
from blinksim.errors import InputError
from blinksim.machines import Question
from blinksim.plots.style import machine_words
from blinksim.units import format_size, format_time

BOUND = "bound on the rate"
EDITS = "edit=none;without gpu0-gpu3;without gpu9"


@cache
def nodes() -> Sweep:
    return sweep(
        "hgx-h200", "allreduce", ["64MiB"], ["nodes=2,4,8"], algorithms=["ring", "chain", "two_shot"], bounds=True
    )


@cache
def compared() -> Comparison:
    return bs.compare("dgx1-v100", "allreduce", ["1KiB", "32KiB", "1MiB", "256MiB"], ["ring", "direct", "two_shot"])


def named(axes: Axes) -> dict[str, Line2D]:
    """The lines of a panel by label; guides have none, and what was measured is no line."""
    return {
        str(line.get_label()): line for line in axes.lines if not str(line.get_label()).startswith(("_", "measured: "))
    }


def points(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def test_algorithms_on_several_nodes_are_lines_over_nodes() -> None:
    found = nodes()
    axes = plots.sweep(found).axes[0]
    expected = {
        name: [(row["nodes"], row["algbw_GBps"]) for row in found.rows() if row["asked"] == name]
        for name in ("ring", "chain", "two_shot")
    }
    lines = named(axes)
    assert {name: points(line) for name, line in lines.items() if name != BOUND} == expected
    # All algorithms have one bound.
    assert points(lines[BOUND]) == [(r["nodes"], r["bound_algbw_GBps"]) for r in found.rows() if r["asked"] == "ring"]
    assert not axes.images
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("nodes", "algbw (GB/s)")
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["ring", "chain", "two_shot", BOUND]


@pytest.mark.parametrize(("value", "column"), [("time", "time_s"), ("busbw", "busbw_GBps")])
def test_time_and_busbw_can_be_drawn_with_their_bound(value: str, column: str) -> None:
    found = nodes()
    axes = plots.sweep(found, value).axes[0]
    rows = [row for row in found.rows() if row["asked"] == "ring"]
    assert [y for _, y in points(named(axes)["ring"])] == [row[column] for row in rows]
    # busbw of allreduce is algbw times 2 (n - 1) / n; the least time is the size over the bound.
    least = [row["size_bytes"] / row["bound_algbw_GBps"] / 1e9 for row in rows]
    most = [row["bound_algbw_GBps"] * 2 * (row["ranks"] - 1) / row["ranks"] for row in rows]
    bound = [y for _, y in points(named(axes)[BOUND])]
    assert bound == pytest.approx(least if value == "time" else most)
    assert axes.get_ylabel().startswith(value)


def test_two_categories_are_a_heat_map() -> None:
    two = sweep("dgx1-v100", "allreduce", ["16MiB"], [EDITS], algorithms=["ring", "direct"])
    axes = plots.sweep(two).axes[0]
    grid = np.ma.masked_array(axes.images[0].get_array())
    assert grid.shape == (3, 2) or grid.shape == (2, 3)
    assert sorted(float(x) for x in grid.compressed()) == sorted(r["algbw_GBps"] for r in two.rows() if not r["reason"])
    assert np.ma.getmaskarray(grid).sum() == 2
    assert {axes.get_xlabel(), axes.get_ylabel()} == {"edit", "algorithm"}


def test_a_category_and_a_size_are_lines_with_gaps() -> None:
    found = sweep("dgx1-v100", "allreduce", ["1MiB", "4MiB", "16MiB"], [EDITS])
    drawn = plots.sweep(found)
    lines = named(drawn.axes[0])
    assert list(lines) == ["none", "without gpu0-gpu3", "without gpu9"]
    assert np.isnan([y for _, y in points(lines["without gpu9"])]).all()
    assert "3 of 9 points without an answer" in " ".join(texts(drawn).split())


def bars(axes: Axes) -> dict[str, float]:
    """Where the bars of each row end, by its name; a row may consist of several."""
    ends = dict[float, float]()
    for patch in axes.patches:
        assert isinstance(patch, Rectangle)
        row = round(patch.get_y() + patch.get_height() / 2)
        ends[row] = max(ends.get(row, 0.0), patch.get_x() + patch.get_width())
    names = [label.get_text() for label in axes.get_yticklabels()]
    return {names[int(row)]: end for row, end in ends.items()}


def test_two_points_are_bars() -> None:
    """Nobody knows what lies between them, so no line joins them."""
    found = sweep("dgx1-v100", "allreduce", ["64MiB"], ["nvlink lanes=1,2"], algorithms=["ring"])
    drawn = plots.sweep(found, "time")
    axes = drawn.axes[0]
    assert not axes.lines
    assert bars(axes) == {f"nvlink lanes {row['nvlink_lanes']}": row["time_s"] for row in found.rows()}
    drawn.draw_without_rendering()
    assert {label.get_text().partition(" ")[2] for label in axes.get_xticklabels()} == {"s", "us", "ms"}
    assert {text.get_text() for text in axes.texts} == {format_time(row["time_s"]) for row in found.rows()}
    four = sweep("dgx1-v100", "allreduce", ["64MiB", "1GiB"], ["nvlink lanes=1,2"], algorithms=["ring"])
    rows = {f"nvlink lanes {r['nvlink_lanes']}, {format_size(r['size_bytes'])}": r["busbw_GBps"] for r in four.rows()}
    assert bars(plots.sweep(four, "busbw").axes[0]) == pytest.approx(rows)


def test_terms_of_a_preset_are_stacked() -> None:
    found = sweep("aurora", "allreduce", ["2GB"], ["nodes=1,2,16"], model="aurora-projection-mdfi")
    drawn = plots.sweep(found, "terms")
    axes = drawn.axes[0]
    assert bars(axes) == pytest.approx({f"nodes {row['nodes']}": row["time_s"] for row in found.rows()})
    assert len(axes.patches) == 3 * 3
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["xe", "mdfi", "slingshot"]
    # The same height without colours: hatches differ.
    assert len({patch.get_hatch() for patch in axes.patches}) == 3
    assert outside(drawn) == []
    with pytest.raises(InputError, match="terms of a preset"):
        plots.sweep(nodes(), "terms")


def test_large_numbers_are_written_out_and_legends_say_a_name_once() -> None:
    vary = ["nodes=2,16,1000,10000", "xe bandwidth=15GB/s,53GB/s"]
    axes = plots.sweep(sweep("aurora", "allreduce", ["2GB"], vary, model="aurora-projection")).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "16", "1,000", "10,000"]
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == "xe bandwidth (GB/s)"
    assert [text.get_text() for text in legend.get_texts()] == ["15", "53"]


def test_one_category_is_bars() -> None:
    found = sweep("dgx1-v100", "allreduce", ["16MiB"], [EDITS], bounds=True)
    axes = plots.sweep(found).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["none", "without gpu0-gpu3", "without gpu9"]
    lengths = [patch.get_width() for patch in axes.patches if hasattr(patch, "get_width")]
    assert lengths == [row["algbw_GBps"] for row in found.rows() if not row["reason"]]
    assert "no answer" in [text.get_text() for text in axes.texts]


def test_a_third_thing_gives_panels_to_one_scale() -> None:
    base = Question(ranks_per_node=12)
    vary = ["nodes=2,4,8", "xe bandwidth=15GB/s,53GB/s"]
    found = sweep("aurora", "allreduce", ["1GB", "2GB"], vary, base=base, model="aurora-projection")
    drawn = plots.sweep(found)
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["xe bandwidth 15 GB/s", "xe bandwidth 53 GB/s"]
    assert len({axes.get_ylim() for axes in drawn.axes}) == 1
    assert all(list(named(axes)) == ["1 GB", "2 GB"] for axes in drawn.axes)


def test_titles_say_what_is_the_same_everywhere() -> None:
    """The title what is drawn, and a note below how it came about."""
    told = texts(plots.sweep(nodes())).splitlines()
    assert {"allreduce on hgx-h200, 64 MiB", "nominal rates; model alpha-beta"} <= {*told}
    told = texts(plots.compare(compared())).splitlines()
    assert {"allreduce on dgx1-v100: 8 ranks", "nvlink; nominal rates; model alpha-beta"} <= {*told}


@pytest.mark.slow
def test_titles_say_what_was_edited_and_how_many_nodes_there_are() -> None:
    cut = "without gpu0-gpu3"
    one, many = bs.load("dgx1-v100", edits=cut), bs.load("hgx-h200", nodes=2)
    schedule = bs.synthesize(one, "broadcast", "chain").schedule
    for drawn in (
        plots.compare(bs.compare(one, "allreduce", ["1MiB"], ["ring"])),
        plots.sweep(sweep("dgx1-v100", "allreduce", ["1MiB", "2MiB"], base=Question(edits=(cut,)))),
        plots.topology(one, before=bs.load("dgx1-v100")),
        plots.trees(schedule),
        plots.gantt(bs.simulate(schedule, "1MiB", pieces=1)),
        plots.pareto(bs.pareto(one.select("0,1,2,4"), "broadcast", seconds=1)),
    ):
        assert f"dgx1-v100 {cut}" in texts(drawn)
    ring = bs.synthesize(many, "allreduce", "ring").schedule
    for drawn in (
        plots.compare(bs.compare(many, "allreduce", ["1MiB"], ["ring"])),
        plots.sweep(sweep("hgx-h200", "allreduce", ["1MiB", "2MiB"], base=Question(nodes=2))),
        plots.topology(many),
        plots.trees(ring),
        plots.gantt(bs.simulate(ring, "1MiB", pieces=1)),
    ):
        assert "2 x hgx-h200" in texts(drawn)


def test_titles_read_on_after_any_edits() -> None:
    edits = ("degrade gpu0-gpu4 lanes=1", "without gpu7")
    assert machine_words("dgx1-v100") == "dgx1-v100"
    assert machine_words("dgx1-v100", edits[1:], 2) == "2 x dgx1-v100 without gpu7"
    assert machine_words("dgx1-v100", edits) == "dgx1-v100, degrade gpu0-gpu4 lanes=1, without gpu7"
    assert machine_words("dgx1-v100", 2 * edits) == "dgx1-v100 after 4 edits"


def test_words_about_crossovers_stand_where_times_leave_room() -> None:
    drawn = plots.compare(compared(), y="time")
    drawn.draw_without_rendering()
    axes = drawn.axes[0]
    marks = [line.get_transform().transform(line.get_xydata()) for line in axes.lines if line.get_marker() != "None"]
    boxes = [text.get_window_extent() for text in axes.texts]
    assert boxes
    assert not any(box.contains(x, y) for box in boxes for line in marks for x, y in line)


@pytest.mark.parametrize("y", ["algbw", "busbw", "time"])
def test_a_comparison_draws_every_algorithm_and_the_bound(y: str) -> None:
    found = compared()
    axes = plots.compare(found, y=y).axes[0]
    lines = named(axes)
    assert set(lines) == {"ring", "direct", "two_shot", BOUND, "quickest", "bound at this size"}
    row = {"algbw": "algbw_GBps", "busbw": "busbw_GBps", "time": "time_s"}[y]
    best = [(one.size, one.row()[row]) for one in found.best()]
    assert np.allclose(points(lines["quickest"]), best, rtol=1e-12)
    least = points(lines["bound at this size"])
    assert all(a <= b if y == "time" else a >= b for (_, a), (_, b) in zip(least, best, strict=True))
    ring = [(r["size_bytes"], r[row]) for r in found.rows() if r["algorithm"] == "ring"]
    assert np.allclose(points(lines["ring"]), ring, rtol=1e-12)
    exact = float(bs.bound("dgx1-v100", "allreduce").rate) / 1e9
    last = points(lines[BOUND])[-1][1]
    # 256 MiB at the exact bound of 600/7 GB/s; the quick bound of a comparison may be a little wider.
    assert last == pytest.approx({"algbw": exact, "busbw": exact * 14 / 8, "time": 2**28 / exact / 1e9}[y], rel=0.05)
    assert len([line for line in axes.lines if line.get_linestyle() == ":"]) == len(found.crossovers) > 0


def test_a_bound_that_does_not_hold_for_what_is_drawn_is_left_out() -> None:
    found = compared()
    slow = [tuple(replace(p, bound=replace(p.bound, rate=p.bound.rate / 10)) for p in listed if p.bound)
            for listed in found.projections]  # fmt: skip
    axes = plots.compare(replace(found, timed=lambda: slow)).axes[0]
    assert BOUND not in named(axes)


def test_nothing_is_cut() -> None:
    edits = sweep("dgx1-v100", "allreduce", ["16MiB"], [EDITS], algorithms=["ring", "direct"])
    for drawn in (
        *(plots.compare(compared(), y=y) for y in ("algbw", "time")),
        *(plots.sweep(nodes(), value) for value in ("algbw", "busbw", "time")),
        plots.sweep(edits),
    ):
        assert outside(drawn) == []


def test_dollars_in_names_are_no_mathematics(tmp_path: Path) -> None:
    found = replace(compared(), topology=replace(compared().topology, name="a$x^{$"))
    drawn = plots.compare(found)
    plots.save(drawn, tmp_path / "a.png")
    swept = replace(nodes(), machine="a$x^{$")
    plots.save(plots.sweep(swept), tmp_path / "b.png")
    assert not any(text.get_text().startswith("a$") for text in drawn.axes[0].texts)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["svg", "pdf", "png"])
def test_the_same_picture_gives_the_same_bytes(tmp_path: Path, ending: str) -> None:
    pictures = [plots.save(plots.compare(compared()), tmp_path / f"{n}.{ending}").read_bytes() for n in range(2)]
    assert pictures[0] == pictures[1]
    assert b"CreationDate" not in pictures[0]
    assert b"<dc:date>" not in pictures[0]


def test_the_commands_draw_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare = ["compare", "dgx1-v100", "allreduce", "--sizes", "1MiB,16MiB", "--algorithms", "ring,direct"]
    assert run([*compare, "--plot", str(tmp_path / "c.svg"), "--plot-y", "time"]) == 0
    assert "<!-- time -->" in (tmp_path / "c.svg").read_text()
    swept = ["sweep", "dgx1-v100", "allreduce", "--sizes", "1MiB,16MiB", "--plot-y", "busbw"]
    assert run([*swept, "--plot", str(tmp_path / "s.svg")]) == 0
    picture = (tmp_path / "s.svg").read_text()
    assert "<!-- busbw (GB/s) -->" in picture
    # The library's time is at no table of rates.
    assert "with NCCL; model library" in picture
    assert "nccl rates" not in picture
    assert run(swept) == 2
    assert "--plot" in capsys.readouterr().err


def test_unknown_measures_are_named() -> None:
    with pytest.raises(InputError, match="speed"):
        plots.compare(compared(), y="speed")
    with pytest.raises(InputError, match="time, algbw, busbw"):
        plots.sweep(nodes(), "speed")
