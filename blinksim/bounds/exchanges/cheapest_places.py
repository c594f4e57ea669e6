"""The cheapest flow of a traffic matrix over rails, where every resource has a price: each block on its own."""

from __future__ import annotations

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
    for a in range(nodes):
        over = up[a] + down + between[a]  # (b, k)
        cost = inside[a].T[None, :, :, None] + over[:, :, None, None] + inside[:, :, None, :]  # (b, k, i, j)
        least = cost.min(axis=1, keepdims=True)
        chosen = (cost <= least + smallest).astype(np.float64)
        chosen *= apart[a].transpose(1, 0, 2)[:, None] / chosen.sum(axis=1, keepdims=True)
        moved += chosen.sum(axis=2)
        moved[a] += chosen.sum(axis=(0, 3)).T
        across[a] = chosen.sum(axis=(2, 3))
    return moved, across


def _of_routes(uses: Uses, each: Floats, count: int) -> Floats:
    """The price of a byte on every route."""
    return np.asarray(np.bincount(uses.route, each[uses.resource] * uses.part, count), dtype=np.float64)
