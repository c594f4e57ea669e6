"""Certificates in words: short lists of devices, and parts of the data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from blinksim.textio.text_table import count

_ON_NODE = re.compile(r"n([0-9]+)\.(.+)")
_NUMBERED = re.compile(r"(.*?)([0-9]+)")


def _runs(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _grouped(names: Sequence[str]) -> list[str]:
    groups: dict[str, list[int]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        stem, number = match.groups() if match else (name, "")
        groups.setdefault(stem, []).extend([int(number)] if number else [])
    if list(groups) == ["gpu"]:
        return [f"GPU{'s' * (len(names) > 1)} {_runs(groups['gpu'])}"]
    return [f"{stem}{_runs(numbers)}" for stem, numbers in groups.items()]


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names in short: ``GPUs 0-6``, ``card0.t0-1, card1.t0``, ``GPUs 0-7 of n1-3``.

    At most `most` groups are written out.
    """
    nodes: dict[str, list[str]] = {}
    for name in names:
        match = _ON_NODE.fullmatch(name)
        nodes.setdefault(match.group(1) if match else "", []).append(match.group(2) if match else name)
    # Nodes that contribute the same devices are merged.
    alike: dict[str, list[int]] = {}
    for node, inner in nodes.items():
        if node:
            alike.setdefault(", ".join(_grouped(inner)), []).append(int(node))
    texts = [f"{inner} of n{_runs(numbers)}" for inner, numbers in alike.items()] + _grouped(nodes.get("", []))
    return ", ".join(texts[:most]) + (f" and {count(len(texts) - most, 'more group')}" if len(texts) > most else "")


def share_of_traffic(crossing: Fraction) -> str:
    """What must cross in an alltoallv: the size is the largest buffer of any rank."""
    return f"{float(crossing):.4g} times the largest buffer of any rank"


def part_of(crossing: Fraction, ranks: int, weighted: bool = False) -> str:
    """The part of the data that must cross: in shards where it is a whole number of the ranks' equal shards."""
    if crossing == 1:
        return "all data"
    shards = crossing * ranks
    if weighted or shards.denominator != 1:
        return f"{crossing} of the data"
    if shards <= ranks:
        return f"{shards} of {ranks} shards"
    return f"{shards} blocks for every {ranks} that a rank sends"
