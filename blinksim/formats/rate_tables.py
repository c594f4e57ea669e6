"""Tables of link rates in YAML (``--rates FILE``, calibrations), and the link classes that choose among them.

name: measured-2024-05
machine: dgx1-v100            # optional: refuse the table for any other machine
source: nccl-tests on our second box
classes:
  nvlink: {bandwidth: 22.9GB/s, latency: 1us, overhead: 1us}    # of one lane, one direction; each optional
times:                        # optional: what jobs took by size, which the library takes again
  allreduce on gpu[0-7]: {4MiB: 52.2us, 16MiB: 121us}
execution: {…}                # optional: what it takes to run collectives (`blinksim.timing.measured_constants`)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Any

from blinksim.collective import ALLTOALLV, COLLECTIVES, OF_EXPERTS, Collective
from blinksim.errors import BlinksimError, InputError, blamed_on, one_of
from blinksim.textio import name_ranges, text_files, yaml_nodes
from blinksim.textio.yaml_nodes import Entry, dump, rate_text, time_text
from blinksim.timing.measured_constants import ExecutionRates, NcclRates, read_section, write_section
from blinksim.topology.cluster import nodes_of
from blinksim.topology.edits import in_ranges
from blinksim.topology.graph import Link, Topology

_NUMBERS = ("bandwidth", "latency", "overhead")
_TIMES = '{"allreduce on gpu[0-7]": {4MiB: 52.2us}}'
_EXAMPLE = "name: measured, classes: {nvlink: {bandwidth: 22.9GB/s}}"
# The key of a job: collective, members, nodes. Without the last part it stands for both.
_JOB = re.compile(r"(\w+) on (\S+)( of \S+)?( with(out)? NVLS)?")


@dataclass(frozen=True, slots=True)
class ClassRates:
    """What a table says of a link class: bytes/s of a lane and direction, seconds, seconds; None where it is silent."""

    bandwidth: Fraction | None = None
    latency: float | None = None
    overhead: float | None = None

    @property
    def stated(self) -> dict[str, Any]:
        """The numbers that the table has, by name."""
        return {name: value for name in _NUMBERS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class RateTable:
    """A named table of rates. machine: name of the only machine that it is for, or empty.

    execution, nccl_rates: what was measured of our programs and of NCCL; None leaves what the machine has.
    times: seconds by bytes that jobs took (`job_of`). places: makes an error at a job's line in its file.
    own: True of a user's file, beside whose links constants of programs that others measured do not stand.
    """

    name: str
    classes: Mapping[str, ClassRates]
    machine: str = ""
    source: str = ""
    execution: ExecutionRates | None = None
    nccl_rates: NcclRates | None = None
    own: bool = False
    times: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    places: Mapping[str, Callable[[str], BlinksimError]] = field(default_factory=dict, compare=False)

    def times_of(self, job: str) -> Mapping[int, float]:
        """What a job took (`job_of`); by its name without NVLS's part, unless the table has it with that."""
        return self.times.get(job) or self.times.get(re.sub(" with(out)? NVLS$", "", job), {})


def job_of(collective: Collective, part: Topology, multicast: bool) -> str:
    """What the table calls a job on a part of its machine; multicast: switches may add (NVLS)."""
    nodes, members, of = nodes_of(part, part.members), in_ranges(part.members), ""
    split = [[part.members[rank].partition(".")[::2] for rank in ranks] for ranks in nodes]
    if len(nodes) > 1 and len({tuple(name for _, name in each) for each in split}) == 1:
        members = in_ranges(name for _, name in split[0])
        of = f" of {','.join(in_ranges(each[0][0] for each in split))}"
    nvls = f" {'with' if multicast else 'without'} NVLS" if part.in_network else ""
    return f"{collective.name} on {','.join(members)}{of}{nvls}"


def read(path: str | os.PathLike[str]) -> RateTable:
    """The table in the file at `path`; raises `FileError` with line and column for anything amiss."""
    return _of(text_files.read_text(path, what="rates file"), os.fspath(path))


# As every question of a machine at other rates asks for the tables that there are.
@lru_cache(maxsize=64)
def _of(text: str, path: str) -> RateTable:
    root = yaml_nodes.load(path, text, "rates file")
    keys = root.mapping(("name", "machine", "source", "classes", "times", "execution"), ("name",), example=_EXAMPLE)
    execution, nccl_rates = read_section(keys["execution"]) if "execution" in keys else (None, None)
    classes: dict[str, ClassRates] = {}
    named = keys["classes"].named(example="{nvlink: {bandwidth: 22.9GB/s}}") if "classes" in keys else {}
    for name, (key, value) in named.items():
        value.what = f"link class {name}"
        given = value.mapping(_NUMBERS, example="{bandwidth: 22.9GB/s, latency: 1us}")
        if not given:
            raise key.error(f"link class {name} gives no number; leave it out or add its bandwidth")
        numbers = dict[str, Any]((key, x.rate() if key == "bandwidth" else x.time()) for key, x in given.items())
        classes[name] = ClassRates(**numbers)
    times, places = dict[str, dict[int, float]](), dict[str, Callable[[str], BlinksimError]]()
    for name, (key, row) in (keys["times"].named(example=_TIMES) if "times" in keys else {}).items():
        places[name] = key.error
        times[name] = {size.size(): time.time() for size, time in row.named(example=_TIMES).values()}
        if 0 in times[name].values():
            raise row.error(f"{row.what}: times must be above 0")
    if not (classes or times or "execution" in keys):
        place = keys.get("classes", root)
        raise place.error(f"{place.what} names no link class and nothing else was measured; add one, as in {_EXAMPLE}")
    machine, source = (keys[key].text() if key in keys else "" for key in ("machine", "source"))
    return RateTable(keys["name"].text(80), classes, machine, source, execution, nccl_rates, False, times, places)


def write(table: RateTable) -> str:
    """YAML text that `read` turns into an equal table."""
    classes = {
        name: {key: (rate_text if key == "bandwidth" else time_text)(value) for key, value in row.stated.items()}
        for name, row in table.classes.items()
    }
    head = {"name": table.name, "machine": table.machine, "source": table.source}
    section = write_section(table.execution, table.nccl_rates)
    times = {job: {f"{size}B": time_text(at) for size, at in row.items()} for job, row in table.times.items()}
    parts = {key: text for key, text in head.items() if text}, {"classes": classes}, {"times": times}
    return "".join(dump(part) for part in (*parts, {"execution": section}) if any(part.values()))


def label(name: str, missing: list[str], otherwise: str = "nominal") -> str:
    """The `rates` text of a topology: the table's name, and the classes that it does not have."""
    return f"{name} ({', '.join(missing)}: {otherwise})" if missing else name


def check(topology: Topology, table: RateTable) -> None:
    """Raises `InputError` for a class or a member of a job that the machine does not have.

    Also for a table made for another machine, and for a bandwidth of a class whose lanes differ on this one.
    """
    if table.machine not in ("", topology.name):
        of = f"for {table.machine}, not for {topology.name}"
        raise InputError(f"the rates {table.name!r} are {of}; choose others")
    for kind, row in table.classes.items():
        one_of(f"link class in the rates {table.name!r} for {topology.name}:", kind, topology.edited_classes)
        if row.bandwidth is not None and len({link.lane_bandwidth for link in topology.links if link.kind == kind}) > 1:
            why = f"have several bandwidths, which the rates {table.name!r} would make equal"
            cure = "write the machine as YAML with a link class for each"
            raise InputError(f"{kind} lanes of {topology.name} {why}; {cure}")
    node = re.compile(r"^n[0-9]+[.]")
    holders = {node.sub("", name) for name in topology.holders}
    for job, place in table.places.items():
        with blamed_on(place):
            if not (said := _JOB.fullmatch(job)):
                raise InputError(f"{job!r} is not a job and its members; write one as in {_TIMES}")
            one_of("collective", said[1], (*COLLECTIVES, ALLTOALLV, *OF_EXPERTS))
            for name in chain(*map(name_ranges.expand, said[2].split(","))):
                one_of(f"member of {topology.name}:", node.sub("", name), holders)


def apply(topology: Topology, table: RateTable) -> Topology:
    """`topology` with the table's numbers for links of the classes that it names; raises as `check` does."""
    check(topology, table)
    fabric = topology.fabric
    numbers: dict[str, dict[str, Any]] = {kind: {} for kind in topology.edited_classes}
    for kind, row in table.classes.items():
        numbers[kind] = {key.replace("band", "lane_band"): value for key, value in row.stated.items()}
    wide = {kind for kind, row in table.classes.items() if row.bandwidth}
    measured = table.own and not wide.isdisjoint(topology.default_links())
    return replace(
        topology,
        execution=table.execution or (None if measured else topology.execution),
        nccl_rates=table.nccl_rates or topology.nccl_rates,
        links=tuple(replace(link, **numbers[link.kind]) for link in topology.links),
        fabric=replace(fabric, **numbers[fabric.kind]) if fabric else None,
        rates=label(table.name, [kind for kind in numbers if kind not in table.classes], topology.rates),
    )


LINK_EXAMPLE = "nvlink: {bandwidth: 25GB/s, latency: 0.6us, overhead: 1.3us, source: data sheet}"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True)
class LinkClass:
    """What a machine file says of a class of links.

    bandwidth: bytes/s of one lane in one direction, by rate table; latency, overhead: seconds; source: of
    each number; assumed: the numbers that no document prints.
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
        classes = (f"{name}: {', '.join(rates.assumed)}" for name, rates in self.link_classes.items() if rates.assumed)
        return [*self.structure, *classes]

    def rate_names(self) -> list[str]:
        """Names of the rate tables that the file holds, `nominal` (or what stands in for it) first."""
        return list(dict.fromkeys([self.rates, *(name for c in self.link_classes.values() for name in c.bandwidth)]))

    def at_rates(self, rates: str) -> tuple[dict[str, LinkClass], str]:
        """The classes with the one bandwidth in force, under the key `nominal`, and the topology's `rates` text.

        Raises `InputError` for a name that the file does not have.
        """
        known = self.rate_names()
        if rates == "nominal" or rates == self.rates:
            return dict(self.link_classes), self.rates
        one_of(f"rates for {self.name}:", rates, known, hint="(or a rates file, such as rates.yaml)")
        missing = [name for name, c in self.link_classes.items() if rates not in c.bandwidth]
        chosen = {
            name: replace(c, bandwidth={"nominal": c.bandwidth.get(rates, c.bandwidth["nominal"])})
            for name, c in self.link_classes.items()
        }
        return chosen, label(rates, missing)


def read_link_class(name: str, key: Entry, value: Entry, resolved: bool) -> LinkClass:
    """The link class `name` of a machine file; resolved: whether the file says that it holds one table only."""
    value.what = f"link class {name}"
    needed = ("bandwidth", "latency", "overhead", "source")
    given = value.mapping((*needed, "assumed"), needed, example=LINK_EXAMPLE)
    with blamed_on(key.error):
        Link("a", "b", name, Fraction(1))
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
    origin, numbers, assumed = given["source"], (*bandwidth, "latency", "overhead"), set[str]()
    if origin.is_mapping:
        example = "{nominal: data sheet, latency: assumption}"
        origins = origin.mapping(dict.fromkeys((*numbers, "bandwidth")), example=example)
        source = "; ".join(f"{number}: {text.text()}" for number, text in origins.items())
        # What has no source of its own is nobody's figure.
        assumed = set(numbers) - set(origins) - set(bandwidth if "bandwidth" in origins else ())
    else:
        source = origin.text()
    if "assumed" in given:
        # ``true``, or a list of names.
        marked = given["assumed"]
        if marked.node.tag.endswith(":seq"):
            assumed |= {item.choice(numbers, "number of the class") for item in marked.items(example="[latency]")}
        elif marked.choice(("true", "false"), "answer (or list of numbers)") == "true":
            assumed = set(numbers)
    named = tuple(number for number in numbers if number in assumed)
    return LinkClass(name, bandwidth, given["latency"].time(), given["overhead"].time(), source, named)
