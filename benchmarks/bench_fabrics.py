"""HGX H100, or racks of NVL72, on real fabrics: what limits, what schedules reach, and what they send through it.

    python benchmarks/bench_fabrics.py [--machine hgx-h100] [--nodes 8,32] [--simulate 64GiB]

For each fabric and collective: the bound, the level that limits, what must cross the highest level as a multiple of the
size, and for each algorithm its share of the bound, what it sends through that level, and the seconds to build and
verify it. Every bound's certificate and every schedule is checked. ``--simulate SIZE`` adds the share of the bound that
a simulation of so many bytes reaches, and fails if that is more than the schedule's own rate.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import blinksim as bs
from blinksim.errors import InfeasibleError

FABRICS = {
    "rails": "",
    "rails under a spine, 1:1": "fabric shape=tree planes={ports} spine_planes=1 leaf_nodes=4",
    "rails under a spine, 2:1": "fabric shape=tree planes={ports} spine_planes=1 leaf_nodes=4 oversubscription=2",
    "rails under a spine, 4:1": "fabric shape=tree planes={ports} spine_planes=1 leaf_nodes=4 oversubscription=4",
    "leaf and spine, 2:1": "fabric shape=tree leaf_nodes=4 oversubscription=2",
    "leaf and spine, 4:1": "fabric shape=tree leaf_nodes=4 oversubscription=4",
    "dragonfly": "fabric shape=dragonfly group_nodes=4 group_links=4",
}
ALGORITHMS = {
    "allgather": ("packed", "hierarchical"),
    "allreduce": ("packed", "hierarchical"),
    "broadcast": ("packed", "double_binary"),
    "alltoall": ("rail_aligned", "direct"),
}
# Transfers of one simulation: seconds.
_EVENTS = 4_000_000


def words(part: bs.Topology, collective: str, algorithm: str, best: bs.BoundResult, size: str = "") -> str:
    """What one algorithm reaches and sends through the highest level, or why it cannot; size: what to simulate."""
    start = perf_counter()
    try:
        made = bs.synthesize(part, collective, algorithm)
    except InfeasibleError as error:
        return f"{algorithm}: {error}"
    if not made.verdict.ok:
        raise SystemExit(f"{part.name}: {algorithm} is wrong: {made.verdict}")
    seconds = perf_counter() - start
    carried = bs.levels(part, collective, schedule=made.schedule)[-1].carried
    assert carried is not None
    found = f"{algorithm} {float(made.rate / best.rate):.1%}, carries {float(carried):.4g} ({seconds:.1f} s)"
    if size:
        timeline = bs.simulate(made.schedule, size, most_events=_EVENTS)
        if timeline.algbw_GBps * 10**9 > made.rate:
            raise SystemExit(f"{part.name}: {algorithm} is simulated faster than its loads allow")
        share = timeline.algbw_GBps * 10**9 / float(best.rate)
        found += f", simulated {share:.1%} in {timeline.pieces} pieces"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1, help="has no effect: every schedule is built once")
    parser.add_argument("--machine", default="hgx-h100")
    parser.add_argument("--nodes", default="8,32")
    parser.add_argument("--simulate", default="", metavar="SIZE", help="also simulate every schedule for this size")
    options = parser.parse_args()
    fabric = bs.load(options.machine).fabric
    assert fabric is not None
    for nodes in map(int, options.nodes.split(",")):
        for name, edit in FABRICS.items():
            edits = [edit.format(ports=len(fabric.ports))] if edit else []
            part = bs.load(options.machine, nodes=nodes, edits=edits).select()
            for collective, algorithms in ALGORITHMS.items():
                best = bs.bound(part, collective)
                rows = bs.levels(part, collective)
                for row in rows:
                    assert not row.bound.check(part, best.collective)
                limits = " and ".join(row.level for row in rows if row.limits)
                print(
                    f"{nodes:3} nodes  {name:26}{collective:10} {best.rate_GBps:7.4g} GB/s {best.headline.kind}, each "
                    f"{limits} limits; each {rows[-1].level} at least {float(rows[-1].crosses):.4g}; "
                    + "; ".join(words(part, collective, algorithm, best, options.simulate) for algorithm in algorithms),
                    flush=True,
                )


if __name__ == "__main__":
    main()
