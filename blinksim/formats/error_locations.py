"""Errors of values as errors of the file that they were read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from blinksim.errors import FileError, InputError


@contextmanager
def blamed_on(place: Callable[[str], FileError]) -> Iterator[None]:
    """An `InputError` inside becomes the error at this place of a file; one that has a place stays as it is.

    >>> with blamed_on(lambda message: FileError("box.yaml", message, 7)):
    ...     raise InputError("25 lanes too many")
    Traceback (most recent call last):
    blinksim.errors.FileError: box.yaml:7: 25 lanes too many
    """
    try:
        yield
    except FileError:
        raise
    except InputError as error:
        raise place(str(error)) from None
