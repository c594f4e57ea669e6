"""Groups of eight: the rules, tables and memory that eight GPUs would use, without any."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from ranks import run_ranks, small_group
from test_group import data, expected, run_call

from blinksim.collective import ON_TREES
from blinksim.gpu.jobs.backend import call_source, call_table
from blinksim.gpu.jobs.job_plan import JobPlan, Planner, Rule
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.of_calls import BLOCKS, Call, Segment

sys.path.insert(0, str(Path(__file__).parents[1] / "execution"))

import fake_cupy
from test_call_kernel import Ranks, needs_compiler

RANKS = 8
FLOAT = ELEMENT_TYPES["float32"]
# Every rule for eight ranks: collective, algorithm, protocol.
RULES = [(rule.collective, str(rule.what), rule.protocol) for rule in JobPlan.for_switch(RANKS).rules]


def one_call(collective: str, count: int) -> Call:
    return Call(collective, count, FLOAT, root=5 if collective in ("broadcast", "reduce") else 0)


def test_eight_ranks_follow_more_rules_than_four() -> None:
    four = {(rule.collective, rule.what, rule.protocol) for rule in JobPlan.for_switch(4).rules}
    assert {name for name, _, _ in RULES} == set(ON_TREES)
    assert set(RULES) - four == {("allreduce", "two_shot", "simple")}


@pytest.mark.parametrize("collective", ON_TREES)
def test_tables_of_eight_gpus_fit_the_kernel(collective: str) -> None:
    """With the memory and blocks that a job has by default, 1 KiB to 256 MiB; long ones in rounds of one launch."""
    segment, plan = Segment(), JobPlan.for_switch(RANKS)
    lent = [(1 << 40) + (rank << 33) for rank in range(RANKS)]
    for size in (1 << 10, 1 << 20, 1 << 22, 1 << 24, 1 << 28):
        signatures = set()
        for rank in (0, 5):
            launches = Planner(plan, rank, segment, BLOCKS).launches(one_call(collective, size // 4))
            signatures.add(tuple(launch.signature for launch in launches))
            for launch in launches:
                table = call_table(launch, rank, lent, (1 << 35, 1 << 36), segment)
                assert 0 < table[0] * table[1] <= BLOCKS
            assert len(launches) == 1
            assert (launches[0].rounds > 1) == (size == 1 << 28)
        assert len(signatures) == 1


@pytest.mark.slow
def test_eight_processes_run_every_rule(tmp_path: Path) -> None:
    """By the NumPy interpreter, in one launch and in several."""

    def work(rank: int, folder: Path) -> list[str]:
        group, wrong = small_group(rank, RANKS, folder, timeout_s=60.0), []
        for collective, algorithm, protocol in RULES:
            rule = Rule(collective, None, algorithm, protocol)
            group.choose_by(JobPlan.for_switch(RANKS).with_rules([rule], "one rule"))
            for count in (8, 8008, 72_000):
                call = one_call(collective, count)
                if not np.array_equal(run_call(group, call), expected(call, rank, RANKS)):
                    wrong.append(f"{call} by {algorithm}, {protocol}")
        group.close()
        return wrong

    assert run_ranks(work, RANKS, tmp_path) == [[]] * RANKS


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["simple", "ll128"])
def test_the_kernel_runs_every_rule_on_eight_ranks(protocol: str, tmp_path: Path) -> None:
    """calls.cu, built for the CPU: a thread for every block of every rank."""
    library = fake_cupy.build(call_source(FLOAT, "sum", protocol == "ll128"), tmp_path)
    for collective, algorithm, of_rule in RULES:
        if of_rule != protocol:
            continue
        rule = Rule(collective, None, algorithm, protocol)
        plan = JobPlan.for_switch(RANKS).with_rules([rule], "one rule")
        # As many blocks as its queues need.
        ranks = Ranks(library, plan, protocol == "ll128", Segment.of(2 << 20), blocks=16, count=RANKS)
        for count in (24, 40_008):
            call, part = one_call(collective, count), count // RANKS
            given = part if collective == "allgather" else count
            sources = [data(call, rank, given) for rank in range(RANKS)]
            targets = sources
            if call.parts(RANKS) > 1:
                got = part if collective == "reducescatter" else count
                targets = [np.zeros(got, dtype=np.float32) for _ in range(RANKS)]
            ranks.run([call] * RANKS, sources, targets, timeout_s=120.0)
            for rank in range(RANKS):
                assert np.array_equal(targets[rank], expected(call, rank, RANKS)), (
                    call,
                    algorithm,
                    ranks.explain(rank),
                )
