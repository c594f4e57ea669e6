"""The same algorithm by several models: what a closed form, a simulation and NCCL's own tuner say for the same sizes.

NCCL's tuner knows rings and trees with its own channels (`blinksim.nccl.tuner.tuner`); its trees are two that mirror
each other, so it stands beside ``double_binary``. Where models differ much, an assumption of one does not hold there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from blinksim.answers.project import SCHEDULE_MODELS, contest
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError, unknown
from blinksim.results import Result
from blinksim.timing.projection_result import Projection
from blinksim.topology.graph import Topology
from blinksim.units import format_size

TUNER = "nccl-tuner"
MODELS = (*SCHEDULE_MODELS, TUNER)
# What NCCL's tuner calls them.
_TUNED = {"ring": "ring", "tree": "double_binary"}


@dataclass(frozen=True)
class Models(Result):
    """Projections by size, algorithm and model. sizes: bytes, ascending. models: as asked; missing pairs are left out.

    refused: the reason, by algorithm and model, for those that have no answer.
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
                    timed = {key: projection.row()[key] for key in ("time_s", "algbw_GBps", "busbw_GBps")}
                    rows.append({"size_bytes": size, "algorithm": name, "model": model, **timed, "ratio": ratio})
        return rows

    def _repr_html_(self) -> str:
        frame = self.to_frame().pivot(index="size_bytes", columns=["algorithm", "model"], values="algbw_GBps")
        return f"<p>algbw, GB/s</p>{frame.to_html(float_format='{:.3g}'.format)}"


def across_models(
    topology: Topology,
    collective: Collective | str,
    sizes: Iterable[int],
    models: Sequence[str] = SCHEDULE_MODELS,
    algorithms: Sequence[str] = ("ring", "double_binary"),
    tuner: Callable[[int], Sequence[Projection]] | None = None,
    report: Callable[[str], None] = lambda what: None,
) -> Models:
    """Times the named algorithms by each model at `sizes` bytes on a selected topology.

    models: of `MODELS`. tuner: everything that NCCL could choose for a size
    (`blinksim.timing.nccl_model.projections`), of which the best protocol counts; needed for the model
    ``nccl-tuner``. report: told what is being done. Raises `InputError` for unknown names, and `InfeasibleError` if no
    model has an answer.
    """
    chosen = Collective.parse(collective) if isinstance(collective, str) else collective
    ordered = tuple(sorted(set(sizes)))
    if not ordered or not models or not algorithms:
        raise InputError("no sizes, models or algorithms to compare")
    for model in models:
        if model not in MODELS:
            raise unknown("model", model, MODELS)
    if TUNER in models and tuner is None:
        raise InputError(f"the model {TUNER} needs what NCCL would search on this machine")
    part = topology.selected()
    names = tuple(dict.fromkeys(name.strip() for name in algorithms))
    found: dict[tuple[int, str, str], Projection] = {}
    refused: dict[str, str] = {}
    for model in models:
        if model == TUNER:
            continue
        for name in names:
            try:
                timed = contest(part, chosen, [name], report, model)
            except InfeasibleError as error:
                refused[f"{name}, {model}"] = str(error)
                continue
            for size in ordered:
                report(f"{name} by {model}, {format_size(size)}")
                found[size, name, model] = timed.projections(size)[0]
    if TUNER in models:
        assert tuner is not None
        for size in ordered:
            for projection in sorted(tuner(size), key=lambda p: p.time_s):
                name = _TUNED.get(projection.algorithm.partition("/")[0], "")
                if name in names:
                    found.setdefault((size, name, TUNER), projection)
        for name in names:
            if not any(key[1:] == (name, TUNER) for key in found):
                refused[f"{name}, {TUNER}"] = f"NCCL's tuner has no {name} here"
    if not found:
        raise InfeasibleError("; ".join(refused.values()))
    return Models(part, chosen, ordered, names, tuple(models), found, refused)
