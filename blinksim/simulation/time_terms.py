"""A simulated time as a sum of terms: the stretches of its critical path, gathered by what they pass.

They follow each other without gaps (`blinksim.simulation.critical`), so they add up to the time.
"""

from __future__ import annotations

from blinksim.cost.terms import Term
from blinksim.errors import InfeasibleError
from blinksim.schedule.model import Schedule
from blinksim.simulation.simulation_options import Chunks, Sending
from blinksim.simulation.simulator import simulated
from blinksim.simulation.timeline import Timeline

# Sends, and events of one run, up to which a simulation is an answer within seconds.
MOST_SENDS = 100_000
MOST_EVENTS = 2_000_000


def check_sends(schedule: Schedule, sends: int | None = None) -> Schedule:
    """The schedule, if a projection by simulation is a matter of seconds; raises `InfeasibleError` otherwise.

    sends: how many it has once they are divided among parallel routes.
    """
    sends = schedule.sends if sends is None else sends
    if sends > MOST_SENDS:
        fewer = "double_binary, fewer ranks" if schedule.collective.name == "allreduce" else "fewer ranks"
        raise InfeasibleError(
            f"{schedule.algorithm} on {schedule.topology.ranks} ranks has {sends:,} sends, and "
            f"model='simulate' takes at most {MOST_SENDS:,}; take {fewer} or model='alpha-beta', or "
            "synthesize the schedule and simulate it with chunk="
        )
    return schedule


def projected(schedule: Schedule, size: int, gamma: float = 0.0) -> Timeline:
    """The run that a projection reports: the piece size with the least time, among those of at most `MOST_EVENTS`.

    size: bytes. gamma: seconds per byte reduced. Raises as `check_sends` and `blinksim.simulation.simulate` do.
    """
    return simulated(check_sends(schedule), size, Chunks(most_events=MOST_EVENTS), sending=Sending(gamma=gamma))


def terms(timeline: Timeline) -> tuple[Term, ...]:
    """What the time consists of, in seconds: per link class, pieces passing one after another, and their latency."""
    found: dict[tuple[str, str], float] = {}

    def add(name: str, kind: str, time_s: float) -> None:
        if time_s > 0:
            found[name, kind] = found.get((name, kind), 0.0) + time_s

    for leg in timeline.critical_path:
        if not leg.pieces:
            add(f"further pieces passing {leg.kind}" if leg.place[:1].isdigit() else leg.place, leg.kind, leg.time_s)
            continue
        add(f"latency of {leg.kind}", leg.kind, leg.travel_s)
        add("reductions" if leg.kind == "reduction" else f"pieces passing {leg.kind}", leg.kind,
            leg.time_s - leg.travel_s)  # fmt: skip
    return tuple(Term(name, time_s, kind) for (name, kind), time_s in found.items())


def facts(timeline: Timeline) -> dict[str, float]:
    """What else a projection says of a run, by name; seconds, shares and numbers."""
    return {
        "bottleneck_busy": timeline.uses[0].busy,
        "steps": timeline.schedule.steps,
        "pieces": timeline.pieces,
        "loads_s": timeline.bound_s,
    }
