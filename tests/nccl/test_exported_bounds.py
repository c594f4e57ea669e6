"""Topology files of machines of the catalogue: a bound by the file is that of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from library_times import taken

import blinksim as bs
from blinksim.nccl.files import topo_file


@pytest.mark.parametrize(
    ("machine", "nodes", "collective", "most"),
    [
        # GPUs hang below the CPU that C2C joins to them, and not all below the first one.
        ("alps", 4, "allreduce", 1.001),
        # With the slowest CPUs the bound was 7 times as long.
        ("l40s-pcie", 1, "alltoall", 1.001),
        ("hgx-h200", 2, "alltoall", 1.001),
    ],
)
def test_a_file_has_the_bound_of_its_machine(
    tmp_path: Path, machine: str, nodes: int, collective: str, most: float
) -> None:
    text, _ = topo_file.write(bs.load(machine))
    path = tmp_path / "file.xml"
    path.write_text(text)
    by_name, by_file = (bs.bound(bs.load(one, nodes=nodes), collective).rate for one in (machine, str(path)))
    assert 1 / 1.001 <= by_name / by_file <= most


@pytest.mark.parametrize("collective", ["allreduce", "alltoall"])
@pytest.mark.parametrize(
    "machine", ["hgx-h100", "hgx-h200", "dgx1-v100", "dgx2", "p5", "gb200-nvl4", "dgx-a100", "l40s-pcie"]
)
def test_a_file_takes_what_its_machine_does(tmp_path: Path, machine: str, collective: str) -> None:
    """GPUs are numbered in the file, so that what is published of their like counts: two have links as DGX A100."""
    path = tmp_path / "file.xml"
    bs.write(bs.export(bs.load(machine), "nccl-topo"), path)
    by_name, by_file = (taken(bs.Question(str(one)), collective, [2**28])[0] for one in (machine, path))
    lent = by_file.details["origin"].startswith("measured on dgx-a100 and 1 other machine")
    assert by_file.time_s == pytest.approx(by_name.time_s, rel=0.02 if lent else 1e-3)
