"""CPU time of whole commands here beside those of another checkout, in turn in one run: the speed gates.

    python benchmarks/against_base.py CHECKOUT [--runs 3] [--match TEXT]

The cases are those of bench_scale, bench_project, bench_packing, bench_simulate and bench_bounds as commands, and the
first answers. Each runs in a process of its own, here and there in turn; the figure is the least user and system time,
imports included. Aims: no case above 1.2 times, the sum not above 1.0. {f} is a schedule that `synth` of CHECKOUT made.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_S = 120
SCHEDULES = {
    "dgx1-gather.json": "dgx1-v100 allgather",
    "dgx1-reduce.json": "dgx1-v100 allreduce",
    "ring64.json": "ring:64@25GB/s allreduce --algorithm ring",
    "switch.json": "switch:256 allreduce --algorithm double_binary",
    "boxes.json": "dgx-a100 allgather --nodes 4",
}
LEAVES = "fabric shape=tree planes=1 leaf_nodes=32 oversubscription=2"
CASES = (
    ("first", "--help"),
    ("first", "project dgx1-v100 allreduce 256MiB"),
    ("first", "advise hgx-h200"),
    ("first", "compare hgx-h200 allreduce --sizes 1KiB:1GiB:x4"),
    *(("scale", f"synth hgx-h100 allgather --nodes {nodes} -o {{out}}") for nodes in (16, 512, 4096)),
    *(("scale", f"synth hgx-h100 alltoall --nodes {nodes} -o {{out}}") for nodes in (16, 512, 4096)),
    ("scale", f"synth dgx-a100 allgather --nodes 1024 --edit '{LEAVES}' -o {{out}}"),
    ("scale", "synth hgx-h100 allgather --nodes 128 --edit 'degrade n1.nic0-fabric0 bandwidth=25GB/s' -o {out}"),
    *(("project", f"project hgx-h100 {name} 1GiB --nodes 4096") for name in (
        "allreduce", "allgather", "broadcast", "alltoall")),
    *(("project", f"project hgx-h100 allreduce 1GiB --nodes 4096 --algorithm {name}") for name in (
        "ring", "hierarchical", "chain_tree", "packed", "nvls_tree", "double_binary")),
    ("project", "project dgx-a100 allreduce 1GiB --nodes 8192"),
    ("project", "project fattree:4096x8 allreduce 1GiB"),
    *(("packing", f"synth {machine} -o {{out}}") for machine in (
        "dgx1-v100 allgather", "dgx-a100 allgather", "dgx-a100 allgather --nodes 2", "dgx-a100 allgather --nodes 16",
        "mi250 allgather", "mi250 allgather --nodes 2", "dgx-a100 allreduce --nodes 4", "torus:16x16 allreduce",
        "dgx-a100 alltoall --nodes 16", "dgx-a100 allgather --nodes 64", "mi250 allgather --nodes 32",
        "dgx1-v100 allreduce --members 1,4,5,7 --algorithm chains", "dgx1-v100 allgather --algorithm few_steps")),
    *(("simulate", f"simulate {{f}}/{name} {size}") for name in SCHEDULES for size in ("1MiB", "256MiB")),
    ("simulate", "simulate {f}/ring64.json 256MiB --chunk 64KiB"),
    *(("bounds", f"bound dgx-a100 allgather --nodes {nodes}") for nodes in (1, 16, 128, 1024)),
    *(("bounds", f"bound {question}") for question in (
        "dgx1-v100 allreduce", "dgx1-v100 alltoall", "dgx-a100 allreduce --nodes 2", "dgx-a100 allreduce --nodes 16",
        "dgx-a100 alltoall --nodes 4", "mi250 allreduce --nodes 2", "dgx1-v100 allreduce --size 1MiB",
        "dgx1-v100 allreduce --losses", "torus:4x4 allreduce --size 64KiB",
        "dgx-a100 allgather --nodes 128 --edit 'degrade n0.nic2-fabric0 bandwidth=10GB/s'")),
)  # fmt: skip


def cpu_seconds(checkout: Path, command: str) -> float:
    """User and system time of one command by the code of a checkout; infinite if it fails or takes too long."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S))

    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        words = ["sh", "-c", f"exec {sys.executable} -m blinksim {command.replace('{out}', folder + '/out.json')}"]
        with open(os.devnull, "w") as nowhere:
            process = subprocess.Popen(
                words, stdout=nowhere, stderr=nowhere, preexec_fn=limited, env=environment, cwd=checkout
            )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime if process.returncode in (0, 5) else float("inf")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--match", default="")
    given = parser.parse_args()
    other = given.checkout.resolve()
    sums: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, question in SCHEDULES.items():
            cpu_seconds(other, f"synth {question} -o {folder}/{name}")
        for bench, command in CASES:
            if given.match not in f"{bench} {command}":
                continue
            asked = command.replace("{f}", folder)
            pairs = [[cpu_seconds(root, asked) for root in (other, ROOT)] for _ in range(given.runs)]
            then, now = (min(times) for times in zip(*pairs, strict=True))
            for key in (bench, "all"):
                before = sums.get(key, [0.0, 0.0])
                sums[key] = [before[0] + then, before[1] + now]
            above = "  ABOVE" * (now > 1.2 * then)
            print(f"{bench:9}{then:8.2f} {now:8.2f} {now / then:6.2f}{above}  {command}", flush=True)
    for key, (then, now) in sums.items():
        print(f"{key:9}{then:8.2f} {now:8.2f} {now / then:6.2f}  sum")
    return 0


if __name__ == "__main__":
    sys.exit(main())
