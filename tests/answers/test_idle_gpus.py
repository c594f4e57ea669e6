"""What idle GPUs would add as relays, against closed forms, the bound with these relays, and times without them."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

import blinksim as bs
from blinksim.answers.idle_gpus import idle_gpus
from blinksim.answers.project import answer
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.machines import Question

ALLREDUCE = Collective("allreduce")


def worth(question: Question, collective: Collective = ALLREDUCE) -> tuple[Fraction, float] | None:
    part = question.part()
    found = idle_gpus(question, part, collective, bs.bound(part, collective).rate)
    return None if found is None else (found.rate, found.times)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6])
def test_a_full_mesh(ranks: int) -> None:
    """Spanning trees take n/2 of a link, and a star through each of the other 8 - n GPUs one."""
    more = 8 - ranks + Fraction(ranks, 2)
    found = worth(Question("full:8@50GB/s", members=f"0-{ranks - 1}"))
    assert found is not None
    assert found[0] == 50 * 10**9 * more
    assert found[1] == pytest.approx(float(more / Fraction(ranks, 2)))


@pytest.mark.parametrize("name", ["allreduce", "broadcast", "allgather", "reducescatter", "reduce"])
@pytest.mark.parametrize(("machine", "members"), [("dgx1-v100", "0,1,4"), ("mi355x", "0-3"), ("aurora", "0-3")])
def test_trees_attain_the_bound_with_relays(machine: str, members: str, name: str) -> None:
    found = worth(Question(machine, members=members), Collective(name))
    helped = Question(machine, members=members, relays="idle", relays_reduce=True).part()
    assert found is not None
    assert found[0] == bs.bound(helped, name).rate


def test_where_nothing_is_said() -> None:
    assert worth(Question("dgx1-v100")) is None  # no GPU idles
    assert worth(Question("hgx-h100", members="0,1")) is None  # a port is the limit
    assert worth(Question("mi355x", members="0,1", relays="none")) is None  # they are refused
    assert worth(Question("mi355x", nodes=2, ranks_per_node=2)) is None  # a cluster
    assert worth(Question("mi355x", members="0,1"), Collective("alltoall")) is None


def test_projections_say_it_where_bandwidth_decides() -> None:
    part = Question("mi355x", members="0,1")
    machine = bs.load("mi355x")
    large, small = (bs.project(machine.select([0, 1]), "allreduce", size) for size in ("64MiB", "1KiB"))
    assert "idle GPUs" not in small.text()
    # A topology has no idle GPUs: they are those of the question.
    assert "idle GPUs" not in large.text()
    [asked] = answer(part, ALLREDUCE, [2**26])
    assert asked.to_dict()["relays_times"] == pytest.approx(7)
    assert len(asked.text().splitlines()) <= 9


def test_no_library_sends_through_relays() -> None:
    """What RCCL takes is the same with relays, which only schedules use."""
    times = []
    for question in (
        Question("mi355x", members="0,1"),
        Question("mi355x", members="0,1", relays="idle", relays_reduce=True),
    ):
        [found] = answer(question, ALLREDUCE, [2**26])
        assert found.could is not None
        times.append((found.time_s, found.high_s, found.low_s, found.could.best.time_s))
    assert times[0][:2] == times[1][:2]
    # No quick end is below the bound, and relays lower that.
    assert times[1][2] <= times[0][2]
    assert times[1][3] < times[0][3] / 4


def test_what_a_projection_names_for_idle_gpus_is_quicker(capsys: pytest.CaptureFixture[str]) -> None:
    """The settings of the line, given to the same command, bring trees through relays, which beat all without them."""
    words = ["project", "h100", "allreduce", "1GiB", "--ranks-per-node", "4"]
    assert run(words) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("idle GPUs"))
    assert run([*words, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert run([*words, "--json", *line.rsplit(": ", 1)[1].split()]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["algorithm"] == "blinkplus"
    assert after["time_s"] < before["could_take_s"]
