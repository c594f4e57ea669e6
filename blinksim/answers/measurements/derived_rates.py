"""Constants for GPUs that nobody measured, from those of others: H200's, for other ports and clocks.

Ports grow with the links. What a block or the launch of a kernel takes, and so each step, goes with the clock. A
machine file that states derived constants gives the band within which they are trusted.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

from blinksim.cost.execution_rates import ExecutionRates, FlagRates, PacketRates
from blinksim.cost.nccl_rates import LINES, NcclLine, NcclRates

Timed = TypeVar("Timed", PacketRates, FlagRates)


def derived(rates: ExecutionRates, ports: float, slower: float = 1.0) -> ExecutionRates:
    """Constants of programs for GPUs with `ports` times the bandwidth, whose clocks make everything `slower` times
    as long.

    >>> import blinksim as bs
    >>> known = bs.load("hgx-h200").execution
    >>> round(derived(known, 300 / 450, 1.4).ports.out / 1e9)
    245
    """
    scaled = replace(rates.ports, out=rates.ports.out * ports, into=rates.ports.into * ports)
    return replace(
        rates,
        launch_s=rates.launch_s * slower,
        announce_s=rates.announce_s * slower,
        visit_s=rates.visit_s * slower,
        ports=scaled,
        packets=_slower(rates.packets, slower),
        flags=_slower(rates.flags, slower),
        error=None,
    )


def _slower(rates: Timed, slower: float) -> Timed:
    times = {field.name: getattr(rates, field.name) * slower for field in fields(rates) if field.name.endswith("_s")}
    return replace(rates, **times)


def derived_nccl(rates: NcclRates, ports: float, slower: float = 1.0) -> NcclRates:
    """As `derived`, for NCCL: rates of rings grow with the ports, what a channel carries and all times go with the
    clock."""
    lines: dict[str, NcclLine] = {}
    for name in LINES:
        line: NcclLine = getattr(rates, name)
        channel = None if line.channel is None else line.channel / slower
        lines[name] = NcclLine(line.start_s * slower, line.hop_s * slower, line.rate * ports, channel)
    return replace(
        rates,
        ll=lines["ll"],
        ll128=lines["ll128"],
        simple=lines["simple"],
        turn=rates.turn * ports,
        rooted_start_s=rates.rooted_start_s * slower,
        nvls=None,
        error=None,
    )
