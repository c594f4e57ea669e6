"""Damage to texts: what a disk, an editor or a stranger may do to a file, and what a reader's limits fear. Seeded."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

# Numbers at the edges of what readers store, in digits of several kinds.
NUMBERS = (
    "0", "-1", "1", "2", "007", "127", "128", "255", "256", "1024", "32767", "32768", "65536", "99999", "1000000",
    "1048576", "2147483647", "2147483648", "-2147483648", "4294967296", "9223372036854775807", "-9223372036854775808",
    "18446744073709551616", "9" * 40, "9" * 400, "9" * 5000, "0." + "0" * 400 + "1", "1e308", "1e309", "-1e400",
    "0e400", "1e-400", "1.0e+999", "nan", "inf", "-inf", "NaN", "Infinity", "0x10", "0b1", "1_000", "٣", "３", "²", "½",
    "1/0", "0/1", "1/3", "7/" + "9" * 300, "1e99999999999", "+5", " 5", "5 ", "", "-", ".", "1.", ".5", "true", "null",
    "~",
)  # fmt: skip
TOKENS = (
    "{", "}", "[", "]", "(", ")", "<", ">", "/>", "</", "<!--", "-->", "<!---->", "<?", "?>", "<!DOCTYPE a [", "]]>",
    "&lt;", "<![CDATA[", "&", "*", "&a ", "*a", "!!python/object:os.system ", "!!int ", "%YAML 1.2\n", "---\n",
    "...\n", "<<: ", "|", ">-", ":", ": ", "- ", "? ", ",", "'", '"', '\\"', "\\u0000", "\\ud800", "\\", "=", "#",
    "# ", "##", "@", "`", "~", "^", "$", "%", ";", "\0", "\x01", "\x07", "\x1b[31m", "\x7f", "\x85", "\x9b", "\t",
    "\n", "\r", "\r\n", "\v", "\f", "\u2028", "\u202e", "\ufeff", "\ufffe", "é", "ß", "漢", "𝟘", "\U0001f600", "İ",
    "gpu0", "gpu[0-3]", "gpu[0-99999]", "gpu[0-999999999]", "gpu[3-0]", "n0.gpu0", "a" * 300, "GB/s", "GB", "us", "s",
    "KiB", "NV18", "NV0", "NV999", "SYS", "X", "N/A", "-1", "none", "all", "../", "/dev/zero", "/dev/stdin", "-",
    "size", "time", "algbw", "busbw", "timestamp", "GPU0", "NIC0", "Rank", "NCCL INFO", "[", "[1,0]<stdout>:", "0: ",
    "base64", "dtype",
)  # fmt: skip
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST = 400_000


def damaged(random_: random.Random, text: str, others: list[str]) -> str:
    """`text` with one to five damages; `others` are samples to take pieces from."""
    for _ in range(random_.choice((1, 1, 1, 2, 3, 5))):
        text = random_.choice(_DAMAGES)(random_, text, others)[:_LONGEST]
    return text


def _span(random_: random.Random, text: str, longest: int = 40) -> tuple[int, int]:
    start = random_.randint(0, len(text))
    return start, min(len(text), start + random_.randint(0, longest))


def _cut(random_: random.Random, text: str, _: list[str]) -> str:
    start, end = _span(random_, text)
    return text[:start] + text[end:]


def _end(random_: random.Random, text: str, _: list[str]) -> str:
    return text[: random_.randint(0, len(text))]


def _token(random_: random.Random, text: str, _: list[str]) -> str:
    start, end = _span(random_, text, 4)
    return text[:start] + random_.choice(TOKENS) + text[end:]


def _number(random_: random.Random, text: str, _: list[str]) -> str:
    found = list(_NUMBER.finditer(text))
    if not found:
        return text + random_.choice(NUMBERS)
    one = random_.choice(found)
    return text[: one.start()] + random_.choice(NUMBERS) + text[one.end() :]


def _word(random_: random.Random, text: str, others: list[str]) -> str:
    """A word replaced by another one of a sample."""
    found, new = list(_WORD.finditer(text)), _WORD.findall(random_.choice(others))
    if not found or not new:
        return text
    one = random_.choice(found)
    return f"{text[: one.start()]}{random_.choice(new)}{text[one.end() :]}"


def _repeat(random_: random.Random, text: str, _: list[str]) -> str:
    start, end = _span(random_, text, random_.choice((4, 40, 400)))
    times = random_.choice((2, 3, 10, 100, 1000, 10_000))
    return text[:start] + text[start:end] * min(times, _LONGEST // max(1, end - start)) + text[end:]


def _nest(random_: random.Random, text: str, _: list[str]) -> str:
    start, end = _span(random_, text, 200)
    opening, closing = random_.choice(
        (("[", "]"), ("{", "}"), ('{"a":', "}"), ("<pci>", "</pci>"), ("<a>", ""), ("- ", ""))
    )
    times = random_.choice((10, 50, 100, 2000, 50_000))
    return text[:start] + opening * times + text[start:end] + closing * times + text[end:]


def _lines(random_: random.Random, text: str, _: list[str]) -> str:
    """Lines dropped, doubled or moved."""
    lines = text.split("\n")
    at = random_.randrange(len(lines))
    match random_.randrange(3):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[at])
        case _:
            lines.insert(random_.randrange(len(lines)), lines.pop(at))
    return "\n".join(lines)


def _splice(random_: random.Random, text: str, others: list[str]) -> str:
    other = random_.choice(others)
    return text[: random_.randint(0, len(text))] + other[random_.randint(0, len(other)) :]


def _flip(random_: random.Random, text: str, _: list[str]) -> str:
    data = bytearray(text.encode("utf-8", "surrogateescape"))
    for _round in range(random_.randint(1, 8)):
        if data:
            data[random_.randrange(len(data))] = random_.randrange(256)
    return data.decode("utf-8", "surrogateescape")


_DAMAGES: tuple[Callable[[random.Random, str, list[str]], str], ...] = (
    _cut, _end, _token, _token, _number, _number, _number, _word, _word, _repeat, _nest, _lines, _lines, _splice, _flip,
)  # fmt: skip

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63, 10**39, 0.5, -1.5, 1e308, "", "x", "1/0",
    "1/3", "0", "-1", "9" * 390, "1e999", "\u202e", "gpu0", [], {}, [[]], [None], [0], [-1], ["gpu0"], {"a": 1},
    {"kind": "cut"}, [2**31 - 1] * 3,
)  # fmt: skip


def changed_values(random_: random.Random, text: str) -> str:
    """JSON with the grammar left whole: values replaced, taken away, doubled or exchanged."""
    document = json.loads(text)
    for _ in range(random_.choice((1, 1, 2, 4))):
        if len(json.dumps(document)) > _LONGEST:
            break
        places = [(box, key) for box in _boxes(document) for key in (box if isinstance(box, dict) else range(len(box)))]
        if not places:
            break
        box, key = random_.choice(places)
        match random_.randrange(6):
            case 0:
                del box[key]
            case 1:
                other, name = random_.choice(places)
                if name in other if isinstance(other, dict) else name < len(other):
                    box[key] = json.loads(json.dumps(other[name]))
            case 2 if isinstance(box, list):
                box.extend([box[key]] * min(random_.choice((1, 10, 5000)), 1 + _LONGEST // len(json.dumps(box[key]))))
            case 3 if isinstance(box, dict):
                new = random_.choice(("root", "shares", "kind", "bus", "attributes", "extra"))
                box[new] = deepcopy(random_.choice(_VALUES))
            case 4 if isinstance(box[key], int) and not isinstance(box[key], bool):
                box[key] += random_.choice((-1, 1, 7, -100))
            case _:
                box[key] = deepcopy(random_.choice(_VALUES))
    return json.dumps(document)[: 4 * _LONGEST]


def _boxes(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [value] if isinstance(value, dict | list) else []
    for one in inner:
        found += _boxes(one)
    return found
