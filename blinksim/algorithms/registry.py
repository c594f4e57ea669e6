"""All algorithms by name. Modules are imported when an algorithm is used, so that a listing stays cheap.

`register_algorithm` adds one from outside the package, which a file with Python code may do as well: ``pairs.py`` is
the name of the algorithm that the file registers, ``pairs.py:swap`` that of one among several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from blinksim import plugins
from blinksim.algorithms.nccl_names import NCCL_NAMES
from blinksim.algorithms.send_counts import Sends, around, per_channel, per_pair, per_rank, straight, untold
from blinksim.collective import ALLTOALLV, COLLECTIVES, Collective
from blinksim.errors import InfeasibleError, InputError, unknown

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule
    from blinksim.schedule.ways import Parallel
    from blinksim.topology.graph import Topology

AlgorithmName = Literal[
    "ring", "chain", "binary", "double_binary", "recursive_doubling", "halving_doubling", "direct", "rail_aligned",
    "rail_joined", "bruck", "two_shot", "hierarchical", "chain_tree", "parameter_server", "mxnet", "packed",
    "few_steps", "few_rounds", "chains", "rings", "blink", "blink_hierarchical", "blinkplus", "nvls", "nvls_one_shot",
    "packed_in_network", "nvls_tree", "sharp",
]  # fmt: skip
"""The names of the registry, for editors and type checkers; ``-`` and ``_`` are alike."""

# More sends than this take long to build and gigabytes to hold; those of an exchange in arrays, on 2,048 ranks.
MOST_SENDS, _MOST_IN_ARRAYS = 4_000_000, 2 * 2048**2
Fill = TypeVar("Fill", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An entry of the registry.

    solver: building it needs OR-Tools; such algorithms run only when named. sends: about how many sends its schedule
    has for a number of ranks and a collective, where it needs no solver. most_ranks: beyond this many, its search takes
    too long. source: the publication that describes it. every_pair: every rank sends to every other. routes: it
    chooses the route of every send, which then is not divided among equal ways. in_network: it needs switches that
    multicast or reduce, and runs only when named. traffic: it has alltoallv, for any traffic matrix. outlined: its
    module tells the `rounds` of a schedule besides, for `blinksim.schedule.outlines`. turned: it tells the `symmetric`
    form. hops: how many steps one after another it has, 0 if that is not known before it is built. fill: what fills
    the plan of an algorithm from outside, and the form of its schedules. home: the file that registered it.
    """

    name: str
    collectives: tuple[str, ...]
    summary: str
    solver: bool = False
    sends: Sends = per_rank
    most_ranks: int | None = None
    source: str = ""
    every_pair: bool = False
    routes: bool = False
    in_network: bool = False
    traffic: bool = False
    outlined: bool = False
    hops: Sends = untold
    turned: bool = False
    fill: Callable[..., None] | None = None
    form: str = "steps"
    home: str = ""

    @property
    def asked_as(self) -> str:
        """The name by which any process finds the entry: with the file that registers it, if one does."""
        return f"{self.home}:{self.name}" if self.home else self.name

    def supports(self, collective: str) -> bool:
        return collective in self.collectives or (collective == ALLTOALLV and self.traffic)

    def options(self) -> tuple[str, ...]:
        """Names of the options that `build` takes beyond the topology and the collective."""
        if self.fill is not None:
            return tuple(signature(self.fill).parameters)[1:]
        module = import_module(f"blinksim.algorithms.{self.name}")
        return tuple(signature(module.build).parameters)[2:]

    def sends_on(self, topology: Topology, collective: str) -> int:
        """About how many sends the schedule has; a ring for every GPU of a node, if there are several nodes."""
        rings = topology.ranks // topology.nodes if self.name == "ring" and topology.nodes > 1 else 1
        return self.sends(topology.ranks, collective) * rings

    def check_size(self, ranks: int, collective: str) -> None:
        """Raises `InfeasibleError` if the schedule would be too large to hold, or too slow to search."""
        if self.most_ranks is not None and ranks > self.most_ranks:
            raise InfeasibleError(
                f"{self.name} searches for too long on {ranks:,} ranks (at most {self.most_ranks:,}); take packed"
            )
        needed = self.sends(ranks, collective)
        most = _MOST_IN_ARRAYS if self.routes and self.traffic else MOST_SENDS
        if not self.solver and needed > most:
            other = "fewer ranks" if "alltoall" in collective else "double_binary or chain_tree, or model=projection"
            raise InfeasibleError(
                f"{self.name} on {ranks} ranks needs about {needed:,} sends, more than {most:,}; take {other}"
            )

    def build(self, topology: Topology, collective: Collective, **options: Any) -> Schedule:
        """The schedule of `collective` on the selected `topology`; raises `InfeasibleError` if there is none."""
        return self.parallel(topology, collective, **options).schedule

    def parallel(self, topology: Topology, collective: Collective, **options: Any) -> Parallel:
        """The schedule as `build` gives it, with the parallel routes that its sends are divided among not written out.

        Those that choose the route of every send keep it.
        """
        from blinksim.schedule.kept import kept

        if not self.supports(collective.name):
            others = ", ".join(other.name for other in REGISTRY.values() if other.supports(collective.name))
            raise InfeasibleError(f"there is no {self.name} {collective.name}; algorithms that have it: {others}")
        if options:
            return self._parallel(topology, collective, **options)
        build = self._outlined if self.outlines(topology, collective) else self._parallel
        # Where a topology was loaded from does not make it another one, but is part of the answer.
        key = (self, topology, topology.loaded_from, collective)
        return kept(key, lambda: build(topology, collective))

    def outlines(self, topology: Topology, collective: Collective) -> bool:
        """Whether the schedule has so many sends that its steps are timed without them."""
        from blinksim.schedule.outlines.outline import worth_it

        sends = self.sends_on(topology, collective.name)
        return self.outlined and worth_it(topology, collective, sends, self.every_pair)

    def _outlined(self, topology: Topology, collective: Collective) -> Parallel:
        from blinksim.schedule.outlines.outline import Outline, Outlined

        rounds = import_module(f"blinksim.algorithms.{self.name}").rounds(topology, collective)
        found = Outline(topology, collective, self.name, rounds)
        return Outlined(found, lambda: self._parallel(topology, collective))

    def _parallel(self, topology: Topology, collective: Collective, **options: Any) -> Parallel:
        from blinksim.schedule.ways import Parallel

        self.check_size(topology.ranks, collective.name)
        schedule: Schedule
        if self.fill is not None:
            from blinksim.algorithms.building.plan import filled

            schedule = filled(self.name, self.fill, self.form, topology, collective, **options)
        else:
            module = import_module(f"blinksim.algorithms.{self.name}")
            schedule = module.build(topology, collective, **options)
        return Parallel(schedule) if self.routes else Parallel.of(schedule)


_REDUCE_AND_SPREAD = ("allreduce", "broadcast", "reduce")
_SHARDED = ("allreduce", "allgather", "reducescatter")
_ON_TREES, _ALLREDUCE = (*_SHARDED, "broadcast", "reduce"), ("allreduce",)
_THAKUR, _RABENSEIFNER = "Thakur, Rabenseifner and Gropp, IJHPCA 2005", "Rabenseifner, ICCS 2004"
_SPANNING, _BLINK, _CHAN = "Nash-Williams and Tutte 1961", "Wang et al. (Blink)", "Chan et al., CCPE 2007"

REGISTRY = {
    entry.name: entry
    for entry in (
        Algorithm(
            "ring",
            _SHARDED,
            "one or more rings over the fastest links",
            sends=per_pair,
            hops=around,
            source="Patarasu and Yuan, JPDC 2009",
            outlined=True,
        ),
        Algorithm("chain", _REDUCE_AND_SPREAD, "a path of ranks, pipelined", hops=around, source=_CHAN),
        Algorithm("binary", _REDUCE_AND_SPREAD, "a complete binary tree, pipelined", source=_CHAN),
        Algorithm(
            "double_binary",
            _REDUCE_AND_SPREAD,
            "two binary trees with half the vector each, pipelined",
            source="Sanders, Speck and Träff, Parallel Computing 2009",
        ),
        *(
            Algorithm(name, ("allreduce", other), summary, sends=per_pair, outlined=True, source=source)
            for name, other, summary, source in (
                ("recursive_doubling", "allgather", "exchanges at doubling distances", _THAKUR),
                ("halving_doubling", "reducescatter", "exchanges at halving, then doubling distances", _RABENSEIFNER),
            )
        ),
        Algorithm(
            "direct",
            COLLECTIVES,
            "every rank directly to every other rank in one step (one-shot)",
            sends=straight,
            every_pair=True,
            traffic=True,
            outlined=True,
        ),
        Algorithm(
            "rail_aligned",
            ("alltoall",),
            "between nodes over rails, all adapters evenly, at most three sends",
            sends=per_pair,
            routes=True,
            traffic=True,
            turned=True,
            source="PXN (NCCL 2.12); Rajbhandari et al. (DeepSpeed-MoE), ICML 2022",
        ),
        *(
            Algorithm(name, ("alltoall",), how, sends=per_pair, source=source, routes=True, traffic=v, turned=True)
            for name, v, how, source in (
                ("rail_joined", True, "as rail_aligned, what goes to a node in one message", "Tutel, MLSys 2023"),
                ("bruck", False, "from node to node digit by digit, in few messages", "Bruck et al., IEEE TPDS 1997"),
            )
        ),
        Algorithm(
            "two_shot",
            ("allreduce",),
            "direct reduce-scatter, then direct allgather",
            sends=per_pair,
            every_pair=True,
            outlined=True,
        ),
        Algorithm(
            "hierarchical",
            _SHARDED,
            "direct inside nodes (or cards), rings (or direct) between them",
            sends=per_pair,
            source="Jia et al., 2018",
            outlined=True,
        ),
        Algorithm(
            "chain_tree",
            ("allreduce",),
            "chains inside the nodes, a double binary tree between them",
            sends=per_channel,
            turned=True,
            source="Blink+ report, section 2",
        ),
        Algorithm("parameter_server", ("allreduce",), "all to one rank and back", source="MXNet multi-tree wiki page"),
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
            routes=True,
            traffic=True,
            source="Edmonds 1973; Zhao et al. (ForestColl), 2024",
        ),
        Algorithm(
            "few_steps",
            COLLECTIVES,
            "the fewest steps and rounds for a given number of chunks, by search",
            solver=True,
            most_ranks=1024,
            source="Cai et al. (SCCL), PPoPP 2021",
        ),
        Algorithm(
            "few_rounds",
            COLLECTIVES,
            "the quickest messages of a few rounds for one size, by linear programs",
            solver=True,
            most_ranks=256,
            routes=True,
            source="Gilmore and Gomory 1961; Bar-Noy and Kipnis 1992",
        ),
        *(
            Algorithm(name, collectives, summary, solver=True, most_ranks=1024, source=source)
            for name, collectives, summary, source in (
                ("chains", _ALLREDUCE, "Hamiltonian paths in equal channels: the best NCCL can load", _SPANNING),
                ("rings", _ON_TREES, "the most rings that share no lane", f"{_BLINK}, 2018, section 2"),
                (
                    "blink",
                    (*_ON_TREES, "gather", "scatter"),
                    "few trees at the best rate (Blink)",
                    f"{_BLINK}, MLSys 2020",
                ),
                (
                    "blink_hierarchical",
                    _ALLREDUCE,
                    "reduce inside cliques, exchange between them (Blink)",
                    f"{_BLINK}, 2018, section 3.1",
                ),
            )
        ),
        Algorithm(
            "blinkplus",
            _REDUCE_AND_SPREAD,
            "trees through idle GPUs as well (Blink+)",
            solver=True,
            source="Blink+ report, section 4.1",
        ),
        *(
            Algorithm(name, collectives, summary, solver=True, routes=True, in_network=True, source=source)
            for name, collectives, summary, source in (
                ("nvls", _ON_TREES, "switches add what GPUs read and multicast what they store", "NCCL 2.17"),
                ("nvls_one_shot", _ALLREDUCE, "every GPU reads the sum from the switches", "NCCL 2.27"),
                ("packed_in_network", _ON_TREES, "packed trees that may branch in switches", "Jain et al. 2003"),
                ("nvls_tree", _ALLREDUCE, "NVLS inside the nodes, a double binary tree between them", "NCCL 2.18"),
                ("sharp", _ON_TREES, "switches between the nodes add and multicast", "Graham et al. 2016"),
            )
        ),
    )
}


def algorithm(name: str) -> Algorithm:
    """The entry called `name` (``-`` and ``_`` alike), or the one that a Python file registers.

    Raises `InputError` with the nearest names for others, `FileError` for a file that registers none, and `PluginError`
    for one that fails.
    """
    in_file = plugins.split(name)
    if in_file is not None:
        path, inside = in_file
        plugins.run(path)
        name = plugins.named(_homes(), inside.replace("-", "_"), path, "algorithm", "@bs.register_algorithm(...)")
    key = name if name in REGISTRY else name.lower().replace("-", "_")
    if key not in REGISTRY:
        meant = NCCL_NAMES.get(key.replace("_", ""))
        if meant:
            raise InputError(f"unknown algorithm {name!r}: {meant}")
        raise unknown("algorithm", name, REGISTRY, hint=plugins.advice(name))
    return REGISTRY[key]


def candidates(collective: str) -> list[Algorithm]:
    """The algorithms that have the collective and need no solver."""
    return [entry for entry in REGISTRY.values() if entry.supports(collective) and not entry.solver]


def register_algorithm(
    collectives: Sequence[str], *, name: str = "", form: Literal["steps", "forest"] = "steps", only_named: bool = False
) -> Callable[[Fill], Fill]:
    """A decorator that makes an algorithm of a function.

    The function fills the `Plan` that it is given and returns nothing. Its further parameters are options, which
    `synthesize` takes by name. Whatever it builds is verified before it is timed.

    Parameters
    ----------
    collectives : sequence of str
        Those that the function has, such as ``["allreduce"]``; ``plan.collective`` says which one is wanted.
    name : str, optional
        Default: the name of the function. One that was registered before is replaced.
    form : {"steps", "forest"}
        Steps that run one after another, or a tree for each chunk, whose sends may follow each other in pieces.
    only_named : bool
        It takes long, or is an experiment: ``best`` and ``all`` leave it out.

    Returns
    -------
    callable
        The decorator, which returns the function as it is.

    Raises
    ------
    InputError
        For a name that an algorithm of the package has, and for unknown collectives and forms.

    Examples
    --------
    >>> import blinksim as bs
    >>> @bs.register_algorithm(["broadcast"])
    ... def one_by_one(plan):
    ...     everything = plan.add_chunk(1)
    ...     for rank in range(1, plan.n):
    ...         plan.send(0, rank, chunk=everything, op="copy", step=rank - 1)
    >>> bs.project("ring:4@25GB/s", "broadcast", "1GiB", algorithm="one_by_one").algorithm
    'one_by_one'
    """
    if callable(collectives):
        raise InputError("register_algorithm needs the collectives: @bs.register_algorithm(['allreduce'])")
    given = (collectives,) if isinstance(collectives, str) else tuple(collectives)
    wanted = tuple(Collective.of(each).name for each in given)
    if form not in ("steps", "forest"):
        raise InputError(f"form={form!r}: an algorithm's form is steps or forest")

    def register(fill: Fill) -> Fill:
        if not callable(fill) or not signature(fill).parameters:
            raise InputError(f"{fill!r:.60} cannot be an algorithm; register a function that takes a plan")
        own = (entry.name for entry in REGISTRY.values() if entry.fill is None)
        taken = (*own, "best", "all", "nccl")
        key = plugins.new_name(name or fill.__name__, "an algorithm", taken, _homes())
        summary = (fill.__doc__ or "").strip().partition("\n")[0]
        home = plugins.running()
        REGISTRY[key] = Algorithm(key, wanted, summary, only_named, untold, fill=fill, form=form, home=home)
        return fill

    return register


def _homes() -> dict[str, str]:
    """The algorithms from outside the package, and the file that registered each."""
    return {entry.name: entry.home for entry in REGISTRY.values() if entry.fill is not None}
