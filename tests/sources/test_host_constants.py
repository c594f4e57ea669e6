"""Host paths from their data file: sources, crossovers that are found, and files that are refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from blinksim import data_files
from blinksim.errors import FileError, InputError
from blinksim.sources.host_constants import HostConstants, host_constants, read_host_constants
from blinksim.sources.host_path import bootstrap_time, paths_cross, transport

FILE = data_files.folder("models") / "host-path.yaml"


def changed(**values: str) -> HostConstants:
    known = host_constants()
    more = {name: replace(known.constants[name], value=Fraction(value)) for name, value in values.items()}
    return replace(known, constants={**known.constants, **more})


def test_every_constant_has_a_source_and_times_are_labelled_as_assumed() -> None:
    known = host_constants()
    assert all(constant.source for constant in known.constants.values())
    assert all(lane.source for lane in known.lanes.values())
    # The thesis prints no latency at all.
    times = {"socket_message", "pio_message", "dma_start", "plugin_message", "bootstrap_connect", "operation"}
    assert {name for name, constant in known.constants.items() if constant.assumed} == times
    with pytest.raises(InputError, match="did you mean 'dma_start'"):
        known.value("dma_stat")


def test_socket_and_ntb_cross_near_the_thesis_by_search() -> None:
    socket, ntb = transport("socket"), transport("ntb")
    crossing = paths_cross(socket, ntb)
    assert crossing is not None
    # Much alike below 8,000 float32 (32 kB), the socket quicker below about 10,000 (40 kB), NTB above.
    assert 32_000 <= crossing <= 40_000
    assert ntb.time(crossing, 2**19) < socket.time(crossing, 2**19)
    assert ntb.time(crossing - 1, 2**19) >= socket.time(crossing - 1, 2**19)
    # By hand: both copies to and from host memory are the same on either way, which leaves start and wire.
    known = host_constants()
    start = 2 * known.seconds("pio_message") + known.seconds("dma_start") + known.seconds("plugin_message")
    wires = 1 / transport("socket").hops[1].bandwidth - 1 / transport("ntb").hops[1].bandwidth
    assert crossing == pytest.approx((start - known.seconds("socket_message")) / wires, abs=1.5)


def test_the_crossover_moves_with_what_causes_it() -> None:
    def crossing(gpudirect: bool = False, **values: str) -> int | None:
        data = changed(**values)
        return paths_cross(transport("socket", constants=data), transport("ntb", gpudirect=gpudirect, constants=data))

    usual = crossing()
    assert usual is not None
    for less in (crossing(plugin_message="100e-6"), crossing(socket_message="60e-6"), crossing(gpudirect=True)):
        assert less is not None
        assert less < usual
    assert crossing(plugin_message="0", dma_start="0", pio_message="0") == 1
    # Over a connection as quick as the bridge there is nothing to gain.
    assert paths_cross(transport("ntb"), transport("ntb")) is None
    with pytest.raises(InputError, match="unknown transport"):
        transport("pigeon")


def test_large_messages_gain_what_the_slowest_link_allows() -> None:
    socket, ntb = transport("socket"), transport("ntb", gpudirect=True)
    # 2 GB/s of the GPUs' own PCIe links against 1 Gb/s.
    gain = socket.time(2**30, 2**20) / ntb.time(2**30, 2**22)
    assert 10 < gain < 16
    assert ntb.bandwidth / socket.bandwidth == 16


def test_bootstrap_grows_with_the_ranks() -> None:
    known = host_constants()
    assert bootstrap_time(1) == 0
    assert bootstrap_time(4) == pytest.approx(
        9 * known.seconds("bootstrap_connect") + 3 * known.seconds("socket_message")
    )
    times = [bootstrap_time(n) for n in (2, 3, 4, 5)]
    steps = [b - a for a, b in pairwise(times)]
    assert steps == pytest.approx([steps[0]] * 3)
    with pytest.raises(InputError, match="at least 1"):
        bootstrap_time(0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("time: 1us", "time: 1 parsec", "pio_message"),
        ("count: 256", "count: 2.5", "not a count"),
        ("count: 256", "cuont: 256", "exactly one of"),
        ("assumed: true, source", "assumed: maybe, source", "true or false"),
        ("8/10", "12/10", "at most 1"),
        ("transfer_rate: 2.5", "transfer_rate: fast", "not a number"),
        ("transfer_rate: 2.5,", "transfer_rate: 2.5, colour: red,", "unknown key"),
        ("constants:", "constant:", "needs the mappings"),
        ("pcie:", "pcie: [", "is not valid YAML"),
        ("  1: {", "  one: {", "no generation"),
        (', source: "half a round trip over TCP between two hosts of one switch"', "", "source must be text"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = FILE.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "host-path.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(FileError, match=message) as caught:
        read_host_constants(path)
    assert str(caught.value).startswith(str(path))
