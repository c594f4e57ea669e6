"""Numbers on the command line: ASCII digits, a length that means something, and no infinity.

Python's own conversions, which click calls, also take ``\u0663``, ``1_000`` and ``nan``.
"""

from __future__ import annotations

import re
from typing import SupportsIndex, SupportsInt, TypeVar

import click

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,2})?")

_Given = TypeVar("_Given")


class Integer(click.types.IntParamType):
    """A whole number."""

    def convert(
        self, value: str | SupportsInt | SupportsIndex, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        return super().convert(int(_plain(value, _WHOLE, "whole number", param, ctx)), param, ctx)


class Whole(click.IntRange):
    """A whole number in a range."""

    def convert(
        self, value: str | SupportsInt | SupportsIndex, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        return super().convert(int(_plain(value, _WHOLE, "whole number", param, ctx)), param, ctx)


class Decimal(click.FloatRange):
    """A decimal number in a range."""

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return super().convert(float(_plain(value, _DECIMAL, "number", param, ctx)), param, ctx)


def _plain(
    value: _Given, pattern: re.Pattern[str], what: str, param: click.Parameter | None, ctx: click.Context | None
) -> _Given:
    """`value`; refuses text that is not written as `pattern`."""
    if isinstance(value, str) and not pattern.fullmatch(value.strip()):
        shown = repr(value) if len(value) <= 40 else f"{value[:40]!r}…"
        raise click.BadParameter(f"{shown} is not a {what}.", ctx, param)
    return value
