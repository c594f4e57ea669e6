"""A file in the folder of algorithms is an algorithm: nothing else says that it is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import blinksim

STAR = '''
"""Star: the root sends everything to every rank."""

from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import Algorithm, per_rank
from blinksim.schedule.model import COPY

ENTRY = Algorithm(("broadcast",), "the root sends everything to every rank", sends=per_rank)


def build(topology, collective):
    plan = Plan(topology, collective, "star_of_a_test", "steps")
    others = np.delete(np.arange(plan.n), collective.root)
    plan.send(collective.root, others, chunk=plan.add_chunk(Fraction(1)), op=COPY, step=0)
    return plan.finish()
'''
RUN = """
import sys
import blinksim.algorithms
blinksim.algorithms.__path__.append(sys.argv.pop(1))
from blinksim.__main__ import main
main()
"""


def test_a_file_is_an_algorithm(tmp_path: Path) -> None:
    (tmp_path / "star_of_a_test.py").write_text(STAR, encoding="utf-8")

    def answer(*arguments: str) -> str:
        command = [sys.executable, "-c", RUN, str(tmp_path), *arguments]
        root = Path(blinksim.__file__).parents[1]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout

    found = json.loads(answer("project", "dgx-a100", "broadcast", "1GiB", "--algorithm", "star-of-a-test", "--json"))
    assert found["algorithm"] == "star_of_a_test"
    four = ("dgx-a100", "broadcast", "--members", "0-3", "--sizes", "1MiB", "--model", "alpha-beta")
    assert "star_of_a_test" in answer("compare", *four)


@pytest.mark.parametrize(
    ("package", "name", "text", "words"),
    [
        ("algorithms", "star_of_a_test.py", STAR.partition("ENTRY")[0], ": says no ENTRY; add one"),
        ("algorithms", "star_of_a_test.py", STAR.replace("sends=per_rank", "sent=per_rank"), ":12: TypeError: "),
        ("algorithms", "star_of_a_test.py", STAR.replace('"broadcast"', '"brodcast"'),
         ":12: unknown collective 'brodcast': did you mean 'broadcast'"),
        ("timing", "star_model.py", '"""Star."""\n', ": says no ENTRIES; add one"),
        ("timing", "star_model.py", 'ENTRIES = ({"name": "star", "class": "Stra"},)\n\n\nclass Star(Model): ...\n',
         ":1: ENTRIES names the class Stra, which is not in the file; name one that is"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_say_what_it_is_ends_in_one_line(
    tmp_path: Path, package: str, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    asked = ["project", "ring:4", "allreduce", "1GiB"]
    command = [sys.executable, "-c", RUN.replace("algorithms", package), str(tmp_path), *asked]
    ran = subprocess.run(command, cwd=Path(blinksim.__file__).parents[1], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"{name}{words}" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
