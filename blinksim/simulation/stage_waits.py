"""What waits for what between the sends of a schedule: a table of waits, built rule by rule.

The events at a place (a chunk at a device), in the order of steps and with the reads of a step before its writes, form
runs of writes and runs of reads. A run of writes that is read afterwards is a version of the place::

    write write | read | write | read read          time ->
    version 0          | version 1

The readers of a version wait for its writes, and for the version before it unless the writes replace that with a copy.
Waits run from the last stage of a send (tail) to the first stage of another (head). Joints between them save edges and
collect messages: the sends that one connection carries in one step start together and arrive together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blinksim.schedule.model import COPY, Schedule
from blinksim.structures.arrays import distinct, expand

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Fewer arrivals or readers than this are joined pairwise; from here on a joint saves edges.
_JOINT_FROM = 3


@dataclass(frozen=True, slots=True)
class _Versions:
    """The versions of all places, in the order of places and then steps.

    writer, written: write k is of send writer[k] and belongs to version written[k]; reader, read: the same for reads.
    Both are in the order of versions. adds (V): True if a version also needs the one before it (number v - 1). joint
    (V): True if a joint collects the writes of a version.
    """

    writer: Indices
    written: Indices
    reader: Indices
    read: Indices
    adds: Flags
    joint: Flags


@dataclass(frozen=True, slots=True)
class _Ends:
    """The stages between which waits run. message (sends): see `waits`; -1 for none.

    head, tail (sends): the first and last stage of a send. collected, gate (sends): the joint behind the message of a
    send and the one before it. arrival (sends): what others wait for, `collected` or `tail`; entry (sends): what waits
    for others, `gate` or `head`. joint (V): the number of the joint of a version, if it has one.
    """

    message: Indices
    head: Indices
    tail: Indices
    collected: Indices
    gate: Indices
    arrival: Indices
    entry: Indices
    joint: Indices


@dataclass(frozen=True, slots=True)
class _Waits:
    """The waits of one rule: stage after[i] waits for stage before[i]."""

    rule: str
    before: Indices
    after: Indices

    def __post_init__(self) -> None:
        assert len(self.before) == len(self.after), f"{self.rule}: a wait has two ends"


def waits(
    schedule: Schedule, head: Indices, tail: Indices, message: Indices, stage_count: int
) -> tuple[Indices, Indices, int]:
    """(before, after) of all waits between sends, by their first and last stages, and how many joints they need.

    message (sends): the number of the message of each send, -1 for a send that is a message of its own; each message is
    collected by a joint behind it, and if it waits for anything one before it. Joints get numbers from `stage_count`.
    """
    nothing = np.zeros(0, dtype=np.int64)
    versions = _versions(schedule) if schedule.sends else None
    if versions is None:
        return nothing, nothing, 0
    messages = int(message.max()) + 1
    collected, gate = stage_count + message, stage_count + messages + message
    ends = _Ends(
        message=message,
        head=head,
        tail=tail,
        collected=collected,
        gate=gate,
        arrival=np.where(message >= 0, collected, tail),
        entry=np.where(message >= 0, gate, head),
        joint=stage_count + 2 * messages + np.cumsum(versions.joint) - 1,
    )
    rules = (_into_messages, _out_of_messages, _pairs, _into_joints, _out_of_joints, _between_joints, _past_joints)
    table = [rule(versions, ends) for rule in rules]
    before = np.concatenate([row.before for row in table]).astype(np.int64)
    after = np.concatenate([row.after for row in table]).astype(np.int64)
    return _without_gaps(before, after, stage_count, 2 * messages + int(versions.joint.sum()))


def _versions(schedule: Schedule) -> _Versions | None:
    """None if nothing is written and read afterwards."""
    devices, steps = len(schedule.topology.devices), schedule.steps
    chunk, step = schedule.chunk.astype(np.int64) * devices, schedule.step.astype(np.int64)
    reads, writes = (chunk + schedule.src) * steps + step, (chunk + schedule.dst) * steps + step
    event = np.concatenate((2 * reads, 2 * writes + 1))
    order = np.argsort(event, kind="stable")
    write, place, send = event[order] % 2 == 1, event[order] // (2 * steps), order % schedule.sends
    begins = np.ones(len(event), dtype=np.bool_)
    begins[1:] = (place[1:] != place[:-1]) | (write[1:] != write[:-1])
    run, start = np.cumsum(begins) - 1, np.flatnonzero(begins)
    run_place, run_write = place[start], write[start]
    length = np.diff(np.append(start, len(run)))
    # Runs of writes with a run of reads behind them at the same place.
    read_next = np.append((run_place[1:] == run_place[:-1]) & ~run_write[1:], False) & run_write
    version_run = np.flatnonzero(read_next)
    if not len(version_run):
        return None
    copies = np.bincount(run[write & (schedule.op[send] == COPY)], minlength=len(start))
    adds = np.zeros(len(version_run), dtype=np.bool_)
    adds[1:] = (run_place[version_run[1:]] == run_place[version_run[:-1]]) & (copies[version_run[1:]] == 0)
    fan_in, fan_out = length[version_run] + adds, length[version_run + 1]
    joint = (fan_in >= _JOINT_FROM) & (fan_out >= _JOINT_FROM)
    # What a version adds to is one thing to wait for.
    joint[:-1] |= adds[1:]
    number = np.full(len(start), -1, dtype=np.int64)
    number[version_run] = number[version_run + 1] = np.arange(len(version_run))
    version = number[run]
    written, read = write & (version >= 0), ~write & (version >= 0)
    return _Versions(send[written], version[written], send[read], version[read], adds, joint)


def _sends_of_messages(message: Indices, some: Indices) -> Indices:
    """All sends that travel in one message with one of these."""
    return np.flatnonzero(np.isin(message, distinct(message[some])) & (message >= 0))


def _into_messages(versions: _Versions, ends: _Ends) -> _Waits:
    """A message has arrived when all of its sends have, if anything reads what it writes.

    tail of send ---+
    tail of send ---+--> collected
    """
    parts = _sends_of_messages(ends.message, versions.writer)
    return _Waits("into messages", ends.tail[parts], ends.collected[parts])


def _out_of_messages(versions: _Versions, ends: _Ends) -> _Waits:
    """The sends of a message start together, if it waits for anything.

    gate ---+--> head of send
            +--> head of send
    """
    parts = _sends_of_messages(ends.message, versions.reader)
    return _Waits("out of messages", ends.gate[parts], ends.head[parts])


def _pairs(versions: _Versions, ends: _Ends) -> _Waits:
    """Without a joint every read of a version waits for every write of it.

    arrival ---> entry
            \\-> entry        (one line for each pair)
    """
    starts = np.searchsorted(versions.written, np.arange(len(versions.joint) + 1)).astype(np.int32)
    loose = np.flatnonzero(~versions.joint[versions.read])
    arrivals = ends.arrival[versions.writer].astype(np.int32)
    reader, before = expand(starts, arrivals, versions.read[loose].astype(np.int32))
    return _Waits("pairs", before.astype(np.int64), ends.entry[versions.reader][loose][reader])


def _into_joints(versions: _Versions, ends: _Ends) -> _Waits:
    """With a joint the writes of a version come together there.

    arrival ---+
    arrival ---+--> joint
    """
    into = versions.joint[versions.written]
    return _Waits("into joints", ends.arrival[versions.writer[into]], ends.joint[versions.written[into]])


def _out_of_joints(versions: _Versions, ends: _Ends) -> _Waits:
    """And its reads wait for the joint alone.

    joint ---+--> entry
             +--> entry
    """
    out = versions.joint[versions.read]
    return _Waits("out of joints", ends.joint[versions.read[out]], ends.entry[versions.reader[out]])


def _between_joints(versions: _Versions, ends: _Ends) -> _Waits:
    """A version that adds to the one before it waits for that, joint for joint.

    joint of v - 1 ---> joint of v
    """
    chained = np.flatnonzero(versions.adds & versions.joint)
    return _Waits("between joints", ends.joint[chained - 1], ends.joint[chained])


def _past_joints(versions: _Versions, ends: _Ends) -> _Waits:
    """Where such a version has no joint, its reads wait for the joint of the version before.

    joint of v - 1 ---> entry of a read of v
    """
    reads = (versions.adds & ~versions.joint)[versions.read]
    return _Waits("past joints", ends.joint[versions.read[reads] - 1], ends.entry[versions.reader[reads]])


def _without_gaps(before: Indices, after: Indices, stage_count: int, joints: int) -> tuple[Indices, Indices, int]:
    """The waits with joints numbered anew: a message that waits for nothing, or is not waited for, needs none there."""
    used = np.zeros(stage_count + joints, dtype=np.bool_)
    used[:stage_count] = True
    used[before] = used[after] = True
    number = np.cumsum(used) - 1
    return number[before], number[after], int(used.sum()) - stage_count
