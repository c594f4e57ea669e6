"""Registry of all algorithms by name: each module beside it has its own entry and is imported when used.

To add one, write a module in this folder with `ENTRY` and `build` (CONTRIBUTING.md shows one); with `fill`
instead, which adds to a plan, or with nothing but the `rounds` of steps, the plan is made here.
`register_algorithm` adds one from outside the package, which a file with Python code may do as well:
``pairs.py`` is the name of the algorithm that the file registers, ``pairs.py:swap`` that of one among
several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from blinksim import collective as collectives, plugins
from blinksim.collective import ALLTOALLV, OF_EXPERTS, ROOTED, Collective
from blinksim.errors import InfeasibleError, InputError, unknown
from blinksim.textio.text_files import read_words

if TYPE_CHECKING:
    from blinksim.schedule.candidate import Candidate
    from blinksim.schedule.model import Schedule
    from blinksim.topology.graph import Topology

AlgorithmName = Literal[
    "ring", "chain", "binary", "binomial", "double_binary", "recursive_doubling", "halving_doubling", "bucket",
    "direct", "rail_aligned", "rail_joined", "bruck", "two_shot", "hierarchical", "hierarchical_direct",
    "hierarchical_multiplying", "hierarchical_trees", "chain_tree", "parameter_server", "mxnet", "packed",
    "few_steps", "few_rounds", "chains", "rings", "blink", "blink_hierarchical", "blinkplus", "nvls", "nvls_one_shot",
    "packed_in_network", "nvls_tree", "sharp", "binomial_blocks", "scatter_allgather", "multiphase",
]  # fmt: skip
"""The names of the registry in the order of lists, for editors too; ``-`` and ``_`` are alike."""

# More sends than this take long to build and gigabytes to hold; those of an exchange in arrays, on 2,048 ranks.
MOST_SENDS, _MOST_IN_ARRAYS = 4_000_000, 2 * 2048**2
Fill = TypeVar("Fill", bound=Callable[..., None])
REDUCE_AND_SPREAD = ("allreduce", "broadcast", "reduce")

Sends = Callable[[int, str], int]


def per_pair(ranks: int, collective: str) -> int:
    """Two for every pair of ranks."""
    return 2 * ranks * ranks


def per_rank(ranks: int, collective: str) -> int:
    """A few for every rank."""
    return 4 * ranks


def per_channel(ranks: int, collective: str) -> int:
    """Some for every channel of every rank."""
    return 64 * ranks


def straight(ranks: int, collective: str) -> int:
    """From every rank to every other, or to or from a root."""
    return (per_rank if collective in ROOTED else per_pair)(ranks, collective)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An entry of the registry.

    solver: building it needs OR-Tools; such algorithms run only when named. sends: about how many sends its
    schedule has for a number of ranks and a collective, where it needs no solver. most_ranks: beyond this
    many, its search takes too long. every_pair: every rank sends to every other. routes: it chooses the route
    of every send, which then is not divided among equals.
    in_network: it needs switches that multicast or reduce, runs only when named, and chooses routes. traffic:
    it has alltoallv, for any traffic matrix. tokens: it has dispatch and combine, for any routing. outlined:
    its module tells the `rounds` of a schedule, alone or besides, for `blinksim.schedule.loads`.
    symmetric: it has the `symmetric` form. fill: what fills the plan of an algorithm from outside. form: of
    schedules that a `fill` makes. file: the one that registered it.
    """

    collectives: tuple[str, ...]
    summary: str
    solver: bool = False
    sends: Sends = per_rank
    most_ranks: int | None = None
    every_pair: bool = False
    routes: bool = False
    in_network: bool = False
    traffic: bool = False
    tokens: bool = False
    outlined: bool = False
    symmetric: bool = False
    fill: Callable[..., None] | None = None
    form: str = "steps"
    file: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "collectives", tuple(Collective.of(each).name for each in self.collectives))

    @staticmethod
    def stated(said: str, path: Path, text: str) -> Algorithm:
        """What a file says by its ``ENTRY``, and by its functions of the forms that a schedule has."""
        own: Algorithm = eval(said, vars(collectives) | globals())
        outlined, symmetric = (f"\ndef {form}(" in text or f"\n{form} = " in text for form in ("rounds", "symmetric"))
        own = replace(own, name=path.stem, outlined=outlined, symmetric=symmetric)
        return replace(own, solver=True, routes=True, form="forest") if own.in_network else own

    def supports(self, collective: str) -> bool:
        more = (self.traffic and collective == ALLTOALLV) or (self.tokens and collective in OF_EXPERTS)
        return more or collective in self.collectives

    def options(self) -> tuple[str, ...]:
        """Names of the options that `build` takes beyond the topology and the collective."""
        module: Any = None if self.fill else import_module(f"blinksim.algorithms.{self.name}")
        fill = self.fill or getattr(module, "fill", None)
        made = fill or getattr(module, "build", None) or module.rounds
        return tuple(signature(made).parameters)[1 if fill else 2 :]

    def sends_on(self, topology: Topology, collective: str) -> int:
        """About how many sends the schedule has; a ring for every GPU of a node, if there are several nodes."""
        rings = topology.ranks // topology.nodes if self.name == "ring" and topology.nodes > 1 else 1
        return self.sends(topology.ranks, collective) * rings

    def check_size(self, ranks: int, collective: str) -> None:
        """Raises `InfeasibleError` if the schedule would be too large to hold, or too slow to search."""
        if self.most_ranks is not None and ranks > self.most_ranks:
            advice = f"(at most {self.most_ranks:,}); take packed"
            raise InfeasibleError(f"{self.name} searches for too long on {ranks:,} ranks {advice}")
        needed = self.sends(ranks, collective)
        most = _MOST_IN_ARRAYS if self.routes and self.traffic else MOST_SENDS
        if not self.solver and needed > most:
            other = "fewer ranks" if "alltoall" in collective else "double_binary or chain_tree, or model=projection"
            many = f"about {needed:,} sends, more than {most:,}"
            raise InfeasibleError(f"{self.name} on {ranks} ranks needs {many}; take {other}")

    def build(self, topology: Topology, collective: Collective, **options: Any) -> Schedule:
        """The schedule of `collective` on the selected `topology`; raises `InfeasibleError` if there is none."""
        return self.parallel(topology, collective, **options).schedule

    def parallel(self, topology: Topology, collective: Collective, **options: Any) -> Candidate:
        """The schedule as `build` gives it, with the parallel routes that its sends are divided among not written out.

        Those that choose the route of every send keep it.
        """
        from blinksim.schedule.candidate import Candidate, cached
        from blinksim.schedule.loads import Outline

        if not self.supports(collective.name):
            others = ", ".join(other.name for other in REGISTRY.values() if other.supports(collective.name))
            raise InfeasibleError(f"there is no {self.name} {collective.name}; algorithms that have it: {others}")
        if options:
            return self._parallel(topology, collective, **options)

        def build() -> Candidate:
            if not self.outlines(topology, collective):
                return self._parallel(topology, collective)
            rounds = import_module(f"blinksim.algorithms.{self.name}").rounds(topology, collective)
            outline = Outline(topology, collective, self.name, rounds)
            return Candidate(outline, build=lambda: self._parallel(topology, collective))

        # Where a topology was loaded from does not make it another one, but is part of the answer.
        return cached((self, topology, topology.loaded_from, collective), build)

    def outlines(self, topology: Topology, collective: Collective) -> bool:
        """Whether the schedule has so many sends that its steps are timed without them."""
        from blinksim.schedule import loads
        from blinksim.topology.symmetry import node_group

        if not self.outlined or collective.data is not None:
            return False
        # `uses_of_every_pair` has routes to look up for a few ranks only.
        if self.every_pair and not collective.rooted and topology.ranks * (topology.ranks - 1) > loads.MOST_PAIRS:
            return node_group(topology) is not None
        return self.sends_on(topology, collective.name) > loads.MANY_SENDS

    def _parallel(self, topology: Topology, collective: Collective, **options: Any) -> Candidate:
        from blinksim.algorithms.building.plan import Plan, SwitchPlan, filled
        from blinksim.schedule.candidate import Candidate

        self.check_size(topology.ranks, collective.name)
        schedule: Schedule
        if self.fill is not None:
            schedule = filled(self.name, self.fill, self.form, topology, collective, **options)
        elif hasattr(module := import_module(f"blinksim.algorithms.{self.name}"), "build"):
            schedule = module.build(topology, collective, **options)
        else:
            plan = (SwitchPlan if self.in_network else Plan)(topology, collective, self.name, self.form)
            if hasattr(module, "fill"):
                module.fill(plan, **options)
            else:
                plan.add_rounds(module.rounds(topology, collective, **options))
            schedule = plan.finish(rounded=True)
        return Candidate(schedule) if self.routes else Candidate.of(schedule)


_PLACES = {name: place for place, name in enumerate(get_args(AlgorithmName))}
_FOUND = plugins.entries("blinksim.algorithms", "*.py", "ENTRY", Algorithm.stated)
_LISTED = sorted(_FOUND, key=lambda entry: (_PLACES.get(entry.name, len(_PLACES)), entry.name))
REGISTRY = {entry.name: entry for entry in _LISTED}
"""All algorithms in the order of lists: those of the package, and those that are registered."""


def algorithm(name: str) -> Algorithm:
    """The entry called `name` (``-`` and ``_`` alike), or the one that a Python file registers.

    Raises `InputError` with the nearest names for others, `FileError` for a file that registers none, and
    `PluginError` for one that fails.
    """
    if (in_file := plugins.split(name)) is not None:
        path, inside = in_file
        plugins.run(path)
        name = plugins.named(REGISTRY, inside.replace("-", "_"), path, "algorithm", "@bs.register_algorithm(...)")
    key = name if name in REGISTRY else name.lower().replace("-", "_")
    if key not in REGISTRY:
        # Names of NCCL (without _ and -) are no entries.
        if meant := read_words("algorithm").get(key.replace("_", "")):
            raise InputError(f"unknown algorithm {name!r}: {meant}")
        raise unknown("algorithm", name, REGISTRY, hint=plugins.advice(name))
    return REGISTRY[key]


def candidates(collective: str) -> list[Algorithm]:
    """The algorithms that have the collective and need no solver."""
    return [entry for entry in REGISTRY.values() if entry.supports(collective) and not entry.solver]


def register_algorithm(
    collectives: Sequence[str], *, name: str = "", form: Literal["steps", "forest"] = "steps", only_named: bool = False
) -> Callable[[Fill], Fill]:
    """Register a function as an algorithm (decorator).

    The function fills the `Plan` that it is given and returns nothing. Its further parameters are options,
    which `synthesize` takes by name. Whatever it builds is verified before it is timed.

    Parameters
    ----------
    collectives : sequence of str
        Those that the function has, such as ``["allreduce"]``; ``plan.collective`` says which one is wanted.
    name : str, optional
        Default: the name of the function. One that was registered before is replaced.
    form : {"steps", "forest"}
        Steps that run one after another, or a tree for each chunk, whose sends may follow each other in
        pieces.
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
    asked = Algorithm((collectives,) if isinstance(collectives, str) else tuple(collectives), "", only_named)
    if form not in ("steps", "forest"):
        raise InputError(f"form={form!r}: an algorithm's form is steps or forest")

    def register(fill: Fill) -> Fill:
        if not callable(fill) or not signature(fill).parameters:
            raise InputError(f"{fill!r:.60} cannot be an algorithm; register a function that takes a plan")
        own = (entry.name for entry in REGISTRY.values() if entry.fill is None)
        taken = (*own, "best", "all", "unsearched", "nccl")
        key = plugins.new_name(name or fill.__name__, "an algorithm", taken, REGISTRY)
        summary = (fill.__doc__ or "").strip().partition("\n")[0]
        file = plugins.running()
        REGISTRY[key] = replace(asked, summary=summary, fill=fill, form=form, file=file, name=key)
        return fill

    return register
