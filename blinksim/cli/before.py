"""``--before``: the answer for the machine before its edits, beside the answer after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from blinksim.errors import InputError
from blinksim.units import format_rate

if TYPE_CHECKING:
    from blinksim.question import Question

P = ParamSpec("P")
R = TypeVar("R")


def before_option(command: Callable[P, R]) -> Callable[P, R]:
    """Adds --before."""
    text = "With --edit: also the answer for the machine before the edits, and what is left of it."
    return click.option("--before", is_flag=True, help=text)(command)


def unedited(question: Question, before: bool) -> Question | None:
    """The same question before the edits, None unless it is wanted; raises `InputError` if there are no edits."""
    if before and not question.edits:
        raise InputError("--before is about the machine before its edits; give one with --edit")
    return replace(question, edits=()) if before else None


def left(was: float, now: float, detail: str = "") -> str:
    """What a line says of algbw before and after the edits, in bytes/s. detail: on the answer before them."""
    return f"{format_rate(was)} algbw{detail} without the edit; with it {100 * now / was:.1f} % of that"
