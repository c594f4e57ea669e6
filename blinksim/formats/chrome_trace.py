"""Chrome's trace event format, for chrome://tracing and ui.perfetto.dev: a bar per piece and link.

Complete events (``ph: X``) in microseconds, one process for every device that sends and one thread for every
link, as "Trace Event Format" (Duffin et al., Google, 2016) has them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from blinksim.results import keyed
from blinksim.textio.whole_files import write_text

if TYPE_CHECKING:
    from blinksim.timing.simulator import Timeline

MOST_EVENTS = 200_000
Event = dict[str, Any]


def events(timeline: Timeline, most: int = MOST_EVENTS) -> list[Event]:
    """The trace events of the transfers in the order of time, behind the names of processes and threads.

    Of more than `most` transfers those of a sample from the whole run (`Timeline.transfers`). Processes and threads
    stand in the order of their names, ``gpu2`` before ``gpu10``.
    """
    transfers = list(timeline.transfers(most))
    rows = sorted({transfer.resource for transfer in transfers}, key=_natural)
    threads = {row: number for number, row in enumerate(rows, 1)}
    owners = sorted({_owner(resource) for resource in rows}, key=_natural)
    processes = {owner: number for number, owner in enumerate(owners, 1)}
    listed = [event for owner, number in processes.items() for event in _named("process", owner, number, 0)]
    for resource, number in threads.items():
        listed += _named("thread", resource, processes[_owner(resource)], number)
    for transfer in transfers:
        place = {"pid": processes[_owner(transfer.resource)], "tid": threads[transfer.resource]}
        name = f"chunk {transfer.chunk}" + (f" piece {transfer.piece}" if timeline.pieces > 1 else "")
        args = keyed(transfer, "chunk piece from=src to=dst arrived_us", arrived_us=transfer.arrived_s * 1e6)
        times = {"ts": transfer.start_s * 1e6, "dur": transfer.time_s * 1e6}
        listed.append({"name": name, "cat": transfer.kind, "ph": "X", **times, "args": args, **place})
    return listed


def _owner(resource: str) -> str:
    return resource.partition("->")[0]


def _natural(name: str) -> tuple[tuple[int, int | str], ...]:
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.findall(r"[0-9]+|[^0-9]+", name))


def _named(what: str, name: str, process: int, thread: int) -> Iterator[Event]:
    """The name of a process or thread, and its place among the others."""
    number = thread or process
    for key, value in (("name", {"name": name}), ("sort_index", {"sort_index": number})):
        yield {"name": f"{what}_{key}", "ph": "M", "pid": process, "tid": thread, "args": value}


def write_trace(
    timeline: Timeline, path: str | os.PathLike[str], force: bool = False, most: int = MOST_EVENTS
) -> str | None:
    """Writes the trace; returns a sentence if it does not hold every transfer. Raises as `write_text` does."""
    listed = events(timeline, most)
    shown, all_of_them = sum(event["ph"] == "X" for event in listed), timeline.transfer_count
    cut = None
    if shown < all_of_them:
        recorded, pieces = timeline.recorded_pieces, timeline.pieces
        whole = "the whole run" if recorded == pieces else f"the first {recorded:,} of {pieces:,} pieces"
        cut = (
            f"the trace holds {shown:,} of {all_of_them:,} transfers, sampled from {whole}; a larger chunk= makes fewer"
        )
    about: dict[str, Any] = {"answer": timeline.sentence(), "service": timeline.discipline}
    about |= {"transfers": all_of_them} | ({"cut": cut} if cut else {})
    document = {"traceEvents": listed, "displayTimeUnit": "ns", "otherData": about}
    write_text(path, json.dumps(document, separators=(",", ":"), allow_nan=False), force)
    return cut
