"""NCCL's own channel search on machines that do not exist: random topology files, given to NCCL on real GPUs.

    PYTHONPATH=. python3 validate/recipes/made_up_machines.py --gpus 8 --machines 200 --out results

NCCL reads a topology file before it looks at the host (NCCL_TOPO_FILE), so its search can be asked about any machine
whose GPUs carry the bus ids of the GPUs at hand. Every case is one communicator; NCCL writes the graphs that it found
(NCCL_GRAPH_DUMP_FILE) and nothing is sent. Half of the cases are one node of up to eight GPUs. In the other half two
processes, each with half of the GPUs, claim to be different hosts (NCCL_HOSTID), so that the search uses the NICs of
the file. `tests/nccl/test_made_up_machines.py` holds the predictions against what came back.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from validate.recipes.arguments import arguments, script

SWITCH_CLASS = "0x068000"
LINK_SPEEDS = ("5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe")
CPUS = (
    {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "85"},
    {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "143"},
    {"arch": "x86_64", "vendor": "AuthenticAMD", "familyid": "143", "modelid": "49"},
)
LOOPBACK = "lo"
"""The interface that NCCL finds on every host: the first NIC of a file has its name, so that no NIC is added."""


def _pci(parent: ElementTree.Element, bus: str, kind: str, speed: str, width: int) -> ElementTree.Element:
    vendor = "0x10de" if kind.startswith("0x03") else "0x104c"
    facts = {"busid": bus, "class": kind, "vendor": vendor, "device": "0x8232", "subsystem_vendor": "0x10de"}
    facts |= {"subsystem_device": "0x18bf", "link_speed": speed, "link_width": str(width)}
    return ElementTree.SubElement(parent, "pci", facts)


def made_up(seed: int, several_nodes: bool) -> dict[str, Any]:
    """A random machine as NCCL's topology file (bus ids of GPUs as BUS0, BUS1, …) and the GPUs to ask about."""
    draw = random.Random(seed)
    count = draw.randint(2, 4) if several_nodes else draw.randint(3, 8)
    sm = draw.choice((60, 70, 80, 90, 90, 90, 100))
    system = ElementTree.Element("system", version="1")
    attributes = draw.choice(CPUS)
    sockets = [
        ElementTree.SubElement(system, "cpu", {"numaid": str(i), "affinity": "0000ffff", **attributes})
        for i in range(draw.randint(1, 2))
    ]
    speed, width = draw.choice(LINK_SPEEDS), draw.choice((8, 16))
    places = list(sockets)
    for serial in range(1, 1 + draw.randint(0, 4)):
        below = draw.choice(sockets if draw.random() < 0.8 else places)
        places.append(_pci(below, f"0000:e{serial}:00.0", "0x060400", speed, 16))
    switches = places[len(sockets) :] or sockets
    gpus = []
    for i in range(count):
        uneven = draw.random() < 0.2
        above = draw.choice(places) if uneven else switches[i * len(switches) // count]
        card = _pci(above, f"BUS{i}", "0x030200", draw.choice(LINK_SPEEDS) if uneven else speed, width)
        gdr = draw.choice(("1", "1", "1", "0"))
        gpus.append(ElementTree.SubElement(card, "gpu", dev=str(i), sm=str(sm), rank=str(i), gdr=gdr))
    _nvlinks(gpus, draw)
    if several_nodes:
        rate, gdr = draw.choice((10000, 25000, 100000, 200000, 400000)), draw.choice(("1", "1", "0"))
        per_gpu = draw.random() < 0.3
        for number in range(count if per_gpu else draw.randint(1, 4)):
            above = switches[number * len(switches) // count] if per_gpu else draw.choice(switches)
            card = _pci(above, f"0000:d{number}:00.0", "0x020000", speed, 16)
            nic = ElementTree.SubElement(card, "nic")
            ElementTree.SubElement(
                nic, "net", name=LOOPBACK if number == 0 else f"mlx5_{number}", dev=str(number), latency="0",
                speed=str(rate), port=str(draw.choice((1, 1, 1, number + 1))), guid=hex(0x1000 + number),
                maxconn="131072", gdr=gdr, keep="1",
            )  # fmt: skip
    chosen = draw.sample(range(count), draw.randint(2, count))
    if draw.random() < 0.7:
        chosen.sort()
    ElementTree.indent(system)
    nodes = 2 if several_nodes else 1
    text = ElementTree.tostring(system, encoding="unicode")
    return {"seed": seed, "nodes": nodes, "sm": sm, "count": count, "gpus": chosen, "topo": text}


def _nvlinks(gpus: list[ElementTree.Element], draw: random.Random) -> None:
    """Every GPU gets an NVLink: NCCL asks the driver about a GPU that has none in the file."""
    count = len(gpus)

    def link(gpu: int, target: str, lanes: int, kind: str = "0x030200") -> None:
        ElementTree.SubElement(gpus[gpu], "nvlink", target=target, count=str(lanes), tclass=kind)

    if draw.random() < 0.3:
        lanes = draw.choice((4, 6, 12, 18))
        for gpu in range(count):
            link(gpu, "fffffff:ff:ff.0", lanes, SWITCH_CLASS)
        return
    chance, joined = draw.choice((0.2, 0.5, 1.0)), set()
    pairs = [pair for pair in combinations(range(count), 2) if draw.random() < chance]
    for a, b in pairs:
        joined |= {a, b}
    pairs += [(a, (a + 1) % count) for a in range(count) if a not in joined]
    for a, b in dict.fromkeys(tuple(sorted(pair)) for pair in pairs):
        lanes = draw.randint(1, 4)
        link(a, f"BUS{b}", lanes)
        link(b, f"BUS{a}", lanes)


def ask(cases: Path, first: int, step: int, host: int, gpus: int, out: Path) -> None:
    """One process: makes the communicator of every case from `first` on, and prints what NCCL wrote."""
    import cupy
    from cupy.cuda import nccl

    bus = [cupy.cuda.Device(gpu).pci_bus_id.lower() for gpu in range(gpus)]
    every = json.loads(cases.read_text())
    for number in range(first, len(every), step):
        case = every[number]
        mine = gpus // 2 * host if case["nodes"] == 2 else 0
        if case["nodes"] == 1 and host:
            continue
        text = case["topo"]
        for i in range(case["count"]):
            text = text.replace(f'"BUS{i}"', f'"{bus[mine + i]}"')
        topo, dump = out / f"topo-{host}-{number}.xml", out / f"graph-{host}-{number}.xml"
        topo.write_text(text)
        os.environ |= {"NCCL_TOPO_FILE": str(topo), "NCCL_GRAPH_DUMP_FILE": str(dump)}
        answer: dict[str, Any] = {"number": number}
        begin = time.monotonic()
        try:
            made = _communicators(nccl, cupy, case, [mine + i for i in case["gpus"]], out / f"id-{number}", host)
            answer["graph"] = dump.read_text()
            answer["nccl"] = nccl.get_version()
            for communicator in made:
                communicator.destroy()
        except Exception as error:  # what NCCL refuses is an answer too
            answer["error"] = f"{type(error).__name__}: {error}"[:300]
        answer["seconds"] = time.monotonic() - begin
        with (out / f"answers-{first}-{host}.jsonl").open("a") as file:
            file.write(json.dumps(answer) + "\n")


def _communicators(nccl: Any, cupy: Any, case: dict[str, Any], gpus: list[int], rendezvous: Path, host: int) -> Any:
    if case["nodes"] == 1:
        return nccl.NcclCommunicator.initAll(gpus)
    if host == 0:
        part = rendezvous.with_suffix(".part")
        part.write_bytes(pickle.dumps(nccl.get_unique_id()))
        part.rename(rendezvous)
    begin = time.monotonic()
    while not rendezvous.exists():
        if time.monotonic() - begin > 30:
            raise TimeoutError("the other host did not come")
        time.sleep(0.005)
    shared = pickle.loads(rendezvous.read_bytes())
    made = []
    nccl.groupStart()
    for i, gpu in enumerate(gpus):
        with cupy.cuda.Device(gpu):
            made.append(nccl.NcclCommunicator(2 * len(gpus), shared, host * len(gpus) + i))
    nccl.groupEnd()
    return made


def main() -> None:
    parser = arguments(__doc__, gpus=8, budget=240)
    parser.add_argument("--machines", type=int, default=200, help="how many random machines")
    parser.add_argument("--ask", type=int, nargs=3, metavar=("FIRST", "STEP", "HOST"), help="one process of the run")
    parser.add_argument("--streams", type=int, default=3, help="cases at a time")
    options = parser.parse_args()
    out: Path = options.out
    cases = out / "cases.json"
    if options.ask:
        first, step, host = options.ask
        ask(cases, first, step, host, options.gpus, out)
        return
    out.mkdir(parents=True, exist_ok=True)
    cases.write_text(json.dumps([made_up(seed, bool(seed % 2)) for seed in range(options.machines)]))
    environment = {
        **os.environ, "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": LOOPBACK, "NCCL_IB_DISABLE": "1",
        "NCCL_NET": "Socket", "NCCL_DEBUG": "WARN",
    }  # fmt: skip
    deadline = time.monotonic() + options.budget
    running = []
    for first in range(options.streams):
        for host in range(2):
            command = [sys.executable, __file__, "--gpus", str(options.gpus), "--out", str(out)]
            command += ["--ask", str(first), str(options.streams), str(host)]
            log = (out / f"log-{first}-{host}.txt").open("w")
            own = {**environment, "NCCL_HOSTID": f"host{host}"}
            running.append(subprocess.Popen(command, env=own, stdout=log, stderr=subprocess.STDOUT))
    for process in running:
        try:
            process.wait(max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()
    answers: dict[int, dict[str, Any]] = {}
    for path in sorted(out.glob("answers-*-0.jsonl")):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            answers[entry.pop("number")] = entry
    every = json.loads(cases.read_text())
    found = [{**case, **answers[number]} for number, case in enumerate(every) if number in answers]
    (out / "made-up-machines.json").write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n")
    print(f"{len(found)} of {len(every)} machines answered, {sum('error' in case for case in found)} with an error")


if __name__ == "__main__":
    script(main, __file__)
