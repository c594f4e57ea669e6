"""Schedules written by hand for the tests, and random ones; none of them comes from blinksim.algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import strategies as st

from blinksim.collective import Collective
from blinksim.schedule.model import COPY, REDUCE, Builder, Schedule
from blinksim.topology.graph import Device, Link, Topology
from blinksim.topology.routes import Router

GB = 10**9
Step = Sequence[tuple[int, str, str, int]]


def full(n: int) -> Topology:
    """n GPUs, every pair linked both ways with 10 GB/s."""
    names = [f"gpu{i}" for i in range(n)]
    links = tuple(Link(a, b, "nvlink", Fraction(10 * GB), latency=1e-6) for a in names for b in names if a != b)
    return Topology(f"full{n}", tuple(Device(name, "gpu") for name in names), links, collective_links=("nvlink",))


def steps(
    topology: Topology,
    collective: str,
    shares: Sequence[tuple[Fraction, int, int]],
    sends: Sequence[Step],
    *,
    root: int = 0,
    form: str = "steps",
    channel: int = 0,
) -> Schedule:
    """A schedule from chunks (share, origin, target) and, for every step, sends (chunk, from, to, op) by name."""
    builder, router = Builder(topology, Collective(collective, root), "by_hand", form), Router(topology)
    for share in shares:
        builder.add_chunk(*share)
    for number, step in enumerate(sends):
        for chunk, a, b, op in step:
            src, dst = topology.index[a], topology.index[b]
            route = builder.add_routes([router.route(src, dst)])[0]
            builder.add_sends(chunk=chunk, src=src, dst=dst, op=op, step=number, route=route, channel=channel)
    return builder.finish()


def whole(count: int = 1) -> list[tuple[Fraction, int, int]]:
    """`count` equal chunks that start and end at every rank or the root."""
    return [(Fraction(1, count), -1, -1)] * count


def ring_allreduce(n: int) -> Schedule:
    """Reduce-scatter and allgather around one ring of n GPUs."""
    topology, sends = full(n), []
    for op in (REDUCE, COPY):
        for s in range(n - 1):
            shift = 0 if op == REDUCE else 1
            sends.append([((i + shift - s) % n, f"gpu{i}", f"gpu{(i + 1) % n}", op) for i in range(n)])
    return steps(topology, "allreduce", whole(n), sends)


def star_broadcast(n: int) -> Schedule:
    return steps(full(n), "broadcast", whole(), [[(0, "gpu0", f"gpu{i}", COPY) for i in range(1, n)]])


def recursive_doubling(q: int) -> Schedule:
    n = 2**q
    exchanges = [[(0, f"gpu{i}", f"gpu{i ^ 2**bit}", REDUCE) for i in range(n)] for bit in range(q)]
    return steps(full(n), "allreduce", whole(), exchanges)


def helped(can: Sequence[str] = ("forward", "multicast", "reduce")) -> Topology:
    """gpu0 to gpu2 linked through gpu3 only, which is a relay that can do what `can` says."""
    star = full(4).with_links(link for link in full(4).links if "gpu3" in (link.src, link.dst))
    chosen = star.select([f"gpu{i}" for i in range(3)], ["gpu3"])
    devices = (Device(d.name, d.kind, can=frozenset(can)) if d.name == "gpu3" else d for d in chosen.devices)
    return Topology(
        chosen.name, tuple(devices), chosen.links, chosen.members, chosen.relays, collective_links=("nvlink",)
    )


def through_the_helper(topology: Topology) -> Schedule:
    """Allreduce of three GPUs that a fourth reduces for."""
    up = [(0, f"gpu{i}", "gpu3", REDUCE) for i in range(3)]
    down = [(0, "gpu3", f"gpu{i}", COPY) for i in range(3)]
    return steps(topology, "allreduce", whole(), [up, down])


@st.composite
def forests(draw: st.DrawFn) -> Schedule:
    """A valid schedule of one to four random trees for allreduce, reduce, broadcast or allgather on 2 to 6 ranks."""
    n = draw(st.integers(2, 6))
    name = draw(st.sampled_from(["allreduce", "reduce", "broadcast", "allgather"]))
    trees = n if name == "allgather" else draw(st.integers(1, 4))
    weights = [1] * n if name == "allgather" else [draw(st.integers(1, 5)) for _ in range(trees)]
    topology, collective = (
        full(n),
        Collective(name, draw(st.integers(0, n - 1)) if name in ("reduce", "broadcast") else 0),
    )
    builder, router = Builder(topology, collective, "random_forest", "forest"), Router(topology)
    for tree, weight in enumerate(weights):
        top = tree if name == "allgather" else draw(st.integers(0, n - 1)) if name == "allreduce" else collective.root
        chunk = builder.add_chunk(Fraction(weight, sum(weights)), origin=tree if name == "allgather" else -1)
        order = [top, *draw(st.permutations([r for r in range(n) if r != top]))]
        parent = {order[i]: order[draw(st.integers(0, i - 1))] for i in range(1, n)}
        depth = {top: 0}
        for rank in order[1:]:
            depth[rank] = depth[parent[rank]] + 1
        tall, channel = max(depth.values()), draw(st.integers(0, 1))
        late = tall if name == "allreduce" else 0
        for rank in order[1:]:
            there, back = router.route(parent[rank], rank), router.route(rank, parent[rank])
            if name in ("allreduce", "reduce"):
                builder.add_sends(
                    chunk=chunk, src=rank, dst=parent[rank], op=REDUCE, step=tall - depth[rank],
                    route=builder.add_routes([back])[0], channel=channel,
                )  # fmt: skip
            if name != "reduce":
                builder.add_sends(
                    chunk=chunk, src=parent[rank], dst=rank, op=COPY, step=late + depth[rank] - 1,
                    route=builder.add_routes([there])[0], channel=channel,
                )  # fmt: skip
    return builder.finish()


@st.composite
def exchanges(draw: st.DrawFn) -> Schedule:
    """One to three steps of arbitrary copies among 2 to 4 ranks: rarely right, often waiting in circles."""
    n = draw(st.integers(2, 4))
    names = [f"gpu{i}" for i in range(n)]
    pair = st.permutations(names).map(lambda order: (order[0], order[1]))
    send = st.tuples(st.integers(0, 3), pair).map(lambda s: (s[0], *s[1], COPY))
    rounds = draw(st.lists(st.lists(send, min_size=1, max_size=8), min_size=1, max_size=3))
    return steps(full(n), "broadcast", whole(4), rounds)
