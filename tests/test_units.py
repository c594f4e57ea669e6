from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from blinksim.errors import InputError
from blinksim.units import (
    exact_GBps,
    format_rate,
    format_size,
    format_size_about,
    format_time,
    parse_exact,
    parse_rate,
    parse_size,
    parse_time,
    size_of,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1000003", 1000003),
        (" 42 B ", 42),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("256MiB", 2**28),
        ("2GB", 2 * 10**9),
        ("1.5GiB", 3 * 2**29),
        (".5KiB", 512),
        ("5e2MB", 5 * 10**8),
        ("1152921504606846976", 2**60),
        ("1048576TiB", 2**60),
        # nccl-tests, src/common.cu, parsesize: K, M and G are 1 << 10, 1 << 20 and 1 << 30, in either case.
        ("64K", 1 << 16),
        ("256M", 1 << 28),
        ("256m", 1 << 28),
        ("1G", 1 << 30),
        ("1.5g", 3 << 29),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a size"),
        ("MiB", "is not a size"),
        ("1 2MiB", "is not a size"),
        ("256 mib", "has the unit 'mib'"),
        ("256mb", "did you mean MB or MiB?"),
        ("256 Mib", "did you mean MiB?"),
        ("25GB/s", "did you mean GB?"),
        ("٣MiB", "is not a size"),
        ("٣", "is not a size"),
        ("1.0", "has no unit"),
        ("-1", "is not a whole, positive number"),
        ("-1MiB", "not a whole, positive number of bytes"),
        ("0", "not a whole, positive number of bytes"),
        ("0.5B", "not a whole, positive number of bytes"),
        ("1.0001KiB", "not a whole, positive number of bytes"),
        ("25GB/s", "has the unit 'GB/s'"),
        ("1152921504606846977", "more than 1 EiB"),
        ("9" * 50, "more than 1 EiB"),
        ("2000000TiB", "more than 1 EiB"),
        ("1e999TB", "more than 1 EiB"),
        ("1e9999TB", "is not a size"),
        ("9" * 5000, "is not a size"),
        ("nanB", "is not a size"),
        ("1/3GB", "is not a size"),
    ],
)
def test_what_is_no_size_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)) as refusal:
        parse_size(text)
    assert len(str(refusal.value)) < 250


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("25GB/s", 25 * 10**9),
        ("100Gb/s", Fraction(25, 2) * 10**9),
        ("12.5 GB/s", Fraction(25, 2) * 10**9),
        ("1GiB/s", 2**30),
        ("8b/s", 1),
        ("0.1GB/s", 10**8),
        ("3Mb/s", 375000),
        ("5Gbps", 625 * 10**6),
        ("25GBps", 25 * 10**9),
        ("8bps", 1),
    ],
)
def test_rates_are_exact(text: str, rate: Fraction | int) -> None:
    parsed = parse_rate(text)
    assert isinstance(parsed, Fraction)
    assert parsed == rate


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("25", "has no unit"),
        ("25GB", "has the unit 'GB'"),
        ("25 gbps", "did you mean GB/s or Gb/s?"),
        ("5G", "did you mean GB/s or Gb/s?"),
        ("5Gbit/s", "did you mean Gb/s?"),
        ("٣GB/s", "is not a bandwidth"),
        ("0GB/s", "not a positive bandwidth"),
        ("-1GB/s", "not a positive bandwidth"),
        ("1b/s", "not a bandwidth of a real link"),
        ("1e10GB/s", "not a bandwidth of a real link"),
        ("fast", "is not a bandwidth"),
    ],
)
def test_what_is_no_rate_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1.9us", 1.9e-6), ("1.9µs", 1.9e-6), ("3ms", 3e-3), ("250ns", 2.5e-7), ("0s", 0)]
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["-1us", "3601s", "1e200s", "5", "us", "1h", "1 US"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_time(text)


@given(st.text(max_size=70))
@example("1e-999B")
@example("٣GB")
@example("1.GB/s")
def test_any_text_gives_a_value_or_one_clear_line(text: str) -> None:
    for parse in (parse_size, parse_rate, parse_time):
        try:
            value = parse(text)
        except InputError as error:
            assert len(str(error)) < 300  # noqa: PT017 - most texts are refused, and some are not
        else:
            assert value >= 0


@given(st.integers(1, 2**60))
def test_sizes_survive_printing_to_six_digits(size: int) -> None:
    text = format_size(size)
    number, unit = text.split()
    back = Fraction(number) * parse_size(f"1{unit}")
    assert abs(back - size) <= Fraction(size, 10**5)
    if unit.endswith("iB"):
        assert back == size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999.5, "999.5 B"),
        (1023, "1.023 kB"),
        (1024, "1 KiB"),
        (1536, "1.536 kB"),
        (96 * 1024, "96 KiB"),
        (1000 * 1024, "1000 KiB"),
        (2 * 10**9, "2 GB"),
        (2**30, "1 GiB"),
        (1234567890, "1.23457 GB"),
        (1234567000, "1.23457 GB"),
        (2**28 + 1024, "262145 KiB"),
        (631680 * 1024, "616.875 MiB"),
        (9999 * 1024, "9999 KiB"),
        (3 * 10**12, "3 TB"),
    ],
)
def test_sizes_are_printed_in_the_unit_that_is_exact(size: float, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (25 * 10**9, "25 GB/s"),
        (Fraction(10**10, 3), "3.333 GB/s"),
        (10**7, "0.01 GB/s"),
        (123456 * 10**8, "12346 GB/s"),
    ],
)
def test_rates_are_printed_in_gigabytes(rate: Fraction | int, text: str) -> None:
    assert format_rate(Fraction(rate)) == format_rate(float(rate)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1, "1 s"),
        (75.5, "75.5 s"),
        (0.99999, "1 s"),
        (2.5e-3, "2.5 ms"),
        (1.9e-6, "1.9 us"),
        (3.2e-8, "32 ns"),
        (-2e-3, "-2 ms"),
        (float("inf"), "inf"),
    ],
)
def test_times_are_printed_in_the_unit_that_suits(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


@given(st.floats(1e-9, 3000))
def test_times_survive_printing_to_four_digits(seconds: float) -> None:
    assert parse_time(format_time(seconds).replace(" ", "")) == pytest.approx(seconds, rel=6e-4)


def test_exact_rates_are_fractions_of_gigabytes() -> None:
    assert exact_GBps(Fraction(240 * 10**9, 7)) == "240/7"
    assert exact_GBps(Fraction(25 * 10**9)) == "25"


@pytest.mark.parametrize("text", ["1e99999999", "0x10", "1.5", "1/0", "", "3/", "/3", " 3", "9" * 500, None, 7, "１"])
def test_exact_numbers_are_digits_only(text: object) -> None:
    with pytest.raises(InputError, match="not an exact number"):
        parse_exact(text)


def test_exact_numbers() -> None:
    assert parse_exact("1200/7") == Fraction(1200, 7)
    assert parse_exact("-3") == -3


@pytest.mark.parametrize(
    ("given", "expected"),
    [(1, 1), (2**28, 2**28), (1e9, 10**9), ("256MiB", 2**28), ("1000003", 1000003), (np.int64(4096), 4096), (2.0, 2)],
)
def test_sizes_of_python(given: Any, expected: int) -> None:
    assert size_of(given) == expected
    assert type(size_of(given)) is int


@pytest.mark.parametrize("given", [0, -1, 0.5, 1.5, math.nan, math.inf, True, None, [1], "", "1.5", 2**61, 1e300])
def test_what_is_no_size_is_refused_in_a_line(given: Any) -> None:
    with pytest.raises(InputError) as refused:
        size_of(given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (445746 * 2**10, "435 MiB"),
        (2**26, "64 MiB"),
        (875 * 10**6, "875 MB"),
        (2 * 10**9, "2 GB"),
        (33554400, "32 MiB"),
        (2**20 - 16, "1 MiB"),
        (2**20 - 1024, "1023 KiB"),
        (1023, "1023 B"),
        (162_000, "162 kB"),
        (32 / 3, "about 11 B"),
    ],
)
def test_sizes_in_sentences_are_exact_or_short(size: float, text: str) -> None:
    assert format_size_about(size) == text


@given(st.integers(1, 2**50))
def test_sizes_in_sentences_are_near_and_never_longer_than_exact_ones(size: int) -> None:
    text = format_size_about(size)
    assert len(text) <= len(format_size(size))
    assert float(parse_rate(f"{text}/s")) == pytest.approx(size, rel=0.006)
