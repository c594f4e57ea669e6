"""Projections as data: the presets of `models/*projection.yaml` with their constants.

A preset says which reading of the equations runs, which bandwidths it uses, which link class of a machine
stands for each of them, and which table of rates it pins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from blinksim import data_files
from blinksim.errors import FileError, unknown
from blinksim.timing.aurora import BANDWIDTHS, Constants

if TYPE_CHECKING:
    from blinksim.textio.yaml_nodes import Entry

READINGS = ("exact", "as-written", "chain", "derived")
_CONSTANTS = tuple(field.name for field in fields(Constants))
_CONSTANT = "{nic_efficiency: {value: 4/5, source: section 3}}"
_VALUE = {True: "{bandwidth: 25GB/s, source: data sheet}", False: "{value: 4/5, source: section 3}"}
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
    `blinksim.timing.aurora.exact_reading`. what_if: the changes that the source document discusses.
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


def load_preset(name: str) -> Preset:
    """The preset called `name`, also written ``projection:name``.

    Raises `InputError` for an unknown name and `FileError` for a model file that cannot be used.
    """
    known = _presets() | _read
    short = name.removeprefix("projection:")
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
    """The presets of one model file; raises `FileError` with the line of the key which cannot be used."""
    from blinksim.textio import text_files, yaml_nodes

    root = yaml_nodes.load(path, text_files.read_text(path, what="model file"), "model file")
    root.what = "the file"
    parts = root.mapping(
        ("title", "source", "constants", "presets", "what_if"),
        ("source", "constants", "presets"),
        example="{source: …, constants: {…}, presets: {…}}",
    )
    constants = parts["constants"].mapping(_CONSTANTS, example=_CONSTANT)
    values: dict[str, Fraction] = {}
    classes: dict[str, str] = {}
    for name, entry in constants.items():
        values[name], role = _constant(name, entry)
        classes |= {name: role} if role else {}
    what_if = [_what_if(entry, values) for entry in _items(parts, "what_if", "[{title: …, set: {nic: 25GB/s}}]")]
    source = parts["source"].text()
    return [
        _preset(name, entry, values, classes, tuple(what_if), source)
        for name, (_, entry) in parts["presets"].named(example="{mine: {title: …, reading: derived}}").items()
    ]


def _items(parts: Mapping[str, Entry], key: str, example: str) -> list[Entry]:
    return parts[key].items(example=example) if key in parts else []


def _flag(parts: Mapping[str, Entry], key: str, default: bool) -> bool:
    if key not in parts:
        return default
    text = parts[key].text()
    if text not in ("true", "false"):
        raise parts[key].error(f"{parts[key].what} must be true or false, not {text!r:.40}")
    return text == "true"


def _constant(name: str, entry: Entry) -> tuple[Fraction, str]:
    """The value, and the link class that stands for it, empty if there is none."""
    entry.what, rate = f"constant {name}", name in BANDWIDTHS
    given = "bandwidth" if rate else "value"
    known = (given, "source", "assumed", *(("class",) if rate else ()))
    parts = entry.mapping(known, (given, "source"), example=_VALUE[rate])
    # `assumed: true` marks what no document prints; the source then says why it is taken to be so.
    _flag(parts, "assumed", False)
    parts["source"].text()
    return _value(name, parts[given]), parts["class"].text() if "class" in parts else ""


def _value(name: str, entry: Entry) -> Fraction:
    value = entry.rate() if name in BANDWIDTHS else entry.ratio("1 or 4/5")
    if name == "nic_efficiency" and value > 1:
        raise entry.error(f"{entry.what}: {value} is out of range: a share is at most 1")
    if name in ("nics_per_node", "parallel_links") and value.denominator != 1:
        raise entry.error(f"{entry.what}: {value} is not a whole number")
    return value


def _preset(
    name: str,
    entry: Entry,
    values: Mapping[str, Fraction],
    classes: Mapping[str, str],
    what_if: tuple[WhatIf, ...],
    source: str,
) -> Preset:
    entry.what = f"preset {name}"
    known = ("title", "reading", "pcie", "hide_mdfi", "rates", "uses")
    parts = entry.mapping(known, ("title", "reading"), example="{title: …, reading: derived}")
    reading = parts["reading"].choice(READINGS, "reading")
    missing = sorted(set(_CONSTANTS) - values.keys())
    if reading != "derived" and missing:
        raise parts["reading"].error(f"the reading {reading!r} also needs constants: {', '.join(missing)}")
    uses = _items(parts, "uses", "[xe, nic]")
    for role in uses:
        if role.text() not in values or role.text() not in BANDWIDTHS:
            raise role.error(f"{entry.what} uses {role.text()!r}, which is not a bandwidth under constants")
    return Preset(
        name=name,
        title=parts["title"].text(),
        reading=reading,
        rates=parts["rates"].text() if "rates" in parts else None,
        uses=tuple(role.text() for role in uses),
        classes=classes,
        constants=None if missing else _all_constants(values),
        nic_efficiency=values.get("nic_efficiency", Fraction(1)),
        what_if=what_if,
        pcie=_flag(parts, "pcie", False),
        hide_mdfi=_flag(parts, "hide_mdfi", True),
        source=source,
    )


def _all_constants(values: Mapping[str, Fraction]) -> Constants:
    counts = {name: int(values[name]) for name in ("nics_per_node", "parallel_links")}
    return Constants(**{**values, **counts})  # type: ignore[arg-type]  # the three kinds of value share one mapping


def _what_if(entry: Entry, known: Mapping[str, Fraction]) -> WhatIf:
    parts = entry.mapping(
        ("title", "set", "source"), ("title", "set", "source"), example="{title: …, set: {nic: 25GB/s}, source: …}"
    )
    can = [name for name in known if name in (*BANDWIDTHS, "nic_efficiency")]
    changes = parts["set"].mapping(can, example="{nic: 25GB/s}")
    values = {name: _value(name, value) for name, value in changes.items()}
    return WhatIf(parts["title"].text(), values, parts["source"].text())


def changed(constants: Constants, changes: Mapping[str, Fraction]) -> Constants:
    """`constants` with other values for some of its bandwidths (bytes/s) or its NIC efficiency."""
    return replace(constants, **changes)  # type: ignore[arg-type]
