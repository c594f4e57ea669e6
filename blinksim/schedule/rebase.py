"""A schedule carried over to another machine, or to an edited one, by the names of devices and links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from blinksim.schedule.model import Schedule
from blinksim.structures.arrays import distinct
from blinksim.textio.text_table import count
from blinksim.topology.graph import Topology


def rebase(schedule: Schedule, topology: Topology) -> Schedule | tuple[str, ...]:
    """`schedule` on `topology`, or what is missing there, in sentences that name the device or link and the sends.

    `topology` may have more devices and links than the schedule uses. The schedule's members and relays stay what they
    are, with what its relays can do. Links are found by their ends and class; their bandwidths, latencies and buses
    are those of `topology`. A bound that comes with the schedule is kept only if nothing has changed: its figures are
    those of its machine.
    """
    old = schedule.topology
    number = {link.key: position for position, link in enumerate(topology.links)}
    links = np.array([number.get(link.key, -1) for link in old.links], dtype=np.int32)
    devices = np.array([topology.index.get(device.name, -1) for device in old.devices], dtype=np.int32)
    missing = [*_missing_devices(schedule, topology, devices), *_missing_links(schedule, topology, links)]
    if missing:
        return tuple(missing)
    abilities = {name: old.device(name).can for name in old.relays}
    machine = replace(
        topology,
        devices=tuple(
            replace(one, can=abilities[one.name]) if one.name in abilities else one for one in topology.devices
        ),
        members=old.members,
        relays=old.relays,
        symmetries=(),
    )
    # Unused routes may name links that are gone.
    used = distinct(schedule.route)
    kept = [schedule.links_of(int(route)) for route in used]
    return replace(
        schedule,
        topology=machine,
        src=devices[schedule.src],
        dst=devices[schedule.dst],
        route=np.searchsorted(used, schedule.route).astype(np.int32),
        route_start=np.cumsum([0, *map(len, kept)]).astype(np.int32),
        route_links=links[np.array([link for route in kept for link in route], dtype=np.int64)],
        bound=schedule.bound if (machine.devices, machine.links) == (old.devices, old.links) else {},
    )


def _missing_devices(schedule: Schedule, topology: Topology, devices: npt.NDArray[np.int32]) -> list[str]:
    found = []
    for position in np.flatnonzero(devices < 0):
        name, rank = schedule.topology.devices[position].name, int(schedule.rank_of[position])
        sends = np.flatnonzero((schedule.src == position) | (schedule.dst == position))
        if rank >= 0:
            found.append(f"{name} (rank {rank}) is not part of {topology.name}{_users(sends)}")
        elif len(sends) or name in schedule.topology.relays:
            found.append(f"{name} is not part of {topology.name}{_users(sends)}")
    for name in schedule.topology.members:
        if name in topology.index and not topology.device(name).holds:
            found.append(f"{name} is a {topology.device(name).kind} in {topology.name} and cannot hold a rank")
    return found


def _missing_links(schedule: Schedule, topology: Topology, links: npt.NDArray[np.int32]) -> list[str]:
    owner = np.repeat(np.arange(len(schedule.route_start) - 1), np.diff(schedule.route_start))
    found = []
    for position in np.flatnonzero(links < 0):
        sends = np.flatnonzero(np.isin(schedule.route, owner[schedule.route_links == position]))
        if len(sends):
            name = schedule.topology.links[position].name
            found.append(f"the link {name} is not part of {topology.name}{_users(sends)}")
    return found


def _users(sends: npt.NDArray[np.int64]) -> str:
    if not len(sends):
        return ""
    listed = ", ".join(map(str, sends[:3])) + (", …" if len(sends) > 3 else "")
    return f"; {count(len(sends), 'send')} need{'s' * (len(sends) == 1)} it ({listed})"
