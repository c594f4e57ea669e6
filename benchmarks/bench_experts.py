"""Dispatch and combine: seconds of the bound, and how near schedules come to the floor, written out and verified.

    python benchmarks/bench_experts.py [--runs N] [--routings 20]

Routings are drawn for 2 to 64 nodes of H100 and MI300X and 2 to 8 of GB200 NVL72, with skew up to 5, hot experts and
limits of nodes.
"""

from __future__ import annotations

import argparse
import random
import statistics
from time import process_time
from typing import Any

import blinksim as bs

MACHINES = {"hgx-h100": 8, "mi300x": 8, "gb200-nvl72": 72}
# Tokens of all ranks together: schedules of some hundred thousand sends.
TOKENS = 2**15


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
    chosen, parts, seconds = random.Random(1), dict[str, list[tuple[float, float]]](), list[float]()
    for number in range(count):
        name = chosen.choice(list(MACHINES))
        nodes = chosen.choice((2, 4, 8) if name == "gb200-nvl72" else (2, 3, 4, 8, 16, 32, 64))
        each, skew = MACHINES[name], chosen.choice((0.0, 0.5, 1.0, 2.0, 5.0))
        experts, tokens = nodes * each * chosen.choice((1, 2, 4)), min(256, TOKENS // (nodes * each))
        settings: dict[str, Any] = {
            "tokens": tokens,
            "experts": experts,
            "top_k": min(8, experts),
            "skew": skew,
            "seed": number,
        }
        settings |= {"hot": chosen.choice((0.0, 0.5)), "ranks_per_node": each}
        if chosen.random() < 0.3 and nodes >= 4:
            settings |= {"node_limit": 4}
        machine = bs.load(name, nodes=nodes).selected()
        routing = bs.draw_routing(machine.ranks, **settings)
        wanted, start = bs.Collective(chosen.choice(("dispatch", "combine")), routing=routing), process_time()
        aligned, made = bs.synthesize(machine, wanted, "rail_aligned"), bs.synthesize(machine, wanted)
        assert aligned.verdict.ok
        assert made.verdict.ok
        seconds.append(process_time() - start)
        parts.setdefault(f"skew {skew:g}", []).append((1 - float(aligned.gap), 1 - float(made.gap)))
    heading = "routings  within 5 %  least  median  with a copy a node over the sender's rail"
    print(f"\n{'':10} {heading}   (rate of the schedule over the bound)")
    for what, found in [*sorted(parts.items()), ("all", [one for own in parts.values() for one in own])]:
        plain, packed = zip(*found, strict=True)
        within, before = (sum(part >= 0.95 for part in some) for some in (packed, plain))
        print(
            f"{what:10} {len(found):8}  {within:10}  {min(packed):5.3f}  {statistics.median(packed):6.3f}  "
            f"{before} within 5 %, least {min(plain):.3f}"
        )
    print(f"built and verified in {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s, for both")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=1)
    options.add_argument("--routings", type=int, default=20)
    given = options.parse_args()
    timed(given.runs)
    near(given.routings)
