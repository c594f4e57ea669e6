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
from math import gcd

from blinksim import data_files
from blinksim.errors import InfeasibleError
from blinksim.nccl.export import graph_export
from blinksim.nccl.families import RING, TREE, Pattern
from blinksim.nccl.files.graph_file import Graph, GraphFile, check, log_lines, to_text
from blinksim.nccl.files.graph_rules import Communicator
from blinksim.nccl.files.topo_write import number
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
    chains = graph_export.lines(schedule)
    if any(line.ring for line in chains):
        raise InfeasibleError("this schedule runs on rings; take the format nccl-graph, which needs one communicator")
    index, allowed = topology.index, rate(schedule)
    cut = []
    for line in chains:
        hops = zip(line.devices, line.devices[1:], strict=False)
        routes = [topology.router.route(index[a], index[b]) for a, b in hops]
        kind = graph_export.farthest((graph_export.path_type(topology, route) for route in routes), "NVL")
        narrow = min(topology.links[link].bandwidth for route in routes for link in route)
        # As many equal channels as the share needs thread blocks; a chain over several lanes is as wide as they are.
        carried = narrow if allowed is None else min(narrow, allowed * line.share)
        wide = max(1, min(16, -(-carried // graph_export.BLOCK_RATE)))
        cut.append((line, kind, wide, carried / wide))
    width = gcd(*(wide for _, _, wide, _ in cut))
    parts = [
        (replace(line, share=line.share * width / wide), kind, speed)
        for line, kind, wide, speed in cut
        for _ in range(wide // width)
    ]
    if len(parts) > most:
        raise InfeasibleError(f"{len(chains)} chains need {len(parts)} communicators; at most {most}. Synthesise fewer")
    members = set(topology.members)
    # Broadcast and reduce have rings only; the file's rings are the same chains.
    environment = graph_export.variables(topology, name == "allreduce", width)
    files: dict[str, str] = {}
    entries, helpers = [], set[int]()
    for position, (line, kind, speed) in enumerate(parts):
        gpus = [number(topology.device(device)) for device in line.devices]
        order = tuple(gpus)
        ring = Graph(Pattern.RING, width, speed, speed, kind, "PIX", same_channels=True, channels=(order,) * width)
        graphs = GraphFile(((RING, ring), (TREE, replace(ring, pattern=Pattern.BALANCED_TREE))))
        file, text = f"chain{position}.xml", to_text(graphs)
        check(graphs, gpus, most=16)
        graph_export.in_force(text, Communicator(order), f"chain {line.words}: ")
        files[file] = text
        helping = [gpu for gpu, device in zip(gpus, line.devices, strict=True) if device not in members]
        helpers.update(helping)
        entries.append(
            {
                "file": file,
                "gpus": gpus,
                "users": [gpu for gpu, device in zip(gpus, line.devices, strict=True) if device in members],
                "helpers": helping,
                "share": str(line.share),
                "channels": width,
                "log": log_lines(graphs, gpus),
                "environment": environment,
            }
        )
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "machine": topology.name,
        "collective": name,
        "users": [number(topology.device(member)) for member in topology.members],
        "root": number(topology.device(topology.members[schedule.collective.root])),
        "helpers": sorted(helpers),
        "helper_role": "a helper joins with a buffer of zeros, so that sums are right; what it receives is not used",
        "communicators": entries,
    }
    files["manifest.json"] = json.dumps(manifest, indent=2) + "\n"
    # The script that starts the communicators, runs them and checks the result; it needs no blinksim.
    files["recipe.py"] = text_files.read_text(data_files.folder("models") / "chains_recipe.py")
    words = [f"{line.words} carries {line.share}" for line, _, _ in parts]
    facts = [
        f"the rules of NCCL {' and '.join(graph_export.RELEASES)} put every file in force for its communicator",
        *words,
    ]
    if allowed is not None:
        facts.append(f"together {exact_GBps(allowed)} GB/s algbw by their loads")
    count = "" if len(parts) == len(chains) else f"{len(parts)} "
    return Exported(
        files=files,
        summary=f"{len(chains)} chains as {count}communicators, {len(helpers)} helper GPUs, a manifest and a recipe",
        facts=tuple(facts),
        proof=("python3 {file}/recipe.py  (CuPy with NCCL, and the GPUs: checks the result, prints the bandwidth)",),
        notes=(
            "set NCCL_GRAPH_FILE only while a communicator starts; the recipe does",
            "small vectors are slower than with NCCL alone: every chain is a launch of its own",
        ),
        caution=graph_export.CAUTION,
    )
