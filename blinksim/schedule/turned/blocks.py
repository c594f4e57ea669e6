"""Does an exchange by symmetry give every rank what every other has for it? Proved block by block of each sort.

A block is what one rank has for another. The images of a chunk are a whole orbit of the group, so what they add to the
blocks is the same for all blocks of an orbit (the orbit-stabilizer theorem): one block of each orbit is looked at, with
the orbits counted. Tens of thousands of ranks have billions of blocks, but few sorts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from blinksim.schedule import chunk_ends
from blinksim.schedule.turned.symmetric import SymmetricSchedule

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Blocks:
    """The orbits of blocks that the chunks of `base` belong to, B of them.

    of (chunks): which one. twin (B): the orbit of the blocks that go the other way, -1 if no chunk belongs to it. size
    (B): how many blocks each has. first (B, 2): the ranks of one of them.
    """

    of: Ints
    twin: Ints
    size: Ints
    first: Ints

    @classmethod
    def read(cls, whole: SymmetricSchedule) -> Blocks:
        """From the origins and targets of the chunks, which must be ranks."""
        base, turns = whole.base, whole.turns
        device = base.device_of.astype(np.int64)
        src, dst = device[base.origin], device[base.target]
        keys, back = (_code(whole, *ends) for ends in ((src, dst), (dst, src)))
        found, first, of = np.unique(keys, return_index=True, return_inverse=True)
        twin = np.minimum(np.searchsorted(found, back[first]), len(found) - 1)
        twin = np.where(found[twin] == back[first], twin, -1)
        ranks = np.stack([base.origin[first], base.target[first]], axis=1).astype(np.int64)
        return cls(of, twin, turns.images(src[first], dst[first]), ranks)


def _code(whole: SymmetricSchedule, src: Ints, dst: Ints) -> Ints:
    """A number for every pair of devices, equal for those of one orbit."""
    a, b, _ = whole.turns.between(src, dst)
    return a * len(whole.topology.devices) + b


def wrong_exchange(whole: SymmetricSchedule) -> Iterator[str]:
    """As `chunk_ends.wrong_chunks` of an alltoall with every image, in sentences."""
    base, n = whole.base, whole.topology.ranks
    unlabelled = list(chunk_ends.wrong_labels(base))
    yield from unlabelled
    if unlabelled:
        return
    blocks = Blocks.read(whole)
    count = int(blocks.size.sum())
    if count < n * n:
        yield f"{n} ranks have {n * n} blocks to exchange, but there are chunks for {count} only"
        return
    sums = np.zeros(len(blocks.size), dtype=np.int64)
    np.add.at(sums, blocks.of, whole.weighted.share_num)
    for orbit, (held, size) in enumerate(zip(sums.tolist(), blocks.size.tolist(), strict=True)):
        if held * n != base.share_den * size:
            origin, target = blocks.first[orbit].tolist()
            found = Fraction(held, base.share_den * size)
            yield f"rank {origin} has {found} of its size for rank {target}, not {Fraction(1, n)}"
            return


def overwritten_in_place(whole: SymmetricSchedule) -> str | None:
    """As `chunk_ends.overwritten_in_place` of every image: a turn keeps the steps."""
    base, n = whole.base, whole.topology.ranks
    if not whole.collective.exchanges or not base.sends:
        return None
    if why := chunk_ends.why_not_in_place(base):
        return why
    if min(int(base.origin.min()), int(base.target.min())) < 0:
        return None
    blocks = Blocks.read(whole)
    # A schedule without a chunk for every block is wrong in any case, which `wrong_exchange` says.
    if int(blocks.size.sum()) < n * n:
        return None
    times = whole.times // blocks.size[blocks.of]
    return chunk_ends.overwritten(base, blocks.of, blocks.twin, *chunk_ends.reads_and_writes(base), times)
