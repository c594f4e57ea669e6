"""Cuts of a program for a machine: protocol, slices, size of pieces, and queues that share a block.

The limits come from scans, not from the model `execution`. Over 63 scans of two and eight H200 they take 2.0
% longer than the quickest cut, in the mean (at worst 31 %); the cut that the model finds quickest takes 1.1 %
longer (11 %). The limits lose most where `direct` is not the quickest algorithm anyway: without it, 0.8 %
against 1.1 %. A choice by the model would simulate some twenty cuts instead of one
(validate/recipes/execution_times.py --tuning).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blinksim.errors import InputError
from blinksim.gpu.programs.program import BY_KEY, READY, WAVES, Program, rows_of, starts
from blinksim.schedule.model import Schedule

# Chosen from scans on two to eight H200 (validate/results/full-speed-*-tuning.json).
MOST_SLICES = 128
# Below this a further block costs more in flags than it gains in bandwidth; beyond MANY of them, the limit is
# higher.
SLICE_BYTES, LONG_SLICE_BYTES, MANY = 16 << 10, 64 << 10, 64
# In pipelines, larger pieces make the next device wait; with very many blocks, the others work meanwhile.
PIPELINE_PIECE, LEAST_PIECE = 128 << 10, 64 << 10
# Between dependent steps, two pieces of a slice hide the transfer of one behind the other's.
STEP_PIECE, LARGE_PIECE = 16 << 10, 512 << 10
# Packets need no flags: pieces only set the order of ops, and more blocks cost little. A pipeline was
# quickest with a block on each of the GPU's processors, exchanges in steps with slices for half of them.
PACKET_SLICE, PACKET_STEP_SLICE, PACKET_PIECE = 8 << 10, 4 << 10, 1 << 20

# Packets gain time with every dependent step and lose it with every byte. They are quicker as long as the
# busiest GPU sends at most this many bytes (validate/results/full-speed-*gpu.json): in a pipeline; elsewhere,
# for the first step and for each further one.
PIPELINE_BYTES = 20_000_000
STEP_BYTES, FURTHER_BYTES = 9_000_000, 2_400_000

# Inboxes have two halves, each for what the GPU with the most to receive gets in a launch. For vectors beyond
# this, a launch gains 1 % by not waiting for its neighbours.
STAGED_BYTES = 1 << 30


def quicker_protocol(schedule: Schedule, size_bytes: int) -> str:
    """``ll128`` where packets are expected to be quicker for vectors of `size_bytes`, else ``simple``."""
    sent = np.bincount(schedule.src, schedule.share_num[schedule.chunk] / schedule.share_den)
    most = PIPELINE_BYTES
    if schedule.form != "forest":
        most = STEP_BYTES + FURTHER_BYTES * max(0, schedule.steps - 1)
    return "ll128" if float(sent.max(initial=0)) * size_bytes <= most else "simple"


def worth_staging(schedule: Schedule, size_bytes: int) -> bool:
    """True if inboxes are expected to make runs on vectors of `size_bytes` quicker.

    They do where data go one way and are added up or passed on. Without an inbox, a GPU that passes data on
    cannot begin a launch before those behind it have ended the one before, 20 us later.
    """
    collective = schedule.collective
    one_way = schedule.form == "forest" and collective.rooted
    return one_way and (schedule.steps > 1 or collective.name == "reduce") and size_bytes <= STAGED_BYTES


def merge_queues(program: Program, most: int) -> Program:
    """The same ops in at most `most` queues a device.

    Ops keep their order by key, along which every program can run, so merging never makes a program get
    stuck.
    """
    if most < 1:
        raise InputError("a device needs room for at least one queue")
    if max(program.queue_counts, default=0) <= most:
        return program
    place = np.concatenate([np.arange(size, dtype=np.int64) % most for size in program.queue_counts])
    label = program.queue_device * most + place
    op_label = np.repeat(label, np.diff(program.queue_start))
    order = np.lexsort((np.arange(program.ops), program.key, op_label))
    labels, counts = np.unique(op_label[order], return_counts=True)
    names = tuple("; ".join(np.array(program.queue_name)[label == x].tolist()) for x in labels)
    changes: dict[str, Any] = {name: getattr(program, name)[order] for name in ("key", "chunk", "length")}
    for table in ("source", "destination", "wait", "signal"):
        rows = [program.rows(f"{table}s", op) for op in order.tolist()]
        changes |= rows_of(table, rows, getattr(program, f"{table}s").shape[1])
    changes |= {"queue_device": labels // most, "queue_start": starts(counts)}
    return replace(program, queue_name=names, **changes)


def fit(program: Program, blocks: int, slices: int | None = None, piece_bytes: int | None = None) -> Program:
    """The program cut for devices that hold `blocks` thread blocks at once.

    slices, piece_bytes: instead of what this chooses: as many slices as fit, a power of two and at most 128,
    as long as each still gets 16 KiB of the longest chunk (64 KiB beyond 64 slices); pieces of 128 KiB in a
    pipeline, of more than 64 slices an eighth of a slice from 64 KiB up, and where nothing is pipelined half
    a slice from 16 to 512 KiB. Of packets, in a pipeline a slice for every 8 KiB and at most as many as fit,
    elsewhere for every 4 KiB and half as many, and pieces of at most 1 MiB. A program whose queues stand for
    wires (`blinksim.gpu.execution.emulate`) is cut already and stays as it is. Raises `InputError` if the
    slices asked for do not fit.
    """
    if program.order == READY:
        return program
    longest = int(program.length.max(initial=0)) * program.kind.itemsize
    queues = max(program.queue_counts, default=1)
    if slices is None:
        slices = usual_slices(longest, queues, program.order, program.packets, blocks)
    elif slices < 1:
        raise InputError("slices must be at least 1")
    elif slices > blocks:
        raise InputError(f"{slices} slices need {slices} thread blocks on every GPU, and only {blocks} run at once")
    program = merge_queues(program, max(1, blocks // slices))
    if piece_bytes is None:
        piece_bytes = usual_piece(longest, slices, program.order, program.packets, program.unit * program.kind.itemsize)
    return program.cut(slices, min(piece_bytes, PACKET_PIECE) if program.packets else piece_bytes)


def usual_slices(longest: int, queues: int, order: int, packets: bool, blocks: int) -> int:
    """How many slices `fit` takes for a longest chunk of so many bytes and at most so many queues on a device."""
    if packets:
        pipeline = order == WAVES
        slices = blocks // max(1, queues) if pipeline else blocks // 2
        return max(1, min(slices, longest // (PACKET_SLICE if pipeline else PACKET_STEP_SLICE)))
    worth = min(MANY, longest // SLICE_BYTES)
    room = max(1, min(MOST_SLICES, blocks // max(1, queues), max(worth, longest // LONG_SLICE_BYTES)))
    return int(1 << room.bit_length() - 1)


def usual_piece(longest: int, slices: int, order: int, packets: bool, unit_bytes: int) -> int:
    """How many bytes `fit` takes for a piece of the longest chunk in so many slices, of units of so many bytes."""
    if packets:
        return PACKET_PIECE
    if order == BY_KEY:
        return min(max(STEP_PIECE, -(-longest // (2 * slices * unit_bytes)) * unit_bytes), LARGE_PIECE)
    least = LEAST_PIECE if slices > MANY else PIPELINE_PIECE
    return min(max(least, longest // slices // 8), PIPELINE_PIECE)
