"""Are the times right that `bound --size --json` printed? Every certificate is derived anew from its witness."""

from __future__ import annotations

from typing import Any

from blinksim.bounds.certificates import shown
from blinksim.bounds.claims import compare
from blinksim.bounds.time.certificates import in_words
from blinksim.bounds.time.delays import SECOND
from blinksim.bounds.time.time_bound import time_certificate_from_dict
from blinksim.bounds.time.time_bound_result import stated
from blinksim.collective import Collective
from blinksim.errors import FileError, InputError
from blinksim.topology.graph import Topology

Judged = tuple[dict[str, Any], list[str], list[str], list[str]]
"""What the document must say of its times; facts, what is wrong, and what is not proved."""


def judge_times(file: str, document: dict[str, Any], topology: Topology, collective: Collective) -> Judged:
    """What the certificates of times prove; nothing for a document without any.

    Raises `FileError` for what `bound --size` cannot have printed.
    """
    if "time_bounds" not in document:
        return {}, [], [], []
    entries, size = document["time_bounds"], document.get("size_bytes")
    if not isinstance(entries, list) or not entries:
        raise FileError(file, "time_bounds is not a list of bounds")
    if type(size) is not int or not 0 < size < 2**60:
        raise FileError(file, "time_bounds without size_bytes, a whole number of bytes")
    facts, wrong, unproved, latest = list[str](), list[str](), list[str](), 0
    for entry in entries:
        if not isinstance(entry, dict) or "certificate" not in entry:
            raise FileError(file, "an entry of time_bounds has no certificate")
        kind = entry["certificate"].get("kind") if isinstance(entry["certificate"], dict) else None
        name = shown(kind).strip("'")
        try:
            found = time_certificate_from_dict(entry["certificate"], topology, collective, size)
        except InputError as error:
            wrong.append(f"{name}: {error}")
            continue
        more_wrong, more_unproved = compare(entry, stated(found, topology, collective))
        wrong += [f"{name}: {text}" for text in more_wrong]
        unproved += [f"{name}: {text}" for text in more_unproved]
        facts.append(f"{name}: at least {in_words(found.time)} on the links alone; {found.words(topology)}")
        if not latest:
            latest = found.time
    return {"size_bytes": size, "time_bound_s": latest / SECOND}, facts, wrong, unproved
