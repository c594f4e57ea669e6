"""What a machine's page says, as plain data: answers of blinksim, and nothing that it does not answer."""

from __future__ import annotations

from math import comb
from statistics import median
from typing import TYPE_CHECKING, Any

import blinksim as bs
from blinksim import machines
from blinksim.answers.measurements.public import public_measurements
from blinksim.collective import COLLECTIVES, Collective, busbw_factor
from blinksim.errors import BlinksimError, InputError
from blinksim.formats.shipped import machine_names
from blinksim.timing.contest import ceiling_of
from blinksim.timing.library_model import Library
from blinksim.timing.measured import library_rates, public_tables
from blinksim.topology.graph import Topology
from blinksim.units import format_rate, format_time, in_GBps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = tuple(2**power for power in (*range(10, 33, 2), 33))
"""Bytes, 1 KiB to 8 GiB."""
NODES = (2, 4, 16)
MOST_CHOICES = 2000
"""Choices of GPUs whose bounds a page may take."""

_WIDE, _NARROW = 9.0, 5.6
"""Inches: pictures of links up to the first are drawn as wide as the second."""

Facts = dict[str, Any]


def facts(name: str) -> Facts:
    """All that the page of a machine of the catalogue says."""
    head = machine_names.outline(name)
    whole = machines.load(name)
    part = machines.load(name, _nodes(name)).select()
    return {
        "name": name,
        "title": head.title,
        "maker": head.maker,
        "year": head.year,
        "also": machine_names.ALSO.get(name, []),
        "source": head.source,
        "assumed": machines.assumptions(name),
        "gpus": part.ranks,
        "nodes": _nodes(name),
        "model": _model(part),
        "several_nodes": whole.fabric is not None,
        "links": _links(whole),
        "bounds": [_bound(part, collective) for collective in COLLECTIVES],
        "clusters": _clusters(whole),
        "losses": _losses(part),
        "choices": _choices(part),
        "predicted": _predicted(name),
        "library": _library(name, part),
        "measured": _measured(name),
    }


def _nodes(name: str) -> int:
    """How many of a machine a collective takes at least."""
    return 1 if machines.load(name).ranks > 1 else 2


def _model(part: Topology) -> str:
    models = {str(part.device(name).attributes.get("model", "")) for name in part.members} - {""}
    return " and ".join(sorted(models))


def _links(whole: Topology) -> list[Facts]:
    rows, used = [], whole.default_links()
    for kind in whole.link_classes:
        links = [link for link in whole.links if link.kind == kind]
        rows.append(
            {
                "class": kind,
                "links": len(links),
                "lanes": _span([link.lanes for link in links], str),
                "lane": _span([link.lane_bandwidth for link in links], format_rate),
                "latency": _span([link.latency for link in links], format_time),
                "used": kind in used,
            }
        )
    return rows


def _span(values: list[Any], show: Any) -> str:
    low, high = min(values), max(values)
    return str(show(low)) if low == high else f"{show(low)} to {show(high)}"


def _bound(part: Topology, name: str) -> Facts:
    found = bs.bound(part, name)
    best, granted = found.headline, found.in_network
    return {
        "collective": name,
        "algbw": in_GBps(best.rate),
        "busbw": in_GBps(found.busbw),
        "exact": best.exact,
        "words": best.certificate.words(found.topology),
        "in_network": None if granted is None or granted.rate <= best.rate else in_GBps(granted.rate),
        "in_network_exact": granted is not None and granted.exact,
    }


def _clusters(whole: Topology) -> list[Facts]:
    """What no schedule exceeds on several nodes, at nominal rates."""
    rows = []
    for nodes in NODES if whole.fabric is not None else ():
        try:
            part = whole.replicate(nodes).select()
        except InputError:  # ports that are wired back to back join few nodes
            continue
        rates = {name: in_GBps(ceiling_of(part, Collective(name)).rate) for name in (*COLLECTIVES[:3], "alltoall")}
        rows.append({"nodes": nodes, "gpus": part.ranks, **rates})
    return rows


def _losses(part: Topology) -> list[Facts]:
    """What is left of an allreduce's bound after each sort of loss: one lane of several, or all between two devices."""
    found = {one.what: one for lane in (True, False) for one in bs.losses(part, "allreduce", one_lane=lane)}
    return [
        {"what": one.what, "like": len(one.pairs), "before": in_GBps(one.before), "after": in_GBps(one.after)}
        for one in found.values()
    ]


def _choices(part: Topology) -> Facts:
    """The best GPUs by number, or why every choice is as good."""
    to = {
        name: sorted((link.dst, link.kind, link.lanes, link.bandwidth) for link in part.links if link.src == name)
        for name in part.members
    }
    ends = {end for ways in to.values() for end, *_ in ways}
    if not ends & set(part.members) and len(set(map(str, to.values()))) == 1:
        return {"alike": True, "rows": []}
    rows = []
    for number in range(2, part.ranks):
        if comb(part.ranks, number) > MOST_CHOICES:
            continue
        found = bs.place(part, number)
        best, worst = found[0], found[-1]
        as_good = sum(one.rate == best.rate for one in found)
        rows.append(
            {
                "gpus": number,
                "best": list(best.members),
                "algbw": best.rate_GBps,
                "as_good": as_good,
                "choices": len(found),
                "worst": list(worst.members),
                "worst_algbw": worst.rate_GBps,
            }
        )
    return {"alike": False, "rows": rows}


def _predicted(name: str) -> Facts:
    """The quickest algorithm by size, at measured rates where there are any."""
    known = machine_names.rate_names(name)
    rates = "measured" if "measured" in known else "nominal"
    found = bs.compare(machines.load(name, _nodes(name), rates), "allreduce", [f"{size}B" for size in SIZES])
    return {
        "rates": rates,
        "rows": [
            {"size": one.size, "time_s": one.time_s, "busbw": one.busbw_GBps, "algorithm": one.algorithm}
            for one in found.best()
        ],
    }


def _library(name: str, part: Topology) -> Facts:
    """What NCCL or RCCL takes by size, by its own model, and how long it really runs, by constants fitted to tables."""
    model, whole = Library().at(bs.Question(name, nodes=_nodes(name)))
    rows, origin = [], ""
    for one in model.times(whole, Collective("allreduce"), SIZES):
        ends, origin = (one.details[f"interval_{end}_s"] for end in ("low", "high")), one.details["origin"]
        low, high = (_busbw(part, one.size, end) for end in ends)
        own = model.stated(one.collective, one.size)
        rows.append(
            {
                "size": one.size,
                "choice": one.details["choice"],
                "own_busbw": None if own is None else own.busbw_GBps,
                "real_s": one.time_s,
                "real_busbw": one.busbw_GBps,
                "low_busbw": high,
                "high_busbw": low,
                "share": one.details["interval_share"],
            }
        )
    return {"name": model.library, "rows": rows, "origin": origin}


def _busbw(part: Topology, size: int, time_s: float) -> float:
    return in_GBps(size / time_s * float(busbw_factor("allreduce", part.ranks)))


def _measured(name: str) -> Facts:
    """The published jobs, with all cells of the allreduces on the most GPUs of one node."""
    if name not in public_tables.machines():
        near = library_rates.relatives().get(name)
        return {"jobs": [], "cells": [], "count": 0, "relative": near and near[0]}
    found = public_measurements(name)
    jobs: dict[tuple[Any, ...], list[Facts]] = {}
    for row in found.rows():
        jobs.setdefault((row["set"], row["collective"], row["nodes"], row["gpus"]), []).append(row)
    sources = {one.name: one.source for one in found.sets}
    listed = [
        {
            "set": of,
            "source": sources[of],
            "quality": rows[0]["quality"],
            "ran": " ".join(word for word in (rows[0]["library"], rows[0]["version"]) if word),
            "collective": collective,
            "nodes": nodes,
            "gpus": gpus,
            "cells": len(rows),
            "best_busbw": max(row["busbw_GBps"] for row in rows),
            "best_size": max(rows, key=lambda row: row["busbw_GBps"])["size_bytes"],
            "of_bound": max((row["of_bound_pct"] for row in rows if row["of_bound_pct"]), default=None),
            "error": _error(rows),
        }
        for (of, collective, nodes, gpus), rows in jobs.items()
    ]
    most = max((job["gpus"] for job in listed if (job["collective"], job["nodes"]) == ("allreduce", 1)), default=0)
    cells = [
        {"set": row["set"], "dtype": row["dtype"], "size": row["size_bytes"], "busbw": row["busbw_GBps"]}
        for (_, collective, nodes, gpus), rows in jobs.items()
        if (collective, nodes, gpus) == ("allreduce", 1, most)
        for row in rows
    ]
    return {"jobs": listed, "cells": cells, "count": len(found.cells), "gpus": most}


def _error(rows: list[Facts]) -> float | None:
    """The median of |predicted / measured - 1| in percent: by constants where there are some, else by NCCL's model."""
    for key in ("expected_error_pct", "error_pct"):
        errors = [abs(row[key]) for row in rows if row[key] is not None]
        if errors:
            return float(median(errors))
    return None


def drawn(name: str) -> Figure | None:
    """The links of a machine as a figure, None if they are too many to draw."""
    try:
        found = bs.plot.topology(name)
    except BlinksimError:
        return None
    width, height = found.get_size_inches()
    if width <= _WIDE:
        # The same words on less paper: they stay legible where a page is narrow.
        found.set_size_inches(_NARROW, height * _NARROW / width)
    return found
