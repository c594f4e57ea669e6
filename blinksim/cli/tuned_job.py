"""The options that say which job a file of measured times is of, and who reads the rules made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypedDict, TypeVar

import click

from blinksim.cli.numbers import Whole

if TYPE_CHECKING:
    from blinksim.answers.tuning.tune import Tuning

P = ParamSpec("P")
R = TypeVar("R")


class JobOptions(TypedDict):
    """The values of the options."""

    least_channels: int | None
    members: str | None
    nodes: int
    no_nvls: bool
    version: str | None
    dialect: str


_OPTIONS = (
    click.option(
        "--least-channels",
        type=Whole(1, 64),
        metavar="N",
        help="NCCL_MIN_NCHANNELS while it is timed, and with the file: GPUs that a switch joins often need more "
        "channels than NCCL takes.",
    ),
    click.option("--members", metavar="LIST", help="The GPUs that TIMES are of.  [default: all]"),
    click.option("--nodes", type=Whole(1), default=1, show_default=True, help="Nodes that TIMES are of."),
    click.option("--no-nvls", is_flag=True, help="NCCL runs with NCCL_NVLS_ENABLE=0."),
    click.option("--nccl", "version", metavar="VERSION", help="The release of NCCL whose choices are known."),
    click.option(
        "--dialect",
        type=click.Choice(("nccl", "rccl", "ncclx")),
        default="nccl",
        show_default=True,
        help="Who reads the file.",
    ),
)


def job_options(command: Callable[P, R]) -> Callable[P, R]:
    """Adds the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def release(options: JobOptions) -> dict[str, str]:
    """The release of NCCL, if one is named, as a keyword."""
    return {} if options["version"] is None else {"version": options["version"]}


def tuned(machine: str, times: str, options: JobOptions) -> Tuning:
    """The rules that a file of measured times gives on a machine; raises as `blinksim.answers.tuning.tune.tune`."""
    from blinksim.answers.tuning.tune import tune

    return tune(
        machine,
        times,
        members=options["members"],
        nodes=options["nodes"],
        nvls=not options["no_nvls"],
        least_channels=options["least_channels"],
        **release(options),
    )
