"""Schedules by symmetry, written out in full from their file and run on buffers of NumPy: a second opinion.

Of blinksim it takes the descriptions of machines and schedules alone. What a file means is written here once more,
after docs/schedule-file.md: which symmetries are allowed, what the images of a chunk are, what a send does.
"""

from __future__ import annotations

import base64
import lzma
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from types import SimpleNamespace
from typing import Any

import independent_check
import numpy as np
import numpy.typing as npt

from blinksim.schedule.model import ARRAYS, REDUCE, Schedule
from blinksim.topology.graph import Topology

Ints = npt.NDArray[np.int64]
PER_SEND = ("chunk", "src", "dst", "op", "step", "route", "channel")
MOST_SENDS = 60_000


class TooLargeError(Exception):
    """More sends than a test can run."""


# --- columns ----------------------------------------------------------------------------------------------------------


def packed(array: Ints) -> dict[str, Any]:
    """A column of version 2."""
    data = lzma.compress(np.diff(array.astype("<i8"), prepend=0).tobytes(), preset=0)
    return {"length": len(array), "differences": base64.b64encode(data).decode()}


def unpacked(column: dict[str, Any]) -> Ints:
    """The numbers of a column."""
    data = lzma.decompress(base64.b64decode(column["differences"]))
    return np.cumsum(np.frombuffer(data, "<i8")).astype(np.int64)


# --- the group --------------------------------------------------------------------------------------------------------


@dataclass
class Turns:
    """Generators of a file as permutations of devices and of links, with their orders."""

    topology: Topology
    devices: list[Ints]
    links: list[Ints]
    orders: list[int]

    @classmethod
    def of(cls, topology: Topology, generators: list[Ints]) -> Turns:
        """Raises `ValueError` for what is no symmetry of the machine."""
        links = [image_of_links(topology, one) for one in generators]
        return cls(topology, generators, links, [*map(order_of, generators)])


def order_of(permutation: Ints) -> int:
    """After how many times it is the identity."""
    return lcm(*map(len, cycles(permutation)))


def cycles(permutation: Ints) -> list[list[int]]:
    """What it takes round, from the least number on."""
    goes, seen, found = permutation.tolist(), set[int](), []
    for first in range(len(goes)):
        round_ = []
        while first not in seen:
            seen.add(first)
            round_.append(first)
            first = goes[first]
        found += [round_] if round_ else []
    return found


def image_of_links(topology: Topology, permutation: Ints) -> Ints:
    """Where a symmetry takes every link; raises `ValueError` if it is none."""
    devices, links = topology.devices, topology.links
    if sorted(permutation.tolist()) != list(range(len(devices))):
        raise ValueError("no permutation of the devices")
    goes = dict(zip((one.name for one in devices), (devices[i] for i in permutation.tolist()), strict=True))
    role = dict.fromkeys(topology.members, "member") | dict.fromkeys(topology.relays, "relay")
    for one in devices:
        other = goes[one.name]
        sorts = [(it.kind, it.capacity, it.can, str(it.attributes.get("reduction_rate"))) for it in (one, other)]
        if sorts[0] != sorts[1] or role.get(one.name) != role.get(other.name):
            raise ValueError(f"{one.name} and {other.name} differ")
    number = {(link.src, link.dst, link.kind): place for place, link in enumerate(links)}
    image, buses = [], dict[str, str]()
    for link in links:
        place = number.get((goes[link.src].name, goes[link.dst].name, link.kind), -1)
        other_link = links[place]
        figures = [(it.lane_bandwidth, it.lanes, it.latency, it.overhead, it.bus is None) for it in (link, other_link)]
        if place < 0 or figures[0] != figures[1]:
            raise ValueError(f"{link.name} has no equal link where it goes")
        if link.bus is not None and buses.setdefault(link.bus, str(other_link.bus)) != other_link.bus:
            raise ValueError(f"bus {link.bus} is torn apart")
        image.append(place)
    return np.array(image, dtype=np.int64)


def wrong_group(root: int | None, turns: Turns) -> Iterator[str]:
    """What the format does not allow of generators that are symmetries."""
    topology = turns.topology
    members = [topology.index[name] for name in topology.members]
    for number, one in enumerate(turns.devices):
        if any((one[other] != other[one]).any() for other in turns.devices[:number]):
            yield f"generator {number} does not commute with one before it"
        lengths = {place: len(round_) for round_ in cycles(one) for place in round_}
        if any(lengths[place] not in (1, turns.orders[number]) for place in members):
            yield f"generator {number} takes a member round in less than its order"
        if root is not None and one[members[root]] != members[root]:
            yield f"generator {number} moves the root"
    for place in members:
        images = elements(turns, [i for i, one in enumerate(turns.devices) if one[place] != place])
        if len({int(devices[place]) for devices, _, _ in images}) < len(images):
            yield f"{topology.devices[place].name} is taken to one device by several elements"
            return


def elements(turns: Turns, chosen: list[int]) -> list[tuple[Ints, Ints, tuple[int, ...]]]:
    """Where the products of some generators take devices and links, and the exponents of each."""
    if np.prod([turns.orders[i] for i in chosen], dtype=np.float64) > MOST_SENDS:
        raise TooLargeError
    none = (0,) * len(turns.orders)
    found = [(np.arange(len(turns.topology.devices)), np.arange(len(turns.topology.links)), none)]
    for i in chosen:
        for devices, links, exponents in list(found):
            for times in range(1, turns.orders[i]):
                devices, links = turns.devices[i][devices], turns.links[i][links]
                found.append((devices, links, (*exponents[:i], times, *exponents[i + 1 :])))
    return found


# --- images -----------------------------------------------------------------------------------------------------------


def turning(base: Schedule, turns: Turns) -> list[list[int]]:
    """For each chunk the generators that make further images of it."""
    found = []
    member = [base.topology.index[name] for name in base.topology.members]
    rank = {place: number for number, place in enumerate(member)}
    for chunk in range(base.chunks):
        rows = np.flatnonzero(base.chunk == chunk).tolist()
        route = [tuple(base.links_of(int(base.route[i]))) for i in rows]
        heads = [(int(base.step[i]), int(base.op[i])) for i in rows]
        ends = [(int(base.src[i]), int(base.dst[i])) for i in rows]
        before = Counter(zip(heads, ends, route, strict=True))
        labels = [int(one[chunk]) for one in (base.origin, base.target) if one[chunk] >= 0]
        mine = []
        for number, (goes, links) in enumerate(zip(turns.devices, turns.links, strict=True)):
            after = Counter(
                (head, (int(goes[a]), int(goes[b])), tuple(links[list(way)].tolist()))
                for head, (a, b), way in zip(heads, ends, route, strict=True)
            )
            if before != after or any(rank[int(goes[member[label]])] != label for label in labels):
                mine.append(number)
        found.append(mine)
    return found


def written_out(base: Schedule, turns: Turns) -> Schedule:
    """All images of all chunks, each with channels of its own."""
    member = np.array([base.topology.index[name] for name in base.topology.members])
    rank = np.full(len(base.topology.devices) + 1, -1)
    rank[member] = np.arange(len(member))
    columns: dict[str, list[Any]] = {name: [] for name in ARRAYS}
    ways = [np.array(base.links_of(route), dtype=np.int64) for route in range(len(base.route_start) - 1)]
    numbers: dict[tuple[int, ...], int] = {}
    channels: dict[tuple[int, tuple[int, ...]], int] = {}
    chunk = sends = 0
    for old, mine in enumerate(turning(base, turns)):
        rows = np.flatnonzero(base.chunk == old)
        for goes, links, element in elements(turns, mine):
            columns["share_num"].append(base.share_num[old])
            for label in ("origin", "target"):
                was = int(getattr(base, label)[old])
                columns[label].append(was if was < 0 else rank[goes[member[was]]])
            sends += len(rows)
            if sends > MOST_SENDS:
                raise TooLargeError
            columns["chunk"] += [chunk] * len(rows)
            columns["src"] += goes[base.src[rows]].tolist()
            columns["dst"] += goes[base.dst[rows]].tolist()
            columns["op"] += base.op[rows].tolist()
            columns["step"] += base.step[rows].tolist()
            for row in rows.tolist():
                way = tuple(links[ways[base.route[row]]].tolist())
                columns["route"].append(numbers.setdefault(way, len(numbers)))
                own = int(base.channel[row])
                if base.form == "forest":
                    own = channels.setdefault((own, element), len(channels))
                columns["channel"].append(own)
            chunk += 1
    order = np.argsort(np.array(columns["step"], dtype=np.int64), kind="stable")
    for name in PER_SEND:
        columns[name] = np.array(columns[name], dtype=np.int64)[order].tolist()
    columns["route_links"] = [link for way in numbers for link in way]
    columns["route_start"] = np.cumsum([0, *map(len, numbers)]).tolist()
    arrays: dict[str, Any] = {name: np.array(columns[name], dtype=dtype) for name, dtype in ARRAYS.items()}
    return Schedule(base.topology, base.collective, base.algorithm, base.form, share_den=base.share_den, **arrays)


# --- the run ----------------------------------------------------------------------------------------------------------


def wrong(schedule: Schedule) -> Iterator[str]:
    """What is wrong with a schedule that is written out."""
    yield from wrong_shares(schedule)
    yield from independent_check.wrong_ways(schedule)
    for route in np.unique(schedule.route).tolist():
        way = [schedule.topology.links[link] for link in schedule.links_of(route)]
        if len({way[0].src, *(link.dst for link in way)}) <= len(way):
            yield f"route {route} passes a device twice"
    yield from independent_check.wrong_reads(schedule)
    yield from wrong_run(schedule)


def wrong_shares(schedule: Schedule) -> list[str]:
    """Parts of the whole that are not those of the collective."""
    traffic = schedule.collective.traffic
    if traffic is None:
        return independent_check.wrong_shares(schedule)
    parts = np.zeros((traffic.ranks, traffic.ranks), dtype=object)
    if min(schedule.origin.min(initial=0), schedule.target.min(initial=0)) < 0:
        return ["a block from or for nobody"]
    np.add.at(parts, (schedule.origin, schedule.target), schedule.share_num.astype(object))
    right = (parts * traffic.size == traffic.matrix.astype(object) * schedule.share_den).all()
    return [] if right else ["the blocks are not those of the traffic"]


def wrong_run(schedule: Schedule) -> Iterator[str]:
    """Carries the sends out on buffers of random whole numbers, a row a device, and compares every rank's result."""
    topology, collective = schedule.topology, schedule.collective
    devices, chunks = len(topology.devices), schedule.chunks
    member = np.array([topology.index[name] for name in topology.members])
    numbers = np.random.default_rng(5)
    buffers, filled = np.zeros((devices, chunks), dtype=np.int64), np.zeros((devices, chunks), dtype=np.bool_)
    expected = np.zeros(chunks, dtype=np.int64)
    everywhere = collective.name in ("allreduce", "reduce", "reducescatter")
    name = "alltoall" if collective.traffic is not None else collective.name
    asked = SimpleNamespace(
        topology=topology, origin=schedule.origin, target=schedule.target,
        collective=SimpleNamespace(name=name, root=collective.root),
    )  # fmt: skip
    due = []
    for own in range(chunks):
        starts, ends = independent_check.who(asked, own)  # type: ignore[arg-type]
        if min(*starts, *ends) < 0:
            yield f"chunk {own} starts or ends nowhere"
            return
        values = numbers.integers(1, 2**62, len(starts))
        buffers[member[starts], own], filled[member[starts], own] = values, True
        expected[own] = values.sum()
        due.append(member[ends])
    reads = np.array(["reduce_into_reader" in one.can for one in topology.devices])
    merges = np.array([bool({"reduce", "reduce_into_reader"} & one.can) for one in topology.devices])
    step = schedule.step
    for begin, end in zip(*_runs(step), strict=True):
        rows = np.array(independent_check.summands(schedule, range(begin, end)), dtype=np.int64)
        src, dst, chunk = schedule.src[rows], schedule.dst[rows], schedule.chunk[rows]
        adds = schedule.op[rows] == REDUCE
        if not filled[src, chunk].all():
            yield f"step {step[begin]} sends what is not there"
            return
        if adds.any() and not everywhere:
            yield f"step {step[begin]} reduces"
            return
        moving = buffers[src, chunk]
        gone = reads[src]
        filled[src[gone], chunk[gone]], buffers[src[gone], chunk[gone]] = False, 0
        place = dst.astype(np.int64) * chunks + chunk
        if (np.bincount(place)[place[~adds]] > 1).any():
            yield f"step {step[begin]} writes twice to one place"
            return
        added = np.bincount(place[adds], minlength=devices * chunks).reshape(devices, chunks)
        if ((added > 0) & (added + filled > 1))[~merges].any():
            yield f"step {step[begin]} merges where nothing can"
            return
        np.add.at(buffers, (dst[adds], chunk[adds]), moving[adds])
        buffers[dst[~adds], chunk[~adds]] = moving[~adds]
        filled[dst, chunk] = True
    for number, ends_at in enumerate(due):
        right = filled[ends_at, number] & (buffers[ends_at, number] == expected[number])
        if not right.all():
            yield f"{topology.devices[int(ends_at[~right][0])].name} ends with the wrong chunk {number}"
            return


def _runs(step: npt.NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """Where the sends of each step begin and end."""
    cuts = [0, *(np.flatnonzero(np.diff(step)) + 1).tolist(), len(step)]
    return (cuts[:-1], cuts[1:]) if len(step) else ([], [])


def wrong_waits(schedule: Schedule) -> Iterator[str]:
    """Steps whose sends wait for each other in a circle, with one buffer for each connection."""
    for begin, end in zip(*_runs(schedule.step), strict=True):
        part = {name: getattr(schedule, name)[begin:end] for name in PER_SEND}
        devices = len(schedule.topology.devices)
        out, into = (part["chunk"].astype(np.int64) * devices + part[name] for name in ("src", "dst"))
        if np.isin(out, into).any() and independent_check.stuck(
            SimpleNamespace(sends=end - begin, **part),  # type: ignore[arg-type]
            1,
        ):
            yield f"step {schedule.step[begin]} waits for itself"
            return


def rate(schedule: Schedule) -> Fraction | None:
    """algbw in bytes/s that the loads of links, buses, devices and adders allow; None if nothing is sent."""
    topology = schedule.topology
    on_link = np.zeros(len(topology.links), dtype=object)
    length = np.diff(schedule.route_start)[schedule.route]
    first = np.repeat(schedule.route_start[schedule.route] - np.cumsum(length) + length, length)
    links = schedule.route_links[first + np.arange(len(first))]
    np.add.at(on_link, links, np.repeat(schedule.share_num[schedule.chunk], length).astype(object))
    carried, limits = Counter[str](), dict[str, Fraction]()
    for number in range(len(on_link)):
        for name, limit in independent_check.shared(topology, number).items():
            carried[name] += on_link[number]
            limits[name] = min(limit, limits.get(name, limit))
    for place, device in enumerate(topology.devices):
        adds = device.reduction_rate if "reduction_rate" in device.attributes else None
        if adds is not None:
            limits[f"sums {device.name}"] = adds
            carried[f"sums {device.name}"] += _sums(schedule, place, device.reads)
    return min((limits[name] * schedule.share_den / int(load) for name, load in carried.items() if load), default=None)


def _sums(schedule: Schedule, switch: int, reads: bool) -> int:
    """The shares of all sums that a switch forms: one of a chunk, or one for every reader."""
    total, rows = 0, np.flatnonzero((schedule.dst == switch) & (schedule.op == REDUCE))
    arrivals = Counter(zip(schedule.chunk[rows].tolist(), (schedule.step[rows] * reads).tolist(), strict=True))
    for (chunk, step), count in arrivals.items():
        if reads:
            at = rows[(schedule.chunk[rows] == chunk) & (schedule.step[rows] == step)]
            times = max(Counter(schedule.src[at].tolist()).values())
            total += times * int(schedule.share_num[chunk])
        elif count > 1:
            total += int(schedule.share_num[chunk])
    return total
