"""Files of rules for the tuners of NCCL, RCCL and NCCLX, and the tuner plugin that follows them.

A rule gives, for a collective and a range of sizes, the algorithm, the protocol and the number of channels.
NCCL and RCCL: rows of NVIDIA/nccl, ext-tuner/example (2.28), which RCCL has taken over: sizes in bytes of the
larger of one rank's buffers; the plugin is built with the system's C compiler. NCCLX: rows of
meta-pytorch/torchcomms, comms/ncclx/meta/tuner, with sizes by rank as intervals, read by a tuner that is part
of the library.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal, get_args

from blinksim.errors import InputError, MissingError, one_of
from blinksim.nccl.tuner.tuner import ALGORITHMS, ALGORITHMS_OF, COLLECTIVES, PROTOCOLS
from blinksim.results import count
from blinksim.textio.text_files import MIB, Exported, check_target, read_bytes, write_bytes

# As a number of channels, NCCL's own; as one of nodes or ranks, any.
DEFAULT = -1
MOST_BYTES = 2**63 - 1
MOST_CHANNELS = 64
# NCCL runs the others with one protocol only (2.28.3, graph/tuning.cc).
_ALL_PROTOCOLS = ("tree", "ring")


def runs(collective: str, algorithm: str, protocol: str) -> bool:
    """True if some release of NCCL runs the collective so; protocol in small letters, as in files of rules.

    >>> runs("allgather", "ring", "ll128"), runs("allgather", "tree", "ll"), runs("allreduce", "nvls", "ll")
    (True, False, False)
    """
    if algorithm.startswith("collnet"):
        return protocol == "simple" and collective not in ("broadcast", "reduce")
    return algorithm in ALGORITHMS_OF[collective] and (protocol == "simple" or algorithm in _ALL_PROTOCOLS)


@dataclass(frozen=True, slots=True)
class TuningRule:
    """What to take for a collective of `least` to `most` bytes.

    Parameters
    ----------
    collective : str
        One of broadcast, reduce, allgather, reducescatter, allreduce.
    least, most : int
        Bytes, both included; of the larger of one rank's buffers, as NCCL counts.
    algorithm, protocol : str
        NCCL's names in small letters.
    channels : int
        How many, or `DEFAULT`.
    nodes, ranks : int
        Of the communicators that it is for, or `DEFAULT`.

    Raises
    ------
    InputError
        For what NCCL cannot run, or numbers out of range.

    Examples
    --------
    >>> TuningRule("allgather", 0, 65536, "tree", "ll")
    Traceback (most recent call last):
    blinksim.errors.InputError: NCCL does not run allgather by tree with ll
    """

    collective: str
    least: int
    most: int
    algorithm: str
    protocol: str
    channels: int = DEFAULT
    nodes: int = DEFAULT
    ranks: int = DEFAULT

    def __post_init__(self) -> None:
        one_of("collective of NCCL's tuner", self.collective, COLLECTIVES)
        one_of("algorithm of NCCL", self.algorithm, ALGORITHMS)
        one_of("protocol of NCCL", self.protocol, tuple(name.lower() for name in PROTOCOLS))
        if not runs(self.collective, self.algorithm, self.protocol):
            raise InputError(f"NCCL does not run {self.collective} by {self.algorithm} with {self.protocol}")
        if not 0 <= self.least <= self.most <= MOST_BYTES:
            raise InputError(f"a rule for {self.least} to {self.most} bytes: give whole numbers, the smaller first")
        if self.channels != DEFAULT and not 1 <= self.channels <= MOST_CHANNELS:
            raise InputError(f"channels={self.channels}: give 1 to {MOST_CHANNELS}, or {DEFAULT} for NCCL's own number")

    @property
    def choice(self) -> tuple[str, str, int]:
        """What it takes: algorithm, protocol, channels."""
        return self.algorithm, self.protocol, self.channels


Choice = tuple[str, str, int]


def rules_of(
    collective: str, cells: Sequence[tuple[int, Choice | None, frozenset[Choice | None]]], nodes: int, ranks: int
) -> tuple[TuningRule, ...]:
    """The fewest rules that give every size the choice of its cell, or one that is as good.

    cells: ascending sizes, each with its choice (None: no rule) and all that lose nothing there, itself among
    them. A range ends half way between two sizes, by their ratio; the first begins at 0 and the last never
    ends.
    """
    rules, start = list[TuningRule](), 0
    while start < len(cells):
        # Neighbours under one choice, from the left, as long as some choice is good enough for all of them.
        common, end = cells[start][2], start
        while end + 1 < len(cells) and common & cells[end + 1][2]:
            end += 1
            common &= cells[end][2]
        own = [choice for _, choice, _ in cells[start : end + 1] if choice in common]
        # No rule at all is the least that a file can say.
        best = None if None in common else max(own or sorted(common, key=str), key=own.count)
        first, last, start = start, end, end + 1
        if best is None:
            continue
        while None in cells[first][2]:
            first += 1
        while None in cells[last][2]:
            last -= 1
        least = 0 if first == 0 else math.isqrt(cells[first - 1][0] * cells[first][0]) + 1
        most = MOST_BYTES if last == len(cells) - 1 else math.isqrt(cells[last][0] * cells[last + 1][0])
        rules.append(TuningRule(collective, least, most, *best, nodes=nodes, ranks=ranks))
    return tuple(rules)


DialectName = Literal["nccl", "rccl", "ncclx"]
# What the plugin is called here.
PLUGIN = "libnccl-tuner-blinksim.so"


def export(
    rules: Sequence[TuningRule], dialect: DialectName, *, head: Sequence[str] = (), least_channels: int | None = None
) -> Exported:
    """The rules as one file of a dialect, with the variables that put it in force.

    head: lines of comment. least_channels: NCCL_MIN_NCHANNELS that the rules need. Raises `InputError` for an
    unknown dialect.
    """
    one_of("dialect of tuner files", dialect, get_args(DialectName))
    if dialect == "ncclx":
        columns = "collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks,numPipeOps,regBuff"
        rows = []
        for rule in rules:
            ranks = max(rule.ranks, 1)
            low, high = -(-rule.least // ranks), rule.most // ranks
            sizes = f"[{low},)" if rule.most == MOST_BYTES else f"[{low},{high}]"
            known = DEFAULT not in (rule.nodes, rule.ranks)
            where = (rule.nodes, rule.ranks // rule.nodes) if known else ("*", "*")
            row = rule.collective, sizes, rule.algorithm, rule.protocol, rule.channels, *where, -1, -1
            # A range may hold no multiple of a byte per rank.
            rows += [",".join(map(str, row))] if low <= high else []
        environment, proof = {"NCCLX_TUNER_CONFIG_FILE": "{file}"}, "NCCLX TUNER: using built-in tuner"
        note = "NCCLX reads the file itself; leave NCCL_TUNER_PLUGIN unset"
    else:
        columns = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
        rows = [",".join(map(str, (*astuple(rule), DEFAULT, DEFAULT))) for rule in rules]
        # Without a slash it would be looked for among the system's libraries.
        environment = {"NCCL_TUNER_PLUGIN": f"./{PLUGIN}", "NCCL_TUNER_CONFIG_FILE": "{file}"}
        proof = "TUNER/blinksim: {file}:"
        note = "NCCL's own example plugin reads the file too, but gives one channel to calls without a row"
    needs = []
    if least_channels:
        needs = [f"needs NCCL_MIN_NCHANNELS={least_channels}"]
        environment["NCCL_MIN_NCHANNELS"] = str(least_channels)
    comments = [f"# {line}" for line in (*head, *needs, columns)]
    files, summary = {"": "\n".join([*comments, *rows]) + "\n"}, f"{count(len(rows), 'rule')} for {dialect}"
    return Exported(files, summary, facts=tuple(head), environment=environment, proof=(proof,), notes=(note,))


SOURCE = Path(__file__).with_name("tuner_plugin.c")
# A build of this file has 20 kB.
_MOST_BYTES = 8 * MIB
_FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden")


def build(target: str | Path, *, compiler: str | None = None, force: bool = False) -> Path:
    """Writes the plugin to `target`.

    Parameters
    ----------
    target : path
        A file name, such as ``libnccl-tuner-blinksim.so``.
    compiler : str, optional
        Default: ``$CC``, else ``cc``.
    force : bool
        Replace a file that exists.

    Raises
    ------
    MissingError
        Without a compiler, or if it fails.
    InputError, FileError
        As `check_target` does.
    """
    place = check_target(target, force)
    name = compiler or os.environ.get("CC") or "cc"
    if shutil.which(name) is None:
        raise MissingError(f"there is no C compiler {name!r}; install one (apt install gcc), or name one with CC=…")
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "plugin.so"
        command = [name, *_FLAGS, "-o", str(built), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not built.exists():
            raise MissingError(f"{name} cannot build {SOURCE.name}: {(done.stderr or done.stdout).strip()[:500]}")
        write_bytes(place, read_bytes(built, _MOST_BYTES), force)
    return place
