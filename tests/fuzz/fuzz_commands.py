"""Random command lines: every command with its own options, on small machines and files, sensible and not."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
from fuzz_mutate import NUMBERS, TOKENS
from fuzz_readers import READERS

from blinksim.cli.commands import COMMANDS
from blinksim.cli.options import built
from blinksim.collective import COLLECTIVES, OF_EXPERTS

MACHINES = (
    "ring:3", "ring:4@25GB/s", "line:3", "full:3", "star:3", "switch:4", "mesh:2x2", "torus:2x2", "hypercube:2",
    "dgx1-v100", "hgx-h100", "mi250", "k2200-ntb", "p3.16xlarge", "m.yaml", "t.xml", "smi.txt", "ring:0", "ring:",
    "torus:2x", "nothing", "-",
)  # fmt: skip
SCHEDULES = (
    "ring.json", "few.json", "s.json", "dgx1-v100-8-allreduce", "blinkplus-tenant-0-1-broadcast", "nothing", "m.yaml",
    "",
)  # fmt: skip
FILES = (
    "s.json", "b.json", "g.xml", "a.xml", "p.json", "t.xml", "log.txt", "smi.txt", "m.yaml", "nothing", ".",
    "/dev/null", "traffic.csv", "times.csv", "own.py",
)  # fmt: skip
EDITS = (
    "without gpu1", "without gpu0-gpu1", "without gpu[0-1]", "degrade gpu0-gpu1 lanes=1",
    "degrade gpu0->gpu1 bandwidth=1GB/s", "replace gpu0-gpu1 lanes=2", "replace nvlink bandwidth=10GB/s",
    "replace nvlink latency=5us overhead=0us", "replace nvlink", "add gpu0-gpu2 nvlink lanes=1", "add gpu0-gpu2 link",
    "replace gpu0-gpu1 target=1", "replace gpu0-gpu1 kind=1", "add gpu0-gpu2", "replace gpu0-gpu1 topology=2",
    "without n0.gpu1", "without fabric", "replace gpu0-gpu1 src=gpu3", "degrade gpu0-gpu1 bus=a", "without gpu0 gpu1",
    "without", "replace gpu0-gpu1 lanes=0", "replace gpu0-gpu1 latency=-1us", "without gpu[0-99999999]",
)  # fmt: skip
LISTS = (
    "0", "0,1", "0-2", "2,0,1", "0-", "-1", "0,0", "gpu0,gpu1", "gpu2", "gpu[0-2]", "0-99999999", "idle", "none",
    "all", "",
)  # fmt: skip
SIZES = (
    "1", "8", "64KiB", "1MiB", "1000003", "256M", "1GB", "1TB", "0", "-1", "1.5", "5GB/s", "1EiB", "",
)  # fmt: skip
SMALL_SIZES = (
    "1", "8", "64KiB", "1MiB", "1000003", "0", "-1", "1EiB", "",
)  # fmt: skip
RANGES = (
    "8:64", "1KiB:1MiB", "1KiB:1MiB:x4", "1MiB", "1MiB,8MiB", "8:1", "1:1TB:x1", "8:64:x٣", "1KiB:1KiB", ":",
    "a:b:c:d",
)  # fmt: skip
VARY = (
    "nodes=1,2", "edit=none;without gpu1", "links=all", "members=0,1;0-2", "nvlink bandwidth=10GB/s,25GB/s", "nodes=0",
    "nodes=000000001", "gpu0-gpu1 lanes=1,2", "size=1MiB,2MiB", "a=b", "=", "", "nodes=", "root=0,1",
)  # fmt: skip
WORDS = (
    "best", "ring", "tree", "packed", "chains", "few_steps", "direct", "blink", "nccl", "all", "hierarchical",
    "simulate", "alpha-beta", "nvlink", "nvlink,pcie", "nominal", "nccl-tuner", "projection", "aurora", "seed",
    "2.28.3", "2.30.7", "9.9", "msccl-xml", "mscclpp-json", "nccl-graph", "nccl-graph-set", "nccl-topo", "float",
    "float16", "int8", "sum", "max", "avg", "10GB/s", "2us", "1024",
)  # fmt: skip
# What an option's value is taken from, most of the time.
POOLS = {
    "--edit": EDITS, "--members": LISTS, "--relays": LISTS, "--sizes": RANGES, "--size": SIZES, "--chunk": SIZES,
    "--vary": VARY, "--machine": MACHINES, "--nccl-graph": FILES,
    "--rates": ("nominal", "nccl", "seed", "r.yaml", "m.yaml", "nothing"), "--collective": tuple(COLLECTIVES),
    "--plot": ("p.svg", "p.png", "p.xyz", "no/p.svg"), "-o": ("o.json", "o.xml", "o.yaml", "o", "no/o"),
    "--trace": ("trace.json", "no/t.json"), "--bottleneck": ("allreduce", "x"),
    "--traffic": ("traffic.csv", "nothing", "/dev/null", "m.yaml"),
    "--routing": ("traffic.csv", "nothing", "m.yaml"), "--placement": ("traffic.csv", "nothing"),
    "--algorithm": (*WORDS, "own.py", "own.py:own", "s.json"),
    "--algorithms": (*WORDS, "own.py", "ring,own.py", "a.xml"), "--workers": ("1",),
    "--cluster": ("nothing",), "--nodes": ("1", "2", "3"), "--time-limit": ("1", "0.01"), "--polish": ("0.1",),
    "--search": ("0.1",),
    "--iterations": ("1",), "--warmup": ("0",), "--launch": ("2us",),
    "--trees": ("1", "2"),
}  # fmt: skip
ARGUMENTS = {
    "machine": MACHINES, "collective": (*COLLECTIVES, *OF_EXPERTS), "size": SIZES, "schedule": SCHEDULES, "file": FILES,
    "times": ("times.csv", "times.csv", "m.yaml"), "logs": ("log.txt",),
    "log": ("log.txt", "log.txt", "m.yaml"), "count": ("2",),
}  # fmt: skip


@cache
def commands() -> tuple[tuple[tuple[str, ...], click.Command], ...]:
    """(its words, the command) of every command that answers."""
    return tuple((tuple(name.split()), built(name)) for name in COMMANDS if name != "topo")


def command_line(random_: random.Random) -> list[str]:
    """The words behind ``blinksim``."""
    words, command = random_.choice(commands())
    line = list(words)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            pool = ARGUMENTS.get(str(parameter.name), WORDS)
            if words == ("run",) and pool is SIZES:
                pool = SMALL_SIZES  # a run holds all its buffers
            line += [_value(random_, pool)] if random_.random() < 0.97 else []
    options = [one for one in command.params if isinstance(one, click.Option)]
    for option in random_.sample(options, min(len(options), random_.choice((0, 0, 1, 1, 2, 3, 5)))):
        line += _option(random_, option)
    if "--pareto" in line:
        line += ["--time-limit", "1"]  # a search of a minute otherwise
    return line


def _option(random_: random.Random, option: click.Option) -> Iterator[str]:
    name = random_.choice(option.opts)
    yield name
    if option.is_flag:
        return
    pool = POOLS.get(option.opts[0], WORDS)
    if isinstance(option.type, click.Choice):
        pool = tuple(map(str, option.type.choices))
    elif not isinstance(option.type, click.types.StringParamType):
        pool = pool if option.opts[0] in POOLS else ("1", "2", "3")
    value = _value(random_, pool)
    # Hundreds of nodes are a question like others, whose answer may take a minute.
    yield "3" if option.opts[0] == "--nodes" and re.fullmatch("[0-9]{3,5}", value) else value


def _value(random_: random.Random, pool: tuple[str, ...]) -> str:
    chance = random_.random()
    if chance < 0.88:
        return random_.choice(pool)
    if chance < 0.93:
        return random_.choice(NUMBERS)
    if chance < 0.97:
        return random_.choice(TOKENS).replace("\0", "0")
    text = random_.choice(pool)
    at = random_.randint(0, len(text))
    return text[:at] + random_.choice(TOKENS).replace("\0", "0") + text[at:]


def write_files(folder: Path, random_: random.Random) -> None:
    """The files that command lines name: sound ones, and now and then a damaged one."""
    for reader in READERS.values():
        sound = random_.choice(reader.samples()).encode("utf-8", "surrogateescape")
        (folder / reader.name).write_bytes(sound if random_.random() < 0.8 else reader.input(random_))
    for name, text in zip(("ring.json", "few.json"), READERS["schedule"].samples(), strict=False):
        (folder / name).write_text(text, encoding="utf-8")
