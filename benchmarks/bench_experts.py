"""Dispatch and combine: seconds of the bound, and how near the way of libraries comes to the floor.

    python benchmarks/bench_experts.py [--runs N] [--routings 20]

Routings are drawn for 2 to 64 nodes of H100 and MI300X and 2 to 8 of GB200 NVL72, with skew up to 5, hot experts and
limits of nodes.
"""

from __future__ import annotations

import argparse
import random
import statistics
from time import process_time

import blinksim as bs

MACHINES = {"hgx-h100": 8, "mi300x": 8, "gb200-nvl72": 72}


def timed(runs: int) -> None:
    for nodes, experts in ((8, 256), (64, 512)) * runs:
        start = process_time()
        machine = bs.load("hgx-h100", nodes=nodes).selected()
        routing = bs.draw_routing(machine.ranks, tokens=4096, experts=experts)
        drawn = process_time()
        bs.bound(machine, bs.Collective("dispatch", routing=routing))
        seconds = f"drawn in {drawn - start:.2f} s, bound in {process_time() - drawn:.2f} s"
        print(f"{nodes} nodes, 4,096 tokens a rank: {seconds}")


def near(count: int) -> None:
    chosen, parts = random.Random(1), dict[str, list[float]]()
    for number in range(count):
        name = chosen.choice(list(MACHINES))
        nodes = chosen.choice((2, 4, 8) if name == "gb200-nvl72" else (2, 3, 4, 8, 16, 32, 64))
        each, skew = MACHINES[name], chosen.choice((0.0, 0.5, 1.0, 2.0, 5.0))
        experts = nodes * each * chosen.choice((1, 2, 4))
        settings = {"tokens": 256, "experts": experts, "top_k": min(8, experts), "skew": skew, "seed": number}
        settings |= {"hot": chosen.choice((0.0, 0.5))}
        if chosen.random() < 0.3 and nodes >= 4:
            settings |= {"node_limit": 4}
        machine = bs.load(name, nodes=nodes).selected()
        found = bs.project_experts(machine, chosen.choice(("dispatch", "combine")), **settings)
        parts.setdefault(f"skew {skew:g}", []).append(found.floor_s / found.time_s)
    print(f"\n{'':10} routings  least  median  within 5 %   (floor over the time of a copy a node)")
    for what, found_parts in sorted(parts.items()):
        within = sum(part >= 0.95 for part in found_parts)
        least, median = min(found_parts), statistics.median(found_parts)
        print(f"{what:10} {len(found_parts):8}  {least:5.3f}  {median:6.3f}  {within:10}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=1)
    options.add_argument("--routings", type=int, default=20)
    given = options.parse_args()
    timed(given.runs)
    near(given.routings)
