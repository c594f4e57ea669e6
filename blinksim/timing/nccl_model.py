"""What NCCL would choose, as projections that stand beside those of other algorithms.

The time is the one that NCCL's tuner predicts for itself (`blinksim.nccl.tuner.tuner`): a model that NCCL chooses by,
with measured times within a few per cent of it for large sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from blinksim.collective import Collective
from blinksim.cost.terms import Term
from blinksim.errors import InputError
from blinksim.nccl import channel_graph
from blinksim.nccl.channel_graph import Graph
from blinksim.nccl.files import graph_file
from blinksim.nccl.tuner.constants import DEFAULT_VERSION
from blinksim.nccl.tuner.prediction import Prediction, predict
from blinksim.nccl.tuner.tuner import Timing
from blinksim.timing.projection_result import Projection
from blinksim.topology.graph import Topology
from blinksim.units import format_rate

MODEL = "nccl-tuner"


def graphs_of(path: str | Path) -> dict[str, Graph]:
    """The ring, tree and NVLS channels of a graph file (NCCL_GRAPH_FILE), as far as it has them.

    Raises `FileError` if the file cannot be read, `InputError` if it has none of them.
    """
    found = channel_graph.graphs_of(graph_file.read(path))
    if not found:
        raise InputError(f"{path}: has no ring, tree or NVLS channels; NCCL would search as if it were not there")
    return found


def predict_with(
    whole: Topology,
    members: Sequence[str] | None = None,
    *,
    nodes: int | None = None,
    version: str = DEFAULT_VERSION,
    multicast: bool = True,
    graph_file: str | Path | None = None,
) -> Prediction:
    """`blinksim.nccl.predict`, with the channels of a graph file where one is given.

    Raises `InputError` if the file lists other GPUs than the members', as NCCL then fails.
    """
    given: Mapping[str, Graph] = graphs_of(graph_file) if graph_file is not None else {}
    found = predict(whole, members, nodes=nodes, version=version, multicast=multicast, graphs=given)
    for family, graph in given.items():
        for number, channel in enumerate(graph.channels):
            if sorted(channel) != sorted(found.names):
                raise InputError(
                    f"{graph_file}: {family} channel {number} lists GPUs {', '.join(map(str, sorted(channel)))}, the "
                    f"members are {', '.join(map(str, sorted(found.names)))}; NCCL needs each of them once"
                )
    return found


def projections(prediction: Prediction, whole: Topology, collective: Collective, size: int) -> list[Projection]:
    """Everything that NCCL could take for a collective of `size` bytes, by its own model, quickest first.

    algorithm is NCCL's own word, such as ``ring/Simple``. Raises `InfeasibleError` for a collective that NCCL's tuner
    does not time.
    """
    collective.check_ranks(prediction.job.ranks)
    timed = prediction.times(collective.name, size)
    found = [_projection(prediction, whole, collective, size, timing) for timing in timed]
    return sorted(found, key=lambda projection: projection.time_s)


def choice(prediction: Prediction, whole: Topology, collective: Collective, size: int) -> Projection:
    """What NCCL chooses, under the name ``nccl``; details say which algorithm and protocol that is."""
    collective.check_ranks(prediction.job.ranks)
    best = prediction.best(collective.name, size)
    return replace(_projection(prediction, whole, collective, size, best), algorithm="nccl")


def _projection(
    prediction: Prediction, whole: Topology, collective: Collective, size: int, timing: Timing
) -> Projection:
    job = prediction.job
    family = "ring" if timing.algorithm == "ring" else "nvls" if timing.algorithm.startswith("nvls") else "tree"
    graph = prediction.graphs[family]
    count = graph.nchannels if family == "nvls" else prediction.nchannels
    rate = graph.bw_intra if job.nnodes <= 2 else graph.bw_inter
    path = graph.type_intra if job.nnodes == 1 else f"{graph.type_intra} and {graph.type_inter}"
    noun = {"ring": "ring", "tree": "chain", "nvls": "NVLS channel"}[family] + "s" * (count != 1)
    members = prediction.members
    if len(members) < job.ranks:
        members = tuple(f"n{node}.{name}" for node in range(job.nnodes) for name in members)
    return Projection(
        machine=prediction.machine,
        collective=collective,
        members=members,
        relays=(),
        links=whole.link_classes,
        rates=whole.rates,
        size=size,
        model=MODEL,
        algorithm=f"{timing.algorithm}/{timing.protocol}",
        terms=(
            Term(f"latency of {timing.algorithm}, {timing.protocol}", timing.latency_s, "alpha"),
            Term(f"bandwidth of {count} {noun}", timing.time_s - timing.latency_s, path),
        ),
        bottleneck=f"{count} {noun} of {format_rate(rate)} over {path} paths",
        details={
            "nccl_version": prediction.version,
            "nccl_algorithm": timing.algorithm,
            "nccl_protocol": timing.protocol,
            "channels": count,
            "channel_GBps": float(rate) / 1e9,
            "channel_orders": [list(order) for order in prediction.orders(family)],
            "type_intra": graph.type_intra,
            **({"type_inter": graph.type_inter} if job.nnodes > 1 else {}),
            "assumed": list(prediction.assumed),
        },
    )
