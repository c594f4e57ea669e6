"""Common mistakes in machine files, as a list of rules, each with a name and a cure.

An error makes answers impossible or meaningless; a warning marks what is legal but usually a slip. Rules look at
the machine as a collective would use it by default. (The idea of a listable family of checks: PyPSA's consistency
checks.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Each registers its rules, in this order.
from blinksim.topology.rules import member_rules, link_rules, claim_rules  # isort: skip  # noqa: F401
from blinksim.topology.rules.rule import RULES, Finding, Rule

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

__all__ = ["RULES", "Finding", "Rule", "check"]


def check(topology: Topology) -> list[Finding]:
    """What the rules find, errors first, else in the order of `RULES`; at most one finding per rule and message."""
    found = [
        Finding(rule.name, rule.severity, message, rule.cure)
        for rule in RULES.values()
        for message in dict.fromkeys(rule.function(topology))
    ]
    return sorted(found, key=lambda finding: finding.severity != "error")
