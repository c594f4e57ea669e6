"""Sets of graph files, one communicator per chain, by which idle GPUs help stock NCCL, as in Blink+.

A graph file lists exactly the GPUs of its communicator, so a chain through a helper gets a communicator of
users and helper, and its share of the data (Blink+ report, section 4.1, algorithm 1). NCCL reads
NCCL_GRAPH_FILE anew for every communicator, but NCCL_MAX_NCHANNELS once in a process: all communicators get
the same number of channels, and a chain over more lanes gets several communicators. A helper contributes
zeros, so only sums (and broadcasts) are right.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from math import gcd
from pathlib import Path

from blinksim.errors import InfeasibleError
from blinksim.nccl.export.graph_export import BLOCK_RATE, CAUTION, RELEASES
from blinksim.nccl.export.lines import Line, farthest, has_nvswitch, lines, number, path_type
from blinksim.nccl.families import PATTERN_BALANCED_TREE, PATTERN_RING, RING, TREE
from blinksim.nccl.files.graph_file import Graph, GraphFile, check, log_lines, to_text
from blinksim.nccl.files.graph_rules import Communicator, judge
from blinksim.nccl.files.nccl_xml import Release
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule
from blinksim.textio import text_files
from blinksim.textio.whole_files import Exported, most_channels
from blinksim.units import exact_GBps

MOST_COMMUNICATORS = 32
FORMAT, VERSION = "blinksim-nccl-graph-set", 1


def export(schedule: Schedule, channels: int | None = None) -> Exported:
    """One graph file for each chain, a manifest and a recipe that runs them; see `registry.Format.export`.

    Raises `InfeasibleError` for several nodes, for what is no chain, and for more than `channels` chains.
    """
    most = most_channels(channels, MOST_COMMUNICATORS, MOST_COMMUNICATORS, "one communicator for each chain")
    topology, name = schedule.topology, schedule.collective.name
    if name not in ("allreduce", "broadcast", "reduce"):
        raise InfeasibleError(f"helpers know allreduce, broadcast and reduce, not {name}; take the format nccl-graph")
    if len({topology.device(member).node for member in topology.members}) > 1:
        raise InfeasibleError("the chains of a set stay on one node; take the format nccl-graph for several")
    found = lines(schedule)
    if any(line.ring for line in found):
        raise InfeasibleError("this schedule runs on rings; take the format nccl-graph, which needs one communicator")
    cut = [(line, *_channels(schedule, line)) for line in found]
    width = gcd(*(wide for _, wide, _ in cut))
    parts = [
        (replace(line, share=line.share * width / wide), speed)
        for line, wide, speed in cut
        for _ in range(wide // width)
    ]
    if len(parts) > most:
        raise InfeasibleError(f"{len(found)} chains need {len(parts)} communicators; at most {most}. Synthesise fewer")
    files: dict[str, str] = {}
    entries = []
    for position, (line, speed) in enumerate(parts):
        file = f"chain{position}.xml"
        files[file], entry = _communicator(schedule, line, width, speed)
        entries.append({"file": file, **entry})
    helpers = sorted({gpu for entry in entries for gpu in _numbers(entry["helpers"])})
    topology = schedule.topology
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "machine": topology.name,
        "collective": schedule.collective.name,
        "users": [number(topology.device(member)) for member in topology.members],
        "root": number(topology.device(topology.members[schedule.collective.root])),
        "helpers": helpers,
        "helper_role": "a helper joins with a buffer of zeros, so that sums are right; what it receives is not used",
        "communicators": entries,
    }
    files["manifest.json"] = json.dumps(manifest, indent=2) + "\n"
    files["recipe.py"] = recipe()
    words = [f"{line.words} carries {line.share}" for line, _ in parts]
    facts = [f"the rules of NCCL {' and '.join(RELEASES)} put every file in force for its communicator", *words]
    allowed = rate(schedule)
    if allowed is not None:
        facts.append(f"together {exact_GBps(allowed)} GB/s algbw by their loads")
    count = "" if len(parts) == len(found) else f"{len(parts)} "
    return Exported(
        files=files,
        summary=f"{len(found)} chains as {count}communicators, {len(helpers)} helper GPUs, a manifest and a recipe",
        facts=tuple(facts),
        proof=("python3 {file}/recipe.py  (CuPy with NCCL, and the GPUs: checks the result, prints the bandwidth)",),
        notes=(
            "set NCCL_GRAPH_FILE only while a communicator starts; the recipe does",
            "small vectors are slower than with NCCL alone: every chain is a launch of its own",
        ),
        caution=CAUTION,
    )


def _communicator(schedule: Schedule, line: Line, width: int, speed: Fraction) -> tuple[str, dict[str, object]]:
    """The graph file of a communicator and its entry in the manifest.

    Raises `InfeasibleError` if some release of NCCL would not use the file.
    """
    topology = schedule.topology
    kind = farthest((path_type(topology, route) for route in _routes(schedule, line)), "NVL")
    gpus = [number(topology.device(device)) for device in line.devices]
    ring = Graph(
        pattern=PATTERN_RING,
        nchannels=width,
        bw_intra=speed,
        bw_inter=speed,
        type_intra=kind,
        type_inter="PIX",
        same_channels=True,
        channels=(tuple(gpus),) * width,
    )
    tree = replace(ring, pattern=PATTERN_BALANCED_TREE)
    graph = GraphFile((ring.to_file(RING), tree.to_file(TREE)))
    text = to_text(graph)
    check(graph, gpus, most=16)
    for release in RELEASES:
        judged = judge(text, Communicator(tuple(gpus)), Release.parse(release))
        if judged.verdict != "used":
            raise InfeasibleError(f"chain {line.words}: {judged.reason}")
    members = set(topology.members)
    # Broadcast and reduce have rings only; the file's rings are the same chains.
    environment = {
        "NCCL_ALGO": "allreduce:tree" if schedule.collective.name == "allreduce" else "Ring",
        "NCCL_PROTO": "Simple",
        "NCCL_MAX_NCHANNELS": str(width),
    }
    entry = {
        "gpus": gpus,
        "users": [gpu for gpu, device in zip(gpus, line.devices, strict=True) if device in members],
        "helpers": [gpu for gpu, device in zip(gpus, line.devices, strict=True) if device not in members],
        "share": str(line.share),
        "channels": width,
        "log": log_lines(graph, gpus),
        "environment": environment | ({"NCCL_NVLS_ENABLE": "0"} if has_nvswitch(topology) else {}),
    }
    return text, entry


def recipe() -> str:
    """The script that starts the communicators of a set, runs them and checks the result; it needs no blinksim."""
    return text_files.read_text(Path(__file__).with_name("recipe_script.py"))


def _numbers(value: object) -> list[int]:
    return [gpu for gpu in value if isinstance(gpu, int)] if isinstance(value, list) else []


def _routes(schedule: Schedule, line: Line) -> list[tuple[int, ...]]:
    topology = schedule.topology
    index = topology.index
    hops = zip(line.devices, line.devices[1:], strict=False)
    return [tuple(topology.router.route(index[a], index[b])) for a, b in hops]


def _channels(schedule: Schedule, line: Line) -> tuple[int, Fraction]:
    """The number of equal channels of a chain, and the bytes/s of each.

    They are what its share needs of thread blocks; a chain over several lanes has to be as wide as they are.
    """
    narrow = min(schedule.topology.links[link].bandwidth for route in _routes(schedule, line) for link in route)
    allowed = rate(schedule)
    carried = narrow if allowed is None else min(narrow, allowed * line.share)
    width = max(1, min(16, -(-carried // BLOCK_RATE)))
    return width, carried / width
