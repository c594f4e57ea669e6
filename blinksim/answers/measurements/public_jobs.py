"""Jobs of published tables: the part of the machine, its bound, and NCCL's predicted time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from blinksim.bounds.bound_result import granted_to_switches
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.machines import load
from blinksim.nccl.tuner import tuner
from blinksim.nccl.tuner.constants import nearest
from blinksim.nccl.tuner.prediction import Prediction
from blinksim.nccl.tuner.tuner import Timing
from blinksim.question import Question
from blinksim.timing.contest import ceiling_of
from blinksim.timing.measured import library_rates
from blinksim.timing.measured.library_time import NCCL, LibraryJob, LibraryTime, library_time, nccl_time
from blinksim.timing.measured.public_tables import Cell
from blinksim.timing.nccl_model import NcclTuner, most_channels
from blinksim.timing.projection_result import Ceiling
from blinksim.topology.elements import BRANCHING
from blinksim.topology.graph import Topology

# NCCL plans larger NVLink domains as many nodes, which its model here does not.
_MOST_GPUS_A_NODE = 16


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> list[tuple[Any, list[Any]]]:
    """The items by their keys, in the order in which keys first come."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.items())


def job_of(cell: Cell) -> tuple[Any, ...]:
    """What cells of one curve have in common."""
    return cell.set, cell.collective, cell.nodes, cell.gpus, cell.placement, cell.nvls


def with_places(cells: Iterable[Cell]) -> list[tuple[Cell, bool]]:
    """The cells in their order, each with whether constants were fitted to it."""
    cells = list(cells)
    told: dict[int, bool] = {}
    for _, alike in grouped(cells, job_of):
        for place, cell in enumerate(sorted(alike, key=lambda cell: cell.size)):
            told[id(cell)] = library_rates.fitted(cell, place)
    return [(cell, told[id(cell)]) for cell in cells]


def question_of(machine: str, cell: Cell) -> Question:
    """The part of the machine that took part."""
    each = cell.gpus // cell.nodes
    if cell.set.members:
        return Question(machine, nodes=cell.nodes, members=cell.set.members)
    if cell.nodes > 1:
        return Question(machine, nodes=cell.nodes, ranks_per_node=each)
    return Question(machine, members=f"0-{each - 1}" if each > 1 else "0")


class Jobs:
    """The jobs of a machine; what NCCL finds for the same GPUs is searched for once, and so are bounds."""

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self._plans: dict[Any, Prediction | None] = {}
        self._parts: dict[Question, Topology | None] = {}
        self._bounds: dict[Any, Ceiling | None] = {}

    @cached_property
    def whole(self) -> Topology:
        """One node."""
        return load(self.machine)

    def bound(self, cell: Cell) -> Ceiling | None:
        """The bound at nominal rates; switches do what their file says that they can, unless they were told not to."""
        question, collective = question_of(self.machine, cell), Collective(cell.collective)
        grants = not collective.personalized and cell.nvls in ("on", "unknown") and cell.adds_in_switches
        key = question, collective, grants
        if key not in self._bounds:
            part = self._part(question)
            able = _abilities(part) if grants and part is not None else ()
            granted = (granted_to_switches(able),) if able else ()
            self._bounds[key] = None if part is None else ceiling_of(part, collective, granted, able)
        return self._bounds[key]

    def _part(self, question: Question) -> Topology | None:
        if question not in self._parts:
            try:
                self._parts[question] = question.part()
            except BlinksimError:
                self._parts[question] = None
        return self._parts[question]

    def nccl_takes(self, cell: Cell) -> Timing | None:
        """What NCCL's own model says that NCCL takes, or what it was told to; None where it says nothing."""
        plan = self._plan(cell)
        if plan is None:
            return None
        told = cell.set.algorithm.replace(" (forced)", "").replace(", ", "/").lower()
        timed = plan.times(cell.collective, cell.size)
        if told and "(default)" not in told:
            timed = [one for one in timed if f"{one.algorithm}/{one.protocol}".lower().startswith(told)]
        return min(timed, key=lambda one: one.time_s, default=None)

    def in_file(self, cell: Cell, timing: Timing | None) -> bool:
        """True if NCCL's constants in the machine's own file give the time; timing: what NCCL takes."""
        return nccl_time(self.machine, self.whole.nccl_rates, self._job(cell), cell.size, timing) is not None

    def expected(self, cell: Cell, timing: Timing | None) -> LibraryTime | None:
        """The time by constants; timing: what NCCL takes."""
        return library_time(self.machine, self.whole.nccl_rates, self._job(cell), cell.size, timing)

    def _job(self, cell: Cell) -> LibraryJob:
        plan = self._plan(cell)
        switched = any(device.kind == "switch" for device in self.whole.devices)
        near = plan is not None and plan.ring.type_intra == "NVL"
        channels = most_channels(plan) if plan else 0
        return LibraryJob(cell.collective, cell.gpus, cell.nodes, cell.set.library, channels, switched and near)

    def _plan(self, cell: Cell) -> Prediction | None:
        """What NCCL finds for the GPUs of a cell; None where another library ran or its model says nothing."""
        runs = cell.set.library.startswith(NCCL) and cell.gpus <= _MOST_GPUS_A_NODE * cell.nodes
        if not runs or cell.collective not in tuner.COLLECTIVES:
            return None
        key = cell.nodes, cell.gpus, cell.set.members, cell.set.version, cell.adds_in_switches
        if key not in self._plans:
            model = NcclTuner(version=nearest(cell.set.version), multicast=cell.adds_in_switches)
            try:
                model, topology = model.at(question_of(self.machine, cell).preferring_known("nccl"))
                self._plans[key] = model.prediction(topology)
            except BlinksimError:
                self._plans[key] = None
        return self._plans[key]


def _abilities(part: Topology) -> tuple[str, ...]:
    """What switches inside the nodes can do besides forwarding."""
    able = frozenset[str]().union(*(device.in_network for device in part.devices if device.node >= 0))
    return tuple(grant for grant in BRANCHING if grant in able)
