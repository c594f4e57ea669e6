"""Exact YAML text of bandwidths and times, and YAML in the layout of our data files."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import yaml

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_DUMPER):  # type: ignore[misc, valid-type]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(data: dict[str, Any]) -> str:
    """Block style outside, one line for every item of a list of mappings and of a mapping without mappings."""
    lines = []
    for key, value in data.items():
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            lines += [f"{key}:", *(f"  {line}" for line in dump(value).splitlines())]
        elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
            lines += [f"{key}:", *(f"  - {_flow(inner)}" for inner in value)]
        else:
            lines.append(_flow({key: value})[1:-1])
    return "".join(f"{line}\n" for line in lines)


def _flow(value: Any) -> str:
    # Wide enough for every line: only single lines can be put together as above.
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=True, width=2**30, allow_unicode=True)
    return str(text).strip()


def decimal_text(number: Fraction) -> str:
    """A positive number exactly: as a decimal of up to 18 digits where it is one, else as ``p/q``."""
    scaled = number * 10**9
    if scaled.denominator == 1 and scaled < 10**18:
        whole, rest = divmod(scaled.numerator, 10**9)
        return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")
    return f"{number.numerator}/{number.denominator}"


def rate_text(rate: Fraction) -> str:
    """Bytes/s exactly, such as ``25GB/s``, or ``100/3 GB/s`` where decimals do not reach."""
    text = decimal_text(rate / 10**9)
    return f"{text} GB/s" if "/" in text else f"{text}GB/s"


def time_text(seconds: float) -> str:
    """Seconds such as ``0.6us``, which read back as the same float."""
    micro = (Decimal(repr(seconds)) * 10**6).normalize()
    return f"{micro:f}us" if -12 < micro.adjusted() < 12 else f"{micro}us"
