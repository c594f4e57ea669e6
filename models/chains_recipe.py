#!/usr/bin/env python3
"""Runs the chains of manifest.json as NCCL communicators, checks every result and prints the bandwidth.

    python3 recipe.py [MEBIBYTES]

Needs the GPUs of the manifest and CuPy with NCCL (cupy-cuda12x or cupy-cuda13x). All GPUs belong to this process; GPU
numbers are CUDA's, so leave CUDA_VISIBLE_DEVICES unset and set CUDA_DEVICE_ORDER=PCI_BUS_ID, as NCCL counts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any, TypedDict

os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

import cupy
from cupy.cuda import nccl

HERE = Path(__file__).resolve().parent
ROUNDS = 10
LINE = 128 // 4  # elements


class Entry(TypedDict):
    """One communicator of the manifest, as far as this script reads it."""

    file: str
    gpus: list[int]
    share: str
    environment: dict[str, str]


class Manifest(TypedDict):
    """The manifest, as far as this script reads it."""

    collective: str
    users: list[int]
    helpers: list[int]
    root: int
    communicators: list[Entry]


def shares(manifest: Manifest, total: int) -> list[list[int]]:
    """First element and number of elements of every communicator's part; the last takes what is left.

    Parts begin on multiples of 128 bytes: elsewhere NCCL moves single elements, at half the speed and less.
    """
    parts, start = [], 0
    for entry in manifest["communicators"]:
        count = int(total * Fraction(entry["share"])) // LINE * LINE
        parts.append([start, count])
        start += count
    parts[-1][1] += total - start
    return parts


def start(entry: Entry) -> dict[int, Any]:
    """The communicators of one chain, by GPU; NCCL reads its variables while they start."""
    before = dict(os.environ)
    os.environ.update(entry["environment"])
    os.environ["NCCL_GRAPH_FILE"] = str(HERE / entry["file"])
    try:
        found = nccl.NcclCommunicator.initAll(entry["gpus"])
    finally:
        os.environ.clear()
        os.environ.update(before)
    return {gpu: found[rank] for rank, gpu in enumerate(entry["gpus"])}


def launch(
    manifest: Manifest,
    entry: Entry,
    comms: dict[int, Any],
    streams: dict[int, Any],
    buffers: dict[int, Any],
    part: list[int],
) -> None:
    """Queues the collective of one chain on all its GPUs."""
    first, count = part
    root = entry["gpus"].index(manifest["root"]) if manifest["root"] in entry["gpus"] else 0
    nccl.groupStart()
    for gpu in entry["gpus"]:
        with cupy.cuda.Device(gpu):
            send, receive = (buffer[first : first + count].data.ptr for buffer in buffers[gpu])
            stream = streams[gpu].ptr
            if manifest["collective"] == "allreduce":
                comms[gpu].allReduce(send, receive, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream)
            elif manifest["collective"] == "reduce":
                comms[gpu].reduce(send, receive, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, root, stream)
            else:
                comms[gpu].broadcast(send, receive, count, nccl.NCCL_FLOAT32, root, stream)
    nccl.groupEnd()


def fill(manifest: Manifest, total: int) -> dict[int, Any]:
    """What every GPU sends and where it receives: whole numbers, which float32 adds exactly. A helper sends zeros."""
    users = manifest["users"]
    buffers = {}
    for gpu in users + manifest["helpers"]:
        with cupy.cuda.Device(gpu):
            values = cupy.zeros(total, "f4")
            if gpu in users:
                values[:] = cupy.arange(total) % 997 + users.index(gpu)
            buffers[gpu] = values, cupy.zeros(total, "f4")
    return buffers


def new_streams(entry: Entry) -> dict[int, Any]:
    """A stream on every GPU of one chain."""
    streams = {}
    for gpu in entry["gpus"]:
        with cupy.cuda.Device(gpu):
            streams[gpu] = cupy.cuda.Stream(non_blocking=True)
    return streams


def count_wrong(manifest: Manifest, buffers: dict[int, Any], total: int) -> int:
    """The number of elements that are not what the collective promises."""
    users, wrong = manifest["users"], 0
    for gpu in users if manifest["collective"] != "reduce" else [manifest["root"]]:
        with cupy.cuda.Device(gpu):
            ramp = (cupy.arange(total) % 997).astype("f4")
            if manifest["collective"] == "broadcast":
                expected = ramp + users.index(manifest["root"])
            else:
                expected = ramp * len(users) + sum(range(len(users)))
            wrong += int((buffers[gpu][1] != expected).sum())
    return wrong


def main() -> int:
    """Runs all chains together; 1 if an element is wrong."""
    manifest: Manifest = json.loads((HERE / "manifest.json").read_text())
    total = int(sys.argv[1] if len(sys.argv) > 1 else 256) * 2**20 // 4
    users, helpers = manifest["users"], manifest["helpers"]
    parts = shares(manifest, total)
    buffers = fill(manifest, total)
    comms = [start(entry) for entry in manifest["communicators"]]
    streams = [new_streams(entry) for entry in manifest["communicators"]]

    def everything() -> None:
        for number, entry in enumerate(manifest["communicators"]):
            launch(manifest, entry, comms[number], streams[number], buffers, parts[number])

    def wait() -> None:
        for gpu in users + helpers:
            with cupy.cuda.Device(gpu):
                cupy.cuda.runtime.deviceSynchronize()

    wait()
    everything()
    wait()
    begin = time.perf_counter()
    for _ in range(ROUNDS):
        everything()
    wait()
    seconds = (time.perf_counter() - begin) / ROUNDS
    wrong, size = count_wrong(manifest, buffers, total), 4 * total
    print(
        f"{manifest['collective']} of {size / 2**20:g} MiB over GPUs {users}, helpers {helpers}: "
        f"{seconds * 1e3:.3f} ms, {size / seconds / 1e9:.2f} GB/s algbw, {wrong} wrong elements"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
