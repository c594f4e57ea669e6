"""Times whole `blinksim` processes, from the start of the interpreter to its end; with --catalogue, first answers.

    python benchmarks/bench_cli.py [--runs 10]
    python benchmarks/bench_cli.py --catalogue [--nodes 1,2,8,64] [--sizes 16MiB] [--kinds project,bound] [--every 6]

First answers are CPU seconds of a process that is forked after all imports, one for every machine of the catalogue
and number of nodes, or every sixth of these; below the table stand how many are below 1, 2 and 5 s, and the slowest.
The aims are 1 s on one node, 2 s on 64, nine in ten below 1 s, and none above 5 s.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path

COMMANDS = {
    "blinksim --help": ("--help",),
    "blinksim project dgx1-v100 allreduce 256MiB": ("project", "dgx1-v100", "allreduce", "256MiB"),
}
SCRIPT = Path(sys.executable).with_name("blinksim")


def time_once(arguments: tuple[str, ...]) -> float:
    """Seconds that one process takes; raises `CalledProcessError` if it fails, since that is no time worth printing."""
    start = time.perf_counter()
    subprocess.run([SCRIPT, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


# What is asked of a machine and a size; what has no size is asked once.
KINDS: dict[str, Callable[[str, str], list[str]]] = {
    "project": lambda machine, size: ["project", machine, "allreduce", size],
    "nccl": lambda machine, size: ["project", machine, "allreduce", size, "--algorithm", "nccl"],
    "bound": lambda machine, _: ["bound", machine, "allreduce"],
    "advise": lambda machine, _: ["advise", machine],
    "compare": lambda machine, _: ["compare", machine, "allreduce"],
}


def ask_once(arguments: Sequence[str], most: int) -> tuple[float, str]:
    """CPU seconds of a fork that answers, and the first line that it prints, or how it ended."""
    from blinksim.cli.main import run

    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            run([*arguments, "--quiet"])
        os.write(writes, said.getvalue().strip().partition("\n")[0].encode()[:1000])
        os._exit(0)
    os.close(writes)
    _, status, used = os.wait4(child, 0)
    with os.fdopen(reads, "rb") as told:
        text = told.read().decode(errors="replace")
    return used.ru_utime + used.ru_stime, text if status == 0 else f"ended by signal {status} of {most} s"


def survey(kinds: Sequence[str], nodes: Sequence[int], sizes: Sequence[str], most: int, sample: slice) -> None:
    """The table of first answers, and what it comes to. sample: which of the questions are asked."""
    from blinksim.formats.shipped.machine_names import names

    root = Path(__file__).resolve().parents[1]
    for path in sorted((root / "blinksim").rglob("*.py")):
        if not {"gpu", "plots", "__main__.py", "torch.py"} & {*path.relative_to(root).parts}:
            import_module(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
    questions = [
        KINDS[kind](machine, size) + (["--nodes", str(count)] if count > 1 else [])
        for machine in names()
        for kind in kinds
        for size in sizes
        for count in nodes
    ]
    found = []
    print(f"{'CPU s':>6}  question and answer")
    for question in list(dict.fromkeys(map(tuple, questions)))[sample]:
        cpu_s, told = ask_once(question, most)
        found.append((cpu_s, " ".join(question)))
        print(f"{cpu_s:>6.2f}  {found[-1][1]}: {told[:70]}", flush=True)
    found.sort(reverse=True)
    for limit in (1, 2, 5):
        print(f"{sum(cpu_s < limit for cpu_s, _ in found)} of {len(found)} below {limit} s")
    print("the slowest", *(f"{cpu_s:>6.2f}  {question}" for cpu_s, question in found[:12]), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="timed runs of each command, after one to warm the caches")
    parser.add_argument("--catalogue", action="store_true", help="first answers for every machine")
    parser.add_argument("--nodes", default="1,2,4,8,64")
    parser.add_argument("--sizes", default="1KiB,16MiB,1GiB")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--most", type=int, default=60, help="CPU seconds after which a question ends")
    parser.add_argument("--every", type=int, default=1, help="asks one of so many questions")
    parser.add_argument(
        "--first", type=int, default=0, help="questions left out before the first, to go on or take others"
    )
    given = parser.parse_args()
    if given.catalogue:
        nodes = [int(count) for count in given.nodes.split(",")]
        sample = slice(given.first, None, given.every)
        survey(given.kinds.split(","), nodes, given.sizes.split(","), given.most, sample)
        return
    runs = max(1, given.runs)
    print(f"whole-process times, {runs} runs, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    print(f"{'command':<46}{'median':>10}{'min':>10}{'max':>10}")
    for command, arguments in COMMANDS.items():
        time_once(arguments)
        times = [time_once(arguments) for _ in range(runs)]
        figures = (statistics.median(times), min(times), max(times))
        print(f"{command:<46}" + "".join(f"{figure:>8.3f} s" for figure in figures))


if __name__ == "__main__":
    main()
