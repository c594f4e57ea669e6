"""Rings on a machine whose link classes are slower: the machine itself is changed, link by link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from blinksim.answers.logs.expectation import RingModel


def scaled(model: RingModel, alphas: Mapping[str, float], betas: Mapping[str, float]) -> RingModel:
    """The same rings where link classes have their alpha, or their beta (time per byte), times a factor."""
    links = tuple(
        replace(
            link,
            latency=link.latency * alphas.get(link.kind, 1.0),
            overhead=link.overhead * alphas.get(link.kind, 1.0),
            lane_bandwidth=Fraction(max(1, round(float(link.lane_bandwidth) / betas.get(link.kind, 1.0)))),
        )
        for link in model.topology.links
    )
    changed = RingModel(replace(model.topology, links=links), model.collective)
    # Not rings that would be chosen anew.
    changed.__dict__["schedule"] = replace(model.schedule, topology=changed.topology)
    return changed
