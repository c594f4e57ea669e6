"""How a simulation runs, in three groups with checks of their own: chunks, sending and service.

`blinksim.simulate` takes the fields of all three as keyword arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from operator import index
from typing import Literal, TypedDict, get_args

from blinksim.budget import most_events
from blinksim.cost.protocols import efficiency
from blinksim.errors import InputError, unknown
from blinksim.units import parse_size

ServiceName = Literal["fifo", "static", "ordered", "weighted", "equal"]
OfferName = Literal["turns", "burst"]
EngineName = Literal["auto", "closed-form", "waves", "heap"]
SwitchingName = Literal["cut-through", "store-and-forward"]
ProtocolName = Literal["simple", "ll", "ll128"]
MessagesName = Literal["joined", "single"]

MOST_PIECES = 65_536
# Events (pieces times stages) of a run in order of arrival that is not refused.
MOST_EVENTS = most_events("heap")


def whole_bytes(size: int | float | str, what: str = "size") -> int:
    """Bytes from a whole number or text such as ``256MiB``; raises `InputError` for anything else.

    A float counts if it is whole (1e6). The result may be 0 or less: callers say what they need.
    """
    if isinstance(size, str):
        return parse_size(size)
    whole = isinstance(size, Real) and not isinstance(size, bool) and size == size // 1
    if not whole:
        raise InputError(f"{size!r} is not a {what}; give whole bytes, or text such as 256MiB")
    return index(size) if hasattr(size, "__index__") else int(size)


@dataclass(frozen=True, slots=True)
class Chunks:
    """How chunks are cut into pieces; without either option, the number with the least time is searched.

    chunk: bytes of a piece at most, or text. pieces: of every chunk. most_events: pieces times stages that the search
    may spend on a run.
    """

    chunk: int | str | None = None
    pieces: int | None = None
    most_events: int = MOST_EVENTS

    def __post_init__(self) -> None:
        if self.chunk is not None and self.pieces is not None:
            raise InputError("chunk= and pieces= both set how chunks are cut; give one of them")

    def given(self, size: int, largest_share: Fraction) -> int | None:
        """The number of pieces that chunks of up to `largest_share` of `size` bytes are cut into; None to search."""
        count = self.pieces
        if self.chunk is not None:
            count = pieces_of_share(size, largest_share, whole_bytes(self.chunk, "chunk"))
        if count is not None and not 1 <= count <= MOST_PIECES:
            raise InputError(f"{count} pieces of each chunk: give 1 to {MOST_PIECES}, by a larger or smaller chunk=")
        return count


def pieces_of_share(size: int, largest_share: Fraction, chunk: int) -> int:
    """The fewest pieces such that none of a chunk of `largest_share` of `size` bytes has more than `chunk` bytes."""
    if chunk < 1:
        raise InputError(f"a chunk of {chunk} bytes: give at least 1")
    return max(1, -(-(size * largest_share) // chunk).__floor__())


@dataclass(frozen=True, slots=True)
class Sending:
    """How sends behave, beyond what the links say.

    protocol: ``simple``, ``ll`` or ``ll128``, which sets the share of what is sent that is data. gamma: seconds per
    byte that a rank reduces. launch: seconds before anything starts. switching: ``cut-through``, where devices inside a
    route pass a piece on while it arrives, or ``store-and-forward``, where they wait for all of it. messages:
    ``joined``, where the chunks that one connection carries in one step are one message, or ``single``, where each is a
    message of its own with an overhead of its own; trees of a forest always are.
    """

    protocol: ProtocolName = "simple"
    gamma: float = 0.0
    launch: float = 0.0
    switching: SwitchingName = "cut-through"
    messages: MessagesName = "joined"

    def __post_init__(self) -> None:
        if not (0 <= self.gamma < 1 and 0 <= self.launch <= 3600):
            raise InputError("gamma must lie between 0 and 1 s per byte, launch between 0 and 3600 s")
        if self.switching not in get_args(SwitchingName):
            raise unknown("kind of switching", self.switching, get_args(SwitchingName))
        if self.messages not in get_args(MessagesName):
            raise unknown("kind of messages", self.messages, get_args(MessagesName))
        efficiency(self.protocol)

    @property
    def efficiency(self) -> Fraction:
        return efficiency(self.protocol)

    def sent(self, form: str) -> MessagesName:
        """What a message is in a schedule of this form."""
        return self.messages if form == "steps" else "single"


@dataclass(frozen=True, slots=True)
class Service:
    """How links serve, and what finds the times.

    name: ``fifo`` (ties by piece, then chunk), ``static`` (in rounds for a forest, level by level for steps),
    ``ordered`` (step by step at every link, as channels do), ``weighted`` or ``equal`` sharing. offer: how pieces stand
    in line under ``fifo``: in ``turns`` (default for forests), one of each send and chunk at a time, or as a ``burst``
    (default for steps), everything that is there. slots: pieces that a connection holds, in place of turns; None for no
    limit (``fifo`` only). engine: ``auto``, or the one to use: ``closed-form``, ``waves`` or ``heap``.
    """

    name: ServiceName = "fifo"
    offer: OfferName | None = None
    slots: int | None = None
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        for what, value, known in (
            ("service", self.name, get_args(ServiceName)),
            ("engine", self.engine, get_args(EngineName)),
            ("offer", self.offer or "turns", get_args(OfferName)),
        ):
            if value not in known:
                raise unknown(what, value, known)
        if self.slots is not None and (self.name != "fifo" or self.engine not in ("auto", "heap")):
            raise InputError("slots need service fifo and the heap engine")
        if self.slots is not None and self.slots < 1:
            raise InputError(f"{self.slots} slots: a connection needs at least 1")
        if self.shares and self.engine not in ("auto", "heap"):
            raise InputError(f"service {self.name} is simulated by events only; leave the engine out")
        if self.name == "static" and self.engine == "closed-form":
            raise InputError("the formulas hold for service fifo; take waves or heap for static")
        if self.name == "ordered" and self.engine not in ("auto", "heap"):
            raise InputError("service ordered is simulated by events only; leave the engine out")

    @property
    def shares(self) -> bool:
        """True if a link divides its rate among the streams in front of it."""
        return self.name in ("weighted", "equal")

    def offered(self, form: str) -> OfferName:
        """The offer in force for a schedule of this form."""
        return self.offer or ("burst" if form == "steps" else "turns")


class RareOptions(TypedDict, total=False):
    """The keyword arguments of `blinksim.simulate` that are rarely needed; see `Service`, `Sending` and `Chunks`."""

    offer: OfferName | None
    slots: int | None
    switching: SwitchingName
    messages: MessagesName
    engine: EngineName
    most_events: int


def check_rare(options: RareOptions) -> RareOptions:
    """The options, if all are known; raises `InputError` with the nearest name otherwise."""
    for name in options:
        if name not in RareOptions.__annotations__:
            raise unknown("argument of simulate", name, (*RareOptions.__annotations__, *COMMON))
    return options


COMMON = ("chunk", "pieces", "service", "protocol", "gamma", "launch")
