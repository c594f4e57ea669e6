"""Groups that share a machine, and tokens of experts, lane by lane on two GPUs or more, beside their bounds.

Each group runs alone and all at once; tokens go to the experts of two nodes and back (dispatch and combine).

    PYTHONPATH=. python3 validate/recipes/groups.py --gpus 2 --out results

Every lane of a link is one thread block of a given rate, so that a port of these GPUs is wider than all lanes of the
devices on it. Each device is one rank of the run; neighbours share a GPU. Schedules need no solver beside SciPy. Where
there is no GPU, --executor numpy carries out the same programs and checks the data; it takes no times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import blinksim as bs
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
# Two nodes, the quads of a DGX-1V or pairs of them, with a lane from each GPU to its like; and experts a token.
NODES = {"0,3,4,7": 8, "0-7": 2}
RAILS = ("degrade gpu0-gpu4 lanes=1", "degrade gpu1-gpu5 lanes=1", f"replace nvlink bandwidth={LANE}GB/s")


@dataclass(frozen=True)
class Run:
    """A schedule, bytes of a group or of the largest buffer and of what runs, and seconds of the bound.

    what: the group that is alone, or all.
    """

    case: str
    relays: str
    what: str
    size: int
    found: bs.Together | bs.Schedule
    total: int
    least: float

    @property
    def keys(self) -> dict[str, Any]:
        return {"case": self.case, "relays": self.relays, "groups": self.what, "size_bytes": self.size}


def runs(sizes: list[int]) -> Iterator[Run]:
    """Every case with and without relays: each group alone where there are several, and all at once; then experts.

    A rank has as many tokens of 14 KiB as 16 KiB fit into a size.
    """
    for case, (machine, kind, edits, groups) in CASES.items():
        slow = (*edits, f"replace {kind} bandwidth={LANE}GB/s")
        for relays in ("none", "others"):
            question = bs.Question(machine, edits=slow, relays=relays, relays_reduce=relays != "none")
            for size in sizes:
                for some in [*([[group] for group in groups] if groups[1:] else []), groups]:
                    what = "all" if some == groups else some[0]
                    try:
                        found = bs.together(question, some, size=size)
                    except bs.InfeasibleError as error:
                        print(f"skipped {case}, {what}, relays {relays}: {error}")
                        continue
                    least = float(max(size / group.rate for group in found.groups))
                    yield Run(case, relays, what, size, found, size * len(some), least)
    for members, top in NODES.items():
        part = bs.Question("dgx1-v100", members=members, edits=RAILS).part()
        half = part.ranks // 2
        devices = tuple(replace(device, node=place // half) for place, device in enumerate(part.devices))
        nodes = replace(part, devices=devices)
        for size in sizes:
            routing = bs.draw_routing(
                part.ranks, tokens=max(1, size >> 14), experts=8 * part.ranks, top_k=top, ranks_per_node=half
            )
            for name in ("dispatch", "combine"):
                tokens = bs.Collective(name, routing=routing)
                least = float(bs.bound(nodes, tokens).time(routing.size))
                schedule = bs.synthesize(nodes, tokens, algorithm="packed").schedule
                yield Run(f"{name}, two nodes of {half}", "none", "all", routing.size, schedule, routing.size, least)


def measure(run: Run, gpus: int, executor: str, iterations: int) -> dict[str, Any]:
    """An entry of the results: seconds beside the least ones at this rate of a lane."""
    found = run.found
    ranks = (found.topology if isinstance(found, bs.Schedule) else found.machine).ranks
    options: dict[str, Any] = {"lane_blocks": 1, "lane_rate": LANE * 1e9, "warmup": 2, "iterations": iterations}
    options |= {"gpus": [rank * gpus // ranks for rank in range(ranks)], "threads": THREADS, "apart": True}
    chosen: Any = executor
    ran = bs.execute(run.found, run.total, executor=chosen, **options)
    entry = {"bound_s": run.least, "wrong": ran.wrong, "time_s": ran.time_s, "times_s": list(ran.times_s)}
    return run.keys | entry | {"lane_GBps": LANE, "simulated_s": bs.simulate(run.found, run.total).time_s}


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
