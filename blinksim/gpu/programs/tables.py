"""The tables of 64-bit words, one per device, in which kernels.cu finds a program and its addresses.

The head has one word each for: queues, slices, order, elements of a unit, units of a piece, told, awaited, 1
if the program is staged, the bytes of half an inbox (the same for all devices), the words from one queue to
the next, and the least clock cycles that a wire takes for a KiB. Behind it are the queues, each padded to
that length, then the heralds: the `told` addresses in other devices' memory to announce a new launch to, and
the `awaited` ones here to listen at.

A queue is the number of its ops (with bit 32 set if it is a wire), 7 words for each op, and the addresses:
length, key, number, and the positions, counted from the beginning of the queue, of the op's source, target,
wait and signal addresses, which end where those of the next op begin (so there is one op more than counted).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blinksim.gpu.programs.dtypes import REDUCTIONS, ElementType
from blinksim.gpu.programs.program import INBOX, LINE_BYTES, PACKET_LINES, READY, Longs, Program, by_flag, receivers
from blinksim.textio import text_files

HEAD_WORDS, OP_WORDS = 11, 7
# Where the head has the words from one queue to the next.
STRIDE = 9
# The longest queue that the kernel copies into shared memory.
CACHE_WORDS = 2048
# Words that the kernel leaves behind when a wait takes too long.
ERROR_WORDS = 6
# Marks addresses in an inbox.
IN_INBOX = 1 << 62


def pack(
    program: Program, buffers: Sequence[Sequence[int]], flags: Sequence[int], heralds: Sequence[int], pace: int = 0
) -> list[Longs]:
    """The table of each device, as int64.

    buffers (device, buffer): addresses of the INPUT, OUTPUT, SCRATCH and INBOX buffers. flags: addresses of
    each device's flags, 8 bytes for every flag and slice, the slices of a flag side by side. heralds:
    addresses of one 8-byte word per device. pace: cycles for a KiB on wires. Addresses in an inbox have a bit
    set that no address has; flags that packets carry are left out.
    """
    base = np.array(buffers, dtype=np.int64).reshape(-1, 4)
    flag_base = np.array(flags, dtype=np.int64)
    each = 8 * program.slices
    op_device = program.op_device
    here = np.repeat(op_device, np.diff(program.source_start))
    sources = base[here, program.sources[:, 0]] + _distance(program, program.sources[:, 0], program.sources[:, 1])
    rows = program.destinations
    targets = base[rows[:, 0], rows[:, 1]] + _distance(program, rows[:, 1], rows[:, 2])
    here = np.repeat(op_device, np.diff(program.wait_start))
    waits = flag_base[here] + each * program.waits[:, 0]
    signals = flag_base[program.signals[:, 0]] + each * program.signals[:, 1]
    waited, signalled = by_flag(program)
    flagged = _only(program.wait_start, waits, waited), _only(program.signal_start, signals, signalled)
    lists = (program.source_start, sources), (program.destination_start, targets), *flagged
    sends_to = receivers(program)
    tables = []
    for device in range(len(program.devices)):
        queues = list[Longs]()
        for queue in program.queues_of(device):
            first, last = int(program.queue_start[queue]), int(program.queue_start[queue + 1])
            ops = np.zeros((last - first + 1, OP_WORDS), dtype=np.int64)
            columns = program.length[first:last], program.key[first:last], np.arange(first, last)
            ops[:-1, :3] = np.transpose(columns)
            addresses, at = list[Longs](), 1 + ops.size
            for column, (start, values) in enumerate(lists, start=3):
                ops[:, column] = at + start[first : last + 1] - start[first]
                addresses.append(values[start[first] : start[last]])
                at += len(addresses[-1])
            stored_to = rows[program.destination_start[first] : program.destination_start[last], 0]
            wire = program.order == READY and bool((stored_to != device).any())
            number = np.array([last - first + (wire << 32)], dtype=np.int64)
            queues.append(np.concatenate([number, ops.ravel(), *addresses]))
        posts = [heralds[other] + 8 * device for other, targets_of in enumerate(sends_to) if device in targets_of]
        awaited = [heralds[device] + 8 * other for other in sends_to[device]]
        stride = max((len(queue) for queue in queues), default=0)
        head = [len(queues), program.slices, program.order, program.unit, program.piece_units, len(posts), len(awaited)]
        head += [int(program.staged), inbox_bytes(program), stride, pace]
        filled = [np.concatenate([queue, np.zeros(stride - len(queue), dtype=np.int64)]) for queue in queues]
        parts = [np.array(head), *filled, np.array([*posts, *awaited], dtype=np.int64)]
        tables.append(np.concatenate(parts).astype(np.int64))
    return tables


def inbox_bytes(program: Program) -> int:
    """Bytes of half an inbox, the fullest one's, in whole lines. Launches use the halves in turn."""
    return -(-int(_inside(program, program.sizes[:, INBOX]).max(initial=0)) // LINE_BYTES) * LINE_BYTES


def buffer_bytes(program: Program, device: int) -> list[int]:
    """Bytes of each buffer of a device; of an inbox that is used, both halves."""
    sizes = program.sizes[device]
    return [*(sizes[:INBOX] * program.kind.itemsize).tolist(), 2 * inbox_bytes(program) if sizes[INBOX] else 0]


def _distance(program: Program, buffer: Longs, offset: Longs) -> Longs:
    """What to add to a buffer's address for an offset in elements; inboxes are marked, and may hold packets."""
    marked: Longs = np.where(buffer == INBOX, _inside(program, offset) + IN_INBOX, offset * program.kind.itemsize)
    return marked


def _inside(program: Program, elements: Longs) -> Longs:
    """Bytes that elements take in an inbox, where packets hold units of them."""
    return elements // program.unit * PACKET_LINES * LINE_BYTES if program.packets else elements * program.kind.itemsize


def _only(start: Longs, values: Longs, chosen: npt.NDArray[np.bool_]) -> tuple[Longs, Longs]:
    """The rows that are kept, and where those of each op begin among them."""
    return np.concatenate(([0], np.cumsum(chosen)))[start], values[chosen]


def kernel_source(kind: ElementType, op: str, packets: bool = False) -> str:
    """kernels.cu for an element type and a reduction: with the definitions that it asks for in front."""
    element, wide, convert = text_files.read_words("type in C")[kind.name.removeprefix("u")].split(", ")
    # Overflow of signed integers is undefined in C++; unsigned arithmetic gives the same bits.
    if kind.name.startswith("u") or (op in ("sum", "prod") and kind.name.startswith("int")):
        element, wide = (f"unsigned {one.removeprefix('signed ')}" for one in (element, wide))
    names = {"ELEMENT": element, "WIDE": wide, "CONVERT": convert, "REDUCE": list(REDUCTIONS).index(op)}
    names["PACKETS"] = int(packets)
    head = "".join(f"#define {name} {value}\n" for name, value in names.items())
    return head + text_files.read_text(Path(__file__).parents[1] / "execution" / "kernels.cu")
