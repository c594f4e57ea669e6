"""Two tenants that send through each other's GPUs, lane by lane: by the command line, and in a job of PyTorch.

    PYTHONPATH=. python3 validate/recipes/group_jobs.py --gpus 4 --out results

Four GPUs stand in for half a DGX-1V: every NVLink lane is one thread block. GPUs 0 and 1 have one lane between them, 2
and 3 two; with relays both pairs have 2.5 at once. First `blinksim synth` writes the schedules and `blinksim run` runs
them; then four processes run them with `blinksim.torch.new_groups`: both pairs at once, and each by itself, while the
processes of the other one call nothing and relay all the same. Sums are of whole numbers, so that they are exact.
`--device cpu` tries all of it where there is no GPU, and takes no times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from validate.recipes.arguments import arguments, script

MACHINE = ["dgx1-v100", "--edit", "without gpu[4-7]"]
RELAYS = {"none": [], "others": ["--relays", "others", "--relays-reduce"]}
PAIRS = ["0,1", "2,3"]
LANE = 25e9  # bytes/s of a lane of the machine, which these GPUs exceed
RANKS = 4


def blinksim(*words: str) -> dict[str, Any]:
    """What a command answers in JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "blinksim", *words, "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1):
        sys.exit(f"blinksim {' '.join(words)}: exit status {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def written(folder: Path) -> dict[str, dict[str, Any]]:
    """What synth says of both pairs, without and with relays; their schedules go into the folder, each verified."""
    groups = [word for pair in PAIRS for word in ("--group", f"{pair}:allreduce:64MiB")]
    found = {}
    for name, relays in RELAYS.items():
        file = str(folder / f"{name}.json")
        found[name] = blinksim("synth", *MACHINE, *groups, *relays, "-o", file)
        assert blinksim("verify", file)["ok"]
    return found


def run_commands(given: Namespace, folder: Path, found: dict[str, dict[str, Any]], notes: Any) -> int:
    """Both pairs in one launch, by `blinksim run`; returns the number of wrong elements."""
    how = ["--executor", "cupy", "--iterations", str(given.iterations)]
    how, wrong = how if given.device == "cuda" else ["--executor", "numpy"], 0
    for size in given.sizes:
        for name, answer in found.items():
            ran = blinksim("run", str(folder / f"{name}.json"), str(2 * size), "--lane-blocks", "1", *how)
            wrong += ran["wrong"]
            row = {"relays": name, "groups": "all", "size_bytes": size, "wrong": ran["wrong"], "time_s": ran["time_s"]}
            note(notes, "commands", row, min(row["algbw_GBps"] for row in answer["rows"]))
    return wrong


def note(notes: Any, part: str, row: dict[str, Any], rate: float) -> None:
    """Keeps a row, with how many lanes each pair has by the bound, and what a lane then carried."""
    lanes = rate * 1e9 / LANE
    carried = row["time_s"] and row["size_bytes"] / row["time_s"] / lanes / 1e9
    entry = row | {"lanes": lanes, "lane_GBps": carried}
    notes.add(part, entry)
    took = f"{row['time_s'] * 1e3:8.3f} ms, {carried:5.1f} GB/s a lane" if carried else "- ms"
    print(
        f"{part:<9} relays {row['relays']:<7} {row['groups']:<4} {row['size_bytes'] >> 10:>7} KiB  {lanes:4.1f} lanes  "
        f"{took}{'  WRONG' * bool(row['wrong'])}",
        flush=True,
    )


def rank_work(given: Namespace, rank: int, folder: Path) -> list[dict[str, Any]]:
    """One process of the job: its own pair's calls, checked and timed."""
    import torch
    import torch.distributed as dist

    import blinksim.torch as backend

    cuda, rows = given.device == "cuda", list[dict[str, Any]]()
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(rank)
    store = dist.FileStore(str(folder / "store"), RANKS)
    # Processes meet on the CPU: nobody's GPU waits for another pair.
    dist.init_process_group("cpu:gloo,cuda:blinksim" if cuda else "cpu:gloo", store=store, rank=rank, world_size=RANKS)
    for name in RELAYS:
        groups = backend.new_groups(folder / f"{name}.json", device=device, lane_blocks=1 if cuda else None)
        pair = groups[rank // 2]
        for size in given.sizes:
            values = torch.arange(size // 4, dtype=torch.float32, device=device) % 251
            expected, data = 2 * values + 4 * (rank // 2) + 1, torch.empty_like(values)
            for active in ("all", *PAIRS):
                dist.all_reduce(torch.zeros(1))
                if active not in ("all", PAIRS[rank // 2]):
                    dist.all_reduce(torch.zeros(1))
                    continue
                torch.add(values, rank, out=data)
                dist.all_reduce(data, group=pair)
                wrong, elapsed = int((data != expected).sum()), None
                if cuda:
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    data.zero_()
                    begin.record()
                    for _ in range(given.iterations):
                        dist.all_reduce(data, group=pair)
                    end.record()
                    end.synchronize()
                    elapsed = begin.elapsed_time(end) / 1e3 / given.iterations
                key = {"relays": name, "groups": active, "size_bytes": size}
                rows.append(key | {"pair": rank // 2, "wrong": wrong, "time_s": elapsed})
                dist.all_reduce(torch.zeros(1))
    dist.destroy_process_group()
    return rows


def run_job(given: Namespace, folder: Path, found: dict[str, dict[str, Any]], notes: Any) -> int:
    """The same by `blinksim.torch`; returns the number of wrong elements."""
    if given.device == "cuda":
        from blinksim.gpu.jobs.backend import compile_ahead

        begin = time.monotonic()
        print(f"{compile_ahead()} kernels compiled in {time.monotonic() - begin:.1f} s", flush=True)
    sizes = ",".join(map(str, given.sizes))
    words = ["--sizes", sizes, "--device", given.device, "--iterations", str(given.iterations), "--folder", str(folder)]
    environment = {"BLINKSIM_TIMEOUT": "60", **os.environ}
    started = [
        subprocess.Popen([sys.executable, __file__, *words, "--rank", str(rank)], env=environment)
        for rank in range(RANKS)
    ]
    if failed := [rank for rank, process in enumerate(started) if process.wait(timeout=400)]:
        sys.exit(f"ranks {failed} failed")
    rows = [row for rank in range(RANKS) for row in json.loads((folder / f"rank{rank}.json").read_text())]
    keys = dict.fromkeys((row["relays"], row["groups"], row["size_bytes"]) for row in rows)
    for relays, active, size in keys:
        alike = [row for row in rows if (row["relays"], row["groups"], row["size_bytes"]) == (relays, active, size)]
        row = {"relays": relays, "groups": active, "size_bytes": size, "wrong": sum(one["wrong"] for one in alike)}
        row["time_s"] = max(one["time_s"] for one in alike) if given.device == "cuda" else None
        # The schedules are those for both at once, also where one is alone.
        own = [
            one["algbw_GBps"] for pair, one in zip(PAIRS, found[relays]["rows"], strict=True) if active in ("all", pair)
        ]
        note(notes, "job", row, min(own))
    return sum(row["wrong"] for row in rows)


def main() -> None:
    from blinksim.units import parse_sizes

    parser = arguments(__doc__, RANKS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sizes", default="1MiB,16MiB,64MiB", help="of each pair")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--rank", type=int, help="be a process of the job, with the files in --folder")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    given.sizes = parse_sizes(given.sizes)
    if given.rank is not None:
        rows = rank_work(given, given.rank, given.folder)
        (given.folder / f"rank{given.rank}.json").write_text(json.dumps(rows))
        return
    from validate.recipes.notes import Notebook, provenance

    given.out.mkdir(parents=True, exist_ok=True)
    command = "python3 validate/recipes/group_jobs.py --gpus 4"
    source = provenance(RANKS, command) if given.device == "cuda" else {"command": command}
    notes = Notebook(given.out / f"group-jobs-{RANKS}gpu.json", source)
    with tempfile.TemporaryDirectory() as folder:
        found = written(Path(folder))
        wrong = run_commands(given, Path(folder), found, notes) + run_job(given, Path(folder), found, notes)
    print(f"{wrong} wrong elements")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    script(main, __file__)
