"""The options of project and compare that are about NCCL."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import click

from blinksim.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def nccl_options(command: F) -> F:
    """Adds what can be said about NCCL."""
    for option in (
        click.option("--no-nvls", is_flag=True, help="With nccl: without NVLS, as NCCL_NVLS_ENABLE=0."),
        click.option("--nccl-graph", metavar="FILE", help="With nccl: the channels of a graph file (NCCL_GRAPH_FILE)."),
        click.option("--nccl-version", help="With nccl: whose figures, 2.28.3 or 2.30.7.  [default: 2.28.3]"),
    ):
        command = option(command)
    return command


def settings(options: dict[str, Any], takes: Collection[str], cure: str) -> dict[str, Any]:
    """The options for NCCL as settings of a timing model, if it `takes` them.

    cure: what to do where it does not. Raises `InputError` if such an option is given there.
    """
    if "graph_file" in takes:
        version = {"version": options["nccl_version"]} if options["nccl_version"] else {}
        return {"multicast": not options["no_nvls"], "graph_file": options["nccl_graph"], **version}
    for key in ("nccl_version", "nccl_graph", "no_nvls"):
        if options[key]:
            raise InputError(f"--{key.replace('_', '-')} is about NCCL; {cure}, or leave it out")
    return {}
