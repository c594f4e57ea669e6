"""The names that ``import blinksim as bs`` promises, however much of the package is already imported."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import blinksim as bs

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", bs.__all__)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    assert getattr(bs, name).__doc__
    assert name in dir(bs)


def test_what_help_says_of_the_package_is_so() -> None:
    assert bs.__doc__
    test = doctest.DocTestParser().get_doctest(bs.__doc__, {}, "blinksim", None, None)
    assert doctest.DocTestRunner(optionflags=OPTIONS).run(test) == (0, 3)


def test_editors_and_python_read_the_same_table() -> None:
    tree = ast.parse(Path(bs.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    seen = {
        name.asname or name.name: f"{node.module}.{name.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    [told] = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    assert ast.literal_eval(told) == bs.__all__
    assert seen.pop("__version__") == "blinksim._version.__version__"
    assert seen.pop("plot") == "blinksim.plots"
    assert {*bs.__all__} == {*seen, "plot"}
    for name, home in seen.items():
        module, _, attribute = home.rpartition(".")
        thing = getattr(import_module(module), attribute)
        assert inspect.unwrap(getattr(bs, name)) is thing
    # A `__getattr__` that type checkers see would make every misspelt name a known one.
    assert not any(isinstance(node, ast.FunctionDef) for node in tree.body)


def test_what_is_listed_is_what_is_meant_to_be_used() -> None:
    assert sorted(dir(bs)) == sorted([*bs.__all__, "__version__"])


def test_unknown_names_are_refused() -> None:
    misspelt = "projekt"  # in a variable, since a type checker may see it too
    with pytest.raises(AttributeError, match="no attribute 'projekt'"):
        getattr(bs, misspelt)


def test_importing_costs_nothing() -> None:
    code = "import blinksim, sys; print([m for m in ('numpy', 'click', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_results_show_themselves() -> None:
    topology = bs.load("dgx1-v100")
    shown = bs.project(topology, "allreduce", 2**28, algorithm="best")
    # The ring is optimal here: from its bound only the latencies of 14 steps are missing.
    printed = re.search(r"([0-9.]+) GB/s", repr(shown))
    assert printed is not None
    assert 0.985 * 600 / 7 < float(printed[1]) < 600 / 7
    assert shown.to_frame()["time_s"].sum() == pytest.approx(shown.time_s)
    assert "<table" in shown._repr_html_()
    compared = bs.compare(topology, "allreduce", [2**10, 2**20])
    assert set(compared.to_frame()["size_bytes"]) == {2**10, 2**20}
    assert "<table" in compared._repr_html_()
    assert "gap 0" in repr(bs.synthesize(topology, "allreduce", "ring"))
    assert "8 members" in repr(topology)


def test_results_are_tables() -> None:
    topology = bs.load("dgx1-v100").subset([f"gpu{i}" for i in range(4)])
    made = bs.synthesize(topology, "allreduce", "ring")
    shown = {
        "bound": (bs.bound(topology, "allreduce"), "scope"),
        "topology": (topology, "bandwidth_GBps"),
        "schedule": (made.schedule, "step"),
        "synthesis": (made, "gap_exact"),
    }
    for name, (result, column) in shown.items():
        assert column in result.to_frame().columns, name
        assert "<table" in result._repr_html_()
    verdict = bs.verify(made.schedule)
    assert verdict.to_frame().empty
    assert "ok" in verdict._repr_html_()


def test_an_export_is_written_whole(tmp_path: Path) -> None:
    machine = bs.load("dgx1-v100")
    bs.write(bs.export(machine, "nccl-topo"), tmp_path / "topo.xml")
    assert bs.load(tmp_path / "topo.xml").ranks == 8
    chains = bs.synthesize(machine.select([0, 1], relays="idle"), "allreduce", "blinkplus").schedule
    exported = bs.export(chains, "nccl-graph-set")
    bs.write(exported, tmp_path / "set")
    assert {path.name for path in (tmp_path / "set").iterdir()} == set(exported.files)
    for arguments in ((machine, "nccl-graph"), (chains, "nccl-topo"), (machine, "nccl-topo", 2)):
        with pytest.raises(bs.InputError):
            bs.export(*arguments)
    with pytest.raises(bs.InputError, match="bus_ids="):
        bs.export(chains, "msccl-xml", bus_ids=["0000:1b:00.0"])


def test_trees_per_root_of_a_ring() -> None:
    # Eight ranks in a ring of 25 GB/s each way: every shard leaves over 2 links for 7 others, so 2/7 of a link a root.
    found = bs.bound("ring:8@25GB/s", "allgather")
    assert (found.rate / 8 / (25 * 10**9), found.trees_per_root) == (Fraction(2, 7), 2)
    assert bs.bound("ring:8@25GB/s", "allreduce").trees_per_root is None


def test_pair_rates_are_those_of_the_links() -> None:
    rates = bs.load("dgx1-v100").pair_rates()
    # Four GPUs in reach over one or two lanes of 25 GB/s, the others over no NVLink without passing through a GPU.
    assert sorted(Counter(rate and rate / 10**9 for rate in rates.values()).items(), key=str) == sorted(
        {25: 16, 50: 16, None: 24}.items(), key=str
    )
    assert set(bs.load("hgx-h200").pair_rates().values()) == {Fraction(450 * 10**9)}


def test_machines_are_checked_and_listed_by_name() -> None:
    assert set(bs.catalogue()) >= {"dgx1-v100", "hgx-h200", "aurora"}
    assert bs.check("dgx1-v100") == []
    with pytest.raises(bs.InputError, match="unknown machine"):
        bs.check("dgx1-v1000")


def test_a_ranking_takes_what_the_command_takes() -> None:
    by_name = bs.rank("dgx1-v100", "all_reduce", "256MiB", "nccl-tuner")
    loaded = bs.project(bs.load("dgx1-v100", rates="nccl"), "allreduce", 2**28, algorithm="nccl")
    assert by_name.best.time_s == loaded.time_s
    everything = bs.rank(bs.Question("dgx1-v100", members="0-3"), "allreduce", 2**20, algorithms="all")
    times = [projection.time_s for projection in everything.projections]
    assert times == sorted(times)
    assert everything.best.members == ("gpu0", "gpu1", "gpu2", "gpu3")
    with pytest.raises(bs.InputError):
        bs.rank("dgx1-v100", "allreduce", "256MiB", "alpha-gamma")


def test_write_reads_back(tmp_path: Path) -> None:
    topology = bs.load("dgx1-v100")
    schedule = bs.synthesize(topology, "allgather", "ring").schedule
    bs.write(schedule, tmp_path / "s.json.gz")
    assert bs.verify(bs.read_schedule(tmp_path / "s.json.gz"))
    bs.write(topology, tmp_path / "m.yaml")
    assert bs.load(tmp_path / "m.yaml") == topology
    timeline = bs.simulate(schedule, "1MiB")
    bs.write(timeline, tmp_path / "trace.json")
    bars = [event for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(bars) >= schedule.sends
    # After its last bar a byte travels for the latency of one NVLink, 0.6 us.
    assert max(bar["ts"] + bar["dur"] for bar in bars) == pytest.approx(timeline.time_s * 1e6 - 0.6)
    for thing, name in ((schedule, "s.yaml"), (topology, "m.json"), (timeline, "t.txt"), (7, "x.json")):
        with pytest.raises(bs.BlinksimError):
            bs.write(thing, tmp_path / name)  # type: ignore[arg-type]
    with pytest.raises(bs.BlinksimError, match="force=True"):
        bs.write(topology, tmp_path / "m.yaml")


SECTIONS = {"Parameters", "Attributes", "Returns", "Raises", "Examples"}


def sections(thing: object) -> set[str]:
    """The headings of a docstring in NumPy style."""
    return set(re.findall(r"^(\w+)\n-+$", inspect.getdoc(thing) or "", re.MULTILINE)) & SECTIONS


@pytest.mark.parametrize("name", [name for name in bs.__all__ if name != "plot"])
def test_docstrings_have_their_sections(name: str) -> None:
    thing = getattr(bs, name)
    found = sections(thing)
    assert "Examples" in found
    if not isinstance(thing, type):
        assert found >= ({"Parameters"} if inspect.signature(thing).parameters else set()) | (
            {"Returns"} if inspect.signature(thing).return_annotation != "None" else set()
        )
        assert "Raises" in found or name == "catalogue"  # which takes nothing that could be wrong
    elif not issubclass(thing, bs.BlinksimError):
        assert found & {"Parameters", "Attributes"}


def test_docstrings_name_the_parameters() -> None:
    missing = {}
    for name in bs.__all__:
        thing = getattr(bs, name)
        if inspect.isfunction(thing):
            text = (inspect.getdoc(thing) or "").partition("\nReturns\n")[0].partition("Parameters\n")[2]
            lines = re.findall(r"^(\S.*)$", text, re.MULTILINE)
            missing[name] = set(inspect.signature(thing).parameters) - set(re.findall(r"\w+", " ".join(lines)))
    assert {name: left for name, left in missing.items() if left} == {}


def readable(signature: inspect.Signature) -> bool:
    """No default shows as code, as an address, or as a long tuple."""
    defaults = [p.default for p in signature.parameters.values() if p.default is not p.empty]
    return all(
        not isinstance(value, FunctionType) and " at 0x" not in repr(value) and len(repr(value)) <= 60
        for value in defaults
    )


@pytest.mark.parametrize("name", [*bs.__all__, *(f"plot.{name}" for name in bs.plot.__all__ if name.islower())])
def test_signatures_can_be_read(name: str) -> None:
    thing = attrgetter(name)(bs)
    if callable(thing) and not (isinstance(thing, type) and issubclass(thing, bs.BlinksimError)):
        assert readable(inspect.signature(thing)), f"{name}{inspect.signature(thing)}"


@pytest.mark.parametrize("default", [lambda: 0, tuple(range(21)), object()])
def test_an_unreadable_default_is_found(default: object) -> None:
    def right(size: int = 2**28, sizes: tuple[int, ...] = (1, 2, 3)) -> None: ...
    def wrong(value: object = default) -> None: ...

    assert readable(inspect.signature(right))
    assert not readable(inspect.signature(wrong))


def examples(name: str, thing: object) -> list[doctest.DocTest]:
    """The docstrings with examples of `thing`: its own, those of a class's methods, those of a module's functions."""
    functions = [getattr(thing, part) for part in thing.__all__] if isinstance(thing, ModuleType) else []
    public = [thing, *filter(callable, functions)]
    finder, names = doctest.DocTestFinder(), {"bs": bs, name: thing}
    found = [test for each in public for test in finder.find(each, name, module=False, globs=names)]
    # A module's functions are found twice.
    return list({test.docstring: test for test in found if test.examples}.values())


def failures(tests: list[doctest.DocTest]) -> str:
    """What the examples print that they do not say, each docstring with names of its own; empty if there is nothing."""
    report: list[str] = []
    for test in tests:
        doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.append)
    return "".join(report)


def test_every_name_has_an_example() -> None:
    assert {name for name in bs.__all__ if not examples(name, getattr(bs, name))} == set()


@pytest.mark.parametrize("name", bs.__all__)
def test_the_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # examples may write files
    assert not failures(examples(name, getattr(bs, name)))


def test_examples_are_found_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Right:
        def half(self) -> None:
            """Writes a file, and knows `bs`.

            >>> import pathlib
            >>> _ = pathlib.Path("half").write_text("1")
            >>> bs.Collective("broadcast")
            Collective(...broadcast...)
            """

    def wrong() -> None:
        """
        >>> 1 + 1
        3
        """

    def none() -> None:
        """No example."""

    monkeypatch.chdir(tmp_path)
    assert examples("none", none) == []
    assert failures(examples("Right", Right)) == ""
    assert (tmp_path / "half").exists()
    assert "Expected" in failures(examples("wrong", wrong))
