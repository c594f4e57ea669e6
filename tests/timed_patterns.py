"""Small machines and schedules whose time is a formula, in multiples of 2^-24 s, so that nothing rounds."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from blinksim.collective import Collective
from blinksim.schedule.model import COPY, Builder, Schedule
from blinksim.timing.events import first_come, in_levels, makespan
from blinksim.timing.simulator import exact_time, simulate
from blinksim.topology.graph import Device, Link, Topology

TICK = 2.0**-24
BYTES = 64  # at the rate below, one tick
RATE = Fraction(BYTES * 2**24)
FAST = Fraction(2**59)


def machine(name: str, devices: Iterable[Device], links: Iterable[Link]) -> Topology:
    return Topology(name, tuple(devices), tuple(links), collective_links=("link",))


def gpus(n: int) -> list[Device]:
    return [Device(f"gpu{i}", "gpu") for i in range(n)]


def link(a: str, b: str, alpha: int = 0, rate: Fraction = RATE, overhead: int = 0, bus: str | None = None) -> Link:
    return Link(a, b, "link", rate, latency=alpha * TICK, overhead=overhead * TICK, bus=bus)


def private_pairs(n: int, alpha: int) -> Topology:
    """Every pair has a link of its own in each direction."""
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    return machine("pairs", gpus(n), (link(f"gpu{i}", f"gpu{j}", alpha) for i, j in pairs))


def one_ring(n: int, alpha: int, overhead: int = 0) -> Topology:
    links = (link(f"gpu{i}", f"gpu{(i + 1) % n}", alpha, overhead=overhead) for i in range(n))
    return machine("ring", gpus(n), links)


def egress_ports(n: int, alpha: int) -> Topology:
    """One port out of every rank; what comes in is not limited."""
    ports = [Device(f"nic{i}", "nic") for i in range(n)]
    out = [link(f"gpu{i}", f"nic{i}", alpha) for i in range(n)]
    on = [link(f"nic{i}", f"gpu{j}", 0, FAST) for i in range(n) for j in range(n) if i != j]
    return machine("egress", [*gpus(n), *ports], out + on)


def one_switch(n: int, alpha: int) -> Topology:
    """One port out of and one into every rank, half of the latency before and half behind the switch."""
    up = [link(f"gpu{i}", "sw", alpha) for i in range(n)]
    down = [link("sw", f"gpu{i}", alpha) for i in range(n)]
    return machine("switch", [*gpus(n), Device("sw", "switch")], up + down)


def direct(topology: Topology, *, rotated: bool) -> Schedule:
    """Allgather in one step, every rank in the order i + 1, i + 2, … or 0, 1, 2, …"""
    n = topology.ranks
    builder = Builder(topology, Collective("allgather"), "by_hand", "steps")
    for i in range(n):
        chunk = builder.add_chunk(Fraction(1, n), origin=i)
        others = [(i + k) % n for k in range(1, n)] if rotated else [j for j in range(n) if j != i]
        for j in others:
            route = builder.add_routes([topology.router.route(i, j)])[0]
            builder.add_sends(chunk=chunk, src=i, dst=j, op=COPY, step=0, route=route)
    return builder.finish()


def ticks(schedule: Schedule, size: int, pieces: int, engine: str = "auto", **options: Any) -> Fraction:
    """The simulated time in ticks, exact; engine: ``closed-form``, ``waves`` or ``heap`` to evaluate by that one."""
    found = simulate(schedule, size, pieces=pieces, **options)
    if engine == "auto":
        return exact_time(found) * 2**24
    turns, finish = schedule.form == "forest", None
    if engine == "closed-form":
        finish = makespan(found.work, pieces, turns=turns)
    elif engine == "heap":
        finish = first_come(found.work, pieces, turns=turns).finish
    else:
        run, in_order_of_arrival = in_levels(found.work, pieces)
        finish = run.finish if in_order_of_arrival else None
    assert finish is not None, f"{engine} has no answer here"
    return finish / found.work.ticks_per_second * 2**24
