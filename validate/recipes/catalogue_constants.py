"""Fits the constants of H200 that the catalogue ships, and writes them and those scaled from them into machine files.

    PYTHONPATH=. python3 validate/recipes/catalogue_constants.py --topologies topologies

Takes every second run of eight GPUs in `validate/results` and every sixth of two to six, float32 out of place (beyond
64 MiB, rings and chains), and starts from the constants of the forty runs of `few_points.py`. Runs that were made to be
held out are not among them. Then come machines with the same GPUs, and those whose constants are scaled. Needs no GPU;
ten minutes on two idle cores. Afterwards `time_predictions.py` sets all runs beside the new constants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from blinksim import machines
from blinksim.answers.measurements.execution_fit import CONSTANTS, Case, at_ports, fit_execution, processes
from blinksim.timing.measured_constants import ExecutionRates, FlagRates, PacketRates
from validate.recipes.arguments import arguments, script
from validate.recipes.execution_times import points
from validate.recipes.time_predictions import MACHINE, RESULTS, case_of, fit_few, runs

# Also what forty runs hardly show.
NAMES = (*CONSTANTS, "ports.uneven", "ports.drift", "flags.soft")
STEPS = {8: 2}
OTHER_STEP = 6
# Beyond this many bytes, only what is simulated quickly.
MIB = 2**20
LARGE, QUICK = 64 * MIB, ("ring", "chain")
SAME = (MACHINE, "nd-h200-v5", "p5en.48xlarge")
# Bandwidth of a GPU's links and clock, against those of H200.
SCALED = {
    "hgx-h100": (1.0, 1.0),
    "dgx-a100": (300 / 450, 1.98 / 1.41),
    "hgx-b200": (900 / 450, 1.98 / 1.965),
    "dgx2": (150 / 450, 1.98 / 1.53),
}


def chosen() -> Iterator[tuple[Case, float]]:
    """The runs that are fitted, and their seconds."""
    times: dict[Case, float] = {}
    for point in points():
        case = case_of(point)
        if case is not None and (case.size <= LARGE or case.algorithm in QUICK):
            times.setdefault(case, point.time_s)
    by_gpus: dict[bool, list[Case]] = {True: [], False: []}
    for case in sorted(times, key=lambda case: (case.gpus, case.collective, case.algorithm, case.protocol, case.size)):
        by_gpus[case.gpus in STEPS].append(case)
    for cases, step in ((by_gpus[True], STEPS[8]), (by_gpus[False], OTHER_STEP)):
        yield from ((case, times[case]) for case in cases[step - 1 :: step])


def lines(rates: ExecutionRates) -> dict[str, str]:
    """The lines of a machine file that state constants, by how they begin."""
    ports, packets, flags = rates.ports, rates.packets, rates.flags

    def us(seconds: float) -> str:
        return f"{seconds * 1e6:.3g}us"

    def share(value: float) -> str:
        return f"{100 * value:.3g} %"

    way = {
        "out": f"{ports.out / 1e9:.4g}GB/s",
        "into": f"{ports.into / 1e9:.4g}GB/s",
        "fan": share(ports.fan),
        "queue": us(ports.queue_s),
        "first": us(ports.first_s),
        "drift": share(ports.drift),
        "posted": us(ports.posted_s),
        "uneven": share(ports.uneven),
        "turns": us(ports.turns_s),
    }
    simple = {
        name: us(getattr(flags, f"{name}_s"))
        for name in ("before", "piece", "round", "far", "fence", "flag", "own", "look")
    }
    simple |= {
        "cache": f"{flags.cache_bytes:.0f}B",
        "byte": f"{flags.byte_s * 1e6:.10f}".rstrip("0") + "us",
        "load": share(flags.load),
        "soft": f"{flags.soft:.3g}",
    }
    ll128 = {
        name: us(getattr(packets, f"{name}_s")) for name in ("piece", "round", "local", "inbox", "step", "own", "far")
    }
    ll128 |= {"soft": f"{packets.soft:.3g}", "wire": f"{packets.wire:.4g}"}
    found = {f"  {name}: ": us(getattr(rates, f"{name}_s")) for name in ("launch", "announce", "visit")}
    for head, values in (("  ports: {", way), ("    simple: {", simple), ("    ll128: {", ll128)):
        found[head] = ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"
    return found


def derived(rates: ExecutionRates, ports: float, slower: float) -> ExecutionRates:
    """Constants for GPUs with so many times the bandwidth, whose clocks make everything take so many times as long."""

    def times(of: ExecutionRates | PacketRates | FlagRates) -> dict[str, Any]:
        return {one.name: getattr(of, one.name) * slower for one in fields(of) if one.name.endswith("_s")}

    packets, flags = replace(rates.packets, **times(rates.packets)), replace(rates.flags, **times(rates.flags))
    return replace(at_ports(rates, ports), **times(rates), packets=packets, flags=flags)


def write(rates: ExecutionRates, path: Path) -> None:
    """Replaces the constants of our programs in a machine file; what follows them, of NCCL, stays."""
    before, section = path.read_text().split("\nexecution:\n")
    for head, text in lines(rates).items():
        section, count = re.subn(rf"^{re.escape(head)}.*$", head + text, section, count=1, flags=re.M)
        assert count == 1, (path, head)
    path.write_text(f"{before}\nexecution:\n{section}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--topologies", type=Path, required=True)
    options = parser.parse_args()
    cases, times = zip(*chosen(), strict=True)
    with processes() as evaluate:
        start = fit_few(runs(RESULTS), evaluate)
        found = fit_execution(cases, times, start, evaluate, NAMES)
    print(f"{len(cases)} runs, {found.error.words()}")
    for name in SAME:
        write(found.rates, options.topologies / f"{name}.yaml")
    for name, (ports, slower) in SCALED.items():
        own = machines.load(name).execution
        assert own is not None
        rates = derived(found.rates, ports, slower)
        rates = replace(rates, flags=replace(rates.flags, cache_bytes=own.flags.cache_bytes))
        write(rates, options.topologies / f"{name}.yaml")


if __name__ == "__main__":
    script(main, __file__)
