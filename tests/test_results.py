"""What every result of a public function can do: rows, a frame, JSON, a sentence, text, and rates in GB/s."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from source_tree import ROOT

import blinksim as bs
from blinksim.answers.compare import across_models
from blinksim.answers.place import Placement
from blinksim.results import Result

MACHINE = bs.load("dgx1-v100", rates="nccl")
QUAD = MACHINE.select([0, 1, 2, 3])
MIB = 2**20
LOG = Path(__file__).parent / "data" / "captures"

MAKERS: dict[str, Callable[[], Result]] = {
    "Projection": lambda: bs.project(QUAD, "allreduce", "256MiB", algorithm="ring"),
    "Answer": lambda: bs.project(QUAD, "allreduce", "256MiB"),
    "Comparison": lambda: bs.compare(QUAD, "allreduce", ["1MiB", "64MiB"], ["ring", "chain"]),
    "Models": lambda: across_models(QUAD, "allreduce", [MIB], ["alpha-beta", "simulate"]),
    "Sweep": lambda: bs.sweep("ring:4@25GB/s", "allreduce", [MIB], {"members": ["0-1", "0-3"]}),
    "BoundResult": lambda: bs.bound(QUAD, "allreduce"),
    "Synthesis": lambda: bs.synthesize(QUAD, "allreduce"),
    "Verdict": lambda: bs.verify(bs.synthesize(QUAD, "allreduce", "ring").schedule),
    "Timeline": lambda: bs.simulate(bs.synthesize(QUAD, "allreduce", "ring").schedule, MIB),
    "Execution": lambda: bs.execute(bs.synthesize(QUAD, "allreduce", "ring").schedule, MIB),
    "Advice": lambda: bs.advise(QUAD, machine=MACHINE),
    "Placements": lambda: bs.place(QUAD, 2),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_result_shows_itself(name: str) -> None:
    found = MAKERS[name]()
    assert type(found).__name__ == name
    rows = found.rows()
    assert len(found.to_frame()) == len(rows)
    assert all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows)
    assert json.loads(json.dumps(found.to_dict()))
    sentence = found.sentence()
    assert sentence
    assert "\n" not in sentence
    assert not sentence.startswith("<")
    assert found.text().strip()
    assert "<" in found._repr_html_()


def test_rates_are_the_bytes_per_second_of_the_result() -> None:
    """By hand: four ranks, three lanes of NVLink out of each GPU; busbw is 3/2 of algbw."""
    bound, made = bs.bound(QUAD, "allreduce"), bs.synthesize(QUAD, "allreduce")
    assert bound.rate_GBps == bound.algbw_GBps == float(bound.rate / 10**9)
    assert bound.busbw_GBps == pytest.approx(1.5 * bound.algbw_GBps)
    assert made.rate_GBps == made.algbw_GBps <= bound.rate_GBps
    timed = bs.project(QUAD, "allreduce", "256MiB", algorithm="ring")
    assert timed.algbw_GBps == pytest.approx(256 * MIB / timed.time_s / 1e9)
    assert timed.busbw_GBps == pytest.approx(1.5 * timed.algbw_GBps)
    run = bs.execute(bs.synthesize(QUAD, "allreduce", "ring").schedule, MIB)
    assert run.algbw_GBps is run.busbw_GBps is run.rate_GBps is None


def test_placements_are_a_sequence_and_a_table() -> None:
    found = bs.place("dgx1-v100", 2)
    assert len(found) == 28
    assert isinstance(found[0], Placement)
    assert found[:2] == [found[0], found[1]]
    assert list(found)[-1] is found[-1]
    assert list(found.to_frame()["connected"]).count(False) == 12
    assert "12" not in found.sentence()
    assert "16 of 28" in found.sentence()


def test_a_contest_is_shown_in_a_line() -> None:
    found = bs.contest("dgx1-v100", "allreduce")
    assert len(repr(found)) < 350
    assert len(found.to_frame()) == len(found.schedules) + len(found.refused)


def test_steps_that_overlap_are_said_to() -> None:
    # Each step waits for the one before; in pieces, the next step begins before this one ends.
    small, large = (bs.project("torus:4x4", "allreduce", size, algorithm="ring") for size in ("1KiB", "1GiB"))
    assert [small.terms[0].name, large.terms[0].name] == ["latency of 30 steps", "latency of 30 overlapping steps"]
    assert large.terms[0].time_s < small.terms[0].time_s
    for found in (small, large):
        assert sum(term.time_s for term in found.terms) == pytest.approx(found.time_s)


def test_a_bottleneck_by_starts_of_messages_is_told_from_one_by_bytes() -> None:
    # On three p4d each GPU passes fewer seconds of bytes by NVLink than a node by EFA, but starts more messages there.
    machine = bs.load("p4d", nodes=3)
    found = bs.project(machine, "allreduce", "16MiB", algorithm="ring")
    [passing] = (term for term in found.terms if term.name == "bandwidth of nvlink")
    assert found.bottleneck.endswith("(nvlink)")
    busy = found.details["busy_by_class"]
    assert busy["nvlink"] > busy["efa"] > passing.time_s / found.time_s
    starts = found.details["bottleneck_starts"]
    assert f"overhead of further messages, {100 * starts:.0f} % of the time; of the links, " in found.bottleneck_words
    # Of large messages bytes take nearly all the time.
    large = bs.project(machine, "allreduce", "16GiB", algorithm="ring")
    assert "starts" not in large.bottleneck_words


def test_tables_say_who_takes_part() -> None:
    """The members, the relays, and the links: as the bound of the same part does."""
    part = bs.Question("dgx1-v100", members="0-2", relays="idle")
    text = bs.compare(part, "allreduce", [MIB], ["ring"]).text()
    assert "\n  ranks 3: gpu0 gpu1 gpu2\n  relays gpu3 gpu4 gpu5 gpu6 gpu7\n  links nvlink at " in text


def test_every_row_of_answer_keys_is_shown_somewhere_and_names_each_key_once() -> None:
    with (ROOT / "models" / "answer_keys.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["answer"], row["keys"]) for row in csv.DictReader(file)]
    used = [
        name
        for path in (ROOT / "blinksim").rglob("*.py")
        for name in re.findall(r'"@([A-Z]\w+(?:\.\w+)?)[ "]', path.read_text())
    ]
    assert {name for name, _ in rows} == {*used}
    assert len(rows) == len({name for name, _ in rows}) > 40
    for name, keys in rows:
        assert re.fullmatch(r"[\w?=. ]+", keys), name
        listed = [word.partition("=")[0].rstrip("?") for word in keys.split()]
        assert len(listed) == len({*listed}), name
