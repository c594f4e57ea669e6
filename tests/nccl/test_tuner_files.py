"""Files of rules for NCCL's tuner: their text, and the plugin, built and asked as NCCL asks it."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from blinksim.cli.main import run
from blinksim.errors import InputError, MissingError
from blinksim.nccl.tuner import tuner_files
from blinksim.nccl.tuner.tuner_files import MOST_BYTES, Choice, DialectName, TuningRule, rules_of, runs

# Their places in NCCL's enumerations (nccl_common.h, nccl_tuner.h of 2.28).
COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
RULES = (
    TuningRule("allreduce", 0, 65536, "tree", "ll", 4, nodes=1, ranks=8),
    TuningRule("allreduce", 65537, MOST_BYTES, "ring", "ll128", nodes=1),
    TuningRule("allgather", 1024, 4096, "ring", "simple", 16, ranks=8),
)

# --- the plugin, as NCCL calls it -------------------------------------------------------------------------------------

Logger = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p
)
Context = ctypes.c_void_p
_INTS = (ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
_OLD_INIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, Logger, ctypes.POINTER(Context))
_NEW_INIT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Context), ctypes.c_uint64, ctypes.c_size_t, ctypes.c_size_t, Logger,
    ctypes.c_void_p, ctypes.c_void_p,
)  # fmt: skip
_CHANNELS = ctypes.POINTER(ctypes.c_int)
_FINISH = ctypes.CFUNCTYPE(ctypes.c_int, Context)


def table_of(version: int) -> type[ctypes.Structure]:
    """The struct of functions that this version of the interface looks up."""
    registered = () if version == 3 else (ctypes.c_int,)
    choose = ctypes.CFUNCTYPE(ctypes.c_int, Context, *_INTS, *registered, _CHANNELS)
    init = _NEW_INIT if version == 5 else _OLD_INIT

    class Table(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p), ("init", init), ("choose", choose), ("finish", _FINISH)]

    return Table


class Caller:
    """What NCCL does with a tuner: one communicator."""

    def __init__(self, library: Path, version: int, ranks: int = 8, nodes: int = 1) -> None:
        self.version, self.lines = version, list[tuple[int, str]]()
        self.table: Any = table_of(version).in_dll(ctypes.CDLL(str(library)), f"ncclTunerPlugin_v{version}")
        self.logger = Logger(lambda level, flags, file, line, form, text: self.lines.append((level, text.decode())))
        self.context = Context()
        place = ctypes.byref(self.context)
        if version == 5:
            self.result = self.table.init(place, 7, ranks, nodes, self.logger, None, None)
        else:
            self.result = self.table.init(ranks, nodes, self.logger, place)

    def ask(self, collective: str, size: int, ignored: tuple[tuple[str, str], ...] = ()) -> Choice | None:
        """What a call takes, None if the plugin leaves it to NCCL; ignored: pairs that NCCL cannot use."""
        costs = [[float(10 + 3 * row + column) for column in range(3)] for row in range(7)]
        for algorithm, protocol in ignored:
            costs[ALGORITHMS.index(algorithm)][PROTOCOLS.index(protocol)] = -1.0
        # NCCL hands over a plain matrix, though the interface says float **.
        flat = (ctypes.c_float * 21)(*(cost for row in costs for cost in row))
        channels = ctypes.c_int(0)
        arguments = [COLLECTIVES.index(collective), size, 1, ctypes.cast(flat, ctypes.c_void_p), 7, 3]
        arguments += [] if self.version == 3 else [0]
        assert self.table.choose(self.context, *arguments, ctypes.byref(channels)) == 0
        changed = [place for place, cost in enumerate(flat) if cost != costs[place // 3][place % 3]]
        if not changed:
            assert channels.value == 0
            return None
        assert len(changed) == 1
        assert flat[changed[0]] == 0
        return ALGORITHMS[changed[0] // 3], PROTOCOLS[changed[0] % 3], channels.value or -1

    def close(self) -> None:
        assert self.table.finish(self.context) == 0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    return tuner_files.build(tmp_path_factory.mktemp("plugin") / "libnccl-tuner.so", compiler="cc")


@pytest.fixture
def caller(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str | None, int], Caller]]:
    callers: list[Caller] = []

    def with_text(text: str | None, version: int = 5) -> Caller:
        place = tmp_path / "rules.csv"
        if text is not None:
            place.write_text(text)
        monkeypatch.setenv("NCCL_TUNER_CONFIG_FILE", str(place))
        callers.append(Caller(library, version))
        return callers[-1]

    yield with_text
    for one in callers:
        if one.result == 0:
            one.close()


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_plugin_follows_the_file_that_is_exported(caller: Callable[..., Caller], version: int) -> None:
    text = tuner_files.export(RULES, "nccl", head=["for a test"], least_channels=32).files[""]
    found = caller(text, version)
    assert found.result == 0
    assert found.ask("allreduce", 0) == found.ask("allreduce", 65536) == ("tree", "ll", 4)
    assert found.ask("allreduce", 65537) == found.ask("allreduce", 2**40) == ("ring", "ll128", -1)
    assert found.ask("allgather", 1023) is None
    assert found.ask("allgather", 4096) == ("ring", "simple", 16)
    assert found.ask("reduce", 4096) is None
    said = [line for level, line in found.lines if level == 3]
    assert said[0].endswith("rules.csv for 8 ranks on 1 nodes")
    assert sum("in force" in line for line in said) == 3
    assert "rules.csv:4 in force: allreduce of 0 bytes by tree, ll, 4 channels" in said[1]


def test_the_plugin_follows_a_file_of_an_earlier_version(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(__file__).parents[1] / "data" / "compatibility" / "tuner.csv"
    monkeypatch.setenv("NCCL_TUNER_CONFIG_FILE", str(file))
    found = Caller(library, 5, ranks=4)
    rows = [line.split(",") for line in file.read_text().splitlines() if not line.startswith("#")]
    assert len(rows) == 10
    for collective, least, most, algorithm, protocol, channels, *_ in rows:
        for size in (int(least), int(most)):
            assert found.ask(collective, size) == (algorithm, protocol, int(channels))
    found.close()


def test_what_nccl_cannot_use_is_passed_over_and_said_once(caller: Callable[..., Caller]) -> None:
    found = caller("allreduce,0,100,nvls,simple,-1,-1,-1\nallreduce,0,100,ring,ll,2,-1,-1,-1,-1\n", 5)
    without = (("nvls", "simple"),)
    assert found.ask("allreduce", 50, without) == found.ask("allreduce", 60, without) == ("ring", "ll", 2)
    assert sum("NCCL cannot use nvls with simple for allreduce here" in line for _, line in found.lines) == 1
    assert found.ask("allreduce", 50) == ("nvls", "simple", -1)


def test_rules_for_other_communicators_are_left_alone(caller: Callable[..., Caller]) -> None:
    found = caller("allreduce,0,100,ring,ll,2,2,16\nallreduce,0,100,ring,ll128,2,-1,4\nreduce,0,9,ring,ll,1,1,8\n", 5)
    assert found.ask("allreduce", 50) is None
    assert found.ask("reduce", 9) == ("ring", "ll", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allreduce,0,1,ring,ll,1,1\n", "rules.csv:1: a row has 8 to 10 fields"),
        ("# fine\n\nallreduce,0,1,ring,ll,1,1,1,1,1,1\n", "rules.csv:3: a row has 8 to 10 fields"),
        ("alreduce,0,1,ring,ll,1,1,1\n", "rules.csv:1: unknown collective"),
        ("allreduce,0,1,rings,ll,1,1,1\n", "rules.csv:1: unknown algorithm"),
        ("allreduce,0,1,ring,LL,1,1,1\n", "rules.csv:1: unknown protocol"),
        ("allreduce,2,1,ring,ll,1,1,1\n", "rules.csv:1: the sizes are not two whole numbers"),
        ("allreduce,0,1k,ring,ll,1,1,1\n", "rules.csv:1: the sizes are not two whole numbers"),
        ("allreduce,0,1,ring,ll,0,1,1\n", "rules.csv:1: channels, nodes, ranks"),
        ("allreduce,0,1,ring,ll,65,1,1\n", "rules.csv:1: channels, nodes, ranks"),
        ("allreduce,0,1,ring,ll,1,1,1,1,2\n", "rules.csv:1: channels, nodes, ranks"),
        ("allreduce," + " " * 600 + "\n", "rules.csv:1: a row longer than 510 characters"),
        (None, "No such file or directory"),
    ],
)
def test_a_wrong_file_fails_the_communicator_and_names_the_line(
    caller: Callable[..., Caller], text: str | None, message: str
) -> None:
    found = caller(text, 5)
    assert found.result == 5  # ncclInvalidUsage
    assert [level for level, _ in found.lines] == [2]
    assert message in found.lines[0][1]


def test_without_a_file_nccl_decides(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_TUNER_CONFIG_FILE", raising=False)
    found = Caller(library, 5)
    assert found.result == 0
    assert found.ask("allreduce", 1024) is None
    assert found.lines == [(2, "no rules: NCCL_TUNER_CONFIG_FILE is not set, NCCL decides as without a plugin")]
    found.close()


def test_the_command_builds_the_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    target = tmp_path / "libtuner.so"
    assert run(["tune", "--plugin", str(target)]) == 0
    assert f"export NCCL_TUNER_PLUGIN={target}" in capsys.readouterr().out
    assert run(["tune", "--plugin", str(target)]) == 2
    assert "exists" in capsys.readouterr().err


def test_a_compiler_that_is_not_there_or_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="there is no C compiler 'no-such-cc'"):
        tuner_files.build(tmp_path / "a.so", compiler="no-such-cc")
    with pytest.raises(MissingError, match=r"false cannot build tuner_plugin\.c"):
        tuner_files.build(tmp_path / "a.so", compiler="false")
    assert not list(tmp_path.iterdir())


# --- files ------------------------------------------------------------------------------------------------------------


def matched(text: str, dialect: DialectName, collective: str, size: int, nodes: int, ranks: int) -> Choice | None:
    """What a file says for a call, read as its README says: the first row that matches."""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if dialect == "ncclx":
            found = re.fullmatch(r"(\w+),\[(\d+),(?:(\d+)\]|\)),(\w+),(\w+),(-?\d+),([^,]+),([^,]+),-1,-1", line)
            assert found is not None
            head, low, high, algorithm, protocol, channels, where, local = found.groups()
            fits = int(low) <= size // ranks and (high is None or size // ranks <= int(high))
            fits &= where in ("*", str(nodes)) and local in ("*", str(ranks // nodes))
        else:
            head, least, most, algorithm, protocol, channels, where, local, *_ = line.split(",")
            fits = int(least) <= size <= int(most) and where in ("-1", str(nodes)) and local in ("-1", str(ranks))
        if fits and head == collective:
            return algorithm, protocol, int(channels)
    return None


@st.composite
def rule_lists(draw: st.DrawFn) -> list[TuningRule]:
    """Ranges that follow each other, as `rules_of` makes them, with gaps."""
    edges = sorted(draw(st.sets(st.integers(1, 2**20), min_size=1, max_size=6)))
    found = []
    for least, most in zip([0, *edges], [*(edge - 1 for edge in edges), MOST_BYTES], strict=True):
        if draw(st.booleans()):
            protocol = draw(st.sampled_from(PROTOCOLS))
            found.append(TuningRule("allgather", least, most, "ring", protocol, draw(st.sampled_from((-1, 8))), 2, 16))
    return found


@given(rule_lists(), st.integers(0, 2**17))
def test_all_dialects_say_the_same(rules: list[TuningRule], per_rank: int) -> None:
    size = 16 * per_rank
    expected = next((rule.choice for rule in rules if rule.least <= size <= rule.most), None)
    for dialect in ("nccl", "rccl", "ncclx"):
        text = tuner_files.export(rules, dialect).files[""]
        assert matched(text, dialect, "allgather", size, 2, 16) == expected
        assert matched(text, dialect, "reduce", size, 2, 16) is None
        assert matched(text, dialect, "allgather", size, 1, 8) is None


def test_an_export_says_what_to_set() -> None:
    found = tuner_files.export(RULES, "ncclx", least_channels=32)
    assert found.variables("/etc/t.csv") == {"NCCLX_TUNER_CONFIG_FILE": "/etc/t.csv", "NCCL_MIN_NCHANNELS": "32"}
    assert set(tuner_files.export(RULES, "rccl").environment) == {"NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE"}
    with pytest.raises(InputError, match="did you mean 'nccl'"):
        tuner_files.export(RULES, "ncc")  # type: ignore[arg-type]


# --- rules ------------------------------------------------------------------------------------------------------------


def test_what_nccl_runs() -> None:
    """By its table of 2.28 (graph/tuning.cc): rings and trees with all protocols, the others with Simple."""
    found = {(c, a): [p for p in PROTOCOLS if runs(c, a, p)] for c in COLLECTIVES for a in ALGORITHMS}
    assert found["allreduce", "tree"] == found["broadcast", "ring"] == list(PROTOCOLS)
    assert found["allgather", "tree"] == found["reduce", "nvls"] == found["allreduce", "pat"] == []
    assert found["allreduce", "nvls"] == found["allgather", "pat"] == found["allgather", "collnet_direct"] == ["simple"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("allreduce", 0, 1, "ring", "LL"), "did you mean 'll'"),
        (("alltoall", 0, 1, "ring", "ll"), "unknown collective"),
        (("allreduce", 2, 1, "ring", "ll"), "2 to 1 bytes"),
        (("allreduce", 0, 1, "ring", "ll", 0), "channels=0"),
        (("broadcast", 0, 1, "nvls", "simple"), "NCCL does not run broadcast by nvls with simple"),
    ],
)
def test_a_wrong_rule_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TuningRule(*arguments)


CHOICES: tuple[Choice, ...] = (("ring", "ll", -1), ("ring", "ll128", -1), ("ring", "ll", 8))


@given(st.lists(st.tuples(st.sampled_from((None, *CHOICES)), st.booleans()), min_size=1, max_size=10))
def test_the_fewest_rules_say_what_every_cell_wants(drawn: list[tuple[Choice | None, bool]]) -> None:
    cells = []
    for place, (choice, also_nothing) in enumerate(drawn):
        fine = (choice, None) if also_nothing else (choice,)
        cells.append((1 << (10 + place), choice, frozenset(fine)))
    rules = rules_of("allreduce", cells, 1, 8)
    for size, _, good in cells:
        fitting = [rule.choice for rule in rules if rule.least <= size <= rule.most]
        assert len(fitting) <= 1
        assert (fitting[0] if fitting else None) in good
    assert all(a.most < b.least for a, b in pairwise(rules))
    assert len(rules) == fewest([good for _, _, good in cells])


def fewest(goods: list[frozenset[Choice | None]]) -> int:
    """The least number of rules, by trying every choice for every cell."""
    best: dict[Choice | None, int] = {choice: int(choice is not None) for choice in goods[0]}
    for good in goods[1:]:
        best = {
            choice: min(count + (choice is not None and choice != last) for last, count in best.items())
            for choice in good
        }
    return min(best.values())
