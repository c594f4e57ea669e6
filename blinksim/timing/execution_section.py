"""The section `execution` of machine files and rates files, read and written.

execution:
  hardware: NVIDIA H200
  measured: {source: nccl-tests, date: 2026-11-20, driver: 580.159.04}  # band: 35 % for what was derived
  gpus: [2, 4, 8]
  blocks: 132
  launch: 7.6us
  announce: 0.5us
  visit: 0.6us
  ports: {out: 368GB/s, into: 400GB/s, fan: 2.6 %, queue: 50us}
  protocols: {simple: {…}, ll128: {…}}
  error: {median: 2.9 %, p90: 12.5 %, points: 1223}
  nccl:
    version: 2.28.9
    ll: {start: 8.4us, hop: 0.67us, rate: 180GB/s, channel: 6.9GB/s}
    ll128: {start: 17us, hop: 0.73us, rate: 312GB/s}
    simple: {start: 21us, hop: 1.8us, rate: 364GB/s}
    turn: 935GB/s
    rooted_start: 17.1us
    nvls: {start: 9.4us, chunk: 0.388us, rate: 329GB/s, channels: 16, source: a table}      # optional
    call: 30us                                                                # optional
    error: {median: 2.7 %, p90: 8.4 %, points: 183}

Constants of our programs (from `blocks` to `error`), those of NCCL, or both; `nccl` may name an origin of its
own. The keys are the fields of `blinksim.timing.measured_constants`, without their units.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

from blinksim.textio.yaml_nodes import Entry, rate_text, time_text
from blinksim.timing.measured_constants import (
    LINES,
    ExecutionRates,
    FitError,
    FlagRates,
    NcclLine,
    NcclRates,
    NvlsLine,
    Origin,
    PacketRates,
    PortRates,
)

Rates = TypeVar("Rates", PortRates, PacketRates, FlagRates, NcclLine, NvlsLine, FitError)
Both = tuple[ExecutionRates | None, NcclRates | None]
"""Constants of our programs, and of NCCL."""

KEYS = (
    "hardware", "measured", "gpus", "blocks", "launch", "announce", "visit", "ports", "protocols", "error", "nccl",
)  # fmt: skip
_HEAD = ("hardware", "measured", "gpus")
_OURS = ("blocks", "launch", "announce", "visit", "ports", "protocols")
_NCCL = ("version", "ll", "ll128", "simple", "turn", "rooted_start")
_ORIGIN = "{source: nccl-tests, date: 2026-11-20}"
_EXAMPLE = f"hardware: NVIDIA H200, measured: {_ORIGIN}, gpus: [2, 4, 8], nccl: {{…}}"
_NCCL_EXAMPLE = "version: 2.28.9, ll: {start: 8.4us, hop: 0.67us, rate: 165GB/s}"
_MOST = 10**9
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
# What the fields are that are no time.
_KINDS = {
    **dict.fromkeys(("out", "into", "rate", "channel"), "rate"),
    **dict.fromkeys(("fan", "uneven", "drift", "load", "median", "p90"), "share"),
    "cache_bytes": "size",
    **dict.fromkeys(("points", "channels", "gpus"), "count"),
    "source": "text",
    "soft": "number",
    "wire": "number",
}
_READ: dict[str, Callable[[Entry], float | str]] = {
    "rate": lambda entry: float(entry.rate()),
    "share": Entry.percent,
    "size": Entry.size,
    "count": lambda entry: entry.integer(1, _MOST),
    "number": lambda entry: float(entry.ratio("2.4")),
    "text": Entry.text,
    "time": Entry.time,
}
_TEXT: dict[str, Callable[[Any], Any]] = {
    "rate": lambda rate: rate_text(Fraction(repr(rate))),
    "share": lambda share: f"{_plain(Decimal(repr(share)) * 100)} %",
    "size": lambda size: f"{int(size)}B",
    "count": lambda count: count,
    "text": lambda text: text,
    "number": lambda number: f"{Decimal(repr(number)):f}",
    "time": time_text,
}


def _plain(number: Decimal) -> str:
    """As a decimal, with an exponent for what is very small."""
    return f"{number.normalize():f}" if number == 0 or number.adjusted() > -9 else str(number.normalize())


def read(entry: Entry) -> Both:
    """The constants in the section of a file; raises `FileError` with line and column for anything amiss."""
    entry.what = "execution"
    given = entry.mapping(KEYS, _HEAD, example=_EXAMPLE)
    head = {key: _head(key, given[key]) for key in _HEAD}
    if "nccl" not in given and not any(key in given for key in _OURS):
        raise entry.error(f"execution holds no constants; add nccl, or {', '.join(_OURS)}")
    ours = None
    if any(key in given for key in (*_OURS, "error")):
        # The rest of a section that is begun.
        entry.mapping(given, _OURS, example=_EXAMPLE)
        names = ("simple", "ll128")
        protocols = given["protocols"].mapping(names, names, example="{simple: {…}, ll128: {…}}")
        ports = _fields(given["ports"], PortRates)
        if ports.uneven >= 1:
            raise given["ports"].error(
                f"blocks get some of a port: uneven is below 100 %; found {100 * ports.uneven:g} %"
            )
        ours = ExecutionRates(
            **head,
            blocks=given["blocks"].integer(1, _MOST),
            launch_s=given["launch"].time(),
            announce_s=given["announce"].time(),
            visit_s=given["visit"].time(),
            ports=ports,
            packets=_fields(protocols["ll128"], PacketRates),
            flags=_fields(protocols["simple"], FlagRates),
            error=_fields(given["error"], FitError) if "error" in given else None,
        )
    return ours, _nccl(given["nccl"], head) if "nccl" in given else None


def _head(key: str, entry: Entry) -> Any:
    """Where constants come from: the name of the GPUs, how they were measured, and on how many."""
    if key == "hardware":
        return entry.text(80)
    if key == "measured":
        given = entry.mapping(("source", "date", "driver", "band"), ("source",), example=_ORIGIN)
        texts = {name: given[name].text() for name in ("source", "date", "driver") if name in given}
        if "date" in texts and not _DATE.fullmatch(texts["date"]):
            raise given["date"].error(f"{given['date'].what} is a day such as 2026-11-20; found {texts['date']!r:.40}")
        return Origin(**texts, band=given["band"].percent() if "band" in given else None)
    found = [item.integer(2, _MOST) for item in entry.items(example="[2, 4, 8]")]
    if not found or found != sorted(set(found)):
        raise entry.error(f"{entry.what} are numbers of GPUs, ascending and each once, as in [2, 4, 8]")
    return tuple(found)


def _nccl(entry: Entry, head: Mapping[str, Any]) -> NcclRates:
    given = entry.mapping((*_HEAD, *_NCCL, "nvls", "call", "error"), _NCCL, example=_NCCL_EXAMPLE)
    own = {key: _head(key, given[key]) for key in _HEAD if key in given}
    return NcclRates(
        **{**head, **own},
        version=given["version"].text(80),
        ll=_fields(given["ll"], NcclLine),
        ll128=_fields(given["ll128"], NcclLine),
        simple=_fields(given["simple"], NcclLine),
        turn=float(given["turn"].rate()),
        rooted_start_s=given["rooted_start"].time(),
        nvls=_fields(given["nvls"], NvlsLine) if "nvls" in given else None,
        call_s=given["call"].time() if "call" in given else 0.0,
        error=_fields(given["error"], FitError) if "error" in given else None,
    )


def _key(field: Field[Any]) -> str:
    return field.name.removesuffix("_s").removesuffix("_bytes")


def _fields(entry: Entry, made: type[Rates]) -> Rates:
    """The numbers of a mapping whose keys are the fields of `made`."""
    known = {_key(field): field for field in fields(made)}
    required = [key for key, field in known.items() if field.default is MISSING]
    given = entry.mapping(known, required, example=f"{{{', '.join(f'{key}: …' for key in required)}}}")
    numbers: dict[str, Any] = {known[key].name: _READ[_kind(known[key])](value) for key, value in given.items()}
    return made(**numbers)


def _kind(field: Field[Any]) -> str:
    return _KINDS.get(field.name, "time")


def write(ours: ExecutionRates | None, nccl: NcclRates | None) -> dict[str, Any]:
    """The section as mappings of text, from which `read` makes equal constants; empty if there are none."""
    first = ours or nccl
    if first is None:
        return {}
    section = _head_text(first)
    if ours is not None:
        section["blocks"] = ours.blocks
        section |= {name: time_text(getattr(ours, f"{name}_s")) for name in ("launch", "announce", "visit")}
        section["ports"] = _texts(ours.ports)
        section["protocols"] = {"simple": _texts(ours.flags), "ll128": _texts(ours.packets)}
        section |= {} if ours.error is None else {"error": _texts(ours.error)}
    if nccl is not None:
        own = {key: text for key, text in _head_text(nccl).items() if text != section[key]}
        lines = {name: _texts(getattr(nccl, name)) for name in LINES}
        turn, rooted_start = _TEXT["rate"](nccl.turn), time_text(nccl.rooted_start_s)
        section["nccl"] = {**own, "version": nccl.version, **lines, "turn": turn, "rooted_start": rooted_start}
        section["nccl"] |= {"call": time_text(nccl.call_s)} if nccl.call_s else {}
        more = {"nvls": nccl.nvls, "error": nccl.error}
        section["nccl"] |= {key: _texts(rates) for key, rates in more.items() if rates is not None}
    return section


def _head_text(rates: ExecutionRates | NcclRates) -> dict[str, Any]:
    origin = rates.measured
    texts = {"source": origin.source, "date": origin.date, "driver": origin.driver}
    measured = {key: text for key, text in texts.items() if text}
    measured |= {} if origin.band is None else {"band": _TEXT["share"](origin.band)}
    return {"hardware": rates.hardware, "measured": measured, "gpus": list(rates.gpus)}


def _texts(rates: PortRates | PacketRates | FlagRates | NcclLine | NvlsLine | FitError) -> dict[str, Any]:
    values = {field: getattr(rates, field.name) for field in fields(rates)}
    # What is 0 unless it was measured goes without saying.
    said = {field: value for field, value in values.items() if value is not None and (value or field.default != 0)}
    return {_key(field): _TEXT[_kind(field)](value) for field, value in said.items()}
