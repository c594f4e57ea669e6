"""Fit of library constants to listed cells of published tables, and the errors of its predictions on all others.

    PYTHONPATH=. python3 validate/recipes/usable_rates.py

`models/usable/parts.csv` states the cells that constants are fitted to; ``constants.csv`` holds what comes out,
``spreads.csv`` what the other cells say of predictions, and `docs/measurements/how-wrong.md` sums it up for readers.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np

from blinksim import data_files
from blinksim.answers.measurements.public import PublicMeasurements, grouped, public_measurements, question_of
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.graphs import connectivity
from blinksim.machines import Question
from blinksim.timing.library_model import Library, known_job
from blinksim.timing.measured import library_rates, public_tables
from blinksim.timing.measured.library_rates import (
    AGAIN,
    ALONE,
    EVERY,
    EXPECTED,
    GUESSED,
    LINKS,
    ONE_NODE,
    PREDICTED,
    SENDS,
    SEVERAL,
    LibraryTime,
    parts,
    scope_of,
)
from blinksim.timing.measured.public_tables import GRAPH, THREADS, Cell, Set, SetUpName
from validate.recipes import usable_fit
from validate.recipes.how_wrong import Judged, Rig, left_out_tables, page
from validate.recipes.usable_fit import constant_rows, fit_machine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measurements" / "how-wrong.md"
# Ranks up to which straight sends are timed.
MOST_RANKS = 32
# Of what a row of spreads is.
_HEAD = "machine", "what", "scope", "sizes"
# Rigs are farther from all others than these are from each other: eight in ten times of one that was left out
# lie between these shares of theirs. Between nodes NCCL's own model is as far from one machine as from another:
# between its outer ones lie 90 to 93 %. Nodes of the same links are nearer: these shares lie beyond each end, by
# `SIZE_STEPS`.
ENDS, NODES_ENDS, BEYOND = (0.05, 0.5, 0.95), (0.065, 0.5, 0.935), (0.08, 0.08, 0.2, 0.08, 0.07, 0.07)
# Of what a machine takes more than others say of it so much is left so many of `SIZE_STEPS` away: slopes of all
# machines' ratios against each other, 1,410 pairs, in which the error falls to 0.61, 0.85, 0.95, 0.98 of what it was.
CARRIED = (1.0, 0.8, 0.5, 0.3, 0.2, 0.2)
Ratios = dict[str, list[float]]
# What a ratio is of: the reference, one of `SCOPES`, and a name of `SIZE_STEPS`.
Where = tuple[str, str, str]
# Ratios by reference, scope and how many of `SIZE_STEPS` away the machine is known.
OfKnown = dict[tuple[str, str, int], Ratios]
# What every rig was asked, and its ratios: processes that are forked share them.
RIGS = dict[Rig, list[tuple[Question, bool, SetUpName, list[Cell]]]]()
FOUND = dict[Rig, list[tuple[Where, str, float]]]()
# Cells from which on quantiles are taken, in place of the ends.
MANY = 10


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """A table with the keys of the rows as its first line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def constants() -> list[dict[str, Any]]:
    """The rows of ``constants.csv``."""
    return [row for name in public_tables.machines() for one in fit_machine(name) for row in constant_rows(one)]


def measurements() -> list[PublicMeasurements]:
    """All cells beside their predictions, by machine."""
    return [public_measurements(name) for name in public_tables.machines()]


@cache
def kinds_of() -> Mapping[str, tuple[str, ...]]:
    """The pools that every machine is in, the widest first."""
    asked = {machine: Library().at(Question(machine)) for machine in public_tables.machines()}
    return {
        machine: (model.library, f"{model.library} over {whole.fabric.kind if whole.fabric else ''}")
        for machine, (model, whole) in asked.items()
    }


def spreads(found_of: Mapping[Rig, list[tuple[Where, str, float]]]) -> list[dict[str, Any]]:
    """The rows of ``spreads.csv``: of every machine, of all of them, and of the guesses of every library.

    found_of: what `ratios_of` says of the rigs. Of guesses a machine has a row for every size, of no cells where
    those of other sizes are carried there.
    """
    ratios, kinds = defaultdict[Where, Ratios](dict), kinds_of()
    each = defaultdict[Where, dict[str, Ratios]](dict)
    for (machine, _), known in found_of.items():
        for where, collective, ratio in known:
            ratios[where].setdefault(machine, []).append(ratio)
            each[where].setdefault(machine, {}).setdefault(collective, []).append(ratio)
    errors = defaultdict[Where, Ratios](dict)
    guesses = dict[tuple[Where, str], float]()
    for where in [where for where in ratios if where[0] in GUESSED]:
        for machine, own in ratios[where].items():
            guess = _pooled(_levels(ratios, where, kinds, kinds[machine]), 0.5, machine)
            guesses[where, machine] = guess
            errors[where][machine] = [ratio / guess for ratio in own]
    known_ones = _of_known(each, guesses)
    rows, order = list[dict[str, Any]](), [name for _, name in library_rates.SIZE_STEPS]
    wide = defaultdict[tuple[str, str, str], tuple[float, float]](lambda: (1.0, 1.0))

    def no_surer(of: tuple[str, str, str], low: float, high: float) -> tuple[float, float]:
        """What is not sure of more bytes is no surer of fewer."""
        wide[of] = low, high = min(low, wide[of][0]), max(high, wide[of][1])
        return low, high

    for where in sorted(ratios, key=lambda where: -order.index(where[2])):
        (what, scope, _), told = where, ratios[where]
        between = what == PREDICTED and scope != ONE_NODE
        beyond = BEYOND[order.index(where[2])]
        near = what == AGAIN and scope == ONE_NODE
        shares = (beyond, 0.5, 1 - beyond) if near else NODES_ENDS if between else ENDS
        found = {EVERY: _quantiles(told, shares)}
        if what != AGAIN:
            found |= {machine: _quantiles({machine: values}, shares) for machine, values in told.items()}
        # On one node the network says nothing.
        deep = 1 if scope == ONE_NODE else 2
        names = sorted({kinds[one][:count] for one in told for count in range(deep + 1)}, key=len)
        if what == EXPECTED and scope != ONE_NODE:
            for name, (low, middle, high) in found.items():
                low, high = no_surer((what, scope, name), low, high)
                found[name] = [low, middle, high]
        for kind in names if what in GUESSED else ():
            name = kind[-1] if kind else EVERY
            low, high = (_pooled(_levels(errors, where, kinds, kind), end) for end in shares[::2])
            low, high = no_surer((what, scope, name), low, high)
            middle = _pooled(_levels(ratios, where, kinds, kind), 0.5)
            found[name] = [low * middle, middle, high * middle]
        if what in GUESSED:
            for machine in {one for (*of, _), known in ratios.items() for one in known if of == [what, scope]}:
                pools = (name for name in (*kinds[machine][deep - 1 :: -1], EVERY) if (what, scope, name) in wide)
                apart = wide[what, scope, next(pools)]
                found[machine] = _of_machine(machine, where, shares, ratios, apart, known_ones, kinds)
        for one, quantiles in found.items():
            head: dict[str, Any] = dict(zip(_HEAD, (one, *where), strict=True))
            cells = len(told.get(one, ())) if one in kinds else sum(map(len, told.values()))
            low, middle, high = (float(f"{value:.4g}") for value in quantiles)
            rows.append({**head, "cells": cells, "low": low, "middle": middle, "high": high})
    kept = [whose for whose in over_pcie() if whose[0] in found_of or whose[0] not in RIGS]
    rows += _over_pcie(kept, {tuple(row[name] for name in _HEAD): row["middle"] for row in rows})
    return sorted(rows, key=lambda row: (row["machine"], row["what"], row["scope"], order.index(row["sizes"])))


@cache
def over_pcie() -> Mapping[tuple[Rig, str], list[tuple[str, float]]]:
    """Sizes and published over predicted time, by rig and set, where GPUs of a node are joined by PCIe alone.

    Rings that were forced count where NCCL would have taken them. Such boxes differ in what CPUs and drivers pass on,
    which no model knows, so sets of one repository are of several rigs, and those that were reported as slow count too.
    """
    found = defaultdict[tuple[Rig, str], list[tuple[str, float]]](list)
    for machine in public_tables.machines():
        plain = Library().at(Question(machine))[0]
        for cell in public_tables.cells(machine) if plain._network == "pcie" and plain.nodes == 1 else ():
            model, collective = _asked_of(*asked(machine, cell)), Collective(cell.collective)
            stated = None if collective.personalized else model.stated(collective, cell.size)
            if stated and ("forced" not in cell.set.algorithm or stated.pick == "ring Simple"):
                found[rig_of(cell.set), cell.set.name].append((_sizes_of(cell.size), cell.time_s / stated.time_s))
    return found


@cache
def _asked_of(question: Question, adds: bool, launched: SetUpName) -> Library:
    return Library(multicast=adds, set_up=launched).at(question)[0]


def _over_pcie(kept: Sequence[tuple[Rig, str]], middles: Mapping[tuple[str, ...], float]) -> Iterator[dict[str, Any]]:
    """The rows of nodes that PCIe alone joins: from the quickest of their sets to the slowest, if there are several.

    middles: by the head of a row. What NCCL takes of all nodes is the middle, as sets are few.
    """
    for _, sizes in library_rates.SIZE_STEPS:
        told = [[ratio for where, ratio in over_pcie()[whose] if where == sizes] for whose in kept]
        where = PREDICTED, ONE_NODE, sizes
        if len(told := [ratios for ratios in told if ratios]) > 1 and ("NCCL", *where) in middles:
            lows, _, highs = np.array([np.quantile(ratios, ENDS) for ratios in told]).T
            ends = {"low": lows.min(), "middle": middles["NCCL", *where], "high": highs.max()}
            head = dict(zip(_HEAD, ("NCCL over pcie", *where), strict=True))
            cells = sum(map(len, told))
            yield {**head, "cells": cells, **{name: float(f"{value:.4g}") for name, value in ends.items()}}


def _of_known(each: Mapping[Where, Mapping[str, Ratios]], guesses: Mapping[tuple[Where, str], float]) -> OfKnown:
    """Ratios to what is said of a machine of which other sizes are known, by reference, scope and how far those are.

    A collective is judged by the machine's others, where it has any. each: ratios by machine and collective.
    """
    found: OfKnown = defaultdict(dict)
    order = [name for _, name in library_rates.SIZE_STEPS]
    for (where, machine), guess in guesses.items():
        what, scope, sizes = where
        for place, other in enumerate(order):
            away = abs(place - order.index(sizes))
            told = each.get((what, scope, other), {}).get(machine, {})
            for collective, own in each[where][machine].items() if away and told else ():
                ratios = [ratio for name, known in told.items() if name != collective for ratio in known]
                longer = np.median(ratios or told[collective]) / guesses[(what, scope, other), machine]
                known_ones = found[what, scope, away].setdefault(machine, [])
                known_ones += [ratio / (guess * float(longer) ** CARRIED[away]) for ratio in own]
    return found


def _of_machine(
    machine: str,
    where: Where,
    shares: Sequence[float],
    ratios: Mapping[Where, Ratios],
    apart: tuple[float, float],
    known_ones: OfKnown,
    kinds: Mapping[str, tuple[str, ...]],
) -> list[float]:
    """Low, middle and high of a machine that is known, at these sizes or at the nearest where it was measured.

    apart: how far machines are from what others say of them, which no end is beyond but for times of these sizes.
    """
    (what, scope, sizes), kind = where, kinds[machine][: 1 if where[1] == ONE_NODE else 2]
    order = [name for _, name in library_rates.SIZE_STEPS]
    place = order.index(sizes)
    told = [at for at, name in enumerate(order) if machine in ratios.get((what, scope, name), {})]
    nearest = min(told, key=lambda at: (abs(at - place), -at))
    own = ratios[what, scope, order[nearest]][machine]
    levels = [_levels(ratios, (what, scope, order[at]), kinds, kind) for at in (nearest, place)]
    others = [_pooled(level, 0.5, machine) for level in levels]
    least, middle, most = _quantiles({machine: own}, shares)
    longer = _weighed(middle, len(own), _pooled(levels[0], 0.5)) / others[0]
    away = abs(nearest - place)
    middle = others[1] * longer ** CARRIED[away]
    # Of sizes that were measured another rig of the machine is as far off as others: known ones are of one rig. With
    # what other sizes say of them in its place, 72 to 74 % of the times between nodes lay inside.
    near = [known_ones[what, one, away] for one in (SEVERAL, scope)[scope != ALONE :]]
    low, high = (_pooled(near, share) if any(near) else end for share, end in zip(shares[::2], apart, strict=True))
    low, high = max(low, apart[0]), min(high, apart[1])
    ends = [low * middle, high * middle] + [least, most] * (away == 0)
    return [min(ends), middle, max(ends)]


def _levels(
    table: Mapping[Where, Ratios],
    where: Where,
    kinds: Mapping[str, tuple[str, ...]],
    kind: tuple[str, ...],
) -> list[Ratios]:
    """The machines that a guess is made from, the farthest first.

    Of any scope, of this one, of the library, and between nodes of its network.
    """
    what, scope, sizes = where
    deep = kind[:1] if scope == ONE_NODE else kind
    pools = [
        {machine: ratios for machine, ratios in table[where].items() if kinds[machine][:count] == deep[:count]}
        for count in range(len(deep) + 1)
    ]
    return [table[what, SEVERAL, sizes]] * (scope == ALONE) + pools


def _pooled(levels: Sequence[Ratios], share: float, left_out: str = "") -> float:
    """A quantile by partial pooling: machines of a level count by their number against all levels before it.

    One machine of a level has a middle, and no spread. left_out: a machine that is guessed as if nobody had measured
    it; 1 if there is no other.
    """
    found = 1.0
    for place, level in enumerate(levels):
        if others := {machine: ratios for machine, ratios in level.items() if machine != left_out}:
            own = _quantiles(others, (share,))[0]
            found = _weighed(own, len(others) - (share != 0.5), found) if place else own
    return found


def _weighed(own: float, count: int, others: float) -> float:
    """A ratio from `count` measurements, or machines, where all others together count as one more."""
    return float(np.exp((count * np.log(own) + np.log(others)) / (count + 1)))


def _quantiles(ratios: Ratios, shares: Sequence[float]) -> list[float]:
    """Quantiles of ratios, by their logarithms, of which every machine counts as much; of few the ends."""
    ordered = sorted((ratio, 1 / len(own)) for own in ratios.values() for ratio in own)
    weights = np.array([weight for _, weight in ordered])
    places = (np.cumsum(weights) - weights / 2) / weights.sum()
    logs = np.log([ratio for ratio, _ in ordered])
    if len(ordered) < MANY:
        shares = [0.0 if share < 0.5 else 1.0 if share > 0.5 else share for share in shares]
    return [float(np.exp(np.interp(end, places, logs))) for end in shares]


def rig_of(one: Set) -> Rig:
    """Whose GPUs a set is of: sets of a machine from one repository are of one rig."""
    return one.machine, "/".join(one.source.split("/")[:3]) if one.source.startswith("github.com") else one.name


def asked(machine: str, cell: Cell) -> tuple[Question, bool, SetUpName]:
    """The GPUs of a published time, whether switches added for them, and how its calls were launched."""
    return question_of(machine, cell), cell.adds_in_switches, cast("SetUpName", cell.set.set_up or GRAPH)


def rigs() -> dict[Rig, list[tuple[Question, bool, SetUpName, list[Cell]]]]:
    """What every rig was asked: the GPUs, whether switches might add, how calls were launched, and the times."""
    found = defaultdict[Rig, list[tuple[Question, bool, SetUpName, list[Cell]]]](list)
    for machine in public_tables.machines():
        chosen = [cell for cell in public_tables.cells(machine) if "forced" not in cell.set.algorithm]
        keyed = (((rig_of(cell.set), *asked(machine, cell)), cell) for cell in chosen)
        for (rig, question, adds, launched), alike in connectivity.grouped(keyed).items():
            found[rig].append((question, adds, launched, alike))
    return found


@contextmanager
def without(rig: Rig) -> Iterator[None]:
    """The tables, and the constants that are fitted to them, as if nobody had published what a rig takes."""
    machine, known, by_file = rig[0], public_tables.cells, library_rates.nccl_time

    def cells(name: str) -> Sequence[Cell]:
        return [cell for cell in known(name) if rig_of(cell.set) != rig]

    own = {name for name, one in public_tables.sets().items() if rig_of(one) == rig}
    filed = any(part.set in own and part.constants.startswith(f"topologies/{machine}.yaml") for part in parts())

    def nccl_time(name: str, *asked: Any) -> LibraryTime | None:
        return None if filed and name == machine else by_file(name, *asked)

    with ExitStack() as stack:
        for where, name, stand_in in (
            (public_tables, "cells", cells),
            (library_rates, "nccl_time", nccl_time),
            (usable_fit, "nccl_time", nccl_time),
        ):
            stack.enter_context(mock.patch.object(where, name, stand_in))
        # Models of other jobs remember what they were told when another rig was left out.
        memories = known_job, public_tables.chosen_freely, public_tables.host_times, library_rates._smallest
        for cached in (*memories, library_rates.spread_at):
            stack.callback(cached.cache_clear)
            cached.cache_clear()
        fresh = grouped(fit_machine(machine), lambda one: (one.machine, one.library, one.scope))
        rates = {who: found for who, found in library_rates.all_rates().items() if who[0] != machine} | dict(fresh)
        stack.enter_context(mock.patch.object(library_rates, "all_rates", return_value=rates))
        yield


def ratios_of(rig: Rig) -> list[tuple[Where, str, float]]:
    """What, scope and sizes, the collective, and published over predicted time, where no prediction knows the rig."""
    found, asked = list[tuple[Where, str, float]](), RIGS[rig]
    # What the host takes is no error of what is known of the GPUs.
    held = [[cell for cell in cells if public_tables.holds_for(cell, THREADS)] for *_, cells in asked]
    # Nor are reports of what is slow told as what others take.
    told = [[cell for cell in cells if not cell.set.aside] for cells in held]
    with without(rig):
        for (question, adds, launched, _), counted in zip(asked, told, strict=True):
            with suppress(BlinksimError):
                found += _of_a_question(question, counted, multicast=adds, set_up=launched)
    return found


def _of_a_question(question: Question, cells: list[Cell], **how: Any) -> Iterator[tuple[Where, str, float]]:
    plain = Library(**how).at(question)[0]
    for cell in cells:
        collective = Collective(cell.collective)
        scope, sizes = scope_of(cell.nodes, cell.gpus), _sizes_of(cell.size)
        name, job = plain._known_as, replace(plain.job, collective=cell.collective)
        timing = plain._choice(collective, cell.size)
        known = library_rates.library_time(name, plain.machine.nccl_rates, job, cell.size, timing)
        apart, again = copy(plain), list[float]()
        apart.published = _other_machines(cell.set.machine)
        lent = apart._nearest(collective, cell.size, lent=True)[1] >= 1
        # Where others lend their times, their constants are not asked.
        if known is not None and known.owner == name:
            yield (EXPECTED, scope, sizes), cell.collective, cell.time_s / known.time_s
        elif known is not None and not lent:
            again.append(cell.time_s / known.time_s)
        if lent:
            again.append(cell.time_s / apart.times(plain.machine, collective, [cell.size])[0].time_s)
        stated = plain.stated(collective, cell.size)
        if stated is not None:
            yield (PREDICTED, scope, sizes), cell.collective, cell.time_s / stated.time_s
        if not collective.personalized or cell.gpus <= MOST_RANKS:
            what = SENDS if collective.personalized else LINKS
            yield (what, scope, sizes), cell.collective, cell.time_s / plain.links(collective, cell.size).time_s
        found = plain.times(plain.machine, collective, [cell.size])[0]
        if found.details["basis"] in ("measured", "between"):
            again.append(cell.time_s / found.time_s)
        # Few jobs were published twice: all of several nodes together say how far runs are apart, both sizes
        # below 512 KiB; and both from 64 MiB on, also of one node.
        names = [name for _, name in library_rates.SIZE_STEPS]
        few = names[-2:], names[: 2 * (scope != ONE_NODE)]
        pair = next((pair for pair in few if sizes in pair), [sizes])
        places = product([AGAIN], [ONE_NODE] if scope == ONE_NODE else [SEVERAL, ALONE], pair)
        yield from ((place, cell.collective, ratio) for place, ratio in product(places, again))


@cache
def _other_machines(name: str) -> Callable[[Cell], bool]:
    return lambda cell: cell.set.machine != name


def _sizes_of(size: int) -> str:
    """Which of `SIZE_STEPS` a size in bytes is in."""
    return next(name for least, name in reversed(library_rates.SIZE_STEPS) if size >= least)


def judge(rig: Rig) -> list[Judged]:
    """The times of a rig beside what is said of them where nobody had published them."""
    others = {other: ratios for other, ratios in FOUND.items() if other != rig}
    table = library_rates.spreads_of(spreads(others))
    judged = list[Judged]()
    with without(rig), mock.patch.object(library_rates, "spreads", return_value=table):
        library_rates.spread_at.cache_clear()
        for question, adds, launched, cells in RIGS[rig]:
            with suppress(BlinksimError):
                model, machine = Library(multicast=adds, set_up=launched).at(question)
                for cell in cells:
                    [found] = model.times(machine, Collective(cell.collective), [cell.size])
                    low, high = (found.details[f"interval_{end}_s"] for end in ("low", "high"))
                    judged.append(Judged(rig, cell, found.time_s, low, high, found.details["basis"]))
    return judged


def main() -> None:
    """Makes the constants, the spreads and the page anew, and prints how wrong what is left out is predicted."""
    write(data_files.folder("models") / "usable" / "constants.csv", constants())
    library_rates.all_rates.cache_clear()
    RIGS.update(rigs())
    # The longest first.
    order = sorted(RIGS, key=lambda rig: -sum(len(cells) for *_, cells in RIGS[rig]))
    with get_context("fork").Pool() as pool:
        FOUND.update(zip(order, pool.imap(ratios_of, order), strict=True))
    write(data_files.folder("models") / "usable" / "spreads.csv", spreads(FOUND))
    library_rates.spreads.cache_clear()
    with get_context("fork").Pool() as pool:
        judged = [one for found in pool.imap(judge, order) for one in found]
    print(left_out_tables(judged))
    PAGE.write_text(page(measurements(), judged), encoding="utf-8")


if __name__ == "__main__":
    main()
