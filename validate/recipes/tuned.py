"""NCCL as it comes beside NCCL with a tuner file, and every choice that it has, on the GPUs of this machine.

    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/tuned.py --gpus 4 --out results

First `blinksim tune` takes at most 40 times and writes its rules. Then NCCL runs in turn as it comes and with the
rules, in processes of their own, `TURNS` times each; the log must say that the plugin is in force. With ``--space``
every choice is timed at every size, which is what the rules are judged by.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from blinksim.gpu.execution.run import ChoiceClock, GpuClock
from blinksim.nccl.tuner.tuner import COLLECTIVES
from blinksim.nccl.tuner.tuner_files import DEFAULT, runs
from blinksim.units import SIZES
from validate.recipes.arguments import arguments, script

TURNS = 3
LEAST_CHANNELS = 32
CHANNELS = (DEFAULT, 8, 16)
Cells = dict[str, float]


def time_all(gpus: int) -> Cells:
    """Seconds of every collective and size by whatever the environment makes NCCL take."""
    clock = GpuClock(gpus)
    found = {
        f"{collective} {size}": median(clock.time_nccl(gpus, collective, size))
        for collective in COLLECTIVES
        for size in SIZES
    }
    clock.close()
    return found


def in_turn(gpus: int, environment: dict[str, str], out: Path) -> Cells:
    """`time_all` in a process with these variables."""
    target = out / "cells.json"
    command = [sys.executable, __file__, "--gpus", str(gpus), "--cells", str(target)]
    subprocess.run(command, env={**os.environ, **environment}, check=True, timeout=300)
    found: Cells = json.loads(target.read_text())
    target.unlink()
    return found


def write_space(gpus: int, out: Path) -> None:
    """Times every choice at every size; processes of stock NCCL take `in_turn`."""
    clock = ChoiceClock(gpus, least_channels=LEAST_CHANNELS, nvls=False)
    with (out / f"nccl-space-{gpus}gpu.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["collective", "size_bytes", "algorithm", "protocol", "channels", "least_channels", "time_us"])
        for algorithm in ("ring", "tree"):
            for protocol in ("ll", "ll128", "simple"):
                for channels in CHANNELS:
                    for collective in COLLECTIVES:
                        for size in SIZES if runs(collective, algorithm, protocol) else ():
                            time = clock.measure(collective, size, (algorithm, protocol, channels))
                            row = (collective, size, algorithm, protocol, channels, LEAST_CHANNELS)
                            writer.writerow((*row, f"{time * 1e6:.2f}"))
    clock.close()


def main() -> None:
    parser = arguments(__doc__, gpus=4)
    parser.add_argument("--space", action="store_true", help="time every choice at every size too")
    parser.add_argument(
        "--cells", type=Path, help="time what the environment makes NCCL take, write it there, and stop"
    )
    given = parser.parse_args()
    if given.cells is not None:
        given.cells.write_text(json.dumps(time_all(given.gpus)))
        return
    gpus, out = given.gpus, given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    plugin, rules, log = out / "plugin.so", out / f"tuner-{gpus}gpu.csv", out / "nccl.log"
    tune = [sys.executable, "-m", "blinksim", "tune", "hgx-h200", "--gpus", str(gpus), "--no-nvls", "--force"]
    tune += ["--least-channels", str(LEAST_CHANNELS), "--times-to", str(out / f"nccl-tuning-{gpus}gpu.csv")]
    subprocess.run([*tune, "-o", str(rules), "--plugin", str(plugin)], check=True, timeout=300)
    tuned = {
        "NCCL_TUNER_PLUGIN": str(plugin),
        "NCCL_TUNER_CONFIG_FILE": str(rules),
        "NCCL_MIN_NCHANNELS": str(LEAST_CHANNELS),
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "TUNING",
        "NCCL_DEBUG_FILE": str(log),
    }
    turns = [(in_turn(gpus, {}, out), in_turn(gpus, tuned, out)) for _ in range(TURNS)]
    in_force = sorted({line.partition("TUNER/")[2] for line in log.read_text().splitlines() if "in force" in line})
    log.unlink()
    plugin.unlink()
    with (out / f"nccl-tuned-{gpus}gpu.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["collective", "size_bytes", "stock_us", "tuned_us"])
        for cell in turns[0][0]:
            collective, size = cell.split()
            times = [median(turn[which][cell] for turn in turns) * 1e6 for which in (0, 1)]
            writer.writerow((collective, size, *(f"{time:.2f}" for time in times)))
    print(f"{len(in_force)} rules in force:", *in_force, sep="\n  ")
    if given.space:
        write_space(gpus, out)


if __name__ == "__main__":
    script(main, __file__)
