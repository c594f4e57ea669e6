"""Options of a simulation: the order in which links serve, the behaviour of sends, and the protocols of NCCL.

A protocol sets the share of traffic that is data (SISCI-NCCL thesis, Cubedo 2021, section 3.3.3). Simple
sends plain data and a flag for the whole piece. LL sends 4 bytes of data and 4 of flag in every 8-byte store,
so the receiver needs no barrier; LL128 sends 120 bytes of data in 128, and needs links that keep stores in
order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from blinksim.errors import InputError, one_of

ServiceName = Literal["fifo", "static", "ordered"]
OfferName = Literal["turns", "burst"]
SwitchingName = Literal["cut-through", "store-and-forward"]
ProtocolName = Literal["simple", "ll", "ll128"]
MessagesName = Literal["joined", "single"]

PROTOCOLS: Mapping[str, Fraction] = {"simple": Fraction(1), "ll": Fraction(4, 8), "ll128": Fraction(120, 128)}
"""Data bytes per byte sent."""


def efficiency(name: str) -> Fraction:
    """The share of data of the protocol called `name`, in any case; raises `InputError` for another name."""
    return PROTOCOLS[one_of("protocol", name.lower(), PROTOCOLS)]


@dataclass(frozen=True, slots=True)
class Options:
    """How links serve and sends behave.

    service: ``fifo`` (ties by piece, step, chunk), ``static`` (in rounds for a forest, level by level for
    steps), or ``ordered`` (step by step at every link, as channels do). offer: how pieces stand in line under
    ``fifo``: in ``turns``, one of each send and chunk at a time, as thread blocks send them, or as a ``burst``,
    everything that is there. protocol: ``simple``, ``ll`` or ``ll128``, which sets the share of what is sent that is
    data. gamma: seconds per byte that a rank reduces. launch: seconds before
    anything starts. switching: ``cut-through``, where devices inside a route pass a piece on while it
    arrives, or ``store-and-forward``, where they wait for all of it. messages: ``joined``, where the chunks
    that one connection carries in one step are one message, or ``single``, where each is a message of its own
    with an overhead of its own; trees of a forest always are.
    """

    service: ServiceName = "fifo"
    offer: OfferName = "turns"
    protocol: ProtocolName = "simple"
    gamma: float = 0.0
    launch: float = 0.0
    switching: SwitchingName = "cut-through"
    messages: MessagesName = "joined"

    def __post_init__(self) -> None:
        if not (0 <= self.gamma < 1 and 0 <= self.launch <= 3600):
            raise InputError("gamma must lie between 0 and 1 s per byte, launch between 0 and 3600 s")
        for what, value, known in (
            ("service", self.service, get_args(ServiceName)),
            ("offer", self.offer, get_args(OfferName)),
            ("kind of switching", self.switching, get_args(SwitchingName)),
            ("kind of messages", self.messages, get_args(MessagesName)),
        ):
            one_of(what, value, known)
        efficiency(self.protocol)

    @property
    def efficiency(self) -> Fraction:
        """The share of what is sent that is data."""
        return efficiency(self.protocol)

    def sent(self, form: str) -> MessagesName:
        """The kind of message in a schedule of this form."""
        return self.messages if form == "steps" else "single"
