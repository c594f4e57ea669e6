"""Machines whose links lead one way: what a collective needs of them, and no more."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, strategies as st

import blinksim as bs
from blinksim.cli.main import run
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import InfeasibleError
from blinksim.topology.graph import Device, Link, Topology
from blinksim.topology.selection import unserved

GB = 10**9
FOLDER = Path(__file__).parents[1] / "data" / "machines"
POSSIBLE = {("broadcast", 0), ("scatter", 0), ("reduce", 1), ("gather", 1)}


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("root", [0, 1])
def test_a_pair_with_one_link(name: str, root: int, capsys: pytest.CaptureFixture[str]) -> None:
    collective = Collective(name, root if Collective(name).rooted else 0)
    machine = bs.load(FOLDER / "one_way_pair.yaml")
    line = ["bound", str(FOLDER / "one_way_pair.yaml"), name]
    line += ["--root", str(root)] if collective.rooted else []
    if (name, root) in POSSIBLE:
        due = 6 if name in ("broadcast", "reduce") else 12
        assert bs.bound(machine, collective).rate == due * GB
        assert bs.synthesize(machine, collective).rate == due * GB
        assert run(line) == 0
    else:
        for ask in (bs.bound, bs.synthesize, bs.losses):
            with pytest.raises(InfeasibleError, match="do not carry the data"):
                ask(machine, collective)
        assert run(line) == 3
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_machine_without_links(name: str) -> None:
    machine = bs.load(FOLDER / "no_links.yaml")
    for ask in (bs.bound, bs.synthesize):
        with pytest.raises(InfeasibleError, match="do not carry the data"):
            ask(machine, name)


@given(st.data())
def test_what_is_served_is_what_networkx_reaches(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 5))
    names = [f"gpu{i}" for i in range(count)]
    pairs = [(a, b) for a in names for b in names if a != b]
    chosen = data.draw(st.lists(st.sampled_from(pairs), unique=True))
    links = tuple(Link(a, b, "link", Fraction(GB)) for a, b in chosen)
    machine = Topology("drawn", tuple(Device(name, "gpu") for name in names), links, collective_links=("link",))
    graph: nx.DiGraph[str] = nx.DiGraph(chosen)
    graph.add_nodes_from(names)
    for name in COLLECTIVES:
        collective = Collective(name, data.draw(st.integers(0, count - 1)) if Collective(name).rooted else 0)
        root = names[collective.root]
        match name:
            case "broadcast" | "scatter":
                possible = len(nx.descendants(graph, root)) == count - 1
            case "reduce" | "gather":
                possible = len(nx.ancestors(graph, root)) == count - 1
            case _:
                possible = nx.is_strongly_connected(graph)
        assert (not unserved(machine, collective)) == possible
        if possible:
            assert bs.bound(machine, collective).rate > 0
        else:
            with pytest.raises(InfeasibleError):
                bs.bound(machine, collective)
