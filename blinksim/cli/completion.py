"""What a shell offers after TAB: names of machines, collectives, algorithms, models, rates, formats and schedules.

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
_FILES = CompletionItem("", type="file")

Names = Callable[[click.Context, click.Parameter], Iterable[str]]


class _Completed(click.types.StringParamType):
    """Text, with names that a shell offers for it.

    names: of the values. files: a file is a value too. several: values stand in a list with commas.
    """

    def __init__(self, names: Names | None = None, *, files: bool = False, several: bool = False) -> None:
        self._names, self._files, self._several = names, files, several

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that go on as `incomplete` begins; the shell adds files where no name does."""
        before, comma, begun = incomplete.rpartition(",") if self._several else ("", "", incomplete)
        found = [] if self._names is None else sorted(self._names(ctx, param))
        taken = before.split(",") if comma else []
        fitting = [name for name in found if name.startswith(begun) and name not in taken]
        items = [CompletionItem(f"{before}{comma}{name}") for name in fitting]
        return [_FILES, *items] if self._files else items


def machines(context: click.Context, parameter: click.Parameter) -> list[str]:
    """The machines of the catalogue."""
    return [path.stem for path in data_files.files("topologies")]


def collectives(context: click.Context, parameter: click.Parameter) -> tuple[str, ...]:
    """The collectives."""
    return COLLECTIVES


def algorithms(context: click.Context, parameter: click.Parameter) -> list[str]:
    """The algorithms that have the collective of the line, and the words that a command takes for a choice of them."""
    from blinksim.algorithms.registry import REGISTRY

    # A line that ends with an option is not taken apart; its words are all arguments.
    words = [str(context.params.get("collective")), *context.args]
    wanted = next((word for word in words if word in COLLECTIVES), None)
    named = [entry.name for entry in REGISTRY.values() if wanted is None or entry.supports(wanted)]
    choices = {"project": ("best", "all", "nccl"), "sweep": ("best", "all", "nccl"), "compare": ("nccl",)}
    return [*named, *choices.get(context.info_name or "", ())]


def models(context: click.Context, parameter: click.Parameter) -> list[str]:
    """The timing models, the presets among them."""
    from blinksim.timing.model_registry import names

    return list(names())


def rates(context: click.Context, parameter: click.Parameter) -> list[str]:
    """The tables of rates that machines have, and those beside the models."""
    return [*RATES, *(path.stem for path in (data_files.folder("models") / "rates").glob("*.yaml"))]


def formats(context: click.Context, parameter: click.Parameter) -> list[str]:
    """The formats of an export: of schedules, or of machines."""
    from blinksim.exports import FORMATS, TUNER

    return ["nccl-topo"] if context.parent is not None and context.parent.info_name == "topo" else [*FORMATS, TUNER]


def schedules(context: click.Context, parameter: click.Parameter) -> list[str]:
    """The schedules that come with blinksim."""
    return [path.stem for path in data_files.files("schedules", "*.json")]


def releases(context: click.Context, parameter: click.Parameter) -> list[str]:
    """The releases of NCCL whose figures there are."""
    return [path.stem.removeprefix("nccl-tuner-") for path in data_files.files("models", "nccl-tuner-*.yaml")]


def measured_machines(context: click.Context, parameter: click.Parameter) -> list[str]:
    """The machines of which there are published measurements."""
    paths = sorted((data_files.folder("models") / "measured").glob("*.csv"))
    return ["aurora", *(path.stem for path in paths if path.stem != "sets")]


def _of(values: Iterable[str]) -> Names:
    return lambda context, parameter: values


# By the name of the parameter; those of a sub-command go first.
TYPES = {
    "topo import file": _Completed(machines, files=True),
    "measured machine": _Completed(measured_machines),
    "machine": _Completed(machines, files=True),
    "collective": _Completed(collectives),
    "bottleneck": _Completed(collectives),
    "algorithm": _Completed(algorithms, files=True),
    "algorithms": _Completed(algorithms, several=True, files=True),
    "model": _Completed(models, files=True),
    "compare model": _Completed(models, several=True, files=True),
    "rates": _Completed(rates, files=True),
    "relays": _Completed(_of(("none", "idle"))),
    "name": _Completed(formats),
    "schedule": _Completed(schedules, files=True),
    "file": _Completed(schedules, files=True),
    "nccl_version": _Completed(releases),
    "dtype": _Completed(_of(DTYPES)),
    "op": _Completed(_of(OPERATIONS)),
    **dict.fromkeys(("log", "logs", "nccl_graph", "output", "plot", "trace", "traffic"), _Completed(files=True)),
}
