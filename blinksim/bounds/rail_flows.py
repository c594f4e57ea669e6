"""Flows of a traffic matrix over rails that often attain the tightest cut, and so prove it without a solver.

Five ways to choose the place k over which bytes cross to another node (`rails`): the sender's own, the
receiver's own, all of them, as much as each carries, and all of them with bytes of the receiver (or sender)
at each place first. Any mixture of flows is a flow, and the best of these five is a program of five
variables. Spread over all places, a node uses all its adapters equally whatever its ranks send; the others
spare the links inside nodes (valiant load balancing: Valiant and Brebner 1981, between the adapters of a
node). Where the five do not do, as where one GPU receives more than its links inside the node carry, more are
made to measure.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from blinksim.bounds.rails import Rails, read_rails, symmetric_rails
from blinksim.collective import Collective
from blinksim.graphs.arrays import Floats, transport
from blinksim.graphs.programs import Program, agree
from blinksim.topology.graph import Topology
from blinksim.traffic import Traffic

# Rounds in which places get parts that suit their rates, and rows of the program that are looked at.
_ROUNDS, _MOST_ROWS = 200, 40
_SURELY = 1e-12
# Routes out of one node up to which they are looked at one by one, in a gigabyte.
_MOST_ROUTES = 30_000_000
# Ranks from which on an alltoall is looked at by symmetry, if there is one.
_MANY = 1024
# Flows that may be made to measure after the first five, and those in a row that gain nothing: where nodes are alike
# each spares one of them, and of 11 matrices none gained after more than one that did not.
_MOST_FLOWS, _IDLE_FLOWS = 30, 4


class NodeTraffic:
    """A traffic matrix by nodes and places: bytes (N, L, N, L) from member i of node a to member j of node b."""

    def __init__(self, rails: Rails, traffic: Traffic) -> None:
        nodes, local = rails.ranks.shape
        self._whole = rails.by_place(traffic.matrix)
        own, diagonal = np.arange(nodes), np.arange(local)
        within = self._whole[own, :, own, :].astype(np.float64)
        # What member i of node a has for node b, what node a has for member j of node b, and what goes between nodes.
        self.by_sender = self._whole.sum(axis=3).astype(np.float64)
        self.by_receiver = self._whole.sum(axis=1).astype(np.float64)
        self.by_sender[own, :, own] = 0.0
        self.by_receiver[own, own] = 0.0
        self.by_node = self.by_sender.sum(axis=1)
        within[:, diagonal, diagonal] = 0.0
        self.within = within

    def at_places(self, side: int) -> Floats:
        """(N, L, L): what member i of node a has for places j of other nodes (side 2), or places i for member j (0)."""
        own = np.arange(len(self._whole))
        total = self._whole.sum(axis=side)
        total = total if side else total.swapaxes(0, 1)
        return np.asarray((total - self._whole[own, :, own, :]).astype(np.float64))

    @cached_property
    def apart(self) -> Floats:
        """The bytes between nodes, (N, L, N, L)."""
        blocks, own = self._whole.astype(np.float64), np.arange(len(self._whole))
        blocks[own, :, own, :] = 0.0
        return blocks


def attained_rate(topology: Topology, collective: Collective, enough: float = np.inf) -> float:
    """algbw in bytes/s that the flows of this module attain in alltoall or alltoallv; 0 where there are none.

    enough: a rate at which no more of them are tried.
    """
    if collective.traffic is None and topology.ranks > _MANY:
        symmetric = symmetric_rails(topology)
        if symmetric is not None and symmetric.alike:
            return topology.ranks / symmetric.equal_blocks_time
    traffic = collective.traffic or Traffic.uniform(topology.ranks, topology.ranks)
    time = star_time(topology, traffic)
    if time is None:
        rails = read_rails(topology)
        time = np.inf if rails is None else spread_time(rails, traffic, traffic.size / enough)
    return traffic.size / time


def spread_attains(topology: Topology, collective: Collective, rate: Fraction) -> bool:
    """True if these flows attain a rate."""
    return agree(rate, attained_rate(topology, collective, float(rate)))


def star_time(topology: Topology, traffic: Traffic) -> float | None:
    """Seconds of all bytes where every member has links to and from one switch only; None for other machines."""
    columns, members = topology.link_columns, topology.member_places
    if len(topology.devices) != len(members) + 1 or columns.shared:
        return None
    inner = np.isin(columns.src, members) & np.isin(columns.dst, members)
    if inner.any() or any(device.capacity is not None for device in topology.devices):
        return None
    rates = np.array([float(rate) for rate in columns.bandwidths])[columns.figure]
    out, into = (np.bincount(ends, rates, len(members) + 1)[members] for ends in (columns.src, columns.dst))
    own = np.diagonal(traffic.matrix)
    return float(max(((traffic.sent - own) / out).max(), ((traffic.received - own) / into).max()))


def spread_time(rails: Rails, traffic: Traffic, enough: float = 0.0) -> float:
    """Seconds that the best mixture of the flows takes for all bytes; infinite if there is none.

    enough: seconds at which no more flows are tried.
    """
    there = NodeTraffic(rails, traffic)
    parts = place_parts(rails, there.by_node)
    # Over the receivers' places, over the senders', and over all.
    quick = [(there.at_places(2), there.by_receiver), (there.at_places(0), there.by_sender.swapaxes(1, 2))]
    # Nothing may cross at a place without a route.
    closed = ~rails.open
    quick = [flow for flow in quick if not any(flow[1].sum(axis=end)[closed].any() for end in (0, 1))]
    if parts is not None:
        moved = np.einsum("aib,abk->aik", there.by_sender, parts) + np.einsum("abj,abk->bkj", there.by_receiver, parts)
        quick.append((moved, there.by_node[:, :, None] * parts))
    times = [_seconds(rails, there, flow) for flow in quick]
    if not times:
        return np.inf
    best, _ = _mixed(np.stack(times))
    if best <= enough * (1 + _SURELY) or parts is None or rails.nodes * rails.local**3 > _MOST_ROUTES:
        return best
    times.append(_seconds(rails, there, _own_first(there.apart, parts)))
    # The same backwards.
    moved, across = _own_first(there.apart.transpose(2, 3, 0, 1), parts.swapaxes(0, 1))
    times.append(_seconds(rails, there, (moved.swapaxes(1, 2), across.swapaxes(0, 1))))
    best, prices = _mixed(np.stack(times))
    gained = made = 0
    while enough and made < _MOST_FLOWS and made - gained < _IDLE_FLOWS and best > enough * (1 + _SURELY):
        # What would be quickest if every resource cost as much as it holds the mixture up (Dantzig and Wolfe 1960).
        times.append(_seconds(rails, there, cheapest(rails, there.apart, prices)))
        if float(times[-1] @ prices) >= best * (1 - _SURELY):
            break
        before, (best, prices) = best, _mixed(np.stack(times))
        made += 1
        gained = made if best < before * (1 - _SURELY) else gained
    return best


def _seconds(rails: Rails, there: NodeTraffic, flow: _Flow) -> Floats:
    """How long every resource is busy."""
    moved, across = flow
    return np.asarray(rails.loads(moved + there.within, across) / rails.resources.rates)


# Bytes moved inside nodes, from member to member (N, L, L), and across, from node to node over each place (N, N, L).
_Flow = tuple[Floats, Floats]


def _own_first(apart: Floats, parts: Floats) -> _Flow:
    """As much over each place as `parts` say, first of all what is for the receiver there, and comes from there.

    So `rail_pieces` chooses, in whole units.
    """
    nodes, local = apart.shape[:2]
    moved, across = np.zeros((nodes, local, local)), np.zeros((nodes, nodes, local))
    for a in range(nodes):
        sent = apart[a].transpose(1, 2, 0)
        received = sent.sum(axis=2)
        across[a] = received.sum(axis=1, keepdims=True) * parts[a]
        over = transport(received, across[a])
        moved += over.swapaxes(1, 2)
        # One other node at a time stays in the processor's cache.
        for own, onward in zip(sent, over, strict=True):
            moved[a] += transport(own, onward).sum(axis=0)
    return moved, across


def place_parts(rails: Rails, by_node: Floats) -> Floats | None:
    """The part (N, N, L) of what goes from node a to b over each place, so that no route is busy longer than need be.

    Iterative proportional fitting (Deming and Stephan 1940) with one factor for every route up and down:
    those of routes that are busy longer than all routes of the busiest node together shrink. None where two
    nodes have no open place in common.
    """
    open_ = np.logical_and(rails.open[:, None, :], rails.open[None, :, :])
    if bool((by_node[np.sum(open_, axis=2) == 0] > 0).any()):
        return None
    # Routes up and then down: (2, N, L), and bytes that leave and enter each node: (2, N).
    known = [uses.rates(rails.resources.rates) for uses in rails.fabric_uses]
    rates = np.where(np.isinf(known), 0.0, known).reshape(2, *rails.ranks.shape)
    factors = np.where(rails.open, rates, 0.0)
    aim = float(_over(np.stack([by_node.sum(axis=1), by_node.sum(axis=0)]), factors.sum(axis=2)).max())
    best, least = None, np.inf
    for _ in range(_ROUNDS):
        parts = factors[0][:, None, :] * factors[1] * open_
        parts = _over(parts, parts.sum(axis=2, keepdims=True))
        across = by_node[:, :, None] * parts
        busy = _over(np.stack([across.sum(axis=1), across.sum(axis=0)]), rates)
        if (most := float(busy.max())) < least:
            best, least = parts, most
        if least <= aim * (1 + 1e-13):
            break
        # Routes that are busy longer get smaller factors.
        factors = factors * np.minimum(1.0, np.divide(aim, busy, out=np.ones_like(busy), where=busy > aim))
    return best


def _over(amounts: Floats, rates: Floats) -> Floats:
    """Amounts by rates, 0 where there is no rate."""
    return np.asarray(np.divide(amounts, rates, out=np.zeros_like(amounts), where=rates > 0))


def _mixed(times: Floats) -> tuple[float, Floats]:
    """The least of the longest times of any mixture, and what each resource counts in it, together 1.

    times: seconds of every flow (rows) on every resource.
    """
    best = float(times.max(axis=1).min())
    scale = best or 1.0
    rows = {int(np.argmax(row)) for row in times}
    prices = np.zeros(times.shape[1])
    for _ in range(_MOST_ROWS):
        # Maximise the amount of all flows together under times of 1: its inverse is the time of one unit.
        program = Program()
        parts = program.variables(len(times))
        listed = sorted(rows)
        for row in listed:
            program.row([(part, float(times[part, row]) / scale) for part in parts], at_most=1.0)
        amount = program.solve([(part, 1.0) for part in parts])
        prices[:] = 0.0
        prices[listed] = np.maximum(program.duals, 0.0) / max(float(np.maximum(program.duals, 0.0).sum()), 1e-300)
        mixture = np.maximum(program.values[: len(times)], 0.0) / amount @ times
        best = min(best, float(mixture.max()))
        worst = int(np.argmax(mixture))
        if worst in rows or mixture[worst] <= scale / amount * (1 + 1e-12):
            break
        rows.add(worst)
    return best, prices


# Places whose routes cost the same up to this share divide a block evenly.
_ALIKE = 1e-9


def cheapest(rails: Rails, apart: Floats, prices: Floats) -> tuple[Floats, Floats]:
    """Bytes moved inside nodes (N, L, L), and across over each place (N, N, L), at the least price.

    apart: bytes (N, L, N, L) from member i of node a to member j of node b. prices: of a second of every
    resource.
    """
    nodes, local = apart.shape[:2]
    each = prices / rails.resources.rates
    inside = rails.inside_uses.prices(each).reshape(nodes, local, local)
    ways = (uses.prices(each) for uses in rails.fabric_uses)
    up, down = (np.where(rails.open, price.reshape(nodes, local), np.inf) for price in ways)
    between = rails.trunk_prices(each)
    moved, across = np.zeros((nodes, local, local)), np.zeros((nodes, nodes, local))
    smallest = _ALIKE * float(each.max(initial=0.0))
    # Few resources have a price, so that most members pay the same for every place: those are looked at as one.
    (rows, i), (columns, j) = (_sorts(costs) for costs in (inside, inside.swapaxes(1, 2)))
    sort_of = np.eye(columns.shape[1])[j]  # (b, j, sort)
    for a in range(nodes):
        amounts = apart[a].swapaxes(0, 1)  # (b, i, j)
        over = (up[a] + down + between[a])[:, :, None, None]
        cost = rows[a].T[:, :, None] + over + columns.swapaxes(1, 2)[:, :, None, :]  # (b, k, sorts of i, sorts of j)
        chosen = cost <= cost.min(axis=1, keepdims=True) + smallest
        part = chosen / chosen.sum(axis=1, keepdims=True)
        received = np.eye(rows.shape[1])[i[a]].T @ amounts
        into = np.einsum("bksj,bsj->bkj", part @ sort_of.swapaxes(1, 2)[:, None], received)
        moved[a] += np.einsum("bkit,bit->ik", part[:, :, i[a]], amounts @ sort_of)
        moved += into
        across[a] = into.sum(axis=2)
    return moved, across


def _sorts(costs: Floats) -> tuple[Floats, npt.NDArray[np.intp]]:
    """The rows of every node (N, L, K) that differ, filled up to as many, and which of them is each (N, L)."""
    found = [np.unique(rows, axis=0, return_inverse=True) for rows in costs]
    most = max(len(rows) for rows, _ in found)
    filled = [np.pad(rows, ((0, most - len(rows)), (0, 0)), mode="edge") for rows, _ in found]
    return np.stack(filled), np.stack([number.ravel() for _, number in found])
