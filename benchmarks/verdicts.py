"""What `diagnose` says of published logs that it does not know: false alarms, and slow logs that it takes for normal.

Each published run is a log. What is expected of it is worked out as if its own set, or all runs of as many GPUs on as
many nodes, had not been published, and without the times that constants were fitted to. A slow log is the same with
every size that bandwidth decides so many times as long.

    PYTHONPATH=.:tests python benchmarks/verdicts.py [--machines hgx-h100,alps]

About ten minutes on one core.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from left_out import without

from blinksim.answers.logs.diagnose import Diagnosis, Line, diagnose
from blinksim.answers.logs.expectation import Expectation, Expected, Ran
from blinksim.answers.measurements.public import grouped, with_places
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.timing.library_model import Library
from blinksim.timing.measured import public_tables
from blinksim.timing.measured.public_tables import Cell
from validate.recipes.usable_rates import asked

SLOWER = 1.0, 1.15, 1.3, 1.5, 2.0, 3.0
# A log has so many sizes, up to this one or more.
LEAST, LARGE = 3, 2**23


def logs_of(machine: str, kept: str) -> list[list[Line]]:
    """Every published run of a machine beside what is expected without it."""
    found = []
    free = [one for one in with_places(public_tables.cells(machine)) if not (one[1] or one[0].set.aside)]
    for (question, adds, launched), alike in grouped(free, lambda one: asked(machine, one[0])):
        model = Library(multicast=adds, set_up=launched).at(question)[0]
        # Copies share what is known by now: NCCL's plan.
        _ = model.prediction
        for (name, *_), cells in grouped([cell for cell, _ in alike], job):
            own = Expectation(question.part(), question.whole(), Collective(name), Ran(adds, set_up=launched))
            lines = []
            for cell in sorted(cells, key=lambda one: one.size):
                knows = without(model, kept, cell)
                with suppress(BlinksimError):
                    latency = own.at(cell.size)
                    [times] = knows.times(knows.machine, own.collective, [cell.size])
                    usual = Expected.of(times, latency.latency_s / latency.time_s)
                    lines.append(Line(cell.size, cell.time_s, usual, 0.0))
            found.append(lines)
    return found


def job(cell: Cell) -> tuple[str, str, int, int, str, str]:
    return cell.collective, cell.set.name, cell.nodes, cell.gpus, cell.dtype, cell.nvls


def slowed(base: Diagnosis, lines: Sequence[Line], slower: float) -> Diagnosis:
    """What is said of a log with every size that bandwidth decides so many times as long."""
    changed = (line if line.latency_bound else replace(line, time_s=slower * line.time_s) for line in lines)
    return replace(base, lines=tuple(changed), stated=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default=",".join(public_tables.machines()))
    machines = parser.parse_args().machines.split(",")
    base = diagnose(None, "hgx-h200", size=2**20, time=1.0)
    for kept in ("other sets", "other jobs"):
        every = [lines for machine in machines for lines in logs_of(machine, kept)]
        cells = [line for lines in every for line in lines]
        kinds = {
            "all": cells,
            "judged": [line for line in cells if not line.latency_bound],
            "from 64 MiB": [line for line in cells if line.size >= 2**26],
        }
        print(f"known: {kept}")
        for kind, some in kinds.items():
            behind = sum(line.behind for line in some)
            print(f"  sizes, {kind:12} {len(some):5}: {100 * behind / max(1, len(some)):.1f} % behind")
        logs = [lines for lines in every if len(lines) >= LEAST and lines[-1].size >= LARGE]
        for slower in SLOWER:
            status = Counter(slowed(base, lines, slower).status() for lines in logs)
            shares = (100 * status[number] / max(1, len(logs)) for number in (1, 5, 0))
            told = "{:.1f} % wrong, {:.1f} % cannot tell, {:.1f} % normal".format(*shares)
            print(f"  {len(logs)} logs x {slower:<4}: {told}")


if __name__ == "__main__":
    main()
