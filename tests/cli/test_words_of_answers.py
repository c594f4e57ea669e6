"""What answers say: the bottleneck where overheads decide, tables without noise, hints that work when typed."""

from __future__ import annotations

import csv
import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.answers.sweep import Axis
from blinksim.cli.main import run
from blinksim.errors import InfeasibleError, InputError
from blinksim.schedule.loads import link_loads
from blinksim.timing import simulation_model
from blinksim.units import format_time, size_of

ROOT = Path(__file__).resolve().parents[2]
HALF_DUPLEX = """
name: half
devices:
  - {name: "gpu[0-3]", kind: gpu}
  - {name: sw, kind: switch, capacity: 40GB/s}
link_classes:
  pcie: {bandwidth: 20GB/s, latency: 1us, overhead: 0us, source: test}
  x: {bandwidth: 7GB/s, latency: 1us, overhead: 0us, source: test}
links:
  - {between: [gpu0, gpu1], class: x, duplex: half}
  - {between: [gpu2, gpu3], class: x, bus: shared}
  - {between: [gpu1, gpu2], class: x, bus: shared}
  - {between: ["gpu[0-3]", sw], class: pcie, duplex: half}
"""


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert run(list(arguments)) == status
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_overheads_are_named_where_they_take_the_time() -> None:
    machine = bs.load("hgx-h100", nodes=4)
    small = bs.project(machine, "alltoall", "64KiB", algorithm="direct")
    assert small.bottleneck_words.startswith("overhead of further messages, 84 %")
    assert "; of the links, n0." in small.bottleneck_words
    large = bs.project("dgx1-v100", "allreduce", "1GiB", algorithm="ring")
    assert large.bottleneck_words.startswith("gpu0->gpu")


@pytest.mark.slow
def test_two_classes_that_tie_are_both_named() -> None:
    """Wider adapters alone change nothing: messages start on PCIe, whose bytes and overheads take as long."""
    before, after = (
        bs.project(bs.Question("hgx-h100", nodes=64, edits=edits).whole(), "alltoall", "64MiB", algorithm="direct")
        for edits in (("replace ib lanes=1",), ("replace ib lanes=2",))
    )
    assert after.time_s == pytest.approx(before.time_s, rel=0.01)
    starts = "busy 100 % of the time (23 % for starts of messages)"
    assert before.bottleneck_words.endswith(f"(pcie), {starts}, and ib 99 %: all must be faster")


def test_a_traffic_matrix_has_its_own_size() -> None:
    traffic = bs.Traffic([[0, 3000, 10], [1000, 0, 10], [5, 5, 0]])
    collective = bs.Collective("alltoallv", traffic=traffic)
    assert bs.project("switch:3", collective).size == traffic.size
    with pytest.raises(InputError, match="allreduce has no size of its own; give size="):
        bs.project("switch:3", "allreduce")


def test_changes_without_effect_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "bound", "rails:2x2", "allreduce", "--gains")
    assert "+0.0 %" not in out
    assert "no difference" in out


def test_levels_have_no_exponents(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "bound", "gb200-nvl72", "alltoall", "--nodes", "2", "--links", "nvlink,pcie,ib", "--levels")
    assert "e+0" not in out


@pytest.mark.parametrize("name", ["nodes", "xe lanes", "xe bandwidth", "xe latency", "ranks-per-node"])
def test_the_example_of_values_can_be_typed(name: str) -> None:
    with pytest.raises(InputError, match="a value is missing; write them like") as caught:
        Axis.parse(f"{name}=")
    Axis.parse(str(caught.value).rpartition("like ")[2].strip("'"))


def test_xml_is_known_by_its_first_byte(tmp_path: Path) -> None:
    schedule = bs.synthesize("full:3", "allgather", "ring").schedule
    file = tmp_path / "x3.msccl-xml"
    bs.write(bs.export(schedule, "msccl-xml"), file)
    assert bs.verify_file(str(file), bs.Question("full:3")).ok


def test_an_alltoall_is_not_told_to_take_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation_model, "MOST_SENDS", 10)
    with pytest.raises(InfeasibleError, match="fewer ranks or model='alpha-beta'") as caught:
        bs.project("switch:5", "alltoall", "1MiB", algorithm="direct", model="simulate")
    assert "double_binary" not in str(caught.value)


def test_links_of_several_lanes_are_not_said_to_carry_what_one_lane_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without gpu0-gpu1 four V100 have links of one lane and of two, all busy all the time."""
    file = str(tmp_path / "four.json")
    machine = bs.load("dgx1-v100").edit("without gpu0-gpu1").select([0, 1, 2, 3])
    schedule = bs.synthesize(machine, "allreduce").schedule
    bs.write(schedule, file)
    carries = {link.name: load for link, load in zip(machine.links, link_loads(schedule), strict=True)}
    lanes = {link.name: link.lanes for link in machine.links}
    assert {load / lanes[name] for name, load in carries.items()} == {Fraction(3, 8)}
    assert set(carries.values()) == {Fraction(3, 8), Fraction(3, 4)}
    out = printed(capsys, "verify", file)
    (name, load, others) = re.findall(r": (\S+ \(nvlink\)) carries (\S+) of the data, as busy as (\d+) others", out)[0]
    assert (str(carries[name]), len(carries) - 1) == (load, int(others))


def test_edits_without_effect_have_no_factor(capsys: pytest.CaptureFixture[str]) -> None:
    """NVLS of one node needs no adapter."""
    out = printed(capsys, "project", "hgx-h100", "allreduce", "1GiB", "--edit", "without nic0")
    assert "; unchanged by the edits, by NCCL's channels" in out
    assert "times 1 " not in out
    # One GPU of 64 less makes 4 in 10,000.
    out = printed(capsys, "project", "8xp4d", "broadcast", "1GiB", "--edit", "without n0.gpu0")
    assert "; unchanged by the edits but for which GPUs take part, by NCCL's channels" in out


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("hgx-h100", r"each link of class ib at [\d.]+ GB/s, not 50, would explain it\n"),
        ("p5", r"each link of class efa at [\d.]+ GB/s, not 12.5, would explain it\n"),
    ],
    ids=["hgx-h100", "p5"],
)
def test_what_is_behind_is_said_of_whole_links(capsys: pytest.CaptureFixture[str], machine: str, words: str) -> None:
    figure = ("--busbw", "180", "--size", "8GiB")
    out = printed(capsys, "diagnose", *figure, "--machine", machine, "--nodes", "4", status=1)
    assert re.search(f"  behind      {words}", out)


@pytest.mark.parametrize("rate", ["18GB/s", "25GB/s", ""])
def test_times_that_a_tuner_expects_are_not_taken_for_those_at_other_rates(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rate: str
) -> None:
    """There is one figure of what NCCL takes; where it expects another, that is said to be at the rates it plans by."""
    path, asked = tmp_path / "rates.yaml", ["project", "hgx-h200", "allreduce", "1GiB", "--algorithm", "nccl"]
    own = f"{{bandwidth: {rate}, latency: 0.3us, overhead: 1.2us}}"
    path.write_text(f"name: measured\nmachine: hgx-h200\nsource: a test\nclasses:\n  nvlink: {own}\n")
    out = printed(capsys, *asked, *(["--rates", str(path)] if rate else []))
    takes = re.search("takes (.*?): ", out)
    expects = re.search("^  expects     nvls Simple (.*?);(.*)$", out, re.MULTILINE)
    assert takes
    assert expects
    assert (takes[1] != expects[1]) == bool(rate)
    assert expects[2].endswith("; at the rates that it plans by, not these") == bool(rate)


def test_a_comparison_says_of_which_sizes_its_sources_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Each size is under one source, in ranges that do not overlap: 16 MiB and 256 MiB have one, not 64 MiB."""
    out = printed(capsys, "compare", "hgx-h100", "allreduce")
    spans = [span for spans in re.findall(r"^  from, (.*?): ", out, re.MULTILINE) for span in spans.split(", ")]
    ranges = sorted([size_of(end) for end in span.split(" to ")] for span in spans)
    assert (ranges[0][0], ranges[-1][-1]) == (2**10, 2**30)
    assert all(upper[0] == 2 * lower[-1] for lower, upper in pairwise(ranges))
    assert len(spans) > out.count("  from, ")


def test_several_published_runs_say_how_far_apart_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight nodes of Alps: by the tables, three runs of 32 MiB."""
    size, path = 2**25, ROOT / "models" / "measured" / "alps.csv"
    rows = [row for row in csv.DictReader(path.read_text().splitlines()) if row["size_bytes"] == str(size)]
    times = [float(row["time_us"]) for row in rows if row["collective"] == "allreduce" and row["nodes"] == "8"]
    out = printed(capsys, "project", "alps", "allreduce", "32MiB", "--nodes", "8")
    found = bs.project(bs.Question("alps", nodes=8).whole(), "allreduce", size)
    runs = found.details["published_s"]
    assert runs == pytest.approx([1e-6 * time for time in sorted(times)])
    assert f"median of {len(times)} published runs" in out
    assert f"; the runs took {format_time(runs[0])} to {format_time(runs[-1])}\n" in out
    alone = printed(capsys, "project", "hgx-h100", "allreduce", "1GiB")
    assert "the runs took" not in alone


@pytest.mark.parametrize(("rates", "said"), [([], True), (["--rates", "measured"], False)])
def test_a_comparison_of_algorithms_says_when_it_leaves_launches_out(
    capsys: pytest.CaptureFixture[str], rates: list[str], said: bool
) -> None:
    names = ("--algorithms", "ring,double_binary", "--sizes", "1MiB")
    first = printed(capsys, "compare", "hgx-h100", "allreduce", *names, *rates).splitlines()[0]
    assert first.endswith("at nominal (data-sheet) rates, without launches") == said


def test_one_algorithm_is_not_called_the_quickest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "hgx-h100", "allreduce", "--algorithms", "nccl", "--sizes", "1MiB,1GiB"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("allreduce on hgx-h100: nccl; 270.3 GB/s at 1 GiB\n")
    assert "quickest" not in out
    assert "*" not in out


def test_a_single_node_shows_the_class_that_joins_it_to_others(capsys: pytest.CaptureFixture[str]) -> None:
    """32 adapters, in and out."""
    assert run(["topo", "show", "p5"]) == 0
    assert "  efa            64      1  12.5 GB/s     5 us            0 s    no\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "project p5 allreduce 8GiB --nodes 2",
        "compare p5 allreduce --sizes 8GiB --nodes 2",
        "diagnose --busbw 480 --size 8GiB --machine p5 --nodes 2",
    ],
)
def test_clusters_are_called_the_same_everywhere(capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert run(line.split()) == 0
    assert " on 16 GPUs of 2 x p5.48xlarge: " in capsys.readouterr().out


def test_a_shape_that_is_a_cluster_counts_its_nodes_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["project", "rails:2x2", "allreduce", "1MiB"]) == 0
    assert " on 4 GPUs of rails:2x2: " in capsys.readouterr().out
    assert run(["topo", "show", "rails:2x2"]) == 0
    assert capsys.readouterr().out.startswith("rails:2x2: 4 ranks; ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("project dgx1-v100 allreduce 1MiB --members 0", "--members gpu0: a collective needs two GPUs or more"),
        (
            "project p5 allreduce 1MiB --nodes 100000",
            "--nodes 100000: up to 8,163 of these are built; take fewer, or ",
        ),
    ],
)
def test_a_refusal_names_the_argument(capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    assert run(line.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"blinksim: {words}")
    assert err.count("\n") == 1


def test_a_rate_that_takes_another_time_is_not_blamed(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "diagnose", "--busbw", "60", "--size", "8GiB", "--machine", "dgx1-v100", status=1)
    edit = "degrade nvlink bandwidth=10.2686GB/s"
    takes = printed(capsys, "project", "dgx1-v100", "allreduce", "8GiB", "--edit", edit)
    time = re.search(r"dgx1-v100: ([\d.]+ ms) with NCCL", takes)
    assert time is not None, takes
    # 60 GB/s of busbw are 250 ms, and links that slow take another time, as NCCL finds other rings.
    assert float(time[1].split()[0]) > 1.1 * 250
    assert "slow, and not alone by slow nvlink: 60 GB/s" in out
    assert "would explain it" not in out


def test_what_half_duplex_links_buses_and_switches_carry_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "half.yaml").write_text(HALF_DUPLEX)
    out = printed(capsys, "topo", "show", str(tmp_path / "half.yaml"))
    assert "\n  shared  gpu0-gpu1 (x): 7 GB/s for 2 links together\n" in out
    assert "\n  shared  shared: 7 GB/s for 4 links together\n" in out
    assert "gpu3-sw (pcie): 20 GB/s for 2 links together\n" in out
    assert "\n  capacity  sw: 40 GB/s in, and as much out\n" in out
    assert "shared" not in printed(capsys, "topo", "show", "hgx-h100")


def test_what_links_passed_is_in_one_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    box = tmp_path / "half.yaml"
    box.write_text(HALF_DUPLEX)
    assert run(["synth", str(box), "allreduce", "-o", str(tmp_path / "trees.json")]) == 0
    capsys.readouterr()
    assert run(["simulate", str(tmp_path / "trees.json"), "256MiB", "--chunk", "4MiB"]) == 0
    rows = capsys.readouterr().out.partition("  passed\n")[2].partition("next:")[0].splitlines()
    passed = [tuple(row.split()[-2:]) for row in rows]
    assert len(rows) == 8
    assert {unit for _, unit in passed} == {"GB"}
    # By hand, of both links of the switch: what enters it leaves it.
    assert passed[-1][0] == passed[-2][0]


@pytest.mark.parametrize(("machine", "off"), [("hgx-h200", ""), ("hgx-b200", "35 %"), ("dgx-a100", "35 %")])
def test_a_time_by_constants_that_are_lent_says_so_without_why(
    machine: str, off: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of B200 and A100 are of H200, which only --why said beside "at measured rates"."""
    out = printed(capsys, "project", machine, "allreduce", "256MiB")
    [told] = re.findall(
        r"could take .* as a program on the GPUs(?:, by lent constants that may be off by (\d+ %))?", out
    )
    assert told == off


def test_a_sweep_says_why_it_has_no_time_of_a_quicker_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    """On p5en 1 GiB had "-" and no reason, where project says that nothing quicker than NCCL is known."""
    out = printed(capsys, "sweep", "p5en", "allreduce", "--sizes", "1KiB,1GiB")
    assert re.search(r"^ +1 GiB +8 +[\d.]+ ms  none quicker ", out, re.MULTILINE)
    assert re.search(r"^ +1 KiB +8 +[\d.]+ us +[\d.]+ us ", out, re.MULTILINE)


@pytest.mark.parametrize("command", ["sweep", "compare"])
def test_every_table_calls_an_estimate_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As `project` does: of Aurora few jobs were published, of a p5 these."""
    estimate = "an estimate, as no time of this very job is published: "
    for machine, known in (("aurora", False), ("p5", True)):
        assert run([command, machine, "allreduce", "--sizes", "1MiB,64MiB"]) == 0
        origins = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  from, ")]
        assert origins
        assert all((estimate in line) is not known for line in origins)


def test_a_size_of_parameters_is_doubled_for_two_bytes_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["project", "p5", "allreduce", "8B"]) == 0
    assert "8B is read as bytes; 8 billion parameters in bf16 are 16GB" in capsys.readouterr().err


def test_more_ranks_per_node_than_an_edit_leaves_is_refused_with_what_to_type(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["project", "aurora", "allreduce", "1MiB", "--nodes", "2", "--edit", "without n1.card2"]
    assert run([*asked, "--ranks-per-node", "12"]) == 2
    error = capsys.readouterr().err
    assert "n1 of aurora has 10 GPUs; give 1 to 10, or no number for all GPUs" in error
    assert run(asked) == 0
    assert "on 22 tiles of 2 x aurora" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("machine", "size", "basis"),
    [("aurora", "1MiB", "links"), ("p5", "1MiB", "measured"), ("hgx-b200", "1KiB", "fitted")],
)
def test_why_says_how_the_terms_of_the_library_came_about(
    machine: str, size: str, basis: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["project", machine, "allreduce", size, "--why"]) == 0
    terms = capsys.readouterr().out.split("CCL takes\n  term ")[1].partition("\n\n")[0]
    assert re.search(rf"^  total .*\n  {basis}: .* published times? of ", terms, re.MULTILINE)


def test_a_card_named_as_a_rank_is_refused_with_its_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["project", "aurora", "allreduce", "1MiB", "--nodes", "2", "--members", "n0.card0"]) == 2
    assert "can hold a rank; name n0.card0.t0 or n0.card0.t1" in capsys.readouterr().err


def test_a_mark_tells_machines_apart_or_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """The two have one time at every size; a third is slower at the second one."""
    assert run(["compare", "p5,p5en", "allreduce", "--nodes", "8", "--sizes", "1MiB,1GiB"]) == 0
    assert " *" not in capsys.readouterr().out.replace("\n  * may", "")
    assert run(["compare", "p5,p5en,dgx-a100", "allreduce", "--nodes", "8", "--sizes", "1MiB,1GiB"]) == 0
    assert capsys.readouterr().out.count("ms * ") == 2
