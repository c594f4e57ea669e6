"""MSCCL's files: carried out symbolically as the runtimes do, and caught whenever one step of them is wrong."""

from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from on_one_node import CASES
from small_schedules import full, ring_allreduce, steps, whole

import blinksim as bs
from blinksim import machines
from blinksim.algorithms.registry import algorithm
from blinksim.answers.verify import verify_file
from blinksim.collective import Collective
from blinksim.errors import FileError, InfeasibleError
from blinksim.formats.moves import moves
from blinksim.formats.programs import Effort, outcome
from blinksim.formats.runtimes.msccl_xml import BUFFERS, Algorithm, Buffers, check_text, export, read_text, to_text
from blinksim.schedule.model import COPY, REDUCE

QUAD = machines.load("dgx1-v100").select([f"gpu{i}" for i in range(4)])
TORUS = machines.load("torus:2x3").select()
EIGHT = machines.load("dgx1-v100").select()

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
    return outcome(Buffers(read, Effort(), **how), seed)


@pytest.mark.parametrize(("name", "collective"), CASES)
def test_every_algorithm_ends_as_promised(name: str, collective: str) -> None:
    wanted = Collective(collective, 2) if Collective(collective).rooted else Collective(collective)
    schedule = algorithm(name).build(TORUS if name == "bucket" else QUAD, wanted)
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
    # Nobody sends before it has received, so no number of buffers helps.
    for slots in (None, 1, 100):
        with pytest.raises(FileError, match="line 5: thread block 0 of GPU 0 waits forever, whatever connections hold"):
            check_text(circle, "x.xml", slots=slots)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('proto="Simple"', 'proto="simple"'), "proto must be"),
        (('coll="allgather"', 'coll="all_gather"'), "coll='all_gather' is not one of"),
        (('ngpus="2"', 'ngpus="3"'), "2 <gpu> for ngpus=3"),
        (('nchannels="1"', 'nchannels="2"'), "highest channel"),
        (('inplace="0"', ""), "attribute inplace is missing"),
        (('minBytes="0" maxBytes="1073741824"', 'minBytes="2" maxBytes="1"'), "minBytes is more than maxBytes"),
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
    """Neither could take the first part while it waited until the last one of its own is gone.

    Nor can a part have more chunks than the buffers of a connection hold, which are two of large messages.
    """
    sends = [[(chunk, f"gpu{a}", f"gpu{1 - a}", REDUCE) for a in (0, 1) for chunk in (0, 1)]]
    shares = [(Fraction(199, 200), -1, -1), (Fraction(1, 200), -1, -1)]
    exported = export(steps(full(2), "allreduce", shares, sends))
    assert exported.files[""].count('type="rrc"') == 2 * (100 + 1)


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


def ring_in_place(name: str, buffer: str, kinds: list[str], ahead: int, count: int = 4) -> str:
    """A ring of GPUs that works on one buffer, the other one having no chunks: msccl-tools' ``inplace``.

    kinds: of the steps. ahead: how far before its own block a GPU sends first; every step is one block earlier.
    """
    lines = []
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


def test_a_file_of_more_steps_than_readers_take_is_not_written() -> None:
    part = machines.load("dgx-a100", nodes=32).select()
    whole = bs.synthesize(part, "allreduce", "direct").schedule
    with pytest.raises(InfeasibleError, match=f"{2 * whole.sends:,} steps, and readers take 100,000"):
        export(whole)
    steps = '<step s="0"/>' * 100_001
    with pytest.raises(FileError, match="more than 100000 elements"):
        check_text(HAND.replace("</tb>", f"{steps}</tb>", 1), "a file")


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


@pytest.mark.parametrize("count", [8, 16])
def test_the_rings_that_azure_runs_need_two_buffers(count: int, tmp_path: Path) -> None:
    """One block a GPU with s, rcs, ..., r, as the allgathers of 32 MiB to 1 GiB of Azure's msccl-scheduler."""
    file = tmp_path / "ring.xml"
    file.write_text(ring_in_place("allgather", "o", ["s", *["rcs"] * (count - 2), "r"], 0, count))
    found = verify_file(file)
    assert found.ok
    assert "needs 2 buffers a connection" in found.facts
    assert verify_file(file, slots=1).reasons == (
        f"{file}: line 1: thread block 0 of GPU 0 waits forever: needs connections of 2 buffers, and these have 1",
    )


def exchange(orders: tuple[str, str], proto: str, count: int = 1, most_bytes: int = 2**40) -> str:
    """An alltoall of two GPUs, each with a block of sends and receives in this order, of `count` chunks each."""
    sends = orders[0].count("s")
    half, gpus = sends * count, []
    for gpu, order in enumerate(orders):
        steps, other = "", half * (1 - gpu)
        for number, kind in enumerate(order):
            start = other + count * order[:number].count(kind)
            steps += (
                f'<step s="{number}" type="{kind}" srcbuf="i" srcoff="{start}" dstbuf="o" dstoff="{start}" '
                f'cnt="{count}" depid="-1" deps="-1" hasdep="0"/>'
            )
        own = (
            f'<step s="0" type="cpy" srcbuf="i" srcoff="{half * gpu}" dstbuf="o" dstoff="{half * gpu}" cnt="{half}" '
            f'depid="-1" deps="-1" hasdep="0"/>'
        )
        gpus.append(
            f'<gpu id="{gpu}" i_chunks="{2 * half}" o_chunks="{2 * half}" s_chunks="0">'
            f'<tb id="0" send="{1 - gpu}" recv="{1 - gpu}" chan="0">{steps}</tb>'
            f'<tb id="1" send="-1" recv="-1" chan="0">{own}</tb></gpu>\n'
        )
    return (
        f'<algo name="x" proto="{proto}" coll="alltoall" nchannels="1" nchunksperloop="{2 * half}" ngpus="2" '
        f'inplace="0" outofplace="1" minBytes="0" maxBytes="{most_bytes}">\n{"".join(gpus)}</algo>'
    )


def both_end(orders: tuple[str, str], slots: int) -> bool:
    """Whether two that send and receive in these orders come to the end, a chunk at a time."""
    left, held = [list(order) for order in orders], [0, 0]
    while any(left):
        for me, queue in enumerate(left):
            if queue and (held[me] < slots if queue[0] == "s" else held[1 - me]):
                held[me if queue[0] == "s" else 1 - me] += 1 if queue.pop(0) == "s" else -1
                break
        else:
            return False
    return True


@given(
    st.permutations("ssssssssssrrrrrrrrrr"), st.permutations("ssssssssssrrrrrrrrrr"), st.sampled_from(sorted(BUFFERS))
)
def test_the_buffers_needed_are_the_fewest_with_which_all_end(first: list[str], second: list[str], proto: str) -> None:
    orders = "".join(first), "".join(second)
    fewest = next((slots for slots in range(1, 11) if both_end(orders, slots)), None)
    text, has = exchange(orders, proto), BUFFERS[proto][0]
    if fewest is None:
        with pytest.raises(FileError, match="waits forever, whatever connections hold"):
            check_text(text, "x.xml")
    elif fewest > has:
        with pytest.raises(FileError, match=f"needs connections of {fewest} buffers, and these have {has}"):
            check_text(text, "x.xml")
        assert check_text(text, "x.xml", slots=fewest).buffers == fewest
    else:
        assert check_text(text, "x.xml").buffers == fewest


def test_more_buffers_than_there_are_is_a_deadlock() -> None:
    text = exchange(("sssrrr", "sssrrr"), "Simple")
    wrong = "line 2: thread block 0 of GPU 0 waits forever: needs connections of 3 buffers, and these have 2"
    with pytest.raises(FileError, match=wrong):
        check_text(text, "x.xml")
    assert check_text(text.replace("Simple", "LL128"), "x.xml").buffers == 3


@pytest.mark.parametrize(("mib", "needed"), [(2, 1), (4, 1), (8, 2), (16, 4), (32, 8), (1024, 8)])
def test_chunks_go_together_as_far_as_they_fit_into_a_buffer(mib: int, needed: int) -> None:
    """Eight of 16 chunks that each of two GPUs sends before it receives; a buffer of Simple holds 2 MiB."""
    text = exchange(("sr", "sr"), "Simple", 8, mib << 20)
    assert check_text(text, "x.xml", slots=8).buffers == needed
    if needed > 2:
        with pytest.raises(FileError, match=f"needs connections of {needed} buffers"):
            check_text(text, "x.xml")


# What TACCL and SCCL write before the first <gpu>, without outofplace, minBytes and maxBytes.
HEADS = {
    "TACCL": '<algo name="taccl" nchannels="1" nchunksperloop="2" proto="Simple" coll="allgather" inplace="1" '
    'redop="nop" ngpus="2">',
    "SCCL": '<algo name="Allgather(n=2)-DGX1-steps=1" proto="Simple" nchannels="1" ngpus="2" nchunksperloop="2" '
    'inplace="1" coll="allgather">',
}


@pytest.mark.parametrize("writer", HEADS)
def test_heads_of_taccl_and_sccl_are_read_as_their_runtime_does(writer: str, tmp_path: Path) -> None:
    foreign, own = tmp_path / "foreign.xml", tmp_path / "own.xml"
    own.write_text(IN_PLACE)
    foreign.write_text(re.sub(r"<algo .*?>", HEADS[writer], IN_PLACE, flags=re.DOTALL))
    read = read_text(foreign.read_text(), foreign)
    assert (read.in_place, read.out_of_place) == (True, False)
    found = verify_file(foreign)
    assert found.ok
    assert found.facts[-1] == "RCCL wants outofplace, minBytes, maxBytes too"
    assert "RCCL" not in verify_file(own).text()
    # Simulated, projected and compared like the same program with a full head.
    pair = machines.load("dgx1-v100").select(["gpu0", "gpu1"])
    times = []
    for file in (foreign, own):
        simulated = bs.simulate(bs.read_schedule(file, pair), "1MiB").time_s
        projected = bs.project(pair, "allgather", "1MiB", algorithm=str(file)).time_s
        compared = bs.compare(pair, "allgather", ["1MiB"], [file]).to_dict()["rows"][0]
        times.append((simulated, projected, [value for value in compared.values() if isinstance(value, float)]))
    assert times[0] == times[1]
    # The same file out of place copies nothing from its input, and so is wrong there.
    foreign.write_text(foreign.read_text().replace('inplace="1"', 'inplace="0"'))
    assert "where nothing is (out of place)" in verify_file(foreign).reasons[0]


def test_reduce_scatter_is_spelled_as_by_taccl_too() -> None:
    text = ring_in_place("reducescatter", "i", ["s", "rrs", "rrs", "rrc"], 1)
    assert read_text(text.replace("reducescatter", "reduce_scatter"), "x.xml") == read_text(text, "x.xml")
