"""Work on a real dask cluster of two worker processes: the same answers as here, whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import blinksim as bs
from blinksim.answers import worker_pool
from blinksim.answers.place import place
from blinksim.answers.sweep import sweep
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.errors import InputError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::pytest.PytestWarning"),
]
RING4 = "ring:4@25GB/s"
THREE = bs.Traffic([[0, 9, 1], [2, 0, 7], [4, 3, 0]])
SKEWED = Collective("alltoallv", traffic=THREE)
EIGHT = Collective("alltoallv", traffic=bs.expert_traffic(8, tokens=64, experts_per_rank=2, skew=0.8, seed=3))


def _started(n_workers: int = 2) -> Any:
    distributed = pytest.importorskip("distributed")
    return distributed.LocalCluster(
        n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers, each with a nanny that starts it anew when it dies."""
    dask = pytest.importorskip("dask")
    # First, as it adds its settings to dask's: what is set before would take them away again at its end.
    pytest.importorskip("distributed")
    # Who asks a killed worker for a result need not wait for as long as over a slow network.
    with dask.config.set({"distributed.comm.timeouts.connect": "3s"}), _started() as found:
        yield found


def _killer(address: str, at: int) -> tuple[Callable[..., None], list[int]]:
    """A report that kills a worker at its work, once it is called for the `at`-th time, and the pids that it killed.

    Where all work is done by then, a worker dies with what it has found and nobody has fetched.
    """
    distributed = pytest.importorskip("distributed")
    killed: list[int] = []
    calls = []

    def report(*_: object) -> None:
        calls.append(1)
        if killed or len(calls) < at:
            return
        with distributed.Client(address, set_as_default=False) as client:
            busy = [worker for worker, keys in client.processing().items() if keys]
            pids = client.run(os.getpid)
            killed.append(pids[(busy or list(pids))[0]])
        os.kill(killed[0], signal.SIGKILL)

    return report, killed


def test_a_killed_worker_loses_no_point_of_a_sweep(cluster: Any, tmp_path: Path) -> None:
    vary = {"edit": ["none", *(f"degrade gpu{i}-gpu{i + 4} lanes=1" for i in range(4))], "links": ["nvlink", "all"]}
    sizes = ["1MiB", "64MiB"]
    here = sweep("dgx1-v100", EIGHT, sizes, vary, algorithms=["packed", "direct"], bounds=True)
    report, killed = _killer(cluster.scheduler_address, 3)
    there = sweep(
        "dgx1-v100",
        EIGHT,
        sizes,
        vary,
        algorithms=["packed", "direct"],
        bounds=True,
        cluster=cluster.scheduler_address,
        journal=tmp_path / "journal",
        report=report,
    )
    assert len(killed) == 1
    assert not there.failed
    assert there.rows() == here.rows()
    assert len((tmp_path / "journal").read_text().splitlines()) == 2 * 5 * 3


@pytest.mark.parametrize("collective", [Collective("allreduce"), SKEWED], ids=str)
def test_a_killed_worker_loses_no_choice(cluster: Any, collective: Collective) -> None:
    machine = bs.load("dgx1-v100")
    report, killed = _killer(cluster.scheduler_address, 2)
    found = place(machine, 3, collective, cluster=cluster.scheduler_address, report=report)
    assert len(killed) == 1
    assert found.rows() == place(machine, 3, collective).rows()


def test_work_that_kills_every_worker_has_no_answer_and_the_rest_has(cluster: Any) -> None:
    items = ["1 + 1", "__import__('os')._exit(1)", "2 + 2"]
    found = dict(worker_pool.finished(eval, items, cluster=cluster.scheduler_address))
    assert found == {"1 + 1": 2, items[1]: None, "2 + 2": 4}


def test_a_result_that_kills_all_who_work_it_out_again_is_no_answer(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may die between its result and the fetch, and so may those that do its work again."""
    distributed = pytest.importorskip("distributed")

    def lost(self: Any) -> None:
        raise distributed.KilledWorker("work", None, 3)

    monkeypatch.setattr(distributed.Future, "result", lost)
    assert dict(worker_pool.finished(eval, ["1 + 1"], cluster=cluster.scheduler_address)) == {"1 + 1": None}


def test_what_workers_cannot_do_is_no_death(cluster: Any) -> None:
    with pytest.raises(
        InputError, match=r"cannot do this work .NameError: name 'absent' is not defined.*the same files"
    ):
        list(worker_pool.finished(eval, ["absent"], cluster=cluster.scheduler_address))


def test_the_commands_answer_as_they_do_here(cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = str(tmp_path / "t.csv")
    bs.write_traffic(THREE, matrix)
    commands = (
        ["sweep", RING4, "allreduce", "--sizes", "1MiB", "--vary", "members=0-3;0,1;0,2", "--bounds", "--json"],
        ["sweep", RING4, "alltoallv", "--traffic", matrix, "--sizes", "1MiB", "--vary", "members=0-2;0,1", "--json"],
        ["place", "dgx1-v100", "3", "--collective", "alltoallv", "--traffic", matrix, "--json"],
    )
    for command in commands:
        assert run(command) == 0
        here = json.loads(capsys.readouterr().out)
        assert run([*command, "--cluster", cluster.scheduler_address]) == 0
        assert json.loads(capsys.readouterr().out) == here


def test_the_table_of_subsets_is_made_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compares its counts with published ones itself."""
    script = Path(__file__).parents[2] / "benchmarks" / "bench_subsets.py"
    monkeypatch.setenv("PYTHONPATH", f"{script.parent}{os.pathsep}{script.parents[1]}")
    with _started() as two:
        line = [sys.executable, str(script), "--machine", "dgx1-p100", "--method", "rings"]
        done = subprocess.run([*line, "--cluster", two.scheduler_address], capture_output=True, text=True, check=False)
        here = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].partition(" none")[0] == here.stdout.splitlines()[1].partition(" none")[0]


def test_a_scheduler_without_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "PATIENCE_S", 1)
    with _started(n_workers=0) as empty, pytest.raises(InputError, match=r"has no workers; start some with `dask"):
        place("dgx1-v100", 3, cluster=empty.scheduler_address)


def test_a_cluster_that_lost_all_workers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "ALONE_S", 2)
    with _started() as small:
        work = worker_pool.finished(eval, ["1 + 1", "__import__('time').sleep(60)"], cluster=small.scheduler_address)
        assert next(work) == ("1 + 1", 2)
        for worker in small.workers.values():
            small.sync(worker.close, timeout=1, reason="tested")
        with pytest.raises(InputError, match=r"all workers at .* are gone; start some with `dask worker"):
            next(work)


def test_a_scheduler_that_goes_away_costs_one_line_and_no_finished_work(tmp_path: Path) -> None:
    small = _started()
    journal = tmp_path / "journal"
    edits = {"edit": [f"replace gpu0-gpu4 bandwidth={10 + i}GB/s" for i in range(9)]}

    def stop(done: int, total: int) -> None:
        if done == 2:
            small.close()

    with pytest.raises(InputError, match=r"the scheduler at .* is gone"):
        sweep("dgx1-v100", EIGHT, ["1MiB"], edits, cluster=small.scheduler_address, journal=journal, report=stop)
    again = sweep("dgx1-v100", EIGHT, ["1MiB"], edits, journal=journal)
    # What the workers finished meanwhile may count too.
    assert 2 <= again.resumed < 9
    assert not again.failed
