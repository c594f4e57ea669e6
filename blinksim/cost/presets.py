"""Projections as data: the presets of `models/*projection.yaml` with their constants.

A preset says which reading of the equations runs, which bandwidths it uses, which link class of a machine stands for
each of them, and which table of rates it pins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from blinksim import data_files
from blinksim.cost.aurora import BANDWIDTHS, Constants
from blinksim.errors import FileError, InputError, unknown
from blinksim.units import parse_rate

READINGS = ("exact", "as-written", "chain", "derived")
FABRIC = "fabric"


@dataclass(frozen=True)
class WhatIf:
    """A change of some constants: what it stands for, the new values (bytes/s, or a share), where they come from."""

    title: str
    changes: Mapping[str, Fraction]
    source: str


@dataclass(frozen=True)
class Preset:
    """One way to project a time.

    reading: one of `READINGS`. rates: the rate table to load the machine with, None for the caller's. uses: names of
    the bandwidths that its terms can have. classes: link class that stands for a bandwidth (`FABRIC`: whatever joins
    the nodes). constants: None for a derived reading, which has only `nic_efficiency`. pcie, hide_mdfi: see
    `blinksim.cost.aurora.exact_reading`. what_if: the changes that the source document discusses.
    """

    name: str
    title: str
    reading: str
    rates: str | None
    uses: tuple[str, ...]
    classes: Mapping[str, str]
    constants: Constants | None
    nic_efficiency: Fraction
    what_if: tuple[WhatIf, ...] = ()
    pcie: bool = False
    hide_mdfi: bool = True
    source: str = ""


# The presets of other files that have been read.
_read: dict[str, Preset] = {}


def preset_names() -> tuple[str, ...]:
    """The names that `load_preset` knows."""
    return (*_presets(), *_read)


def read_file(path: Path, name: str = "") -> str:
    """The name by which `load_preset` knows a preset of a file from anywhere; name: which, if there are several.

    Raises `FileError` if there is no such preset in the file.
    """
    found = {preset.name: preset for preset in read_presets(path)}
    if not found:
        raise FileError(path, "holds no preset")
    if name and name not in found:
        raise FileError(path, str(unknown("preset", name, found)))
    if not name and len(found) > 1:
        raise FileError(path, f"holds the presets {', '.join(found)}; say which, as in {path}:{next(iter(found))}")
    wanted = name or next(iter(found))
    if wanted in _presets() and _presets()[wanted] != found[wanted]:
        raise FileError(path, f"{wanted!r} is a preset of models/ already; give it another name")
    if wanted not in _presets():
        _read[wanted] = found[wanted]
    return wanted


def short_name(name: str) -> str:
    """The name of a preset without the ``projection:`` that may stand before it."""
    return name.removeprefix("projection:")


def load_preset(name: str) -> Preset:
    """The preset called `name`, also written ``projection:name``.

    Raises `InputError` for an unknown name and `FileError` for a model file that cannot be used.
    """
    known = _presets() | _read
    short = short_name(name)
    if short not in known:
        raise unknown("projection", short, known)
    return known[short]


@cache
def _presets() -> dict[str, Preset]:
    found: dict[str, Preset] = {}
    for path in data_files.files("models", "*projection.yaml"):
        for preset in read_presets(path):
            if preset.name in found:
                raise FileError(path, f"a second preset is called {preset.name!r}; give it another name")
            found[preset.name] = preset
    return found


def read_presets(path: Path) -> list[Preset]:
    """The presets of one model file; raises `FileError` that names the key which cannot be used."""
    from blinksim.textio import yaml_nodes

    document = yaml_nodes.plain(path, "model file")
    body = _Section(path, "the file", document, {"title", "source", "constants", "presets", "what_if"})
    constants = body.section("constants")
    values = {name: _constant(constants, name) for name in constants.body}
    classes = {name: str(entry["class"]) for name, entry in constants.body.items() if "class" in entry}
    complete = {field.name for field in fields(Constants)} <= values.keys()
    what_if = tuple(_what_if(path, entry, values) for entry in body.body.get("what_if", ()))
    presets = body.section("presets")
    result = []
    for name in presets.body:
        entry = presets.section(name, {"title", "reading", "pcie", "hide_mdfi", "rates", "uses"})
        reading = entry.text("reading")
        uses = tuple(entry.body.get("uses", ()))
        if reading not in READINGS:
            raise FileError(path, f"{entry.what}: {unknown('reading', reading, READINGS)}")
        if reading != "derived" and not complete:
            missing = sorted({field.name for field in fields(Constants)} - values.keys())
            raise FileError(path, f"{entry.what}: the reading {reading!r} also needs constants: {', '.join(missing)}")
        for role in uses:
            if role not in values or role not in BANDWIDTHS:
                raise FileError(path, f"{entry.what}: uses {role!r}, which is not a bandwidth under constants")
        result.append(
            Preset(
                name=name,
                title=entry.text("title"),
                reading=reading,
                rates=entry.body.get("rates"),
                uses=uses,
                classes=classes,
                constants=_constants(values) if complete else None,
                nic_efficiency=values.get("nic_efficiency", Fraction(1)),
                what_if=what_if,
                pcie=entry.flag("pcie", False),
                hide_mdfi=entry.flag("hide_mdfi", True),
                source=body.text("source"),
            )
        )
    return result


class _Section:
    """A mapping of a model file that knows where it stands, for messages."""

    def __init__(self, path: Path, what: str, body: Any, keys: set[str] | None = None) -> None:
        if not isinstance(body, dict):
            raise FileError(path, f"{what} must be a mapping")
        for key in body:
            if keys is not None and key not in keys:
                raise FileError(path, f"{what}: {unknown('key', str(key), keys)}")
        self.path, self.what, self.body = path, what, body

    def section(self, key: str, keys: set[str] | None = None) -> _Section:
        return _Section(self.path, key, self.body.get(key), keys)

    def text(self, key: str) -> str:
        value = self.body.get(key)
        if not isinstance(value, str):
            raise FileError(self.path, f"{self.what}: {key} must be text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.body.get(key, default)
        if not isinstance(value, bool):
            raise FileError(self.path, f"{self.what}: {key} must be true or false")
        return value


def _constant(constants: _Section, name: str) -> Fraction:
    if name not in {field.name for field in fields(Constants)}:
        raise FileError(constants.path, str(unknown("constant", name, [field.name for field in fields(Constants)])))
    rate = name in BANDWIDTHS
    keys = {"bandwidth", "class", "source", "assumed"} if rate else {"value", "source", "assumed"}
    entry = constants.section(name, keys)
    # `assumed: true` marks what no document prints; the source then says why it is taken to be so.
    entry.flag("assumed", False)
    entry.text("source")
    return _value(constants.path, name, entry.body.get("bandwidth" if rate else "value"))


def _value(path: Path, name: str, text: Any) -> Fraction:
    try:
        value = parse_rate(str(text)) if name in BANDWIDTHS else Fraction(str(text))
    except (InputError, ValueError, ZeroDivisionError) as error:
        raise FileError(path, f"{name}: {error}") from None
    if value <= 0 or (name == "nic_efficiency" and value > 1):
        raise FileError(path, f"{name}: {text} is out of range")
    if name in ("nics_per_node", "parallel_links") and value.denominator != 1:
        raise FileError(path, f"{name}: {text} is not a whole number")
    return value


def _constants(values: Mapping[str, Fraction]) -> Constants:
    counts = {name: int(values[name]) for name in ("nics_per_node", "parallel_links")}
    return Constants(**{**values, **counts})  # type: ignore[arg-type]  # the three kinds of value share one mapping


def _what_if(path: Path, entry: Any, known: Mapping[str, Fraction]) -> WhatIf:
    section = _Section(path, "an entry of what_if", entry, {"title", "set", "source"})
    changes = section.section("set").body
    for name in changes:
        if name not in known or name not in (*BANDWIDTHS, "nic_efficiency"):
            raise FileError(path, f"what_if {section.text('title')!r}: {unknown('constant', str(name), known)}")
    values = {name: _value(path, name, text) for name, text in changes.items()}
    return WhatIf(section.text("title"), values, section.text("source"))


def changed(constants: Constants, changes: Mapping[str, Fraction]) -> Constants:
    """`constants` with other values for some of its bandwidths (bytes/s) or its NIC efficiency."""
    return replace(constants, **changes)  # type: ignore[arg-type]
