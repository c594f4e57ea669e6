"""The picture of the three figures: the library's times in their interval, the best schedule, and the bound below."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blinksim as bs
from blinksim.collective import busbw_factor


@pytest.mark.parametrize("measure", ["time", "busbw"])
def test_it_draws_what_the_answers_say(measure: str) -> None:
    found = bs.compare("hgx-h100", "allreduce", ["1MiB", "64MiB", "512MiB", "1GiB"])
    axes: Any = bs.plot.compare(found, y=measure).axes[0]
    lines = {str(line.get_label()): np.array(line.get_ydata()) for line in axes.get_lines()}
    takes, least = lines["takes with NCCL (dots: measured)"], lines["bound"]
    factor = 1.75 / 1e9
    times = np.array([one.time_s for one in found.answers])
    sizes = np.array([one.size for one in found.answers])
    assert takes == pytest.approx(times if measure == "time" else sizes / times * factor)
    assert (least <= takes).all() if measure == "time" else (least >= takes).all()
    # A dot stands at each published point: 512 MiB is one (models/measured/hgx-h100.csv).
    [dots] = [line.get_markevery() for line in axes.get_lines() if str(line.get_label()).startswith("takes")]
    assert 2 in dots
    [band] = axes.collections
    low, high = band.get_paths()[0].get_extents().intervaly
    assert low < takes.min()
    assert high > takes.max()
    assert axes.get_ylabel() == ("time" if measure == "time" else "busbw (GB/s)")
    assert "allreduce on 8 GPUs of hgx-h100" in (axes.get_title(), axes.get_title(loc="left"))


def test_the_legend_promises_no_dots_and_no_published_times_where_there_are_none() -> None:
    found = bs.compare(bs.load("dgx1-v100").select([0, 3]), "allreduce", ["1MiB", "64MiB"])
    assert {one.details["basis"] for one in found.answers}.isdisjoint({"measured"})
    axes: Any = bs.plot.compare(found).axes[0]
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    assert "8 in 10 runs" in handles
    assert handles["takes with NCCL"].get_marker() in ("", "None", None)


def test_named_algorithms_are_drawn_as_before() -> None:
    found = bs.compare("hgx-h100", "allreduce", ["1MiB", "1GiB"], ["ring", "direct"])
    axes: Any = bs.plot.compare(found).axes[0]
    labels = {str(line.get_label()) for line in axes.get_lines()}
    assert {"ring", "direct", "quickest"} <= labels
    assert not any(label.startswith("takes") for label in labels)


def test_machines_that_take_as_long_are_both_seen() -> None:
    """Three names of one machine: what lies above has gaps."""
    found = bs.compare_machines(["p5", "p5.48xlarge", "hgx-h100"], "allreduce", ["1MiB", "64MiB"], nodes=2)
    lines = bs.plot.compare_machines(found).axes[0].get_lines()
    first, second, _ = lines
    assert np.array_equal(first.get_ydata(), second.get_ydata())
    assert [line.get_linestyle() for line in lines] == ["-", "--", ":"]
    assert len({line.get_color() for line in lines}) == 3


def test_a_picture_of_one_size_shows_marks_and_intervals() -> None:
    """A line through one point has no length, and a band no width."""
    axes: Any = bs.plot.compare(bs.compare(bs.load("p5", nodes=8), "allreduce", ["1GiB"])).axes[0]
    assert len(axes.get_lines()) == 3
    assert all(line.get_marker() in ("o", "_") and line.get_markevery() != [] for line in axes.get_lines())
    heights = [np.array(part.vertices)[:, 1] for band in axes.collections for part in band.get_paths()]
    assert len(heights) == 1
    assert all(end.max() > end.min() for end in heights)


@pytest.mark.parametrize("y", ["busbw", "time"])
def test_machines_at_one_size_have_a_row_each(y: str) -> None:
    found = bs.compare_machines(["p5", "a3-mega"], "allreduce", ["1GiB"], nodes=8)
    axes: Any = bs.plot.compare_machines(found, y).axes[0]
    takes, bound = ([path.vertices[0, 0] for path in lines.get_paths()] for lines in axes.collections)
    could, bars = (
        axes.get_lines()[0].get_xdata(),
        [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches],
    )
    rows: Any = enumerate(found.answers.values())
    for place, [one] in rows:
        shown = [bound[place], could[place], *sorted(bars[place])[:: 1 if y == "time" else -1], takes[place]]
        seconds = [one.least.time_s, one.could.best.time_s, one.low_s, one.high_s, one.time_s]
        factor = float(busbw_factor("allreduce", 64)) * 2**30 / 1e9
        assert shown == pytest.approx(seconds if y == "time" else [factor / time_s for time_s in seconds])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["p5, 64 GPUs", "a3-mega, 64 GPUs"]
