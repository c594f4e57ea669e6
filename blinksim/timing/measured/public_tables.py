"""Tables of published times, in ``models/measured``.

A set is what one page, log or table shows. ``sets.csv`` says on which machine of the catalogue, with which
library, and where it is published; the file of the machine holds the cells. Sizes are counted as nccl-tests
counts them, which is how this package counts them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from blinksim import data_files
from blinksim.collective import COLLECTIVES, busbw_factor
from blinksim.errors import InputError, one_of, unknown
from blinksim.textio.text_files import read_rows, read_words
from blinksim.units import whole

# Meaning of the letters of `Set.quality`.
QUALITIES = read_words("quality")
SLOW = "D"
SetUpName = Literal["graph", "stream", "threads"]
GRAPH, STREAM, THREADS = SET_UPS = get_args(SetUpName)
"""How calls are launched: in a graph, from a stream by a process for each GPU, or by threads of one process."""
LAUNCHED: Mapping[str, str] = {GRAPH: "in a graph", STREAM: "from a stream", THREADS: "by threads"}
_BYTES = ("int8", "uint8")
HALVES = "allgather", "reducescatter"
"""What one allreduce does in turn."""
# So many times what the host takes from call to call, and what it takes does not count.
_BEYOND_HOST = 3
# The sizes that are summed up together: the first of each band, in bytes, and its name.
BANDS = ((0, "below 512 KiB"), (512 * 2**10, "512 KiB to 64 MiB"), (64 * 2**20, "from 64 MiB"))


def band_of(size: int) -> str:
    """Which of `BANDS` a size in bytes is in."""
    return next(name for least, name in reversed(BANDS) if size >= least)


@dataclass(frozen=True, slots=True)
class Set:
    """Where cells come from.

    algorithm: what the library was set to take, empty if it chose by itself; members: the GPUs of every node
    that took part, empty for its first ones. set_up: how calls were launched, one of `SET_UPS`, where the source or
    its times say so.
    """

    name: str
    machine: str
    quality: str
    library: str
    version: str
    algorithm: str
    members: str
    set_up: str
    source: str

    @property
    def aside(self) -> bool:
        """True if it is no figure of what libraries take: told what to take, or reported as slow."""
        return "forced" in self.algorithm or self.quality == SLOW


@dataclass(frozen=True, slots=True)
class Cell:
    """A measured time in seconds.

    dtype: of the elements, empty if it is not published. nvls: whether switches could add: ``on``, ``off``,
    ``n.a.`` or ``unknown``.
    """

    set: Set
    collective: str
    nodes: int
    gpus: int
    dtype: str
    size: int
    placement: str
    nvls: str
    time_s: float

    @property
    def adds_in_switches(self) -> bool:
        """False if NVLS was off, or is not made for the elements: switches do not add bytes."""
        return self.nvls != "off" and self.dtype not in _BYTES

    @property
    def busbw(self) -> float:
        """Bytes/s."""
        return self.size / self.time_s * float(busbw_factor(self.collective, self.gpus))


@cache
def sets() -> Mapping[str, Set]:
    """All sets by name. Raises `FileError` with the line of a row that cannot be used."""
    found: dict[str, Set] = {}

    def add(row: dict[str, str]) -> None:
        name = row.pop("set")
        one_of("quality", row["quality"], QUALITIES)
        if row["set_up"] and row["set_up"] not in SET_UPS:
            raise unknown("set-up", row["set_up"], SET_UPS)
        if name in found:
            raise InputError(f"the set {name} is given twice")
        found[name] = Set(name, **row)

    read_rows(data_files.folder("models") / "measured" / "sets.csv", add, "set of measurements")
    return found


def machines() -> list[str]:
    """The machines of the catalogue of which there are tables, sorted."""
    return sorted({found.machine for found in sets().values()})


@cache
def cells(machine: str) -> Sequence[Cell]:
    """The cells of a machine, in the order of its file; a time that is not published is derived from busbw.

    Raises `FileError` with the line of a row that cannot be used, `InputError` for a machine without tables.
    """
    path = data_files.folder("models") / "measured" / f"{machine}.csv"
    if not path.is_file():
        raise unknown("machine with published measurements", machine, machines())

    def cell(row: dict[str, str]) -> Cell:
        hint = "(the first column of sets.csv beside this file lists them)"
        one = sets()[one_of("set", row["set"], sets(), hint=hint)]
        what = one_of("collective", row["collective"], COLLECTIVES)
        nodes, gpus, size = (whole(row[name], name) for name in ("nodes", "gpus", "size_bytes"))
        if one.machine != machine:
            raise InputError(f"the set {one.name} is of {one.machine}")
        if min(nodes, gpus - 1, size) < 1:
            raise InputError(f"nodes={nodes}, gpus={gpus}, size_bytes={size}: at least 1, 2 and 1")
        if row["time_us"]:
            time = float(row["time_us"]) / 1e6
        else:
            time = size / (float(row["busbw_GBps"]) * 1e9) * float(busbw_factor(what, gpus))
        if time <= 0:
            raise ValueError("a time that is not positive")
        return Cell(one, what, nodes, gpus, row["dtype"], size, row["placement"], row["nvls"], time)

    return read_rows(path, cell, f"measured cell of {machine}")


@cache
def chosen_freely(machine: str, adds: bool, multicast: bool, set_up: str, told: bool) -> Sequence[Cell]:
    """The cells of a machine by libraries that chose for themselves; none for a machine without tables.

    adds: its switches can add. multicast: they are let. set_up: how calls are launched. told: those that
    are `aside`, with switches or without.
    """
    if machine not in machines():
        return ()
    # Where switches can add, libraries let them unless they are set not to.
    unlike = {"off"} if multicast else {"on", "unknown"} if adds else {"on"}
    sums = dict.fromkeys(("allreduce", *HALVES), unlike)
    chosen = [one for one in cells(machine) if told == one.set.aside]
    by_size = sorted(chosen, key=lambda one: one.size)
    # A run is launched in one way: slow calls among quicker ones of more bytes wait for the host too.
    waits = {(one.set, one.collective, one.gpus): one.size for one in by_size if not holds_for(one, set_up)}
    held = (one for one in chosen if one.size > waits.get((one.set, one.collective, one.gpus), 0))
    # Bytes are never added by switches.
    runs = ((one, one.nvls if one.adds_in_switches or not adds else "off") for one in held)
    return [one for one, nvls in runs if told or nvls not in sums.get(one.collective, {"off"})]


@cache
def host_times(set_up: str = STREAM) -> Mapping[str, float]:
    """Seconds from call to call that the host takes, by the sets of one node that were launched in that way.

    That is the least time of such a set.
    """
    alike = dict.fromkeys(one.machine for one in sets().values() if one.set_up == set_up)
    found = [cell for machine in alike for cell in cells(machine) if cell.set.set_up == set_up and cell.nodes == 1]
    return {cell.set.name: cell.time_s for cell in sorted(found, key=lambda cell: -cell.time_s)}


def holds_for(cell: Cell, set_up: str) -> bool:
    """True if a published time is also that of calls launched in another way: the host was not what took so long.

    Where nobody says how calls were launched, they count as those in a graph, and by threads.
    """
    said = cell.set.set_up
    alike = cell.nodes > 1 or said == set_up or (said in ("", GRAPH) and set_up != STREAM)
    return alike or beyond_host(cell.time_s, None if set_up == STREAM else cell.set)


def beyond_host(time_s: float, one: Set | None = None) -> bool:
    """True if the host that launched the calls of a set, or by default any from a stream, is no part of a time."""
    host = host_times(one.set_up)[one.name] if one else max(host_times().values(), default=0.0)
    return time_s >= _BEYOND_HOST * host
