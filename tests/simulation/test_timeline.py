"""What a timeline says adds up: link times are loads, the critical path is the whole time, traces are complete."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings, strategies as st
from small_schedules import exchanges, forests, full
from strategies import renamed
from timed_patterns import RATE, gpus, link, machine, one_ring

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.cli.main import cli, run
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.exports import write_trace
from blinksim.formats.traces import events
from blinksim.schedule.loads import link_loads
from blinksim.schedule.model import COPY, REDUCE, Schedule, rebase
from blinksim.timing.event_graph import Run, ScheduleGraph, Work
from blinksim.timing.events import evaluated
from blinksim.timing.simulation_options import Options, ServiceName
from blinksim.timing.simulator import exact_time
from blinksim.topology.graph import Topology

DATA = Path(__file__).resolve().parents[1] / "data"
SMALL = settings(
    max_examples=25, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


def built(name: str, topology: Topology, collective: str) -> Schedule:
    return algorithm(name).build(topology, Collective(collective))


@SMALL
@given(st.one_of(forests(), exchanges()), st.integers(1, 6), st.sampled_from(["fifo", "static"]))
def test_the_critical_path_is_the_whole_time(schedule: Schedule, pieces: int, service: ServiceName) -> None:
    timeline = bs.simulate(schedule, 10**6, pieces=pieces, launch=1e-6, gamma=1e-12, service=service)
    legs = timeline.critical_path
    assert sum(leg.time_s for leg in legs) == pytest.approx(timeline.time_s, rel=1e-9)
    assert all(leg.time_s >= 0 for leg in legs)
    assert all(b.start_s == pytest.approx(a.start_s + a.time_s, abs=1e-12) for a, b in pairwise(legs))
    assert all(leg.words() for leg in legs)


@SMALL
@given(forests(), st.integers(1, 5))
def test_links_are_busy_for_exactly_their_load(schedule: Schedule, pieces: int) -> None:
    timeline = bs.simulate(schedule, 10**6, pieces=pieces)
    loads = dict(zip((x.name for x in schedule.topology.links), link_loads(schedule), strict=True))
    for use in timeline.uses:
        assert use.load_bytes == pytest.approx(float(10**6 * loads[use.resource]))
        assert use.busy_s == pytest.approx(use.load_bytes / 1e10, rel=1e-9)
        assert use.busy <= 1
    assert {use.resource for use in timeline.uses} == {name for name, load in loads.items() if load}


@SMALL
@given(st.data(), forests(), st.integers(1, 4))
def test_names_do_not_matter(data: st.DataObject, schedule: Schedule, pieces: int) -> None:
    topology, names = data.draw(renamed(schedule.topology))
    number = {d.name: i for i, d in enumerate(topology.devices)}
    device = [number[names[d.name]] for d in schedule.topology.devices]
    where = {(x.src, x.dst): i for i, x in enumerate(topology.links)}
    links = [where[names[x.src], names[x.dst]] for x in schedule.topology.links]
    other = replace(
        schedule,
        topology=topology,
        src=schedule.src * 0 + [device[i] for i in schedule.src],
        dst=schedule.dst * 0 + [device[i] for i in schedule.dst],
        route_links=schedule.route_links * 0 + [links[i] for i in schedule.route_links],
    )
    first, second = bs.simulate(schedule, 10**6, pieces=pieces), bs.simulate(other, 10**6, pieces=pieces)
    assert exact_time(first) == exact_time(second)


def reversed_in_time(schedule: Schedule) -> Schedule:
    """A broadcast turned into the reduction that sends everything back the other way."""
    topology = schedule.topology
    where = {(x.src, x.dst): i for i, x in enumerate(topology.links)}
    back = [where[topology.links[i].dst, topology.links[i].src] for i in schedule.route_links]
    order = slice(None, None, -1)
    return replace(
        schedule,
        collective=Collective("reduce", schedule.collective.root),
        chunk=schedule.chunk[order],
        src=schedule.dst[order],
        dst=schedule.src[order],
        op=schedule.op[order] * 0 + REDUCE,
        step=schedule.steps - 1 - schedule.step[order],
        route=schedule.route[order],
        channel=schedule.channel[order],
        route_links=schedule.route_links * 0 + back,
    )


@pytest.mark.parametrize("name", ["chain", "binary", "mxnet"])
def test_time_reversed_a_broadcast_is_a_reduction(name: str) -> None:
    # On trees whose links carry one chunk, every piece takes the same way back in the same time.
    broadcast = built(name, full(7), "broadcast")
    reduction = reversed_in_time(broadcast)
    assert bs.verify(reduction).ok
    for pieces in (1, 4):
        there, back = (bs.simulate(s, 7 * 10**6, pieces=pieces, service="static") for s in (broadcast, reduction))
        assert exact_time(there) == exact_time(back)


@SMALL
@given(forests(), st.integers(1, 5), st.sampled_from([2, 3, 10]))
def test_k_times_the_bandwidth_and_a_kth_of_the_latency_take_a_kth_of_the_time(
    schedule: Schedule, pieces: int, factor: int
) -> None:
    links = [replace(x, latency=0.0, overhead=0.0) for x in schedule.topology.links]
    slow = replace(schedule, topology=schedule.topology.with_links(links))
    quick = replace(slow, topology=slow.topology.with_links(
        replace(x, lane_bandwidth=x.lane_bandwidth * factor) for x in links))  # fmt: skip
    times = [exact_time(bs.simulate(s, 10**6, pieces=pieces)) for s in (slow, quick)]
    assert times[0] == factor * times[1]


def dgx1(latency: float, collective: str = "allgather") -> Schedule:
    topology = bs.load("dgx1-v100").select()
    return built("packed", topology.with_links(replace(x, latency=latency, overhead=0.0) for x in topology.links),
                 collective)  # fmt: skip


@pytest.mark.parametrize("latency", [0.0, 1.9e-6])
def test_a_packed_forest_reaches_its_rate_with_many_pieces(latency: float) -> None:
    schedule = dgx1(latency)
    for options in ({}, {"service": "static"}):
        excess = {}
        for pieces in (100, 1000):
            timeline = bs.simulate(schedule, 10**9, pieces=pieces, **options)  # type: ignore[arg-type]
            assert timeline.bound_s == pytest.approx(1e9 / (1200e9 / 7))
            excess[pieces] = timeline.time_s / timeline.bound_s - 1
        assert excess[1000] < (0.004 if latency else 0.002)
        if latency == 0:
            # What remains is filling and draining: one over the number of pieces.
            assert 8 < excess[100] / excess[1000] < 12


@pytest.mark.slow
def test_turns_reach_the_rate_and_a_burst_does_not() -> None:
    gather, reduce = dgx1(0.0), dgx1(0.0, "allreduce")

    def over(schedule: Schedule, pieces: int = 60, **options: object) -> float:
        timeline = bs.simulate(schedule, 10**9, pieces=pieces, **options)  # type: ignore[arg-type]
        return timeline.time_s / timeline.bound_s - 1

    for schedule in (gather, reduce):
        assert over(schedule, 300) < 0.01
    # The trees of an allgather are too low to lose much by it.
    assert over(reduce, 300, offer="burst") > 0.05
    # Deep chains, which lose a third where only the sources take turns.
    chains = algorithm("chains").build(gather.topology, Collective("allreduce"))
    assert over(chains, 300, offer="burst") > 0.3
    assert over(chains, 300) < 0.025


def test_pieces_that_gain_next_to_nothing_are_not_run() -> None:
    """More pieces are tried while they gain 0.1 %; 46,296 took 11 s of events, and as many again for the path."""
    timeline = bs.simulate(bs.read_schedule(DATA / "many_pieces.schedule.json"), 10**9)
    assert timeline.pieces * timeline.graph.count < 1_000_000
    assert timeline.time_s < 1.001 * timeline.bound_s


def test_the_best_number_of_pieces_balances_overhead_and_filling() -> None:
    hops, overhead = 6, 50
    links = [link(f"gpu{i}", f"gpu{i + 1}", overhead=overhead) for i in range(hops)]
    schedule = algorithm("chain").build(
        machine("chain", gpus(hops + 1), links), Collective("broadcast"), order=list(range(hops + 1))
    )
    timeline = bs.simulate(schedule, 100_000 * 64)
    best = ((hops - 1) * 100_000 / overhead) ** 0.5
    assert 0.7 * best <= timeline.pieces <= 1.4 * best
    assert timeline.time_s == min(timeline.tried.values())
    exact = bs.simulate(schedule, 100_000 * 64, pieces=round(best))
    assert timeline.time_s <= exact.time_s * 1.02


@pytest.mark.parametrize("name", ["ring", "double_binary"])
def test_a_number_of_pieces_runs_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of those that were tried is not run again for the answer, nor for its critical path."""
    found: list[int] = []

    def once(graph: ScheduleGraph, work: Work, pieces: int, options: Options, *, record: bool = False) -> Run:
        found.append(pieces)
        return evaluated(graph, work, pieces, options, record=record)

    monkeypatch.setattr("blinksim.timing.simulator.evaluated", once)
    timeline = bs.simulate(built(name, bs.load("torus:3x3"), "allreduce"), 10**7, service="fifo")
    assert timeline.engine == "heap"
    assert timeline.critical_path
    assert sorted(found) == sorted(timeline.tried)


def test_a_chunk_size_is_not_exceeded() -> None:
    timeline = bs.simulate(built("double_binary", full(5), "allreduce"), 10**6, chunk=30_000)
    assert (timeline.pieces, timeline.piece_bytes) == (17, pytest.approx(500_000 / 17))


def test_a_schedule_that_beats_its_bound_is_refused() -> None:
    schedule = built("ring", one_ring(4, 0), "allreduce")
    honest = schedule.with_bound({"rate_exact": str(RATE * Fraction(4, 6) / 10**9)})
    assert bs.simulate(honest, 10**6).time_s > 0
    with pytest.raises(InputError, match="verify"):
        bs.simulate(schedule.with_bound({"rate_exact": str(RATE / 2 / 10**9)}), 10**6)


def test_runs_are_repeatable() -> None:
    schedule = dgx1(1.9e-6)
    first, second = (bs.simulate(schedule, 10**7, pieces=7).to_dict() for _ in range(2))
    assert first == second


# --- traces, pictures, command line -------------------------------------------------------------------------------


@pytest.mark.parametrize("service", ["fifo", "static"])
def test_a_trace_holds_every_transfer_and_nothing_overlaps(tmp_path: Path, service: ServiceName) -> None:
    timeline = bs.simulate(built("mxnet", full(6), "allreduce"), 10**6, pieces=3, service=service)
    assert write_trace(timeline, tmp_path / "run.json") is None
    document = json.loads((tmp_path / "run.json").read_text())
    bars = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(bars) == timeline.schedule.sends * 3 == timeline.transfer_count
    threads: dict[int, list[tuple[float, float]]] = {}
    for bar in bars:
        threads.setdefault(bar["tid"], []).append((bar["ts"], bar["ts"] + bar["dur"]))
    for spans in threads.values():
        assert all(b[0] >= a[1] - 1e-9 for a, b in pairwise(sorted(spans)))
    assert max(bar["args"]["arrived_us"] for bar in bars) == pytest.approx(timeline.time_s * 1e6, rel=1e-9)
    named = {event["tid"] for event in document["traceEvents"] if event["name"] == "thread_name"}
    assert named == set(threads)


def test_a_long_trace_is_a_sample_of_the_whole_run_and_says_so(tmp_path: Path) -> None:
    timeline = bs.simulate(built("mxnet", full(6), "allreduce"), 10**6, pieces=10)
    whole = [event for event in events(timeline) if event["ph"] == "X"]
    cut = write_trace(timeline, tmp_path / "run.json", most=50)
    assert cut is not None
    assert "50 of 600" in cut
    assert "whole run" in cut
    few = [event for event in events(timeline, 50) if event["ph"] == "X"]
    assert (few[0]["ts"], few[-1]["ts"]) == (whole[0]["ts"], whole[-1]["ts"])
    assert max(b["ts"] - a["ts"] for a, b in pairwise(few)) < timeline.time_s * 1e6 / 10
    # Whole pieces where they fit: 60 transfers of each of 4 pieces.
    some = [event for event in events(timeline, 250) if event["ph"] == "X"]
    assert {piece: sum(e["args"]["piece"] == piece for e in some) for piece in (0, 3, 6, 9)} == dict.fromkeys(
        (0, 3, 6, 9), 60
    )
    assert len(some) == 240
    assert all(event in whole for event in some)


def test_rows_of_a_trace_are_sorted_by_number() -> None:
    timeline = bs.simulate(built("ring", full(12), "allreduce"), 10**6)
    names = [event for event in events(timeline) if event["name"] in ("process_name", "thread_name")]
    owners = [event["args"]["name"] for event in names if event["name"] == "process_name"]
    assert owners == [f"gpu{number}" for number in range(12)]
    order = {e["pid"]: e["args"]["sort_index"] for e in events(timeline) if e["name"] == "process_sort_index"}
    assert [order[event["pid"]] for event in names if event["name"] == "process_name"] == list(range(1, 13))


def test_the_path_of_a_run_too_long_to_keep_is_still_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blinksim.timing.simulator.MOST_KEPT", 200)
    timeline = bs.simulate(built("mxnet", full(6), "allreduce"), 10**6, pieces=40)
    legs = timeline.critical_path
    assert "more pieces" in legs[-1].place
    assert sum(leg.time_s for leg in legs) == pytest.approx(timeline.time_s)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["1MiB", "--chunk", "0"], "0"),
        (["1MiB", "--chunk", "1B", "--service", "fifo"], "pieces of each chunk"),
        (["nonsense"], "size"),
        (["1MiB", "--service", "lifo"], "lifo"),
        (["1MiB", "--slots", "2"], "slots"),
        (["1MiB", "--launch", "3"], "unit"),
        (["1MiB", "--trace", "nowhere/run.json"], "folder"),
        (["1MiB", "--plot", "run.gif"], "ends in"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_message(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bs.write_schedule(built("ring", full(4), "allreduce"), "s.json")
    assert run(["simulate", "s.json", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("blinksim: ")
    assert message.count("\n") == 1
    assert says in message


def test_the_command_line(tmp_path: Path) -> None:
    schedule, trace, plot = (str(tmp_path / name) for name in ("s.json", "t.json", "p.png"))
    bs.write_schedule(built("ring", full(4), "allreduce"), schedule)
    runner = CliRunner()
    done = runner.invoke(cli, ["simulate", schedule, "1MiB", "--json", "--trace", trace, "--plot", plot])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert {"time_s", "algbw_GBps", "busbw_GBps", "utilisation", "critical_path", "size_bytes"} <= answer.keys()
    assert answer["algbw_GBps"] == pytest.approx(2**20 / answer["time_s"] / 1e9)
    assert answer["busbw_GBps"] == pytest.approx(answer["algbw_GBps"] * 1.5)
    assert json.loads(Path(trace).read_text())["traceEvents"]
    assert Path(plot).stat().st_size > 1000
    files = runner.invoke(cli, ["simulate", schedule, "1MiB", "--trace", trace, "--plot", plot, "--force"]).stdout
    assert files.endswith(f"written: {trace}\nnext: blinksim verify {schedule}\ndrawn: {plot}\n")
    again = runner.invoke(cli, ["simulate", schedule, "1MiB", "--trace", trace])
    assert again.exit_code != 0
    text = runner.invoke(cli, ["simulate", schedule, "1MiB", "--chunk", "64KiB", "--service", "static"]).stdout
    assert "what the time consists of" in text
    assert "2 pieces a chunk, up to 65.5 kB" in text


def test_another_machine_changes_the_time() -> None:
    schedule = built("ring", full(4), "allreduce")
    slower = schedule.topology.edit("degrade gpu0-gpu1 bandwidth=5GB/s")
    moved = rebase(schedule, slower)
    assert isinstance(moved, Schedule)
    assert bs.simulate(moved, 10**8).time_s > 1.3 * bs.simulate(schedule, 10**8).time_s
    assert COPY in moved.op
