"""Shell completion: names of machines, collectives, algorithms, models, rates, formats and schedules.

A shell waits for every key, so nothing here imports more than names, and only the models are read from files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from blinksim import data_files
from blinksim.collective import COLLECTIVES

RATES = ("nominal", "nccl", "seed", "measured")
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64")
OPERATIONS = ("sum", "prod", "min", "max")


class _Completed(click.types.StringParamType):
    """Text, with names that a shell offers for it.

    names: the values, of the line as far as it is typed. files: a file is a value too. several: values stand
    in a list with commas.
    """

    def __init__(
        self, names: Callable[[click.Context], Iterable[str]], *, files: bool = False, several: bool = False
    ) -> None:
        self._names, self._files, self._several = names, files, several

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that go on as `incomplete` begins; the shell adds files where no name does."""
        before, comma, begun = incomplete.rpartition(",") if self._several else ("", "", incomplete)
        taken = before.split(",") if comma else []
        fitting = [name for name in sorted(self._names(ctx)) if name.startswith(begun) and name not in taken]
        items = [CompletionItem(f"{before}{comma}{name}") for name in fitting]
        return [CompletionItem("", type="file"), *items] if self._files else items


def _algorithms(context: click.Context) -> list[str]:
    """The algorithms that have the collective of the line, and the words that a command takes for a choice of them."""
    from blinksim.algorithms.registry import REGISTRY

    # A line that ends with an option is not taken apart; its words are all arguments.
    words = [str(context.params.get("collective")), *context.args]
    wanted = next((word for word in words if word in COLLECTIVES), None)
    named = [entry.name for entry in REGISTRY.values() if wanted is None or entry.supports(wanted)]
    choices = {"project": ("best", "all", "nccl"), "sweep": ("best", "all", "nccl"), "compare": ("nccl",)}
    return [*named, *choices.get(context.info_name or "", ())]


def _models(context: click.Context) -> Iterable[str]:
    from blinksim.timing.model_registry import names

    return names()


def _formats(context: click.Context) -> list[str]:
    """The formats of an export: of schedules, or of machines."""
    from blinksim.exports import FORMATS, TUNER

    return ["nccl-topo"] if context.parent is not None and context.parent.info_name == "topo" else [*FORMATS, TUNER]


def _data(folder: str, pattern: str = "*.yaml") -> list[str]:
    return [path.stem for path in data_files.folder(folder).glob(pattern)]


_MACHINES = _Completed(lambda _: _data("topologies"), files=True)
_SCHEDULES = _Completed(lambda _: _data("schedules", "*.json"), files=True)
_COLLECTIVES = _Completed(lambda _: COLLECTIVES)
_FILES = _Completed(lambda _: (), files=True)
_PUBLISHED = _Completed(lambda _: set(_data("models/measured", "*.csv")) - {"sets"})
_RELEASES = _Completed(lambda _: [name.removeprefix("nccl-tuner-") for name in _data("models", "nccl-tuner-*.yaml")])
# By the name of the parameter; those of a sub-command go first.
TYPES = {
    "topo import file": _MACHINES,
    "measured machine": _PUBLISHED,
    "machine": _MACHINES,
    "collective": _COLLECTIVES,
    "bottleneck": _COLLECTIVES,
    "algorithm": _Completed(_algorithms, files=True),
    "algorithms": _Completed(_algorithms, several=True, files=True),
    "model": _Completed(_models, files=True),
    "compare model": _Completed(_models, several=True, files=True),
    "rates": _Completed(lambda _: [*RATES, *_data("models/rates")], files=True),
    "relays": _Completed(lambda _: ("none", "idle")),
    "name": _Completed(_formats),
    "schedule": _SCHEDULES,
    "file": _SCHEDULES,
    "nccl_version": _RELEASES,
    "dtype": _Completed(lambda _: DTYPES),
    "op": _Completed(lambda _: OPERATIONS),
    **dict.fromkeys(("log", "logs", "nccl_graph", "output", "plot", "trace", "traffic"), _FILES),
}
