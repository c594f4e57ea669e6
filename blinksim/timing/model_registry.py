"""All timing models by name. A model's module is imported when the model is used, so that a listing stays cheap.

To add a model, write a module with a subclass of `TimingModel` (or of `ScheduleModel`, if it times schedules) and give
it a line in `MODELS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, cast

from blinksim.errors import InputError, unknown

if TYPE_CHECKING:
    from blinksim.timing.timing_model import ScheduleModel, TimingModel

ModelName = Literal[
    "alpha-beta", "simulate", "nccl-tuner", "aurora-projection", "aurora-projection-pcie", "aurora-projection-mdfi",
    "aurora-as-written", "aurora-chain", "projection",
]  # fmt: skip
"""The names of all models, presets included, for editors and type checkers."""
ScheduleModelName = Literal["alpha-beta", "simulate"]
"""The names of the models that time schedules."""

DEFAULT: Literal["alpha-beta"] = "alpha-beta"
_PRESET_HOME = "blinksim.timing.preset_model:PresetModel"


@dataclass(frozen=True, slots=True)
class Entry:
    """A model. home: module and class. schedules: it times schedules. chooses: the name of a choice of its own."""

    name: str
    home: str
    summary: str
    schedules: bool = False
    chooses: str = ""


MODELS = {
    entry.name: entry
    for entry in (
        Entry(DEFAULT, "blinksim.timing.alpha_beta_model:AlphaBeta", "loads and latencies, summed", schedules=True),
        Entry("simulate", "blinksim.timing.simulation_model:Simulated", "every piece at every link", schedules=True),
        Entry("nccl-tuner", "blinksim.timing.nccl_model:NcclTuner", "what NCCL predicts for itself", chooses="nccl"),
    )
}


def schedule_models() -> tuple[str, ...]:
    """The names of the models that time schedules."""
    return tuple(name for name, entry in MODELS.items() if entry.schedules)


def preset_names() -> tuple[str, ...]:
    """The names of the presets in models/, each of which is a model."""
    from blinksim.cost import presets

    return presets.preset_names()


def names() -> tuple[str, ...]:
    """The names of all models."""
    return (*MODELS, *preset_names())


def times_schedules(name: str) -> bool:
    """True if the model of this name times schedules."""
    return name in MODELS and MODELS[name].schedules


def is_preset(name: str) -> bool:
    """True if `name` is a preset in models/, also written ``projection:name``."""
    return name not in MODELS and _short(name) in preset_names()


def _short(name: str) -> str:
    from blinksim.cost import presets

    return presets.short_name(name)


def chooser(algorithm: str) -> str | None:
    """The model that knows what a library chooses under this name, such as ``nccl``; None for other algorithms."""
    return next((entry.name for entry in MODELS.values() if algorithm and entry.chooses == algorithm), None)


def check(name: str, known: Iterable[str] | None = None) -> str:
    """`name`, if it is one of `known` (default: all models) or a preset among them; raises `InputError` otherwise."""
    if known is None and name in MODELS:
        return name  # without reading the presets
    known = names() if known is None else tuple(known)
    if name not in known and _short(name) not in set(known) - set(MODELS):
        raise unknown("model", name, known)
    return name


def _class(name: str) -> type[TimingModel]:
    home = MODELS[name].home if name in MODELS else _PRESET_HOME
    module, _, class_name = home.partition(":")
    return cast("type[TimingModel]", getattr(import_module(module), class_name))


def settings(name: str) -> frozenset[str]:
    """The settings that `model` takes for this name, such as gamma for models of schedules."""
    return frozenset(signature(_class(check(name))).parameters) - {"preset"}


def model(name: str, **given: Any) -> TimingModel:
    """The model called `name`; a preset is also written ``projection:name``.

    given: some of its `settings`. Raises `InputError` for unknown names and for settings that the model does not have.
    """
    odd = sorted(given.keys() - settings(name))
    if odd:
        raise InputError(f"model={name} takes no {', '.join(odd)}")
    preset = {} if name in MODELS else {"preset": _short(name)}
    return _class(name)(**preset, **given)


def schedule_model(name: str, **given: Any) -> ScheduleModel:
    """The model called `name`, which must time schedules."""
    if not times_schedules(name):
        raise unknown("model of schedules", name, schedule_models())
    return cast("ScheduleModel", model(name, **given))
