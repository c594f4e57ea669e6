"""What a shell offers after TAB."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from blinksim.cli.main import cli
from blinksim.collective import COLLECTIVES
from blinksim.formats.shipped import machine_names

ROOT = Path(__file__).resolve().parents[2]


def offered(*words: str) -> tuple[set[str], bool]:
    """The names for the last word of a line, and if files are offered too."""
    found = ShellComplete(cli, {}, "blinksim", "_BLINKSIM_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return {item.value for item in found if item.type == "plain"}, any(item.type == "file" for item in found)


@pytest.mark.parametrize(
    ("line", "names", "files"),
    [
        ("project dgx1", {"dgx1-p100", "dgx1-v100"}, True),
        ("topo show k22", {"k2200-ntb", "k2200-ethernet"}, True),
        ("project dgx1-v100 all", {"allreduce", "allgather", "alltoall"}, False),
        ("project dgx1-v100 allreduce 1M --algorithm b",
         {"best", "binary", "binomial", "blink", "blink_hierarchical", "blinkplus", "bucket"}, True),
        ("synth dgx1-v100 alltoall --algorithm ",
         {"direct", "packed", "rail_aligned", "rail_joined", "bruck", "multiphase", "few_rounds", "few_steps"}, True),
        ("compare dgx1-v100 allreduce --algorithms ring,chain_", {"ring,chain_tree"}, True),
        ("compare dgx1-v100 allreduce --model alpha-beta,nccl", {"alpha-beta,nccl-tuner"}, True),
        ("bound dgx1-v100 allreduce --rates n", {"nominal", "nccl"}, True),
        ("export x.json --format ms", {"msccl-xml", "mscclpp-json"}, False),
        ("topo export dgx1-v100 --format ", {"nccl-topo"}, False),
        ("verify dgx1-p100-8", {"dgx1-p100-8-allgather", "dgx1-p100-8-allreduce", "dgx1-p100-8-chains"}, True),
        ("diagnose log.txt --machine auro", {"aurora"}, True),
        ("diagnose ", set(), True),
        ("measured au", {"aurora"}, False),
        ("measured mi3", {"mi300x", "mi325x", "mi355x"}, False),
        ("simulate x.json 1M --service f", {"fifo"}, False),
    ],
)  # fmt: skip
def test_names_are_offered(line: str, names: set[str], files: bool) -> None:
    assert offered(*line.split(" ")) == (names, files)


def test_what_is_offered_is_what_there_is() -> None:
    from blinksim.gpu.programs.dtypes import ELEMENT_TYPES, REDUCTIONS
    from blinksim.timing.model_registry import names

    assert offered("project", "")[0] == set(machine_names.names())
    assert offered("project", "x", "")[0] == set(COLLECTIVES)
    assert offered("project", "--model", "")[0] == set(names())
    assert offered("run", "--dtype", "")[0] == set(ELEMENT_TYPES)
    assert offered("run", "--op", "")[0] == set(REDUCTIONS)
    for name in machine_names.names():
        assert set(machine_names.rate_names(name)) <= offered("project", "--rates", "")[0]


def test_completion_loads_nothing_that_is_slow() -> None:
    code = (
        "import sys; from blinksim.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert not {'numpy', 'yaml', 'pandas', 'scipy', 'networkx'} & sys.modules.keys(), sys.modules.keys()"
    )
    line = "blinksim compare dgx1-v100 allreduce --algorithms "
    environment = {**os.environ, "_BLINKSIM_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": "5"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "plain,ring" in done.stdout.splitlines()
