"""Pictures of traffic and of what it loads: they show the numbers that the objects hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.patches import Rectangle, StepPatch

import blinksim as bs
from blinksim import plots
from blinksim.algorithms.rail_aligned import symmetric
from blinksim.cli.main import run


def test_a_matrix_shows_its_bytes_and_sums() -> None:
    traffic = bs.Traffic(np.arange(16).reshape(4, 4) << 20)
    square, above, left = plots.traffic(traffic).axes[:3]
    shown: npt.NDArray[np.float64] = np.ma.filled(np.ma.asarray(square.images[0].get_array()), 0.0)
    expected = traffic.matrix / 2**20
    np.fill_diagonal(expected, 0)
    assert np.nan_to_num(shown).tolist() == expected.tolist()
    heights = [bar.get_height() for bar in above.patches if isinstance(bar, Rectangle)]
    widths = [bar.get_width() for bar in left.patches if isinstance(bar, Rectangle)]
    assert heights == pytest.approx(expected.sum(axis=0))
    assert widths == pytest.approx(expected.sum(axis=1))
    assert "MiB" in above.get_ylabel()


def test_loads_fall_from_what_limits_the_rate() -> None:
    machine = bs.load("hgx-h100", nodes=2).select()
    made = [bs.synthesize(machine, "alltoall", name) for name in ("direct", "rail_aligned")]
    drawn = plots.loads(*made)
    flat = []
    for axes in drawn.axes:
        lines = {
            str(patch.get_label()): np.asarray(patch.get_data()[0])
            for patch in axes.patches
            if isinstance(patch, StepPatch)
        }
        assert sorted(lines) == ["ib, 32 links", "nvlink, 32 links", "pcie, 32 links"]
        assert max(values.max() for values in lines.values()) == pytest.approx(100)
        assert all((np.diff(values) <= 0).all() for values in lines.values())
        flat.append(float(lines["ib, 32 links"].min()))
    # Rails are equally busy in both; what direct loses, it loses inside the nodes or on the way between rails.
    assert flat[1] == pytest.approx(100)


@pytest.mark.slow
def test_the_command_line_draws_both(tmp_path: Path) -> None:
    matrix, picture, busy = (str(tmp_path / name) for name in ("t.csv", "t.png", "l.svg"))
    assert run(["traffic", "--ranks", "8", "--tokens", "64", "-o", matrix, "--plot", picture]) == 0
    assert run(["synth", "rails:2x4", "alltoallv", "--traffic", matrix, "--plot", busy]) == 0
    assert min(Path(picture).stat().st_size, Path(busy).stat().st_size) > 10_000


def test_loads_by_symmetry_are_those_written_out() -> None:
    turned = symmetric(bs.load("mi300x", nodes=3).select(), bs.Collective("alltoall"))
    assert turned is not None
    lines = [
        {str(patch.get_label()): patch.get_data()[0] for patch in drawn.axes[0].patches if isinstance(patch, StepPatch)}
        for drawn in (plots.loads(turned), plots.loads(turned.schedule))
    ]
    assert lines[0].keys() == lines[1].keys()
    for name, values in lines[0].items():
        assert np.asarray(values) == pytest.approx(np.asarray(lines[1][name]))


@pytest.mark.slow
def test_a_large_or_skewed_matrix_shows_its_hottest_pair() -> None:
    """A thousand ranks have more pairs than a picture has dots: a square shows the most of its pairs."""
    matrix = np.ones((600, 600), dtype=np.int64)
    matrix[7, 599] = 1000
    figure = plots.traffic(bs.Traffic(matrix))
    square, above = figure.axes[:2]
    shown = np.asarray(square.images[0].get_array())
    assert shown.shape == (200, 200)
    assert shown[2, 199] == 1000 == np.nanmax(shown)
    assert np.sum(shown == 1) == 200 * 200 - 1
    assert type(square.images[0].norm).__name__ == "LogNorm"
    assert square.get_xlim() == (-0.5, 599.5)
    assert all(bar.get_linewidth() > 0 for bar in above.patches)
