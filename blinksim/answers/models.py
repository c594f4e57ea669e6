"""The same algorithm by several models: alpha-beta, simulation and NCCL's tuner, for the same sizes.

NCCL's tuner knows rings and trees with its own channels (`blinksim.nccl.tuner.tuner`); its two trees mirror
each other, so it is compared with ``double_binary``. Where models differ much, an assumption of one does not hold
there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from blinksim.algorithms.registry import AlgorithmName
from blinksim.answers.compare import part_lines
from blinksim.collective import Collective, CollectiveName
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import MachineLike, as_topology
from blinksim.results import Result
from blinksim.textio.text_table import table
from blinksim.timing import model_registry
from blinksim.timing.candidates import each
from blinksim.timing.projection_result import Projection
from blinksim.timing.timing_model import TimingModel
from blinksim.topology.graph import Topology
from blinksim.units import Sizes, format_size, sizes_of


@dataclass(frozen=True)
class Models(Result):
    """The same algorithms by several models, as `across_models` finds them.

    Attributes
    ----------
    topology : Topology
        The part that takes part.
    collective : Collective
        What runs.
    sizes : tuple of int
        Bytes, ascending.
    algorithms, models : tuple of str
        As asked.
    found : dict
        Projections by size, algorithm and model; those without an answer are left out.
    refused : dict
        Their reasons, by algorithm and model.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.across_models("dgx1-v100", "allreduce", ["1MiB"], ["alpha-beta", "nccl-tuner"], ["ring"])
    >>> found.sentence()
    'allreduce on dgx1-v100: the same algorithm by alpha-beta, nccl-tuner'
    """

    topology: Topology
    collective: Collective
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]
    models: tuple[str, ...]
    found: dict[tuple[int, str, str], Projection]
    refused: dict[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """One row per size, algorithm and model; ratio: its time over that of the first model."""
        rows = []
        for size in self.sizes:
            for name in self.algorithms:
                first = self.found.get((size, name, self.models[0]))
                for model in self.models:
                    projection = self.found.get((size, name, model))
                    if projection is None:
                        continue
                    ratio = projection.time_s / first.time_s if first else None
                    timed = {key: projection.row()[key] for key in ("time_s", "algbw_GBps", "busbw_GBps", "rates")}
                    rows.append({"size_bytes": size, "algorithm": name, "model": model, **timed, "ratio": ratio})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The rows, and the refused pairs of algorithm and model with the reasons."""
        return {"collective": self.collective.name, "rows": self.rows(), "refused": self.refused}

    def sentence(self) -> str:
        """What is compared."""
        return f"{self.collective} on {self.topology.name}: the same algorithm by {', '.join(self.models)}"

    def text(self, edits: Sequence[str] = ()) -> str:
        """One line per size and algorithm: algbw by each model, and the time over that of the first.

        edits: of the machine.
        """
        header = ["size", "algorithm", self.models[0]]
        for model in self.models[1:]:
            header += [model, "time"]
        cells = [self._line(size, name) for size in self.sizes for name in self.algorithms]
        lines = [self.sentence(), "\n  algbw in GB/s, and the time over that of the first model\n"]
        lines.append(table(header, cells, left=(1,)) + "\n")
        lines += part_lines(self.topology, edits=edits)
        lines += [f"  {what}: {reason}" for what, reason in self.refused.items()]
        return "\n".join(lines)

    def _line(self, size: int, name: str) -> list[str]:
        first = self.found.get((size, name, self.models[0]))
        line = [format_size(size), name]
        for place, model in enumerate(self.models):
            timed = self.found.get((size, name, model))
            line.append("-" if timed is None else f"{timed.algbw_GBps:.4g}")
            if place:
                line.append("-" if timed is None or first is None else f"{timed.time_s / first.time_s:.2f}x")
        return line

    def _repr_html_(self) -> str:
        frame = self.to_frame().pivot(index="size_bytes", columns=["algorithm", "model"], values="algbw_GBps")
        return f"<p>algbw, GB/s</p>{frame.to_html(float_format='{:.3g}'.format)}"


def across_models(
    machine: MachineLike,
    collective: Collective | CollectiveName | str,
    sizes: Sizes,
    models: Sequence[model_registry.ModelName | str | TimingModel] | None = None,
    algorithms: Sequence[AlgorithmName | str] | str = ("ring", "double_binary"),
    report: Callable[[str], None] | None = None,
) -> Models:
    """Times the named algorithms by each model.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology, whole or as `Topology.select` gives it.
    collective : str or Collective
        Such as ``"allreduce"``.
    sizes : iterable of int or str, or str
        Bytes, or text such as ``"1MiB"`` or ``"1KiB:1GiB:x4"``.
    models : sequence of str or TimingModel, optional
        Default: all that time schedules. ``nccl-tuner`` needs a whole machine; for a selection give a
        `blinksim.timing.nccl_model.NcclTuner` that knows the machine.
    algorithms : sequence of str
        Names that the models know.
    report : callable, optional
        Called with a progress message.

    Returns
    -------
    Models
        A projection for each size, algorithm and model that has one.

    Raises
    ------
    InputError
        For unknown names.
    InfeasibleError
        If no model has an answer.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.across_models("dgx1-v100", "allreduce", ["256MiB"], algorithms=["ring"])
    >>> [(row["model"], round(row["ratio"], 2)) for row in found.rows()]
    [('alpha-beta', 1.0), ('simulate', 1.0)]
    """
    topology, chosen = as_topology(machine), Collective.of(collective)
    ordered = sizes_of(sizes)
    named = _usual(topology) if models is None else models
    if not named or not algorithms:
        raise InputError("no models or algorithms to compare")
    timing = [_model(model) for model in named]
    names = tuple(dict.fromkeys(str(name).strip() for name in each(algorithms)))
    found: dict[tuple[int, str, str], Projection] = {}
    refused: dict[str, str] = {}
    for model in timing:
        for name in names:
            if report is not None:
                report(f"{name} by {model.name}")
            try:
                timed = model.times(topology, chosen, ordered, [name], report)
            except InfeasibleError as error:
                refused[f"{name}, {model.name}"] = str(error)
                continue
            found |= {(projection.size, name, model.name): projection for projection in timed}
    if not found:
        raise InfeasibleError("; ".join(refused.values()))
    shown = tuple(model.name for model in timing)
    return Models(topology.selected(), chosen, ordered, names, shown, found, refused)


def _usual(topology: Topology) -> list[str]:
    """The models that time schedules there, each by its own name."""
    known = topology.execution is not None
    others = {model_registry.DEFAULT, "execution-closed", *(() if known else ("execution",))}
    return [name for name in model_registry.schedule_models() if name not in others]


def _model(model: str | TimingModel) -> TimingModel:
    if isinstance(model, TimingModel):
        return model
    return model_registry.model(model_registry.check(model, model_registry.MODELS))
