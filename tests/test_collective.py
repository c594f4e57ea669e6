from __future__ import annotations

import typing
from fractions import Fraction

import pytest

from blinksim.collective import (
    COLLECTIVES,
    EVERY,
    OWN,
    REDUCING,
    ROOT,
    ROOTED,
    Collective,
    CollectiveName,
    busbw_factor,
)
from blinksim.errors import InputError


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("allreduce", "allreduce"),
        ("all_reduce", "allreduce"),
        ("AllReduce", "allreduce"),
        ("reduce-scatter", "reducescatter"),
        ("ReduceScatter", "reducescatter"),
        ("all-to-all", "alltoall"),
    ],
)
def test_the_usual_spellings_are_understood(text: str, name: str) -> None:
    assert Collective.parse(text) == Collective(name)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown collective 'alreduce': did you mean 'allreduce'"):
        Collective.parse("alreduce")
    with pytest.raises(InputError, match="unknown collective 'AllReduce'"):
        Collective("AllReduce")


@pytest.mark.parametrize(
    ("text", "instead"), [("barrier", "an allreduce of 8B"), ("send_recv", "a broadcast between two members")]
)
def test_what_libraries_have_beside_collectives_says_what_to_ask_for(text: str, instead: str) -> None:
    with pytest.raises(InputError, match=f"unknown collective '{text}': known: .*takes what {instead} does"):
        Collective.parse(text)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_only_rooted_collectives_take_a_root(name: str) -> None:
    assert Collective.parse(name).root == 0
    assert str(Collective.parse(name)) == (f"{name} from root 0" if name in ROOTED else name)
    if name in ROOTED:
        chosen = Collective.parse(name, 3)
        assert chosen.root == 3
        chosen.check_ranks(4)
        with pytest.raises(InputError, match="root 3 is not a rank: 3 ranks are numbered 0 to 2"):
            chosen.check_ranks(3)
        with pytest.raises(InputError, match="root -1 is not a rank"):
            Collective.parse(name, -1).check_ranks(3)
    else:
        with pytest.raises(InputError, match=f"{name} has no root"):
            Collective.parse(name, 0)
        Collective.parse(name).check_ranks(1)


def test_rooted_and_reducing_are_collectives() -> None:
    assert {*COLLECTIVES, "combine"} >= ROOTED | REDUCING
    assert [name for name in COLLECTIVES if Collective(name).reduces] == ["allreduce", "reducescatter", "reduce"]
    assert [name for name in COLLECTIVES if Collective(name).rooted] == ["broadcast", "reduce", "gather", "scatter"]


@pytest.mark.parametrize(
    ("name", "two", "eight"),
    [
        # nccl-tests, doc/PERFORMANCE.md
        ("allreduce", Fraction(1), Fraction(14, 8)),
        ("allgather", Fraction(1, 2), Fraction(7, 8)),
        ("reducescatter", Fraction(1, 2), Fraction(7, 8)),
        ("alltoall", Fraction(1, 2), Fraction(7, 8)),
        ("gather", Fraction(1, 2), Fraction(7, 8)),
        ("scatter", Fraction(1, 2), Fraction(7, 8)),
        ("broadcast", Fraction(1), Fraction(1)),
        ("reduce", Fraction(1), Fraction(1)),
    ],
)
def test_bus_bandwidth_factors(name: str, two: Fraction, eight: Fraction) -> None:
    assert busbw_factor(name, 2) == two
    assert busbw_factor(name, 8) == eight
    assert busbw_factor(name, 1) == (name in ("broadcast", "reduce"))


def test_a_collective_by_name_or_as_it_is() -> None:
    assert Collective.of("all-gather") == Collective("allgather")
    assert Collective.of("reduce", 3) == Collective("reduce", 3)
    assert Collective.of(Collective("reduce", 3)) == Collective("reduce", 3)
    for wrong, root in ((Collective("reduce", 3), 2), ("allreduce", 0), ("allreduse", None), (7, None), (None, None)):
        with pytest.raises(InputError):
            Collective.of(wrong, root)  # type: ignore[arg-type]
    assert typing.get_args(CollectiveName) == COLLECTIVES


# MPI-4.0, section 6, and NCCL's user guide, "Collective Operations".
@pytest.mark.parametrize(
    ("name", "starts", "ends", "dual"),
    [
        ("allreduce", EVERY, EVERY, "allreduce"),
        ("allgather", OWN, EVERY, "reducescatter"),
        ("reducescatter", EVERY, OWN, "allgather"),
        ("broadcast", ROOT, EVERY, "reduce"),
        ("reduce", EVERY, ROOT, "broadcast"),
        ("gather", OWN, ROOT, "scatter"),
        ("scatter", ROOT, OWN, "gather"),
        ("alltoall", OWN, OWN, "alltoall"),
    ],
)
def test_promises_and_duals(name: str, starts: str, ends: str, dual: str) -> None:
    collective = Collective(name, 2 if name in ROOTED else 0)
    assert (collective.starts, collective.ends) == (starts, ends)
    assert collective.dual == Collective(dual, collective.root)
    assert collective.collects == (name in ("reduce", "reducescatter", "gather"))
    assert collective.labels(3, 5) == (3 if starts == OWN else -1, 5 if ends == OWN else -1)


@pytest.mark.parametrize(
    ("name", "buffers"),
    [
        # Send and receive counts of NCCL's calls for 12 elements and 4 ranks (nccl-tests: "count" and "size").
        ("allreduce", (12, 12)),
        ("allgather", (3, 12)),
        ("reducescatter", (12, 3)),
        ("broadcast", (12, 12)),
        ("gather", (3, 12)),
        ("scatter", (12, 3)),
        ("alltoall", (12, 12)),
    ],
)
def test_buffers(name: str, buffers: tuple[int, int]) -> None:
    assert Collective(name).buffers(12, 4) == buffers
    assert Collective(name).vectors(4) == (4 if name == "alltoall" else 1)


def test_what_the_sides_of_a_collective_hold() -> None:
    sliced = {name: Collective(name).block_sides for name in COLLECTIVES}
    assert sliced == {
        "allreduce": 0, "broadcast": 0, "reduce": 0,
        "allgather": 1, "reducescatter": 1, "gather": 1, "scatter": 1,
        "alltoall": 2,
    }  # fmt: skip
    assert {name for name in COLLECTIVES if Collective(name).personalized} == {"gather", "scatter", "alltoall"}


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("all_gather_into_tensor", "allgather"),
        ("reduce_scatter_tensor", "reducescatter"),
        ("all_to_all_single", "alltoall"),
    ],
)
def test_names_of_torch_distributed(called: str, name: str) -> None:
    assert Collective.parse(called).name == Collective.parse(name).name == name
