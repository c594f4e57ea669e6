"""Units: text to SI values on input, SI values to text on output.

Inside blinksim sizes are bytes (int), rates bytes per second (`fractions.Fraction`), times seconds (float).
GB is 1e9 bytes everywhere; KiB, MiB and GiB are powers of 1024, and so are the bare letters K, M and G of
sizes, which nccl-tests reads in this way; b is a bit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from numbers import Real
from types import MappingProxyType

from blinksim.errors import InputError, nearest_names

# 1 KiB to 1 GiB, doubling.
SIZES = tuple(2**power for power in range(10, 31))

Sizes = Iterable[int | float | str] | int | float | str
"""Sizes as public functions take them (`sizes_of`)."""

Units = Mapping[str, Fraction | int]
"""What each unit is in the base unit."""
_SIZE = {"B": 1}
_SIZE |= {f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", start=1)} | {"KB": 1000}
_SIZE |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)}
# As nccl-tests reads its -b and -e: powers of 1024, in either case.
_LETTERS = {letter: 1024**power for power, prefix in enumerate("KMGT", start=1) for letter in (prefix, prefix.lower())}
_PRINTED = ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB")
_RATE = {f"{unit}/s": Fraction(scale) for unit, scale in _SIZE.items()}
_RATE |= {f"{prefix}b/s": Fraction(1000**power, 8) for power, prefix in enumerate(("", "k", "M", "G", "T"))}
_PER_SECOND = {unit.removesuffix("/s") + "ps": scale for unit, scale in _RATE.items()}
_TIME = {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}
_TIME["µs"] = _TIME["us"]
NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,2})?|[0-9]{1,30}/0{0,30}[1-9][0-9]{0,30})"
)
_EXACT = re.compile(r"-?[0-9]+(/0*[1-9][0-9]*)?")
_QUANTITY = re.compile(r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-zµ/]*)\s*")


def _near(unit: str, units: Collection[str]) -> list[str]:
    """The units that somebody may have meant: the same letters in another case, or almost the same."""
    lowered = unit.lower()
    if not lowered:
        return []
    folded = {known: known.lower() for known in units}
    alike = [known for known, text in folded.items() if lowered in (text, text.replace("/s", "ps"))]
    if alike and lowered in ("mb", "gb", "tb"):
        alike += [known for known, text in folded.items() if text == lowered[0] + "ib"]
    # 5GB or 5G where a rate is wanted, 5GB/s where a size is.
    alike = alike or [
        known for known in units if known in (f"{unit}/s", f"{unit}B/s", f"{unit}b/s") or unit == f"{known}/s"
    ]
    return alike or nearest_names(unit, units, 2, 0.75)


def _parse(text: str, units: Units, what: str, example: str, also: Units = MappingProxyType({})) -> Fraction:
    """also: units that are understood and not listed."""
    # A number of this length carries no information and would cost the exact arithmetic dearly.
    if len(text) > 60:
        raise InputError(f"{text[:40]!r}… is not {what}; write it like {example}")
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise InputError(f"{text!r} is not {what}; write it like {example}")
    number, unit = match.groups()
    scale = units.get(unit, also.get(unit))
    if scale is None:
        have = "has no unit" if not unit else f"has the unit {unit!r}"
        near = _near(unit, units)
        if near:
            raise InputError(f"{text!r} {have}; did you mean {' or '.join(near)}?")
        raise InputError(f"{text!r} {have}; {what} takes {', '.join(units)}, as in {example}")
    return Fraction(number) * scale


def parse_size(text: str) -> int:
    """Bytes from text such as ``256MiB``, ``2GB``, ``256M`` (as nccl-tests writes 256MiB) or ``1e9`` (bytes).

    Raises `InputError` for anything else, for a size below one byte and for a fraction of a byte.
    """
    # A plain number is one of bytes.
    plain = re.sub(r"^[+-]?[0-9]+((\.[0-9]+)?e[0-9]{1,2})?$", r"\g<0>B", text.strip())
    size = _parse(plain, _SIZE, "a size", "256MiB or 2GB", _LETTERS)
    if size.denominator != 1 or size < 1:
        raise InputError(f"{text!r} is not a whole, positive number of bytes")
    if size > 2**60:
        raise InputError(f"{text!r} is more than 1 EiB; no collective is that large")
    return int(size)


def size_of(size: int | float | str) -> int:
    """Bytes from a number or from text, as a public function takes them.

    Parameters
    ----------
    size : int, float or str
        ``268435456``, ``1e9``, ``"256MiB"`` or, as in nccl-tests, ``"256M"``. A float must be whole.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    InputError
        If it is no whole, positive number of bytes.

    Examples
    --------
    >>> size_of("256MiB"), size_of(1e9)
    (268435456, 1000000000)
    """
    if isinstance(size, str):
        return parse_size(size)
    if isinstance(size, bool) or not isinstance(size, Real):
        raise InputError(f"{size!r} is not a size; give bytes, or text such as '256MiB'")
    if not math.isfinite(size) or size < 1 or size != int(size):
        raise InputError(f"{size!r} is not a whole, positive number of bytes")
    return parse_size(str(int(size)))


def whole(value: int | float | str, argument: str) -> int:
    """A count as a public function takes it: a whole number of any type, or its digits as text.

    argument: what the caller calls it, for the message of the `InputError` for anything else.

    >>> whole("4", "nodes"), whole(4.0, "nodes")
    (4, 4)
    """
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
        return int(value)
    if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value) and value == int(value):
        return int(value)
    raise InputError(f"{argument}={value!r:.60} is not a whole number; write it like {argument}=4")


def parse_rate(text: str) -> Fraction:
    """Bytes per second, exact, from text such as ``25GB/s``, ``100Gb/s`` or ``100Gbps``.

    Raises `InputError` unless positive.
    """
    rate = _parse(text, _RATE, "a bandwidth", "25GB/s or 100Gb/s", _PER_SECOND)
    if rate <= 0:
        raise InputError(f"{text!r} is not a positive bandwidth; leave the link out if it carries nothing")
    if not 1 <= rate <= 10**18:
        raise InputError(f"{text!r} is not a bandwidth of a real link (1 B/s to 1e9 GB/s)")
    return rate


def parse_time(text: str) -> float:
    """Seconds from text such as ``1.9us``; raises `InputError` for a negative time or one over an hour."""
    time = _parse(text, _TIME, "a time", "1.9us or 3ms")
    if not 0 <= time <= 3600:
        raise InputError(f"{text!r} is not a latency (0 to 3600 s)")
    return float(time)


def parse_exact(text: object) -> Fraction:
    """A number written as ``p`` or ``p/q`` in digits, as in ``1200/7``; raises `InputError` for anything else.

    Decimal points and exponents are not taken: ``1e999999999`` would cost an age to make exact.
    """
    number = Fraction(text) if isinstance(text, str) and len(text) <= 400 and _EXACT.fullmatch(text) else None
    # Beyond that a float cannot hold its products.
    if number is None or abs(number) > 10**100:
        shown = repr(text) if len(repr(text)) <= 60 else f"{repr(text)[:57]}…"
        raise InputError(f"{shown} is not an exact number such as '1200/7'")
    return number


def format_size(size: float) -> str:
    """Text for a number of bytes: a whole number in the unit that makes it smallest, or six digits."""
    whole = round(size)
    if whole and whole == size:
        count, unit = min((whole // _SIZE[unit], unit) for unit in ("B", *_PRINTED) if whole % _SIZE[unit] == 0)
        if count >= 10_000 and unit.endswith("iB"):
            # 616.875 MiB is the same as 631680 KiB, and is easier to read.
            for larger in ("TiB", "GiB", "MiB"):
                text = f"{whole / _SIZE[larger]:.6g}"
                if whole >= _SIZE[larger] and Fraction(text) * _SIZE[larger] == whole:
                    return f"{text} {larger}"
        if count < (10**6 if unit.endswith("iB") else 1000):
            return f"{count} {unit}"
    fitting = (f"{size / _SIZE[unit]:.6g} {unit}" for unit in ("TB", "GB", "MB", "kB") if size >= _SIZE[unit])
    return next(fitting, f"{size:.6g} B")


def format_size_about(size: float) -> str:
    """Text for a number of bytes: exact if that is as short, ``875 MB``, else three digits, ``159 KiB``."""
    # What would be rounded to 1024 of a unit is 1 of the next.
    unit = next((unit for unit in ("TiB", "GiB", "MiB", "KiB") if 1024 * size >= 1023.5 * _SIZE[unit]), "B")
    number = size / _SIZE[unit]
    if unit == "B" and size != round(size):
        return f"about {size:.0f} B"
    # Four digits before the next unit begins at 1024, not an exponent.
    about = f"{number:.0f} {unit}" if number >= 999.5 else f"{number:.3g} {unit}"
    return min(about, format_size(size), key=len)


def format_rate(rate: Fraction | float) -> str:
    """Text for bytes per second, in GB/s with four significant digits."""
    return f"{float(rate) / 1e9:.4g} GB/s" if rate < 10**13 else f"{float(rate) / 1e9:.0f} GB/s"


def format_time(seconds: float) -> str:
    """Text for a time with four significant digits, in the unit that suits it."""
    if not math.isfinite(seconds):
        return str(seconds)
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale * 0.99995:
            return f"{seconds / scale:.4g} {unit}"
    return "0 s" if seconds == 0 else f"{seconds / 1e-9:.4g} ns"


def exact_GBps(rate: Fraction) -> str:  # noqa: N802 - GBps is the unit's name
    """A rate in GB/s as an exact fraction, ``"p/q"`` in lowest terms (``"p"`` when whole)."""
    return str(rate / 10**9)


def exact_algbw(rate: Fraction) -> str:
    """An exact algbw in GB/s, with its rounded value where it is a fraction: ``25/3 GB/s algbw (8.333 GB/s)``."""
    exact = exact_GBps(rate)
    return f"{exact} GB/s algbw ({format_rate(rate)})" if "/" in exact else f"{exact} GB/s algbw"


def in_GBps(rate: Fraction | float) -> float:  # noqa: N802
    """Bytes per second as GB/s."""
    return float(rate) / 1e9


def sizes_of(sizes: Sizes) -> tuple[int, ...]:
    """Sizes in bytes, ascending and each once, from a list, a single size, or text as `parse_sizes` reads it.

    Raises `InputError` as `size_of` and `parse_sizes` do, and if there is none.
    """
    if isinstance(sizes, str):
        return tuple(sorted(set(parse_sizes(sizes))))
    listed = sizes if isinstance(sizes, Iterable) else (sizes,)
    found = tuple(sorted({size_of(size) for size in listed}))
    if not found:
        raise InputError("no sizes given; write them like sizes=['1MiB', '64MiB']")
    return found


def parse_sizes(text: str) -> list[int]:
    """Sizes in bytes from ``1KiB:1GiB`` (doubling), ``1KiB:1GiB:x4`` (another factor) or ``1MiB,3MiB,1GB``.

    A range ends with the size that it names, wherever the factor would have led.

    Raises `InputError` for anything else and for more than 1,000 sizes.
    """
    if ":" not in text:
        return [parse_size(part) for part in text.split(",")]
    parts = text.split(":")
    factor = 2
    if len(parts) == 3:
        number = parts.pop().removeprefix("x")
        if not (number.isascii() and number.isdigit()) or not 2 <= int(number[:6]) <= 10**5:
            raise InputError(f"{text!r}: the factor between sizes is a whole number of at least 2, as in 1KiB:1GiB:x4")
        factor = int(number)
    if len(parts) != 2:
        raise InputError(f"{text!r} is not a range of sizes; write it like 1KiB:1GiB")
    low, high = map(parse_size, parts)
    if high < low:
        raise InputError(f"{text!r} runs backwards; write the smaller size first")
    sizes = [low]
    while sizes[-1] * factor <= high:
        sizes.append(sizes[-1] * factor)
    return sizes if sizes[-1] == high else [*sizes, high]
