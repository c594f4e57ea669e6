"""Programs of MSCCL and MSCCL++ as schedules: right, with the same loads, as quick as what they were written from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from on_one_node import CASES
from small_schedules import forests, full
from test_msccl_xml import HAND, IN_PLACE, QUAD, TORUS

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.formats.runtimes import msccl_xml, mscclpp_json
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.loads import resource_loads, resources
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.timing.alpha_beta import cost

EIGHT = bs.load("dgx1-v100").select()
H100 = bs.load("hgx-h100").select()
READERS = {
    "msccl-xml": (msccl_xml.export, msccl_xml.read_schedule),
    "mscclpp-json": (mscclpp_json.export, mscclpp_json.read_schedule),
}


def again(schedule: Schedule, form: str) -> Schedule:
    """The schedule written for a runtime, and read back."""
    write, read = READERS[form]
    text = write(schedule).files[""]
    document = json.loads(text) if form == "mscclpp-json" else text
    reread: Candidate = read(document, "x", schedule.topology, schedule.collective.root)
    return reread.schedule


def same_loads(first: Schedule, second: Schedule) -> bool:
    shared = resources(first.topology)
    return resource_loads(first, shared) == resource_loads(second, shared)


@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize(("name", "collective"), CASES)
def test_what_is_written_is_read_back_with_the_same_loads(name: str, collective: str, form: str) -> None:
    wanted = Collective(collective, 2) if Collective(collective).rooted else Collective(collective)
    schedule = algorithm(name).build(TORUS if name == "bucket" else QUAD, wanted)
    read = again(schedule, form)
    assert verify(read).ok
    assert same_loads(schedule, read)
    # A program has no steps that all ranks begin together, so it may only be quicker, but for the start of a piece.
    assert cost(read, 2**28).time_s <= cost(schedule, 2**28).time_s * 1.0001 + 1.3e-6


@pytest.mark.parametrize("name", ["ring", "chain", "two_shot", "mxnet", "packed", "chains", "rings", "blink"])
@pytest.mark.slow
def test_the_simulated_time_is_the_same(name: str) -> None:
    schedule = algorithm(name).build(EIGHT, Collective("allreduce"))
    read = again(schedule, "msccl-xml")
    assert (read.form, read.steps) == (schedule.form, schedule.steps)
    for size in (2**14, 2**26):
        times = [bs.simulate(one, size, pieces=1, service="fifo").time_s for one in (read, schedule)]
        assert times[0] == pytest.approx(times[1])


@pytest.mark.parametrize("topology", [EIGHT, H100], ids=["direct links", "switch"])
def test_chunks_of_one_message_wait_for_each_other_as_they_did(topology: bs.Topology) -> None:
    """Read as trees, each chunk would go on by itself: sooner than the barrier or the wait of a plan lets it."""
    schedule = algorithm("recursive_doubling").build(topology, Collective("allgather"))
    times = [bs.simulate(one, 2**13, pieces=1).time_s for one in (again(schedule, "mscclpp-json"), schedule)]
    assert times[0] == pytest.approx(times[1])


@pytest.mark.parametrize("topology", [EIGHT, H100], ids=["routes through GPUs", "switch"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "gather", "scatter", "alltoall"])
def test_what_passes_through_a_gpu_keeps_its_loads(topology: bs.Topology, collective: str) -> None:
    wanted = Collective(collective, 3) if Collective(collective).rooted else Collective(collective)
    schedule = algorithm("direct").build(topology, wanted)
    read = again(schedule, "msccl-xml")
    assert verify(read).ok
    assert same_loads(schedule, read)


@given(forests())
def test_random_forests_are_read_back(schedule: Schedule) -> None:
    read = again(schedule, "msccl-xml")
    assert verify(read).ok
    assert same_loads(schedule, read)
    assert cost(read, 2**28).time_s <= cost(schedule, 2**28).time_s * 1.0001


# --- programs as others write them ------------------------------------------------------------------------------------


def step(kind: str, source: str, target: str, count: int = 1, wait: tuple[int, int] = (-1, -1)) -> str:
    """A step of a program; source, target: a buffer and a place, such as ``i0``."""
    return (
        f'<step s="?" type="{kind}" srcbuf="{source[0]}" srcoff="{source[1:]}" dstbuf="{target[0]}" '
        f'dstoff="{target[1:]}" cnt="{count}" depid="{wait[0]}" deps="{wait[1]}" hasdep="1"/>'
    )


def program(
    collective: str, units: int, gpus: list[list[tuple[int, int, int, list[str]]]], sizes: str, way: str
) -> str:
    """An algorithm; gpus: their thread blocks as (send, receive, channel, steps)."""
    channels = 1 + max(block[2] for blocks in gpus for block in blocks)
    i, o, s = sizes.split()
    lines = [
        f'<algo name="theirs" proto="LL" nchannels="{channels}" nchunksperloop="{units}" ngpus="{len(gpus)}" '
        f'coll="{collective}" {way} minBytes="0" maxBytes="1024">'
    ]
    for rank, blocks in enumerate(gpus):
        lines.append(f'<gpu id="{rank}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">')
        for number, (send, receive, channel, steps) in enumerate(blocks):
            lines.append(f'<tb id="{number}" send="{send}" recv="{receive}" chan="{channel}">')
            lines += [text.replace('s="?"', f's="{place}"', 1) for place, text in enumerate(steps)]
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


IN = 'inplace="1" outofplace="0"'


def line_of_three() -> str:
    """An in-place allreduce over a line: added up and passed on at once (rrs), and back at once (rcs)."""
    return program(
        "allreduce",
        1,
        [
            [(1, -1, 0, [step("s", "i0", "i0")]), (-1, 1, 0, [step("r", "i0", "i0", wait=(0, 0))])],
            [(2, 0, 0, [step("rrs", "i0", "i0")]), (0, 2, 0, [step("rcs", "i0", "i0", wait=(0, 0))])],
            [(-1, 1, 0, [step("rrc", "i0", "i0")]), (1, -1, 0, [step("s", "i0", "i0", wait=(0, 0))])],
        ],
        "1 0 0",
        IN,
    )


def everything_to_scratch(ranks: int) -> str:
    """An in-place allreduce in one shot: all to all into scratch, then added up by steps of their own (re)."""
    gpus = []
    for rank in range(ranks):
        others = [other for other in range(ranks) if other != rank]
        blocks = [
            (other, other, 0, [step("s", "i0", "s0"), step("r", "i0", f"s{place}")])
            for place, other in enumerate(others)
        ]
        waits = [step("nop", "i-1", "o-1", 0, (place, 1)) for place in range(len(others))]
        adds = [step("re", f"s{place}", "i0") for place in range(len(others))]
        gpus.append([*blocks, (-1, -1, 0, [*waits, *adds])])
    return program("allreduce", 1, gpus, f"1 0 {ranks - 1}", IN)


def two_levels() -> str:
    """An allgather of two pairs: across first, what comes is kept and passed on at once (rcs)."""
    gpus = []
    for rank in range(4):
        across, beside = (rank + 2) % 4, rank ^ 1
        corner = across ^ 1
        gpus.append(
            [
                (beside, across, 0, [step("s", "i0", "o0"), step("rcs", "i0", f"o{across}")]),
                (across, -1, 0, [step("s", "i0", "o0"), step("cpy", "i0", f"o{rank}")]),
                (-1, beside, 0, [step("r", "i0", f"o{beside}"), step("r", "i0", f"o{corner}")]),
            ]
        )
    return program("allgather", 4, gpus, "1 4 0", 'inplace="0" outofplace="1"')


@pytest.mark.parametrize(
    ("text", "ranks", "sends", "steps"),
    [
        (HAND, 2, 2, 1),
        (IN_PLACE, 2, 2, 1),
        (line_of_three(), 3, 4, 4),
        (everything_to_scratch(4), 4, 12, 1),
        (two_levels(), 4, 12, 2),
    ],
    ids=["by hand", "in place", "rrs and rcs", "scratch and re", "two levels"],
)
def test_programs_of_others_are_right_and_run(text: str, ranks: int, sends: int, steps: int, tmp_path: Path) -> None:
    file = tmp_path / "theirs.xml"
    file.write_text(text)
    assert bs.verify_file(file).ok
    schedule = bs.read_schedule(file, full(ranks))
    assert verify(schedule).ok
    assert (schedule.sends, schedule.steps) == (sends, steps)
    assert bs.execute(schedule, "4KiB").ok


def test_two_sums_of_the_same_data_are_refused() -> None:
    # GPU 0 sends what it has with GPU 1's added, and afterwards its own alone: a schedule has one value of a chunk.
    text = program(
        "allreduce",
        1,
        [
            [
                (-1, 1, 0, [step("r", "i0", "s0")]),
                (2, -1, 0, [step("nop", "i-1", "o-1", 0, (0, 0)), step("cpy", "i0", "s1"), step("re", "s0", "s1"),
                            step("s", "s1", "s1"), step("s", "i0", "i0")]),
                (1, 2, 0, [step("r", "i0", "o0")]),
            ],
            [(0, -1, 0, [step("s", "i0", "i0")]), (-1, 2, 0, [step("r", "i0", "o0")])],
            [
                (-1, 0, 0, [step("rrc", "i0", "o0"), step("r", "i0", "s0")]),
                (0, -1, 0, [step("s", "o0", "o0", wait=(0, 0))]),
                (1, -1, 0, [step("s", "o0", "o0", wait=(0, 0))]),
            ],
        ],
        "1 1 2",
        'inplace="0" outofplace="1"',
    )  # fmt: skip
    text = text.replace('<tb id="2" send="1" recv="2"', '<tb id="2" send="-1" recv="2"')
    with pytest.raises(InfeasibleError, match=r"no schedule here: GPU \d (keeps several sums|makes no use)"):
        msccl_xml.read_schedule(text, "x.xml", full(3))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda text: text, InputError, "is for 2 ranks, and full3 has 3 members here; choose 2 with members="),
        (lambda text: text.replace('nchunksperloop="2"', 'nchunksperloop="1"'), FileError, "cuts|wrong"),
        (lambda text: text.replace('type="s"', 'type="sr"'), FileError, "is not one of"),
    ],
)
def test_what_does_not_fit_is_refused(change: Callable[[str], str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        msccl_xml.read_schedule(change(HAND), "hand.xml", full(3 if change(HAND) == HAND else 2))


def test_a_file_of_a_runtime_needs_a_machine_and_a_graph_is_none(tmp_path: Path) -> None:
    file = tmp_path / "hand.xml"
    file.write_text(HAND)
    with pytest.raises(InputError, match="names ranks, but no devices and links; name its machine with machine="):
        bs.read_schedule(file)
    assert bs.read_schedule(file, full(2)).algorithm == "ag2"
    file.write_text('<graphs version="1"></graphs>')
    with pytest.raises(FileError, match="its outermost element is <graphs>, not <algo>"):
        bs.read_schedule(file, full(2))
    plan = tmp_path / "plan.json"
    exported = bs.export(algorithm("ring").build(QUAD, Collective("allreduce")), "mscclpp-json")
    plan.write_text(exported.files[""])
    assert bs.read_schedule(plan, QUAD).collective == Collective("allreduce")
    plan.write_text(re.sub(r'"collective": "\w+"', '"collective": "gossip"', exported.files[""]))
    with pytest.raises(FileError, match="must be one of"):
        bs.read_schedule(plan, QUAD)


def test_the_order_of_the_file_is_among_those_that_are_tried(tmp_path: Path) -> None:
    """A step that waits for too early a one goes wrong there, and in few other orders."""
    text = bs.export(bs.synthesize("dgx1-v100", "allreduce", "ring").schedule, "msccl-xml").files[""]
    late = '<step s="5" type="s" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="8" deps="4" hasdep="1"/>'
    path = tmp_path / "early.xml"
    path.write_text(text.replace(late, late.replace('deps="4"', 'deps="1"')))
    verdict = bs.verify_file(path, bs.Question("dgx1-v100"))
    assert "reads o[1], where nothing is" in "".join(verdict.reasons)
