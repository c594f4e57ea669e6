"""Constants of measured times in machine files and rates files: read, refused, and written exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from strategies import seconds

from blinksim import machines
from blinksim.errors import FileError
from blinksim.formats import machine_yaml, rate_tables
from blinksim.formats.rate_tables import RateTable
from blinksim.textio import yaml_nodes
from blinksim.textio.yaml_nodes import dump
from blinksim.timing.measured_constants import (
    ExecutionRates,
    FitError,
    FlagRates,
    NcclLine,
    NcclRates,
    NvlsLine,
    Origin,
    PacketRates,
    PortRates,
    read_section,
    write_section,
)

ROOT = Path(__file__).resolve().parents[2]
H200 = (ROOT / "topologies" / "hgx-h200.yaml").read_text(encoding="utf-8")
TEXT = """\
name: ours
execution:
  hardware: NVIDIA H200
  measured: {source: our GPUs, date: 2026-11-20}
  gpus: [2, 8]
  nccl:
    version: 2.28.9
    ll: {start: 8.4us, hop: 0.67us, rate: 165GB/s}
    ll128: {start: 17us, hop: 0.73us, rate: 312GB/s}
    simple: {start: 21us, hop: 1.8us, rate: 364GB/s}
    turn: 935GB/s
    rooted_start: 17.1us
"""

rates = st.floats(1.0, 1e15)
shares = st.floats(0.0, 9.0)
texts = st.text("abc ,:#'\"-é{}[]", min_size=1, max_size=20).filter(str.strip)
origins = st.builds(
    Origin, texts, st.sampled_from(["", "2026-11-20"]), st.one_of(st.just(""), texts), st.none() | shares
)
counts = st.lists(st.integers(2, 72), min_size=1, max_size=4, unique=True).map(lambda found: tuple(sorted(found)))
errors = st.none() | st.builds(FitError, shares, shares, st.integers(1, 10**6))
numbers = st.floats(0.01, 1e6)
lines = st.builds(NcclLine, seconds(), seconds(), rates, st.none() | rates)
few = st.none() | st.integers(1, 999)
nccl = st.builds(
    NcclRates, texts, origins, counts, texts, lines, lines, lines, rates, seconds(),
    st.none() | st.builds(NvlsLine, seconds(), rates, texts, seconds(), few, few), errors, seconds(),
)  # fmt: skip
ours = st.builds(
    ExecutionRates, texts, origins, counts, st.integers(1, 500), seconds(), seconds(), seconds(),
    st.builds(PortRates, rates, rates, shares, seconds(), seconds(), st.floats(0.0, 0.99)),
    st.builds(PacketRates, *[seconds()] * 6, numbers, numbers, seconds()),
    st.builds(FlagRates, *[seconds()] * 4, st.integers(1, 10**10).map(float), *[seconds()] * 4, numbers, seconds()),
    errors,
)  # fmt: skip


@given(st.none() | ours, st.none() | nccl)
def test_what_is_written_reads_back_equal(ours: ExecutionRates | None, nccl: NcclRates | None) -> None:
    text = dump({"execution": write_section(ours, nccl)})
    if ours is None and nccl is None:
        assert text == "execution: {}\n"
        return
    (entry,) = yaml_nodes.load("rates.yaml", text, "rates file").mapping(("execution",), example="").values()
    assert read_section(entry) == (ours, nccl)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("hop: 0.67us, rate: 165GB/s", "hops: 0.67us, rate: 165GB/s", 8, "'hops': did you mean 'hop'"),
        ("start: 8.4us", "start: 8.4", 8, "start of ll of nccl of execution: '8.4' has no unit"),
        ("rate: 312GB/s", "rate: 312", 9, "has no unit"),
        ("start: 17us, ", "", 9, "ll128 of nccl of execution has no 'start'"),
        ("    turn: 935GB/s\n", "", 7, "nccl of execution has no 'turn'"),
        ("gpus: [2, 8]", "gpus: [8, 2]", 5, r"numbers of GPUs, ascending and each once, as in \[2, 4, 8\]"),
        ("gpus: [2, 8]", "gpus: [1, 2]", 5, "whole number from 2"),
        ("date: 2026-11-20", "date: last week", 4, "a day such as 2026-11-20; found 'last week'"),
        ("source: our GPUs, ", "", 4, "has no 'source'"),
        ("date: 2026-11-20", "band: 0.35", 4, "must be a percentage such as 2.7 %; found '0.35'"),
        ("  gpus: [2, 8]", "  gpus: [2, 8]\n  blocks: 132", 3, "execution has no 'launch'"),
        ("    rooted_start: 17.1us\n", "    rooted_start: -1us\n", 12, "is not a latency"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    path = tmp_path / "rates.yaml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(FileError, match=rf"rates\.yaml:{line}:\d+: .*{message}"):
        rate_tables.read(path)


def test_a_section_without_constants_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rates.yaml"
    path.write_text(TEXT[: TEXT.index("  nccl:")])
    with pytest.raises(FileError, match="execution holds no constants; add nccl, or blocks, launch"):
        rate_tables.read(path)


def test_a_rates_file_replaces_what_the_machine_has(tmp_path: Path) -> None:
    """And nothing else: links keep their rates."""
    path = tmp_path / "rates.yaml"
    path.write_text(TEXT)
    plain, box = machines.load("hgx-h200"), machines.load("hgx-h200", rates=str(path))
    assert plain.links == box.links
    assert plain.nccl_rates is not None
    assert box.nccl_rates is not None
    assert (plain.nccl_rates.ll.start_s, box.nccl_rates.turn) == (8.4e-6, 935e9)
    assert box.nccl_rates != plain.nccl_rates
    assert box.execution == plain.execution
    # On a finished topology as well, and on a machine that has none.
    assert rate_tables.apply(plain, rate_tables.read(path)).nccl_rates == box.nccl_rates
    assert machines.load("dgx-a100", rates=str(path)).nccl_rates == box.nccl_rates


def test_a_table_is_written_with_its_constants(tmp_path: Path) -> None:
    path = tmp_path / "rates.yaml"
    path.write_text(TEXT)
    table = rate_tables.read(path)
    assert table == RateTable("ours", {}, nccl_rates=table.nccl_rates)
    path.write_text(rate_tables.write(table))
    assert rate_tables.read(path) == table


def test_constants_hold_for_the_machine_as_it_is() -> None:
    """GPUs may be left out; a changed link takes the constants away, at other rates as well."""
    machine = machines.load("hgx-h200")
    assert machine.nccl_rates is not None
    assert machine.select("0-3").nccl_rates == machine.nccl_rates
    assert machine.without("gpu7").nccl_rates == machine.nccl_rates
    for edit in ("degrade gpu0-nvswitch lanes=9", "replace nvlink bandwidth=20GB/s", "without gpu0->nvswitch"):
        assert machine.edit(edit).nccl_rates is None
    edited = machines.load("hgx-h200", edits=["degrade gpu0-nvswitch lanes=9"])
    from blinksim.machines import preferring

    assert preferring(machine, "nccl").nccl_rates == machine.nccl_rates
    assert preferring(edited, "nccl").nccl_rates is None


def test_a_machine_file_keeps_its_constants_when_written() -> None:
    machine = machine_yaml.read_text(H200, "hgx-h200.yaml")
    again = machine_yaml.read_text(machine_yaml.write(machine), "again.yaml")
    assert machine.nccl_rates is not None
    assert (again.execution, again.nccl_rates) == (machine.execution, machine.nccl_rates)
    # Constants of another origin than those beside them say so.
    other = replace(machine.nccl_rates, measured=Origin("elsewhere", band=0.35))
    text = machine_yaml.write(replace(machine, nccl_rates=other))
    assert machine_yaml.read_text(text, "again.yaml").nccl_rates == other


def test_a_slip_in_a_machine_file_names_its_line() -> None:
    number = 1 + H200.splitlines().index("    rooted_start: 17.1us")
    with pytest.raises(FileError, match=rf"box\.yaml:{number}:\d+: .*'rooted_start_us': did you mean 'rooted_start'"):
        machine_yaml.read_text(H200.replace("rooted_start: 17.1us", "rooted_start_us: 17.1"), "box.yaml")
