"""The cheapest flow of a traffic matrix over rails, where every resource has a price: each block on its own."""

from __future__ import annotations

from itertools import product

import numpy as np

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
    # One pair of nodes at a time stays in the processor's cache.
    for a, b in product(range(nodes), repeat=2):
        amounts = apart[a, :, b, :]
        if not amounts.any():
            continue
        over = up[a] + down[b] + between[a, b]
        cost = (inside[a].T + over[:, None])[:, :, None] + inside[b][:, None, :]  # (k, i, j)
        chosen = cost <= cost.min(axis=0) + smallest
        carried = chosen * (amounts / chosen.sum(axis=0))
        into = carried.sum(axis=1)
        moved[a] += carried.sum(axis=2).T
        moved[b] += into
        across[a, b] = into.sum(axis=1)
    return moved, across


def _of_routes(uses: Uses, each: Floats, count: int) -> Floats:
    """The price of a byte on every route."""
    return np.asarray(np.bincount(uses.route, each[uses.resource] * uses.part, count), dtype=np.float64)
