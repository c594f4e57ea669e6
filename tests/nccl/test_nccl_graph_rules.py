"""What becomes of a graph file: judged as NCCL's own code judged 75 of them, valid and invalid, in two releases."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from blinksim.errors import InputError
from blinksim.nccl.files.graph_rules import (
    Communicator,
    Judgement,
    LoadError,
    Node,
    Release,
    broken_ring,
    c_integer,
    judge,
    load_graphs,
)

TESTS = Path(__file__).resolve().parents[1]
FILES = TESTS / "data" / "nccl_graph"
VERDICTS = list(csv.DictReader(io.StringIO((TESTS / "golden" / "nccl_graph_verdicts.csv").read_text())))
ON_DISK = [row for row in VERDICTS if (FILES / Path(row["file"]).name).exists()]
RELEASES = {"v2283": "2.28.3", "v2307": "2.30.7"}


def communicator(row: dict[str, str]) -> Communicator:
    gpus = tuple(int(gpu) for gpu in row["gpus"].split())
    nvswitch = "hgx" in row["topo"]
    return Communicator(gpus, int(row["nnodes"]), sm=90 if nvswitch else 70, nvls=nvswitch)


def judged(row: dict[str, str], release: str) -> Judgement:
    text = (FILES / Path(row["file"]).name).read_bytes().decode()
    return judge(text, communicator(row), Release.parse(RELEASES[release]))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("row", ON_DISK, ids=lambda row: Path(row["file"]).stem)
def test_every_file_is_judged_as_nccl_does(row: dict[str, str], release: str) -> None:
    found = judged(row, release)
    expected = {key.removeprefix(f"{release}_"): value for key, value in row.items()}
    assert found.verdict == expected["verdict"], found.reason
    assert found.reason
    for name in ("ring", "tree", "nvls"):
        graph = found.graphs.get(name)
        # Without such a graph in the file NCCL prints whatever its variable held.
        absent = row["what"].startswith("only id") and expected.get(f"{name}_in_force") == "0"
        if expected[f"{name}_elements"] and not absent:
            assert graph is not None
            assert graph.elements == int(expected[f"{name}_elements"])
        if graph is None or not expected.get(f"{name}_in_force"):
            continue
        assert graph.in_force == (expected[f"{name}_in_force"] == "1")
        if graph.in_force:
            assert " ".join("-".join(map(str, channel)) for channel in graph.channels) == expected[name]
            speeds = "/".join(f"{speed:g}" for speed in graph.speeds)
            assert f"{speeds} {'/'.join(graph.types)}" == expected[f"{name}_model"]
    if found.channels is not None:
        assert found.channels == int(expected["channels"])
    if expected["tree_pattern"] and found.graphs["tree"].in_force:
        assert found.graphs["tree"].pattern == int(expected["tree_pattern"])


@pytest.mark.parametrize("release", RELEASES)
def test_the_log_is_what_nccl_prints(release: str) -> None:
    for row in ON_DISK:
        found, text = judged(row, release), row[f"{release}_text"]
        if found.verdict == "error":
            code, _, line = text.partition(" | ")
            assert line == found.log
            assert code.split()[1] in found.reason
        elif found.verdict == "ring_error":
            assert found.log == text
        elif text and found.verdict in ("used", "ignored"):
            assert all(part in text for part in found.log.split("; ")), (row["file"], text, found.log)


def test_all_the_files_are_there_but_the_one_that_is_missing() -> None:
    absent = [row["file"] for row in VERDICTS if row not in ON_DISK]
    assert absent == ["graph_files/missing_file.xml"]
    assert len(ON_DISK) == 74


# Used by accident: NCCL takes these and something else than what is written is in force.
ACCIDENTS = {
    "nch_too_big", "nch_too_small", "short_ring_no0", "long_last_tree", "id_twice", "ring_only", "tree_only",
    "ring_tree_differ", "ring_pattern1", "tree_pattern9", "type_c2c", "type_longer", "speed_zero", "speed_unit",
    "nets_single_node", "mn_no_net", "samechannels2", "rank_foreign_dev", "hgx_nvls_1head",
}  # fmt: skip


def test_what_is_used_by_accident_is_said() -> None:
    found = set()
    for row in ON_DISK:
        for release in RELEASES:
            judgement = judged(row, release)
            if judgement.verdict == "used" and judgement.accidents:
                found.add(Path(row["file"]).stem)
                assert not judgement.ok
    assert found == ACCIDENTS


def test_a_machine_shows_hops_without_a_link_and_nets_that_are_not_there() -> None:
    text = (FILES / "no_links.xml").read_text()
    linked = frozenset({(0, 3), (3, 0), (5, 6), (6, 5), (3, 6)})
    found = judge(text, Communicator((0, 3, 5, 6), linked=linked))
    assert any("0-5, 5-3" in remark for remark in found.accidents)
    text = (FILES / "mn_bad_net.xml").read_text()
    found = judge(text, Communicator(tuple(range(8)), 2, nets=frozenset(range(4))))
    assert any("net 7" in remark for remark in found.accidents)


@pytest.mark.parametrize(
    ("nodes", "pattern", "verdict"),
    [(2, 1, "used"), (3, 1, "corrupt_tree"), (4, 1, "corrupt_tree"), (4, 3, "used"), (2, 2, "corrupt_tree")],
)
def test_one_gpu_a_node_needs_pattern_3(nodes: int, pattern: int, verdict: str) -> None:
    text = (FILES / "mn4_1gpu_pattern3.xml").read_text().replace('pattern="3"', f'pattern="{pattern}"')
    assert judge(text, Communicator((0,), nodes)).verdict == verdict


# --- releases -----------------------------------------------------------------------------------------------------


def test_older_releases_count_gpus_in_decimal_and_have_fewer_channels() -> None:
    sixteen = Communicator(tuple(range(16)))
    decimal = (FILES / "dev16_decimal.xml").read_text()
    assert judge(decimal, sixteen, Release.parse("2.19.3")).verdict == "used"
    assert judge(decimal, sixteen, Release.parse("2.21.5")).verdict == "error"
    quad = Communicator((0, 1, 2, 3))
    assert judge((FILES / "ch32.xml").read_text(), quad, Release.parse("2.24")).verdict == "crash"
    assert judge((FILES / "ch32.xml").read_text(), quad, Release.parse("2.25")).verdict == "used"
    assert judge((FILES / "single_quotes.xml").read_text(), quad, Release.parse("2.26")).verdict == "error"
    two_hundred = (FILES / "ok_ring_tree.xml").read_text()
    channel = "<channel>" + '<gpu dev="0x0"/><gpu dev="0x1"/><gpu dev="0x2"/><gpu dev="0x3"/>' + "</channel>"
    two_hundred = two_hundred.replace("</graph>", channel * 200 + "</graph>").replace('"2" speed', '"202" speed')
    assert "limited to 128 subnodes" in judge(two_hundred, quad, Release.parse("2.28.3")).log
    assert judge(two_hundred, quad, Release.parse("2.30.7")).verdict == "crash"


@pytest.mark.parametrize("text", ["2.7.8", "2.31", "3.1", "", "2", "2.28.3.4", "two"])
def test_unknown_releases_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"2\.8 to 2\.30"):
        Release.parse(text)


# --- numbers and text as C reads them -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "base", "value"),
    [("10", 16, 16), ("0x10", 16, 16), ("0X1", 16, 1), ("10", 0, 10), ("010", 0, 8), ("0x", 0, 0), ("0xg", 16, 0),
     ("one", 16, 0), ("-3", 0, -3), ("  7x", 0, 7), ("", 0, 0), ("two", 0, 0), ("08", 0, 0), ("e", 16, 14)],
)  # fmt: skip
def test_integers_as_c_reads_them(text: str, base: int, value: int) -> None:
    assert c_integer(text, base) == value


@pytest.mark.parametrize(
    ("text", "value"), [("20", 20), ("20GB", 20), ("1e1", 10), (".5", 0.5), ("x", 0), ("", 0), ("-2.", -2)]
)
def test_decimals_as_c_reads_them(text: str, value: float) -> None:
    assert Node("gpu", 1, {"speed": text}).decimal("speed") == value


@given(st.integers(-(2**40), 2**40))
def test_written_integers_come_back(value: int) -> None:
    assert c_integer(str(value)) == value
    assert c_integer(f"{value:x}" if value >= 0 else f"-{-value:x}", 16) == value


@pytest.mark.parametrize(
    ("text", "log"),
    [
        ("<graphs version='1'", "Unexpected EOF"),
        ("<graphs version=1/>", "Expected (double) quote"),
        ('<graphs version="2"/>', "wrong version 2"),
        ('<graphs version="1"></graph>', "XML Mismatch : graphs / graph"),
        ('<graphs version="1"><!-- ', "unterminated comment"),
        ('<graphs version="1"\n name="x"/>', "expected >"),
        ('<graphs\tversion="1"/>', "Unexpected value"),
        (f'<graphs version="1" name="{"x" * 300}"/>', "too long"),
        ('<graphs version="1"><graph id="0"></graph extra></graphs>', "unexpected trailing"),
    ],
)
def test_what_nccl_cannot_read(text: str, log: str) -> None:
    with pytest.raises(LoadError) as caught:
        load_graphs(text, Release.parse("2.28.3"))
    assert log in caught.value.log


def test_comments_may_stand_anywhere_between_elements_and_end_early() -> None:
    for comment in ("<!---->", "<!-- a > b -->", "<!--a\n-->", "<!-- -- -->"):
        root, _ = load_graphs(f'{comment}<graphs version="1">{comment}<graph id="0"/></graphs>{comment}', Release(28))
        assert [child.name for child in root.children] == ["graph"]


def test_attributes_beyond_the_sixteenth_are_left_out_and_the_first_of_two_counts() -> None:
    many = " ".join(f'a{i}="{i}"' for i in range(15))
    root, log = load_graphs(f'<graphs version="1" {many} late="1"/>', Release(28))
    assert "a14" in root.attributes
    assert "late" not in root.attributes
    assert "extra attributes" in log[0]
    assert load_graphs('<graphs version="1" name="a" name="b"/>', Release(28))[0].attributes["name"] == "a"


def test_rings_are_walked_from_rank_0() -> None:
    assert broken_ring((0, 1, 2), (0, 1, 2)) == ""
    assert broken_ring((2, 0, 1), (0, 1, 2)) == ""
    assert broken_ring((0, 1, 1), (0, 1, 2)) != ""
    assert broken_ring((5, 7), (7, 5)) == ""


@given(st.permutations(range(5)))
def test_every_permutation_is_a_ring(order: list[int]) -> None:
    assert broken_ring(order, range(5)) == ""


@given(st.lists(st.integers(0, 4), min_size=5, max_size=5))
def test_nothing_but_a_permutation_is_a_ring(order: list[int]) -> None:
    assert (broken_ring(order, range(5)) == "") == (sorted(order) == list(range(5)))


# --- hostile input ------------------------------------------------------------------------------------------------

GOOD = (FILES / "ok_ring_tree.xml").read_text()


@given(st.text(alphabet="<>/=\"' \n\tgraphschelnud0123456789xversion!-", max_size=200))
@example("<" * 200)
@example("<graphs " * 50)
def test_any_text_gets_a_verdict(text: str) -> None:
    found = judge(text, Communicator((0, 1, 2, 3)))
    assert found.verdict in ("ignored", "error", "crash")


@given(st.integers(0, len(GOOD)), st.integers(0, 60), st.sampled_from(["", "<", '"', "0", "<graph>", "-->", "\x00"]))
def test_a_damaged_file_gets_a_verdict(start: int, length: int, text: str) -> None:
    found = judge(GOOD[:start] + text + GOOD[start + length :], Communicator((0, 1, 2, 3)))
    assert found.reason


def test_deep_nesting_ends_in_a_verdict() -> None:
    deep = '<graphs version="1">' + "<x>" * 20_000
    assert judge(deep, Communicator((0, 1))).verdict == "error"
