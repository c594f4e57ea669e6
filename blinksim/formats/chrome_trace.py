"""Chrome's trace event format, for chrome://tracing and https://ui.perfetto.dev: a bar for every piece on every link.

Complete events (``ph: X``) in microseconds, one process for every device that sends and one thread for every link, as
"Trace Event Format" (Duffin et al., Google, 2016) has them.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from blinksim.textio.text_files import write_text

if TYPE_CHECKING:
    from blinksim.simulation.timeline import Timeline

MOST_EVENTS = 200_000


def events(timeline: Timeline, most: int = MOST_EVENTS) -> list[dict[str, Any]]:
    """The trace events of the first `most` transfers, in the order of time, behind the names of processes and threads.

    Where servers share their rate, every chunk has a thread of its own, since its pieces overlap with those of others.
    """
    apart = timeline.service in ("weighted", "equal")
    processes: dict[str, int] = {}
    threads: dict[tuple[str, int], int] = {}
    found: list[dict[str, Any]] = []
    named: list[dict[str, Any]] = []
    for transfer in timeline.transfers(most):
        owner = transfer.resource.partition("->")[0]
        if owner not in processes:
            processes[owner] = len(processes) + 1
            named.append(_name("process_name", owner, processes[owner], 0))
        thread = (transfer.resource, transfer.chunk if apart else -1)
        if thread not in threads:
            threads[thread] = len(threads) + 1
            label = f"{transfer.resource}, chunk {transfer.chunk}" if apart else transfer.resource
            named.append(_name("thread_name", label, processes[owner], threads[thread]))
        found.append(
            {
                "name": f"chunk {transfer.chunk}" + (f" piece {transfer.piece}" if timeline.pieces > 1 else ""),
                "cat": transfer.kind,
                "ph": "X",
                "ts": transfer.start_s * 1e6,
                "dur": transfer.time_s * 1e6,
                "pid": processes[owner],
                "tid": threads[thread],
                "args": {
                    "chunk": transfer.chunk,
                    "piece": transfer.piece,
                    "from": transfer.src,
                    "to": transfer.dst,
                    "arrived_us": transfer.arrived_s * 1e6,
                },
            }
        )
    return named + found


def _name(what: str, name: str, process: int, thread: int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def write_trace(
    timeline: Timeline, path: str | os.PathLike[str], force: bool = False, most: int = MOST_EVENTS
) -> str | None:
    """Writes the trace; returns a sentence if it does not hold every transfer. Raises as `write_text` does."""
    listed = events(timeline, most)
    shown, all_of_them = sum(event["ph"] == "X" for event in listed), timeline.transfer_count
    cut = None
    if shown < all_of_them:
        cut = f"the trace holds the first {shown:,} of {all_of_them:,} transfers; a larger chunk= makes fewer"
    document = {
        "traceEvents": listed,
        "displayTimeUnit": "ns",
        "otherData": {
            "answer": timeline.sentence(),
            "service": timeline.discipline,
            "transfers": all_of_them,
            **({"cut": cut} if cut else {}),
        },
    }
    write_text(path, json.dumps(document, separators=(",", ":"), allow_nan=False), force)
    return cut
