"""Every way to change a JSON document in one place, and pairs of such changes: what a forger of a bound would try."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]
_WORDS = (
    *("", "0", "1", "-1", "1/0", "1e99999999999", "9" * 399, "1/" + "9" * 200, "x\x1b[31m", "exact", "upper", "cut"),
    *("partition", "lengths", "phases", "tree-optimum", "reduce-scatter + allgather", "allgather", "allreduce", "gpu0"),
    *("broadcast", "reducescatter", "alltoall", "scatter", "gather", "reduce", "ring:4", "dgx1-v100", "nominal"),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 10**30, 1.5, -0.0, 1e308, [], {}, [[]], [0], ["gpu0"], {"": 0}),
    *_WORDS,
)
# Keys that exist somewhere in a claim; each is added where it is not.
_KEYS = ("shares", "limits", "relays_reduce", "root", "scope", "kind", "gap_exact", "losses", "optimal", "lengths")


def places(document: Any, at: Path = ()) -> Iterator[Path]:
    """Where something stands in a document, from the outside in."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inner:
        yield (*at, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*at, key))


def _room(document: Any, path: Path) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


def others(value: Any, ranks: int) -> Iterator[Any]:
    """Values that might stand in the place of `value`."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)):
        yield from (value + 1, value - 1, -value, value * 2, str(value), float(value), [value])
    elif isinstance(value, str):
        yield from (value + "0", value[:-1], value.upper(), value[::-1], [value], 0)
        if value.replace("/", "").isdigit():
            top, _, below = value.partition("/")
            yield from (f"{int(top) + 1}/{below or 1}", f"{int(top) * 7}/{int(below or 1) * 7}", f"{top}/0", f"{top}.0")
            yield from (str(int(top) // 2 or 1), f"{int(top) * 2}/{below or 1}")
    elif isinstance(value, list):
        yield from (value[::-1], value[1:], value[:-1], [*value, *value[:1]], [*value, 0], value * 2)
        yield [1] + [0] * (ranks - 1)
        yield list(range(1, ranks + 1))
    elif isinstance(value, dict):
        yield from ([value], {})
    yield from _VALUES


def forge(document: Any, numbers: random.Random, ranks: int) -> tuple[str, Any]:
    """A copy of a document with one, sometimes two or three changes, and what they are."""
    forged = copy.deepcopy(document)
    told = []
    for _ in range(numbers.choice((1, 1, 1, 2, 3))):
        path = numbers.choice(list(places(forged)))
        room, key = _room(forged, path), path[-1]
        match numbers.choice(("other", "other", "other", "remove", "add", "swap", "from elsewhere")):
            case "remove":
                del room[key]
                told.append(f"remove {path}")
            case "add":
                new = numbers.choice(_KEYS)
                where = room if isinstance(room, dict) else forged
                where[new] = numbers.choice([*_VALUES, [1] * ranks, [1] + [0] * (ranks - 1)])
                told.append(f"add {new}={where[new]!r:.60} at {path[:-1]}")
            case "swap":
                twin = numbers.choice(list(room) if isinstance(room, dict) else range(len(room)))
                room[key], room[twin] = room[twin], room[key]
                told.append(f"swap {path} and {twin}")
            case "from elsewhere":
                source = numbers.choice(list(places(forged)))
                room[key] = copy.deepcopy(_room(forged, source)[source[-1]])
                told.append(f"{path} = {source}")
            case _:
                room[key] = numbers.choice(list(others(room[key], ranks)))
                told.append(f"{path} = {room[key]!r:.60}")
        if not forged:
            break
    return "; ".join(told), forged


def systematic(document: Any, ranks: int) -> Iterator[tuple[str, Any]]:
    """Every place of a document with every other value, and without what stands there."""
    for path in places(document):
        for value in (*others(_room(document, path)[path[-1]], ranks), places):
            forged = copy.deepcopy(document)
            room = _room(forged, path)
            if value is places:
                del room[path[-1]]
                yield f"remove {path}", forged
            else:
                room[path[-1]] = value
                yield f"{path} = {value!r:.60}", forged
