from __future__ import annotations

import pytest

from blinksim.errors import BlinksimError, FileError, InfeasibleError, InputError, MissingError, unknown


@pytest.mark.parametrize(
    ("kind", "code"), [(BlinksimError, 2), (InputError, 2), (InfeasibleError, 3), (MissingError, 4)]
)
def test_each_error_has_its_exit_status(kind: type[BlinksimError], code: int) -> None:
    assert kind("x").exit_code == code
    assert isinstance(kind("x"), BlinksimError)


@pytest.mark.parametrize(
    ("place", "text"),
    [((), "m.yaml: bad"), ((3,), "m.yaml:3: bad"), ((3, 7), "m.yaml:3:7: bad"), ((None, None), "m.yaml: bad")],
)
def test_the_place_in_a_file_comes_first(place: tuple[int | None, ...], text: str) -> None:
    error = FileError("m.yaml", "bad", *place)
    assert str(error) == text
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("name", "known", "text"),
    [
        ("gpu11", ["gpu0", "gpu1"], "unknown thing 'gpu11': did you mean 'gpu1' or 'gpu0'?"),
        ("n2.fabric0", ["n2.nic0", "n1.nic0", "fabric0"], "unknown thing 'n2.fabric0': did you mean 'fabric0'?"),
        ("n2.x", ["n2.nic0", "n1.nic0", "fabric0"], "unknown thing 'n2.x': known: fabric0, n2.nic0"),
        (
            "card0.t0",
            ["n1.card0.t0", "n0.card0.t0"],
            "unknown thing 'card0.t0': write n0.card0.t0, as names begin with the node",
        ),
        ("p4d.x", ["p4d.24xlarge", "p5.48xlarge"], "unknown thing 'p4d.x': known: p4d.24xlarge"),
        ("NVLINK", ["nvlink", "pcie"], "unknown thing 'NVLINK': did you mean 'nvlink'?"),
        ("nvlink", ["NVLink"], "unknown thing 'nvlink': did you mean 'NVLink'?"),
        ("zzz", ["b", "a"], "unknown thing 'zzz': known: a, b"),
        ("zzz", [f"gpu{i}" for i in range(99)], "unknown thing 'zzz': known: gpu0 to gpu98"),
        ("zzz", [f"gpu{3 * i}" for i in range(99)], "unknown thing 'zzz': 99 names are known"),
        ("zzz", [], "unknown thing 'zzz': there are none"),
    ],
)
def test_unknown_names_are_answered_with_known_ones(name: str, known: list[str], text: str) -> None:
    error = unknown("thing", name, known)
    assert isinstance(error, InputError)
    assert str(error) == text
    assert str(unknown("thing", name, known, hint="(see x)")) == f"{text} (see x)"
