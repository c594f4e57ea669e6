"""Bounds and packed schedules on random machines: how many gaps are 0 or below 1e-4, and the CPU time of each.

Eight sorts of machines of 10 to 96 devices, all collectives in turn. The aim is a gap below 1e-4 in 99.9 % of the
cases, each in 20 s. A case is repeated by its number: ``--first N --machines 1``.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random

from blinksim import machines
from blinksim.algorithms.packed import build
from blinksim.bounds.compute import bound
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import InfeasibleError
from blinksim.schedule.loads import rate
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Device, Link, Topology

GB = 10**9
AIM_S = 20
AIM_GAP = Fraction(1, 10_000)


def rates(random: Random) -> Callable[[], Fraction]:
    """Bandwidths from a few steps, from many, or with odd denominators."""
    choice = random.choice(["same", "few", "many", "odd"])
    few = [random.randint(1, 50) for _ in range(3)]
    return {
        "same": lambda: Fraction(25 * GB),
        "few": lambda: Fraction(random.choice(few) * GB),
        "many": lambda: Fraction(random.randint(1, 400) * GB, 4),
        "odd": lambda: Fraction(random.randint(10_000, 99_999) * 10**5),
    }[choice]


def joined(a: str, b: str, ahead: Fraction, back: Fraction, bus: str | None = None) -> list[Link]:
    return [Link(a, b, "link", ahead, 1, 1e-6, bus=bus), Link(b, a, "link", back, 1, 1e-6, bus=bus)]


def random_pairs(random: Random, names: list[str]) -> list[tuple[str, str]]:
    """A random tree, or a ring, and up to three times as many further pairs."""
    ring = random.random() < 0.5
    pairs = {(names[i - 1 if ring else random.randrange(i)], names[i]) for i in range(1, len(names))}
    if ring:
        pairs.add((names[0], names[-1]))
    for _ in range(random.randint(0, 3 * len(names))):
        a, b = random.sample(names, 2)
        if (b, a) not in pairs:
            pairs.add((a, b))
    return sorted(pairs)


def machine(name: str, devices: list[Device], links: list[Link]) -> Topology:
    return Topology(name, tuple(devices), tuple(links), collective_links=("link",))


def gpus(random: Random, most: int = 96) -> list[str]:
    return [f"gpu{i}" for i in range(random.randint(10, most))]


def uneven(random: Random) -> Topology:
    rate, names = rates(random), gpus(random)
    links = [link for a, b in random_pairs(random, names) for link in joined(a, b, rate(), rate())]
    return machine("uneven", [Device(name, "gpu") for name in names], links)


def half_duplex(random: Random) -> Topology:
    rate, names, part, links = rates(random), gpus(random), random.random(), list[Link]()
    for a, b in random_pairs(random, names):
        width = rate()
        links += joined(a, b, width, width, f"{a}-{b}" if random.random() < part else None)
    return machine("half-duplex", [Device(name, "gpu") for name in names], links)


def capacities(random: Random) -> Topology:
    rate, names, links = rates(random), gpus(random), list[Link]()
    for a, b in random_pairs(random, names):
        width = rate()
        links += joined(a, b, width, width)
    limits = [rate() * random.randint(1, 4) if random.random() < 0.3 else None for _ in names]
    return machine(
        "capacities", [Device(n, "gpu", capacity=limit) for n, limit in zip(names, limits, strict=True)], links
    )


def switched(random: Random) -> Topology:
    """GPUs below a random tree of switches with uplinks of any width; some switches have a shared bus."""
    rate, names, links = rates(random), gpus(random, 80), list[Link]()
    switches = [f"sw{i}" for i in range(random.randint(1, 16))]
    for number, switch in enumerate(switches[1:], 1):
        width = rate() * random.randint(1, 4)
        links += joined(switches[random.randrange(number)], switch, width, width)
    bused = {switch for switch in switches if random.random() < 0.1}
    width = rate()
    for name in names:
        switch = random.choice(switches)
        if switch not in bused:
            links += joined(name, switch, (own := rate()), own)
        else:
            links += joined(name, switch, width, width, f"bus {switch}")
        if random.random() < 0.2:
            second = random.choice(switches)
            links += joined(name, second, (own := rate()), own) if second != switch else []
    devices = [Device(name, "gpu") for name in names] + [Device(name, "switch") for name in switches]
    return machine("switched", devices, links)


def relays(random: Random) -> Topology:
    whole = random.choice([uneven, half_duplex, capacities])(random)
    members = random.sample(list(whole.members), random.randint(5, len(whole.members) - 1))
    ready = whole.select(members, relays="idle", relays_reduce=random.random() < 0.5)
    return replace(ready, name=f"relays of {whole.name}")


def one_way_losses(random: Random) -> Topology:
    shape = random.choice(["torus:4x5", "torus:8x8", "mesh:9x9", "full:18", "full:32", "hypercube:4", "hypercube:6"])
    whole = machines.load(shape)
    lost = set(random.sample(range(len(whole.links)), random.randint(1, 3)))
    links = tuple(link for number, link in enumerate(whole.links) if number not in lost)
    return replace(whole, name=f"{shape} less {len(lost)} ways", links=links, symmetries=())


def grids(random: Random) -> Topology:
    a, b, c = (random.randint(2, 6) for _ in "abc")
    flat = [f"mesh:{a + 2}x{b + 3}", f"torus:{a + 2}x{b + 4}", f"ring:{10 + 6 * c}"]
    deep = [f"mesh:{min(a, 4)}x{min(b, 4)}x{c}", f"torus:3x4x{c}", "hypercube:5", "hypercube:6", f"full:{10 * c}"]
    shape = random.choice([*flat, *deep])
    whole = machines.load(shape)
    if random.random() < 0.6:
        link = random.choice(whole.links)
        whole = whole.edit(f"degrade {link.src}-{link.dst} bandwidth={random.randint(1, 24)}GB/s")
    return whole


def boxes(random: Random) -> Topology:
    """Two or more boxes on rails, on a fat tree or on the catalogue's fabric, some with a slow NIC."""
    nodes, wide, thin = random.randint(2, 8), random.randint(50, 450), random.randint(5, 60)
    shape = random.choice(["rails", "fattree", "dgx1-v100", "hgx-h100", "dgx-a100"])
    if shape in ("rails", "fattree"):
        return machines.load(f"{shape}:{nodes}x{random.choice([4, 8])}@{wide}GB/s,{thin}GB/s")
    whole = machines.load(shape, nodes=min(nodes, 4))
    slow = [link for link in whole.links if -1 in (whole.device(link.src).node, whole.device(link.dst).node)]
    if random.random() < 0.5:
        link = random.choice(slow)
        whole = whole.edit(f"degrade {link.src}-{link.dst} lanes=1 bandwidth={min(thin, 10)}GB/s")
    return whole


SORTS = (uneven, half_duplex, capacities, switched, relays, one_way_losses, grids, boxes)


def late(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=16)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--limit", type=int, default=3 * AIM_S, help="CPU seconds after which a case is given up")
    parser.add_argument("--runs", type=int, default=1, help="not used: a case that is packed twice is the same twice")
    options = parser.parse_args()
    signal.signal(signal.SIGPROF, late)
    counts, slowest = Counter[str](), 0.0
    for number in range(options.first, options.first + options.machines):
        random = Random(number)
        sort, name = SORTS[number % len(SORTS)], list(COLLECTIVES)[number // len(SORTS) % len(COLLECTIVES)]
        start = time.process_time()
        gap, text = None, ""
        try:
            topology = sort(random).selected()
            collective = Collective(name, random.randrange(topology.ranks) if Collective(name).rooted else 0)
            signal.setitimer(signal.ITIMER_PROF, options.limit)
            proved = bound(topology, collective)
            middle = time.process_time()
            schedule = build(topology, collective, bound=proved)
            signal.setitimer(signal.ITIMER_PROF, 0)
            gap, seconds = 1 - (rate(schedule) or Fraction(0)) / proved.rate, time.process_time() - start
            reasons = verify(schedule).reasons
            text = f"bound {middle - start:.1f} s, {schedule.chunks} trees" + "".join(f"; WRONG: {r}" for r in reasons)
        except TimeoutError:
            seconds, text = options.limit, "given up"
        except InfeasibleError as error:
            signal.setitimer(signal.ITIMER_PROF, 0)
            seconds, text = time.process_time() - start, f"infeasible: {error}"
        slowest = max(slowest, seconds)
        verdict = "none" if gap is None else "0" if not gap else "below 1e-4" if gap < AIM_GAP else "above"
        counts[verdict] += 1
        counts["late"] += seconds > AIM_S
        shown = "-" if gap is None else f"{float(gap):.2e}"
        head = f"{number:>6} {topology.name:<28} {topology.ranks:>3} {name:<13}"
        print(f"{head} {shown:>9} {seconds:>6.1f} s  {text}", flush=True)
    print(f"{options.machines} cases; gap {dict(counts)}; slowest {slowest:.1f} s; aim: below 1e-4 in {AIM_S} s")


if __name__ == "__main__":
    main()
