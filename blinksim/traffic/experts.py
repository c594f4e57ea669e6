"""Traffic of mixtures of experts: which tokens every rank sends to which, by a router that prefers some experts.

Every rank holds the same number of experts and of tokens. A token goes to its top k experts, once to each rank that
holds any of them (as DeepEP does it), and the results come back the same way: combine is the transpose of dispatch.
How often experts are chosen follows Zipf's law, the usual model of uneven load; the k experts of a token are drawn one
after the other without replacement.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blinksim.errors import InputError
from blinksim.traffic.matrix import MOST_RANKS, Traffic
from blinksim.units import size_of, whole

# Candidates that are drawn per token and round, as a multiple of k, and rounds, before the rest is drawn exactly.
_SPARE, _ROUNDS = 2, 4
# Numbers in one block of tokens.
_BLOCK = 2**22
_MOST = 2**31


def expert_traffic(
    ranks: int,
    *,
    tokens: int = 4096,
    token_size: int | str = "14KiB",
    experts_per_rank: int = 1,
    top_k: int = 8,
    skew: float = 0.0,
    seed: int = 0,
) -> Traffic:
    """The dispatch of one layer of experts: the tokens that every rank has for the experts of every other.

    Parameters
    ----------
    ranks : int
        Ranks; each holds `tokens` tokens and `experts_per_rank` experts.
    tokens : int
        Tokens of every rank in one call.
    token_size : int or str
        Bytes of a token: hidden dimensions times bytes each. The default is 7,168 in 16 bits.
    experts_per_rank : int
        Experts that every rank holds.
    top_k : int
        Experts that every token goes to.
    skew : float
        Exponent of Zipf's law: the expert at place i is chosen with a probability in proportion to i^-skew. 0 is even.
    seed : int
        Of the choices, and of the places of the experts.

    Returns
    -------
    Traffic
        Bytes from every rank to every rank, shape (ranks, ranks); `Traffic.transposed` is the combine.

    Raises
    ------
    InputError
        For fewer than two ranks or more than 8,192, more experts per token than there are, and numbers that are not
        positive.

    Examples
    --------
    >>> import blinksim as bs
    >>> even = bs.expert_traffic(16, tokens=1000, token_size=100, experts_per_rank=2, top_k=4)
    >>> hot = bs.expert_traffic(16, tokens=1000, token_size=100, experts_per_rank=2, top_k=4, skew=1.0)
    >>> round(even.skew, 1), round(hot.skew, 1)
    (1.0, 3.2)
    """
    numbers = {"ranks": ranks, "tokens": tokens, "experts_per_rank": experts_per_rank, "top_k": top_k}
    for name, value in numbers.items():
        if not 1 <= whole(value, name) <= _MOST:
            raise InputError(f"{name}={value}: give a positive whole number")
    if ranks > MOST_RANKS:
        raise InputError(f"ranks={ranks}: a traffic matrix is of {MOST_RANKS:,} at most")
    each, experts = size_of(token_size), ranks * experts_per_rank
    if top_k > experts:
        raise InputError(f"a token cannot go to {top_k} of {experts} experts; send it to fewer, or take more ranks")
    if not 0 <= skew <= 10:
        raise InputError(f"skew={skew}: the exponent of Zipf's law is from 0 to 10")
    random = np.random.default_rng(seed)
    weight = np.arange(1, experts + 1, dtype=np.float64) ** -float(skew)
    weight = random.permutation(weight / weight.sum())
    counts = np.zeros((ranks, ranks), dtype=np.int64)
    block = max(1, _BLOCK // (top_k * _SPARE))
    for rank in range(ranks):
        for first in range(0, tokens, block):
            chosen = _top_k(random, weight, min(block, tokens - first), top_k) // experts_per_rank
            chosen.sort(axis=1)
            once = np.ones(chosen.shape, dtype=bool)
            once[:, 1:] = chosen[:, 1:] != chosen[:, :-1]
            counts[rank] += np.bincount(chosen[once], minlength=ranks)
    return Traffic(counts * each)


def _top_k(random: np.random.Generator, weight: npt.NDArray[np.float64], tokens: int, k: int) -> npt.NDArray[np.int64]:
    """For every token k different experts, drawn one after the other by weight; shape (tokens, k).

    Repeated draws are thrown away, which leaves the others with the right chances. Rows that are not full after some
    rounds are filled by the largest of logarithms plus Gumbel noise, which is the same draw (Vieira 2014).
    """
    bounds = np.cumsum(weight)
    bounds[-1] = 1.0
    chosen = np.full((tokens, k), -1, dtype=np.int64)
    filled = np.zeros(tokens, dtype=np.int64)
    for _ in range(_ROUNDS):
        rows = np.flatnonzero(filled < k)
        if not len(rows):
            return chosen
        drawn = np.searchsorted(bounds, random.random((len(rows), k * _SPARE)), side="right")
        for column in np.minimum(drawn, len(weight) - 1).T:
            new = (filled[rows] < k) & ~(chosen[rows] == column[:, None]).any(axis=1)
            chosen[rows[new], filled[rows[new]]] = column[new]
            filled[rows[new]] += 1
    for row in np.flatnonzero(filled < k).tolist():
        keys = np.log(weight) + random.gumbel(size=len(weight))
        keys[chosen[row, : filled[row]]] = -np.inf
        more = k - int(filled[row])
        chosen[row, filled[row] :] = np.argpartition(keys, -more)[-more:]
    return chosen
