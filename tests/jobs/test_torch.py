"""blinksim.torch on CPU tensors, where PyTorch is installed: every form of call, DDP, a killed rank."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blinksim.errors import InputError

SCRIPT = Path(__file__).with_name("torch_ranks.py")
RANKS = 3
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch: pip install torch")


def run(case: str, folder: Path, ranks: int = RANKS) -> list[tuple[int, dict[str, Any], str]]:
    """(exit status, what it printed, its messages) of every rank."""
    environment = {
        **os.environ,
        "BLINKSIM_BUFFER": "4MiB",
        "BLINKSIM_TIMEOUT": "2",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), case, str(rank), str(ranks), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(ranks)
    ]
    found = []
    for process in processes:
        out, messages = process.communicate(timeout=120)
        found.append((process.returncode, json.loads(out) if out else {}, messages))
    return found


@needs_torch
@pytest.mark.slow
def test_every_form_of_call(tmp_path: Path) -> None:
    ranks = run("collectives", tmp_path)
    for status, good, messages in ranks:
        assert status == 0, messages
        assert [name for name, fine in good.items() if not fine] == []
    # What is in force, said once.
    log = ranks[0][2]
    assert log.count("blinksim: group of 3 ranks by built-in rules, ") == 1
    assert log.count("blinksim: allreduce of 1000 float32, sum (4 kB): two_shot by ll128, 1 launch of ") == 1
    assert "blinksim: allreduce" not in ranks[1][2]


@needs_torch
@pytest.mark.slow
def test_what_frameworks_ask_for(tmp_path: Path) -> None:
    for status, good, messages in run("forms", tmp_path):
        assert status == 0, messages
        assert [name for name, fine in good.items() if not fine] == []


@needs_torch
@pytest.mark.slow
def test_a_compiled_step_is_that_of_one_that_is_not(tmp_path: Path) -> None:
    for status, found, messages in run("compiled", tmp_path):
        assert status == 0, messages
        assert found["difference"] < 1e-6


@needs_torch
@pytest.mark.slow
def test_ranks_on_several_hosts_go_to_the_library_that_torch_has(tmp_path: Path) -> None:
    ranks = run("several_hosts", tmp_path)
    for status, good, messages in ranks:
        assert status == 0, messages
        assert [name for name, fine in good.items() if not fine] == []
    # Schedules run inside a host, and nowhere else.
    assert "blinksim: group of" not in ranks[0][2]


@needs_torch
@pytest.mark.slow
def test_data_parallel_training_does_what_one_process_does(tmp_path: Path) -> None:
    for status, found, messages in run("training", tmp_path):
        assert status == 0, messages
        assert found["difference"] < 1e-12


@needs_torch
@pytest.mark.slow
def test_sharded_training_does_what_one_process_does(tmp_path: Path) -> None:
    for status, found, messages in run("sharded", tmp_path):
        assert status == 0, messages
        assert found["difference"] < 1e-6


@needs_torch
@pytest.mark.slow
def test_rules_come_from_a_model_of_this_machine(tmp_path: Path) -> None:
    ranks = run("predicted", tmp_path)
    for status, found, messages in ranks:
        assert status == 0, messages
        assert found["right"]
    assert "blinksim: group of 3 ranks by the model auto of dgx1-v100" in ranks[0][2]
    assert "broadcast of 300000 float32, root 1 (1.2 MB): " in ranks[0][2]


@needs_torch
@pytest.mark.slow
def test_groups_send_through_ranks_that_are_in_none_of_them(tmp_path: Path) -> None:
    """A relay makes no call; and every process ends, though none destroys its groups."""
    ranks = run("tenants", tmp_path, 4)
    for status, good, messages in ranks:
        assert status == 0, messages
        assert [name for name, fine in good.items() if not fine] == []
        assert "Traceback" not in messages
    log = ranks[0][2]
    assert "group of 2 ranks and 2 relays by the schedule of allreduce of gpu0 gpu1, " in log
    assert "allreduce of 300001 int64, sum (2.29 MiB): packed by simple, " in log
    assert "allgather of 4 float32 (16 B): direct by ll128, " in log


@needs_torch
@pytest.mark.slow
def test_ranks_whose_relay_is_killed_get_an_error(tmp_path: Path) -> None:
    *living, dead = run("tenant_killed", tmp_path, 4)
    assert dead[0] == -9
    for rank, (status, found, messages) in enumerate(living):
        assert status == 0, messages
        assert bool(found["message"]) == (rank < 2), found


@needs_torch
@pytest.mark.slow
def test_the_others_go_on_without_a_killed_rank(tmp_path: Path) -> None:
    *survivors, dead = run("killed", tmp_path)
    assert dead[0] == -9
    for status, found, messages in survivors:
        assert status == 0, messages
        assert "gave up after 2 s" in found["message"] or "has failed" in found["message"]
        assert found["anew"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_torch_one_line_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", "import blinksim.torch"], capture_output=True, text=True, check=False)
    assert "MissingError: blinksim.torch needs PyTorch: pip install 'blinksim[torch]'" in done.stderr


@pytest.mark.slow
@needs_torch
def test_settings_come_from_the_environment() -> None:
    from blinksim.gpu.torch.process_group import Settings

    settings = Settings.read({"BLINKSIM_BUFFER": "64MiB", "BLINKSIM_TIMEOUT": "2.5", "BLINKSIM_BLOCKING": "1"})
    assert 60 << 20 < settings.segment.total <= 64 << 20
    assert (settings.timeout_s, settings.blocking, settings.plan) == (2.5, True, "")
    with pytest.raises(InputError, match="BLINKSIM_TIMEOUT=soon: give a number above 0"):
        Settings.read({"BLINKSIM_TIMEOUT": "soon"})


@needs_torch
def test_memory_is_kept_until_a_stream_waits_for_the_call() -> None:
    import torch

    from blinksim.gpu.torch import process_group

    told: list[str] = []
    events: list[str] = []

    class Tensor:
        def record_stream(self, stream: object) -> None:
            told.append(f"allocator: {stream}")

    class Backend:
        gpu = 0

        def mark(self, stream: int | None = None) -> str:
            return "event" if stream is None else f"event on {stream}"

        def precede(self, event: str, stream: int) -> None:
            told.append(f"{stream} waits for {event}")

        def take_back(self, event: str) -> None:
            events.append(event)

    def queued() -> Any:
        return process_group.QueuedOn(Backend(), "ours", [Tensor()])  # type: ignore[arg-type, list-item, unused-ignore]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_group, "current_stream", lambda gpu: 7)
        handle = process_group.GroupWork([torch.ones(2)], queued(), lambda: None)
        assert isinstance(handle.queued, process_group.QueuedOn)
        assert len(handle.queued.tensors) == 1
        handle.wait()
        assert len(handle.queued.tensors) == 0
        assert events == []
        del handle
        assert told == ["7 waits for event"]
        # Nobody can ask for its event any more.
        assert events == ["event"]
        # One on the stream 7 itself, which need not wait, and one on another.
        for stream in (7, 8):
            ran = process_group.RanOn(Backend(), stream)  # type: ignore[arg-type, unused-ignore]
            process_group.GroupWork([torch.ones(1)], ran, lambda: None).wait()
        assert told == ["7 waits for event", "7 waits for event on 8"]
        told.pop()
        # A call that nobody waits for.
        dropped = queued()
        del dropped
        assert told[1:] == ["allocator: ours"]
