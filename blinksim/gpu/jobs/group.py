"""A group of ranks, one process each, that call collectives in the same order; its store and its errors.

The processes find each other through a store of keys, as torch has one, or through files in a folder, and
share memory within a host. What went wrong is read from the notes that every rank keeps.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from blinksim._version import __version__
from blinksim.errors import BlinksimError, InputError, blamed_on
from blinksim.gpu.jobs.backend import Backend, Words
from blinksim.gpu.jobs.job_plan import FIRST_HERALD, GAVE_UP, MISMATCH, MOST_RANKS, JobPlan, Launch, Planner
from blinksim.gpu.programs.of_calls import Call, Segment
from blinksim.results import count
from blinksim.textio import text_files
from blinksim.textio.strict_json import parse
from blinksim.units import format_size_about


class Store(Protocol):
    """The part of torch.distributed.Store that a group needs; both raise if a key does not come in time."""

    def set(self, key: str, value: str, /) -> object: ...

    def get(self, key: str, /) -> bytes:
        """Waits for the key."""

    def check(self, keys: list[str], /) -> bool:
        """True if all of them are set."""


class FolderStore:
    """Keys as files in a folder that all processes see.

    Parameters
    ----------
    folder : path
        Made if it is missing; one for every run.
    timeout_s : float
        How long `get` waits. It then raises `TimeoutError`.

    Examples
    --------
    >>> import tempfile
    >>> from blinksim.gpu.jobs.group import FolderStore
    >>> store = FolderStore(tempfile.mkdtemp(), timeout_s=1)
    >>> store.set("answer", "42")
    >>> store.get("answer")
    b'42'
    """

    def __init__(self, folder: str | os.PathLike[str], timeout_s: float = 60.0) -> None:
        if not timeout_s > 0:
            raise InputError(f"timeout_s is more than 0, not {timeout_s}")
        self.folder, self.timeout_s = Path(folder), timeout_s
        self.folder.mkdir(parents=True, exist_ok=True)

    def set(self, key: str, value: str, /) -> None:
        path = self._path(key)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(value, encoding="utf-8")
        part.replace(path)  # seen as a whole or not at all

    def get(self, key: str, /) -> bytes:
        path, end = self._path(key), time.monotonic() + self.timeout_s
        while True:
            if path.exists():
                return text_files.read_bytes(path, text_files.MIB)
            if time.monotonic() > end:
                raise TimeoutError(f"nobody has set {key} in {self.folder} for {self.timeout_s:g} s")
            time.sleep(0.002)

    def check(self, keys: list[str], /) -> bool:
        return all(self._path(key).exists() for key in keys)

    def _path(self, key: str) -> Path:
        return self.folder / quote(key, safe="")


# Another one each time that a computer starts: two hosts may have the same name.
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def this_host() -> str:
    """What no other host calls itself."""
    boot = ""
    with suppress(OSError, BlinksimError):
        boot = text_files.read_text(_BOOT).strip()
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


class GroupError(BlinksimError):
    """A group of ranks cannot go on: one is dead or late, or they did not call the same."""

    exit_code = 1


def explain(notes: Words, rank: int, ranks: int, timeout_s: float, name_of: Callable[[int], str]) -> str:
    """One line about the notes of a rank that has an error.

    name_of: what a signature stands for.
    """
    code = int(notes[0])
    differing = [notes[1:4].tolist()] if code == MISMATCH else mismatched(notes, rank, ranks)
    if differing:
        peer, theirs, ours = differing[0]
        here, there = (name_of(herald & 0xFFFFFFFF) for herald in (ours, theirs))
        called = f"call {ours >> 32} of the group is {here} on rank {rank}, and {there} on rank {peer}"
        return f"{called}; all ranks must call the same, in the same order"
    if code != GAVE_UP:
        return f"rank {int(notes[1])} of the group has failed; its own message says why"
    failed, ours = _last(notes, rank)
    late = [other for other in range(ranks) if other != rank and _last(notes, other)[0] < failed]
    who = "all ranks had begun it, and one did not go on"
    if late:
        *others, last = map(str, late)
        names = f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
        who = f"{names} had not begun it: dead, or late"
    return f"rank {rank} gave up after {timeout_s:g} s in call {failed} of the group, {name_of(ours)}: {who}"


def mismatched(notes: Words, rank: int, ranks: int) -> list[tuple[int, int, int]]:
    """(other rank, its herald, this rank's) for ranks that called something else in the same launch.

    A rank writes its own heralds into its notes as well.
    """
    heralds = notes[FIRST_HERALD : FIRST_HERALD + 2 * ranks].reshape(-1, 2).tolist()
    pairs = [(who, *two) for who, said in enumerate(heralds) for two in zip(said, heralds[rank], strict=True)]
    different = [row for row in pairs if row[2] and row[1] >> 32 == row[2] >> 32 and row[1] != row[2]]
    return sorted(different, key=lambda entry: entry[2] >> 32)


def _last(notes: Words, who: int) -> tuple[int, int]:
    """The last launch that a rank is known to have begun, and its signature."""
    word = max(int(notes[FIRST_HERALD + 2 * who + parity]) for parity in (0, 1))
    return word >> 32, word & 0xFFFFFFFF


TIMEOUT_S = 10.0
# Calls of which the programs are kept.
_MOST_CALLS = 512
# What a store raises once the rank that held it is dead; the group then finds out by itself.
_STORE_GONE = (OSError, RuntimeError)


class Group:
    """One rank's door to its group.

    Making a group is collective: every rank does it, with the same plan and the same sizes.

    Parameters
    ----------
    store : Store
        Seen by all ranks of this group and used by it alone (torch's `PrefixStore` makes a part of one).
    rank : int
        This process, from 0; behind the ranks of the plan come its relays, whose processes call `relay` and
        nothing else.
    plan : JobPlan
        Which schedule runs for which call; it also says how many ranks there are.
    backend : Backend
        What moves the data.
    segment : Segment, optional
        Sizes of the memory that the group allocates; it never takes more.
    timeout_s : float
        How long a rank waits for another one before the group fails.
    report : callable, optional
        Called with a line about the group, and about every kind of call when it is compiled.

    Raises
    ------
    GroupError
        If the ranks do not agree on the group.
    MissingError
        Without enough memory, or if a rank cannot map that of another.

    Examples
    --------
    Two ranks, here threads of one process:

    >>> import tempfile
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import numpy as np
    >>> from blinksim.gpu.programs.of_calls import Call
    >>> from blinksim.gpu.jobs.group import Group
    >>> from blinksim.gpu.jobs.job_plan import JobPlan
    >>> from blinksim.gpu.jobs.group import FolderStore
    >>> from blinksim.gpu.jobs.backend import SharedMemoryBackend
    >>> from blinksim.gpu.programs.dtypes import element_type
    >>> from blinksim.gpu.programs.of_calls import Segment
    >>> folder, small = tempfile.mkdtemp(), Segment.of(1 << 20)
    >>> def work(rank):
    ...     group = Group(FolderStore(folder), rank, JobPlan.for_switch(2), SharedMemoryBackend(), small)
    ...     data = np.full(3, rank + 1, dtype=np.float32)
    ...     group.run(Call("allreduce", 3, element_type("float32")), data, data)
    ...     group.close()
    ...     return data
    >>> with ThreadPoolExecutor(2) as threads:
    ...     print(*threads.map(work, range(2)))
    [3. 3. 3.] [3. 3. 3.]
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        plan: JobPlan,
        backend: Backend,
        segment: Segment | None = None,
        timeout_s: float = TIMEOUT_S,
        report: Callable[[str], object] | None = None,
    ) -> None:
        places = plan.ranks + len(plan.relays)
        if not 0 <= rank < places <= MOST_RANKS:
            raise InputError(f"rank {rank} of {places}: ranks count from 0, and a group has at most {MOST_RANKS}")
        if not timeout_s > 0:
            raise InputError(f"timeout_s is more than 0, not {timeout_s}")
        self.store, self.rank, self.ranks, self.backend = store, rank, places, backend
        self.segment = segment or Segment()
        self.timeout_s = timeout_s
        self._say = report or (lambda line: None)
        self.failure = ""
        self.closed = False
        self._loaded = 0
        self._names: dict[int, str] = {}
        self._calls: OrderedDict[Call, list[Launch]] = OrderedDict()
        # Whether packets can be used and how many blocks, as all ranks can; and everyone's handle.
        same = {"version": __version__, "ranks": self.ranks, "plan": plan.fingerprint}
        same |= {"segment": repr(self.segment), "backend": type(backend).__name__}
        handle = backend.allocate(self.segment)
        mine = {"same": same, "packets": backend.packets, "blocks": backend.blocks, "handle": handle}
        if rank >= plan.ranks:
            # Relays are told of calls by the first rank; where it closes a connection or dies, this ends.
            self._calls_here = Listener(family="AF_UNIX")
            mine["calls"] = self._calls_here.address
        store.set(f"member/{rank}", json.dumps(mine))
        members = [parse(f"member {other}", store.get(f"member/{other}")) for other in range(self.ranks)]
        for other, member in enumerate(members):
            for key, value in same.items():
                if (theirs := member["same"][key]) != value:
                    one = f"rank {rank} and rank {other} cannot be one group"
                    raise GroupError(f"{one}: {key} is {value} here and {theirs} there")
        packets, blocks = (min(member[key] for member in members) for key in ("packets", "blocks"))
        self.planner = Planner(plan, rank, self.segment, int(blocks), bool(packets))
        backend.connect(rank, [str(member["handle"]) for member in members])
        relays = members[plan.ranks :]
        self.relayed, self._told = bool(relays), [Client(str(one["calls"])) for one in relays if rank == 0]
        self._meet("connected")
        backend.settle()
        memory = f"{format_size_about(self.segment.total)} on {backend.name}"
        through = f" and {count(len(relays), 'relay')}" if relays else ""
        self._say(f"group of {plan.ranks} ranks{through} by {plan.origin}, {memory}")

    def _meet(self, what: str, timeout_s: float | None = None) -> None:
        """Returns when all ranks are here; raises `GroupError` after a while, by default that of the store."""
        self.store.set(f"{what}/{self.rank}", "here")
        end = None if timeout_s is None else time.monotonic() + timeout_s
        for other in range(self.ranks):
            while end is not None and not self.store.check([f"{what}/{other}"]):
                if time.monotonic() > end:
                    raise GroupError(f"rank {other} has not {what} for {timeout_s:g} s")
                time.sleep(0.002)
            self.store.get(f"{what}/{other}")

    def run(self, call: Call, source: Any, target: Any) -> None:
        """Runs a call, or queues it behind those before (on GPUs).

        source, target: vectors as the backend addresses memory. Allreduce, broadcast and reduce take the same
        vector twice. Raises `GroupError` if the group has failed: what its last calls left in their targets
        is then spoilt, NaN or -1.
        """
        self.check()
        if self.relayed and self.backend.capturing:
            raise InputError(f"{call}: relays do not see a CUDA graph replayed; call it outside of the graph")
        ended = "a relay of the group has ended its process; create the group again"
        with blamed_on(lambda _: GroupError(ended), OSError):
            for relay in self._told:
                relay.send(call)
        for launch in self.prepare(call):
            self.backend.launch(launch, call.op, source, target, self.timeout_s)

    def relay(self, nothing: Any) -> None:
        """Does a relay's part in every call, until the first rank closes the group or ends.

        nothing: as `run` takes vectors, one without elements. What fails is told by the ranks.
        """
        with self._calls_here, self._calls_here.accept() as calls, suppress(EOFError, OSError):
            while True:
                call = calls.recv()
                with suppress(BlinksimError):
                    self.run(call, nothing, nothing)
        self.close()

    def dismiss(self) -> None:
        """Lets the relays close the group as well."""
        while self._told:
            self._told.pop().close()

    def choose_by(self, plan: JobPlan) -> None:
        """Takes other rules from now on, on all ranks alike."""
        self.planner.plan = plan
        self._calls.clear()

    def prepare(self, call: Call) -> list[Launch]:
        """The launches of a call; compiled once."""
        if (launches := self._calls.get(call)) is None:
            launches = self.planner.launches(call)
            for launch in launches:
                # Lets others look up what a signature stands for.
                if launch.signature not in self._names:
                    self._names[launch.signature] = launch.says
                    with suppress(*_STORE_GONE):
                        self.store.set(f"call/{self.rank}/{launch.signature}", launch.says)
            if self.relayed:
                # To load may take until launches of other groups end, which wait for what is relayed here.
                for launch in launches:
                    self.backend.load(launch, call.op)
                self._loaded += 1
                self._meet(f"loaded call {self._loaded}", self.timeout_s)
            self._calls[call] = launches
            blocks = max(1, launches[0].program.queue_counts[self.rank] * launches[0].program.slices)
            times = f"{len(launches)} launch{'es' * (len(launches) > 1)} of {blocks} block{'s' * (blocks > 1)}"
            self._say(f"{call} ({format_size_about(call.nbytes)}): {launches[0].by}, {times}")
            if len(self._calls) > _MOST_CALLS:
                self._calls.popitem(last=False)
        self._calls.move_to_end(call)
        return launches

    def _look_up(self, signature: int) -> str:
        """What a signature stands for; whoever announces one has named it before."""
        with suppress(*_STORE_GONE):
            for other in range(self.ranks) if signature not in self._names else ():
                key = f"call/{other}/{signature}"
                if self.store.check([key]):
                    self._names[signature] = self.store.get(key).decode()
                    break
        return self._names.get(signature, "another call")

    def check(self) -> None:
        """Raises `GroupError` if a call has failed here or on another rank.

        On GPUs calls end later than they return, so a check sees what has failed so far.
        """
        if not self.failure and self.backend.alarmed():
            self.failure = explain(self.backend.notes(), self.rank, self.ranks, self.timeout_s, self._look_up)
        if self.failure:
            raise GroupError(f"{self.failure}; create the group again")

    def finish(self) -> None:
        """Waits for all calls; raises `GroupError` if one failed."""
        self.backend.finish()
        self.check()

    def close(self) -> None:
        """Frees the memory once no other rank can be using it, for which it waits as long as for anything else.

        What a rank that does not answer may still write to is kept: it would otherwise hit memory of somebody
        else.
        """
        if self.closed:
            return
        self.closed = True
        self.backend.finish()  # what runs gives up in time
        self.dismiss()
        everyone = self._all_have("closed")
        self.backend.disconnect()
        if everyone and self._all_have("left"):
            self.backend.free()
        # The store is mostly rank 0's, and ends with it.
        with suppress(*_STORE_GONE):
            self.store.set(f"gone/{self.rank}", "gone")
        if everyone and self.rank == 0:
            self._all_have("gone")

    def _all_have(self, what: str) -> bool:
        """True when all ranks have come here, False if one does not come in time."""
        with suppress(GroupError, *_STORE_GONE):
            self._meet(what, self.timeout_s)
            return True
        return False
