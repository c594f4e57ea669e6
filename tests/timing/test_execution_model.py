"""The execution model: taken where constants were measured, in terms that add up, and refused elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from h200_rates import H200

import blinksim as bs
from blinksim.errors import InfeasibleError, InputError
from blinksim.timing.execution_model import SHORT_OF_PORTS, Auto, Executed
from blinksim.timing.measured_constants import FitError, uncovered

MACHINE = replace(bs.load("hgx-h200", rates="measured"), execution=H200)
EIGHT = MACHINE.select()


@pytest.mark.parametrize("size", [2**10, 2**16, 2**20, 2**24, 2**28])
def test_terms_add_up_and_no_port_is_outrun(size: int) -> None:
    for found in bs.rank(MACHINE, "allreduce", size, algorithms="ring,two_shot,direct,double_binary").projections:
        assert found.model == "execution"
        parts = {term.name: term.time_s for term in found.terms}
        assert list(parts) == ["launch", "steps", "bandwidth of nvlink", "waiting"]
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == pytest.approx(found.time_s)
        assert parts["launch"] == H200.launch_s
        longest = max(parts, key=lambda name: parts[name])
        share = f"{100 * parts[longest] / found.time_s:.0f} % of the time"
        assert found.bottleneck_words.endswith(share)
        assert longest.split()[0] in (found.bottleneck if longest != "bandwidth of nvlink" else "bandwidth")
        assert found.bound is not None
        assert found.algbw < float(found.bound.rate)


@pytest.mark.parametrize(
    ("gpus", "size", "measured_us"),
    [("0-7", 2**10, 13.5), ("0-7", 2**20, 27.1), ("0-7", 2**30, 5132), ("0,1", 2**20, 15)],
)
def test_the_quickest_takes_as_long_as_measured(gpus: str, size: int, measured_us: float) -> None:
    """The least of what the algorithms took on H200 (validate/results), within 10 %."""
    found = bs.project(MACHINE.select(gpus), "allreduce", size, algorithm="best")
    assert found.model == "execution"
    assert found.time_s * 1e6 == pytest.approx(measured_us, rel=0.1)


def test_the_protocol_is_the_quicker_one_unless_it_is_named() -> None:
    schedule = bs.synthesize(EIGHT, "allreduce", "ring").schedule
    for size in (2**16, 2**22, 2**25):
        times = {name: Executed(name).breakdown(schedule, size, 0.0) for name in ("simple", "ll128")}
        quicker = min(times, key=lambda name: sum(term.time_s for term in times[name].terms))
        assert Executed().breakdown(schedule, size, 0.0) == times[quicker]
        assert times["ll128"].details["protocol"] == "ll128"


@pytest.mark.parametrize("name", ["halving_doubling", "ring"])
def test_parts_may_be_empty(name: str) -> None:
    """Fewer elements than ranks: of the chunks that lie at one place of an inbox, only one is sent."""
    schedule = bs.synthesize(EIGHT, "reducescatter", name).schedule
    for protocol in ("ll128", "simple"):
        few, each = (sum(term.time_s for term in Executed(protocol).breakdown(schedule, 4 * elements, 0.0).terms)
                     for elements in (2, 8))  # fmt: skip
        assert H200.launch_s < few <= each


@pytest.mark.parametrize(("size", "quickest_us"), [(2**10, 13.5), (2**20, 27.1)])
def test_the_best_of_successive_programs_takes_what_was_measured(size: int, quickest_us: float) -> None:
    """Within 10 % of what our quickest took on 8 H200 (validate/results)."""
    program = bs.model("execution", calls="successive")
    found = bs.project(bs.load("hgx-h200", rates="measured"), "allreduce", size, algorithm="best", model=program)
    assert found.time_s * 1e6 == pytest.approx(quickest_us, rel=0.1)


def test_calls_one_by_one_are_asked_for_and_said() -> None:
    chain = bs.synthesize(EIGHT, "broadcast", "chain").schedule
    successive, apart = Executed(calls="successive").on(EIGHT), Executed(calls="apart").on(EIGHT)
    found = successive.breakdown(chain, 2**20, 0.0), apart.breakdown(chain, 2**20, 0.0)
    assert [cost.details["calls"] for cost in found] == ["successive", "apart"]
    assert sum(t.time_s for t in found[1].terms) > sum(t.time_s for t in found[0].terms)
    # In Python as on the command line.
    asked = bs.model("execution", calls="apart")
    one = bs.project(MACHINE, "broadcast", 2**20, algorithm="chain", model=asked)
    assert one.time_s == pytest.approx(sum(t.time_s for t in found[1].terms))
    assert one.to_dict()["calls"] == bs.rank(MACHINE, "broadcast", 2**20, asked, "chain").best.details["calls"]
    with pytest.raises(InputError, match="gamma is a setting"):
        bs.project(MACHINE, "broadcast", 2**20, gamma=1e-12, model=asked)
    with pytest.raises(InputError, match="apart"):
        Executed(calls="alone")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ll128"):
        Executed("ll64")  # type: ignore[arg-type]


def test_the_answer_says_what_it_rests_on() -> None:
    machine = replace(MACHINE, execution=replace(H200, error=FitError(0.031, 0.121, 1223)))
    found = bs.project(machine, "allreduce", "1MiB", algorithm="best")
    assert "execution)" in found.text().splitlines()[0]
    facts = dict(found.facts())
    assert facts["constants"] == (
        "measured on 2 to 8 NVIDIA H200, 2026-11-20; half within 3.1 %, nine in ten within 12 % of 1223 times"
    )
    assert "overlap" in facts["calls"]
    assert "33 slices" in facts["executor"]
    answer = found.to_dict()
    assert answer["error_p90"] == 0.121
    assert answer["calls"] == "successive"


def test_elsewhere_links_alone_answer() -> None:
    assert isinstance(Auto().on(EIGHT), Executed)
    quad = bs.load("dgx1-v100").select()
    # At nominal rates the question is what the links allow.
    assert Auto().on(bs.load("hgx-h200").select()).name == "alpha-beta"
    assert bs.project("hgx-h200", "allreduce", "1MiB", model="execution").model == "execution"
    for part, reason in (
        (quad, "nominal rates"),
        (replace(quad, execution=H200), "around a switch"),
        (MACHINE.select("0-5", relays="6,7"), "relays"),
        (replace(MACHINE.replicate(2), execution=H200).select(), "one node"),
        (replace(MACHINE.edit("degrade gpu0-nvswitch lanes=9"), execution=H200).select(), "equal links"),
    ):
        assert Auto().on(part).name == "alpha-beta"
        assert reason in uncovered(part)
        schedule = bs.synthesize(part, "allreduce", "ring").schedule
        with pytest.raises(InfeasibleError, match="take model=alpha-beta"):
            bs.contest(part, "allreduce", [schedule], model="execution")
    # What reducing costs was measured with the rest.
    assert Auto(1e-12).on(EIGHT).name == "alpha-beta"


def test_an_edit_of_the_machine_leaves_its_constants_behind_or_keeps_what_they_need() -> None:
    """Seven GPUs are timed as seven; fewer lanes are not what was measured."""
    assert bs.project(MACHINE.without("gpu7"), "allreduce", "1MiB", algorithm="best").model in (
        "execution",
        "alpha-beta",
    )
    slower = MACHINE.edit("degrade gpu0-nvswitch lanes=9")
    assert bs.project(slower, "allreduce", "1MiB", algorithm="best").model == "alpha-beta"


@pytest.mark.slow
def test_what_could_be_taken_is_a_program_where_constants_of_programs_are_known() -> None:
    """By the model of programs at measured rates; elsewhere on the links, and it says so."""
    found = bs.project("hgx-h200", "allreduce", "1MiB")
    assert isinstance(found, bs.Answer)
    assert found.could is not None
    best = found.could.best
    known = bs.load("hgx-h200", rates="measured")
    program = bs.project(known, "allreduce", "1MiB", algorithm=best.algorithm, model="execution")
    assert best.time_s == pytest.approx(program.time_s, rel=0.05)
    assert "by blinksim.torch in a CUDA graph" in found.text()
    plain = bs.project("ring:8@25GB/s", "allreduce", "1MiB")
    assert isinstance(plain, bs.Answer)
    assert plain.could is not None
    assert plain.could.best.model == "alpha-beta"
    assert "on the links, no launches counted" in plain.text()


# Large sizes, in the steps of other protocols, of one machine each.
ALIKE = {
    "hgx-h100": ("64MiB", "256MiB", "1GiB"),
    "hgx-h200": ("32MiB", "256MiB", "1GiB"),
    "hgx-b200": ("64MiB", "32MiB"),
    "dgx-a100": ("64MiB", "256MiB"),
}


@pytest.mark.parametrize(
    ("machine", "collective", "size"),
    [
        ("hgx-h200", "allreduce", "64KiB"),
        ("hgx-h200", "allreduce", "256KiB"),
        ("hgx-h200", "allreduce", "1MiB"),
        ("hgx-h200", "allreduce", "8MiB"),
        ("hgx-h200", "allgather", "8MiB"),
        ("hgx-h200", "reducescatter", "2MiB"),
        ("hgx-h200", "reduce", "8MiB"),
        ("hgx-h200", "alltoall", "2MiB"),
        ("dgx-a100", "allreduce", "1MiB"),
        *(
            pytest.param(machine, "allreduce", size, marks=[pytest.mark.slow, *[pytest.mark.alike] * (size in alike)])
            for machine, alike in ALIKE.items()
            for size in ("512KiB", "2MiB", "4MiB", "32MiB", "64MiB", "256MiB", "1GiB")
        ),
    ],
)
def test_no_schedule_takes_less_than_could_take(machine: str, collective: str, size: str) -> None:
    found = bs.project(machine, collective, size)
    assert isinstance(found, bs.Answer)
    could = found.could
    every = bs.rank(bs.Question(machine, rates="measured"), collective, size, "execution", "all")
    assert could is not None
    assert could.best.model == "execution"
    # Where a port leaves less to win, the others are not simulated.
    assert could.best.time_s <= min(found.time_s for found in every.projections) / SHORT_OF_PORTS
