"""The published tables against themselves, against the catalogue, and against the bounds of its machines."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from blinksim import data_files
from blinksim.answers.measurements.public import public_measurements
from blinksim.collective import busbw_factor
from blinksim.errors import FileError, InputError
from blinksim.formats.shipped import machine_names
from blinksim.nccl.tuner.tuner import nearest, versions
from blinksim.timing.measured import public_tables

# Many GPUs, or many behind switches that add.
LARGE = {"alps", "bm.gpu.h100.8", "gb200-nvl72", "hgx-h100", "polaris"}
MACHINES = [pytest.param(name, marks=pytest.mark.slow if name in LARGE else []) for name in public_tables.machines()]


def test_every_table_is_of_a_machine_of_the_catalogue_and_every_set_has_cells() -> None:
    found = public_tables.machines()
    assert set(found) <= set(machine_names.names())
    assert len(found) >= 27
    files = {path.stem for path in (data_files.folder("models") / "measured").glob("*.csv")} - {"sets"}
    assert files == set(found)
    used = {cell.set.name for name in found for cell in public_tables.cells(name)}
    assert used == set(public_tables.sets())
    assert all(one.source and one.library for one in public_tables.sets().values())


def test_a_version_in_the_address_of_a_set_is_among_those_that_it_names() -> None:
    """A table in a folder 2.26.2 whose rows say 2.29.2 was printed as of NCCL 2.29.2, under the name nccl2262."""
    seen = 0
    for one in public_tables.sets().values():
        for version in re.findall(r"/nccl/(\d+\.\d+\.\d+)/", one.source):
            assert version in one.version.split(" or "), one.name
            assert nearest(one.version) in versions()
            seen += 1
    assert seen > 4


def test_times_and_bus_bandwidths_of_the_tables_agree() -> None:
    """Both were printed; nccl-tests' definition of bus bandwidth ties them to each other."""
    compared = 0
    for name in public_tables.machines():
        with (data_files.folder("models") / "measured" / f"{name}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                if row["time_us"] and row["busbw_GBps"] and float(row["busbw_GBps"]) >= 1:
                    rate = float(row["size_bytes"]) / float(row["time_us"]) / 1e3
                    factor = float(busbw_factor(row["collective"], int(row["gpus"])))
                    assert rate * factor == pytest.approx(float(row["busbw_GBps"]), rel=0.02), row
                    compared += 1
    assert compared > 2500


@pytest.mark.parametrize("name", MACHINES)
def test_no_published_time_beats_the_bound_of_its_machine(name: str) -> None:
    found = public_measurements(name, predict=False)
    assert found.cells
    for one in found.cells:
        assert one.bound is not None
        assert one.of_bound_pct is not None
        assert one.of_bound_pct <= 100, (one.cell, one.bound)


@pytest.mark.parametrize(
    ("name", "collective", "gpus", "least"),
    [
        ("hgx-b200", "allgather", 8, 65),
        ("dgx-a100", "alltoall", 16, 80),
        ("mi300x", "allreduce", 8, 70),
        ("dgx1-v100", "allgather", 8, 85),
        ("gaudi3", "allgather", 8, 90),
        ("a3-megagpu-8g", "allreduce", 16, 85),
        ("rtx-pro-6000-pcie", "allreduce", 2, 55),
    ],
)
def test_the_best_published_rate_is_near_the_bound(name: str, collective: str, gpus: int, least: float) -> None:
    """Bounds that were far too high would be kept by every measurement."""
    shares = [
        one.of_bound_pct or 0
        for one in public_measurements(name, predict=False).cells
        if (one.cell.collective, one.cell.gpus) == (collective, gpus)
    ]
    assert max(shares) > least


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nobody,allreduce,1,8,,1024,out,n.a.,5,", "is no measured cell of mi300x: nobody,allreduce.*unknown set"),
        ("amdblog-mi300x-n8-ar,allreduce,1,8,,1024,out,n.a.,,", "is no measured cell"),
        ("amdblog-mi300x-n8-ar,allreduce,1,8,,1024,out,n.a.,-5,", "is no measured cell"),
        ("amdblog-mi300x-n8-ar,allreduse,1,8,,1024,out,n.a.,5,", "is no measured cell"),
        ("amdblog-mi300x-n8-ar,allreduce,1,1,,1024,out,n.a.,5,", "is no measured cell"),
        ("aws-p5-n16-2223,allreduce,1,8,,1024,out,n.a.,5,", "is no measured cell"),
        ("amdblog-mi300x-n8-ar,allreduce,1", "cells, and the head has"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "sets.csv").write_text((data_files.folder("models") / "measured" / "sets.csv").read_text())
    head = "set,collective,nodes,gpus,dtype,size_bytes,placement,nvls,time_us,busbw_GBps"
    (tmp_path / "measured" / "mi300x.csv").write_text(f"{head}\n{line}\n")
    monkeypatch.setattr(data_files, "folder", lambda name: tmp_path)
    public_tables.cells.cache_clear()
    with pytest.raises(FileError, match=message) as caught:
        public_tables.cells("mi300x")
    assert str(caught.value).split(":")[1] == "2"


def test_machines_without_tables_are_refused() -> None:
    with pytest.raises(InputError, match="unknown machine with published measurements 'tpu-v5p'"):
        public_tables.cells("tpu-v5p")
