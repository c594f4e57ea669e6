"""Alltoall in few messages: blocks that go the same way for a while are sent together.

A block goes from member i of a node to member j of another, `far` nodes further on. Its way there is cut into
crossings, one for each digit of that distance (Bruck et al., IEEE TPDS 1997); a single one if the radix is the number
of nodes. Before each crossing the members of a node exchange what they have, so that all blocks for one node are with
the member that sends them there, on its own rail (PXN, NCCL 2.12; two-dimensional hierarchical alltoall, Tutel 2022).
The fewer such messages, the less their overheads count; the more rounds they are divided among, the more of what
happens inside nodes overlaps with what happens between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from blinksim.bounds.exchanges.rails import Ints

# Messages of a member in a round, and from how many on there are several rounds.
_IN_A_ROUND, _MANY = 32, 256


@dataclass(frozen=True)
class Course:
    """How blocks get from node to node.

    local: members of a node. orders: of the generators of a group whose elements take the first node to all others;
    nodes are numbered as `numpy.indices` numbers the elements. radix: of the digits of the distance, one crossing for
    each. groups: into how many groups the members of a node fall that a message is for, a divisor of their number.
    rounds: parts that the distances are divided among, where there is one crossing; in each all members send.
    """

    orders: tuple[int, ...]
    local: int
    radix: int
    groups: int
    rounds: int = 1

    @property
    def nodes(self) -> int:
        return prod(self.orders)

    @property
    def crossings(self) -> int:
        """How often a block goes from node to node at most."""
        found, reach = 1, self.radix
        while reach < self.nodes:
            found, reach = found + 1, reach * self.radix
        return found

    @property
    def handed(self) -> bool:
        """True if members hand blocks on between crossings and after the last, too."""
        return 1 < self.local > self.groups

    def plus(self, a: Ints, far: Ints, sign: int = 1) -> Ints:
        """The nodes that are so far from nodes `a`; with the sign -1 those from which it is so far to them."""
        parts = zip(np.unravel_index(a, self.orders), np.unravel_index(far, self.orders), self.orders, strict=True)
        return np.asarray(np.ravel_multi_index([(x + sign * y) % order for x, y, order in parts], self.orders))


@dataclass(frozen=True, eq=False)
class Hop:
    """A send of `blocks`: in `step`, from member `x` of node `a` to member `y` of the node `far` away; arrays.

    far: 0 inside a node.
    """

    blocks: Ints
    step: Ints
    a: Ints
    x: Ints
    far: Ints
    y: Ints


def hops(course: Course, a: Ints, i: Ints, far: Ints, j: Ints) -> Iterator[Hop]:
    """The sends of blocks from members `i` of nodes `a` to members `j` of the nodes `far` away, one after another."""
    apart, node, place = far > 0, a, i
    # What stays inside its node goes with the first round.
    step = np.where(apart, (far - 1) // (course.local // course.groups) % course.rounds, 0)
    reach = 1
    for number in range(course.crossings):
        rest = far if number == course.crossings - 1 else far % (reach * course.radix)
        digit = rest // reach
        goes = digit > 0
        if course.local > 1 and (number == 0 or course.handed):
            over = (digit * course.groups + j * course.groups // course.local) % course.local
            # All are with the receivers' places from the first exchange on, unless messages are for several of these.
            target = np.where(goes, over, place) if course.handed else j
            target = np.where(apart, target, j if number == 0 else place)
            yield _hop(place != target, step, node, place, np.zeros_like(far), target)
            place, step = target, step + 1
        away = course.plus(rest, far % reach, -1)
        yield _hop(goes, step, node, place, away, place)
        node, step, reach = np.where(goes, course.plus(a, rest), node), step + 1, reach * course.radix
    yield _hop(place != j, step, node, place, np.zeros_like(far), j)


def _hop(moves: npt.NDArray[np.bool_], step: Ints, a: Ints, x: Ints, far: Ints, y: Ints) -> Hop:
    blocks = np.flatnonzero(moves)
    return Hop(blocks, *(column[blocks] for column in (step, a, x, far, y)))


@dataclass(frozen=True)
class Delays:
    """Seconds of alpha of a message and of the overhead of each further one, inside nodes and between them."""

    inside: tuple[float, float]
    across: tuple[float, float]

    def of(self, course: Course) -> float:
        """Seconds that the messages of a course take without their bytes, all rounds at once."""
        (alpha, overhead), (far_alpha, far_overhead) = self.inside, self.across
        digits = min(course.radix, course.nodes) - 1
        messages = -(-digits * course.groups // course.local)
        total = course.crossings * (far_alpha + (messages - 1) * far_overhead)
        if course.local > 1:
            exchanges = course.crossings + 1 if course.handed else 1
            total += exchanges * (alpha + (course.local - 2) * overhead)
        return total


def once(orders: tuple[int, ...], local: int, delays: Delays) -> Course:
    """A single crossing, in rounds where members have many messages."""
    nodes = prod(orders)

    def lost(groups: int) -> float:
        """The time of messages, longer by what adapters differ in how many they have."""
        messages = (nodes - 1) * groups
        return delays.of(Course(orders, local, nodes, groups)) * (-(-messages // local) * local / messages)

    groups = min(reversed(divisors(local)), key=lost)
    messages = -(-(nodes - 1) * groups // local)
    return Course(orders, local, nodes, groups, messages // _IN_A_ROUND if messages >= _MANY and local > 1 else 1)


def twice(orders: tuple[int, ...], local: int, delays: Delays) -> Course:
    """Two crossings, or one between two nodes: the messages that take the least time."""
    radix = round_up_root(prod(orders), 2)
    return min((Course(orders, local, radix, groups) for groups in reversed(divisors(local))), key=delays.of)


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def round_up_root(number: int, power: int) -> int:
    """The least whole number whose power is at least `number`, and at least 2.

    >>> round_up_root(4096, 2), round_up_root(8, 3), round_up_root(9, 3)
    (64, 2, 3)
    """
    root = 2
    while root**power < number:
        root += 1
    return root
