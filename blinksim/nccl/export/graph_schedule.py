"""A graph file as a schedule: what NCCL runs under it, so that it can be verified and its loads counted."""

from __future__ import annotations

from blinksim.algorithms import ring as ring_algorithm
from blinksim.algorithms.building.plan import Plan, add_chains
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.nccl.export.devices import number
from blinksim.nccl.families import RING, TREE
from blinksim.nccl.files.graph_file import GraphFile
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology


def as_run(file: GraphFile, topology: Topology, collective: Collective, algorithm: str) -> Schedule:
    """What NCCL runs under a graph file on the members of one node: chains or rings of the file, with equal shares.

    algorithm: ``tree`` or ``ring``. Raises `InfeasibleError` if the file has no such graph, or lists other GPUs.
    """
    graph = file.graph(TREE if algorithm == "tree" else RING)
    if graph is None:
        raise InfeasibleError(f"the file has no {algorithm} graph")
    rank = {number(topology.device(name)): position for position, name in enumerate(topology.members)}
    orders = []
    for channel in graph.channels:
        if sorted(channel.gpus) != sorted(rank):
            raise InfeasibleError(f"a channel lists the GPUs {channel.gpus}, but the members are {tuple(sorted(rank))}")
        orders.append(tuple(rank[gpu] for gpu in channel.gpus))
    if algorithm == "ring" and not collective.rooted:
        return ring_algorithm.build(topology, collective, orders)
    plan = Plan(topology, collective, "nccl", "forest")
    add_chains(plan, collective, orders)
    return plan.finish()
