"""The link classes of a machine file, and the choice of one table of rates among those that the file holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from blinksim.errors import InputError, unknown
from blinksim.formats import rate_tables
from blinksim.formats.rate_tables import RateTable
from blinksim.textio.yaml_nodes import Entry
from blinksim.topology.graph import Link

EXAMPLE = "nvlink: {bandwidth: 25GB/s, latency: 0.6us, overhead: 1.3us, source: data sheet}"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True)
class LinkClass:
    """What a machine file says of a class of links.

    bandwidth: bytes/s of one lane in one direction, by rate table; latency, overhead: seconds; source: of each number;
    assumed: the numbers that no document prints.
    """

    name: str
    bandwidth: Mapping[str, Fraction]
    latency: float
    overhead: float
    source: str
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outline:
    """The head of a machine file.

    rates: name of the table that plain bandwidths belong to; structure: what is assumed of devices and links.
    """

    name: str
    title: str
    source: str
    rates: str
    link_classes: Mapping[str, LinkClass]
    maker: str = ""
    year: int | None = None
    structure: tuple[str, ...] = ()

    def assumptions(self) -> list[str]:
        """What no document prints: of the structure, then of each class."""
        classes = (f"{name}: {', '.join(found.assumed)}" for name, found in self.link_classes.items() if found.assumed)
        return [*self.structure, *classes]

    def rate_names(self) -> list[str]:
        """Names of the rate tables that the file holds, `nominal` (or what stands in for it) first."""
        return list(dict.fromkeys([self.rates, *(name for c in self.link_classes.values() for name in c.bandwidth)]))

    def at_rates(self, rates: str | RateTable) -> tuple[dict[str, LinkClass], str]:
        """The classes with the one bandwidth in force, under the key `nominal`, and the topology's `rates` text.

        Raises `InputError` for a name or a class that the file does not have.
        """
        if isinstance(rates, RateTable):
            rates.check_machine(self.name)
            classes = dict(self.link_classes)
            for name, row in rates.classes.items():
                if name not in classes:
                    raise unknown(f"link class in the rates {rates.name!r} for {self.name}:", name, classes)
                old = classes[name]
                classes[name] = replace(
                    old,
                    bandwidth=old.bandwidth if row.bandwidth is None else {"nominal": row.bandwidth},
                    latency=old.latency if row.latency is None else row.latency,
                    overhead=old.overhead if row.overhead is None else row.overhead,
                )
            return classes, rate_tables.label(rates.name, [c for c in classes if c not in rates.classes], self.rates)
        known = self.rate_names()
        if rates == "nominal" or rates == self.rates:
            return dict(self.link_classes), self.rates
        if rates not in known:
            raise unknown(f"rates for {self.name}:", rates, known, hint="(or a rates file, such as rates.yaml)")
        missing = [name for name, c in self.link_classes.items() if rates not in c.bandwidth]
        chosen = {
            name: replace(c, bandwidth={"nominal": c.bandwidth.get(rates, c.bandwidth["nominal"])})
            for name, c in self.link_classes.items()
        }
        return chosen, rate_tables.label(rates, missing)


def read(name: str, key: Entry, value: Entry, resolved: bool) -> LinkClass:
    """The link class `name` of a machine file; resolved: whether the file says that it holds one table only."""
    value.what = f"link class {name}"
    needed = ("bandwidth", "latency", "overhead", "source")
    given = value.mapping((*needed, "assumed"), needed, example=EXAMPLE)
    try:
        Link("a", "b", name, Fraction(1))
    except InputError as error:
        raise key.error(str(error)) from None
    width = given["bandwidth"]
    if not width.is_mapping:
        bandwidth = {"nominal": width.rate()}
    elif resolved:
        raise width.error(f"this file states which rates it holds (key rates); {width.what} must be one number")
    else:
        bandwidth = {}
        for table, (place, rate) in width.named(example="{nominal: 25GB/s, nccl: 20GB/s}").items():
            if not _NAME.fullmatch(table):
                raise place.error(f"{table!r} cannot name rates: use letters, digits, _ and -, a letter first")
            bandwidth[table] = rate.rate()
        if "nominal" not in bandwidth:
            raise width.error(f"{width.what} has no 'nominal'; add the data sheet's figure, as in nominal: 25GB/s")
    origin = given["source"]
    if origin.is_mapping:
        numbers = (*bandwidth, "bandwidth", "latency", "overhead")
        origins = origin.mapping(dict.fromkeys(numbers), example="{nominal: data sheet, latency: assumption}")
        source = "; ".join(f"{number}: {text.text()}" for number, text in origins.items())
    else:
        source = origin.text()
    assumed = _assumed(given["assumed"], (*bandwidth, "latency", "overhead")) if "assumed" in given else ()
    return LinkClass(name, bandwidth, given["latency"].time(), given["overhead"].time(), source, assumed)


def _assumed(entry: Entry, numbers: tuple[str, ...]) -> tuple[str, ...]:
    """The numbers that ``assumed: true`` or a list of their names marks."""
    if entry.is_list:
        return tuple(item.choice(numbers, "number of the class") for item in entry.items(example="[latency]"))
    return numbers if entry.choice(("true", "false"), "answer (or list of numbers)") == "true" else ()
