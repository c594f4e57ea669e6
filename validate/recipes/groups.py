"""Groups that share a machine, lane by lane on two GPUs or more: each alone, all at once, and what bounds say of both.

    PYTHONPATH=. python3 validate/recipes/groups.py --gpus 2 --out results

Every lane of a link is one thread block of a given rate, so that a port of these GPUs is wider than all lanes of the
devices on it. Each device is one rank of the run; neighbours share a GPU. Schedules need no solver beside SciPy. Where
there is no GPU, --executor numpy carries out the same programs and checks the data; it takes no times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import blinksim as bs
from blinksim.gpu.execution.task import RunKeywords
from blinksim.machines import mesh_groups
from validate.recipes.arguments import arguments, script
from validate.recipes.notes import Notebook, provenance

MIB = 1 << 20
# GB/s of a lane: four devices with seven lanes each take 140 of the 450 of a port of H100 or H200.
LANE = 5
# Threads of a block: with so few, a GPU has room for the blocks of four devices.
THREADS = 128
PAIRS, QUADS = ["0,1", "2,3", "4,5", "6,7"], ["0-3", "4-7"]
CASES = {
    "tenants of half a DGX-1V": ("dgx1-v100", "nvlink", ("without gpu[4-7]",), ["0,1", "2,3"]),
    "halves of a DGX-1V": ("dgx1-v100", "nvlink", (), QUADS),
    "a mesh of 2x4 on a DGX-1V": ("dgx1-v100", "nvlink", (), mesh_groups("2x4", 8)),
    "pairs of an MI355X board": ("mi355x", "xgmi", (), PAIRS),
    "quads of an MI355X board": ("mi355x", "xgmi", (), QUADS),
    "a pair and six idle GPUs of an MI355X board": ("mi355x", "xgmi", (), ["0,1"]),
}


@dataclass(frozen=True)
class Run:
    """Schedules of groups for one size of each, and what to call them. what: the group that is alone, or all."""

    case: str
    relays: str
    what: str
    size: int
    found: bs.Together

    @property
    def keys(self) -> dict[str, Any]:
        return {"case": self.case, "relays": self.relays, "groups": self.what, "size_bytes": self.size}


def runs(sizes: list[int]) -> Iterator[Run]:
    """Every case with and without relays: each group alone where there are several, and all at once."""
    for case, (machine, kind, edits, groups) in CASES.items():
        slow = (*edits, f"replace {kind} bandwidth={LANE}GB/s")
        for relays in ("none", "others"):
            question = bs.Question(machine, edits=slow, relays=relays, relays_reduce=relays != "none")
            for size in sizes:
                for some in [*([[group] for group in groups] if groups[1:] else []), groups]:
                    what = "all" if some == groups else some[0]
                    try:
                        yield Run(case, relays, what, size, bs.together(question, some, size=size))
                    except bs.InfeasibleError as error:
                        print(f"skipped {case}, {what}, relays {relays}: {error}")


def measure(run: Run, gpus: int, executor: str, iterations: int) -> dict[str, Any]:
    """An entry of the results: seconds beside the least ones at this rate of a lane."""
    groups, ranks = run.found.groups, run.found.machine.ranks
    options: RunKeywords = {"lane_blocks": 1, "lane_rate": LANE * 1e9, "warmup": 2, "iterations": iterations}
    options |= {"gpus": [rank * gpus // ranks for rank in range(ranks)], "threads": THREADS, "apart": True}
    chosen: Any = executor
    ran = bs.execute(run.found, run.size * len(groups), executor=chosen, **options)
    least = max(run.size / group.rate for group in groups)
    entry = {"bound_s": float(least), "wrong": ran.wrong, "time_s": ran.time_s, "times_s": list(ran.times_s)}
    return run.keys | entry | {"lane_GBps": LANE, "simulated_s": bs.simulate(run.found, run.size * len(groups)).time_s}


def main() -> None:
    parser = arguments(__doc__, 2, 300)
    parser.add_argument("--executor", choices=("cupy", "numpy"), default="cupy")
    parser.add_argument("--sizes", default="16MiB,64MiB", help="of each group")
    parser.add_argument("--only", default="", help="run only cases with this in their name")
    parser.add_argument("--iterations", type=int, default=8)
    given = parser.parse_args()
    command = f"python3 validate/recipes/groups.py --gpus {given.gpus} --budget {given.budget:g}"
    source = provenance(given.gpus, command) if given.executor == "cupy" else {"command": command}
    notes = Notebook(given.out / f"groups-{given.gpus}gpu.json", source, resume=True)
    notes.deadline = time.monotonic() + given.budget
    wrong = 0
    for run in runs(bs.units.parse_sizes(given.sizes)):
        if given.only not in run.case or notes.has("runs", **run.keys):
            continue
        if notes.out_of_time:
            print("out of time; run again to go on")
            break
        entry = measure(run, given.gpus, given.executor, given.iterations)
        notes.add("runs", entry)
        wrong += entry["wrong"]
        took = (
            f"{entry['time_s'] * 1e3:>8.2f} ms, {entry['time_s'] / entry['bound_s']:.2f}" if entry["time_s"] else "- ms"
        )
        print(
            f"{run.case:<44} relays {run.relays:<7}{run.what:<10}{run.size // MIB:>4} MiB  bound "
            f"{entry['bound_s'] * 1e3:>7.2f} ms  simulated {entry['simulated_s'] * 1e3:>7.2f} ms  took {took}"
            f"{'  WRONG' * bool(entry['wrong'])}",
            flush=True,
        )
    print(f"{wrong} wrong elements")


if __name__ == "__main__":
    script(main, __file__)
