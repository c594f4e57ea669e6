"""What collectives take by a library on a machine, from constants that were fitted to published times.

Two forms. `choice` is for NCCL: its own model says which algorithm and protocol it takes, and splits the time into a
latency and the time of the bytes; factors on both, by algorithm and protocol, make them what was measured. `steps`
counts the steps and the bytes of a ring, or of direct sends for alltoall, whatever the library does. Both have a term
that grows with the root of latency times bytes: pieces of the best size cost a pipeline of depth d
d * alpha + bytes / rate + 2 * sqrt(d * alpha * bytes / rate).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from blinksim.cost.origin import FitError
from blinksim.cost.terms import Term, total

CHOICE, STEPS = FORMS = ("choice", "steps")
ONE_NODE, SEVERAL, ALONE = SCOPES = ("one node", "several nodes", "one GPU a node")
"""The jobs that constants are for: adapters add up where several GPUs of a node use them."""
_ROUNDS = {"allreduce": 2, "allgather": 1, "reducescatter": 1}
_EXCHANGES = ("alltoall", "gather", "scatter")
_WORDS = {
    "start": "start",
    "latency": "latency",
    "hop": "steps",
    "across": "steps between nodes",
    "bytes": "bytes sent",
    "turn": "turn of the ring",
    "ramp": "pieces in a pipeline",
}


def scope_of(nodes: int, ranks: int) -> str:
    """Which of `SCOPES` a job is in.

    >>> scope_of(2, 16), scope_of(10, 10)
    ('several nodes', 'one GPU a node')
    """
    return ONE_NODE if nodes == 1 else SEVERAL if ranks > nodes else ALONE


@dataclass(frozen=True, slots=True)
class Constant:
    """A fitted constant and its interval of 95 %; `low` and `high` are None where the times did not determine it."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class LibraryRates:
    """The constants of a library on a machine.

    Parameters
    ----------
    machine, library, scope, form : str
        Names of the catalogue and of the library, and entries of `SCOPES` and `FORMS`.
    ranks : tuple of int
        The smallest and the largest number of GPUs that were measured.
    constants : mapping of str to Constant
        By the names that `choice_counts` and `step_counts` give them: factors on what NCCL says, else seconds, seconds
        per byte, and for ``ramp`` seconds per root of a step's bytes.
    error : FitError
        Of the times that they were fitted to.

    Examples
    --------
    >>> known = {"rounds start": Constant(2e-5), "rounds hop": Constant(1e-6), "rounds bytes": Constant(5e-12)}
    >>> rates = LibraryRates("box", "RCCL", "one node", "steps", (8, 8), known, FitError(0.05, 0.1, 16))
    >>> [(term.name, round(1e6 * term.time_s)) for term in rates.terms(step_counts("allreduce", 8, 1, 2**24))]
    [('start', 20), ('steps', 14), ('bytes sent', 147)]
    """

    machine: str
    library: str
    scope: str
    form: str
    ranks: tuple[int, int]
    constants: Mapping[str, Constant]
    error: FitError

    def covers(self, counts: Mapping[str, float]) -> bool:
        """True if it is known how long the bytes take."""
        return any(name.endswith(" bytes") and name in self.constants for name in counts)

    def terms(self, counts: Mapping[str, float]) -> Iterator[Term]:
        """The addends of the time, each limited by the constant of its name."""
        for name, times in counts.items():
            constant = self.constants.get(name)
            if constant is not None and constant.value * times > 0:
                yield Term(_WORDS[name.rpartition(" ")[2]], constant.value * times, name)

    def time(self, counts: Mapping[str, float]) -> float:
        """The sum of `terms`, in seconds."""
        return total(self.terms(counts))


def choice_counts(
    algorithm: str, protocol: str, latency_s: float, bytes_s: float, *, ranks: int, nodes: int, size: int,
    collective: str,
) -> dict[str, float]:  # fmt: skip
    """How often each constant counts where NCCL takes an algorithm and protocol.

    latency_s, bytes_s: the two parts of the time that NCCL says.

    >>> counts = choice_counts("tree", "LL", 2e-5, 1e-6, ranks=16, nodes=4, size=1024, collective="allreduce")
    >>> counts["tree LL latency"], counts["tree LL across"]
    (2e-05, 4.0)
    """
    key = f"{algorithm} {protocol}"
    counts = {f"{key} latency": latency_s, f"{key} bytes": bytes_s, f"{key} ramp": math.sqrt(latency_s * bytes_s)}
    if nodes > 1:
        across = _ROUNDS.get(collective, 1) * (nodes - 1) if algorithm == "ring" else 2 * math.log2(nodes)
        counts[f"{key} across"] = across
    if key == "ring Simple":
        counts[f"{key} turn"] = size / ranks
    return counts


def step_counts(collective: str, ranks: int, nodes: int, size: int) -> dict[str, float]:
    """How often each constant counts by steps and bytes.

    >>> step_counts("allgather", 4, 1, 4000)
    {'rounds start': 1.0, 'rounds hop': 3.0, 'rounds bytes': 3000.0, 'rounds ramp': 94.86832980505137}
    """
    if collective in _EXCHANGES:
        # On one node what a rank keeps takes as long as what it sends: times of 2, 4 and 8 GPUs are the same. Between
        # nodes only what leaves them counts.
        key, steps, moved = "exchange", ranks - 1, size * (1.0 if nodes == 1 else 1 - 1 / nodes)
    elif collective in _ROUNDS:
        key, steps = "rounds", _ROUNDS[collective] * (ranks - 1)
        moved = size * steps / ranks
    else:
        key, steps, moved = "rooted", 1, float(size)
    counts = {f"{key} start": 1.0, f"{key} hop": float(steps), f"{key} bytes": moved}
    counts[f"{key} ramp"] = math.sqrt(steps * moved)
    if nodes > 1 and key == "rounds":
        counts[f"{key} across"] = _ROUNDS[collective] * (nodes - 1.0)
    return counts
