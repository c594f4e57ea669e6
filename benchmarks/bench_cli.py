"""Times whole `blinksim` processes, from the start of the interpreter to its end."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="timed runs of each command, after one to warm the caches")
    runs = max(1, parser.parse_args().runs)
    print(f"whole-process times, {runs} runs, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    print(f"{'command':<46}{'median':>10}{'min':>10}{'max':>10}")
    for command, arguments in COMMANDS.items():
        time_once(arguments)
        times = [time_once(arguments) for _ in range(runs)]
        figures = (statistics.median(times), min(times), max(times))
        print(f"{command:<46}" + "".join(f"{figure:>8.3f} s" for figure in figures))


if __name__ == "__main__":
    main()
