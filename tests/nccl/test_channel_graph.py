"""What graph files mean as channels, and back; judged by hand-written numbers and by what a file holds in decimals."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from hypothesis import given, strategies as st

from blinksim.nccl.families import FAMILIES, PATH_TYPES, PORTABLE_PATH_TYPES, RING, TREE, file_path_types
from blinksim.nccl.files.graph_file import Graph, GraphFile, graphs_of, read_text, to_text

FILE = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="2" nchannels="2" speedintra="20.1" speedinter="12.7" latencyinter="1.5"
         typeintra="NVL" typeinter="PXB" samechannels="0">
    <channel><net dev="0x3"/><gpu dev="0xa"/><gpu dev="0xb"/><net dev="0x4"/></channel>
    <channel><net dev="0x4"/><gpu dev="0xb"/><gpu dev="0xa"/><net dev="0x3"/></channel>
    <channel><net dev="0x5"/><gpu dev="0xb"/><gpu dev="0xa"/><net dev="0x5"/></channel>
  </graph>
  <graph id="3" pattern="5" crossnic="0" nchannels="0" speedintra="20" speedinter="20" typeintra="NVL" typeinter="PIX"
         samechannels="1"/>
</graphs>
"""


def test_a_file_means_decimal_speeds_and_as_many_channels_as_it_says() -> None:
    found = graphs_of(read_text(FILE.replace("\n         ", " "), "x"))
    assert found == {
        "ring": Graph(
            pattern=4,
            nchannels=2,
            bw_intra=Fraction(20_100_000_000),
            bw_inter=Fraction(12_700_000_000),
            type_intra="NVL",
            type_inter="PXB",
            same_channels=False,
            latency_inter=1.5e-6,
            cross_nic=2,
            channels=((10, 11), (11, 10)),
            nets=((3, 4), (4, 3)),
        )
    }


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 4))
    gpus = draw(st.lists(st.integers(0, 300), min_size=1, max_size=4, unique=True))
    ports: tuple[tuple[int, int], ...] = draw(st.sampled_from([(), ((2, 0),)]))
    inside, between = (Fraction(draw(st.decimals(Decimal("0.1"), 900, places=6))) * 10**9 for _ in range(2))
    return Graph(
        pattern=draw(st.integers(1, 6)),
        nchannels=count,
        bw_intra=inside,
        bw_inter=between,
        type_intra=draw(st.sampled_from(PORTABLE_PATH_TYPES)),
        type_inter=draw(st.sampled_from(PORTABLE_PATH_TYPES)),
        same_channels=draw(st.booleans()),
        cross_nic=draw(st.integers(0, 2)),
        channels=(tuple(gpus),) * count,
        nets=ports * count,
    )


@given(graphs(), graphs())
def test_what_is_written_means_the_same_when_read(ring: Graph, tree: Graph) -> None:
    text = to_text(GraphFile(((RING, ring), (TREE, tree))))
    assert graphs_of(read_text(text, "x")) == {"ring": ring, "tree": tree}


def test_a_path_with_one_port_enters_and_leaves_by_it() -> None:
    tree = Graph(3, 1, Fraction(10**10), Fraction(10**10), "NVL", "PIX", False, channels=((0, 1),), nets=((7,),))
    assert graphs_of(GraphFile(((TREE, tree),)))["tree"].nets == ((7, 7),)


def test_releases_know_the_words_of_their_time() -> None:
    """NCCL's graph/xml.cc, kvDictLinkType: PXN came with 2.12, P2C with 2.27; C2C, NET and DIS were never in it."""
    assert file_path_types(11) == ("LOC", "NVL", "NVB", "PIX", "PXB", "PHB", "SYS")
    assert file_path_types(12) == ("LOC", "NVL", "NVB", "PIX", "PXB", "PXN", "PHB", "SYS")
    assert file_path_types(27) == ("LOC", "NVL", "NVB", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
    assert set(PATH_TYPES) - set(file_path_types(30)) == {"C2C", "NET", "DIS"}
    assert FAMILIES == {"ring": 0, "tree": 1, "nvls": 3}
