"""How long `project` takes on thousands of nodes, algorithm by algorithm: CPU seconds of a process of its own.

    python benchmarks/bench_project.py [--machine hgx-h100] [--nodes 4096] [--size 1GiB] [--runs 3]
                                       [--collectives allreduce,alltoall] [--most 60]

User and system time from the start of Python to its end, the least of the runs; the most memory; and what the answer
says, or why there is none. Wall time says little on a machine that does other things. A run ends after --most seconds.
Modules are compiled before, as those of an installed package are.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")
# They search for minutes wherever they are asked.
_SEARCHES = ("few_steps", "few_rounds")


def measure(arguments: Sequence[str], most: int) -> tuple[float, float, str]:
    """CPU seconds and MB of one command, and the first line that it prints."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))

    with tempfile.TemporaryFile("w+") as told:
        command = [sys.executable, "-m", "blinksim", *arguments]
        compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT, preexec_fn=limited, env=compiled)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        told.seek(0)
        lines = [line for line in told.read().splitlines() if not line.startswith("still at work")]
    answer = lines[0] if lines else f"ended after {most} s"
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, answer.removeprefix("blinksim: ")


def asked(collectives: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every collective, by best and by every algorithm that has it."""
    from blinksim.algorithms.registry import REGISTRY

    for collective in collectives:
        yield collective, "best"
        for entry in REGISTRY.values():
            if entry.supports(collective) and entry.name not in _SEARCHES:
                yield collective, entry.name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="hgx-h100")
    parser.add_argument("--nodes", type=int, default=4096)
    parser.add_argument("--size", default="1GiB")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--most", type=int, default=60)
    given = parser.parse_args()
    measure(["project", given.machine, "allreduce", given.size, "--quiet"], given.most)
    nodes = [] if given.nodes == 1 else ["--nodes", str(given.nodes)]
    print(
        f"project on {given.nodes} x {given.machine}, {given.size}: CPU seconds of a process, the least of {given.runs}"
    )
    print(f"{'collective':<14} {'algorithm':<19} {'CPU s':>6} {'MB':>5}  answer")
    for collective, name in asked(given.collectives.split(",")):
        command = ["project", given.machine, collective, given.size, *nodes, "--algorithm", name, "--quiet"]
        cpu_s, memory, answer = min(measure(command, given.most) for _ in range(given.runs))
        print(f"{collective:<14} {name:<19} {cpu_s:>6.2f} {memory:>5.0f}  {answer[:100]}", flush=True)


if __name__ == "__main__":
    main()
