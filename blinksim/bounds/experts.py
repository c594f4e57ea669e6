"""Experts: their routings in files or drawn, and what the ways of libraries put on links.

Every rank has the same number of tokens. The k experts of a token are drawn one after the other without
replacement; popularity follows Zipf's law, the usual model of uneven load. A limit of nodes per token is that
of DeepSeek-V3: the nodes with the highest scores first, then the k best experts in them; a node's score is
that of its best expert, as DeepEP's tests have it. Scores are logarithms of popularity plus Gumbel noise, the
k highest of which are the same draw (Vieira 2014); given the highest of a node, the others are drawn below it
(Maddison, Tarlow and Minka, A* sampling, 2014).

A way says how many copies of a token cross between nodes: one for every rank that wants it, or one for every
node with such ranks, which is copied there. They cross at the sender's place in its node, its rail, and go on
inside; or they go straight from rank to rank. The sums of a combine go the ways of its dispatch backwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from blinksim.collective import DISPATCH, Collective
from blinksim.errors import FileError, InputError, blamed_on, one_of
from blinksim.graphs.arrays import Floats, Ints
from blinksim.schedule.loads import resources, uses_of_messages
from blinksim.textio.number_files import array_in, content_of, csv_rows
from blinksim.textio.text_files import MIB, PathLike, decode, read_bytes, read_words, shown, write_bytes
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology
from blinksim.traffic import MOST_EXPERTS, MOST_IDS, MOST_RANKS, Routing, Traffic, first_of_equals
from blinksim.units import whole

_MOST_BYTES = 1025 * MIB
# Candidates that are drawn per token and round, as a multiple of k, and rounds, before the rest is drawn
# exactly.
_SPARE, _ROUNDS = 2, 4
# Numbers in one block of tokens.
_BLOCK = 2**21


def draw_routing(
    ranks: int,
    *,
    tokens: int = 4096,
    experts: int = 256,
    top_k: int = 8,
    token_size: int | str = "14KiB",
    skew: float = 0.0,
    hot: float = 0.0,
    node_limit: int | None = None,
    ranks_per_node: int = 8,
    seed: int = 0,
) -> Routing:
    """Experts for the tokens of every rank, as `blinksim.Routing` has them; ranks hold them in equal blocks.

    Parameters
    ----------
    ranks, tokens, experts, top_k : int
        Ranks, tokens of every rank, experts in all, and experts that every token goes to.
    token_size : int or str
        Bytes of a token.
    skew : float
        Exponent of Zipf's law: the expert at place i is chosen with a probability in proportion to i^-skew.
    hot : float
        Part of the tokens that go to one expert, the hot one, besides those that do anyway.
    node_limit : int, optional
        The most nodes that a token goes to.
    ranks_per_node : int
        Ranks of a node.
    seed : int
        Of all choices.

    Returns
    -------
    Routing
        The same for the same arguments.

    Raises
    ------
    InputError
        For numbers that do not fit each other.

    Examples
    --------
    >>> import blinksim as bs
    >>> free, limited = (bs.draw_routing(64, tokens=500, node_limit=most) for most in (None, 4))
    >>> bool(limited.tokens.sum() < free.tokens.sum())
    True
    """
    numbers = {"ranks": ranks, "tokens": tokens, "experts": experts, "top_k": top_k}
    for name, value in (numbers | {"ranks_per_node": ranks_per_node}).items():
        if not 1 <= whole(value, name) <= MOST_IDS:
            raise InputError(f"{name}={value}: give a positive whole number")
    if ranks > MOST_RANKS or experts > MOST_EXPERTS or ranks * tokens * top_k > MOST_IDS:
        limits = f"{MOST_RANKS:,} ranks and {MOST_EXPERTS:,} experts at most, and 2^28 choices"
        raise InputError(f"{ranks=}, {experts=}, {tokens=}: draw for {limits}")
    if top_k > experts:
        raise InputError(f"a token cannot go to {top_k} of {experts} experts; send it to fewer, or take more")
    for name, part, highest in (("skew", skew, 10), ("hot", hot, 1)):
        if not 0 <= part <= highest:
            raise InputError(f"{name}={part}: give a number from 0 to {highest}")
    nodes, uneven = divmod(ranks, ranks_per_node)
    if node_limit is not None:
        most = 0 if uneven or experts % nodes or node_limit > nodes else node_limit * experts // nodes
        if most < top_k:
            raise InputError(f"node_limit={node_limit}: {top_k} of {experts} experts on {nodes} nodes")
    random = np.random.default_rng(seed)
    weight = np.arange(1, experts + 1, dtype=np.float64) ** -float(skew)
    weight = random.permutation(weight / weight.sum())
    favourite = int(random.integers(experts)) if hot else 0
    chosen = np.empty((ranks, tokens, top_k), dtype=np.int16)
    for rank, first in product(range(ranks), range(0, tokens, _BLOCK // top_k + 1)):
        own = chosen[rank, first : first + _BLOCK // top_k + 1]
        if node_limit is None:
            own[:] = choose(random, weight, len(own), top_k)
        else:
            own[:] = _within_nodes(random, weight.reshape(nodes, -1), len(own), top_k, node_limit)
        if hot:
            own[(random.random(len(own)) < hot) & (own != favourite).all(axis=1), -1] = favourite
    return Routing(chosen, experts, token_size=token_size, ranks_per_node=ranks_per_node)


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
    """The dispatch of one layer of experts: tokens of every rank for the experts of every other.

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
        Exponent of Zipf's law: the expert at place i is chosen with a probability in proportion to i^-skew. 0
        is even.
    seed : int
        Of the choices, and of the places of the experts.

    Returns
    -------
    Traffic
        Bytes from every rank to every rank, shape (ranks, ranks); `Traffic.transposed` is the combine.

    Raises
    ------
    InputError
        For fewer than two ranks or more than 8,192, more experts per token than there are, numbers that are
        not positive, and more than 2^28 choices.

    Examples
    --------
    >>> import blinksim as bs
    >>> even = bs.expert_traffic(16, tokens=1000, token_size=100, experts_per_rank=2, top_k=4)
    >>> hot = bs.expert_traffic(16, tokens=1000, token_size=100, experts_per_rank=2, top_k=4, skew=1.0)
    >>> round(even.skew, 1), round(hot.skew, 1)
    (1.0, 3.2)
    """
    if not 1 <= whole(experts_per_rank, "experts_per_rank") <= MOST_EXPERTS:
        raise InputError(f"experts_per_rank={experts_per_rank}: give a positive whole number")
    settings: Any = {"tokens": tokens, "top_k": top_k, "skew": skew, "seed": seed}
    drawn = draw_routing(ranks, experts=ranks * experts_per_rank, token_size=token_size, **settings)
    return Traffic(drawn.tokens * drawn.token_size)


def choose(random: np.random.Generator, weight: Floats, tokens: int, k: int) -> Ints:
    """For every token k different experts, drawn one after the other by weight; shape (tokens, k).

    Repeated draws are thrown away, which leaves the others with the right chances. Rows that are not full
    after some rounds are filled by the largest of logarithms plus Gumbel noise, which is the same draw
    (Vieira 2014).
    """
    bounds: Floats = np.cumsum(weight)
    bounds[-1] = 1.0
    # Where to look for a number among the bounds; a binary search takes longer than all else. A product with
    # a power of two is exact.
    cells = 4 << len(weight).bit_length()
    first = np.searchsorted(bounds, np.arange(cells) / cells, side="right")
    chosen = np.full((tokens, k), -1, dtype=np.int64)
    for _ in range(_ROUNDS):
        rows = np.flatnonzero(chosen[:, -1] < 0)
        if not len(rows):
            return chosen
        sample = random.random((len(rows), k * _SPARE)).ravel()
        drawn = first[(sample * cells).astype(np.int64)]
        late = np.flatnonzero(bounds[drawn] <= sample)
        while len(late):
            drawn[late] += 1
            late = late[bounds[drawn[late]] <= sample[late]]
        known = chosen[rows]
        known = known[:, (known >= 0).any(axis=0)]
        every = np.concatenate([known, drawn.reshape(len(rows), -1)], axis=1)
        new = first_of_equals(np.ascontiguousarray(every.T, dtype=np.int32)).T & (every >= 0)
        new &= np.cumsum(new, axis=1, dtype=np.int32) <= k
        kept = np.full((len(rows), k), -1, dtype=np.int64)
        kept[np.arange(k) < new.sum(axis=1)[:, None]] = every[new]
        chosen[rows] = kept
    for row in np.flatnonzero(chosen[:, -1] < 0).tolist():
        keys = np.log(weight) + random.gumbel(size=len(weight))
        filled = int((chosen[row] >= 0).sum())
        keys[chosen[row, :filled]] = -np.inf
        chosen[row, filled:] = np.argpartition(keys, filled - k)[filled - k :]
    return chosen


def _within_nodes(random: np.random.Generator, weight: Floats, tokens: int, k: int, limit: int) -> Ints:
    """For every token k different experts in at most `limit` nodes; weight: (nodes, experts of each)."""
    with np.errstate(divide="ignore"):
        score = np.log(weight.sum(axis=1)) + random.gumbel(size=(tokens, len(weight)))
        best = np.argpartition(-score, limit - 1, axis=1)[:, :limit]
        highest = np.take_along_axis(score, best, axis=1)[:, :, None]
        drawn = np.log(weight)[best] + random.gumbel(size=(*best.shape, weight.shape[1]))
        # Noise whose highest is as drawn above: truncated, in the form that does not cancel.
        below = highest - drawn + np.log1p(-np.exp(drawn - drawn.max(axis=2, keepdims=True)))
        drawn = highest - np.maximum(below, 0) - np.log1p(np.exp(-np.abs(below)))
    found = np.argpartition(-drawn.reshape(tokens, -1), k - 1, axis=1)[:, :k]
    node, expert = np.divmod(found, weight.shape[1])
    return np.asarray(np.take_along_axis(best, node, axis=1) * weight.shape[1] + expert)


# Bytes of an element by its type.
ELEMENT_BYTES = {"fp8": 1, "bfloat16": 2, "float16": 2, "float32": 4}


def token_bytes(hidden: int, dtype: str) -> int:
    """Bytes of a token of `hidden` elements; fp8 has a scale in 32 bits for every 128, as DeepEP sends it.

    Raises `InputError` for a type that is not in `ELEMENT_BYTES`.

    >>> token_bytes(7168, "fp8"), token_bytes(7168, "bf16")
    (7392, 14336)
    """
    known = read_words("element type").get(dtype.lower(), dtype.lower())
    each = ELEMENT_BYTES[one_of("element type", known, ELEMENT_BYTES)]
    return each * hidden + (4 * -(-hidden // 128) if each == 1 else 0)


def read_routing(
    path: PathLike, placement: int | PathLike | None = None, *, ranks: int | None = None, **placing: Any
) -> Routing:
    """Read the experts of every token.

    Parameters
    ----------
    path : str or path
        A CSV file with a line per token, those of rank 0 first, and its experts in it; or what ``numpy.save``
        writes of tokens x k or ranks x tokens x k numbers. -1 is no expert.
    placement : int, str or path, optional
        A CSV file with a line per expert and the ranks that hold it in it; or the number of experts, which
        ranks then hold in equal blocks. Default: such blocks of as few experts as there must be.
    ranks : int, optional
        Where the file does not say: of how many ranks the tokens are, as many of each.
    placing
        ``token_size`` and ``ranks_per_node``, as `Routing` takes them.

    Returns
    -------
    Routing
        As it was recorded.

    Raises
    ------
    FileError
        For a file that cannot be read, with what is no number.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write_routing(bs.draw_routing(8, tokens=100, experts=16), "experts.npy")
    >>> bs.read_routing("experts.npy")
    <Routing: (8, 100, 8) ranks x tokens x k, of 16 experts>
    """
    data, name = read_bytes(path, _MOST_BYTES, "routing"), shown(path)
    with blamed_on(lambda why: FileError(name, why[:200]), (InputError, ValueError, TypeError)):
        if (ids := array_in(name, data)) is None:
            rows = _numbers(path, data, "routing")
            if len({*map(len, rows)}) != 1:
                raise InputError("all tokens have as many experts each, -1 for none, and there is at least one")
            ids = np.array(rows)
        if ids.ndim == 2:
            if ranks is None or len(ids) % ranks:
                raise InputError(f"{len(ids):,} tokens are not as many for each of {ranks or '?'} ranks")
            ids = ids.reshape(ranks, -1, ids.shape[1])
        held: int | list[list[int]] = len(ids) * (int(ids.max(initial=0)) // len(ids) + 1)
        if isinstance(placement, int):
            held = placement
        elif placement is not None:
            held = _numbers(placement, read_bytes(placement, MIB, "placement"), "placement")
        return Routing(ids, held, **placing)


def _numbers(path: PathLike, data: bytes, what: str) -> list[list[int]]:
    """The whole numbers of every line of a file."""
    return [row for _, row in csv_rows(shown(path), decode(path, data, what).splitlines(), int, "whole number")]


def write_routing(routing: Routing, path: PathLike, force: bool = False) -> None:
    """Write the experts of tokens for `read_routing`: in NumPy's format if the name is ``*.npy``, else CSV.

    Parameters
    ----------
    routing : Routing
        What to write.
    path : str or path
        Where.
    force : bool
        Replace a file that exists.

    Raises
    ------
    InputError
        If the file exists and `force` is not given.
    FileError
        If the file cannot be written.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write_routing(bs.draw_routing(8, tokens=100, experts=16), "experts.csv")
    """
    write_bytes(path, content_of(path, routing.experts), force)


def rail_peers(topology: Topology) -> tuple[Ints, Ints]:
    """The node of every rank; and the rank of every node that takes a rank's tokens in, itself in its own node.

    Shapes (ranks) and (ranks, nodes). Peers have the same place in their nodes, and so the same rail.
    """
    ranks, hosts = np.arange(topology.ranks), nodes_of(topology, topology.members)
    host, place = np.empty_like(ranks), np.empty_like(ranks)
    for number, own in enumerate(hosts):
        host[own], place[own] = number, np.arange(len(own))
    peer = np.array([np.array(own)[place % len(own)] for own in hosts]).T
    peer[ranks, host] = ranks
    return host, peer


A_RANK, A_NODE, DIRECT = "a copy a rank", "a copy a node", "direct"


def hops(topology: Topology, collective: Collective, name: str) -> list[Ints]:
    """Tokens that go from rank to rank in every step of a way, one after the other; shapes (ranks, ranks)."""
    routing, (host, peer) = collective.routed, rail_peers(topology)
    ranks, tokens = np.arange(routing.ranks), routing.tokens
    near = tokens * (host[:, None] == host)
    if name == DIRECT:
        found = [tokens.copy()]
    else:
        inside = host[:, None] == np.arange(peer.shape[1])
        copies = tokens @ inside if name == A_RANK else routing.reached((*host.tolist(),))[0]
        found = [near, np.zeros_like(tokens)]
        np.add.at(found[0], (ranks[:, None], peer), copies)
        np.add.at(found[1], (peer[:, host], ranks), tokens - near)
    for sent in found:
        np.fill_diagonal(sent, 0)
    return found if collective.name == DISPATCH else [sent.T for sent in reversed(found)]


@dataclass(frozen=True)
class Way:
    """A way of libraries, by what it puts on the busiest link of each class.

    time: seconds of the busiest of all, which is of class `limit`, without latencies. bytes: by class. port:
    the class of a node's way out, or of a GPU's on a single node.
    """

    name: str
    time: Fraction
    bytes: Mapping[str, int]
    limit: str
    port: str

    @property
    def time_s(self) -> float:
        """Seconds of the busiest link."""
        return float(self.time)

    @classmethod
    def of(cls, topology: Topology, collective: Collective, name: str) -> Way:
        """The way called `A_RANK`, `A_NODE` or `DIRECT`; raises `InfeasibleError` if there are too many routes."""
        shared, places = resources(topology), topology.member_places
        sent = np.sum(hops(topology, collective, name), axis=0)
        src, dst = np.nonzero(sent)
        use, _ = uses_of_messages(topology, places[src], places[dst], sent[src, dst])
        amount, kinds = shared.of_links(use.on().units) * collective.routed.token_size, np.array(shared.kinds)
        busiest = int(np.argmax(amount / shared.rates))
        most = {kind: int(amount[kinds == kind].max()) // use.parts for kind in topology.link_classes}
        limit, columns, node = shared.kinds[busiest], topology.link_columns, topology.device_nodes
        between = {topology.links[link].kind for link in np.flatnonzero(node[columns.src] != node[columns.dst])}
        port = next((kind for kind in most if kind in between), limit) if topology.nodes > 1 else limit
        return cls(name, shared.longest(amount) / use.parts, most, limit, port)
