"""The options of project and compare that are about NCCL."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ParamSpec, TypedDict, TypeVar

import click

from blinksim.cli.numbers import Whole
from blinksim.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")


class NcclOptions(TypedDict):
    """What `nccl_options` adds to a command."""

    no_nvls: bool
    nccl_graph: str | None
    nccl_version: str | None
    channels: int | None


class NcclSettings(TypedDict, total=False):
    """The settings of a timing model that the options for NCCL stand for."""

    multicast: bool
    graph_file: str | None
    version: str
    channels: int


def nccl_options(command: Callable[P, R]) -> Callable[P, R]:
    """Adds the options for NCCL."""
    for option in (
        click.option("--no-nvls", is_flag=True, help="With nccl: without NVLS, as NCCL_NVLS_ENABLE=0."),
        click.option("--nccl-graph", metavar="FILE", help="With nccl: the channels of a graph file (NCCL_GRAPH_FILE)."),
        click.option("--nccl-version", help="With nccl: whose figures, 2.28.3 or 2.30.7.  [default: 2.28.3]"),
        click.option(
            "--channels",
            type=Whole(1, 64),
            metavar="N",
            help="With nccl: the time by measured constants with N channels (NCCL_MIN_NCHANNELS = NCCL_MAX_NCHANNELS = "
            "N); NCCL's own figure does not know of them.  [default: as NCCL has them]",
        ),
    ):
        command = option(command)
    return command


def settings(options: NcclOptions, takes: Collection[str], cure: str) -> NcclSettings:
    """The options for NCCL as settings of a timing model, if it `takes` them.

    cure: what to do where it does not. Raises `InputError` if such an option is given there.
    """
    if "graph_file" in takes:
        chosen: NcclSettings = {"multicast": not options["no_nvls"], "graph_file": options["nccl_graph"]}
        if options["nccl_version"]:
            chosen["version"] = options["nccl_version"]
        if options["channels"] is not None:
            chosen["channels"] = options["channels"]
        return chosen
    given: dict[str, object] = {
        "--channels": options["channels"],
        "--nccl-version": options["nccl_version"],
        "--nccl-graph": options["nccl_graph"],
        "--no-nvls": options["no_nvls"],
    }
    for option, value in given.items():
        if value:
            raise InputError(f"{option} is about NCCL; {cure}, or leave it out")
    return {}
