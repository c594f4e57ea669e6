"""The constants of host paths as data, `models/host-path.yaml`: each with its source, and a mark if it is assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from blinksim import data_files
from blinksim.errors import FileError, InputError, unknown
from blinksim.units import parse_number, parse_rate, parse_time

_KINDS = ("rate", "time", "count")


@dataclass(frozen=True, slots=True)
class Constant:
    """value: bytes/s, seconds or a count, exact. assumed: True if no document states it."""

    name: str
    value: Fraction
    source: str
    assumed: bool


@dataclass(frozen=True, slots=True)
class Lane:
    """A PCIe lane. transfers: per second. code: the share of them that is data."""

    transfers: Fraction
    code: Fraction
    source: str


@dataclass(frozen=True, slots=True)
class HostConstants:
    """lanes: by PCIe generation. constants: by name."""

    lanes: Mapping[int, Lane]
    constants: Mapping[str, Constant]

    def value(self, name: str) -> Fraction:
        """The value of a constant, in SI units; raises `InputError` for an unknown name."""
        if name not in self.constants:
            raise unknown("host-path constant", name, self.constants)
        return self.constants[name].value

    def seconds(self, name: str) -> float:
        """The value of a time, as a float."""
        return float(self.value(name))


@cache
def host_constants() -> HostConstants:
    """What `models/host-path.yaml` says; raises `FileError` if it cannot be used."""
    return read_host_constants(data_files.folder("models") / "host-path.yaml")


def read_host_constants(path: str | Path) -> HostConstants:
    """The constants of a file like `models/host-path.yaml`; raises `FileError` for anything that it must not hold."""
    from blinksim.textio import yaml_nodes

    path = Path(path)
    given = yaml_nodes.plain(path, "file of constants")
    if not isinstance(given, dict) or not all(isinstance(given.get(key), dict) for key in ("pcie", "constants")):
        raise FileError(path, "needs the mappings pcie and constants")
    lanes = {}
    for generation, entry in given["pcie"].items():
        if not isinstance(generation, int) or not isinstance(entry, dict):
            raise FileError(path, f"pcie: {generation!r} is no generation with transfer_rate, code and source")
        source = _source(path, f"pcie {generation}", entry, {"transfer_rate", "code"})
        transfers, code = (_number(path, f"pcie {generation}", entry.get(key)) for key in ("transfer_rate", "code"))
        if not 0 < code <= 1 or transfers <= 0:
            raise FileError(path, f"pcie {generation}: the rate must be positive and code a share of at most 1")
        lanes[generation] = Lane(transfers * 10**9, code, source)
    constants = {}
    for name, entry in given["constants"].items():
        kinds = [kind for kind in _KINDS if isinstance(entry, dict) and kind in entry]
        if len(kinds) != 1:
            raise FileError(path, f"{name}: needs exactly one of {', '.join(_KINDS)}")
        source = _source(path, name, entry, {*kinds, "assumed"})
        assumed = entry.get("assumed", False)
        if not isinstance(assumed, bool):
            raise FileError(path, f"{name}: assumed must be true or false")
        constants[name] = Constant(name, _value(path, name, kinds[0], entry[kinds[0]]), source, assumed)
    return HostConstants(lanes, constants)


def _source(path: Path, name: str, entry: Mapping[str, Any], known: set[str]) -> str:
    for key in entry:
        if key not in known | {"source"}:
            raise FileError(path, f"{name}: {unknown('key', str(key), sorted(known | {'source'}))}")
    source = entry.get("source")
    if not isinstance(source, str) or not source.strip():
        raise FileError(path, f"{name}: source must be text that says where the figure is from")
    return source.strip()


def _number(path: Path, name: str, given: object) -> Fraction:
    try:
        return parse_number(str(given))
    except InputError as error:
        raise FileError(path, f"{name}: {error}") from None


def _value(path: Path, name: str, kind: str, given: object) -> Fraction:
    try:
        if kind == "rate":
            return parse_rate(str(given))
        if kind == "time":
            return Fraction(str(parse_time(str(given))))
    except InputError as error:
        raise FileError(path, f"{name}: {error}") from error
    number = _number(path, name, given)
    if number.denominator != 1 or number < 1:
        raise FileError(path, f"{name}: {given!r} is not a count of at least 1")
    return number
