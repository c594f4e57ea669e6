"""Rate tables: reading, writing, and putting them in force on machines of any origin."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from strategies import seconds

from blinksim import machines
from blinksim.collective import Collective
from blinksim.errors import FileError, InputError
from blinksim.formats import rate_tables
from blinksim.formats.rate_tables import ClassRates, RateTable
from blinksim.timing.library_model import Library
from blinksim.topology.shapes import ring

TABLE = """\
name: ours
machine: dgx1-v100
source: our log
classes:
  nvlink: {bandwidth: 22.9GB/s, latency: 1us}
  ib: {overhead: 2us}
"""


def write(folder: Path, text: str = TABLE) -> Path:
    path = folder / "ours.yaml"
    path.write_text(text)
    return path


def test_a_table_overrides_the_classes_that_it_names(tmp_path: Path) -> None:
    path = write(tmp_path)
    plain, box = machines.load("dgx1-v100"), machines.load("dgx1-v100", rates=str(path))
    assert box.rates == "ours (pcie, qpi: nominal)"
    for before, after in zip(plain.links, box.links, strict=True):
        if before.kind == "nvlink":
            assert after.lane_bandwidth == Fraction(229 * 10**8)
            assert (after.latency, after.overhead) == (1e-6, before.overhead)
        else:
            assert after == before
    assert plain.fabric
    assert box.fabric
    assert (box.fabric.lane_bandwidth, box.fabric.overhead) == (plain.fabric.lane_bandwidth, 2e-6)
    # The same table on the finished topology gives the same machine.
    assert rate_tables.apply(plain, rate_tables.read(path)) == box


def test_a_table_is_for_its_machine_only(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(InputError, match="the rates 'ours' are for dgx1-v100, not for dgx1-p100"):
        machines.load("dgx1-p100", rates=path)


def test_classes_that_the_machine_does_not_have(tmp_path: Path) -> None:
    path = write(tmp_path, "name: x\nclasses: {nvlnk: {bandwidth: 1GB/s}}\n")
    with pytest.raises(InputError, match=r"'nvlnk': did you mean 'nvlink'"):
        machines.load("dgx1-v100", rates=path)
    with pytest.raises(InputError, match="'nvlnk'"):
        machines.load("ring:4", rates=path)


def test_forms_and_topology_files_take_tables(tmp_path: Path) -> None:
    path = write(tmp_path, "name: x\nclasses: {link: {bandwidth: 1GB/s}}\n")
    box = machines.load("ring:4", rates=path)
    assert {link.bandwidth for link in box.links} == {10**9}
    assert box.rates == "x"
    xml = Path(__file__).parents[1] / "data" / "captures" / "h200x8" / "topo.xml"
    path = write(tmp_path, "name: x\nclasses: {nvlink: {bandwidth: 21GB/s}}\n")
    assert {x.lane_bandwidth for x in machines.load(xml, rates=path).links if x.kind == "nvlink"} == {21 * 10**9}


def test_a_bandwidth_for_a_class_of_unequal_lanes_is_refused() -> None:
    uneven = ring(4).degrade("gpu0-gpu1", bandwidth="1GB/s")
    with pytest.raises(InputError, match="several bandwidths"):
        rate_tables.apply(uneven, RateTable("x", {"link": ClassRates(Fraction(10**9))}))
    assert rate_tables.apply(uneven, RateTable("x", {"link": ClassRates(latency=2e-6)})).links[0].latency == 2e-6


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("classes:", "class:", r":4:1: unknown key in the rates file: 'class': did you mean 'classes'"),
        ("latency: 1us", "latency: 1", r":5:42: latency of link class nvlink: '1' has no unit"),
        ("{overhead: 2us}", "{}", r":6:3: link class ib gives no number"),
        ("{overhead: 2us}", "2us", r":6:7: link class ib must be a mapping"),
        ("name: ours\n", "", r":1:1: the rates file has no 'name'"),
    ],
)
def test_faults_are_named_with_their_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        rate_tables.read(write(tmp_path, TABLE.replace(old, new)))


@given(
    st.dictionaries(
        st.sampled_from(["nvlink", "xe", "12", "a.b"]),
        st.builds(
            ClassRates,
            st.fractions(1, 10**12, max_denominator=10**6),
            st.none() | seconds(),
            st.none() | seconds(),
        ),
        min_size=1,
    )
)
def test_writing_and_reading_are_inverse(
    tmp_path_factory: pytest.TempPathFactory, classes: dict[str, ClassRates]
) -> None:
    table = RateTable("drawn", classes, source="a # b: c")
    path = tmp_path_factory.getbasetemp() / "rates.yaml"
    path.write_text(rate_tables.write(table), encoding="utf-8")
    assert rate_tables.read(path) == table


@pytest.mark.parametrize(
    ("machine", "nodes", "lost"), [("aurora", 16, ()), ("tpu-v5p", 2, ()), ("hgx-h100", 4, ("n1.gpu3",))]
)
def test_times_of_jobs_of_many_names_are_read_as_they_were_written(
    tmp_path: Path, machine: str, nodes: int, lost: tuple[str, ...]
) -> None:
    part = machines.load(machine, nodes=nodes, edits=[f"without {one}" for one in lost]).select()
    job = rate_tables.job_of(Collective("allreduce"), part, multicast=True)
    times = {job: {2**20: 5.5e-5, 2**30: 0.01}}
    path = write(tmp_path, rate_tables.write(RateTable("ours", {"x": ClassRates(latency=1e-6)}, times=times)))
    assert rate_tables.read(path).times == times


@pytest.mark.parametrize(
    ("job", "multicast", "taken"),
    [
        ("allreduce on gpu[0-7]", True, True),
        ("allreduce on gpu[0-7]", False, True),
        ("allreduce on gpu[0-7] with NVLS", True, True),
        ("allreduce on gpu[0-7] with NVLS", False, False),
        ("allreduce on gpu[0-7] without NVLS", True, False),
        ("allreduce on gpu[0-3]", True, False),
    ],
)
def test_times_of_a_file_are_those_of_the_library(tmp_path: Path, job: str, multicast: bool, taken: bool) -> None:
    path = write(tmp_path, f"name: ours\ntimes: {{'{job}': {{1GiB: 6ms}}}}")
    model, machine = Library(multicast=multicast).at(machines.Question("p5en", rates=str(path)))
    [found] = model.times(machine, Collective("allreduce"), [2**30])
    assert (found.time_s == pytest.approx(6e-3)) == taken


def test_a_time_with_nvls_goes_before_one_for_both(tmp_path: Path) -> None:
    text = "name: ours\ntimes: {allreduce on a: {1MiB: 2ms}, allreduce on a with NVLS: {1MiB: 1ms}}"
    table = rate_tables.read(write(tmp_path, text))
    assert [table.times_of(f"allreduce on a {how} NVLS")[2**20] for how in ("with", "without")] == [1e-3, 2e-3]


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("alreduce on gpu[0-7]", "unknown collective 'alreduce': did you mean 'allreduce'"),
        ("allreduce", "'allreduce' is not a job and its members"),
        ("allreduce on bananas", "unknown member of hgx-h100: 'bananas'"),
        ("allreduce on 0-7", "unknown member of hgx-h100: '0-7'"),
        ("allreduce on n1.gpu[6-8]", "unknown member of hgx-h100: 'gpu8'"),
    ],
)
def test_times_of_no_job_are_refused_at_their_line(tmp_path: Path, job: str, message: str) -> None:
    path = write(tmp_path, f"name: ours\ntimes:\n  '{job}': {{1GiB: 6ms}}\n")
    with pytest.raises(FileError, match=re.escape(f"{path}:3:3: {message}")):
        machines.load("hgx-h100", rates=path)


def test_a_table_is_read_once_and_again_where_its_file_changed(tmp_path: Path) -> None:
    """As every question at other rates asks for all tables."""
    path = tmp_path / "rates.yaml"
    path.write_text("name: ours\nclasses: {nvlink: {bandwidth: 20GB/s}}\n")
    found = rate_tables.read(path)
    assert rate_tables.read(path) is found
    path.write_text("name: ours\nclasses: {nvlink: {bandwidth: 30GB/s}}\n")
    assert rate_tables.read(path).classes["nvlink"].bandwidth == 30 * 10**9
