"""Schedules by symmetry beside those with every tree, from 8 to 65,536 GPUs: time, memory, size of the file, growth.

    python benchmarks/bench_scale.py [--machine hgx-h100] [--collective allgather] [--most 65536] [--runs 1]
    python benchmarks/bench_scale.py --machine dgx-a100 --collective alltoall --least 8192 --most 8192 --leaves 32
    python benchmarks/bench_scale.py --least 1024 --most 8192 --flaw slow-nic

Aims at 32,768 GPUs on rails, and at 8,192 below leaves and a spine: 10 s, 1 GiB and a file below 1 MB; at 1,024 GPUs
0.3 s, and 3 s with a flaw; at 8,192 with a flaw 30 s.
Every figure is of a process of its own: CPU seconds of loading the machine, of the bound with the trees and their
proof, and of writing the file; the most memory; the bytes of the file. "every tree" is left out beyond 2,048 GPUs, in
an alltoall beyond 1,024. --leaves N puts N nodes below every leaf switch and the leaves below spines, at 2:1. --flaw
slow-nic halves one adapter of the second node; dead-node leaves that node out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time

_MOST_WRITTEN_OUT = 2048


def measure(machine: str, nodes: int, collective: str, leaves: int, once: bool, flaw: str) -> dict[str, float]:
    """One process's figures. once: by symmetry, if that is not turned off. leaves: nodes below a leaf, or 0."""
    import blinksim as bs
    from blinksim.algorithms.building import symmetric_trees

    if not once:
        symmetric_trees.FEW_SENDS = 10**18
    edits = [f"fabric shape=tree planes=1 leaf_nodes={leaves} oversubscription=2"] if leaves else []
    if flaw == "slow-nic":
        wires = [link for link in bs.load(machine, nodes=2, edits=edits).links if link.src.startswith("n1.nic")]
        slow = next(link for link in wires if not link.dst.startswith("n1."))
        half = slow.bandwidth / 2 / 10**9
        edits.append(f"degrade {slow.src}-{slow.dst} bandwidth={float(half)}GB/s")
    start = process_time()
    cluster = bs.load(machine, nodes=nodes, edits=edits)
    if flaw == "dead-node":
        cluster = cluster.select([name for name in cluster.select().members if not name.startswith("n1.")])
    loaded = process_time()
    found = bs.synthesize(cluster, collective)
    made = process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.json"
        bs.write(found, path)
        size = path.stat().st_size
    return {
        "gpus": cluster.ranks,
        "load_s": loaded - start,
        "synth_s": made - loaded,
        "write_s": process_time() - made,
        "MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "file_kB": size / 1000,
        "right": float(found.verdict.ok),
        "gap": float(found.gap),
    }


def in_a_process(given: argparse.Namespace, nodes: int, once: bool) -> dict[str, float]:
    """The figures of a process that measures this only."""
    command = [sys.executable, __file__, "--one", f"{nodes}", "--machine", given.machine]
    command += ["--collective", given.collective, "--leaves", f"{given.leaves}", "--flaw", given.flaw]
    done = subprocess.run([*command, *([] if once else ["--every-tree"])], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="hgx-h100")
    parser.add_argument("--collective", default="allgather")
    parser.add_argument("--least", type=int, default=0, help="GPUs below which nothing is measured")
    parser.add_argument("--most", type=int, default=65536)
    parser.add_argument("--leaves", type=int, default=0, help="nodes below a leaf switch; 0: the fabric of the machine")
    parser.add_argument("--flaw", choices=("none", "slow-nic", "dead-node"), default="none")
    parser.add_argument("--runs", type=int, default=1, help="of which the quickest counts")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--every-tree", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        once = not given.every_tree
        print(json.dumps(measure(given.machine, given.one, given.collective, given.leaves, once, given.flaw)))
        return
    import blinksim as bs

    local = bs.load(given.machine).ranks
    print(f"{given.collective} on {given.machine}, {os.cpu_count()} cores; seconds of one core")
    head = ("load", 6), ("synth", 7), ("write", 6), ("MB", 7), ("file kB", 9), ("growth", 7)
    print(f"{'GPUs':>6}  {'way':<10} " + " ".join(f"{name:>{width}}" for name, width in head) + "  right gap")
    before: dict[bool, float] = {}
    # One node has no adapters in use, and none to spare.
    least = max(given.least, local + 1 if given.flaw != "none" else 0)
    sizes = [4**power for power in range(given.most.bit_length()) if least <= 4**power * local < given.most]
    written_out = 1024 if given.collective == "alltoall" else _MOST_WRITTEN_OUT
    for nodes in (*sizes, given.most // local):
        for once in (False, True):
            if once or nodes * local <= written_out:
                tried = [in_a_process(given, nodes, once) for _ in range(given.runs)]
                row = min(tried, key=lambda one: one["synth_s"])
                growth = f"{row['synth_s'] / before[once]:.1f}x" if before.get(once) else ""
                before[once] = row["synth_s"]
                cells = (f"{row[key]:>{width}.2f}" for key, width in (("load_s", 6), ("synth_s", 7), ("write_s", 6)))
                way, right = "symmetry" if once else "every tree", "yes" if row["right"] else "NO"
                print(f"{row['gpus']:>6.0f}  {way:<10} {' '.join(cells)} ", end="")
                print(f"{row['MB']:>6.0f} {row['file_kB']:>9.1f} {growth:>7}  {right:<5} {row['gap']:.3g}", flush=True)


if __name__ == "__main__":
    main()
