"""Words that stood for something else in another command go on to work, with a line that says what they are now."""

from __future__ import annotations

import json

import pytest

import blinksim as bs
from blinksim.cli.main import run
from blinksim.errors import OutdatedWarning


@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        (("sweep", "ring:4@25GB/s", "allreduce", "--sizes", "1MiB", "--algorithms"), "all", "unsearched"),
        (
            ("bound", "full:4@50GB/s", "--group", "0,1", "--group", "2,3", "--relays-reduce", "--relays"),
            "all",
            "others",
        ),
    ],
)
def test_the_old_word_still_works(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], old: str, new: str
) -> None:
    found = []
    for word in (old, new):
        assert run([*words, word, "--json"]) == 0
        out, err = capsys.readouterr()
        found.append(json.loads(out))
        said = [line for line in err.splitlines() if "still at work" not in line]
        assert len(said) == (word == old)
        assert all(f"{words[-1]} {old}" in line and f"{words[-1]} {new}" in line for line in said)
    assert found[0] == found[1]


def test_python_warns_as_well() -> None:
    with pytest.warns(OutdatedWarning, match="relays=others"):
        bs.together(bs.Question("full:4@50GB/s", relays="all", relays_reduce=True), ["0,1", "2,3"])
