"""All groups of 2-D meshes of 8 and 16 GPUs at once: rates alone and together, gap, verified schedules, CPU seconds.

    python benchmarks/bench_together.py [--relays none,all] [--machines full:8@50GB/s,dgx1-v100]

Each mesh asks for the groups of one axis and of both. Aims: a gap of 0 and 1 s each. What the budget of time refuses is
listed with its reason.
"""

from __future__ import annotations

import argparse
import time

import blinksim as bs
from blinksim.machines import mesh_groups

MACHINES = {
    "full:8@50GB/s": 1,
    "hypercube:3@50GB/s": 1,
    "dgx1-v100": 1,
    "mi355x": 1,
    "hgx-h100": 1,
    "full:16@50GB/s": 1,
    "hypercube:4@50GB/s": 1,
    "2 x hgx-h100": 2,
}
RELAYS = ("none", "idle", "all")


def meshes(ranks: int) -> list[tuple[str, int | None]]:
    """The shapes of two axes, with the axis whose groups are asked for, or None for both."""
    sides = [side for side in range(2, ranks) if ranks % side == 0]
    return [(f"{side}x{ranks // side}", axis) for side in sides for axis in (0, 1, None)]


def row(name: str, relays: str, shape: str, axis: int | None) -> tuple[str, float]:
    """A line of the table, and CPU seconds."""
    nodes = MACHINES.get(name, 1)
    question = bs.Question.of(name.split(" x ")[-1], nodes=nodes, relays=relays, relays_reduce=relays != RELAYS[0])
    start = time.process_time()
    try:
        found = bs.together(question, mesh_groups(shape, question.whole().ranks, axis))
    except bs.InfeasibleError as error:
        spent = time.process_time() - start
        return f"{'refused: ' + str(error):.90}", spent
    spent = time.process_time() - start
    said = found.to_dict()
    right = not found.check() and not found.faults()
    rates = [
        f"{min(rates) / 1e9:.4g} to {max(rates) / 1e9:.4g}"
        for rates in ([group.alone for group in found.groups], [group.rate for group in found.groups])
    ]
    gap = "0" if found.exact else f"{float(bs.units.parse_exact(said['gap_exact'])):.2%}"
    return f"{len(found.groups):>6}  {rates[0]:>16}  {rates[1]:>16}  {gap:>6}  {'yes' if right else 'NO'}", spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--relays", default="none,all")
    given = parser.parse_args()
    rates = f"{'alone, GB/s':>16}  {'at once, GB/s':>16}"
    print(f"{'machine':<19}{'relays':<7}{'mesh':<6}{'axis':<5}groups  {rates}     gap  right  CPU s")
    worst = 0.0
    for name in given.machines.split(","):
        ranks = bs.load(name.split(" x ")[-1], nodes=MACHINES.get(name, 1)).ranks
        for relays in given.relays.split(","):
            for shape, axis in meshes(ranks):
                text, spent = row(name, relays, shape, axis)
                worst = max(worst, spent)
                print(
                    f"{name:<19}{relays:<7}{shape:<6}{'both' if axis is None else axis:<5}{text:<58}{spent:>7.2f}",
                    flush=True,
                )
    print(f"at most {worst:.2f} s")


if __name__ == "__main__":
    main()
