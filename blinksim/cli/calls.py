"""The options of project and compare that are about programs on measured GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ParamSpec, TypedDict, TypeVar

import click

from blinksim.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
# As `blinksim.gpu.programs.program` and `blinksim.gpu.program_time.run_time` have them, which a listing need not load.
PROTOCOLS = ("simple", "ll128")
CALLS = ("successive", "apart")


class CallOptions(TypedDict):
    """What `call_options` adds to a command."""

    protocol: str | None
    calls: str | None


def call_options(command: Callable[P, R]) -> Callable[P, R]:
    """Adds the options for programs."""
    for option in (
        click.option(
            "--calls",
            type=click.Choice(CALLS),
            help="With --model execution: one call after another, whose launches overlap, or each by itself.  "
            "[default: successive]",
        ),
        click.option(
            "--protocol",
            type=click.Choice(PROTOCOLS),
            help="With --model execution: flags behind the data, or packets.  [default: the quicker one]",
        ),
    ):
        command = option(command)
    return command


def settings(options: CallOptions, name: str, takes: Collection[str]) -> dict[str, object]:
    """The options that were given as settings of the model called `name`, which `takes` some.

    Raises `InputError` if the model has no such setting.
    """
    given = {"protocol": options["protocol"], "calls": options["calls"]}
    found: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    for key in found:
        if key not in takes:
            raise InputError(
                f"--{key} is about programs on GPUs; take --model execution instead of {name}, or leave it out"
            )
    return found
