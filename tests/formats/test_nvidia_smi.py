"""Text of nvidia-smi: a recorded machine, tables as drivers of several ages print them, and hostile text."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from blinksim import machines
from blinksim.bounds.compute import bound
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.formats.nvidia_smi import looks_like, parse, read_text
from blinksim.topology.graph import Topology

CAPTURE = Path(__file__).resolve().parents[1] / "data" / "captures" / "h200x8" / "smi_topo.txt"
NAMED_H200 = "".join(f"GPU {number}: NVIDIA H200 (UUID: GPU-{number})\n" for number in range(8))
GB = 10**9
# A DGX-1 with V100 as a driver of the 470 series prints it: adapters under their own names, no aliases.
LANES = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def dgx1(tab: str = "\t", nics: tuple[str, ...] = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")) -> str:
    labels = [f"GPU{i}" for i in range(8)] + list(nics)

    def switch(k: int) -> int:
        return k // 2 if k < 8 else k - 8

    def cell(a: int, b: int) -> str:
        if a == b:
            return " X "
        if (min(a, b), max(a, b)) in LANES:
            return f"NV{LANES[min(a, b), max(a, b)]}"
        if switch(a) == switch(b):
            return "PIX"
        return "PHB" if switch(a) // 2 == switch(b) // 2 else "SYS"

    lines = [tab + tab.join(labels) + f"{tab}CPU Affinity{tab}NUMA Affinity"]
    for a, label in enumerate(labels):
        tail = [] if a >= 8 else [f"{20 * (a // 4)}-{20 * (a // 4) + 19},40-59", str(a // 4)]
        lines.append(tab.join([label, *(cell(a, b) for b in range(len(labels))), *tail]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "  SYS  = Connection traversing PCIe"]) + "\n"


def quad(cell: str, count: int = 4, tail: str = "\t0-71\t0\tN/A", extra: str = "") -> str:
    """A table in which all pairs are alike."""
    labels = [f"GPU{i}" for i in range(count)]
    head = "\t" + "\t".join(labels) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    rows = ["\t".join([a, *(" X " if a == b else cell for b in labels)]) + tail for a in labels]
    return extra + head + "\n".join(rows) + "\n"


def nvlinks(topology: Topology) -> dict[tuple[str, str], int]:
    return {(x.src, x.dst): x.lanes for x in topology.links if x.kind == "nvlink"}


def test_eight_h200_behind_switches_as_recorded() -> None:
    found = machines.load(CAPTURE)
    assert found.members == tuple(f"gpu{i}" for i in range(8))
    assert nvlinks(found) == {
        **{(f"gpu{i}", "nvswitch"): 18 for i in range(8)},
        **{("nvswitch", f"gpu{i}"): 18 for i in range(8)},
    }
    assert found.links_between("gpu3", "nvswitch")[0].bandwidth == 450 * GB
    assert found.device("nvswitch").reads
    assert found.device("gpu3").attributes["model"] == "NVIDIA H200"
    assert found.device("gpu3").attributes["sm"] == 90
    at_nccl = machines.load(CAPTURE, rates="nccl").links_between("gpu3", "nvswitch")[0].bandwidth
    assert float(at_nccl) == pytest.approx(370.8e9)
    assert machines.load(str(CAPTURE)) == found
    catalogue = machines.load("hgx-h200")
    assert nvlinks(found) == nvlinks(catalogue)


@pytest.mark.parametrize("tab", ["\t", "   "])
def test_a_dgx1_has_links_of_its_pairs_and_its_pcie_tree(tab: str) -> None:
    found = read_text(dgx1(tab), "dgx1.txt")
    expected = {(f"gpu{a}", f"gpu{b}"): n for (a, b), n in LANES.items()}
    assert nvlinks(found) == expected | {(b, a): n for (a, b), n in expected.items()}
    assert nvlinks(found) == nvlinks(machines.load("dgx1-v100"))
    pcie = found.select(links=["pcie", "cpu"])
    kinds = {}
    for peer in ("gpu1", "gpu2", "gpu4", "nic0", "nic1"):
        route = pcie.router.route(pcie.index["gpu0"], pcie.index[peer])
        kinds[peer] = [pcie.device(pcie.links[i].dst).kind for i in route[:-1]]
    assert kinds["gpu1"] == kinds["nic0"] == ["pcie"]
    assert kinds["gpu2"] == kinds["nic1"] == ["pcie", "cpu", "pcie"]
    assert kinds["gpu4"] == ["pcie", "cpu", "cpu", "pcie"]
    assert found.device("nic2").attributes["name"] == "mlx5_2"
    assert found.device("gpu0").attributes["sm"] == 70


def test_newer_drivers_alias_nics_and_explain_them_below() -> None:
    text = dgx1(nics=("NIC0", "NIC1", "NIC2", "NIC3")) + "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC2: mlx5_bond_0\n"
    found = read_text(text, "x.txt")
    names = [found.device(f"nic{i}").attributes["name"] for i in range(4)]
    assert names == ["mlx5_0", "NIC1", "mlx5_bond_0", "NIC3"]
    assert nvlinks(found) == nvlinks(machines.load("dgx1-v100"))


@pytest.mark.parametrize("escape", ["\x1b", ""])  # some reports of bugs hold colors whose escape character is lost
def test_colours_of_every_label_are_no_part_of_it(escape: str) -> None:
    coloured = dgx1().replace("GPU", f"{escape}[4mGPU").replace("\t", f"{escape}[0m\t")
    assert read_text(coloured, "x.txt") == read_text(dgx1(), "x.txt")


@pytest.mark.parametrize(
    ("text", "switch", "lanes"),
    [
        (quad("NV4"), False, 4),  # HGX A100 with four GPUs: 12 links each, 4 to each peer
        (quad("NV12", 8), True, 12),  # DGX A100
        (quad("NV12", 3), True, 12),  # three GPUs of one
        (quad("NV18", 2), False, 18),  # of two GPUs nobody can tell, nor does it matter
        (quad("NV12", 2), False, 12),  # a bridge of two PCIe cards
        (quad("NV6"), True, 6),  # four GPUs of a DGX-2
        (quad("NV6", tail="\t0-71\t0\t4"), False, 6),  # a Grace Hopper board: GPUs are NUMA nodes
        (quad("NV6", extra="GPU 0: Tesla V100-SXM3-32GB (UUID: GPU-1)\n"), True, 6),
        (quad("NV6", extra="GPU 0: NVIDIA GH200 480GB (UUID: GPU-1)\n"), False, 6),
        (quad("NV2", 3), False, 2),
    ],
)
def test_links_of_a_switch_and_links_of_a_pair_are_told_apart(text: str, switch: bool, lanes: int) -> None:
    found = read_text(text, "x.txt")
    assert ("nvswitch" in found.index) is switch
    assert set(nvlinks(found).values()) == {lanes}


def behind_switches(ports: dict[int, int], extra: str = "") -> str:
    """The table of GPUs with so many NVLinks each to NVSwitches: a pair has as many as the lesser of both."""
    rows = [" ".join(["", *(f"GPU{gpu}" for gpu in ports), "CPU Affinity"])]
    for a in ports:
        cells = ["X" if a == b else f"NV{few}" if (few := min(ports[a], ports[b])) else "SYS" for b in ports]
        rows.append(" ".join([f"GPU{a}", *cells, "0-71"]))
    return extra + "\n".join(rows) + "\n\n"


@pytest.mark.parametrize(
    ("whole", "gpus", "damage"),
    [
        (18, 8, {5: 12}),
        (18, 8, {5: 17}),
        (18, 8, {1: 4, 6: 17, 7: 9}),
        (18, 4, {2: 1}),
        (18, 8, {5: 0}),
        (12, 8, {3: 8}),
        (12, 8, {0: 11, 1: 11}),
        (6, 16, {15: 5}),
    ],
    ids=str,
)
@pytest.mark.parametrize("model", ["", "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM3-32GB"])
def test_gpus_that_lost_nvlinks_keep_the_others_to_the_switches(
    whole: int, gpus: int, damage: dict[int, int], model: str
) -> None:
    ports = dict.fromkeys(range(gpus), whole) | damage
    named = "".join(f"GPU {number}: {model} (UUID: GPU-1)\n" for number in ports) if model else ""
    found = read_text(behind_switches(ports, named), "x.txt")
    expected = {("nvswitch", f"gpu{gpu}"): lanes for gpu, lanes in ports.items() if lanes}
    assert nvlinks(found) == expected | {(gpu, switch): lanes for (switch, gpu), lanes in expected.items()}
    alone = [f"gpu{gpu}" for gpu, lanes in ports.items() if not lanes]
    assert ("pcie" in found.default_links()) == bool(alone)
    assert len({found.device(name).attributes["sm"] for name in found.members}) == 1


def test_a_broken_hgx_reads_as_from_its_topology_file(tmp_path: Path) -> None:
    # All ports together carry (7 · 450 + 300) GB/s, and every byte of an allreduce passes them 14 times.
    broken = read_text(behind_switches(dict.fromkeys(range(8), 18) | {5: 12}, NAMED_H200), "x.txt")
    text = CAPTURE.with_name("topo.xml").read_text()
    place = text.index('count="18"', text.index('dev="5"'))
    path = tmp_path / "topo.xml"
    path.write_text(text[:place] + text[place:].replace("18", "12", 1))
    recorded = machines.load(path)
    assert nvlinks(recorded) == nvlinks(broken)
    assert broken.links_between("gpu5", "nvswitch")[0].bandwidth == 300 * GB
    for machine in (broken, recorded):
        assert float(bound(machine, "allreduce").algbw) == pytest.approx(3450 * GB / 14)


def listing(links: dict[int, str], model: str = "NVIDIA H200") -> str:
    """What `nvidia-smi nvlink -s` prints: a letter for each link, + for an active one."""
    return "".join(
        f"GPU {gpu}: {model} (UUID: GPU-1)\n"
        + "".join(f"\t Link {at}: {'26.562 GB/s' if up == '+' else '<inactive>'}\n" for at, up in enumerate(letters))
        for gpu, letters in links.items()
    )


@pytest.mark.parametrize(
    ("letters", "shown", "lanes"),
    [
        ("+" * 18, 18, 18),
        ("-" * 6 + "+" * 12, 18, 12),
        ("-" * 6 + "+" * 12, 12, 12),  # the table counts them already
        ("+" * 17 + "-", 18, 17),
        ("-" * 18, 18, 0),
        ("+" * 8 + "-" * 10, 8, 8),  # an H800 never had the others
        ("+++-", 18, 17),  # a list cut short
        ("", 18, 18),
    ],
)
def test_inactive_nvlinks_are_lost(letters: str, shown: int, lanes: int) -> None:
    table = behind_switches(dict.fromkeys(range(8), 18) | {0: shown})
    found = nvlinks(read_text(table + listing({0: letters, 1: "+" * 18}), "x.txt"))
    assert [found.get((f"gpu{gpu}", "nvswitch"), 0) for gpu in range(8)] == [lanes] + [18] * 7


def test_inactive_nvlinks_of_pairs_must_be_counted_in_the_table() -> None:
    model = "Tesla V100-SXM2-32GB"
    whole = dict.fromkeys(range(8), "++++++")
    assert nvlinks(read_text(dgx1() + listing(whole, model), "x.txt")) == nvlinks(machines.load("dgx1-v100"))
    lost = whole | {4: "+++++-", 7: "-+++++"}
    cells = [line.split("\t") for line in dgx1().splitlines()]
    cells[5][8] = cells[8][5] = "NV1"
    degraded = machines.load("dgx1-v100", edits="degrade gpu4-gpu7 lanes=1")
    text = "\n".join("\t".join(row) for row in cells) + "\n\n"
    assert nvlinks(read_text(text + listing(lost, model), "x.txt")) == nvlinks(degraded)
    with pytest.raises(FileError, match="row GPU4 counts 6 NVLinks, but 5 are active in the list"):
        read_text(dgx1() + listing(lost, model), "x.txt")


def trays(owners: tuple[int, ...]) -> str:
    """A table of GPUs behind NVSwitches, each a NUMA node of its own near the Grace CPU that is named."""
    rows = quad("NV18", len(owners), tail="").splitlines()
    tails = [f"\t{72 * cpu}-{72 * cpu + 71}\t{cpu}\t{2 + 8 * gpu}" for gpu, cpu in enumerate(owners)]
    return "\n".join([rows[0], *(row + tail for row, tail in zip(rows[1:], tails, strict=True))]) + "\n"


@pytest.mark.parametrize(
    ("owners", "rate", "generation"),
    [
        ((0, 0, 1, 1), 900, "Blackwell"),  # a GB200 superchip: one Grace CPU, two GPUs
        ((0, 1, 2, 3), 450, "Hopper"),  # a GH200 superchip: one of each
    ],
)
def test_how_many_gpus_a_grace_cpu_has_tells_their_generation(
    owners: tuple[int, ...], rate: int, generation: str
) -> None:
    found = read_text(trays(owners), "x.txt")
    ports = {link.bandwidth for link in found.links if link.src == "gpu0" and link.kind == "nvlink"}
    assert ports == {rate * GB}
    assert f"assumed: NVLinks of {generation}" in found.source


def test_pcie_only_machines_have_no_nvlink() -> None:
    found = read_text(quad("PXB"), "x.txt")
    assert "nvlink" not in found.link_classes
    assert found.default_links() == ("pcie",)
    assert len([d for d in found.devices if d.kind == "pcie"]) == 5
    found = read_text(quad("SOC", 2, tail=""), "x.txt")
    assert [d.name for d in found.devices if d.kind == "cpu"] == ["cpu0", "cpu1"]
    assert {x.lane_bandwidth * x.lanes for x in found.links if x.kind == "pcie"} == {16 * GB}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no table"),
        ("hello\n", "holds no table"),
        (quad("NV4").replace("GPU3\tNV4", "GPU9\tNV4"), r"x\.txt:5: row 'GPU9' is not among"),
        (quad("NV4").replace("GPU3\tNV4", "GPU2\tNV4"), r"x\.txt:5: a second row"),
        ("\n".join(quad("NV4").splitlines()[:-1]), r"no row for GPU3; the table is cut short"),
        (quad("NV4").replace("GPU3\tNV4\tNV4", "GPU3\tNV4"), "column GPU2: 'X' is no connection|cells for"),
        (quad("OK"), r"x\.txt:2: OK in row GPU0: this is `nvidia-smi topo -p2p`"),
        (quad("NVX"), "no connection"),
        (quad("NV0"), "no connection"),
        (quad("NV4").replace("GPU0\t X \tNV4", "GPU0\t X \tNV3"), "but GPU1 is NV4"),
        ("\tGPU0\tGPU0\tCPU Affinity\n", "is there twice"),
        (dgx1().replace("PIX", "NV1"), "only GPUs have"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        read_text(text, "x.txt")


def test_other_rates_are_refused() -> None:
    with pytest.raises(InputError, match="nominal or nccl"):
        read_text(dgx1(), "x.txt", "seed")


def test_load_takes_text_of_any_name(tmp_path: Path) -> None:
    path = tmp_path / "node17"
    path.write_text(dgx1())
    assert machines.load(path).members == tuple(f"gpu{i}" for i in range(8))
    assert looks_like(dgx1())
    assert not looks_like("GPUs are fast\n")
    path.write_text("something else\n")
    with pytest.raises(FileError, match="nvidia-smi"):
        machines.load(path)


GOOD = dgx1()


@given(st.integers(0, len(GOOD)), st.integers(0, 80), st.text(alphabet="GPUNVX0129\t \n\x1b[mSYS\x00é", max_size=20))
@settings(max_examples=150)
def test_damaged_text_is_a_machine_or_a_file_error(start: int, length: int, text: str) -> None:
    with suppress(FileError):
        found = read_text(GOOD[:start] + text + GOOD[start + length :], "damaged.txt")
        assert found.ranks >= 1


# Seven peers with two NVLinks each are no more than a GPU has, so no switch can be meant.
@given(st.integers(2, 8).flatmap(lambda n: st.lists(st.integers(0, 2), min_size=n * n, max_size=n * n)))
def test_any_numbers_of_links_come_back(cells: list[int]) -> None:
    n = int(len(cells) ** 0.5)
    lanes = {(a, b): cells[min(a, b) * n + max(a, b)] for a in range(n) for b in range(n) if a != b}
    labels = [f"GPU{i}" for i in range(n)]
    rows = ["\t" + "\t".join(labels)]
    for a in range(n):
        row = ["X" if a == b else f"NV{lanes[a, b]}" if lanes[a, b] else "SYS" for b in range(n)]
        rows.append("\t".join([labels[a], *row]))
    found = read_text("\n".join(rows), "x.txt")
    assert nvlinks(found) == {(f"gpu{a}", f"gpu{b}"): count for (a, b), count in lanes.items() if count}
    assert {x.lane_bandwidth for x in found.links if x.kind == "nvlink"} <= {Fraction(25 * GB)}


NAMED = "".join(f"GPU {number}: {{}} (UUID: GPU-{number})\n" for number in range(4))


@pytest.mark.parametrize(
    "line",
    [
        "GPU {}: NVIDIA H100 80GB HBM3",  # collect_env of PyTorch
        "|   {}  NVIDIA H100 80GB HBM3          On  |   00000000:9D:00.0 Off |                    0 |",
        "|   {}  NVIDIA H100 80G...  Off  | 00000000:9D:00.0 Off |                  N/A |",  # older drivers
        "{}, NVIDIA H100 80GB HBM3, 81559 MiB, 570.211.01",
    ],
)
@pytest.mark.parametrize("after", ["", "```\n", "[user@host ~]$ exit\n"])
def test_models_are_read_as_people_paste_them(line: str, after: str) -> None:
    """With or without what a shell or a Markdown file has right after the table."""
    listed = "".join(f"{line.format(number)}\n" for number in range(4))
    pasted = read_text(listed + quad("NV18") + after, "box.txt")
    assert pasted.source == "nvidia-smi topo -m in box.txt"
    assert {str(pasted.device(f"gpu{number}").attributes["model"])[:15] for number in range(4)} == {"NVIDIA H100 80G"}
    assert pasted.links == read_text(NAMED.format(*["NVIDIA H100 80GB HBM3"] * 4) + quad("NV18"), "box.txt").links


def test_nodes_without_a_network_are_sent_to_the_machine_they_are_like(tmp_path: Path) -> None:
    path = tmp_path / "box.txt"
    path.write_text("".join(f"GPU {n}: NVIDIA A100-SXM4-80GB (UUID: GPU-{n})\n" for n in range(8)) + quad("NV12", 8))
    with pytest.raises(InfeasibleError, match=r"no fabric to join 2 nodes with; complete it .* like='dgx-a100'"):
        machines.load(path, nodes=2)


def test_rows_after_a_table_that_is_cut_short_are_refused() -> None:
    with pytest.raises(FileError, match="row '```' is not among the columns"):
        read_text(quad("NV18").rpartition("GPU3")[0] + "```\n", "box.txt")


def test_what_is_assumed_without_model_names_is_said() -> None:
    tray = read_text(quad("NV18"), "tray.txt")
    assert "assumed: NVLinks of Hopper" in tray.source
    assert "NV18 leads to NVSwitches" in tray.source
    assert "put what nvidia-smi -L prints above the table" in tray.source
    blackwell = read_text(quad("NV18", extra=NAMED.format(*["NVIDIA GB200"] * 4)), "tray.txt")
    assert blackwell.links_between("gpu0", "nvswitch")[0].bandwidth == 900 * GB
    assert blackwell.source == "nvidia-smi topo -m in tray.txt"
    board = read_text(quad("NV6"), "board.txt")
    assert "assumed: NV6 leads to NVSwitches" in board.source
    assert "there is no NVSwitch" in read_text(dgx1(), "dgx1.txt").source
    unknown = read_text(quad("NV18", extra=NAMED.format(*["NVIDIA Z900"] * 4)), "new.txt")
    assert "the model 'NVIDIA Z900' is not known here" in unknown.source
    assert read_text(quad("PXB"), "x.txt").source.endswith(
        "x.txt; assumed: PCIe 3.0 of 16 lanes for all 4 devices, as the table has no speeds"
    )


@pytest.mark.parametrize(("model", "rate"), [("Tesla V100-PCIE-32GB", 16), ("GeForce RTX 4090", 32), ("H100 PCIe", 64)])
def test_a_named_gpu_has_the_ports_of_its_generation(model: str, rate: int) -> None:
    """Data sheets: V100 has PCIe 3.0, RTX 4090 has 4.0 and H100 5.0, all of 16 lanes."""
    found = read_text(quad("PXB", extra=NAMED.format(*[f"NVIDIA {model}"] * 4)), "x.txt")
    assert {link.bandwidth for link in found.links if "gpu0" in (link.src, link.dst)} == {rate * GB}
    assert "of the generation of the GPUs named" in found.source


ROCM = """
======================= ROCm System Management Interface =======================
========================== Link Type between two GPUs ==========================
       GPU0         GPU1
GPU0   0            XGMI
GPU1   XGMI         0
"""
ASCEND = "\t   NPU0   NPU1   CPU Affinity\nNPU0   X   HCCS   0-23\nNPU1   HCCS   X   0-23\n"


@pytest.mark.parametrize(("text", "tool"), [(ROCM, "rocm-smi or amd-smi"), (ASCEND, "npu-smi")])
def test_tables_of_other_vendors_are_refused_by_name(text: str, tool: str) -> None:
    with pytest.raises(FileError, match=f"is a table of {tool}"):
        read_text(text, "x.txt")


def test_a_table_in_markdown_is_the_same_table() -> None:
    """As people paste it into issues; an error names the same line."""
    plain = ["GPU0 GPU1 CPU Affinity", "GPU0 X NV12 0-19", "GPU1 NV12 X 20-39"]
    rows = ["| | GPU0 | GPU1 | CPU Affinity |", "|------|:---:|-----|---|"]
    rows += [f"| {' | '.join(line.split())} |" for line in plain[1:]]
    found = [parse("\n".join(lines), "box.txt") for lines in (plain, rows)]
    assert found[0].cells == found[1].cells
    assert found[0].affinity == found[1].affinity
    with pytest.raises(FileError, match=":3: row GPU0, column GPU1: 'NV' is no"):
        parse("\n".join(rows).replace("NV12", "NV"), "box.txt")
