"""What a rule is, and all of them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology


@dataclass(frozen=True)
class Finding:
    """One breach of a rule.

    Attributes
    ----------
    rule : str
        The rule's name.
    severity : str
        ``error`` or ``warning``.
    message : str
        What is wrong and where.
    cure : str
        What to do about it.
    place : str
        The file and line of the machine that it is about, such as ``mybox.yaml:41``; empty where no line is at fault.

    Examples
    --------
    >>> import blinksim as bs
    >>> (finding,) = bs.check(bs.load("dgx1-v100").replace("nvlink", latency=0, overhead=0))
    >>> finding.severity, finding.cure
    ('warning', 'give latency or overhead; without them small sizes take no time')
    """

    rule: str
    severity: str
    message: str
    cure: str
    place: str = ""


class Breach(NamedTuple):
    """What a rule found. keys: those of a machine file, from the outermost, that lead to what is at fault."""

    message: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A check by name. doc: what must hold, in a line; function: what breaks it, one by one; cure: what to do."""

    name: str
    severity: str
    doc: str
    cure: str
    function: Callable[[Topology], Iterable[str | Breach]]


RULES: dict[str, Rule] = {}


def rule(name: str, severity: str, cure: str) -> Callable[[Callable[[Topology], Iterable[str | Breach]]], None]:
    """Registers what a function finds under a name; its docstring says what must hold."""

    def register(function: Callable[[Topology], Iterable[str | Breach]]) -> None:
        RULES[name] = Rule(name, severity, (function.__doc__ or "").strip(), cure, function)

    return register


def used(topology: Topology) -> Topology:
    """The machine over its default links; as it is if it has no members."""
    return topology.select(connected=False) if topology.members else topology


def listed(names: Iterable[str]) -> str:
    """The names, the first six of many."""
    every = list(names)
    return ", ".join(every[:6]) + (f" and {len(every) - 6} more" if len(every) > 6 else "")
