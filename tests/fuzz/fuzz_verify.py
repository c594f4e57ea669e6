"""Wrong and right schedules by symmetry: is what `verify` accepts right, and is what it refuses wrong?

    python tests/fuzz/fuzz_verify.py --mutants 20000 --seed 1

takes right files of version 2 of every collective on many machines, changes collective, root, group, shares, routes,
sends, labels or machine, and holds `verify` against the same file written out in full and run by NumPy
(`written_out`). Prints what it found, one JSON line each, and a line of figures. A mutant is known by seed and
number; `--first N --mutants 1` does one again. A finding is a wrong schedule that is accepted, a right one that is
refused, a rate that is not what the links allow, and an exception that is no refusal.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from math import gcd, prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import written_out
from written_out import PER_SEND, Ints, Turns, packed, unpacked

import blinksim as bs
from blinksim.collective import COLLECTIVES, ROOTED, Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.formats.schedule_json import columns_of, compact_from_document
from blinksim.schedule.candidate import SymmetricSchedule
from blinksim.schedule.model import ARRAYS, Schedule, as_schedule
from blinksim.topology import symmetry
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import CommutingGroup
from blinksim.units import exact_GBps

Plain = dict[str, Any]
# Of a schedule before its images are taken.
MOST_SENDS = 160
# Mutants in a row of one schedule, since to make that takes longer.
IN_A_ROW = 8
COLUMNS = ("device_sort", "device_node", "link_sort", "link_src", "link_dst", "link_bus", "members", "relays")
MACHINES = (
    "ring:4", "ring:6", "torus:3x3", "full:4", "switch:4", "mesh:3x3", "hypercube:3", "dgx1-v100", "k2200-ntb",
    "torus:2x2x2", "line:4", "hgx-h100", "mi250", "rails:3x2", "fattree:4x2",
)  # fmt: skip
ALGORITHMS = ("packed", "ring", "direct", "chain", "binary", "rings", "recursive_doubling")
# Schedules whose switches add and multicast, whose ranks swap what they have, and exchanges of unequal blocks.
MORE = (
    ("hgx-h100", "allreduce", "nvls"), ("hgx-h100", "allgather", "packed_in_network"),
    ("hgx-h100", "reducescatter", "packed_in_network"), ("fattree:4x2", "allreduce", "packed_in_network"),
    ("full:4", "allreduce", "recursive_doubling"), ("hypercube:3", "allreduce", "recursive_doubling"),
    ("ring:4", "alltoallv", "packed"), ("full:4", "alltoallv", "direct"), ("torus:3x3", "alltoallv", "packed"),
)  # fmt: skip
SAMPLES = [*((machine, name, "") for machine in MACHINES for name in COLLECTIVES), *MORE]
random.Random(7).shuffle(SAMPLES)


@dataclass(frozen=True)
class Sample:
    """A right file with plain columns, and symmetries of its machine, whether they fit the file or not."""

    name: str
    plain: Plain
    turns: Turns


# --- right files ------------------------------------------------------------------------------------------------------


@cache
def sample(number: int) -> Sample | None:
    """The schedule of a name, by symmetries that leave its root in place; None where no algorithm builds it."""
    machine, name, algorithm = SAMPLES[number]
    part = bs.load(machine).select()
    known, random_ = _symmetries(part), random.Random(number)
    collectives = (
        [Collective(name, root) for root in range(part.ranks)] if name in ROOTED else [_asked(name, part.ranks)]
    )
    groups = [(one, _group(part, known, one, random_)) for one in random_.sample(collectives, len(collectives))]
    collective, group = next((found for found in groups if found[1].generators), groups[0])
    for one in (algorithm,) if algorithm else ALGORITHMS[number % len(ALGORITHMS) :] + ALGORITHMS:
        try:
            full = bs.synthesize(part, collective, one).schedule
        except BlinksimError:
            continue
        if full.sends <= MOST_SENDS:
            return Sample(f"{full.algorithm} {collective} on {machine}", averaged(full, group), Turns.of(part, known))
    return None


def _asked(name: str, ranks: int) -> Collective:
    if name != "alltoallv":
        return Collective(name)
    # The same from every rank to the one that is so many places on.
    on = [7 * places * (2 + places % 3) for places in range(ranks)]
    rows = [[on[(j - i) % ranks] for j in range(ranks)] for i in range(ranks)]
    return Collective(name, traffic=bs.Traffic(rows))


def _symmetries(part: Topology) -> list[Ints]:
    """Those that are known of a machine and their products, as many as are quickly looked at."""
    encoded = symmetry.encoded(part)
    first = [np.asarray(one, dtype=np.int64) for one in symmetry.searched(part)][:8]
    found = {tuple(one.tolist()): one for one in [*first, *(a[b] for a, b in product(first, first))]}
    return [one for one in found.values() if encoded.image(one) is not None]


def _group(part: Topology, known: list[Ints], collective: Collective, random_: random.Random) -> CommutingGroup:
    """One to three symmetries, in any order, that a file may have as generators."""
    members = part.member_places
    where = np.arange(part.ranks)
    group = CommutingGroup.of(part, ())
    for one in random_.sample(known, len(known)):
        rank = np.argsort(members)[np.searchsorted(np.sort(members), one[members])]
        if (collective.rooted and rank[collective.root] != collective.root) or (one[members] == members).all():
            continue
        traffic = collective.traffic
        if traffic is not None and (traffic.matrix != traffic.matrix[np.ix_(rank[where], rank[where])]).any():
            continue
        try:
            group = CommutingGroup.of(part, [*group.generators, one])
        except InputError:
            continue
        if len(group.generators) == 3 or random_.random() < 0.3:
            break
    return group


def averaged(full: Schedule, group: CommutingGroup) -> Plain:
    """All images of a schedule, each with its part of the shares: right, if the schedule is."""
    # The same schedule may have been made before, on an equal machine.
    times = SymmetricSchedule(full, CommutingGroup.of(full.topology, group.generators)).times
    share = full.share_num * (prod(group.orders) // times)
    plain = {
        "format": "blinksim-schedule", "version": 2, "algorithm": full.algorithm, "form": full.form,
        "collective": {"name": full.collective.name}, "machine": columns_of(full.topology),
        "share_den": full.share_den * prod(group.orders), "bound": {},
        **{name: getattr(full, name).astype(np.int64) for name in ARRAYS}, "share_num": share.astype(np.int64),
        "generators": list(group.generators),
    }  # fmt: skip
    if full.collective.rooted:
        plain["collective"]["root"] = full.collective.root
    if full.collective.traffic is not None:
        plain["collective"]["traffic"] = full.collective.traffic.matrix.ravel().tolist()
    for name in COLUMNS:
        plain["machine"][name] = unpacked(plain["machine"][name])
    return plain


def document(plain: Plain) -> dict[str, Any]:
    """The JSON of a file."""
    machine = plain["machine"] | {name: packed(plain["machine"][name]) for name in COLUMNS}
    columns = {name: packed(plain[name]) for name in ARRAYS}
    return plain | columns | {"machine": machine, "generators": [packed(one) for one in plain["generators"]]}


def opened(plain: Plain) -> tuple[Schedule, list[Ints]]:
    """The chunks of a file and its generators, by a reader of machines that knows nothing of symmetry."""
    bare = compact_from_document("", document(plain | {"generators": []}))
    assert isinstance(bare, SymmetricSchedule)
    return bare.base, plain["generators"]


# --- changes ----------------------------------------------------------------------------------------------------------


def mutant(one: Sample, random_: random.Random) -> tuple[Plain, list[str]]:
    """A file with one to three changes, and their names; its shares may be made to add up again."""
    plain, done = deepcopy(one.plain), list[str]()
    for _ in range(random_.choice((1, 1, 2, 3))):
        change = random_.choice(CHANGES)
        change(random_, plain, one)
        done.append(change.__name__.strip("_"))
    if random_.random() < 0.5:
        _made_whole(plain)
        done.append("made whole")
    return plain, done


def _made_whole(plain: Plain) -> None:
    """Shares scaled so that those of all images add up to what the collective moves."""
    try:
        base, generators = opened(plain)
        turns = Turns.of(base.topology, generators)
        times = [np.prod([turns.orders[i] for i in mine], dtype=object) for mine in written_out.turning(base, turns)]
        total = Fraction(int((base.share_num.astype(object) * times).sum()), base.share_den)
        factor = base.collective.promised(base.topology.ranks) / total
    except (BlinksimError, ValueError, ZeroDivisionError):
        return
    share = (base.share_num.astype(object) * factor.numerator).tolist()
    common = gcd(base.share_den * factor.denominator, *share)
    if base.share_den * factor.denominator // common <= 2**40:
        plain["share_den"] = base.share_den * factor.denominator // common
        plain["share_num"] = np.array([one // common for one in share], dtype=np.int64)


def _collective(random_: random.Random, plain: Plain, _: Sample) -> None:
    """Another collective, whose labels the chunks may take over."""
    name, ranks = random_.choice(COLLECTIVES), len(plain["machine"]["members"])
    plain["collective"] = {"name": name} | ({"root": random_.randrange(ranks)} if name in ROOTED else {})
    if random_.random() < 0.8:
        asked = Collective(name)
        for label, who in (("origin", asked.starts), ("target", asked.ends)):
            if who != "one rank":
                plain[label] = np.full_like(plain[label], -1)
            elif (plain[label] < 0).any():
                other = plain["target" if label == "origin" else "origin"]
                fresh = [random_.randrange(ranks) for _ in other]
                plain[label] = other.copy() if random_.random() < 0.5 else np.array(fresh, dtype=np.int64)


def _root(random_: random.Random, plain: Plain, _: Sample) -> None:
    if "root" in plain["collective"]:
        plain["collective"]["root"] = random_.randrange(len(plain["machine"]["members"]))


def _generators(random_: random.Random, plain: Plain, one: Sample) -> None:
    """Generators left out, repeated, joined, exchanged or added."""
    have, count = plain["generators"], len(plain["machine"]["device_sort"])
    at = random_.randrange(len(have)) if have else 0
    match random_.randrange(7):
        case 0 if have:
            del have[at]
        case 1 if have:
            have[at] = have[at][have[at]]
        case 2 if len(have) > 1:
            have[at] = have[at][have[at - 1]]
        case 3 if have:
            have[at] = np.argsort(have[at])
        case 4 if have:
            a, b = random_.randrange(count), random_.randrange(count)
            have[at][[a, b]] = have[at][[b, a]]
        case 5 if have:
            have.append(have[at].copy())
        case _:
            have.insert(random_.randint(0, len(have)), random_.choice(one.turns.devices).copy())


def _shares(random_: random.Random, plain: Plain, _: Sample) -> None:
    """Shares moved from one chunk to another, doubled, or split off."""
    share = plain["share_num"]
    a, b = random_.randrange(len(share)), random_.randrange(len(share))
    match random_.randrange(4):
        case 0:
            part = random_.randint(0, int(share[a]))
            share[a] -= part
            share[b] += part
        case 1:
            share[[a, b]] = share[[b, a]]
        case 2:
            share[a] = random_.choice((0, 1, 2 * share[a], share[a] + 1))
        case _:
            plain["share_den"] *= random_.choice((2, 3))


def _chunk_split(random_: random.Random, plain: Plain, _: Sample) -> None:
    """A chunk in two halves, which differ in nothing."""
    chunk, chunks = random_.randrange(len(plain["share_num"])), len(plain["share_num"])
    for name in ("share_num", "origin", "target"):
        plain[name] = np.append(plain[name], plain[name][chunk])
    whole = 2 * plain["share_num"]
    whole[[chunk, chunks]] //= 2
    plain["share_num"], plain["share_den"] = whole, 2 * plain["share_den"]
    rows = np.sort(np.concatenate([np.arange(len(plain["chunk"])), np.flatnonzero(plain["chunk"] == chunk)]))
    second = np.flatnonzero(rows[1:] == rows[:-1])
    for name in PER_SEND:
        plain[name] = plain[name][rows]
    plain["chunk"][second] = chunks


def _chunk_turned(random_: random.Random, plain: Plain, one: Sample) -> None:
    """A chunk by one of its images, or by that of its sends or labels alone."""
    number = random_.randrange(len(one.turns.devices))
    goes, links = one.turns.devices[number], one.turns.links[number]
    chunk, half = random_.randrange(len(plain["share_num"])), random_.random()
    member = plain["machine"]["members"]
    rank = {int(place): order for order, place in enumerate(member)}
    for name in ("origin", "target") if half < 0.9 else ():
        if 0 <= plain[name][chunk] < len(member):
            plain[name][chunk] = rank.get(int(goes[member[plain[name][chunk]]]), 0)
    rows: list[int] = np.flatnonzero(plain["chunk"] == chunk).tolist() if half > 0.1 else []
    for row in rows:
        plain["src"][row], plain["dst"][row] = goes[plain["src"][row]], goes[plain["dst"][row]]
        start = plain["route_start"][plain["route"][row] : plain["route"][row] + 2]
        _take(plain, int(row), links[plain["route_links"][start[0] : start[1]]])


def _take(plain: Plain, row: int, way: Ints) -> None:
    """A route of its own for a send."""
    plain["route"][row] = len(plain["route_start"]) - 1
    plain["route_links"] = np.concatenate([plain["route_links"], way])
    plain["route_start"] = np.append(plain["route_start"], len(plain["route_links"]))


def _sends(random_: random.Random, plain: Plain, _: Sample) -> None:
    """A send left out, doubled, turned round, or with another entry in one of its columns."""
    count = len(plain["chunk"])
    if not count:
        return
    a, b = random_.randrange(count), random_.randrange(count)
    match random_.randrange(8):
        case 0 | 1:
            rows = np.delete(np.arange(count), a) if random_.random() < 0.6 else np.insert(np.arange(count), a, a)
            for name in PER_SEND:
                plain[name] = plain[name][rows]
        case 2:
            name = random_.choice(("chunk", "src", "dst", "op", "route", "channel"))
            plain[name][[a, b]] = plain[name][[b, a]]
        case 3:
            plain["op"][a] = 1 - plain["op"][a]
        case 4:
            _reorder(plain, a, int(plain["step"][b]))
        case 5:
            # Another order within the steps, which is that of the connections.
            order = np.lexsort((np.array(random_.sample(range(count), count)), plain["step"]))
            for name in PER_SEND:
                plain[name] = plain[name][order]
            plain["channel"][:] = 0
        case 6:
            _reorder(plain, a, max(0, int(plain["step"][a]) + random_.choice((-1, 1))))
        case _:
            plain["channel"][a] = random_.randrange(3)


def _reorder(plain: Plain, row: int, step: int) -> None:
    plain["step"][row] = step
    order = np.argsort(plain["step"], kind="stable")
    for name in PER_SEND:
        plain[name] = plain[name][order]


def _routes(random_: random.Random, plain: Plain, _: Sample) -> None:
    """A send over another route, with its ends or with those of the send."""
    machine, count = plain["machine"], len(plain["chunk"])
    if not count:
        return
    row = random_.randrange(count)
    src, dst = plain["src"][row], plain["dst"][row]
    out = np.flatnonzero(machine["link_src"] == src)
    match random_.randrange(4):
        case 0 if len(out):
            link = random_.choice(out.tolist())
            plain["dst"][row] = machine["link_dst"][link]
            _take(plain, row, np.array([link]))
        case 1:
            second = {int(machine["link_src"][j]): j for j in np.flatnonzero(machine["link_dst"] == dst).tolist()}
            ways = [(i, second[place]) for i in out.tolist() if (place := int(machine["link_dst"][i])) in second]
            if ways:
                _take(plain, row, np.array(random_.choice(ways)))
        case 2:
            # There and back again, and then the way that it had.
            link = int(plain["route_links"][plain["route_start"][plain["route"][row]]])
            ends = machine["link_dst"][link], machine["link_src"][link]
            back = np.flatnonzero((machine["link_src"] == ends[0]) & (machine["link_dst"] == ends[1]))
            start = plain["route_start"][plain["route"][row] : plain["route"][row] + 2]
            _take(plain, row, np.array([link, *back[:1], *plain["route_links"][start[0] : start[1]]]))
        case _:
            plain["route_links"][random_.randrange(len(plain["route_links"]))] = random_.randrange(
                len(machine["link_src"])
            )


def _labels(random_: random.Random, plain: Plain, _: Sample) -> None:
    name, ranks = random_.choice(("origin", "target")), len(plain["machine"]["members"])
    plain[name][random_.randrange(len(plain[name]))] = random_.randrange(-1, ranks)


def _form(random_: random.Random, plain: Plain, _: Sample) -> None:
    plain["form"] = random_.choice(("forest", "steps"))


def _machine(random_: random.Random, plain: Plain, _: Sample) -> None:
    """Other figures of a sort, one link or device of another sort, another bus, other members or their order."""
    machine = plain["machine"]
    sorts, devices = machine["link_sorts"], machine["device_sorts"]
    link, device = random_.randrange(len(machine["link_sort"])), random_.randrange(len(machine["device_sort"]))
    match random_.randrange(9):
        case 0:
            random_.choice(sorts)["lane_bandwidth_Bps"] = str(random_.choice((10**9, 3 * 10**9, "20000000000/3")))
        case 1 | 2:
            sorts.append(dict(sorts[int(machine["link_sort"][link])]))
            key, value = random_.choice(
                (("lanes", 5), ("latency_s", 5e-6), ("kind", "odd"), ("lane_bandwidth_Bps", "7"))
            )
            sorts[-1][key] = value
            machine["link_sort"][link] = len(sorts) - 1
        case 3 if random_.random() < 0.6:
            # What leaves a device shares a bus, but perhaps for one link.
            machine["bus_names"] = [f"bus{i}" for i in range(len(machine["device_sort"]))]
            machine["link_bus"] = machine["link_src"].copy()
            if random_.random() < 0.5:
                machine["link_bus"][link] = random_.choice((-1, device))
        case 3:
            machine["bus_names"] = machine["bus_names"] or ["bus0"]
            chosen = random_.sample(range(len(machine["link_bus"])), random_.randint(1, 3))
            machine["link_bus"][chosen] = random_.randrange(-1, len(machine["bus_names"]))
        case 4:
            random_.shuffle(order := machine["members"].tolist())
            machine["members"] = np.array(order, dtype=np.int64)
        case 5:
            out = random_.randrange(len(machine["members"]))
            machine["relays"] = np.append(machine["relays"], machine["members"][out])
            machine["members"] = np.delete(machine["members"], out)
        case 6:
            devices.append(dict(devices[int(machine["device_sort"][device])]))
            if random_.random() < 0.5:
                devices[-1]["capacity_Bps"] = random_.choice(("1000000000", "30000000000"))
            else:
                devices[-1]["can"] = random_.sample(devices[-1]["can"], len(devices[-1]["can"]) - 1) or ["forward"]
            machine["device_sort"][device] = len(devices) - 1
        case 7:
            one = random_.choice(devices)
            one["capacity_Bps"] = random_.choice(("1000000000", "30000000000"))
        case _:
            name = random_.choice(("link_src", "link_dst", "link_sort", "device_sort"))
            a, b = (random_.randrange(len(machine[name])) for _ in "ab")
            machine[name][[a, b]] = machine[name][[b, a]]


CHANGES: tuple[Callable[[random.Random, Plain, Sample], None], ...] = (
    _collective, _collective, _root, _root, _generators, _generators, _generators, _shares, _chunk_split, _chunk_turned,
    _chunk_turned, _sends, _routes, _labels, _form, _machine, _machine,
)  # fmt: skip


# --- both verdicts ----------------------------------------------------------------------------------------------------


def faults(plain: Plain) -> tuple[list[str], Fraction | None]:
    """What is wrong with a file written out and run, and the rate that its loads allow."""
    base, generators = opened(plain)
    try:
        turns = Turns.of(base.topology, generators)
    except ValueError as error:
        return [f"group: {error}"], None
    root = base.collective.root if base.collective.rooted else None
    if found := next(written_out.wrong_group(root, turns), ""):
        return [f"group: {found}"], None
    full = written_out.written_out(base, turns)
    found = next(written_out.wrong(full), "")
    if not found and base.form == "steps":
        # Connections keep the order in which blinksim writes the images out.
        found = next(written_out.wrong_waits(as_schedule(compact_from_document("", document(plain)))), "")
    return ([found], None) if found else ([], written_out.rate(full))


def compared(plain: Plain, path: Path) -> tuple[str, str]:
    """What became of a file (accepted, refused, unread, too large), and what is wrong with that."""
    path.write_text(json.dumps(document(plain)), encoding="utf-8")
    try:
        verdict = bs.verify_file(path)
        ok, reasons = verdict.ok, verdict.reasons
    except BlinksimError as error:
        verdict, ok, reasons = None, False, (str(error),)
    outcome = "accepted" if ok else "refused" if verdict else "unread"
    try:
        wrong, rate = faults(plain)
    except BlinksimError as error:
        return outcome, f"accepted, and cannot be read: {error}" if ok else ""
    except written_out.TooLargeError:
        return "too large", ""
    if ok and wrong:
        return outcome, f"accepted, and wrong: {wrong[0]}"
    if not ok and not wrong:
        return outcome, f"refused, and right: {reasons[0]}"
    if verdict is None or not ok:
        return outcome, ""
    said = verdict.details["rate_exact"]
    if said != (None if rate is None else exact_GBps(rate)):
        return outcome, f"a rate of {said}, and links allow {rate}"
    whole = bs.read_schedule(path)
    again = bs.verify(whole)
    if not again.ok or again.facts.rate != rate:
        return outcome, f"accepted, and refused when it is written out: {again.reasons}"
    return outcome, ""


def main(arguments: list[str] | None = None) -> int:
    """Runs the mutants that the arguments ask for; returns 1 if there are findings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutants", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    start, findings, counted = time.process_time(), 0, Counter[str]()
    used, rightly = set[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.first, asked.first + asked.mutants):
            random_ = random.Random(f"{asked.seed} {number}")
            one = next(
                found for skip in range(len(SAMPLES)) if (found := sample((number // IN_A_ROW + skip) % len(SAMPLES)))
            )
            changes = list[str]()
            try:
                plain, changes = mutant(one, random_)
                outcome, wrong = compared(plain, Path(folder) / "s.json")
            except Exception as error:
                outcome, wrong = "failed", repr(error)[:300]
            used.add(one.name)
            counted[outcome] += 1
            if outcome == "accepted":
                rightly.update(changes)
            if wrong:
                findings += 1
                which = {"number": number, "seed": asked.seed, "sample": one.name, "changes": changes, "wrong": wrong}
                print(json.dumps(which), flush=True)
    figures = {"mutants": asked.mutants, "findings": findings, "schedules": len(used), **counted}
    print(json.dumps(figures | {"cpu_s": round(time.process_time() - start, 1), "accepted after": dict(rightly)}))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
