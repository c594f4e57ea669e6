"""Schedule files: what is written is read again, and whatever else is there is refused with the key that is wrong."""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from in_pieces import cut
from small_schedules import forests, helped, ring_allreduce, star_broadcast, through_the_helper
from strategies import mutations

import blinksim as bs
from blinksim.answers.verify import verify
from blinksim.errors import FileError, InputError
from blinksim.formats import schedule_json
from blinksim.formats.schedule_json import compact_from_document, read_schedule, to_text, write_schedule
from blinksim.machines import load
from blinksim.schedule.model import Schedule, as_schedule
from blinksim.textio import strict_json


def assert_same(a: Schedule, b: Schedule) -> None:
    for field in fields(Schedule):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            assert x.dtype == y.dtype
            assert x.tolist() == y.tolist()
        elif field.name == "topology":
            assert replace(x, fabric=None, symmetries=()) == y
            assert [d.attributes for d in x.devices] == [d.attributes for d in y.devices]
        else:
            assert x == y, field.name


def limited() -> Schedule:
    """With everything that a machine can have: capacities, buses, attributes, odd rates, a cluster."""
    schedule = star_broadcast(3)
    topology = schedule.topology
    first = replace(topology.devices[0], capacity=Fraction(10**11, 7), attributes={"busid": "0000:07:00.0", "sm": 90})
    links = [replace(link, lane_bandwidth=Fraction(10**9, 3), bus="b", overhead=2.5e-7) for link in topology.links[:2]]
    machine = replace(
        topology, devices=(first, *topology.devices[1:]), links=(*links, *topology.links[2:]), source="by hand\nof Zoë"
    )
    certificate = {"kind": "cut", "side": ["gpu0"], "capacity_exact": "20", "ratio_exact": "1/20"}
    return replace(schedule, topology=machine).with_bound(
        {"rate_exact": "10", "certificate": certificate, "n": [1, None]}
    )


@pytest.mark.parametrize("name", ["s.json", "s.json.gz"])
@pytest.mark.parametrize(
    "schedule",
    [ring_allreduce(3), limited(), through_the_helper(helped()), cut(ring_allreduce(8), 100)],
    ids=["ring", "limited", "relay", "long arrays"],
)
def test_round_trip(tmp_path: Path, schedule: Schedule, name: str) -> None:
    write_schedule(schedule, tmp_path / name)
    again = read_schedule(tmp_path / name)
    assert_same(schedule, again)
    assert verify(again) == verify(schedule)
    assert (tmp_path / name).read_bytes()[:2] == (b"\x1f\x8b" if name.endswith("gz") else b"{\n")


@settings(max_examples=30)
@given(forests())
def test_round_trip_of_random_forests(schedule: Schedule) -> None:
    whole = strict_json.parse("x.json", to_text(schedule).encode())
    assert_same(schedule, as_schedule(compact_from_document("x.json", whole)))


def test_a_cluster_keeps_its_links_without_the_fabric_that_made_them(tmp_path: Path) -> None:
    from blinksim.algorithms.registry import algorithm
    from blinksim.collective import Collective

    schedule = algorithm("hierarchical").build(load("rails:2x4").select(), Collective("allreduce"))
    write_schedule(schedule, tmp_path / "s.json")
    assert_same(schedule, read_schedule(tmp_path / "s.json"))


def test_the_same_schedule_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_schedule(ring_allreduce(4), tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_short_arrays_are_lists_and_long_ones_are_base64() -> None:
    document = json.loads(to_text(cut(ring_allreduce(8), 100)))
    assert document["share_num"] == [1] * 800
    assert document["step"]["dtype"] == "int32"
    data = base64.b64decode(document["step"]["base64"])
    assert np.frombuffer(data, "<i4").tolist() == cut(ring_allreduce(8), 100).step.tolist()


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    write_schedule(ring_allreduce(3), path)
    with pytest.raises(InputError, match="force=True"):
        write_schedule(ring_allreduce(4), path)
    assert read_schedule(path).topology.ranks == 3
    write_schedule(ring_allreduce(4), path, force=True)
    assert read_schedule(path).topology.ranks == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.json"]


@pytest.mark.parametrize("value", [Fraction(1, 2), float("nan"), {1, 2}])
def test_a_bound_that_is_not_json_is_refused_before_anything_is_written(tmp_path: Path, value: object) -> None:
    with pytest.raises(InputError, match="cannot be written as JSON"):
        write_schedule(ring_allreduce(3).with_bound({"rate": value}), tmp_path / "s.json")
    assert list(tmp_path.iterdir()) == []


# --- damaged documents ------------------------------------------------------------------------------------------------


def document(schedule: Schedule | None = None) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(to_text(schedule or limited()))
    return result


def refusal(damage: Callable[[dict[str, Any]], object]) -> str:
    damaged = document()
    damage(damaged)
    with pytest.raises(FileError) as caught:
        compact_from_document("x.json", damaged)
    message = str(caught.value)
    assert message.startswith("x.json: ")
    assert "\n" not in message
    return message.removeprefix("x.json: ")


def put(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def damage(whole: dict[str, Any]) -> None:
        place: Any = whole
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return damage


@pytest.mark.parametrize("key", [key for key in document() if key not in ("format", "version")])
def test_every_key_is_needed_and_has_its_type(key: str) -> None:
    assert refusal(lambda d: d.pop(key)) == f"the key {key!r} is missing"
    for value in (None, True, 1.5, "x", [["x"]], {"x": 1}):
        if not (key == "algorithm" and value == "x") and not (key == "bound" and isinstance(value, dict)):
            assert key in refusal(put(key, value=value))


def without(*path: str | int) -> Callable[[dict[str, Any]], object]:
    """The damage that removes what stands at `path`."""

    def damage(found: Any) -> None:
        for step in path[:-1]:
            found = found[step]
        del found[path[-1]]

    return damage


@pytest.mark.parametrize("part", ["devices", "links"])
def test_every_key_of_the_machine_is_needed(part: str) -> None:
    optional = {"capacity_Bps", "attributes", "bus"}
    for key in document()["machine"].keys() - {"edits"}:
        assert f"machine: the key {key!r} is missing" in refusal(without("machine", key))
    needed = set(document()["machine"][part][0]) - optional
    assert len(needed) >= 2
    for key in needed:
        found = refusal(without("machine", part, 0, key))
        assert f"machine.{part}[0]: the key {key!r} is missing" in found


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (put("format", value="other"), "is no schedule"),
        (put("version", value=4), "has version 4; this blinksim reads versions 1 to 3"),
        (put("version", value=3), "unknown key 'collective'"),
        (put("version", value=True), "has version True"),
        (put("extra", value=1), "unknown key 'extra'"),
        (put("chnk", value=1), "did you mean 'chunk'"),
        (put("machine", "links", 1, "bandwith", value="1"), "machine.links[1]: unknown key 'bandwith'"),
        (put("machine", "links", 1, "lanes", value=0), "machine.links[1].lanes: must lie between 1 and"),
        (put("machine", "links", 1, "latency_s", value=-1), "machine.links[1].latency_s: must lie between 0"),
        (put("machine", "links", 1, "lane_bandwidth_Bps", value=25e9), "lane_bandwidth_Bps: must be text"),
        (put("machine", "links", 1, "lane_bandwidth_Bps", value="1/0"), "must be a positive fraction"),
        (put("machine", "links", 1, "lane_bandwidth_Bps", value="-1"), "must be a positive fraction"),
        (put("machine", "links", 1, "lane_bandwidth_Bps", value="1e999999999"), "must be a positive fraction"),
        (put("machine", "links", 1, "lane_bandwidth_Bps", value="9" * 300), "is longer than 200 characters"),
        (put("machine", "links", 1, "src", value="gpu9"), "machine: "),
        (put("machine", "links", 1, "dst", value="gpu0"), "machine.links[1]: link gpu0->gpu0"),
        (put("machine", "devices", 1, "name", value="gpu0"), "two devices are called 'gpu0'"),
        (put("machine", "devices", 1, "name", value="a b"), "machine.devices[1]: 'a b' cannot name a device"),
        (put("machine", "devices", 1, "kind", value="gpuu"), "machine.devices[1]: unknown device kind 'gpuu'"),
        (put("machine", "devices", 1, "can", value=[]), "machine.devices[1].can: is empty"),
        (put("machine", "devices", 1, "can", value=["fly"]), "unknown ability 'fly'"),
        (put("machine", "members", value=[]), "machine.members: names no device"),
        (put("machine", "members", value=["gpu0", "gpu0"]), "gpu0 named more than once"),
        (put("machine", "name", value="\x1b[31m"), "machine.name: holds a control character"),
        (put("collective", "name", value="allreduc"), "collective.name: unknown collective 'allreduc'"),
        (put("collective", "root", value=3), "root 3 is not a rank"),
        (put("collective", value={"name": "allreduce", "root": 0}), "collective.root: allreduce has no root"),
        (put("form", value="tree"), "form: must be forest or steps"),
        (put("share_den", value=0), "share_den: must lie between 1 and"),
        (put("share_den", value=2**41), "share_den: must lie between 1 and"),
        (put("share_num", value=[-1]), "shares must not be negative"),
        (put("chunk", value=[0, 7]), "chunk holds a value outside"),
        (put("chunk", value=[0]), "arrays differ in length"),
        (put("chunk", value=[0, 2**31]), "chunk[1]: must lie between -2147483648 and 2147483647"),
        (put("chunk", value=[0, 1.0]), "chunk[1]: must be a whole number, not 1.0"),
        (put("chunk", value=[0, False]), "chunk[1]: must be a whole number, not false"),
        (put("chunk", value="AAAA"), "chunk: must be a list"),
        (put("src", value=[0, 3]), "src holds a value outside"),
        (put("op", value=[0, 2]), "op holds a value outside"),
        (put("op", value=[0, 256]), "op[1]: must lie between 0 and 255"),
        (put("step", value=[1, 0]), "steps must start at 0 or later and never decrease"),
        (put("route", value=[0, 2]), "route holds a value outside"),
        (put("route_start", value=[0, 2, 1]), "route_start must rise"),
        (put("route_links", value=[0, 99]), "route_links holds a value outside"),
        (put("origin", value=[3]), "origin holds a value outside"),
        (put("channel", value=[0, -1]), "channels must not be negative"),
        (put("chunk", value={"dtype": "int64", "length": 0, "base64": ""}), "chunk.dtype: must be 'int32'"),
        (put("chunk", value={"dtype": "int32", "length": 3, "base64": "AAAAAA=="}), "has 4 bytes, but 3 int32 need 12"),
        (put("chunk", value={"dtype": "int32", "length": 1, "base64": "A*AAAA=="}), "chunk.base64: is not base64"),
        (put("chunk", value={"dtype": "int32", "length": 1}), "chunk: the key 'base64' is missing"),
    ],
)
def test_damage_is_named_with_its_key(damage: Callable[[dict[str, Any]], None], says: str) -> None:
    assert says in refusal(damage)


# --- damaged files ----------------------------------------------------------------------------------------------------


def read_text(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(FileError) as caught:
        read_schedule(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(str(path))


GOOD = to_text(ring_allreduce(3)).encode()
PACKED = strict_json.pack(GOOD.decode())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", ":1:1: is not JSON"),
        (GOOD[:-20], "is not JSON"),
        (GOOD.replace(b'"bound": {}', b'"bound": {"a": NaN}'), "holds NaN, which is not a number"),
        (GOOD.replace(b'"bound": {}', b'"bound": {"a": -Infinity}'), "holds -Infinity"),
        (GOOD.replace(b'"bound": {}', b'"bound": {"a": 1e999}'), "holds 1e999, which is too large"),
        (GOOD.replace(b'"bound": {}', b'"bound": {"a": ' + b"9" * 5000 + b"}"), "a number of 5000 digits"),
        (GOOD.replace(b'"bound": {}', b'"bound": {"a": 1, "a": 2}'), "has the key 'a' twice"),
        (GOOD.replace(b'"bound": {}', b'"bound": {"a": "\\ud83d"}'), "half a character"),
        (GOOD.replace(b'"bound": {}', b'"bound": {"a": "\\udc00"}'), "half a character"),
        (GOOD.replace(b'"bound": {}', b'"bound": ' + b"[" * 100_000 + b"]" * 100_000), "nested too deeply"),
        (b"\xff\xfe" + GOOD, "is not UTF-8"),
        (GOOD + b"\0", "zero byte"),
        (b"[]", "is no schedule"),
        (b"7", "is no schedule"),
        (PACKED[:-30], "cut short"),
        (PACKED[:-8] + b"x" * 8, "is damaged"),
        (b"\x1f\x8b\x07" + PACKED[3:], "is damaged"),
        (PACKED + b"more", "after the end of its gzip data"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_files_that_are_no_schedules(tmp_path: Path, data: bytes, says: str) -> None:
    assert data != GOOD
    assert says in read_text(tmp_path, data)


def test_a_whole_escaped_character_is_no_half() -> None:
    assert strict_json.parse("x", rb'["\ud83d\ude00"]') == ["\U0001f600"]


def test_files_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_json, "MOST_BYTES", 2**20)
    monkeypatch.setattr(strict_json, "MOST_ENTRIES", 10_000)
    bomb = gzip.compress(b" " * 2**27)
    tracemalloc.start()
    assert "unpacks to more than 1 MiB" in read_text(tmp_path, bomb)
    assert "is larger than 1 MiB" in read_text(tmp_path, b" " * (2**20 + 1))
    assert "has more than 10,000 entries" in read_text(tmp_path, b"[" + b"0," * 20_000 + b"0]")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    write_schedule(ring_allreduce(3), tmp_path / "ring.json")
    with pytest.raises(FileError, match="did you mean"):
        read_schedule(tmp_path / "rnig.json")


@settings(max_examples=150)
@given(st.data())
def test_damaged_text_is_refused_in_one_line_or_still_a_schedule(data: st.DataObject) -> None:
    text = data.draw(mutations(GOOD.decode()))
    message = ""
    try:
        verify(compact_from_document("x.json", strict_json.parse("x.json", text.encode("utf-8", "surrogatepass"))))
    except FileError as error:
        message = str(error)
        assert message.startswith("x.json")
    assert "\n" not in message


def test_the_file_that_the_page_shows_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "schedule-file.md").read_text(encoding="utf-8")
    shown = page.split("```json\n")[1].split("```")[0]
    schedule = as_schedule(compact_from_document("page", strict_json.parse("page", shown.encode())))
    assert verify(schedule).ok
    assert verify(schedule).facts.gap == 0


def test_the_page_describes_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "schedule-file.md").read_text(encoding="utf-8")
    whole = document()
    keys = {*whole, *whole["machine"], *whole["machine"]["devices"][0], *whole["machine"]["links"][0], "root"}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_a_file_keeps_the_edits_of_its_machine(tmp_path: Path) -> None:
    edited = bs.load("ring:4@25GB/s").degrade("gpu0-gpu1", bandwidth="10GB/s")
    bs.write_schedule(bs.synthesize(edited, "allreduce", "ring").schedule, tmp_path / "ring.json")
    assert bs.read_schedule(tmp_path / "ring.json").topology.edits == edited.edits != ()
    # In columns, too.
    document = json.loads((Path(__file__).parents[1] / "data/compatibility/version-2-torus.json").read_text())
    document["machine"]["edits"] = ["degrade link latency=2us"]
    (tmp_path / "torus.json").write_text(json.dumps(document))
    assert "edited degrade link latency=2us" in bs.verify_file(tmp_path / "torus.json").facts
