"""Another shape for what joins the nodes, from the words of an edit such as ``fabric shape=tree leaf_nodes=4``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from blinksim.errors import InputError, unknown
from blinksim.topology.fabrics.fabric import Fabric, Level

EXAMPLE = "fabric shape=tree leaf_nodes=4 oversubscription=2"
COUNTS = ("planes", "leaf_nodes", "group_nodes", "group_links", "spine_planes")
PROPERTIES = ("shape", "oversubscription", *COUNTS)
_SHAPES = ("switch", "tree", "dragonfly", "direct")


def rewired(fabric: Fabric, changes: Mapping[str, str]) -> Fabric:
    """`fabric` with the same ports and rates in another shape.

    changes: as in a machine file's ``fabric`` section; what is not given is one plane, and as there by default.
    spine_planes: of a tree, how many separate spines its planes share: 1 joins rails that have leaves of their own.
    Raises `InputError` for other keys and values, and what no fabric can be.
    """
    for key in changes:
        if key not in PROPERTIES:
            raise unknown("property of a fabric", key, PROPERTIES, hint=f"(as in: {EXAMPLE})")
    shape = changes.get("shape", fabric.shape)
    if shape not in _SHAPES:
        raise unknown("shape of a fabric", shape, _SHAPES, hint="(other levels are written in a machine file)")
    given: dict[str, Any] = {key: _count(key, changes[key]) for key in COUNTS if key in changes}
    if "oversubscription" in changes:
        given["oversubscription"] = _ratio(changes["oversubscription"])
    spines = given.pop("spine_planes", None)
    for key, only in (("leaf_nodes", "tree"), ("oversubscription", "tree"), ("spine_planes", "tree")):
        if key in changes and shape != only:
            raise InputError(f"{key} goes with shape={only}, and this is {shape}; write it as in: {EXAMPLE}")
    plain = Fabric(
        "switch", fabric.ports, fabric.kind, fabric.lane_bandwidth, fabric.lanes, fabric.latency, fabric.overhead
    )
    found = replace(plain, can=fabric.can, shape=shape, **given)
    if spines is None:
        return found
    leaves = Level(found.leaf_nodes, found.planes, found.oversubscription)
    return replace(plain, can=fabric.can, shape="levels", levels=(leaves, Level(None, spines)))


def _count(key: str, text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise InputError(f"{key}={text:.40} is not a whole number of at least 1")
    return int(text)


def _ratio(text: str) -> Fraction:
    found = re.fullmatch(r"([1-9][0-9]{0,3})(?:[:/]([1-9][0-9]{0,3}))?", text)
    ratio = Fraction(int(found[1]), int(found[2] or 1)) if found else Fraction(0)
    if ratio < 1:
        raise InputError(f"oversubscription={text:.40} is not a ratio of at least 1, such as 2 or 3:2")
    return ratio
