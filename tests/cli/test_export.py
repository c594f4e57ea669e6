"""blinksim export, topo export and verify of graph files, as a person uses them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.cli.main import run

DATA = Path(__file__).resolve().parents[1] / "data"
GRAPHS = DATA / "nccl_graph"
TIMES = str(DATA.parents[1] / "validate" / "results" / "nccl-tuning-4gpu.csv")
DGX1 = str(DATA / "nccl_topo" / "dgx1v-4ib.xml")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert run(list(arguments)) == status
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, status: int) -> str:
    assert run(list(arguments)) == status
    captured = capsys.readouterr()
    assert captured.err.startswith("blinksim: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture(scope="module")
def schedules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """chains.json, blink.json and helped.json on the first GPUs of a DGX-1."""
    folder = tmp_path_factory.mktemp("schedules")
    base = ["synth", "dgx1-v100", "allreduce", "--members"]
    for name, options in {
        "chains": ["0-3", "--algorithm", "chains"],
        "blink": ["0-7", "--algorithm", "mxnet"],
        "helped": ["0,1", "--relays", "2,3", "--relays-reduce", "--algorithm", "blinkplus"],
    }.items():
        assert run([*base, *options, "-o", str(folder / f"{name}.json")]) == 0
    return folder


def test_a_graph_file_is_written_with_how_to_use_it(
    schedules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "graph.xml"
    out = answer(capsys, "export", str(schedules / "chains.json"), "--format", "nccl-graph", "-o", str(target))
    assert f"export NCCL_GRAPH_FILE={target}" in out
    assert "export NCCL_ALGO=allreduce:tree" in out
    assert "Channel 00/03 : 0" in out
    assert "Trees [0]" in out
    assert "caution  for experiments" in out
    out = answer(capsys, "verify", str(target), "--machine", "dgx1-v100", "--members", "0-3")
    assert "used by NCCL 2.28.3" in out
    assert refusal(capsys, "export", str(schedules / "chains.json"), "--format", "nccl-graph", "-o", str(target),
                   status=2)  # fmt: skip
    forced = ["--force", "--json"]
    found = json.loads(
        answer(capsys, "export", str(schedules / "chains.json"), "--format", "nccl_graph", "-o", str(target), *forced)
    )
    assert found["environment"]["NCCL_GRAPH_FILE"] == str(target)
    assert found["format"] == "nccl-graph"


def test_without_a_file_name_the_file_is_the_answer(schedules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form, start in (("nccl-graph", "<graphs"), ("msccl-xml", "<algo"), ("mscclpp-json", "{")):
        assert run(["export", str(schedules / "chains.json"), "--format", form]) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith(start)
        assert "caution" in captured.err
        assert run(["export", str(schedules / "chains.json"), "--format", form, "-q"]) == 0
        assert capsys.readouterr().err == ""


def test_a_set_goes_to_a_folder(schedules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "set"
    out = answer(capsys, "export", str(schedules / "helped.json"), "--format", "nccl-graph-set", "-o", str(folder))
    assert f"python3 {folder}/recipe.py" in out
    names = ["chain0.xml", "chain1.xml", "chain2.xml", "chain3.xml", "manifest.json", "recipe.py"]
    assert sorted(path.name for path in folder.iterdir()) == names
    base = ["export", str(schedules / "helped.json"), "--format", "nccl-graph-set"]
    assert "add --force" in refusal(capsys, *base, "-o", str(folder), status=2)
    assert "is a file" in refusal(capsys, *base, "-o", str(folder / "recipe.py"), status=2)
    assert "name a folder" in refusal(capsys, *base, status=2)
    answer(capsys, *base, "-o", str(folder), "--force")


def test_what_a_format_cannot_say_ends_with_3_and_the_way_out(
    schedules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = refusal(capsys, "export", str(schedules / "blink.json"), "--format", "nccl-graph", status=3)
    assert "branches at" in text
    assert "--algorithm chains" in text
    assert text.endswith("As it is, msccl-xml and mscclpp-json take this schedule\n")
    text = refusal(capsys, "export", str(schedules / "helped.json"), "--format", "nccl-graph", status=3)
    assert "nccl-graph-set" in text
    text = refusal(capsys, "export", str(schedules / "helped.json"), "--format", "msccl-xml", status=3)
    assert "has no rank" in text
    assert "As it is, nccl-graph-set takes this schedule" in text
    text = refusal(capsys, "export", str(schedules / "chains.json"), "--format", "nccl-grap", status=2)
    assert "did you mean 'nccl-graph'" in text


def test_a_wrong_schedule_is_not_exported(schedules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads((schedules / "chains.json").read_text())
    document["share_num"][0] += 1
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(document))
    text = refusal(capsys, "export", str(broken), "--format", "nccl-graph", "-o", str(tmp_path / "g.xml"), status=2)
    assert "is wrong and is not exported" in text
    assert not (tmp_path / "g.xml").exists()


@pytest.mark.parametrize(
    ("file", "options", "status", "words"),
    [
        ("ok_ring_tree", ["--members", "0-3"], 0, "used by NCCL 2.28.3"),
        ("dup_tree", ["--members", "0-3"], 1, "no tree over all ranks"),
        ("prolog", ["--members", "0-3"], 1, "remove the <?xml"),
        ("no_typeinter", ["--members", "0-3"], 1, "crash"),
        ("blank_file", ["--members", "0-3"], 1, "ignored"),
        ("ok_ring_tree", [], 1, "error|ring_error|not contain"),
        ("nch_too_small", ["--members", "0-3"], 1, "not as written"),
        ("mn_ok", ["--nodes", "2"], 0, "used by NCCL"),
        ("rank_big", ["--members", "0-3", "--nccl", "2.30.7"], 1, "ring_error"),
        ("no_links", ["--members", "0,3,5,6"], 1, "without an NVLink"),
    ],
)
def test_graph_files_are_judged(
    capsys: pytest.CaptureFixture[str], file: str, options: list[str], status: int, words: str
) -> None:
    out = answer(capsys, "verify", str(GRAPHS / f"{file}.xml"), "--machine", DGX1, *options, status=status)
    assert any(word in out for word in words.split("|")), out


def test_hops_without_nvlink_are_wrong_only_where_the_file_claims_nvlink(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (GRAPHS / "no_links.xml").read_text()
    file = tmp_path / "g.xml"
    for claim, status in (("NVL", 1), ("NVB", 0), ("PHB", 0), ("SYS", 0)):
        file.write_text(text.replace('typeintra="NVL"', f'typeintra="{claim}"'))
        answer(capsys, "verify", str(file), "--machine", DGX1, "--members", "0,3,5,6", status=status)


@pytest.mark.slow
@pytest.mark.parametrize("edit", ["without gpu0-gpu3", "without gpu2-gpu3", "without gpu4"])
def test_what_is_advised_is_used_as_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], edit: str
) -> None:
    """The closing hop of a ring that nobody runs may go over the host: the file says so."""
    file = str(tmp_path / "chains.xml")
    answer(capsys, "advise", "dgx1-v100", "--edit", edit, "-o", file)
    out = answer(capsys, "verify", file, "--machine", "dgx1-v100", "--edit", edit)
    assert "not as written" not in out


def test_a_communicator_of_some_nodes_only_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers count the GPUs of all nodes: GPU 0 alone is no communicator of four nodes."""
    graph = '<graph id="{}" pattern="{}" crossnic="0" nchannels="1" speedintra="12" speedinter="12" latencyinter="0" '
    graph += (
        'typeintra="LOC" typeinter="PIX" samechannels="1"><channel><net dev="0x0"/><gpu dev="0x0"/><net dev="0x0"/>'
    )
    both = "".join(graph.format(*ids) + "</channel></graph>" for ids in ((0, 4), (1, 3)))
    file = tmp_path / "one.xml"
    file.write_text(f'<graphs version="1">{both}</graphs>')
    told = refusal(capsys, "verify", str(file), "--machine", DGX1, "--members", "0", "--nodes", "4", status=2)
    assert "--members 0 are on 1 node of 4" in told
    assert "n[0-3].gpu0" in told
    asked = ("--machine", DGX1, "--members", "n[0-3].gpu0", "--nodes", "4")
    assert "used by NCCL 2.28.3 on 4 GPUs" in answer(capsys, "verify", str(file), *asked)


def test_judging_needs_a_machine_and_a_known_release(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(GRAPHS / "ok_ring_tree.xml")
    assert "--machine" in refusal(capsys, "verify", file, status=2)
    assert "2.8 to 2.30" in refusal(capsys, "verify", file, "--machine", DGX1, "--nccl", "2.7.8", status=2)
    assert "no such XML file" in refusal(capsys, "verify", "nowhere.xml", "--machine", DGX1, status=2)
    found = json.loads(answer(capsys, "verify", file, "--machine", DGX1, "--members", "0-3", "--json"))
    assert found["ok"] is True
    assert found["verdict"] == "used"


def test_files_of_other_runtimes_are_judged(
    schedules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form, name in (("msccl-xml", "a.xml"), ("mscclpp-json", "p.json")):
        target = tmp_path / name
        answer(capsys, "export", str(schedules / "chains.json"), "--format", form, "-o", str(target))
        assert "right: " in answer(capsys, "verify", str(target))
        text = target.read_text()
        broken = text.replace('type="rrc"', 'type="r"', 1) if form == "msccl-xml" else text.replace('"re"', '"nop"', 1)
        target.write_text(broken)
        assert "wrong: " in answer(capsys, "verify", str(target), status=1)
    assert "topology file" in refusal(capsys, "verify", DGX1, "--machine", "dgx1-v100", status=2)


def test_a_plan_of_one_runtime_is_written_for_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From MSCCL++ to MSCCL and back: the same sends, which `verify` judges as files."""
    plan, xml, where = str(tmp_path / "p.json"), str(tmp_path / "x.xml"), ("--machine", "hgx-h100", "--members", "0-3")
    schedule = str(tmp_path / "ring.json")
    assert run(["synth", "hgx-h100", "allgather", "--members", "0-3", "--algorithm", "ring", "-o", schedule]) == 0
    assert run(["export", schedule, "--format", "mscclpp-json", "-o", plan]) == 0
    refused = ("export", plan, "--format", "msccl-xml")
    assert "name its machine with --machine" in refusal(capsys, *refused, status=2)
    assert run([*refused, *where, "-o", xml]) == 0
    assert "right: " in answer(capsys, "verify", xml, *where)
    sends = {file: bs.read_schedule(file, bs.load("hgx-h100").select("0-3")).sends for file in (plan, xml)}
    assert set(sends.values()) == {bs.read_schedule(schedule).sends}


def test_machines_are_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "dgx1.xml"
    out = answer(capsys, "topo", "export", "dgx1-v100", "--format", "nccl-topo", "--members", "0-3", "-o", str(target))
    assert f"export NCCL_TOPO_FILE={target}" in out
    assert "made up" in out
    shown = answer(capsys, "topo", "show", str(target))
    assert "4 ranks" in shown
    ids = "0000:01:00.0,0000:02:00.0,0000:03:00.0,0000:04:00.0"
    text = answer(capsys, "topo", "export", "dgx1-v100", "--format", "nccl-topo", "--members", "0-3", "--bus-ids", ids)
    assert text.startswith('<system version="1">')
    wrong = ["topo", "export", "dgx1-v100", "--format", "nccl-topo", "--bus-ids", "1"]
    assert "is not a bus id" in refusal(capsys, *wrong, status=2)
    assert "nccl-topo" in refusal(capsys, "topo", "export", "dgx1-v100", "--format", "yaml", status=2)


def test_what_nvidia_smi_prints_is_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    out = answer(capsys, "project", str(DATA / "captures" / "h200x8" / "smi_topo.txt"), "allreduce", "1GiB")
    assert "on 8 GPUs" in out


@pytest.mark.parametrize("dialect", ["nccl", "rccl", "ncclx"])
def test_rules_for_a_tuner_are_those_of_tune(dialect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ["--members", "0-3", "--no-nvls", "--dialect", dialect, "-o"]
    exported, tuned = tmp_path / "exported.csv", tmp_path / "tuned.csv"
    out = answer(capsys, "export", TIMES, "--format", "nccl_tuner", "--machine", "hgx-h200", *job, str(exported))
    table = answer(capsys, "tune", "hgx-h200", TIMES, *job, str(tuned))
    # Both say the sizes that were looked at, powers of two.
    spans = [tuple(line.split("  ")[1].split(":")[0].split(" of ")) for line in out.splitlines()[2:12]]
    assert spans == [tuple(re.split(" {2,}", line)[1:3]) for line in table.splitlines()[3:13]]
    assert exported.read_text() == tuned.read_text()
    # What changes and why, what loads it, and what shows that it is in force.
    assert "allgather of 4 MiB to 64 MiB: ring ll128 instead of ring simple, 4 to 26 % less time" in out
    assert f"{'NCCLX_TUNER' if dialect == 'ncclx' else 'NCCL_TUNER'}_CONFIG_FILE={exported}" in out
    assert ("blinksim tune --plugin ./libnccl-tuner-blinksim.so" in out) == (dialect != "ncclx")
    assert "in force if" in out


def test_rules_for_a_tuner_need_times_and_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["export", TIMES, "--format", "nccl-tuner"]
    assert "name it with --machine" in refusal(capsys, *base, status=2)
    channels = [*base, "--machine", "hgx-h200", "--channels", "2"]
    assert "--least-channels is NCCL_MIN_NCHANNELS" in refusal(capsys, *channels, status=2)
    chains = ["export", "dgx1-v100-8-allreduce", "--format", "nccl-graph", "--nodes", "2"]
    assert "--nodes 2: for --format nccl-tuner only (--members and --nodes with" in refusal(capsys, *chains, status=2)
    assert "--no-nvls: for --format nccl-tuner only" in refusal(capsys, *chains[:-2], "--no-nvls", status=2)
    schedule = ["export", str(GRAPHS), "--format", "nccl-tuner", "--machine", "hgx-h200"]
    assert "file of measured times" in refusal(capsys, *schedule, status=2)
    found = json.loads(answer(capsys, *base, "--machine", "hgx-h200", "--members", "0-3", "--no-nvls", "--json"))
    assert found["format"] == "nccl-tuner"
    assert found["environment"]["NCCL_TUNER_CONFIG_FILE"] == "FILE"
    assert "allgather,2965821,94906265,ring,ll128,-1,1,4,-1,-1" in found["files"][""]
