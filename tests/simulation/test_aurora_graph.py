"""Aurora's scale-up terms on its link graph: the schedule that equation 4 describes, piece by piece.

The two tiles of a card swap halves over MDFI; then the tiles of one plane reduce-scatter and allgather their half over
Xe links, and swap back (Aurora allreduce projection, section 3.1).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.timing.projection import equations, load_preset
from blinksim.topology.graph import Topology

SIZE = 2 * 10**9
RANKS = [4, 6, 8, 12]


def without_alpha(cards: int, tiles: tuple[int, ...] = (0, 1)) -> Topology:
    """The tiles of so many cards at the rates of the projection's tables, without latency and overhead."""
    node = bs.load("aurora", rates="seed")
    part = node.select([f"card{c}.t{t}" for c in range(cards) for t in tiles], links=["mdfi", "xe"])
    return replace(part, links=tuple(replace(link, latency=0.0, overhead=0.0) for link in part.links))


def equation_4(ranks: int) -> dict[str, float]:
    """Seconds by what sets them: the terms of two nodes, of which the graph of one has those inside."""
    terms = equations(replace(load_preset("aurora-projection"), hide_mdfi=False), SIZE, 2, ranks)
    return {kind: sum(term.time_s for term in terms if term.limit == kind) for kind in ("xe", "mdfi")}


@pytest.mark.parametrize("ranks", RANKS)
def test_a_plane_takes_the_xe_terms_of_equation_4(ranks: int) -> None:
    cards = ranks // 2
    plane = without_alpha(cards, (0,))
    schedule = algorithm("two_shot").build(plane, Collective("allreduce"))
    assert bs.verify(schedule).ok
    # Each plane has half of the vector.
    found = bs.simulate(schedule, SIZE // 2, pieces=1)
    assert found.time_s == pytest.approx(equation_4(ranks)["xe"], rel=1e-9)
    # The direct exchange between cards is the best there is.
    assert found.time_s == pytest.approx(SIZE / 2 / float(bs.bound(plane, "allreduce").rate), rel=1e-9)


@pytest.mark.parametrize("ranks", RANKS)
def test_the_hierarchical_schedule_takes_equation_4_with_mdfi_added(ranks: int) -> None:
    cards = ranks // 2
    node = without_alpha(cards)
    schedule = algorithm("hierarchical").build(node, Collective("allreduce"))
    assert bs.verify(schedule).ok
    expected = equation_4(ranks)
    found = bs.simulate(schedule, SIZE, pieces=1)
    assert found.time_s == pytest.approx(expected["xe"] + expected["mdfi"], rel=1e-9)
    by_class = {use.kind: use.busy_s for use in found.uses}
    assert by_class == pytest.approx(expected, rel=1e-9)
    # Cut into pieces, what MDFI carries hides behind the Xe links, as the projection assumes.
    hidden = bs.simulate(schedule, SIZE, pieces=200, offer="turns").time_s
    assert expected["xe"] <= hidden < expected["xe"] * 1.02 < found.time_s


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter"])
def test_cards_take_the_place_of_nodes(collective: str) -> None:
    node = bs.load("aurora").select(links=["mdfi", "xe"])
    schedule = algorithm("hierarchical").build(node, Collective(collective))
    assert bs.verify(schedule).ok
    # MDFI and Xe links only, each send over a single link.
    assert {node.links[i].kind for i in schedule.route_links.tolist()} == {"mdfi", "xe"}
    assert set(np.diff(schedule.route_start).tolist()) == {1}


def test_cards_have_to_be_alike() -> None:
    node = bs.load("aurora")
    few = ["card0.t0", "card0.t1"]
    for tiles, there in ((few, "here is one"), ([*few, "card1.t0"], "these have 2 1")):
        with pytest.raises(InfeasibleError, match=f"cards with the same number of ranks each; {there};"):
            algorithm("hierarchical").build(node.select(tiles), Collective("allreduce"))
