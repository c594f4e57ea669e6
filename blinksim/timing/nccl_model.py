"""NCCL's expected choice as projections that stand beside those of other algorithms.

The time is the one that NCCL's tuner predicts for itself (`blinksim.nccl.tuner.tuner`): a model that NCCL
chooses by, with measured times within a few per cent of it for large sizes. Where constants were measured
(`blinksim.timing.measured_constants`), they say what other numbers of channels take.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import lru_cache
from itertools import starmap
from pathlib import Path
from typing import Any, get_args

from blinksim.algorithms.registry import algorithm
from blinksim.bounds.bound_result import EVERY_LINK, REDUCING_SWITCHES, with_reduction
from blinksim.collective import Collective, busbw_factor
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import Question, RatesName, assemble, at_nominal
from blinksim.nccl.search_passes import NO_SOLUTION
from blinksim.nccl.tuner.tuner import DEFAULT_VERSION, Prediction, Timing, carried, predict_with
from blinksim.results import Term, count, keyed
from blinksim.schedule.loads import link_loads
from blinksim.timing.contest import ceiling_of, too_large, with_least_time
from blinksim.timing.measured.library_rates import NCCL, LibraryJob, catalogued, nccl_time
from blinksim.timing.measured_constants import NVLS
from blinksim.timing.projection_result import Ceiling, NcclProjection, Projection, of_part
from blinksim.timing.timing_model import TimingModel
from blinksim.topology.elements import BRANCHING
from blinksim.topology.graph import Topology
from blinksim.topology.rules import behind
from blinksim.topology.selection import ALL, NONE
from blinksim.units import format_rate, in_GBps

ENTRIES = ({"name": "nccl-tuner", "class": "NcclTuner", "chooses": "nccl", "place": 5},)

MODEL = "nccl-tuner"
# The name of what NCCL itself would choose.
CHOICE = "nccl"
# What NCCL calls the algorithms that the registry has too; its trees are two that mirror each other.
SAME = {"double_binary": "tree", "chain_tree": "tree", **{name: name for name in ("ring", "nvls", "nvls_tree")}}
# The sort of channels that an algorithm runs on; others run on those of trees.
FAMILY = {"ring": "ring", "nvls": "nvls", "nvls_tree": "nvls"}
# MAXCHANNELS of NCCL since 2.25.
MOST_CHANNELS = 64
# What NCCL calls paths over the links that a machine file means for collectives: inside a node, where NVB is
# by way of another GPU, and to the adapters.
_NEAR = frozenset({"LOC", "NVL", "NVB"})
_NEAR_ADAPTERS = _NEAR | {"PIX", "PXB", "PXN"}


class NcclTuner(TimingModel):
    """NCCL's own model, for the channels that NCCL would search or that a graph file gives.

    machine: the whole machine, its members those that take part, where `times` is asked for a selection: NCCL
    searches over PCIe and CPUs too. nodes: how many nodes like this one there are, for a machine of one node
    with its fabric. version, multicast, graph_file: as in `predict_with`. channels: how many NCCL is made to
    use (NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS), after it has chosen; only the time by measured constants
    depends on them.
    """

    name = MODEL
    best = (CHOICE,)
    rates = "nccl"
    known: Topology | None = None

    def __init__(
        self,
        machine: Topology | None = None,
        *,
        nodes: int | None = None,
        version: str = DEFAULT_VERSION,
        multicast: bool = True,
        graph_file: str | Path | None = None,
        channels: int | None = None,
    ) -> None:
        if channels is not None and not 1 <= channels <= MOST_CHANNELS:
            raise InputError(f"channels={channels}: NCCL has 1 to {MOST_CHANNELS} channels")
        self.machine, self.channels = machine, channels
        self.nodes, self.version, self.multicast, self.graph_file = nodes, version, multicast, graph_file
        self._searched: tuple[Topology, Prediction] | None = None

    def at(self, question: Question) -> tuple[NcclTuner, Topology]:
        """The model of the machine that the question asks about, and that machine with its members.

        NCCL plans for one node where all are alike, so that a thousand nodes cost no more than one.
        """
        one = replace(question, nodes=1) if question.nodes > 1 and not question.members else question
        whole: Topology | None = None
        with suppress(InputError):  # some edit or other names a device of the cluster
            whole = one.whole()
        if whole is None or (one is not question and whole.fabric is None):
            one, whole = question, question.whole()
        members = question.member_names(whole)
        as_it_is = (whole.members, whole.relays) == (members, ())
        machine = whole if as_it_is else replace(whole, members=members, relays=())
        model = copy(self)
        model.machine, model.nodes = machine, None if one is question else question.nodes
        model._searched = None
        # NCCL does not know what a file says of links, and takes a port to the network for as quick as it is sold:
        # cables with errors and full switches do not show there.
        known, planned = machine, one
        if one.rates not in (None, *get_args(RatesName)):
            planned = self.at_its_rates(replace(one, rates=None))
            known = replace(planned.whole(), members=machine.members, relays=())
        if machine.nodes > 1 and (new := as_sold(planned, machine.nodes)) != planned:
            node, sold = known.device_nodes, new.whole()
            ends = zip(node[known.link_columns.src], node[known.link_columns.dst], known.links, sold.links, strict=True)
            known = replace(known, links=tuple(port if out != into else link for out, into, link, port in ends))
        model.known = None if known is machine else known
        return model, machine

    def check(self, question: Question) -> None:
        if question.relays not in (None, NONE):
            leave = f"leave relays={question.relays} out"
            raise InputError(f"NCCL does not relay through GPUs that are not members; {leave}")
        if question.links is not None:
            raise InputError(f"NCCL takes links by rules of its own; leave links={question.links} out")

    def prediction(self, topology: Topology) -> Prediction:
        """NCCL's channels on a machine; raises as `predict_with` does."""
        whole = self.machine or topology
        if self._searched is None or self._searched[0] is not whole:
            how = {name: getattr(self, name) for name in ("nodes", "version", "multicast", "graph_file")}
            found = predict_with(self.known or whole, whole.members, **how)
            self._searched = whole, carried(found, self.known, whole) if self.known else found
        return self._searched[1]

    def algorithms(self, topology: Topology, collective: Collective) -> tuple[str, ...]:
        """NCCL's own, by its words (``ring``, ``tree``, ``nvls`` …), and ``nccl``, the choice of NCCL itself."""
        timed = (row.algorithm for row in self.prediction(topology).model.rows if row.collective == collective.name)
        return (*dict.fromkeys(timed), CHOICE)

    def times(
        self, topology: Topology, collective: Collective, sizes: Iterable[int], algorithms: Sequence[str] | None = None
    ) -> list[Projection]:
        """As `TimingModel.times`; by default everything that NCCL could take, by its own names (``ring/Simple``).

        topology: the whole machine, unless the model knows it already. algorithms: NCCL's words or names of
        the registry, which stand for their best protocol, and ``nccl`` for what NCCL chooses.
        """
        whole, found = self.machine or topology, self.prediction(topology)
        answers: list[Projection] = []
        for size in sizes:
            stated = starmap(with_least_time, self.stated(topology, collective, size, algorithms))
            answers += sorted(stated, key=lambda projection: projection.time_s)
        if self.channels is not None and not any("measured_time_s" in one.details for one in answers):
            takes = ", ".join(dict.fromkeys(one.details["nccl_algorithm"] for one in answers))
            only = f"channels={self.channels} changes times by measured constants only"
            none = f"{whole.name} has none of {takes} on {count(found.job.ranks, 'rank')}"
            raise InfeasibleError(f"{only}, and {none}; leave it out")
        return answers

    def stated(
        self, topology: Topology, collective: Collective, size: int, algorithms: Sequence[str] | None = None
    ) -> list[tuple[Topology, Projection]]:
        """What NCCL's model states, no less than the bytes take, and the part that bounds each."""
        whole, found = self.machine or topology, self.prediction(topology)
        job, stated = found.job, list[tuple[Topology, Projection]]()
        for one in projections(found, whole, collective, size, algorithms):
            details, reduces = one.details, one.pick.startswith(NVLS)
            far = details["type_intra"] not in _NEAR or details.get("type_inter", "LOC") not in _NEAR_ADAPTERS
            part, grants, ceiling = bounds_of(whole, self.nodes, collective, reduces, far)
            bounded = replace(one, bound=ceiling, grants=grants)
            load = load_of(part, collective, one.pick) if part.nodes > 1 else 0.0
            least = size * max(1 / float(ceiling.rate), load)
            if least > one.time_s:
                # NCCL knows neither of switches between nodes that are too narrow, nor of buses that links
                # share, nor, on two nodes, of a network that is slower than channels inside a node.
                why = "beyond NCCL's model: the links allow no less"
                sent = f"what {one.pick.partition(' ')[0]} sends between nodes"
                words = sent if load * float(ceiling.rate) > 1 else ceiling.words
                bounded = replace(bounded.raised(least, why, "bound"), bottleneck=words)
            if self.channels is not None:
                by = details["nccl_algorithm"], details["nccl_protocol"]
                takes = Timing(*by, one.time_s, one.terms[0].time_s, one.algbw)
                near = job.nnodes == 1 and details["type_intra"] == "NVL"
                asked = LibraryJob(collective.name, job.ranks, job.nnodes, NCCL, self.channels, near)
                # Of a number of channels only what rings take is known.
                rates = None if takes.algorithm == NVLS else whole.nccl_rates
                if known := nccl_time(catalogued(whole), rates, asked, size, takes):
                    measured = {"measured_time_s": known.time_s, "measured_channels": self.channels}
                    bounded = replace(bounded, details={**bounded.details, **measured})
            stated.append((part, bounded))
        return stated


@lru_cache(maxsize=64)
def bounds_of(
    whole: Topology, nodes: int | None, collective: Collective, reduces: bool, far: bool
) -> tuple[Topology, tuple[str, ...], Ceiling]:
    """The part of a machine that bounds a time of NCCL, what its switches may do, and the bound on the rate.

    At nominal rates: its own are what NCCL plans by. reduces: switches add, for NVLS. far: not over the links
    of collectives alone.
    """
    machine = at_nominal(whole)
    machine = machine if whole.nodes > 1 or nodes is None else assemble(machine, nodes)
    part = machine.select(links=ALL if far else None)
    granted = (EVERY_LINK,) if set(part.link_classes) > set(machine.default_links()) else ()
    if reduces:
        granted, part = (*granted, REDUCING_SWITCHES), with_reduction(part)
    able = frozenset[str]().union(*(device.in_network for device in part.devices if device.node >= 0))
    # What NVLS uses of what the switches can do.
    grants = tuple(grant for grant in BRANCHING if reduces and grant in able)
    return part, grants, ceiling_of(part, collective, grants, granted)


@lru_cache(maxsize=64)
def load_of(part: Topology, collective: Collective, pick: str) -> float:
    """Seconds per byte that a choice of NCCL takes at least on the links of a part; 0 if nothing is known.

    A ring sends over every cut what bus bandwidth counts, of which one carries a broadcast and no more. Both
    trees load the switches between nodes as those of ``chain_tree`` do, in the order of the nodes.
    """
    name, trees = pick.partition(" ")[0], algorithm("chain_tree")
    if name == "ring":
        return float(busbw_factor(collective.name, part.ranks) / ceiling_of(part, Collective("broadcast")).rate)
    src, dst = map(part.device_nodes.__getitem__, part.ends)
    between = ((src < 0) & (dst < 0)).nonzero()[0].tolist()
    if name not in ("tree", "nvls_tree") or not between or too_large(trees, part, collective):
        return 0.0
    loads = link_loads(trees.build(part, collective))
    return max(float(loads[link] / part.links[link].bandwidth) for link in between)


def projections(
    prediction: Prediction, whole: Topology, collective: Collective, size: int, names: Sequence[str] | None = None
) -> list[Projection]:
    """What NCCL could take for a collective of `size` bytes, by its own model, quickest first.

    algorithm is NCCL's own word, such as ``ring/Simple``. names: what is asked for, in this order, as the
    algorithms of `NcclTuner.times`. Raises `InfeasibleError` for a collective that NCCL's tuner does not time,
    and for a name of what it does not have.
    """
    collective.check_ranks(prediction.job.ranks)
    job, found, timed = prediction.job, list[Projection](), prediction.times(collective.name, size)
    chosen = [("", timing) for timing in timed] if names is None else []
    own = prediction.best(collective.name, size)
    for name in names or ():
        fitting = [one for one in (own, *timed) if name == CHOICE or one.algorithm == SAME.get(name, name)]
        if not fitting:
            raise InfeasibleError(f"NCCL's tuner has no {name} here")
        chosen.append((name, fitting[0]))
    for name, timing in chosen:
        family = FAMILY.get(timing.algorithm, "tree")
        graph = prediction.graphs[family]
        channels = graph.nchannels if family == "nvls" else prediction.nchannels
        rate = graph.bw_intra if job.nnodes <= 2 else graph.bw_inter
        path = graph.type_intra if job.nnodes == 1 else f"{graph.type_intra} and {graph.type_inter}"
        over = count(channels, {"ring": "ring", "tree": "chain", "nvls": "NVLS channel"}[family])
        terms = (
            Term(f"latency of {timing.algorithm}, {timing.protocol}", timing.latency_s, "alpha"),
            Term(f"bandwidth of {over}", timing.time_s - timing.latency_s, path),
        )
        details: dict[str, Any] = keyed(timing, "nccl_algorithm=algorithm nccl_protocol=protocol")
        details |= {"nccl_version": prediction.version, "channels": channels, "channel_GBps": in_GBps(rate)}
        details |= {"assumed": [*prediction.assumed], "library": whole.device(whole.members[0]).library.upper()}
        details["channel_orders"] = prediction.orders[family]
        details |= keyed(graph, "type_intra type_inter" if job.nnodes > 1 else "type_intra")
        details |= {"weakest": low} if (low := weakest(whole)) else {}
        details |= {"nccl_expects_s": prediction.expects(collective.name, size)} if name == CHOICE else {}
        algorithm = CHOICE if name == CHOICE else f"{timing.algorithm}/{timing.protocol}"
        asked = {"collective": collective, "size": size, "model": MODEL, "machine": prediction.machine}
        part = of_part(whole, job.ranks // whole.ranks, relays=(), algorithm=algorithm, **asked)
        bottleneck = f"{over} of {format_rate(rate)} over {path} paths"
        if rate == NO_SOLUTION:
            bottleneck += ", NCCL's placeholder where its search finds none: it says nothing of runs"
        found.append(NcclProjection(**part, terms=terms, bottleneck=bottleneck, details=details))
    return found


def as_sold(question: Question, nodes: int) -> Question:
    """The question of the machine before links were degraded, which libraries take it for.

    Inside one node they see how many lanes there are.
    """
    edits = (edit for edit in question.edits if not edit.startswith("degrade ") or (nodes == 1 and "lanes=" in edit))
    return replace(question, edits=tuple(edits))


@lru_cache(maxsize=8)
def weakest(machine: Topology) -> str:
    """What has less bandwidth than most of its sort, by data sheets; empty for a machine of the catalogue as it is."""
    return "" if catalogued(machine) else next((words for _, words in behind(at_nominal(machine))), "")
