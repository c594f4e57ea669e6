"""MSCCL++ plans read as the executor reads them, and carried out symbolically.

Every unit of data is the set of contributions in it. Thread blocks run one operation at a time in any order; puts write
to the other GPU at once, signals are counted, barriers wait for all their blocks, and what a signal announces or a wait
lets in needs a `nop` (all threads of the block meet) in between. Read from MSCCL++ src/core/executor.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import FileError
from blinksim.formats.msccl.thread_blocks import (
    FILL,
    BlockId,
    Contents,
    Contributions,
    Effort,
    V,
    holds_input,
    interleave,
    listed,
    promised,
)
from blinksim.textio.strict_json import Entry, parse

MOST_OPERATIONS, MOST_BARRIERS, MOST_CHANNELS_OF_A_BLOCK = 64, 16, 16
_OPTIONAL = {
    "reuse_resources": False,
    "num_threads_per_block": 1024,
    "use_double_scratch_buffer": False,
    "buffer_alignment": 16,
    "min_message_size": 0,
    "max_message_size": 2**64 - 1,
}
_KINDS = ("nop", "barrier", "put", "signal", "wait", "copy", "re")
_ORDERS = 3
_MOST_GPUS = 1024
Span = tuple[int, str, int, int]


@dataclass(frozen=True, slots=True)
class Operation:
    """sources and targets: (rank, buffer, first unit, units). channel: (from, to, number of that pair's channel)."""

    kind: str
    sources: tuple[Span, ...]
    targets: tuple[Span, ...]
    channel: int
    barrier: int
    blocks: int
    place: str


@dataclass(frozen=True, slots=True)
class Plan:
    """gpus: of every rank the sizes of its buffers and its blocks' operations. twin: of channel (rank, number)."""

    name: str
    collective: str
    sizes: tuple[dict[str, int], ...]
    blocks: tuple[tuple[tuple[Operation, ...], ...], ...]
    twin: dict[tuple[int, int], tuple[int, int]]
    in_place: bool

    @property
    def units(self) -> int:
        """Units of the vector."""
        return max(self.sizes[0]["i"], self.sizes[0]["o"])

    def nth(self, rank: int, channel: int) -> int:
        """Which of the channels from a rank to the same peer a channel of the rank is, counted from 0."""
        peer = self.twin[rank, channel][0] if channel >= 0 else -1
        return sum(self.twin[rank, other][0] == peer for other in range(channel))


@dataclass(frozen=True, slots=True)
class Counted:
    """The most thread blocks of a GPU, the most operations of one, and the scratch units of every rank."""

    blocks: int
    operations: int
    scratch: tuple[int, ...]


def check_text(text: str, path: str | Path, *, root: int = 0) -> Counted:
    """As `check`, for the text of a plan."""
    return check(parse(path, text.encode("utf-8"), "plan"), path, root=root)


def check(document: object, path: str | Path, *, root: int = 0) -> Counted:
    """Reads and carries out the plan in a JSON document; returns what was counted.

    root: of rooted collectives, since the format does not name it. Raises `FileError` for what the executor refuses,
    what waits forever, and what does not end as promised, and `InfeasibleError` for a plan too large to follow.
    """
    plan, effort = read(document, path), Effort(path)
    for seed in range(_ORDERS):
        wrong = run(plan, effort, root=root, seed=seed)
        if wrong:
            raise FileError(path, wrong)
    return Counted(
        max(len(blocks) for blocks in plan.blocks),
        max((len(ops) for blocks in plan.blocks for ops in blocks), default=0),
        tuple(sizes["s"] for sizes in plan.sizes),
    )


# --- reading ------------------------------------------------------------------------------------------------------


def read_text(text: str, path: str | Path) -> Plan:
    """The plan in a file; raises `FileError` naming the key that is wrong."""
    return read(parse(path, text.encode("utf-8"), "plan"), path)


def read(document: object, path: str | Path) -> Plan:
    """The plan in a JSON document; raises as `read_text`."""
    fields = Entry(path, "", document).fields(("name", "collective", "protocol", "inplace", "gpus"), _OPTIONAL)
    name = fields["name"].text()
    collective = fields["collective"].text()
    if collective not in COLLECTIVES:
        raise fields["collective"].wrong(f"must be one of {', '.join(COLLECTIVES)}")
    if fields["protocol"].text() != "Simple":
        raise fields["protocol"].wrong("only plans of protocol Simple are read here")
    gpus = list(fields["gpus"].items())
    if not 1 <= len(gpus) <= _MOST_GPUS:
        raise fields["gpus"].wrong(f"lists {len(gpus)} GPUs; a plan has 1 to {_MOST_GPUS}")
    optional: dict[str, Any] = {"remote_buffers": [], "semaphores": []}
    keys = ("id", "input_chunks", "output_chunks", "scratch_chunks", "threadblocks", "channels")
    parts = [gpu.fields(keys, optional) for gpu in gpus]
    for rank, part in enumerate(parts):
        part["id"].whole(rank, rank)
    names = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
    sizes = tuple({b: part[key].whole(0 if b == "s" else 1, 2**20) for b, key in names.items()} for part in parts)
    peers = [_peers(part["channels"], len(gpus)) for part in parts]
    # The channels of each pair, at the end of one of the two, in the order in which they are numbered there.
    ends: dict[tuple[int, int], list[int]] = {}
    for rank, others in enumerate(peers):
        for number, peer in enumerate(others):
            ends.setdefault((rank, peer), []).append(number)
    twin = {}
    for (rank, peer), numbers in ends.items():
        back = ends.get((peer, rank), []) if peer != rank else []
        if len(back) < len(numbers):
            raise parts[rank]["channels"].wrong(f"channel {numbers[len(back)]} to {peer} has no other end")
        twin.update({(rank, number): (peer, other) for number, other in zip(numbers, back, strict=False)})
    blocks = []
    for rank, part in enumerate(parts):
        remotes = _remotes(part["remote_buffers"], len(gpus))
        given = enumerate(part["threadblocks"].items())
        blocks.append(tuple(_block(block, rank, number, sizes, remotes, len(peers[rank])) for number, block in given))
    return Plan(name, collective, sizes, tuple(blocks), twin, bool(fields["inplace"].a(bool, "true or false")))


def _peers(entry: Entry, count: int) -> list[int]:
    found: list[int] = []
    for channel in entry.items():
        fields = channel.fields(("channel_type", "connected_to"))
        if fields["channel_type"].text() != "memory":
            raise fields["channel_type"].wrong("only memory channels are read here")
        found += [peer.whole(0, count - 1) for peer in fields["connected_to"].items()]
    return found


def _remotes(entry: Entry, count: int) -> list[tuple[int, str]]:
    found = []
    for buffer in entry.items():
        fields = buffer.fields(("rank", "type", "access_channel_types"))
        found.append((fields["rank"].whole(0, count - 1), _kind(fields["type"])))
    return found


def _kind(entry: Entry) -> str:
    if entry.text() not in ("i", "o", "s"):
        raise entry.wrong("must be i, o or s")
    return entry.text()


def _block(
    entry: Entry, rank: int, number: int, sizes: tuple[dict[str, int], ...], remotes: list[tuple[int, str]], count: int
) -> tuple[Operation, ...]:
    fields = entry.fields(("id", "ops", "channels"), {"remote_buffer_refs": []})
    fields["id"].whole(number, number)
    channels: list[int] = []
    for group in fields["channels"].items():
        inner = group.fields(("channel_type", "channel_ids"))
        channels += [one.whole(0, count - 1) for one in inner["channel_ids"].items()]
    refs: list[int] = []
    for group in fields["remote_buffer_refs"].items():
        inner = group.fields(("access_channel_type", "remote_buffer_ids"))
        refs += [one.whole(0, len(remotes) - 1) for one in inner["remote_buffer_ids"].items()]
    if max(len(channels), len(refs)) > MOST_CHANNELS_OF_A_BLOCK:
        raise entry.wrong(f"uses more than {MOST_CHANNELS_OF_A_BLOCK} channels or remote buffers")
    ops = tuple(_operation(op, rank, sizes, channels, [remotes[ref] for ref in refs]) for op in fields["ops"].items())
    if len(ops) > MOST_OPERATIONS:
        raise entry.wrong(f"has {len(ops)} operations; the executor takes {MOST_OPERATIONS}")
    return ops


def _operation(
    entry: Entry, rank: int, sizes: tuple[dict[str, int], ...], channels: list[int], remotes: list[tuple[int, str]]
) -> Operation:
    optional: dict[str, Any] = {"src_buff": [], "dst_buff": [], "channel_ids": [], "channel_type": "none"}
    fields = entry.fields(("name",), optional | {"barrier_id": -1, "num_threadblocks": 0, "reduce_op": "sum"})
    kind = fields["name"].text()
    if kind not in _KINDS:
        raise fields["name"].wrong(f"must be one of {', '.join(_KINDS)}")

    def spans(key: str) -> tuple[Span, ...]:
        found = []
        for item in fields[key].items():
            part = item.fields(("index", "size"), {"type": None, "buffer_id": None})
            if part["buffer_id"].value is None:
                where = rank, _kind(part["type"])
            else:
                where = remotes[part["buffer_id"].whole(0, len(remotes) - 1)]
            size = part["size"].whole(1, 2**20)
            found.append((*where, part["index"].whole(0, sizes[where[0]][where[1]] - size), size))
        return tuple(found)

    sources, targets = spans("src_buff"), spans("dst_buff")
    needed = {"put": (1, 1), "copy": (1, 1), "re": (2, 1)}.get(kind, (0, 0))
    if (len(sources), len(targets)) != needed or len({span[3] for span in (*sources, *targets)}) > 1:
        raise entry.wrong(f"{kind} needs {needed[0]} sources and {needed[1]} targets of one size")
    ids = [one.whole(0, len(channels) - 1) for one in fields["channel_ids"].items()]
    if kind in ("signal", "wait") and len(ids) != 1:
        raise entry.wrong(f"{kind} needs one channel here")
    barrier, blocks = fields["barrier_id"].whole(-1, MOST_BARRIERS - 1), fields["num_threadblocks"].whole(0, 1024)
    if kind == "barrier" and (barrier < 0 or blocks < 1):
        raise entry.wrong("a barrier needs barrier_id and num_threadblocks")
    return Operation(kind, sources, targets, channels[ids[0]] if ids else -1, barrier, blocks, entry.place)


# --- carrying out -------------------------------------------------------------------------------------------------


def run(plan: Plan, effort: Effort | None = None, *, root: int = 0, seed: int = 0) -> str:
    """What goes wrong when the plan is carried out, as a sentence; empty if all ends as promised."""
    machine = Memory(plan, Contributions(), effort or Effort(), root=root)
    wrong = machine.run(seed)
    if wrong:
        return wrong
    for rank, unit, expected in promised(machine.collective, len(plan.blocks), plan.units):
        found = machine.memory.get((rank, "o", unit), Counter())
        machine.effort.spend(len(expected))
        if found != expected:
            return f"rank {rank} ends with the wrong o[{unit}]: {listed(found)} (rank, chunk)"
    return ""


class Memory(Generic[V]):
    """The memory of all GPUs, signals that were sent and not yet awaited, and who waits at which barrier.

    contents: what is known of each unit. effort: what is left of it is used.
    """

    def __init__(self, plan: Plan, contents: Contents[V], effort: Effort, *, root: int = 0) -> None:
        self.plan, self.contents, self.effort = plan, contents, effort
        self.collective = Collective(plan.collective, root)
        effort.spend(FILL * sum(sizes["i"] for sizes in plan.sizes))
        self.memory: dict[tuple[int, str, int], V] = {
            (rank, "i", unit): contents.own(rank, unit)
            for rank, sizes in enumerate(plan.sizes)
            if holds_input(self.collective, rank)
            for unit in range(sizes["i"])
        }
        self.signals: Counter[tuple[int, int]] = Counter()
        # The kind of the operation before, since all threads of a block last met.
        self._before: dict[BlockId, str] = {}
        self._waiting: defaultdict[tuple[int, int], set[BlockId]] = defaultdict(set)
        self._released: set[BlockId] = set()

    def run(self, seed: int | None = None) -> str:
        """Runs all blocks; returns what goes wrong, as a sentence. seed: as for `interleave`."""
        blocks = self.plan.blocks
        lengths = {(rank, number): len(ops) for rank, own in enumerate(blocks) for number, ops in enumerate(own)}
        stopped = interleave(lengths, self, seed, self.effort)
        if stopped is not None:
            (rank, number), position, wrong = stopped
            return f"{blocks[rank][number][position].place}: {wrong or 'waits forever'}"
        if any(self.signals.values()):
            return "a signal is left over, which the next run of the plan would take for its own"
        return ""

    @staticmethod
    def place(rank: int, buffer: str, unit: int) -> tuple[int, str, int]:
        """The key of a unit in `memory`."""
        return rank, buffer, unit

    def _operation(self, block: BlockId, position: int) -> Operation:
        rank, number = block
        return self.plan.blocks[rank][number][position]

    def ready(self, block: BlockId, position: int) -> bool:
        op = self._operation(block, position)
        if op.kind == "wait":
            return self.signals[block[0], op.channel] > 0
        if op.kind == "barrier" and block not in self._released:
            waiting = self._waiting[block[0], op.barrier]
            waiting.add(block)
            if len(waiting) < op.blocks:
                return False
            # The last one to come lets the others go.
            self._released |= waiting
            waiting.clear()
        return True

    def carry_out(self, block: BlockId, position: int) -> str:
        op = self._operation(block, position)
        wrong = self._apply(op, self._before.get(block, ""), block[0], self._goes_on(block, position))
        if op.kind == "signal":
            self.signals[self.plan.twin[block[0], op.channel]] += 1
        elif op.kind == "wait":
            self.signals[block[0], op.channel] -= 1
        elif op.kind == "barrier":
            self._released.discard(block)
        self._before[block] = "" if op.kind in ("nop", "barrier") else op.kind
        return wrong

    def _goes_on(self, block: BlockId, position: int) -> bool:
        """True if the block puts more over the same connection before it signals."""
        rank, number = block
        after = (op for op in self.plan.blocks[rank][number][position + 1 :] if op.kind in ("put", "signal"))
        following = next(after, None)
        return following is not None and following.kind == "put"

    def _apply(self, op: Operation, before: str, own: int, more: bool) -> str:
        """Carries out an operation on data; `before`: the kind of the one before it, empty after all threads met.

        more: for a put, as in `Contents.sent`.
        """
        if op.kind == "signal" and before in ("put", "copy", "re"):
            return f"a signal right after {before}: other threads may still be writing; a nop belongs between"
        if op.kind in ("put", "copy", "re") and before == "wait":
            return f"{op.kind} right after wait: other threads have not waited; a nop belongs between"
        if op.kind not in ("put", "copy", "re"):
            return ""
        values: list[V] = []
        for rank, buffer, start, size in op.sources:
            read = [self.memory.get((rank, buffer, start + k)) for k in range(size)]
            if any(value is None for value in read):
                return f"reads {buffer}[{start}] of rank {rank}, where nothing is"
            present = [value for value in read if value is not None]
            values = [self.contents.added(*pair) for pair in zip(values, present, strict=True)] if values else present
            self.effort.spend(self.contents.effort(values))
        (rank, buffer, start, _) = op.targets[0]
        if rank != own:
            values = self.contents.sent(own, rank, self.plan.nth(own, op.channel), values, more)
        for k, value in enumerate(values):
            self.memory[rank, buffer, start + k] = value
        return ""
