"""All algorithms by name. Modules are imported when an algorithm is used, so that a listing stays cheap."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import InfeasibleError, unknown

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule
    from blinksim.topology.graph import Topology


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An entry of the registry. solver: whether building it needs OR-Tools; such algorithms run only when named."""

    name: str
    collectives: tuple[str, ...]
    summary: str
    solver: bool = False

    def supports(self, collective: str) -> bool:
        return collective in self.collectives

    def options(self) -> tuple[str, ...]:
        """Names of the options that `build` takes beyond the topology and the collective."""
        module = import_module(f"blinksim.algorithms.{self.name}")
        return tuple(signature(module.build).parameters)[2:]

    def build(self, topology: Topology, collective: Collective, **options: Any) -> Schedule:
        """The schedule of `collective` on the selected `topology`; raises `InfeasibleError` if there is none."""
        if not self.supports(collective.name):
            others = ", ".join(other.name for other in REGISTRY.values() if other.supports(collective.name))
            raise InfeasibleError(f"there is no {self.name} {collective.name}; algorithms that have it: {others}")
        module = import_module(f"blinksim.algorithms.{self.name}")
        schedule: Schedule = module.build(topology, collective, **options)
        return schedule


_REDUCE_AND_SPREAD = ("allreduce", "broadcast", "reduce")
_SHARDED = ("allreduce", "allgather", "reducescatter")

REGISTRY = {
    entry.name: entry
    for entry in (
        Algorithm("ring", _SHARDED, "one or more rings over the fastest links"),
        Algorithm("chain", _REDUCE_AND_SPREAD, "a path of ranks, pipelined"),
        Algorithm("binary", _REDUCE_AND_SPREAD, "a complete binary tree, pipelined"),
        Algorithm("double_binary", _REDUCE_AND_SPREAD, "two binary trees with half the vector each, pipelined"),
        Algorithm("recursive_doubling", ("allreduce", "allgather"), "exchanges at doubling distances"),
        Algorithm("halving_doubling", ("allreduce", "reducescatter"), "exchanges at halving, then doubling distances"),
        Algorithm("direct", COLLECTIVES, "everybody straight to everybody in one step (one-shot)"),
        Algorithm("two_shot", ("allreduce",), "direct reduce-scatter, then direct allgather"),
        Algorithm("hierarchical", _SHARDED, "inside nodes (or cards), rings (or direct) between them, inside again"),
        Algorithm("chain_tree", ("allreduce",), "chains inside the nodes, a double binary tree between them"),
        Algorithm("parameter_server", ("allreduce",), "all to one rank and back"),
        Algorithm("mxnet", _REDUCE_AND_SPREAD, "a balanced binary tree per GPU, avoiding each other's links (MXNet)"),
        Algorithm("packed", COLLECTIVES, "trees or paths packed up to the exact bound", solver=True),
        Algorithm("few_steps", COLLECTIVES, "the fewest steps and rounds for so many chunks, by search", solver=True),
        Algorithm("chains", ("allreduce",), "Hamiltonian paths in equal channels: the best NCCL can load", solver=True),
        Algorithm("rings", (*_SHARDED, "broadcast", "reduce"), "the most rings that share no lane", solver=True),
        Algorithm(
            "blink",
            ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter"),
            "few trees at the best rate (Blink)",
            solver=True,
        ),
        Algorithm("blink_hierarchical", ("allreduce",), "in cliques, then between them (Blink)", solver=True),
        Algorithm("blinkplus", _REDUCE_AND_SPREAD, "trees through idle GPUs as well (Blink+)", solver=True),
    )
}


def algorithm(name: str) -> Algorithm:
    """The entry called `name` (``-`` and ``_`` alike); raises `InputError` with the nearest names."""
    key = name.lower().replace("-", "_")
    if key not in REGISTRY:
        raise unknown("algorithm", name, REGISTRY)
    return REGISTRY[key]


def candidates(collective: str) -> list[Algorithm]:
    """The algorithms that have the collective and need no solver."""
    return [entry for entry in REGISTRY.values() if entry.supports(collective) and not entry.solver]
