"""Registry of timing models by name; a model's module is imported when the model is used.

To add a model, write a module ``*_model.py`` here with a subclass of `TimingModel` (or of `ScheduleModel`, if
it times schedules) and its `ENTRIES`: nothing else needs to know of it. From outside the package,
`register_model` adds a class, and a file stands for what is in it: ``mine.py`` for the model that it
registers, ``mine.yaml`` for its preset, ``mine.py:NAME`` for one among several.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from blinksim import data_files, plugins
from blinksim.errors import InputError, unknown

if TYPE_CHECKING:
    from blinksim.timing.timing_model import ScheduleModel, TimingModel

ModelName = Literal[
    "auto", "alpha-beta", "execution", "execution-closed", "simulate", "nccl-tuner", "aurora-projection",
    "aurora-projection-pcie", "aurora-projection-mdfi", "aurora-as-written", "aurora-chain", "projection",
]  # fmt: skip
"""The names of all models, presets included, for editors and type checkers."""
ScheduleModelName = Literal["auto", "alpha-beta", "execution", "execution-closed", "simulate"]
"""The names of the models that time schedules."""

DEFAULT: Literal["auto"] = "auto"
_PRESET_HOME = "blinksim.timing.projection:PresetModel"
YAML = (".yaml", ".yml")
Model = TypeVar("Model", bound="type[TimingModel]")


@dataclass(frozen=True, slots=True)
class Entry:
    """A model. home: module and class. schedules: it times schedules. chooses: the name of a choice of its own.

    place: among the names, the first ones first. From outside the package, home is the class, and file the
    one that registered it.
    """

    name: str
    home: str | type[TimingModel]
    schedules: bool = False
    chooses: str = ""
    place: int = 99
    file: str = ""

    @staticmethod
    def stated(said: str, path: Path, text: str) -> list[Entry]:
        """What a module says by ``ENTRIES``, a tuple of mappings without anything to compute.

        ``class`` is the name of a class in it, the others are the fields of an entry.
        """
        found = list[Entry]()
        for fields in ast.literal_eval(said):
            name = fields.pop("class")
            if f"\nclass {name}(" not in text:
                raise InputError(f"ENTRIES names the class {name}, which is not in the file; name one that is")
            found.append(Entry(home=f"{_PACKAGE}.{path.stem}:{name}", **fields))
        return found


_PACKAGE = "blinksim.timing"
_FOUND = chain.from_iterable(plugins.entries(_PACKAGE, "*_model.py", "ENTRIES", Entry.stated))
MODELS = {entry.name: entry for entry in sorted(_FOUND, key=attrgetter("place"))}


def schedule_models() -> tuple[str, ...]:
    """The names of the models that time schedules."""
    return tuple(name for name, entry in MODELS.items() if entry.schedules)


def preset_names() -> tuple[str, ...]:
    """The names of the presets in models/, each of which is a model."""
    from blinksim.timing import projection

    return tuple(projection.presets())


def names() -> tuple[str, ...]:
    """The names of all models."""
    return (*MODELS, *preset_names())


def known_as(name: str) -> str:
    """The name by which `names` knows a model, after reading the file that is named, if one is.

    Raises `FileError` if the file holds no such model, and `PluginError` if it fails.
    """
    in_file = plugins.split(name, (*plugins.PYTHON, *YAML))
    if in_file is None:
        return name
    path, inside = in_file
    if path.suffix in YAML:
        from blinksim.timing import projection

        return projection.read_file(path, inside)
    plugins.run(path)
    return plugins.named(MODELS, inside, path, "timing model", "@bs.register_model")


def times_schedules(name: str) -> bool:
    """True if the model of this name times schedules."""
    name = known_as(name)
    return name in MODELS and MODELS[name].schedules


def is_preset(name: str) -> bool:
    """True if `name` is a preset in models/ or in a file, also written ``projection:name``."""
    name = known_as(name)
    return name not in MODELS and name.removeprefix("projection:") in preset_names()


def chooser(algorithm: str) -> str | None:
    """The model that knows what a library chooses under this name, such as ``nccl``; None for other algorithms."""
    return next((entry.name for entry in MODELS.values() if algorithm and entry.chooses == algorithm), None)


def check(name: str, known: Iterable[str] | None = None) -> str:
    """`name`, if it is one of `known` (default: all models) or a preset among them; raises `InputError` otherwise."""
    asked, name = name, known_as(name)
    if known is None and name in MODELS:
        return asked  # without reading the presets
    known = names() if known is None else tuple(known)
    if name not in known and name.removeprefix("projection:") not in set(known) - set(MODELS):
        raise _refused("model", asked, known)
    return asked


def _refused(what: str, name: str, known: Iterable[str]) -> InputError:
    """Why a name is none of `known`: no model has it, or the one that has it does something else."""
    if known_as(name) in MODELS or is_preset(name):
        others = " or blinksim sweep" if is_preset(name) else ""
        own = f"model={name} has an algorithm of its own, and is no model of schedules"
        return InputError(f"{own}; known here: {', '.join(known)}; ask blinksim project{others} with it")
    # What to say after an unknown name: which file is near.
    if os.path.isfile(data_files.folder("models") / f"{name}.yaml"):
        advice = f"(models/{name}.yaml is not searched for presets: end its name in projection.yaml)"
    else:
        advice = plugins.advice(name, (*plugins.PYTHON, *YAML))
    return unknown(what, name, known, hint=advice)


def _class(name: str) -> type[TimingModel]:
    home = MODELS[name].home if name in MODELS else _PRESET_HOME
    if not isinstance(home, str):
        return home
    module, _, class_name = home.partition(":")
    return cast("type[TimingModel]", getattr(import_module(module), class_name))


def settings(name: str) -> frozenset[str]:
    """The settings that `model` takes for this name, such as gamma for models of schedules."""
    return frozenset(signature(_class(known_as(check(name)))).parameters) - {"preset"}


def model(name: ModelName | str, **given: Any) -> TimingModel:
    """A timing model with settings of its own, for `blinksim.project`, `blinksim.rank` and `blinksim.compare`.

    Parameters
    ----------
    name : str
        Such as ``"execution"``; a preset is also written ``projection:name``.
    **given
        Its settings: ``protocol`` and ``calls`` of ``execution``; ``gamma`` of models that time schedules;
        ``channels``, ``multicast`` and ``version`` of ``nccl-tuner``.

    Returns
    -------
    TimingModel
        The model.

    Raises
    ------
    InputError
        For unknown names and values, and for settings that the model does not have.

    Examples
    --------
    >>> import blinksim as bs
    >>> machine = bs.load("hgx-h200", rates="measured")
    >>> apart = bs.model("execution", calls="apart")
    >>> bs.project(machine, "broadcast", "1MiB", algorithm="chain", model=apart).details["calls"]
    'apart'
    """
    odd = sorted(given.keys() - settings(name))
    name = known_as(name)
    if odd:
        raise InputError(f"model={name} takes no {', '.join(odd)}")
    preset = {} if name in MODELS else {"preset": name.removeprefix("projection:")}
    return _class(name)(**preset, **given)


def schedule_model(name: str, **given: Any) -> ScheduleModel:
    """The model called `name`, which must time schedules."""
    if not times_schedules(name):
        raise _refused("model of schedules", name, schedule_models())
    return cast("ScheduleModel", model(name, **given))


def register_model(model: Model) -> Model:
    """Register a class as a timing model under its attribute ``name`` (decorator).

    Parameters
    ----------
    model : type
        A subclass of `ScheduleModel` with a ``breakdown``, or of `TimingModel`. One that was registered
        before is replaced.

    Returns
    -------
    type
        The class as it is.

    Raises
    ------
    InputError
        For anything but such a class, and for a name that a model of the package has.

    Examples
    --------
    >>> import blinksim as bs
    >>> @bs.register_model
    ... class Sends(bs.ScheduleModel):
    ...     name = "sends"
    ...
    ...     def breakdown(self, schedule, size, gamma):
    ...         return bs.Breakdown((bs.Term("sends", 1e-6 * schedule.sends),), "one sender")
    >>> round(bs.project("ring:4@25GB/s", "allreduce", "1GiB", algorithm="chain", model="sends").time_s * 1e6)
    6
    """
    from blinksim.timing.timing_model import ScheduleModel, TimingModel

    if not isinstance(model, type) or not issubclass(model, TimingModel):
        raise InputError(f"{model!r:.60} cannot be a timing model; register a subclass of ScheduleModel")
    if missing := ", ".join(sorted(getattr(model, "__abstractmethods__", ()))):
        raise InputError(f"timing model {model.__name__} has no {missing}")
    taken = (*(entry.name for entry in MODELS.values() if isinstance(entry.home, str)), *preset_names())
    name = plugins.new_name(getattr(model, "name", None), "a timing model", taken, MODELS)
    MODELS[name] = Entry(name, model, issubclass(model, ScheduleModel), file=plugins.running())
    return model
