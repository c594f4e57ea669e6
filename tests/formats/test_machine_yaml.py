"""Machine files: what is read, what is refused and where, that writing and reading are inverse, and that nothing but a
`BlinksimError` escapes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from strategies import mutations, seconds, topologies, yaml_texts

from blinksim import data_files
from blinksim.errors import BlinksimError, FileError, InputError
from blinksim.formats import machine_yaml
from blinksim.formats.rate_tables import LinkClass
from blinksim.machines import load
from blinksim.textio import name_ranges
from blinksim.timing.measured_constants import SECTION_KEYS
from blinksim.topology.elements import SHAPES, Fabric, Level
from blinksim.topology.graph import Device, Link, Topology

GB = 10**9
BOX = """\
name: box
title: A box
source: our own drawing
devices:
  - {name: "gpu[0-2]", kind: gpu, attributes: {sm: 70, busid: 04:00.0, fan: "12", idle: false, volts: 0.5}}
  - {name: sw, kind: switch, capacity: 40GB/s, can: [forward, multicast]}
  - {name: nic0, kind: nic}
link_classes:
  nv:
    bandwidth: {nominal: 25GB/s, seed: 20GB/s}
    latency: 0.6us
    overhead: 1.3us
    source: {nominal: data sheet, latency: a guess}
  bus: {bandwidth: 100Gb/s, latency: 1us, overhead: 0us, source: text}
links:
  - {between: ["gpu[0-2]", sw], class: nv, lanes: 2}
  - {between: [gpu0, gpu1], class: bus, duplex: half}
  - {from: sw, to: nic0, class: bus, latency: 2us}
  - {from: nic0, to: sw, class: bus}
collective_links: [nv]
inter_node_links: [bus]
fabric: {shape: tree, ports: [nic0], class: bus, lanes: 2, planes: 1, leaf_nodes: 4, oversubscription: 3/2}
symmetries:
  - {gpu0: gpu1, gpu1: gpu0}
"""


def read(text: str, rates: str = "nominal") -> Topology:
    return machine_yaml.read_text(text, "box.yaml", rates)


def test_every_key_is_read() -> None:
    box = read(BOX)
    assert (box.name, box.source, box.rates, box.nodes) == ("box", "our own drawing", "nominal", 1)
    assert [d.name for d in box.devices] == ["gpu0", "gpu1", "gpu2", "sw", "nic0"]
    assert box.members == ("gpu0", "gpu1", "gpu2")
    assert box.device("gpu1").attributes == {"sm": 70, "busid": "04:00.0", "fan": "12", "idle": False, "volts": 0.5}
    abilities = frozenset(["forward", "multicast"])
    assert box.device("sw") == Device("sw", "switch", capacity=Fraction(40 * GB), can=abilities)
    assert box.links[:2] == (
        Link("gpu0", "sw", "nv", Fraction(25 * GB), 2, 0.6e-6, 1.3e-6),
        Link("sw", "gpu0", "nv", Fraction(25 * GB), 2, 0.6e-6, 1.3e-6),
    )
    shared = [link for link in box.links if link.bus]
    assert [(link.src, link.dst, link.bus) for link in shared] == [
        ("gpu0", "gpu1", "gpu0-gpu1 (bus)"),
        ("gpu1", "gpu0", "gpu0-gpu1 (bus)"),
    ]
    assert [link.latency for link in box.links[-2:]] == [2e-6, 1e-6]
    assert box.fabric == Fabric(
        "tree", ("nic0",), "bus", Fraction(25 * GB, 2), 2, 1e-6, 0.0, leaf_nodes=4, oversubscription=Fraction(3, 2)
    )
    assert box.symmetries == ((1, 0, 2, 3, 4),)
    assert read(BOX, "seed").rates == "seed (bus: nominal)"
    assert read(BOX, "seed").links[0].bandwidth == 40 * GB


def test_a_symmetry_may_be_written_with_ranges() -> None:
    turned = read(
        BOX.replace("  - {gpu0: gpu1, gpu1: gpu0}", '  - {"gpu[0-1]": "gpu[0-1]"}\n  - {gpu0: gpu1, gpu1: gpu0}')
    )
    assert turned.symmetries == ((0, 1, 2, 3, 4), (1, 0, 2, 3, 4))


def test_levels_and_groups_of_a_fabric_are_read() -> None:
    levels = read(
        BOX.replace("shape: tree", "levels: [{nodes: 4, oversubscription: 2}, {nodes: 8}, {planes: 1}]")
    ).fabric
    assert levels is not None
    assert levels.shape == "levels"
    assert levels.levels == (Level(4, 1, Fraction(2)), Level(8), Level())
    groups = read(BOX.replace("shape: tree", "shape: dragonfly, group_nodes: 4, group_links: 3")).fabric
    assert groups is not None
    assert (groups.shape, groups.group_nodes, groups.group_links) == ("dragonfly", 4, 3)


def test_the_head_tells_the_sources(tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.write_text(BOX)
    head = machine_yaml.outline(path)
    assert (head.title, head.rate_names()) == ("A box", ["nominal", "seed"])
    bandwidth = {"nominal": Fraction(25 * GB), "seed": Fraction(20 * GB)}
    source = "nominal: data sheet; latency: a guess"
    assert head.link_classes["nv"] == LinkClass("nv", bandwidth, 0.6e-6, 1.3e-6, source, ("seed", "overhead"))


def test_the_head_tells_what_is_assumed(tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    text = BOX.replace("title: A box", "title: A box\nmaker: We\nyear: 2026\nassumed: [one NIC is enough]")
    path.write_text(text.replace("    overhead: 1.3us\n", "    overhead: 1.3us\n    assumed: [latency]\n"))
    head = machine_yaml.outline(path)
    assert (head.maker, head.year) == ("We", 2026)
    assert head.assumptions() == ["one NIC is enough", "nv: seed, latency, overhead"]
    # What has no source of its own is assumed.
    for told, marked in (("true", "nominal, seed, latency, overhead"), ("false", "seed, overhead")):
        path.write_text(BOX.replace("    overhead: 1.3us\n", f"    overhead: 1.3us\n    assumed: {told}\n"))
        assert machine_yaml.outline(path).assumptions() == [f"nv: {marked}"]


def test_the_page_about_machine_files_is_right() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "machine-file.md").read_text(encoding="utf-8")
    page = text[text.index("\n## Machine file\n") : text.index("\n## Shapes\n")]
    smallest = re.findall(r"```yaml\n(.*?)```", text, re.S)[0]
    rates, execution = re.findall(r"```yaml\n(.*?)```", page, re.S)
    assert read(smallest).links[0].bandwidth == 50 * GB
    assert rates.startswith("name: measured")
    assert read(f"{smallest}{execution}").nccl_rates
    # Every key that the reader knows is explained, and no other.
    tables = re.findall(r"^#### (\w+).*?$(.*?)(?=^###)|^### What to write$(.*?)(?=^####)", page, re.S | re.M)
    listed = {title: set(re.findall(r"`(\w+)`", first_cells(body or top))) for title, body, top in tables}
    assert listed == {
        "": set(machine_yaml.KEYS),
        "Devices": set(machine_yaml.DEVICE_KEYS),
        "Link": {"bandwidth", "latency", "overhead", "source", "assumed"},
        "Links": set(machine_yaml.LINK_KEYS),
        "Fabric": set(machine_yaml.FABRIC_KEYS),
        "Levels": set(machine_yaml.LEVEL_KEYS),
        "Execution": set(SECTION_KEYS),
    }


def first_cells(text: str) -> str:
    return " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))


def test_ranges_expand_with_the_first_varying_slowest() -> None:
    assert name_ranges.expand("card[0-1].t[0-1]") == ["card0.t0", "card0.t1", "card1.t0", "card1.t1"]
    assert name_ranges.expand("x[8-10]y") == ["x8y", "x9y", "x10y"]
    assert name_ranges.expand("plain") == ["plain"]


# What is replaced in BOX, by what, where the fault is, and what the message says of it and of its cure.
FAULTS = [
    ("title: A box", "titel: A box", "2:1", "unknown key in the machine file: 'titel': did you mean 'title'"),
    ("title: A box", "gpus: 4", "2:1", "; blinksim topo import dgx1-v100 -o box.yaml writes a whole file)"),
    ("name: box\n", "", "1:1", "has no 'name'"),
    ("name: box", "name: [box]", "1:7", "must be a text; found a list"),
    ("name: box", "name: box\nname: box", "2:1", "the key 'name' twice (first in line 1)"),
    ("kind: switch", "kind: swich", "6:22", "did you mean 'switch'"),
    ("{name: sw,", "{name: gpu1,", "6:12", "gpu1 is given twice (first in line 5)"),
    ("{name: sw,", "{name: s w,", "6:12", "use letters, digits"),
    ('"gpu[0-2]", kind', '"gpu[2-0]", kind', "5:12", "write [0-2]"),
    ("capacity: 40GB/s", "capacity: 40", "6:40", "has no unit"),
    ("multicast]", "multi]", "6:63", "did you mean 'multicast'"),
    ("nominal: 25GB/s", "nominal: 25", "10:26", "'25' has no unit"),
    ("nominal: 25GB/s", "nominal: 0GB/s", "10:26", "not a positive bandwidth"),
    ("nominal: 25GB/s", "nominal: -1GB/s", "10:26", "not a positive bandwidth"),
    ("nominal: 25GB/s", "nominal: .nan", "10:26", "is not a bandwidth"),
    ("nominal: 25GB/s", "nominal: 1/0 GB/s", "10:26", "not a positive bandwidth"),
    ("nominal: 25GB/s, ", "", "10:16", "add the data sheet's figure"),
    ("seed: 20GB/s", "2nd: 20GB/s", "10:34", "a letter first"),
    ("latency: 0.6us", "latency: 0.6", "11:14", "has no unit"),
    ("latency: 0.6us", "latency:", "11:13", "latency of link class nv must be a number with its unit"),
    ("    latency: 0.6us\n", "", "10:5", "has no 'latency'"),
    ("overhead: 1.3us", "overheat: 1.3us", "12:5", "did you mean 'overhead'"),
    ("    source: {nominal: data sheet, latency: a guess}\n", "", "10:5", "has no 'source'"),
    ("overhead: 1.3us\n", "overhead: 1.3us\n    assumed: [late]\n", "13:15", "did you mean 'latency'"),
    ("overhead: 1.3us\n", "overhead: 1.3us\n    assumed: yes\n", "13:14", "known: false, true"),
    ("title: A box", "title: A box\nyear: 20", "3:7", "from 1990 to 2100"),
    ("  bus: {", "  b us: {", "14:3", "cannot name a link class"),
    ("class: nv,", "class: nw,", "16:40", "unknown link class 'nw': known: bus, nv"),
    ("lanes: 2}\n  -", "lanes: 0}\n  -", "16:51", "whole number from 1 to 1000000; found '0'"),
    ("lanes: 2}\n  -", "lanes: two}\n  -", "16:51", "found 'two'"),
    ('"gpu[0-2]", sw', '"gpu[0-3]", sw', "16:16", "unknown device 'gpu3'"),
    ('"gpu[0-2]", sw', '"gpu[0-2]", sw, sw', "16:15", "two devices or ranges; found 3"),
    ('"gpu[0-2]", sw', '"gpu[0-2]", "gpu[0-1]"', "16:5", "these are 3 and 2 long"),
    ('"gpu[0-2]", sw', "sw, sw", "16:5", "joins a device with itself"),
    ("duplex: half", "duplex: simplex", "17:49", "known: full, half"),
    ("from: sw, to: nic0", "from: sw", "18:5", "either `between: [a, b]` or `from: a` and `to: b`"),
    ("from: sw, to: nic0", "between: [sw, nic0], to: sw", "18:5", "either"),
    ("latency: 2us", "duplex: half", "18:46", "goes with `between`"),
    ("from: nic0, to: sw", "from: sw, to: nic0", "19:5", "given twice (first in line 18)"),
    ("collective_links: [nv]", "collective_links: [nvlink]", "20:20", "unknown"),
    ("collective_links: [nv]", "collective_links: nv", "20:19", "must be a list"),
    ("collective_links: [nv]", "members: [gpu9]", "20:11", "unknown device 'gpu9'"),
    ("collective_links: [nv]", "members: [sw]", "20:10", "only GPUs and tiles can hold a rank"),
    ("collective_links: [nv]", "rates: seed", "10:16", "must be one number"),
    ("shape: tree", "shape: bush", "22:17", "unknown"),
    ("ports: [nic0]", "ports: [nic0, nic0]", "22:9", "names a port twice"),
    ("planes: 1", "planes: 2", "22:9", "2 planes for 1 ports"),
    ("shape: tree, ", "", "22:9", "has no 'shape'"),
    ("shape: tree", "shape: levels", "22:9", "needs at least one"),
    ("shape: tree", "shape: dragonfly, group_nodes: 4", "22:9", "needs both"),
    ("shape: tree", "levels: [{}, {nodes: 4}]", "22:9", "the last level is above all nodes"),
    ("shape: tree", "levels: [{nodes: 4}, {nodes: 6}, {}]", "22:9", "a multiple of those one level below"),
    ("shape: tree", "levels: [{nodes: 4}, {planes: 2}]", "22:9", "2 planes for 1 ports"),
    ("shape: tree", "levels: [{node: 4}, {}]", "22:20", "did you mean 'nodes'"),
    ("oversubscription: 3/2", "oversubscription: 0", "22:104", "positive number such as"),
    ("oversubscription: 3/2", "oversubscription: 1/2", "22:9", "at least 1"),
    ("gpu1: gpu0}", "gpu1: gpu2}", "24:5", "does not map the machine onto itself"),
    ("{gpu0: gpu1, gpu1: gpu0}", "{gpu0: gpu2, gpu2: gpu0}", "24:5", "does not map the machine onto itself"),
    ("{gpu0: gpu1,", '{"gpu[0-1]": gpu1,', "24:5", "maps 2 devices to 1"),
    ("{gpu0: gpu1,", "{gpu0: gpu7,", "24:12", "unknown device 'gpu7'"),
    ("devices:", "devices: {", "5:3", "is not valid YAML"),
    ("source: our own drawing", "source: &x our", "3:9", "anchors"),
    ("source: our own drawing", "source: *x", "3:9", "aliases"),
    ("source: our own drawing", "source: !!python/object:os.system x", "3:9", "tags"),
    ("source: our own drawing", "source: a\x01", "3:10", "control character"),
    ("source: our own drawing", "source: a\n---\nb: c", "4:1", "two YAML documents"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "place", "message"), FAULTS, ids=[f"{f[2]} {f[3][:30]}" for f in FAULTS])
def test_a_fault_is_named_with_its_place(old: str, new: str, place: str, message: str) -> None:
    assert BOX.count(old) >= 1
    with pytest.raises(FileError) as caught:
        read(BOX.replace(old, new, 1))
    assert str(caught.value).startswith(f"box.yaml:{place}: ")
    assert message in str(caught.value)


def test_parallel_links_of_one_class_are_refused() -> None:
    with pytest.raises(FileError, match=r"^box.yaml:17:5: the link gpu0->sw \(nv\) is given twice \(first in"):
        read(BOX.replace("[gpu0, gpu1], class: bus, duplex: half", "[gpu0, sw], class: nv"))


def test_rates_that_the_file_does_not_have() -> None:
    with pytest.raises(InputError, match=r"unknown rates for box: 'sead': did you mean 'seed'"):
        read(BOX, "sead")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("[]", "must be a mapping"),
        ("box", "must be a mapping"),
        ("[" * 100_000, "nesting depth"),
        ("{a: " * 100_000, "nesting depth"),
        ("- " * 100_000, "nesting depth"),
        ("? " * 100_000, "nesting depth"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "anchors"),
        (BOX.replace("gpu[0-2]", "gpu[0-999999999]"), "more than 100000 names"),
        (BOX.replace("gpu[0-2]", "g[0-9]p[0-9]u[0-9].[0-9]x[0-9]z[0-9]"), "more than 100000 names"),
        (BOX.replace('"gpu[0-2]", kind: gpu', '"x[0-50000]", kind: gpu'), "more than 50000 devices"),
        (BOX.replace("collective_links: [nv]", f"members: [{', '.join(['gpu0'] * 3)}]"), "named more than once"),
        (BOX.replace("lanes: 2}\n  -", f"lanes: {'9' * 5000}}}\n  -"), "whole number"),
        (BOX.replace("25GB/s", "9" * 5000 + "GB/s"), "is not a bandwidth"),
        (BOX.replace("25GB/s", "1e999GB/s"), "bandwidth of a real link"),
        (BOX.replace("A box", "x" * 3000), "longer than 2000"),
    ],
)
def test_hostile_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(FileError, match=r"^box\.yaml") as caught:
        read(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_links_and_names_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_yaml, "MAX_LINKS", 7)
    with pytest.raises(FileError, match=r"^box.yaml:17:5: more than 7 directed links"):
        read(BOX + "# not read before\n")
    monkeypatch.undo()
    monkeypatch.setattr(machine_yaml, "MAX_DEVICES", 5)
    with pytest.raises(FileError, match=r"^box.yaml:20:41: more than 5 names"):
        read(BOX.replace("collective_links: [nv]", "members: [" + "gpu0, gpu1, " * 3 + "]"))


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(FileError, match="larger than 1 MiB"):
        machine_yaml.read(path)


def test_a_thousand_gpus_fit() -> None:
    text = BOX.replace("gpu[0-2]", "gpu[0-1023]")
    assert read(text.split("symmetries")[0]).ranks == 1024


# --- writing ----------------------------------------------------------------------------------------------------------


def test_writing_and_reading_are_inverse_for_the_box() -> None:
    for rates in ("nominal", "seed"):
        for nodes in (1, 3):
            box = read(BOX, rates).replicate(nodes)
            assert read(machine_yaml.write(box)) == box


def test_a_written_file_holds_the_rates_it_was_chosen_at() -> None:
    text = machine_yaml.write(read(BOX, "seed"))
    assert read(text, "seed (bus: nominal)") == read(text) == read(BOX, "seed")
    with pytest.raises(InputError, match="unknown rates"):
        read(text, "nccl")


def test_edits_survive_writing() -> None:
    box = read(BOX).degrade("gpu0-sw", lanes=1).without("gpu2").degrade("nic0-sw", bandwidth="1GB/s")
    box = box.select(["gpu1"], ["gpu0"], ["nv", "bus"])
    assert read(machine_yaml.write(box)) == box


def test_classes_without_links_are_left_out() -> None:
    box = replace(read(BOX), links=(), fabric=None, symmetries=())
    assert read(machine_yaml.write(box)) == replace(box, collective_links=(), inter_node_links=())


@pytest.mark.parametrize("value", [None, [1], float("nan")])
def test_attributes_that_yaml_cannot_hold_exactly_are_refused(value: object) -> None:
    with pytest.raises(InputError, match="attribute odd of gpu0"):
        machine_yaml.write(Topology("box", (Device("gpu0", "gpu", attributes={"odd": value}),), ()))


_RATES = st.fractions(Fraction(1), Fraction(10**13), max_denominator=10**6)
_TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda text: text.strip() != "")
_ATTRIBUTES = st.dictionaries(
    _TEXTS,
    st.one_of(
        st.integers(-(10**17), 10**17), st.booleans(), st.floats(1e-9, 1e9), _TEXTS,
        st.sampled_from(["yes", "null", "~", "12", "1.5", "1e5", "0x1f", "1:30", "true", "<<", "- a", "a: b", "#"]),
    ),
    max_size=3,
)  # fmt: skip


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Random machines with numbers, texts and roles that no reasonable person would choose."""
    machine = draw(topologies(max_devices=5, relays=True))
    links = [
        replace(
            x,
            kind=draw(st.sampled_from("ab")),
            lane_bandwidth=draw(_RATES),
            latency=draw(seconds()),
            overhead=draw(seconds()),
        )
        for x in machine.links
    ]
    devices = [
        replace(d, attributes=draw(_ATTRIBUTES), capacity=draw(st.none() | _RATES), node=draw(st.integers(-1, 2)))
        for d in machine.devices
    ]
    ports = tuple(draw(st.lists(st.sampled_from([d.name for d in devices]), min_size=1, unique=True)))
    shape, planes = draw(st.sampled_from(SHAPES)), draw(st.integers(1, len(ports)))
    over = draw(st.fractions(1, 10, max_denominator=1000))
    fabric = Fabric(
        shape, ports, draw(st.sampled_from("abc")), draw(_RATES), draw(st.integers(1, 9)),
        draw(seconds()), draw(seconds()), planes, draw(st.integers(1, 99)), over,
        levels=(Level(draw(st.integers(1, 99)), planes, over), Level()) if shape == "levels" else (),
        group_nodes=draw(st.integers(1, 99)) if shape == "dragonfly" else 0,
        group_links=draw(st.integers(1, 99)) if shape == "dragonfly" else 0,
        groups=draw(st.integers(0, 99)) if shape == "dragonfly" else 0,
    )  # fmt: skip
    return replace(
        machine,
        name=draw(_TEXTS.filter(str.isprintable)),
        source=draw(st.just("") | _TEXTS),
        rates=draw(_TEXTS),
        nodes=draw(st.integers(1, 4)),
        devices=tuple(devices),
        links=tuple(draw(st.permutations(links))),
        members=tuple(draw(st.permutations(machine.members))),
        collective_links=tuple(k for k in machine.collective_links if k in {x.kind for x in links}),
        fabric=draw(st.just(fabric) | st.none()),
        symmetries=(tuple(range(len(devices))),) if draw(st.booleans()) else (),
    )


@given(machines())
def test_writing_and_reading_are_inverse(machine: Topology) -> None:
    assert machine_yaml.read_text(machine_yaml.write(machine), "drawn.yaml") == machine


# --- fuzzing ----------------------------------------------------------------------------------------------------------


def only_blinksim_errors(text: str) -> None:
    """Fails for anything but a machine, or one line of message that begins with the place."""
    message = "box.yaml"
    try:
        read(text)
    except BlinksimError as error:
        message = str(error)
    assert message.startswith("box.yaml")
    assert "\n" not in message


@given(st.binary(max_size=200) | st.text(max_size=60).map(str.encode))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(data)
    with pytest.raises(FileError):
        machine_yaml.read(path)


@given(st.text(max_size=100) | yaml_texts())
@settings(max_examples=150)
def test_any_text(text: str) -> None:
    only_blinksim_errors(text)


@given(mutations(BOX))
@settings(max_examples=300)
def test_damaged_files(text: str) -> None:
    only_blinksim_errors(text)


@given(mutations((data_files.folder("topologies") / "k2200-ntb.yaml").read_text()))
def test_damaged_catalogue_files(text: str) -> None:
    only_blinksim_errors(text)


_VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=6
)
_KEYS = ["name", "devices", "link_classes", "links", "fabric", "members", "symmetries", "collective_links"]


@given(_VALUES, st.sampled_from(_KEYS))
@settings(max_examples=100)
def test_any_value_under_a_key(value: object, key: str) -> None:
    keys = {"name": "x", "devices": [], "link_classes": {}, "links": []} | {key: value}
    only_blinksim_errors(json.dumps(keys))


@pytest.mark.parametrize(
    ("text", "place", "cure"),
    [
        ("name: x\ndevices:\n\t- {name: gpu0, kind: gpu}\n", "3:1", "indent with spaces"),
        ("name: x\ndevices:\n  - {name: gpu[0-3], kind: gpu}\n", "3:15", 'quotes: "gpu[0-3]"'),
        ("name: x\ndevices:\n  - {name: 'gpu[0-3]', kind: [gpu}\n", "3:34", "not valid YAML"),
    ],
)
def test_slips_of_yaml_come_with_their_cure(tmp_path: Path, text: str, place: str, cure: str) -> None:
    path = tmp_path / "box.yaml"
    path.write_text(text)
    with pytest.raises(FileError) as refused:
        machine_yaml.read(path, "nominal")
    assert f"box.yaml:{place}: " in str(refused.value)
    assert cure in str(refused.value)
    assert ("write names" in str(refused.value)) == cure.startswith("quotes")


def test_constants_of_other_links_are_refused(tmp_path: Path) -> None:
    """A file begun from a machine of the catalogue, whose NVLinks were edited by hand."""
    path = tmp_path / "mine.yaml"
    path.write_text(machine_yaml.write(load("hgx-h100")))
    assert load(path).execution == load("hgx-h100").execution
    path.write_text(path.read_text().replace("nvlink: {bandwidth: 25GB/s", "nvlink: {bandwidth: 15GB/s"))
    with pytest.raises(FileError, match=r"mine.yaml:[0-9]+:3: execution was measured .* 450GB/s .* not 270 GB/s"):
        load(path)
