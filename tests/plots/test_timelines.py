"""Pictures of simulated runs: the limiting links first, the whole time, bars or bands that hold all the work."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from canvas import outside, texts
from matplotlib.collections import PolyCollection, QuadMesh

import blinksim as bs
from blinksim import plots
from blinksim.timing.simulator import Timeline

MiB = 2**20


@cache
def short() -> Timeline:
    machine = bs.load("dgx1-v100").select("0-3")
    return bs.simulate(bs.synthesize(machine, "allreduce", "double_binary").schedule, 4 * MiB, pieces=4)


@cache
def crowded() -> Timeline:
    machine = bs.load("hgx-h200", nodes=2)
    return bs.simulate(bs.synthesize(machine, "allreduce", "ring").schedule, 64 * MiB, pieces=20)


def labels(timeline: Timeline) -> list[str]:
    return [label.get_text() for label in plots.gantt(timeline).axes[0].get_yticklabels()]


def by_time_then_load(timeline: Timeline, most: int) -> list[str]:
    """The links that the time goes by on, the longest first, in up to half of `most`; then the busiest others."""
    legs = timeline.critical_path
    spent = {use.resource: sum(leg.time_s for leg in legs if leg.place == use.resource) for use in timeline.uses}
    path = sorted((name for name in spent if spent[name]), key=lambda name: -spent[name])[: (most + 1) // 2]
    busy = sorted(timeline.uses, key=lambda use: (-use.busy, [int(n) for n in re.findall(r"\d+", use.resource)]))
    return [*path, *(use.resource for use in busy if use.resource not in path)][:most]


def test_bars_are_all_pieces_of_the_busiest_links() -> None:
    timeline = short()
    axes = plots.gantt(timeline).axes[0]
    busy: dict[int, float] = {}
    for bars in axes.collections:
        assert isinstance(bars, PolyCollection)
        for path in bars.get_paths():
            corners = np.asarray(path.vertices)
            row = round(float(corners[:, 1].mean() if len(corners) == 4 else corners[:-1, 1].mean()))
            busy[row] = busy.get(row, 0.0) + float(np.ptp(corners[:, 0]))
    names = [label.get_text() for label in axes.get_yticklabels()]
    expected = {use.resource: use.busy_s for use in timeline.uses}
    assert {names[row]: length for row, length in busy.items()} == pytest.approx(expected)
    assert axes.get_xlim()[1] >= timeline.time_s
    assert {label.get_text().partition(" ")[2] for label in axes.get_xticklabels()} == {"s", "us"}
    assert names == by_time_then_load(timeline, len(names))


def test_many_links_are_the_limiting_ones_and_the_number_of_others() -> None:
    timeline = crowded()
    names = labels(timeline)
    assert len(names) == 21
    assert names[-1] == f"and {len(timeline.uses) - 20} more links"
    assert names[:-1] == by_time_then_load(timeline, 20)
    # Links within nodes are busier here than those between them, which most of the time goes by on.
    spent = max(timeline.critical_path, key=lambda leg: leg.time_s)
    assert names[0] == spent.place


def test_many_pieces_are_a_band_over_the_whole_run() -> None:
    timeline = crowded()
    drawn = plots.gantt(timeline)
    axes = drawn.axes[0]
    (band,) = [entry for entry in axes.collections if isinstance(entry, QuadMesh)]
    shares = np.ma.masked_invalid(np.asarray(band.get_array()))
    # The mean share of a row is the share of the whole time, which `uses` sums up without any transfer.
    means = [float(row.mean()) for row in shares if row.count()]
    names = [label.get_text() for label in axes.get_yticklabels()][:-1]
    assert means == pytest.approx([timeline.utilisation[name] for name in names], abs=1e-9)
    assert axes.get_xlim()[1] >= timeline.time_s
    assert "busy share" in texts(drawn)


def test_nothing_is_cut_and_the_title_says_what_is_asked() -> None:
    for drawn in (plots.gantt(short()), plots.gantt(crowded()), plots.utilisation(crowded())):
        assert outside(drawn) == []
    title = texts(plots.gantt(crowded()))
    assert "allreduce of 64 MiB on 2 x hgx-h200 by ring, nominal rates" in title
