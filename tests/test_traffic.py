"""Traffic matrices: what they refuse, their files, and those of experts."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings, strategies as st

import blinksim as bs
from blinksim.bounds.experts import choose
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.errors import FileError, InputError
from blinksim.traffic import Traffic


@st.composite
def matrices(draw: st.DrawFn) -> npt.NDArray[np.int64]:
    ranks = draw(st.integers(2, 6))
    rows = st.lists(st.integers(0, 10**9), min_size=ranks, max_size=ranks)
    found = np.array(draw(st.lists(rows, min_size=ranks, max_size=ranks)), dtype=np.int64)
    found[0, 1] += 1
    return found


@pytest.mark.parametrize(
    ("matrix", "why"),
    [
        ([[1, 2, 3], [4, 5, 6]], "2 x 3"),
        (7, "a single number"),
        ([[0]], "1 ranks"),
        ([[0, -1], [1, 0]], "rank 0 has -1 bytes for rank 1"),
        ([[0, 0.5], [1, 0]], "whole numbers"),
        ([[0, float("nan")], [1, 0]], "whole numbers"),
        ([["a", "b"], ["c", "d"]], "whole numbers"),
        ([[1, 2], [3]], "equally long"),
        ([[5, 0], [0, 5]], "no rank has anything"),
        ([[0, 2**53], [2**53, 0]], "2^53"),
        ([[0, 2**53 + 1], [0, 0]], "2^53"),
        (np.full((2, 2), 2**64 - 1, dtype=np.uint64), "2^53"),
    ],
)
def test_what_is_no_matrix(matrix: Any, why: str) -> None:
    with pytest.raises(InputError, match=why.replace("^", r"\^")):
        Traffic(matrix)


@given(matrices())
def test_sums_and_views(matrix: npt.NDArray[np.int64]) -> None:
    found = Traffic(matrix)
    rows = matrix.tolist()
    assert found.size == max(*map(sum, rows), *map(sum, zip(*rows, strict=True)))
    assert found.total == sum(entry for i, row in enumerate(rows) for j, entry in enumerate(row) if i != j)
    assert found.transposed().transposed() == found
    assert hash(found.transposed().transposed()) == hash(found)
    assert sum(row["bytes"] for row in found.rows()) == found.total
    assert found.between([0], [1]) == Fraction(rows[0][1], found.size)
    with pytest.raises(ValueError, match="read-only"):
        found.matrix[0, 0] = 1


@given(matrix=matrices())
def test_files_keep_the_matrix(matrix: npt.NDArray[np.int64], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("traffic") / "t.csv"
    bs.write_traffic(Traffic(matrix), path)
    assert bs.read_traffic(path) == Traffic(matrix)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0,1\n2,x\n", "t.csv:2: entry 2, 'x'"),
        ("# from a run\n\n0,1\n2,0,3\n", "t.csv:4: 3 entries, but 2 ranks"),
        ("0,1\n-2,0\n", "t.csv:2: entry 1, '-2'"),
        ("0,,1\n1,0,2\n3,4,0\n", "t.csv:1: entry 2, ''"),
        ("", "t.csv: holds no traffic matrix"),
        ("0,0\n0,0\n", "t.csv: no rank has anything"),
        ("0,99999999999999999999999\n0,0\n", "t.csv"),
        ("0, 0\n 7 , x\n", "t.csv:2: entry 2, 'x'"),
        (f"0,{'9' * 5000}\n0,0\n", "t.csv:1: entry 2"),
        ("0,9223372036854775808\n0,0\n", "t.csv: .*2.53"),
    ],
)
def test_one_message_for_a_wrong_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(text)
    with pytest.raises(FileError, match=why):
        bs.read_traffic("t.csv")
    assert run(["bound", "ring:2@25GB/s", "alltoallv", "--traffic", "t.csv"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


NPY = io.BytesIO()
np.save(NPY, np.array([[0, 3000], [1000, 0]]))


@given(st.integers(0, 90), st.integers(0, 12), st.binary(max_size=12))
@example(118, 0, b"")
@example(10, 118, b"{'descr': '<i8', 'fortran_order': False, 'shape': (2, 2".ljust(118))
@example(10, 118, b"{'descr': '<i8', 'fortran_order': False, 'shape': (2, None)}".ljust(118))
@example(10, 118, b"{'descr': '<i8', 'fortran_order': False, 'shape': (2L, 2L)}".ljust(118))
def test_a_damaged_file_of_numpy_is_a_matrix_or_a_file_error(
    tmp_path_factory: pytest.TempPathFactory, start: int, length: int, text: bytes
) -> None:
    path = tmp_path_factory.mktemp("traffic") / "t.npy"
    path.write_bytes(NPY.getvalue()[:start] + text + NPY.getvalue()[start + length :])
    with warnings.catch_warnings(), suppress(FileError):
        warnings.simplefilter("error")
        bs.read_traffic(path)


def test_what_the_command_line_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "t.csv")
    assert run(["traffic", "--ranks", "8", "-o", path, "--tokens", "32"]) == 0
    for line, why in (
        (["bound", "ring:8", "alltoallv"], "needs --traffic"),
        (["bound", "ring:8", "allreduce", "--traffic", path], "allreduce has no traffic matrix"),
        (["bound", "ring:4", "alltoallv", "--traffic", path], "of 8 ranks, and there are 4"),
        (["project", "ring:8", "alltoall"], "Missing argument 'SIZE'"),
        (["traffic", path, "--top-k", "3"], "--top-k makes a matrix"),
        (["traffic"], "how many ranks have experts"),
        (["traffic", "--ranks", "4", "--top-k", "9"], "9 of 4 experts"),
    ):
        capsys.readouterr()
        assert run(line) == 2
        assert why in capsys.readouterr().err


def test_a_matrix_goes_with_alltoallv_only() -> None:
    matrix = Traffic([[0, 1], [1, 0]])
    anything: Any = [[0, 1], [1, 0]]
    for name, wrong in (("alltoallv", None), ("alltoall", matrix), ("alltoallv", anything)):
        with pytest.raises(InputError):
            Collective(name, traffic=wrong)
    with pytest.raises(InputError):
        Collective.parse("alltoallv", 0, matrix)
    assert Collective("alltoallv", traffic=matrix).dual == Collective("alltoallv", traffic=matrix.transposed())


@settings(max_examples=20)
@given(st.data())
def test_tokens_are_conserved(data: st.DataObject) -> None:
    ranks, each = data.draw(st.integers(2, 9)), data.draw(st.integers(1, 4))
    top_k = data.draw(st.integers(1, min(4, ranks * each)))
    tokens = data.draw(st.integers(1, 200))
    skew = data.draw(st.sampled_from([0.0, 0.7, 3.0]))
    arguments: dict[str, Any] = {"tokens": tokens, "token_size": 3, "experts_per_rank": each, "top_k": top_k}
    found = bs.expert_traffic(ranks, **arguments, skew=skew, seed=4)
    copies = found.sent // 3
    # With one expert a rank every token goes to k ranks; with more, to at least as many as hold k experts.
    assert (copies <= tokens * min(top_k, ranks)).all()
    assert (copies >= tokens * -(-top_k // each)).all()
    assert found == bs.expert_traffic(ranks, **arguments, skew=skew, seed=4)


def test_experts_are_drawn_one_after_the_other() -> None:
    """Against the exact chances of all ordered pairs: p_i p_j / (1 - p_i)."""
    weight = np.array([0.55, 0.25, 0.15, 0.05])
    draws = 40_000
    chosen = choose(np.random.default_rng(1), weight, draws, 2)
    for i, j in permutations(range(4), 2):
        expected = weight[i] * weight[j] / (1 - weight[i])
        seen = int(((chosen[:, 0] == i) & (chosen[:, 1] == j)).sum())
        assert abs(seen - draws * expected) < 5 * (draws * expected) ** 0.5


def test_rows_that_rounds_do_not_fill_are_drawn_too() -> None:
    weight = np.array([1 - 3e-9, 1e-9, 1e-9, 1e-9])
    chosen = choose(np.random.default_rng(1), weight, 300, 3)
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    # The rare ones are equally likely.
    assert (np.bincount(chosen.ravel(), minlength=4)[1:] > 120).all()


def test_more_skew_is_hotter() -> None:
    found = [bs.expert_traffic(16, tokens=500, experts_per_rank=2, skew=skew).skew for skew in (0.0, 0.5, 1.0, 2.0)]
    assert found == sorted(found)
    assert found[-1] > 2 * found[0]


def test_a_file_of_a_spreadsheet_is_told_how_it_should_be(tmp_path: Path) -> None:
    for text, told in (
        ("0;1\n1;0\n", r"matrix.csv:1: has semicolons between its entries; separate them with commas"),
        ("0\t1\n1\t0\n", r"matrix.csv:1: has tabs between its entries"),
        ("gpu0,gpu1\n0,1\n1,0\n", r"matrix.csv:1: entry 1, 'gpu0', is no number of bytes; leave a header out"),
        ("0,1\nx,0\n", r"matrix.csv:2: entry 1, 'x', is no number of bytes$"),
    ):
        (tmp_path / "matrix.csv").write_text(text)
        with pytest.raises(FileError, match=told):
            bs.read_traffic(tmp_path / "matrix.csv")


def test_files_of_numpy_are_read_and_written(tmp_path: Path) -> None:
    matrix = np.array([[0, 3000], [1000, 0]])
    for dtype in (np.int64, np.uint32, np.float64):
        np.save(tmp_path / "given.npy", matrix.astype(dtype))
        assert bs.read_traffic(tmp_path / "given.npy") == Traffic(matrix)
    bs.write_traffic(Traffic(matrix), tmp_path / "written.npy")
    assert np.load(tmp_path / "written.npy").tolist() == matrix.tolist()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:-3], "expected 32 bytes got 29"),
        (lambda data: data.replace(b"(2, 2), ", b"(200000, 200000), "), "cannot be read as a file of NumPy"),
        (lambda data: data.replace(b"<i8", b"|O8"), "cannot be read as a file of NumPy"),
        (lambda data: data.replace(b"(2, 2), }", b"(1, 4), }"), "a row and a column for every rank; this is 1 x 4"),
        (lambda data: data[:40], "cannot be read as a file of NumPy"),
        # Python 3.12 answers this header with a SystemError.
        (lambda data: data.replace(b"{'descr': '<i8',", b" " * 16), "cannot be read as a file of NumPy"),
    ],
)  # fmt: skip
def test_a_wrong_file_of_numpy_gets_one_message(change: Callable[[bytes], bytes], why: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.npy"
    np.save(path, np.array([[0, 3000], [1000, 0]]))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FileError, match=why):
        bs.read_traffic(path)


@pytest.mark.parametrize("header", [b"{'shape': (4, 1.0e+999), } [", b" 'shape': (4, 4), }", b"{'descr': '|O8',"])
def test_headers_that_numpy_stumbles_over_are_refused_of_routings_too(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.zeros((4, 2), dtype=np.int64))
    data = path.read_bytes()
    path.write_bytes(data[:10] + header.ljust(117) + b"\n" + data[128:])
    for read in (bs.read_traffic, bs.read_routing):
        with pytest.raises(FileError, match="cannot be read as a file of NumPy"):
            read(path)


def test_too_many_ranks_are_refused_before_tokens_are_drawn() -> None:
    with pytest.raises(InputError, match="8,192 ranks"):
        bs.expert_traffic(10**6)


def test_even_traffic_names_no_rank_as_the_busiest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["traffic", "--ranks", "8"]) == 0
    assert "  sends     every rank 392 MiB\n" in capsys.readouterr().out
    assert run(["traffic", "--ranks", "16", "--skew", "1"]) == 0
    assert " times the average of " in capsys.readouterr().out
