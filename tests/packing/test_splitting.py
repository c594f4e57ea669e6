"""Splitting switches off where most ways of pairing their links are wrong."""

from __future__ import annotations

from random import Random

import networkx as nx

from blinksim.graphs.digraph import CutPool, Digraph
from blinksim.packing.arborescences import split_off, usual_sets

# A random machine of 55 GPUs below five switches. Every GPU sends its own 3341 trees on, and must receive all others.
OWN, GPUS = 3341, 55
# Switch: what its GPUs may send to it, for those with one link; each receives just what it must.
UP = {
    55: [
        1697688,
        1392318,
        601470,
        1172880,
        416970,
        535752,
        864990,
        556056,
        511326,
        657126,
        1694538,
        1532520,
        305442,
        1546794,
        526860,
    ],
    56: [451710, 188712, 1337202, 1455984, 1006326, 347778, 255330, 1410984, 1481580],
    57: [1427994, 1132668, 1633392, 522918, 185940],
    58: [3341, 3341, 3341, 3341, 3341, 3341, 3341, 3341],
    59: [566730, 395280, 240642, 1417428, 1570986, 633816, 180414, 754092, 1394784, 751590, 1754406, 597294, 625158],
}
REST = [
    (50, 55, 1046358),
    (50, 56, 1151892),
    (51, 56, 246942),
    (51, 59, 376290),
    (52, 55, 1739160),
    (52, 57, 1601208),
    (53, 59, 1072404),
    (53, 56, 1008846),
    (54, 57, 563346),
    (54, 58, 660528),
    (56, 50, 180414),
    (56, 51, 136981),
    (56, 53, 180414),
    (57, 52, 180414),
    (57, 54, 180414),
    (59, 51, 43433),
    (55, 56, 1998270),
    (55, 57, 629352),
    (56, 58, 782784),
    (58, 56, 26728),
]


def test_wrong_pairs_are_taken_back_and_no_others() -> None:
    """Before, every new set cost all pairs of a switch: more than 300 rounds here."""
    out: list[dict[int, int]] = [{} for _ in range(GPUS + 5)]
    # In this order, most pairs that are tried first are wrong.
    order = list(range(GPUS))
    Random(9).shuffle(order)
    gpus = iter(order)
    for switch, widths in UP.items():
        for width in widths:
            gpu = next(gpus)
            out[gpu][switch], out[switch][gpu] = width, OWN * (GPUS - 1)
    order += range(GPUS, GPUS + 5)
    for a, b, width in REST:
        out[order[a]][order[b]] = width
    graph = Digraph(out, dict.fromkeys(range(GPUS), OWN), range(GPUS))
    assert not graph.short_sets()
    pool = CutPool(graph)
    pool.add(usual_sets(graph, [0] * graph.count))
    rounds = 0

    def count(*_: int) -> None:
        nonlocal rounds
        rounds += 1
        assert rounds < 100

    assert split_off(graph, [0] * graph.count, pool, count)
    assert rounds > 10
    assert all(head < GPUS for row in graph.out[:GPUS] for head in row)
    assert not any(graph.out[GPUS:])
    # Every GPU still receives all trees; from GPUS on goes what starts at each.
    arcs = [(tail, head, capacity) for tail, row in enumerate(graph.out) for head, capacity in row.items()]
    network: nx.DiGraph[int] = nx.DiGraph()
    network.add_weighted_edges_from([*arcs, *((GPUS, gpu, OWN) for gpu in range(GPUS))], "capacity")
    for gpu in range(GPUS):
        assert nx.maximum_flow_value(network, GPUS, gpu) == GPUS * OWN
