"""MSCCL's files: carried out symbolically as the runtimes do, and caught whenever one step of them is wrong."""

from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_schedules import full, ring_allreduce, steps, whole

from blinksim import machines
from blinksim.algorithms.registry import REGISTRY, algorithm
from blinksim.answers.verify_file import verify_file
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import FileError, InfeasibleError
from blinksim.formats.moves import moves
from blinksim.formats.programs import Contributions, Effort, outcome
from blinksim.formats.runtimes.msccl_xml import Algorithm, Buffers, check_text, export, read_text, to_text
from blinksim.schedule.model import COPY, REDUCE

QUAD = machines.load("dgx1-v100").select([f"gpu{i}" for i in range(4)])
EIGHT = machines.load("dgx1-v100").select()
# On one node there is no hierarchy to build.
BETWEEN_NODES = ("hierarchical", "rail_aligned", "rail_joined", "bruck")
QUICK = [entry for entry in REGISTRY.values() if not entry.solver and entry.name not in BETWEEN_NODES]
CASES = [(entry.name, collective) for entry in QUICK for collective in COLLECTIVES if entry.supports(collective)]

# Written by hand, as msccl-tools writes an allgather of two GPUs.
HAND = """<algo name="ag2" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="0"
 outofplace="1" minBytes="0" maxBytes="1073741824">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="-1" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="-1" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""


# The same in place, as msccl-tools writes it: no input of its own, every GPU sends its block of the output.
IN_PLACE = (
    re.sub(r"    <tb id=\"1\".*?</tb>\n", "", HAND, flags=re.DOTALL)
    .replace('inplace="0"\n outofplace="1"', 'inplace="1"\n outofplace="0"')
    .replace('i_chunks="1"', 'i_chunks="0"')
    .replace('srcbuf="i" srcoff="0" dstbuf="o" dstoff="0"', 'srcbuf="o" srcoff="0" dstbuf="o" dstoff="0"')
    .replace('srcbuf="i" srcoff="0" dstbuf="o" dstoff="1"', 'srcbuf="o" srcoff="1" dstbuf="o" dstoff="1"')
)


def test_a_file_that_is_in_place_only_needs_no_input_of_its_own() -> None:
    assert IN_PLACE.count('type="s" srcbuf="o"') == 2
    assert check_text(IN_PLACE, "ag.xml").most_blocks == 1
    # Each sends the block that it does not have.
    wrong = IN_PLACE.replace('type="s" srcbuf="o" srcoff="0"', 'type="s" srcbuf="o" srcoff="1"', 1)
    with pytest.raises(FileError, match="where nothing is"):
        check_text(wrong, "ag.xml")
    with pytest.raises(FileError, match="where nothing is"):
        check_text(IN_PLACE.replace('outofplace="0"', 'outofplace="1"'), "ag.xml")


def run(read: Algorithm, seed: int, **how: Any) -> str:
    return outcome(Buffers(read, Contributions(), Effort(), **how), seed)


@pytest.mark.parametrize(("name", "collective"), CASES)
def test_every_algorithm_ends_as_promised(name: str, collective: str) -> None:
    wanted = Collective(collective, 2) if Collective(collective).rooted else Collective(collective)
    schedule = algorithm(name).build(QUAD, wanted)
    exported = export(schedule)
    read = read_text(exported.files[""], "x.xml")
    for seed in range(5):
        for in_place in (False, True)[: 1 + read.in_place]:
            assert run(read, root=wanted.root, in_place=in_place, seed=seed) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chains", "direct", "halving_doubling", "mxnet"])
def test_eight_gpus_with_routes_through_others_and_branching_trees(name: str) -> None:
    schedule = algorithm(name).build(EIGHT, Collective("allreduce"))
    exported = export(schedule)
    assert 'hasdep="1"' in exported.files[""]
    # What goes over two links is sent twice: the runtime knows neighbours only.
    hops = sum(len(schedule.links_of(int(route))) for route in schedule.route)
    assert len(moves(schedule).moves) == hops


def test_a_file_written_by_hand_is_understood() -> None:
    counted = check_text(HAND, "hand.xml")
    assert (counted.most_blocks, counted.most_steps, counted.channels) == (2, 2, 1)


def test_nops_carry_further_waits() -> None:
    # GPU 0 may send the sum on only after both others have added to it.
    sends = [
        [(0, "gpu1", "gpu0", REDUCE), (0, "gpu2", "gpu0", REDUCE)],
        [(0, "gpu0", "gpu1", COPY), (0, "gpu0", "gpu2", COPY)],
    ]
    text = to_text(moves(steps(full(3), "allreduce", whole(), sends)), "x")
    check_text(text, "x")
    assert 'type="nop"' not in text  # the second reception waits for the first, so one wait is enough
    twice = [[(0, "gpu0", "gpu1", REDUCE), (0, "gpu0", "gpu2", REDUCE)], [(0, "gpu1", "gpu0", COPY)]]
    text = to_text(moves(steps(full(3), "allreduce", whole(), twice)), "x")
    assert text.count('type="nop"') == 1
    nop = next(line for line in text.splitlines() if 'type="nop"' in line)
    assert re.search(r'depid="\d+" deps="\d+"', nop)


def test_large_chunks_are_cut_at_71() -> None:
    sends = [[(0, "gpu0", "gpu1", COPY), (1, "gpu0", "gpu1", COPY)]]
    plan = steps(full(2), "broadcast", [(Fraction(150, 151), -1, -1), (Fraction(1, 151), -1, -1)], sends)
    text = export(plan).files[""]
    counts = [int(count) for count in re.findall(r'type="s".* cnt="(\d+)"', text)]
    assert counts == [71, 71, 8, 1]


def test_channels_beyond_the_limit_are_folded() -> None:
    schedule = algorithm("rings").build(EIGHT, Collective("allreduce"))
    assert 'nchannels="6"' in export(schedule).files[""]
    assert 'nchannels="2"' in export(schedule, 2).files[""]


# --- what is caught -----------------------------------------------------------------------------------------------

RING = to_text(moves(ring_allreduce(3)), "ring")


def lines_with(text: str, part: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines()) if part in line]


def without_line(text: str, number: int) -> str:
    """The text without one step, later ones renumbered."""
    lines = text.splitlines()
    del lines[number]
    place = 0
    for position, line in enumerate(lines):
        if "<tb " in line:
            place = 0
        elif "<step " in line:
            lines[position] = re.sub(r's="\d+"', f's="{place}"', line, count=1)
            place += 1
    return "\n".join(lines)


@pytest.mark.parametrize("number", lines_with(RING, "<step"))
def test_every_single_step_is_needed(number: int) -> None:
    with pytest.raises(FileError):
        check_text(without_line(RING, number), "x.xml")


@pytest.mark.parametrize("number", lines_with(RING, 'type="rrc"'))
def test_a_sum_that_is_a_copy_is_caught(number: int) -> None:
    lines = RING.splitlines()
    lines[number] = lines[number].replace('"rrc"', '"r"')
    with pytest.raises(FileError, match=r"ends with the wrong o|waits forever"):
        check_text("\n".join(lines), "x.xml")


def test_a_missing_wait_is_caught_in_some_order() -> None:
    waits = [line for line in RING.splitlines() if 'depid="-1"' not in line and "<step" in line]
    caught = 0
    for line in waits:
        free = re.sub(r'depid="\d+" deps="\d+"', 'depid="-1" deps="-1"', line)
        read = read_text(RING.replace(line, free), "x.xml")
        caught += any(run(read, in_place=in_place, seed=seed) for seed in range(20) for in_place in (False, True))
    assert caught >= len(waits) // 2
    assert waits


def test_a_circle_of_waits_is_caught() -> None:
    circle = HAND.replace('type="s" srcbuf', 'type="X" srcbuf').replace('type="r" srcbuf', 'type="s" srcbuf')
    circle = circle.replace('type="X" srcbuf', 'type="r" srcbuf')
    with pytest.raises(FileError, match="waits forever"):
        check_text(circle, "x.xml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('proto="Simple"', 'proto="simple"'), "proto must be"),
        (('coll="allgather"', 'coll="all_gather"'), "coll='all_gather' is not one of"),
        (('ngpus="2"', 'ngpus="3"'), "2 <gpu> for ngpus=3"),
        (('nchannels="1"', 'nchannels="2"'), "highest channel"),
        (('outofplace="1"', ""), "attribute outofplace is missing"),
        (('minBytes="0"', ""), "attribute minBytes is missing"),
        (('cnt="1"', 'cnt="72"'), "must lie between 1 and 71"),
        (('dstoff="1"', 'dstoff="2"'), "leave the 2 chunks of o"),
        (('type="r"', 'type="rr"'), "is not one of s, r"),
        (('depid="-1"', 'depid="1"'), "both -1"),
        (('depid="-1" deps="-1"', 'depid="1" deps="0"'), "needs hasdep=1"),
        (('depid="-1" deps="-1"', 'depid="1" deps="3"'), "which is not there"),
        (('s="1" type', 's="2" type'), "steps are numbered from 0"),
        (('send="1" recv="1"', 'send="1" recv="0"'), "its own peer"),
        (('send="1" recv="1"', 'send="-1" recv="1"'), "without that peer"),
        (('<gpu id="1"', '<gpu id="2"'), "GPUs are numbered from 0"),
        (("</algo>", ""), "cut short"),
    ],
)
def test_what_the_runtimes_parsers_refuse(change: tuple[str, str], message: str) -> None:
    with pytest.raises(FileError, match=message):
        check_text(HAND.replace(*change, 1), "hand.xml")


@given(st.integers(0, len(HAND)), st.integers(0, 30), st.text(alphabet='<>/="0129 rsio\n', max_size=6))
def test_damaged_files_are_files_or_file_errors(start: int, length: int, text: str) -> None:
    with suppress(FileError):
        check_text(HAND[:start] + text + HAND[start + length :], "x.xml")


def test_odd_shares_are_rounded() -> None:
    sends = [[(0, "gpu0", "gpu1", COPY), (1, "gpu0", "gpu1", COPY)]]
    shares = [(Fraction(10003, 40009), -1, -1), (Fraction(30006, 40009), -1, -1)]
    exported = export(steps(full(2), "broadcast", shares, sends))
    assert exported.notes[0] == "shares are rounded to 1 equal parts of the vector; this costs nothing"


def test_long_chunks_that_two_exchange_go_part_by_part() -> None:
    """Neither could take the first part while it waited until the last one of its own is gone."""
    sends = [[(chunk, f"gpu{a}", f"gpu{1 - a}", REDUCE) for a in (0, 1) for chunk in (0, 1)]]
    shares = [(Fraction(199, 200), -1, -1), (Fraction(1, 200), -1, -1)]
    exported = export(steps(full(2), "allreduce", shares, sends))
    assert exported.files[""].count('type="rrc"') == 2 * (3 + 1)


# --- what is refused ----------------------------------------------------------------------------------------------


def test_helpers_without_a_rank_are_refused() -> None:
    topology = machines.load("dgx1-v100").select(["gpu0", "gpu1"], ["gpu2", "gpu3"], relays_reduce=True)
    schedule = algorithm("blinkplus").build(topology, Collective("allreduce"))
    with pytest.raises(InfeasibleError, match=r"has no rank.*nccl-graph-set"):
        export(schedule)


def test_too_many_steps_are_refused() -> None:
    count = 300
    sends = [[(chunk, "gpu0", "gpu1", COPY)] for chunk in range(count)]
    with pytest.raises(InfeasibleError, match="300 steps"):
        export(steps(full(2), "broadcast", whole(count), sends))


def ring_in_place(name: str, buffer: str, kinds: list[str], ahead: int) -> str:
    """A ring of four GPUs that works on one buffer, the other one having no chunks: msccl-tools' ``inplace``.

    kinds: of the steps. ahead: how far before its own block a GPU sends first; every step is one block earlier.
    """
    count, lines = 4, []
    for gpu in range(count):
        steps = []
        for number, kind in enumerate(kinds):
            chunk = (gpu - ahead - number) % count
            steps.append(
                f'<step s="{number}" type="{kind}" srcbuf="{buffer}" srcoff="{chunk}" dstbuf="{buffer}" '
                f'dstoff="{chunk}" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
            )
        block = f'<tb id="0" send="{(gpu + 1) % count}" recv="{(gpu - 1) % count}" chan="0">{"".join(steps)}</tb>'
        sizes = " ".join(f'{b}_chunks="{count if b == buffer else 0}"' for b in "ios")
        lines.append(f'<gpu id="{gpu}" {sizes}>{block}</gpu>')
    return (
        f'<algo name="x" proto="Simple" coll="{name}" nchannels="1" nchunksperloop="{count}" ngpus="{count}" '
        f'inplace="1" outofplace="0" minBytes="0" maxBytes="1">{"".join(lines)}</algo>'
    )


ALLREDUCE = ["s", "rrs", "rrs", "rrcs", "rcs", "rcs", "r"]
RINGS = {
    "allgather": ("o", ["s", "rcs", "rcs", "r"], 0),
    "reducescatter": ("i", ["s", "rrs", "rrs", "rrc"], 1),
    "allreduce": ("o", ALLREDUCE, 0),
    "allreduce in its input": ("i", ALLREDUCE, 0),
}


@pytest.mark.parametrize("name", RINGS)
def test_in_place_a_buffer_without_chunks_is_part_of_the_other(name: str, tmp_path: Path) -> None:
    buffer, kinds, ahead = RINGS[name]
    text = ring_in_place(name.split()[0], buffer, kinds, ahead)
    file = tmp_path / "f.xml"
    file.write_text(text)
    assert [verify_file(file, slots=slots).ok for slots in (1, 2)] == [False, True]
    # Every GPU sends before it receives, so a connection has to hold two sends.
    assert check_text(text, "f.xml", slots=2).most_steps == len(kinds)
    less = text.replace(f'type="{kinds[-2]}"', 'type="rcs"' if kinds[-2] == "rrs" else 'type="rrs"')
    outside = text.replace('outofplace="0"', 'outofplace="1"').replace('inplace="1"', 'inplace="0"')
    for wrong in (less, outside):
        with pytest.raises(FileError):
            check_text(wrong, "f.xml", slots=2)
