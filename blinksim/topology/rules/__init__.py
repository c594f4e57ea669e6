"""Common mistakes in machine files, as a list of rules, each with a name and a cure.

An error makes answers impossible or meaningless; a warning marks what is legal but usually a slip. Rules look at
the machine as a collective would use it by default. (The idea of a listable family of checks: PyPSA's consistency
checks.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

# Each registers its rules, in this order.
from blinksim.topology.rules import member_rules, link_rules, claim_rules, constant_rules  # isort: skip  # noqa: F401
from blinksim.topology.rules.rule import RULES, Breach, Finding, Rule

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

__all__ = ["RULES", "Finding", "Rule", "check"]


def check(topology: Topology, place: Callable[[tuple[str, ...]], str] = lambda keys: "") -> list[Finding]:
    """What the rules find, errors first, else in the order of `RULES`; at most one finding per rule and message.

    place: the file and line of what such keys of the machine's file lead to.
    """
    found = []
    for rule in RULES.values():
        breaches = [one if isinstance(one, Breach) else Breach(one) for one in rule.function(topology)]
        for message, keys in {one.message: one.keys for one in breaches}.items():
            found.append(Finding(rule.name, rule.severity, message, rule.cure, place(keys) if keys else ""))
    return sorted(found, key=lambda finding: finding.severity != "error")
