"""All algorithms by name. Modules are imported when an algorithm is used, so that a listing stays cheap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

from blinksim.collective import COLLECTIVES, ROOTED, Collective
from blinksim.errors import InfeasibleError, InputError, unknown

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule
    from blinksim.schedule.ways import Parallel
    from blinksim.topology.graph import Topology


AlgorithmName = Literal[
    "ring", "chain", "binary", "double_binary", "recursive_doubling", "halving_doubling", "direct", "two_shot",
    "hierarchical", "chain_tree", "parameter_server", "mxnet", "packed", "few_steps", "chains", "rings", "blink",
    "blink_hierarchical", "blinkplus",
]  # fmt: skip
"""The names of the registry, for editors and type checkers; ``-`` and ``_`` are alike."""

# A schedule of more sends than this takes seconds to build and gigabytes to hold.
MOST_SENDS = 4_000_000
Sends = Callable[[int, str], int]


def _per_pair(ranks: int, collective: str) -> int:
    return 2 * ranks * ranks


def _per_rank(ranks: int, collective: str) -> int:
    return 4 * ranks


def _per_channel(ranks: int, collective: str) -> int:
    return 64 * ranks


def _straight(ranks: int, collective: str) -> int:
    return (_per_rank if collective in ROOTED else _per_pair)(ranks, collective)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An entry of the registry.

    solver: building it needs OR-Tools; such algorithms run only when named. sends: about how many sends its schedule
    has for a number of ranks and a collective, where it needs no solver. most_ranks: beyond this many, its search takes
    too long. source: the publication that describes it. every_pair: every rank sends to every other.
    """

    name: str
    collectives: tuple[str, ...]
    summary: str
    solver: bool = False
    sends: Sends = _per_rank
    most_ranks: int | None = None
    source: str = ""
    every_pair: bool = False

    def supports(self, collective: str) -> bool:
        return collective in self.collectives

    def options(self) -> tuple[str, ...]:
        """Names of the options that `build` takes beyond the topology and the collective."""
        module = import_module(f"blinksim.algorithms.{self.name}")
        return tuple(signature(module.build).parameters)[2:]

    def sends_on(self, topology: Topology, collective: str) -> int:
        """About how many sends the schedule has; a ring for every GPU of a node, if there are several nodes."""
        rings = topology.ranks // topology.nodes if self.name == "ring" and topology.nodes > 1 else 1
        return self.sends(topology.ranks, collective) * rings

    def check_size(self, ranks: int, collective: str) -> None:
        """Raises `InfeasibleError` if the schedule would be too large to hold, or too slow to search."""
        if self.most_ranks is not None and ranks > self.most_ranks:
            raise InfeasibleError(f"{self.name} is too slow on {ranks} ranks (at most {self.most_ranks})")
        needed = self.sends(ranks, collective)
        if not self.solver and needed > MOST_SENDS:
            raise InfeasibleError(
                f"{self.name} on {ranks} ranks needs about {needed:,} sends, more than {MOST_SENDS:,}; "
                "take double_binary or chain_tree, or model=projection"
            )

    def build(self, topology: Topology, collective: Collective, **options: Any) -> Schedule:
        """The schedule of `collective` on the selected `topology`; raises `InfeasibleError` if there is none."""
        return self.parallel(topology, collective, **options).schedule

    def parallel(self, topology: Topology, collective: Collective, **options: Any) -> Parallel:
        """The schedule as `build` gives it, with the parallel routes that its sends are divided among not written out.

        Algorithms with a solver choose the routes themselves.
        """
        from blinksim.schedule.ways import Parallel

        if not self.supports(collective.name):
            others = ", ".join(other.name for other in REGISTRY.values() if other.supports(collective.name))
            raise InfeasibleError(f"there is no {self.name} {collective.name}; algorithms that have it: {others}")
        self.check_size(topology.ranks, collective.name)
        module = import_module(f"blinksim.algorithms.{self.name}")
        schedule: Schedule = module.build(topology, collective, **options)
        return Parallel(schedule) if self.solver else Parallel.of(schedule)


_REDUCE_AND_SPREAD = ("allreduce", "broadcast", "reduce")
_SHARDED = ("allreduce", "allgather", "reducescatter")

REGISTRY = {
    entry.name: entry
    for entry in (
        Algorithm(
            "ring",
            _SHARDED,
            "one or more rings over the fastest links",
            sends=_per_pair,
            source="Patarasu and Yuan, JPDC 2009",
        ),
        Algorithm(
            "chain",
            _REDUCE_AND_SPREAD,
            "a path of ranks, pipelined",
            source="Chan et al., CCPE 2007",
        ),
        Algorithm(
            "binary",
            _REDUCE_AND_SPREAD,
            "a complete binary tree, pipelined",
            source="Chan et al., CCPE 2007",
        ),
        Algorithm(
            "double_binary",
            _REDUCE_AND_SPREAD,
            "two binary trees with half the vector each, pipelined",
            source="Sanders, Speck and Träff, Parallel Computing 2009",
        ),
        Algorithm(
            "recursive_doubling",
            ("allreduce", "allgather"),
            "exchanges at doubling distances",
            sends=_per_pair,
            source="Thakur, Rabenseifner and Gropp, IJHPCA 2005",
        ),
        Algorithm(
            "halving_doubling",
            ("allreduce", "reducescatter"),
            "exchanges at halving, then doubling distances",
            sends=_per_pair,
            source="Rabenseifner, ICCS 2004",
        ),
        Algorithm(
            "direct",
            COLLECTIVES,
            "every rank directly to every other rank in one step (one-shot)",
            sends=_straight,
            every_pair=True,
        ),
        Algorithm(
            "two_shot",
            ("allreduce",),
            "direct reduce-scatter, then direct allgather",
            sends=_per_pair,
            every_pair=True,
        ),
        Algorithm(
            "hierarchical",
            _SHARDED,
            "direct inside nodes (or cards), rings (or direct) between them",
            sends=_per_pair,
            source="Jia et al., 2018",
        ),
        Algorithm(
            "chain_tree",
            ("allreduce",),
            "chains inside the nodes, a double binary tree between them",
            sends=_per_channel,
            source="Blink+ report, section 2",
        ),
        Algorithm(
            "parameter_server",
            ("allreduce",),
            "all to one rank and back",
            source="MXNet multi-tree wiki page",
        ),
        Algorithm(
            "mxnet",
            _REDUCE_AND_SPREAD,
            "a balanced binary tree per GPU, avoiding each other's links (MXNet)",
            most_ranks=32,
            source="MXNet multi-tree wiki page",
        ),
        Algorithm(
            "packed",
            COLLECTIVES,
            "trees or paths packed up to the exact bound",
            solver=True,
            source="Edmonds 1973; Zhao et al. (ForestColl), 2024",
        ),
        Algorithm(
            "few_steps",
            COLLECTIVES,
            "the fewest steps and rounds for a given number of chunks, by search",
            solver=True,
            source="Cai et al. (SCCL), PPoPP 2021",
        ),
        Algorithm(
            "chains",
            ("allreduce",),
            "Hamiltonian paths in equal channels: the best NCCL can load",
            solver=True,
            source="Nash-Williams and Tutte 1961",
        ),
        Algorithm(
            "rings",
            (*_SHARDED, "broadcast", "reduce"),
            "the most rings that share no lane",
            solver=True,
            source="Wang et al. (Blink), 2018, section 2",
        ),
        Algorithm(
            "blink",
            ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter"),
            "few trees at the best rate (Blink)",
            solver=True,
            source="Wang et al. (Blink), MLSys 2020",
        ),
        Algorithm(
            "blink_hierarchical",
            ("allreduce",),
            "reduce inside cliques, exchange between them (Blink)",
            solver=True,
            source="Wang et al. (Blink), 2018, section 3.1",
        ),
        Algorithm(
            "blinkplus",
            _REDUCE_AND_SPREAD,
            "trees through idle GPUs as well (Blink+)",
            solver=True,
            source="Blink+ report, section 4.1",
        ),
    )
}


_ONLY_NCCL = "is NCCL's own and no schedule here; model=nccl-tuner with algorithm=all times it where NCCL has it"
_IN_NETWORK = "reduces in the network's switches, which no model here covers; nccl is what NCCL would take"
# Names of NCCL and its users (NCCL_ALGO, without _ and -) that are no entries, and what to ask for instead.
NCCL_NAMES = {
    "tree": "NCCL's tree is chain_tree here; double_binary has all ranks in its two trees, and model=nccl-tuner with "
    "algorithm=all times NCCL's own",
    "doublebinarytree": "the double binary tree is double_binary, with chains inside the nodes chain_tree",
    "nvls": f"NVLS {_ONLY_NCCL}",
    "nvlstree": f"NVLSTree {_ONLY_NCCL}",
    "pat": f"PAT {_ONLY_NCCL}",
    "collnet": f"CollNet {_IN_NETWORK}",
    "collnetdirect": f"CollNetDirect {_IN_NETWORK}",
    "collnetchain": f"CollNetChain {_IN_NETWORK}",
    "sharp": f"SHARP {_IN_NETWORK}",
    "oneshot": "direct is the one-shot way",
    "rabenseifner": "Rabenseifner's algorithm is halving_doubling",
}


def algorithm(name: str) -> Algorithm:
    """The entry called `name` (``-`` and ``_`` alike); raises `InputError` with the nearest names."""
    key = name.lower().replace("-", "_")
    meant = NCCL_NAMES.get(key.replace("_", ""))
    if meant:
        raise InputError(f"unknown algorithm {name!r}: {meant}")
    if key not in REGISTRY:
        raise unknown("algorithm", name, REGISTRY)
    return REGISTRY[key]


def candidates(collective: str) -> list[Algorithm]:
    """The algorithms that have the collective and need no solver."""
    return [entry for entry in REGISTRY.values() if entry.supports(collective) and not entry.solver]
