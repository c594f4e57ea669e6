"""`locate` on emulated faults: how often the class and the link are right, after how many runs, and false alarms.

Faults are edits drawn here, not from the table that `locate` tries: other lanes and bandwidths, and with more
latency. Times are the library's on the edited machine, times how rigs differ from each other (the interval of
the expected time, one draw for each kind of job) and noise as between neighboring sizes of published tables.
Each case starts without a log and does what `--next` says until nothing more can be told, ten runs at most.

    python benchmarks/bench_locate.py [--single 200] [--double 100] [--healthy 500] [--machine hgx-h100] [--seed 1]
        [--slower]  only faults for which the job of all GPUs takes 1.15 to 1.3 times as long
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache

from blinksim.answers.logs import locate as located
from blinksim.answers.logs.locate import Job, Suspicion, _faults, _Rig
from blinksim.errors import InfeasibleError
from blinksim.machines import Question
from blinksim.nccl.tests_log import Row, Run

MACHINES = (
    ("hgx-h100", 1), ("dgx1-v100", 1), ("l40s-pcie", 1), ("mi300x", 1),
    ("perlmutter", 4), ("polaris", 4), ("hgx-h200", 4), ("p4d.24xlarge", 4),
)  # fmt: skip
SIZES = 2**26, 2**28, 2**30
# Scales of Student's t of four degrees of freedom, of a log and of a size in it.
LOG, SIZE = 0.015, 0.01
# What the faults of the table are called, by the ends of a link.
Fault = tuple[str, str, tuple[str, ...]]


def noise(draw: random.Random, scale: float) -> float:
    """Student's t of four degrees of freedom."""
    return scale * draw.gauss(0, 1) / math.sqrt(draw.gammavariate(2, 0.5))


def sort_of(first: str, second: str) -> str:
    """The class of a link by the kinds of its ends."""
    ends = {first, second}
    if "fabric" in ends or ends == {"nic", "switch"}:
        return "nic"
    if ends <= {"gpu", "switch"}:
        return "nvlink"
    return "cpus" if ends == {"cpu"} else "pcie"


@cache
def links_of(machine: str, nodes: int) -> dict[str, list[tuple[str, str, float, int, float]]]:
    """The links of the first node of a cluster, by class, both ways as one: ends, bytes/s of a lane, lanes, latency."""
    whole = Question(machine, nodes=min(nodes, 2)).whole()
    found, taken = defaultdict(list), set()
    for link in whole.links:
        one, other = whole.device(link.src), whole.device(link.dst)
        if (nodes == 1 or one.node == 0) and (link.dst, link.src) not in taken:
            taken.add((link.src, link.dst))
            sort = sort_of(one.kind, other.kind)
            found[sort].append((link.src, link.dst, float(link.lane_bandwidth), link.lanes, link.latency))
    return dict(found)


def slight(machine: str, nodes: int, draw: random.Random) -> tuple[Fault, int]:
    """A fault, and its node, for which the job of all GPUs takes 1.15 to 1.3 times as long."""
    while True:
        fault, node = drawn(machine, nodes, draw, (0.5, 0.9)), draw.randrange(nodes)
        rig = Emulated(machine, nodes, [(fault, node)], draw)
        job = rig.suspicion.next_run()
        if job is not None and 1.15 <= rig.ratio(job, rig.edits(job)) <= 1.3:
            return fault, node


def drawn(machine: str, nodes: int, draw: random.Random, left: tuple[float, float] = (0.3, 0.7)) -> Fault:
    """A fault: its class, the place in `locate`'s words, and edits in which ``@`` stands for the node with it."""
    links = links_of(machine, nodes)
    sorts: list[str] = [sort for sort in ("nvlink", "pcie", "nic") if sort in links and (nodes > 1 or sort != "nic")]
    if nodes == 1 and "nvlink" in links:
        sorts = ["nvlink"]  # nothing else shows in one node
    sorts += ["clock"] + (["network", "host", "rail"] if nodes > 1 else [])
    sort, share = draw.choice(sorts), draw.uniform(*left)
    later = draw.choice((2, 5)) if draw.random() < 0.2 else 0

    def edit(link: tuple[str, str, float, int, float], at: str = "@", share: float = share) -> str:
        src, dst, rate, lanes, latency = link
        more = f" latency={1e6 * latency + later:g}us" if later else ""
        ends = "-".join(end.replace("n0.", at) if nodes > 1 else end for end in (src, dst))
        if sort == "nvlink" and lanes > 1:
            least = lanes // 4 if left[1] < 0.8 else lanes // 2
            return f"degrade {ends} lanes={draw.randint(max(1, least), max(1, lanes - 2))}"
        return f"degrade {ends} bandwidth={rate * share / 1e9:.6g}GB/s{more}"

    def local(name: str) -> str:
        return name.removeprefix("n0.") if nodes > 1 else name

    if sort in ("nvlink", "pcie", "nic"):
        link = draw.choice(links[sort])
        return sort, "-".join(map(local, link[:2])), (edit(link),)
    if sort == "clock":
        gpu = draw.choice([x[0] for x in links.get("nvlink", links["pcie"]) if "gpu" in x[0].rpartition(".")[2]])
        mine = [x for s in ("nvlink", "pcie") for x in links.get(s, ()) if gpu in x[:2]]
        return sort, local(gpu), tuple(edit(link) for link in mine)
    if sort == "rail":
        link = draw.choice(links["nic"])
        return sort, local(link[0]), (edit(link, "*"),)
    share = draw.uniform(0.02, 0.15) if sort == "network" else draw.uniform(0.15, 0.5)
    every = [x for s in {"network": ("nic",), "host": ("pcie",)}[sort] for x in links.get(s, ())]
    return sort, "all", tuple(edit(link, share=share) for link in every)


class Emulated:
    """A rig with a fault, whose runs take as long as the library says, times its own factors and noise."""

    def __init__(self, machine: str, nodes: int, faults: Sequence[tuple[Fault, int]], draw: random.Random) -> None:
        self.faults, self.nodes, self.draw = _faults(machine, nodes > 1), nodes, draw
        self.at = faults
        self.own: dict[object, float] = {}
        self.suspicion = Suspicion(self.faults, nodes)

    def run(self, job: Job) -> Run:
        healthy = self.suspicion.expected(job)
        spread = math.log(healthy.high_s / healthy.low_s) / 2.5632
        middle = math.log(healthy.high_s * healthy.low_s) / 2
        kind = self.suspicion.kind(job)
        self.own.setdefault(kind, middle - math.log(self.suspicion.expected(job).time_s) + self.draw.gauss(0, spread))
        factor = self.own[kind] + noise(self.draw, LOG)
        edits, local = self.edits(job), tuple(gpus for _, gpus in job.gpus)
        times = {}
        for size in SIZES:
            usual = self.faults.projection(local, job.collective, size, nics=job.nics).time_s
            times[size] = usual * self.ratio(job, edits) * math.exp(factor + noise(self.draw, SIZE))
        rows = tuple(Row(s, 0, "", "none", -1, False, t, s / t, 0.0, None, 0) for s, t in times.items())
        return Run("run", "allreduce", sum(map(len, local)), rows, adapters=",".join(job.nics))

    def edits(self, job: Job) -> tuple[str, ...]:
        """The faults as edits of the nodes that a job runs on."""
        edits: list[str] = []
        for text, sick in [(text, node) for fault, node in self.at for text in fault[2]]:
            at = [place for place, (node, _) in enumerate(job.gpus) if node == sick]
            if "*" in text and len(job.gpus) > 1:
                edits += [text.replace("*", f"n{place}.") for place in range(len(job.gpus))]
            elif at and "*" not in text and (len(job.gpus) > 1 or "fabric" not in text):
                edits.append(text.replace("@", f"n{at[0]}." if len(job.gpus) > 1 else ""))
        return tuple(edits)

    def ratio(self, job: Job, edits: tuple[str, ...]) -> float:
        if not edits:
            return 1.0
        of = tuple(gpus for _, gpus in job.gpus), job.collective, 2**28
        try:
            slow = self.faults.projection(*of, edits, job.nics).time_s
        except InfeasibleError:
            return 10.0  # through the host
        return slow / self.faults.projection(*of, nics=job.nics).time_s


def found(
    machine: str, nodes: int, faults: Sequence[tuple[Fault, int]], draw: random.Random, most: int = 10
) -> Suspicion:
    """What is known after doing what `--next` says."""
    rig = Emulated(machine, nodes, faults, draw)
    read = _Rig(rig.faults, Question(machine, nodes=nodes), {}, {}, {nic: nic for nic in rig.faults.nics})
    suspicion = Suspicion(rig.faults, nodes)
    while len(suspicion.seen) < most:
        job = suspicion.next_run()
        if job is None:
            break
        gpus = ",".join(str(node * rig.faults.gpus + gpu) for node, local in job.gpus for gpu in local)
        suspicion = Suspicion(rig.faults, nodes, (*suspicion.seen, read.seen(rig.run(job), gpus)))
    return suspicion


def where_of(fault: Fault, node: int, nodes: int) -> str:
    """The place in `locate`'s words."""
    if fault[0] == "rail":
        return fault[1]
    return f"node {node}" if fault[1] == "all" else f"n{node}.{fault[1]}" if nodes > 1 else fault[1]


def doubles(machine: str, nodes: int, cases: int, draw: random.Random, each: bool = False) -> Counter[str]:
    """How often what is right, of two faults at once."""
    counts: Counter[str] = Counter()
    for _ in range(cases):
        both = [(drawn(machine, nodes, draw), draw.randrange(nodes))]
        while len(both) < 2:
            more, node = drawn(machine, nodes, draw), draw.randrange(nodes)
            # Not the same link twice.
            same = node == both[0][1] or "rail" in (more[0], both[0][0][0])
            taken = {text.replace("*", "@").split()[1] for text in both[0][0][2]}
            if not same or taken.isdisjoint(text.replace("*", "@").split()[1] for text in more[2]):
                both.append((more, node))
        suspicion = found(machine, nodes, both, random.Random(draw.random()))
        suspicion = suspicion.settled
        sets = [one for one in suspicion.candidates() if one[0].tied]
        places = {where_of(fault, node, nodes) for fault, node in both}
        kinds = sorted(fault[0] for fault, _ in both)
        counts["doubles"] += 1
        counts["two found"] += any(len(one) == 2 for one in sets) and suspicion.explained
        counts["both classes"] += any(sorted(x.kind.name for x in one) == kinds for one in sets)
        counts["both places"] += any({x.place for x in one} == places for one in sets)
        counts["one place"] += any(x.place in places for one in sets for x in one)
        counts["double runs"] += len(suspicion.seen)
        if each:
            shown = "; ".join(" + ".join(f"{x.kind.name} {x.place}" for x in one) for one in sets[:3])
            print(f"  {kinds} {sorted(places)}: {len(suspicion.seen)} runs, {suspicion.healthy:.2g} healthy; {shown}")
    return counts


def counted(
    machine: str, nodes: int, cases: int, draw: random.Random, each: bool = False, slower: bool = False
) -> Counter[str]:
    """How often what is right, of single faults."""
    counts: Counter[str] = Counter()
    for _ in range(cases):
        if slower:
            fault, node = slight(machine, nodes, draw)
        else:
            fault, node = drawn(machine, nodes, draw), draw.randrange(nodes)
        # Noise of its own, so that other runs change no later case.
        suspicion = found(machine, nodes, [(fault, node)], random.Random(draw.random()))
        names = [one[0] for one in suspicion.settled.candidates() if len(one) == 1]
        where = where_of(fault, node, nodes)
        tied = [one for one in names if one.tied]
        counts["cases"] += 1
        counts["alarms"] += suspicion.healthy < located._ALARM
        counts["class first"] += bool(names) and names[0].kind.name == fault[0]
        counts["class named"] += any(one.kind.name == fault[0] for one in tied)
        counts["place in two"] += any(one.place == where for one in names[:2])
        counts["place named"] += any(one.place == where for one in tied)
        counts["runs"] += len(suspicion.seen)
        if each:
            shown = ", ".join(f"{one.kind.name} {one.place} {one.probability:.2f}" for one in names[:4])
            runs = f"{len(suspicion.seen)} runs, {suspicion.healthy:.2g} healthy"
            print(f"  {fault[0]} {where} {fault[2][0]}: {runs}; {shown}")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--single", type=int, default=200)
    parser.add_argument("--double", type=int, default=100)
    parser.add_argument("--healthy", type=int, default=500)
    parser.add_argument("--machine", action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="has no effect: every case is drawn once")
    parser.add_argument("--slower", action="store_true", help="only faults of about a fifth")
    parser.add_argument("--each", action="store_true", help="print every case")
    options = parser.parse_args()
    machines = [one for one in MACHINES if not options.machine or one[0] in options.machine]
    every: Counter[str] = Counter()
    for machine, nodes in machines:
        draw, start = random.Random(f"{options.seed} {machine}"), time.perf_counter()
        counts = counted(machine, nodes, options.single // len(machines), draw, options.each, options.slower)
        counts += doubles(machine, nodes, options.double // len(machines), draw, options.each)
        seconds = time.perf_counter() - start
        for _ in range(options.healthy // len(machines)):
            suspicion = found(machine, nodes, (), random.Random(draw.random()))
            counts["healthy"] += 1
            counts["false alarms"] += suspicion.healthy < located._ALARM
            counts["healthy runs"] += len(suspicion.seen)
        every += counts
        print(f"{nodes} x {machine}: {seconds:.0f} s; {dict(counts)}", flush=True)
    print(f"all: {dict(every)}")


if __name__ == "__main__":
    main()
