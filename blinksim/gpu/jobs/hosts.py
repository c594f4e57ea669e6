"""On how many hosts the ranks of a group are: memory is shared within one."""

from __future__ import annotations

import socket
from functools import cached_property
from pathlib import Path

from blinksim.errors import BlinksimError
from blinksim.gpu.jobs.rendezvous import Store
from blinksim.textio import text_files

# Another one each time that a computer starts: two hosts may have the same name.
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def this_host() -> str:
    """What no other host calls itself."""
    try:
        boot = text_files.read_text(_BOOT).strip()
    except (OSError, BlinksimError):
        boot = ""
    return f"{socket.gethostname()} {boot}"


class Hosts:
    """Those of the ranks of a group, each of which makes one of these.

    store: of the group, for this alone.
    """

    def __init__(self, store: Store, rank: int, ranks: int) -> None:
        self.store, self.ranks = store, ranks
        store.set(f"{rank}", this_host())

    @cached_property
    def several(self) -> str:
        """Why no schedule is run, if there are several; asked for by all ranks, the first time it waits for them."""
        names = {self.store.get(f"{rank}").decode() for rank in range(self.ranks)}
        return f"the ranks are on {len(names)} hosts, and schedules run on one" if len(names) > 1 else ""
