"""The cheapest flow of a traffic matrix over rails, where every resource has a price: each block on its own."""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt

from blinksim.bounds.exchanges.rails import Floats, Rails, Uses

# Places whose routes cost the same up to this share divide a block evenly.
_ALIKE = 1e-9


def cheapest(rails: Rails, apart: Floats, prices: Floats) -> tuple[Floats, Floats]:
    """Bytes moved inside nodes (N, L, L), and across over each place (N, N, L), at the least price.

    apart: bytes (N, L, N, L) from member i of node a to member j of node b. prices: of a second of every resource.
    """
    nodes, local = apart.shape[:2]
    each = prices / rails.rate
    inside = _of_routes(rails.inside_uses, each, nodes * local * local).reshape(nodes, local, local)
    up = _of_routes(rails.up_uses, each, nodes * local).reshape(nodes, local)
    down = _of_routes(rails.down_uses, each, nodes * local).reshape(nodes, local)
    up, down = (np.where(rails.open, price, np.inf) for price in (up, down))
    between = rails.trunk_prices(each)
    moved, across = np.zeros((nodes, local, local)), np.zeros((nodes, nodes, local))
    smallest = _ALIKE * float(each.max(initial=0.0))
    # Few resources have a price, so that most members pay the same for every place: those are looked at as one.
    senders, receivers = ([_sorts(costs) for costs in sides] for sides in (inside, inside.swapaxes(1, 2)))
    for a, b in product(range(nodes), repeat=2):
        amounts = apart[a, :, b, :]
        if not amounts.any():
            continue
        (rows, i), (columns, j) = senders[a], receivers[b]
        over = up[a] + down[b] + between[a, b]
        cost = (rows + over).T[:, :, None] + columns.T[:, None, :]  # (k, sorts of i, sorts of j)
        chosen = cost <= cost.min(axis=0) + smallest
        part = chosen / chosen.sum(axis=0)
        sent = amounts @ np.eye(len(columns))[j]
        received = np.eye(len(rows))[i].T @ amounts
        into = np.einsum("kij,ij->kj", part[:, :, j], received)
        moved[a] += np.einsum("kij,ij->ik", part[:, i, :], sent)
        moved[b] += into
        across[a, b] = into.sum(axis=1)
    return moved, across


def _sorts(costs: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The different rows, and which of them each row is."""
    rows, which = np.unique(costs, axis=0, return_inverse=True)
    return rows, which.ravel()


def _of_routes(uses: Uses, each: Floats, count: int) -> Floats:
    """The price of a byte on every route."""
    return np.asarray(np.bincount(uses.route, each[uses.resource] * uses.part, count), dtype=np.float64)
