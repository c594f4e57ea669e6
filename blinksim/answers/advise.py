"""Advice on what to load: a schedule that is quicker than what the library does by itself.

What the library takes, what the collective could take and cannot take less are as in `blinksim.project`; so
is what NCCL takes with a graph file (`blinksim.answers.project.with_file`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from blinksim import exports
from blinksim.algorithms.registry import MOST_SENDS
from blinksim.answers.idle_gpus import IDLE_GPUS, carrier
from blinksim.answers.project import BEST, LINKS_ONLY, Answer, answer, contest, meanwhile, schedules, with_file
from blinksim.bounds.bound_result import Bound
from blinksim.bounds.compute import best_known
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import BlinksimError, InfeasibleError
from blinksim.machines import MachineLike, Question, as_topology
from blinksim.nccl.files import graph_file
from blinksim.nccl.tuner.tuner import COLLECTIVES
from blinksim.results import Result, keyed
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.textio.safe_xml import MAX_ELEMENTS
from blinksim.textio.text_files import Exported
from blinksim.timing.contest import Contest, ceiling_of
from blinksim.timing.library_model import Library, sent_by
from blinksim.timing.measured.library_rates import NCCL
from blinksim.timing.measured_constants import NVLS
from blinksim.timing.nccl_model import SAME
from blinksim.timing.projection_result import OF_RUNS, Projection
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, format_size, format_time, in_GBps, size_of

SIZE = 256 * 2**20
# NCCL's search tries bandwidths in steps of about a tenth, and its file is for experiments: less is not worth
# it.
WORTH = 1.1
# Solvers run up to this many ranks; beyond, only algorithms that need none.
MOST_RANKS = 64
# MSCCL's executors are NCCL 2.12 and 2.18 underneath, which are older than GPUs above this compute capability.
_MSCCL_SM = 90
# Between nodes NCCL keeps to shapes of its own, which the solvers' schedules do not have.
_FOR_NCCL, _BETWEEN_NODES = ("ring", "rings", "chains", "chain_tree"), ("ring", "chain_tree")


@dataclass(frozen=True)
class Option:
    """A schedule that could run, and its time in seconds. exported: what a runtime would read, if any."""

    candidate: Candidate
    time_s: float
    format: str = ""
    exported: Exported | None = None

    @classmethod
    def quickest(cls, rivals: Contest, found: Answer) -> Option:
        """The quickest schedule that can be written out; raises `InfeasibleError` if there is none.

        It is verified if it is worth loading.
        """
        built, worth = rivals.at(found.size).candidates, own_time(found, rivals.topology) / WORTH
        for timed in found.could.projections if found.could else ():
            candidate = built[timed.algorithm]
            with suppress(InfeasibleError):  # too large to write out, as its time needs no sends
                few, slow = candidate.sends <= MOST_SENDS, timed.time_s > worth
                if few and (slow or verify(candidate.by_symmetry or candidate.schedule).ok):
                    return cls(candidate, timed.time_s)
        many = f"every schedule here has more than {MOST_SENDS:,} sends; take fewer ranks"
        raise InfeasibleError(rivals.refused.get(BEST, many))

    @property
    def algorithm(self) -> str:
        return self.candidate.compact.algorithm

    @property
    def schedule(self) -> Schedule:
        return self.candidate.schedule


def own_time(found: Answer, part: Topology) -> float:
    """Seconds of the library's algorithm: with the library, or on the links alone if that is less."""
    own = {*str(found.details["choice"]).split()[:1], *sent_by(part, found.collective)}
    timed = found.could.projections if found.could else ()
    alone = (found.meanwhile or found).time_s
    return min([alone, *(p.time_s for p in timed if own & {p.algorithm, SAME.get(p.algorithm)})])


def graph_files(question: Question, library: Library, found: Answer, links: Topology) -> Iterator[Option]:
    """The schedules that NCCL reads from graph files, and what it then takes; none where it is not modelled.

    links: at the rates of what it could take. Chains through relays run as communicators of their own, in the time of
    their links at least.
    """
    collective, size = found.collective, found.size
    stated = library.stated(collective, size)
    if stated is None or found.least is None:
        return
    part = replace(question.preferring_known("nccl"), collective=collective).part()
    names = _FOR_NCCL if len(nodes_of(part, part.members)) == 1 and part.ranks <= MOST_RANKS else _BETWEEN_NODES
    # What cannot pay on any links, as beside switches that add, need not be built.
    for name in names if size / float(ceiling_of(part, collective).rate) * WORTH <= stated.time_s else ():
        try:
            rivals = contest(part, collective, [name], model=LINKS_ONLY, sizes=[size])
            option = Option(rivals.at(size).candidates[name], rivals.projections(size)[0].time_s)
            # What cannot pay need not be written out, which takes much longer.
            if option.time_s * WORTH > stated.time_s or option.candidate.sends > MOST_SENDS:
                continue
            written = exports.find("nccl-graph").export(option.schedule)
            file = graph_file.read_text(written.files[""], "graph.xml")
            kind = "tree" if "tree" in written.environment.get("NCCL_ALGO", "") else "ring"
            time_s = with_file(library, found, file, (kind, "Simple")).time_s
        except BlinksimError:
            continue
        yield replace(option, time_s=time_s, format="nccl-graph", exported=written)
    if links.relays:
        with suppress(BlinksimError):
            rivals = contest(links, collective, ["blinkplus"], model=LINKS_ONLY, sizes=[size])
            option = Option(rivals.candidates["blinkplus"], rivals.projections(size)[0].time_s, "nccl-graph-set")
            yield replace(option, exported=exports.find("nccl-graph-set").export(option.schedule))


def _for_msccl(best: Option, part: Topology) -> Option | None:
    """The schedule as a program of MSCCL; None where that does not run on the GPUs, or cannot hold it."""
    generations = (part.device(name).attributes.get("sm") for name in part.members)
    newer = any(isinstance(sm, int) and sm > _MSCCL_SM for sm in generations)
    # In such a file a send is two steps.
    if not newer and 2 * best.candidate.sends <= MAX_ELEMENTS:
        with suppress(BlinksimError):
            return replace(best, format="msccl-xml", exported=exports.find("msccl-xml").export(best.schedule))
    return None


@dataclass(frozen=True)
class NvlsGain:
    """A collective of `size` bytes with NVLS and without.

    Attributes
    ----------
    collective : str
        Its name.
    size : int
        Bytes.
    enabled : bool
        True if NVLS is on in the answer that this is part of.
    on, off : Projection
        What NCCL takes.
    at_most : float
        By how much the bounds for switches that add exceed those for switches that only forward.
    least : int, optional
        The first power of two from 1 KiB on at which NCCL takes NVLS; None if it never does.
    """

    collective: str
    size: int
    enabled: bool
    on: Projection
    off: Projection
    at_most: float
    least: int | None

    @property
    def taken(self) -> bool:
        """True if NCCL takes NVLS at this size where it may."""
        return str(self.on.details["choice"]).startswith(NVLS)

    @property
    def ratio(self) -> float:
        """How many times as long the collective takes without NVLS."""
        return self.off.time_s / self.on.time_s

    def sentence(self) -> str:
        """Its worth, in words."""
        picked = self.on.details["choice"]
        if not self.taken and self.at_most <= 1:
            why = f"nothing to gain for {self.collective}: the busier way of a port carries as much with it"
            return f"{why}; NCCL takes {picked}"
        if not self.taken:
            first = f"; it takes NVLS from {format_size(self.least)} on" if self.least is not None else ""
            return f"no effect here: NCCL takes {picked} either way{first}"
        most = f" ({self.at_most:.3g} times by the bounds of the links alone)" if self.at_most > 1 else ""
        on, off = (f"{one.details['choice']}: {format_time(one.time_s)}" for one in (self.on, self.off))
        ratio = f"{self.ratio:.3g}"
        times = "about as" if ratio == "1" else f"{ratio} times as"
        if not self.enabled:
            return f"off; with it NCCL takes {on}, {times} fast{most}"
        length = f"{times} long" if self.ratio >= 1 else f"only {ratio} of the time"
        return f"on; without it (NCCL_NVLS_ENABLE=0) NCCL takes {off}, {length}{most}"

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        on, off = (keyed(one, "@NvlsGain.way", choice=one.details["choice"]) for one in (self.on, self.off))
        return keyed(self, "enabled taken on off ratio at_most from_bytes=least", on=on, off=off)


def nvls_gain(library: Library, part: Topology, collective: Collective, size: int) -> NvlsGain | None:
    """The worth of NVLS for `size` bytes on a part of the library's machine; None where it cannot be used."""
    other = Library(version=library.version, multicast=not library.multicast).at(library.question)[0]
    on, off = (library, other) if library.multicast else (other, library)
    able = on.prediction
    if able is None or NVLS not in able.graphs or collective.name not in COLLECTIVES:
        return None
    used = [1 << n for n in range(10, 35) if able.best(collective.name, 1 << n).algorithm.startswith(NVLS)]
    with_it, without = (one.times(one.machine, collective, [size])[0] for one in (on, off))
    bound = ceiling_of(part, collective)
    wider = float(bound.in_network[0] / bound.rate) if bound.in_network else 1.0
    found = NvlsGain(collective.name, size, library.multicast, with_it, without, wider, min(used, default=None))
    return found if found.taken else replace(found, off=with_it)


@dataclass(frozen=True, repr=False)
class Advice(Result):
    """Advice on what to load into NCCL (`load`) or another runtime (`alternative`), if anything pays.

    Attributes
    ----------
    part : Topology
        The part of the machine that takes part.
    answer : Answer
        What the library takes, could take, and cannot take less, as `blinksim.project` says.
    bound : Bound
        What no schedule exceeds, with its certificate.
    best : Option
        The quickest schedule found of those that can be written out.
    loadable : Option, optional
        The quickest that NCCL reads from a graph file, among those that might be worth it.
    other : Option, optional
        `best` for MSCCL or RCCL (`runtime`), where it is quicker than what the library does.
    runs : bool
        The library reads schedules: NCCL, or RCCL within a node.
    large : bool
        Bandwidth decides at this size; if latency does, times of two models are not comparable.
    nvls : NvlsGain, optional
        What switches that add are worth; None where NCCL cannot use any.

    Examples
    --------
    >>> import blinksim as bs
    >>> machine = bs.load("dgx1-v100")
    >>> found = bs.advise(machine.select([1, 4, 5, 7]), machine=machine)
    >>> found.load.format, found.load.time_s < found.answer.time_s
    ('nccl-graph', True)
    """

    part: Topology
    answer: Answer
    bound: Bound
    best: Option
    loadable: Option | None
    other: Option | None
    runs: bool
    large: bool
    nvls: NvlsGain | None = None

    @property
    def load(self) -> Option | None:
        """The schedule to load into NCCL; None if none pays."""
        return self._paying(self.loadable, self.answer.meanwhile or self.answer)

    @property
    def alternative(self) -> Option | None:
        """The schedule to run with another runtime; None if none pays."""
        return self._paying(self.other, self.load or self.answer.meanwhile or self.answer)

    def _paying(self, found: Option | None, beside: Option | Projection) -> Option | None:
        """A schedule that is quicker than what it stands beside by enough, where bandwidth decides."""
        return found if found and self.large and found.time_s * WORTH <= beside.time_s else None

    @property
    def carried_by(self) -> str:
        """What runs a schedule through the relays, in words; empty where there are none."""
        return carrier(self.part, self.answer.collective) if self.part.relays else ""

    @property
    def runtime(self) -> str:
        """The runtime that reads MSCCL programs on these GPUs."""
        return "MSCCL" if self.answer.library == NCCL else self.answer.library

    def sentence(self) -> str:
        """The advice in one line."""
        found, library, best = self.answer, self.answer.library, self.best
        what = f"{found.collective} of {format_size(found.size)} on {self.part.taking_part}"
        takes = f"{format_time(found.time_s)} with {library}"
        for option, runtime in ((self.load, library), (self.alternative, self.runtime)):
            if option is not None:
                # On the links alone no launch is counted, as the library's time counts it.
                launched = option.format == "nccl-graph" or (found.could is not None and found.could.best.launches)
                gain = f"{'' if launched else 'at most '}{found.time_s / option.time_s:.2g} times as fast"
                times = f"{format_time(option.time_s)} in place of {takes}"
                return f"{what}: load {option.algorithm} into {runtime}: {times}, {gain}"
        if (spared := found.meanwhile) and spared.time_s * WORTH <= found.time_s:
            return f"{what}: {meanwhile(spared, found)}, in place of {takes}"
        what = f"{what}: nothing worth loading; {takes}"
        if best.time_s * WORTH > found.time_s:
            return f"{what}, and no known schedule is a tenth quicker"
        if not self.large:
            return f"{what}, and latency decides at this size"
        if self.part.relays and best.time_s * WORTH <= own_time(found, self.part):
            through = f"{format_time(best.time_s)} by {best.algorithm} through relays"
            return f"{what}, at least {through}; {self.carried_by}"
        if not self.runs:
            return f"{what}, which reads no schedules{' of several nodes' * (library == 'RCCL')}"
        if best.time_s * WORTH > (own := own_time(found, self.part)):
            alone = f"on the links alone {library}'s schedule takes {format_time(own)}"
            return f"{what}; {alone}, and no known one is a tenth quicker"
        runtimes = " or ".join(dict.fromkeys((library, self.runtime)))
        return f"{what}, and no file makes {runtimes} take the {format_time(best.time_s)} of {best.algorithm}"

    def lines(self, every: bool = False) -> list[tuple[str, str]]:
        """The lines below the sentence, as labels and texts. every: also that NVLS changes nothing."""
        nvls = self.nvls if self.nvls and (self.nvls.taken or every) else None
        carried = self.answer.idle.words(carried=True) if self.answer.idle else ""
        alone = f" with {self.answer.library} alone" if self.load or self.alternative else ""
        found = [(label, carried if label == IDLE_GPUS else text) for label, text in self.answer.lines(alone)]
        found += [("relays", self.carried_by)] if self.carried_by else []
        return found + ([("NVLS", nvls.sentence())] if nvls else [])

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints; ``takes`` has those of `blinksim.project`."""

        def shown(option: Option) -> dict[str, Any]:
            reached, executor = option.candidate.rate, timed.executor if option is self.best else ""
            keys = f"algorithm time_s {executor and 'executor'} algbw_GBps rate_exact format environment"
            own: dict[str, Any] = {"executor": executor, "format": option.format or None}
            own |= {"environment": dict(option.exported.environment) if option.exported else {}}
            own |= {"rate_exact": exact_GBps(reached) if reached else None}
            return keyed(option, keys, algbw_GBps=in_GBps(found.size / option.time_s), **own)

        found, proof = self.answer, self.bound.certificate
        timed = found.could.best if found.could else found
        choice, origin = found.details["choice"] or found.algorithm, found.details["origin"] if found.known else None
        said = keyed(found, "collective=collective.name size_bytes=size model", model=timed.model)
        said |= keyed(timed.details, OF_RUNS) | keyed(self, "bound_exact=bound.rate bound_scope=bound.scope")
        said |= {"bound_words": proof.words(self.part), "certificate": proof.to_dict()}
        values: dict[str, Any] = {"library": found.library.lower(), "takes": found.to_dict()}
        values["nccl"] = keyed(found, "@Advice.nccl", choice=choice, measured_on=origin)
        values["nvls"] = self.nvls and self.nvls.to_dict()
        said |= keyed(found, "least_time_s=least.time_s library takes nccl nvls weakest?", **values)
        options = {key: (one := getattr(self, key)) and shown(one) for key in ("best", "load", "alternative")}
        return said | keyed(self, "carried_by?") | options

    def rows(self) -> list[dict[str, Any]]:
        """One row each for the library's own choice, the best schedule, and the schedule to load.

        use: ``nccl``, ``best``, ``load`` or ``alternative``. of_bound: algbw as a share of the bound.
        of_least_time: the least time of any schedule at this size as a share of the time.
        """
        found, options = self.answer, {"best": self.best, "load": self.load, "alternative": self.alternative}
        timed = [("nccl", found.details["choice"] or found.algorithm, "", found.time_s)]
        timed += [(use, o.algorithm, o.format, o.time_s) for use, o in options.items() if o is not None]
        rows = []
        for use, name, kind, time_s in timed:
            algbw, least = found.size / time_s, found.least.time_s if found.least else 0.0
            figures = {"of_bound": algbw / float(self.bound.rate), "of_least_time": least / time_s}
            named = {"use": use, "algorithm": name, "format": kind or None, "time_s": time_s}
            rows.append({**named, "algbw_GBps": in_GBps(algbw), **figures})
        return rows


def advise(
    part: MachineLike | Question,
    collective: CollectiveLike = "allreduce",
    size: int | float | str = SIZE,
    *,
    machine: MachineLike | None = None,
    multicast: bool = True,
    rates: str | None = None,
) -> Advice:
    """Advise what to load into NCCL or another runtime, if anything beats what the library does by itself.

    Parameters
    ----------
    part : str, path, Topology or Question
        The part of the machine that the collective runs on, or a whole machine.
    collective : str or Collective
        Such as ``"allreduce"``.
    size : int or str
        Bytes, or text such as ``"256MiB"``.
    machine : str, path or Topology, optional
        The machine that `part` was selected from.
    multicast : bool
        True if NCCL may use NVLS.
    rates : str, optional
        The table of rates of the schedules. Default: as `blinksim.project` takes them.

    Returns
    -------
    Advice
        What the library takes, the best schedule, and what is worth loading.

    Raises
    ------
    InputError
        For unknown names.
    InfeasibleError
        If the links do not connect the members, or no schedule can be written out.

    Examples
    --------
    >>> import blinksim as bs
    >>> machine = bs.load("dgx1-v100")
    >>> bs.advise(machine.select([1, 4, 5, 7]), machine=machine).load.algorithm
    'chains'
    """
    wanted, size = Collective.of(collective), size_of(size)
    question = part if isinstance(part, Question) else Question(as_topology(part))
    if not isinstance(part, Question) and machine is not None:
        question = Question.of_part(as_topology(part), as_topology(machine))
    question = replace(question, rates=rates or question.rates)
    library = Library(multicast=multicast).at(question)[0]
    # What comes next is loaded where the quickest cannot be written out.
    rivals = schedules(question, wanted, [size], only_best=False)
    [found] = answer(question, wanted, [size], library=library, contest=rivals)
    chosen = library.bounded(wanted)[0]
    best = Option.quickest(rivals, found)
    stated = library.stated(wanted, size) or (found.could.best if found.could else found)
    large = sum(term.time_s for term in stated.terms if term.limit == "alpha") < 0.5 * stated.time_s
    # Where latency decides, or the bound is near, no file pays.
    pays = large and (found.least is None or found.least.time_s * WORTH <= found.time_s)
    files = graph_files(question, library, found, rivals.topology) if pays else ()
    runs = library.prediction is not None or (library.library == "RCCL" and library.nodes == 1)
    quicker = large and runs and best.time_s * WORTH <= own_time(found, chosen)
    other = _for_msccl(best, chosen) if quicker else None
    proved = best_known(chosen, wanted, found.grants).headline
    nvls = nvls_gain(library, chosen, wanted, size)
    quickest = min(files, key=lambda option: option.time_s, default=None)
    return Advice(chosen, found, proved, best, quickest, other, runs, large, nvls)
