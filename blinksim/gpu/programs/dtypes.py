"""Element types and reductions, with the arithmetic that both executors use.

Integers wrap around. float16 and bfloat16 are widened to float32, folded in the order of the sources, and
rounded once, to nearest even, when stored. bfloat16 is the upper half of a float32; NumPy has no such type,
so it is kept as uint16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from blinksim.errors import InputError, one_of
from blinksim.textio.text_files import read_words

Array = npt.NDArray[Any]
DtypeName = Literal["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64"]
ReductionName = Literal["sum", "prod", "min", "max"]
# Every byte of memory that no op has written: NaN for the floating types, -1 or the largest value for
# integers.
POISON_BYTE = 0xFF


@dataclass(frozen=True, slots=True)
class ElementType:
    """name: as users write it. storage: NumPy type of the bits. fraction_bits: of a floating type, else 0."""

    name: str
    storage: str
    fraction_bits: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.storage).itemsize

    @property
    def floating(self) -> bool:
        return self.fraction_bits > 0

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger value; 0 for integers."""
        return 2.0**-self.fraction_bits if self.floating else 0.0


_FRACTION_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
ELEMENT_TYPES: dict[str, ElementType] = {
    name: ElementType(name, "uint16" if name == "bfloat16" else name, _FRACTION_BITS.get(name, 0))
    for name in get_args(DtypeName)
}
_UFUNCS: tuple[Callable[[Array, Array], Array], ...] = (np.add, np.multiply, np.minimum, np.maximum)
REDUCTIONS = dict(zip(get_args(ReductionName), _UFUNCS, strict=True))


def element_type(name: str) -> ElementType:
    """The type called `name` (also half, bf16, float …); raises `InputError` with the nearest names."""
    key = read_words("element type").get(name.lower(), name.lower())
    return ELEMENT_TYPES[one_of("element type", key, ELEMENT_TYPES)]


def widen(values: Array, kind: ElementType) -> Array:
    """Storage to what is computed with: float32 for the 16-bit types, anything else as it is."""
    if kind.name == "float16":
        return values.astype(np.float32)
    if kind.name == "bfloat16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def narrow(values: Array, kind: ElementType) -> Array:
    """What was computed with, back to storage, rounded to nearest even."""
    if kind.name == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    if kind.name == "bfloat16":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        # Rounding up the bits of a NaN could carry into the sign and make it a number.
        return np.where(np.isnan(values), np.uint32(0x7FFF), rounded).astype(np.uint16)
    return values


def fold(sources: Sequence[Array], op: str, kind: ElementType) -> Array:
    """The sources reduced from first to last, in storage form; a single source comes back as it is."""
    if not sources:
        raise InputError("nothing to reduce")
    if len(sources) == 1:
        return sources[0]
    with np.errstate(over="ignore", invalid="ignore"):
        return narrow(reduce(REDUCTIONS[op], (widen(source, kind) for source in sources)), kind)


def poison(count: int, kind: ElementType) -> Array:
    """`count` elements that no op has written."""
    return np.full(count * kind.itemsize, POISON_BYTE, dtype=np.uint8).view(kind.storage)
