"""Bounds on time: named values, exact optima of tiny machines, and what a stranger may do to a certificate."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from typing import Any
from unittest import mock

import pytest
from exhaustive_times import Wire, blocks, least_time
from hypothesis import given, strategies as st

import blinksim as bs
from blinksim.bounds.quick import quick_bound
from blinksim.bounds.time.certificates import TimeCertificate
from blinksim.bounds.time.delays import SECOND, Delays, delays
from blinksim.bounds.time.message_counts import Coverage, OneStep, _parts
from blinksim.bounds.time.time_bound import _flows, all_times, best_clock, time_certificate_from_dict
from blinksim.cli.main import run
from blinksim.collective import Collective, CollectiveName
from blinksim.errors import InputError
from blinksim.topology.graph import Device, Link, Topology

# (machine, nodes, members, collective, size, kind, microseconds), found with a linear program and by hand.
NAMED = [
    ("dgx1-v100", 1, "", "allgather", "4KiB", "clock", 2.512),
    ("dgx1-v100", 1, "", "allgather", "4KiB", "one-step", 3.231),
    ("dgx1-v100", 1, "", "allgather", "1MiB", "clock", 8.017),
    ("dgx1-v100", 1, "", "allgather", "1MiB", "second-message", 9.317),
    ("dgx1-v100", 1, "", "allgather", "64MiB", "clock", 393.368),
    ("dgx1-v100", 1, "", "allgather", "64MiB", "second-message", 394.668),
    ("dgx1-v100", 1, "", "allreduce", "1MiB", "windows", 14.133),
    ("dgx1-v100", 1, "0,1,2,3", "allreduce", "64MiB", "straddling", 897.987),
    ("dgx1-v100", 1, "", "broadcast", "1MiB", "clock", 9.991),
    ("dgx1-v100", 1, "", "broadcast", "1MiB", "random-clock", 14.073),
    ("hgx-h200", 1, "", "broadcast", "16MiB", "random-clock", 48.163),
    ("hgx-h200", 1, "", "broadcast", "4MiB", "timed-prices", 19.244),
    ("dgx1-v100", 1, "", "broadcast", "256KiB", "timed-prices", 6.963),
    ("hgx-h200", 1, "", "allreduce", "1MiB", "timed-prices", 9.411),
    ("hgx-h200", 1, "", "allgather", "1MiB", "clock", 3.939),
    ("hgx-h200", 1, "", "allgather", "1MiB", "informed", 5.7),
    ("hgx-h200", 1, "0,1,2,3", "alltoall", "4MiB", "served-twice", 11.491),
    ("hgx-h200", 1, "", "allgather", "1MiB", "tree-cost", 6.842),
    ("hgx-h200", 1, "", "allreduce", "4MiB", "tree-cost", 20.616),
    ("ring:8@50GB/s", 1, "", "allgather", "1MiB", "clock", 10.175),
    ("ring:8@50GB/s", 1, "", "allreduce", "1MiB", "clock", 14.486),
    ("ring:8@50GB/s", 1, "", "allreduce", "1MiB", "windows", 19.350),
    ("mesh:3x3@50GB/s", 1, "", "broadcast", "1MiB", "clock", 14.486),
    ("torus:4x4@50GB/s", 1, "", "allgather", "4MiB", "clock", 20.661),
    ("hgx-h200", 2, "", "allgather", "4MiB", "clock", 11.368),
    ("hgx-h200", 2, "", "allgather", "4MiB", "coverage", 14.505),
    ("hgx-h200", 2, "", "allreduce", "64MiB", "windows", 253.928),
    ("hgx-h200", 2, "", "allreduce", "4MiB", "crossing-pairs", 21.411),
]


@pytest.mark.parametrize("case", NAMED, ids=lambda case: f"{case[0]}-{case[3]}-{case[4]}-{case[5]}")
def test_named_values(case: tuple[str, int, str, str, str, str, float]) -> None:
    machine, nodes, members, collective, size, kind, due = case
    part = bs.Question(machine, nodes=nodes, members=members or None).part()
    found = bs.time_bound(part, collective, size)
    time = {entry.kind: entry.time for entry in found.certificates}[kind]
    # Where prices or shares are sought, the search ends within some parts in a thousand.
    off = due / 1000 if kind in ("random-clock", "timed-prices", "tree-cost") else 0.001
    assert round(time / SECOND * 1e6, 3) == pytest.approx(due, abs=off)
    assert found.best.time >= time


@pytest.mark.parametrize(
    ("machine", "collective", "size"),
    [
        ("dgx1-v100", "broadcast", "1GiB"),
        ("hgx-h100", "broadcast", "64MiB"),
        ("mi300x", "broadcast", "1GiB"),
        ("dgx1-v100", "allreduce", "1KiB"),
        ("dgx1-p100", "broadcast", "1KiB"),
    ],
)
def test_all_answers_state_the_same_least_time(machine: str, collective: str, size: str) -> None:
    found = bs.time_bound(machine, collective, size)
    assert found.time_s == max(row["time_s"] for row in found.rows())
    projected = bs.project(machine, collective, size, algorithm="chain", model="alpha-beta")
    compared = bs.compare(machine, collective, [size], ["chain"]).envelope()[0]["time_bound_s"]
    made = bs.synthesize(machine, collective, "chain", size=size).at
    assert projected.least is not None
    assert made is not None
    assert projected.least.time_s == compared == made.least_s == found.time_s


def test_a_bound_is_met_where_a_schedule_is_known_to_meet_it() -> None:
    """A ring of 8 sends half of every block each way, in as many steps as there must be: the bound is exact."""
    part = bs.load("ring:8@50GB/s").selected()
    made = bs.synthesize(part, "allgather", "few_steps", chunks=2, time_limit=20)
    assert bs.time_bound(part, "allgather", "1MiB").time_s == pytest.approx(
        bs.simulate(made.schedule, "1MiB", offer="burst").time_s, rel=1e-6
    )


@given(
    st.sampled_from(["dgx1-v100", "hgx-h200", "ring:5@50GB/s", "aurora"]), st.integers(1, 1 << 28), st.integers(1, 500)
)
def test_sums_are_those_of_every_number_of_messages_and_every_link(machine: str, size: int, microseconds: int) -> None:
    part, collective = bs.load(machine).selected(), Collective("allgather")
    facts, time = delays(part, collective), microseconds * SECOND // 10**6
    step = OneStep.stated(part, collective, size, OneStep.places(facts)[0])
    sent = 0
    for link in facts.first_hops(step.source):
        left, rate = time - (facts.closes(link) or 0), facts.rate[link] * part.ranks
        room = (rate * max(0, left - count * facts.overhead[link]) for count in range(1, part.ranks))
        sent += max(min(count * step.each, most) for count, most in enumerate(room, 1))
    assert step.there(time) == sent
    cover = Coverage.stated(part, collective, size, Coverage.places(facts)[0])
    into = [link for link, dst in enumerate(facts.dst) if dst in cover.part and facts.src[link] not in cover.part]
    idle = [(facts.rate[link] * part.ranks, facts.idle(link)) for link in into]
    informed = (rate * max(0, time - lost - jump) for rate, lost in idle if lost is not None for jump in cover.jumps)
    assert cover.there(time) == sum(informed)


def test_ranks_that_are_alike_are_found_once_for_all_sizes() -> None:
    part = bs.load("hgx-h200", nodes=8).selected()
    with mock.patch.object(Delays, "first_hops", autospec=True, side_effect=Delays.first_hops) as asked:
        for size in (2**20, 2**21):
            asked.reset_mock()
            all_times(part, Collective("allgather"), size, ())
    assert asked.call_count < part.ranks


def test_two_gpus_and_a_link() -> None:
    """Overhead, latency and the bytes: a schedule takes that, and none takes less."""
    links = [Link(f"gpu{a}", f"gpu{1 - a}", "link", Fraction(10**10), 1, 7e-7, 4e-7) for a in (0, 1)]
    part = Topology("pair", (Device("gpu0", "gpu"), Device("gpu1", "gpu")), tuple(links), collective_links=("link",))
    assert bs.time_bound(part, "broadcast", 10**6).time_s == pytest.approx(4e-7 + 1e-4 + 7e-7, rel=1e-9)


# Collective, chunks of a block, links as (from, to, latency, overhead, ns of a chunk).
LINE = [(0, 1, 6, 13, 10), (1, 0, 6, 13, 10), (1, 2, 6, 13, 10), (2, 1, 6, 13, 10)]
TRIANGLE = [(a, b, 5, 9, 3 + 7 * (a == 2)) for a in range(3) for b in range(3) if a != b]
TINY = [
    ("broadcast", 1, LINE),
    ("allgather", 1, TRIANGLE),
    ("scatter", 1, LINE),
    ("allreduce", 1, LINE),
    ("broadcast", 2, TRIANGLE),
    ("allreduce", 1, TRIANGLE),
    ("alltoall", 1, TRIANGLE),
    ("gather", 1, LINE),
    ("reduce", 1, TRIANGLE),
    ("reducescatter", 1, LINE),
    ("allgather", 2, LINE),
]


def test_pairs_across_the_halves_of_a_dgx1() -> None:
    """By hand: 150 GB/s between the halves, o 1.3 us, L 0.6 us; in a half every GPU has a link to every other one.

    A message that starts before 1.9 us has one contribution of four; one that ends within the last 1.9 us reaches one
    rank of four. So of the window from 1.3 us to T - 0.6 us, T - 5.7 us serve all pairs, and 2 x 1.9 us a quarter each.
    """
    found = bs.time_bound("dgx1-v100", "allreduce", "1MiB")
    time = {entry.kind: entry.time for entry in found.certificates}["crossing-pairs"] / SECOND * 1e6
    assert time == pytest.approx(5.7 - 2 * 1.9 / 4 + 2**20 / 150e3, abs=1e-3)


def tiny(wires: list[Wire]) -> Topology:
    count = 1 + max(wire.src for wire in wires)
    links = (
        Link(f"gpu{w.src}", f"gpu{w.dst}", "link", Fraction(10**12, w.chunk), 1, w.latency * 1e-9, w.overhead * 1e-9)
        for w in wires
    )
    devices = tuple(Device(f"gpu{number}", "gpu") for number in range(count))
    return Topology("tiny", devices, tuple(links), collective_links=("link",)).selected()


def check_tiny(name: str, chunks: int, wires: list[Wire], seconds: float) -> None:
    part, collective = tiny(wires), Collective(name)
    due = least_time(name, part.ranks, wires, chunks, seconds)
    if due is None:
        pytest.skip(f"not proved within {seconds:g} s")
    # A chunk has 1,000 bytes.
    size = 1000 * chunks * blocks(name, part.ranks)
    for certificate in all_times(part, collective, size, [quick_bound(part, collective)]):
        assert certificate.time <= due * 10**6, (certificate, due)


@pytest.mark.parametrize(("name", "chunks", "wires"), TINY[:4])
def test_exact_optima(name: str, chunks: int, wires: list[tuple[int, int, int, int, int]]) -> None:
    check_tiny(name, chunks, [Wire(*wire) for wire in wires], 20)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "chunks", "wires"), TINY[4:])
def test_more_exact_optima(name: str, chunks: int, wires: list[tuple[int, int, int, int, int]]) -> None:
    check_tiny(name, chunks, [Wire(*wire) for wire in wires], 60)


def test_the_same_gpus_by_other_numbers() -> None:
    one = bs.Question("dgx1-v100", members="0,1,2,3,4,7").part()
    other = bs.Question("dgx1-v100", members="7,4,0,2,1,3").part()
    for name in ("allreduce", "allgather", "alltoall"):
        assert bs.time_bound(one, name, "256KiB").time_s == pytest.approx(bs.time_bound(other, name, "256KiB").time_s)


# --- certificates of strangers ------------------------------------------------------------------------------------


def printed(machine: str, collective: str, size: str) -> dict[str, Any]:
    """What ``bound --size --json`` prints."""
    question = bs.Question(machine)
    part = question.part()
    found = bs.bound(part, collective)
    document = {"command": "bound", **question.described(part), **found.to_dict(), "trees_per_root": 6}
    return document | bs.time_bound(part, collective, size).to_dict()


def test_verify_takes_what_bound_prints(tmp_path: Any) -> None:
    document = printed("dgx1-v100", "allgather", "1MiB")
    assert document["size_bytes"] == 2**20
    assert document["time_bound_s"] == pytest.approx(9.317e-6, abs=1e-9)
    assert all(entry["checked"] for entry in document["time_bounds"])
    path = tmp_path / "bound.json"
    path.write_text(json.dumps(document))
    found = bs.verify_file(path)
    assert found.ok
    assert found.proved
    assert "second-message: at least 9.317 us on the links alone" in found.text()


def test_rate_and_time_name_a_cluster_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bound", "hgx-h100", "allreduce", "--nodes", "2", "--size", "1MiB"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("allreduce on 2 x hgx-h100: at most ")
    assert "\nallreduce of 1 MiB on 2 x hgx-h100: at least " in out


def longer(time: str) -> str:
    return str(float(time) * 1.02)[:12]


@pytest.mark.parametrize("place", range(5))
def test_a_later_time_is_not_proved(tmp_path: Any, place: int) -> None:
    document = printed("dgx1-v100", "allgather", "1MiB")
    certificate = document["time_bounds"][place]["certificate"]
    certificate["time_us"] = longer(certificate["time_us"])
    if certificate["kind"] == "clock":
        certificate["clocks_us"] |= dict.fromkeys(certificate["sinks"], certificate["time_us"])
    path = tmp_path / "bound.json"
    path.write_text(json.dumps(document))
    assert not bs.verify_file(path).ok


def test_damage_is_refused_in_one_line() -> None:
    part, collective = bs.load("dgx1-v100").selected(), Collective("allgather")
    found = bs.time_bound(part, "allgather", "1MiB")
    damages: list[Any] = [None, -1, "x", [], {}, ["gpu0", "gpu0"], "1e9", "9" * 400]
    for certificate in found.certificates:
        document = certificate.to_dict()
        for key in document:
            for damage in damages:
                other = copy.deepcopy(document)
                other[key] = damage
                if other[key] == document[key]:
                    continue
                with pytest.raises(InputError) as error:
                    time_certificate_from_dict(other, part, collective, 2**20)
                assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="not an object"):
        time_certificate_from_dict([], part, collective, 2**20)


@pytest.mark.parametrize(
    ("machine", "members", "collective"),
    [("dgx1-v100", "0,1,4,6,7", "allreduce"), ("hgx-h200", None, "broadcast"), ("dgx1-v100", None, "allgather")],
)
def test_times_that_cannot_be_are_refused_in_one_line(machine: str, members: str | None, collective: str) -> None:
    part = bs.Question(machine, members=members).part()
    certificates = bs.time_bound(part, collective, "256KiB").certificates
    assert certificates
    for certificate in certificates:
        for time in ("0", "0.000000001", "99999999999.5", "999999999999999999"):
            document = certificate.to_dict() | {"time_us": time}
            with pytest.raises(InputError) as error:
                time_certificate_from_dict(document, part, Collective(collective), 2**18)
            assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", [0, True, "many", -4])
def test_times_without_a_size_are_refused(tmp_path: Any, missing: object) -> None:
    document = printed("dgx1-v100", "allgather", "1MiB") | {"size_bytes": missing}
    path = tmp_path / "bound.json"
    path.write_text(json.dumps(document))
    with pytest.raises(bs.FileError, match="whole number of bytes"):
        bs.verify_file(path)


def test_a_bus_starts_with_one_link_and_ends_with_another() -> None:
    """Two GPUs on buses to a switch: out of gpu0 from the start, into it until a latency before the end."""
    ends = [("gpu0", "sw"), ("sw", "gpu0"), ("gpu1", "sw"), ("sw", "gpu1")]
    links = [Link(a, b, "link", Fraction(10**9), 1, 1e-7, 0.0, "bus0" if "gpu0" in (a, b) else None) for a, b in ends]
    devices = (Device("gpu0", "gpu"), Device("gpu1", "gpu"), Device("sw", "switch"))
    part = Topology("bus", devices, tuple(links), collective_links=("link",)).selected()
    assert bs.time_bound(part, "allreduce", 1024).time_s == pytest.approx(2.148e-6, rel=1e-9)


@pytest.mark.parametrize("machine", ["hgx-h100", "dgx1-v100", "torus:3x3", "p4d.24xlarge"])
@pytest.mark.parametrize("name", ["allreduce", "allgather", "broadcast", "reduce", "alltoall"])
def test_one_place_of_a_kind_is_as_good_as_all(
    machine: str, name: CollectiveName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What symmetries of the problem take to each other proves the same time; the first one is named either way."""
    collective, size = Collective(name, root=1 if name in ("broadcast", "reduce") else 0), 2**20
    part = bs.load(machine, nodes=1 if ":" in machine else 2).select()
    kinds = delays(part, collective).alike([[frozenset({device})] for device in delays(part, collective).ranks])
    assert len({*kinds}) < part.ranks or (machine == "dgx1-v100" and collective.rooted)

    def found() -> tuple[TimeCertificate, ...]:
        for cached in (delays, _flows, best_clock, _parts):
            cached.cache_clear()
        return all_times(part, collective, size, [])

    by_kind = found()
    monkeypatch.setattr(Delays, "alike", lambda _, things: list(range(len(things))))
    assert by_kind == found()


@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100", "dgx1-v100"])
@pytest.mark.parametrize("name", ["allreduce", "allgather", "broadcast", "reduce"])
def test_relays_that_add_pass_no_theorem_by(machine: str, name: CollectiveName) -> None:
    """Idle GPUs that reduce and multicast do what ranks would do else: nothing that counts messages of ranks holds."""
    part = bs.load(machine).select([0, 1, 2, 3], "idle", relays_reduce=True)
    made = bs.synthesize(part, name, algorithm="packed")
    for size in (2**14, 2**22, 2**30):
        assert bs.time_bound(part, name, size).time_s <= bs.simulate(made, size).time_s * (1 + 1e-9)
