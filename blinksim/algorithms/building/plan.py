"""What the builders share: ranks to devices, routes for rank pairs, and the postal model of the closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.schedule.model import Builder
from blinksim.topology.graph import Topology


class Plan(Builder):
    """A `Builder` that takes ranks instead of devices and finds the routes itself."""

    def __init__(self, topology: Topology, collective: Collective, algorithm: str, form: str) -> None:
        super().__init__(topology, collective, algorithm, form)
        collective.check_ranks(topology.ranks)
        self.n = topology.ranks
        self.router = topology.router
        self._devices = np.array([topology.index[name] for name in topology.members], dtype=np.int32)

    def send(
        self,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        *,
        chunk: npt.ArrayLike,
        op: int,
        step: npt.ArrayLike,
        channel: npt.ArrayLike = 0,
    ) -> None:
        """Sends from ranks `src` to ranks `dst`; the arguments broadcast against each other."""
        a, b, chunks, steps, channels = (
            array.ravel()
            for array in np.broadcast_arrays(*(np.asarray(x, dtype=np.int32) for x in (src, dst, chunk, step, channel)))
        )
        keys = a.astype(np.int64) * self.n + b
        pairs, where = np.unique(keys, return_inverse=True)
        routes = [
            self.add_route(self.router.route(int(self._devices[key // self.n]), int(self._devices[key % self.n])))
            for key in pairs
        ]
        self.add_sends(
            chunk=chunks,
            src=self._devices[a],
            dst=self._devices[b],
            op=op,
            step=steps,
            route=np.array(routes, dtype=np.int32)[where],
            channel=channels,
        )


@dataclass(frozen=True, slots=True)
class Postal:
    """The model of the closed forms: every rank has one full-duplex port, and every pair is equally far apart.

    alpha: seconds a message takes before its first byte counts. beta: seconds per byte of a port, in each direction.
    gamma: seconds per byte that a rank reduces.
    """

    alpha: float
    beta: float
    gamma: float = 0.0


def pipelined(hops: int, message: float, load: float, model: Postal, reduced: float = 0.0) -> float:
    """Seconds for a pipeline with the best whole number of pieces.

    hops: length of the longest path. message: bytes that follow it. load: bytes that the busiest port passes.
    reduced: bytes that the busiest rank reduces. With C pieces: (hops + C - 1) alpha, plus the busy port's time, plus
    the time of one piece on every hop but the busy one.
    """
    if hops == 0:
        return 0.0
    tail = (hops - 1) * model.beta * message
    best = min(pieces * model.alpha + tail / pieces for pieces in best_pieces(tail, model.alpha))
    return (hops - 1) * model.alpha + model.beta * load + best + model.gamma * reduced


def best_pieces(tail: float, alpha: float) -> tuple[int, ...]:
    """The whole numbers around the best number of pieces, sqrt(tail / alpha), from 1 to 65,536.

    tail: seconds that the whole message needs on all hops of its path but one; alpha: seconds per further piece.
    """
    best = sqrt(tail / alpha) if alpha > 0 else 65536.0 if tail > 0 else 1.0
    low = max(1, min(65536, int(best)))
    return (low, min(65536, low + 1))


def log2_ranks(algorithm: str, ranks: int) -> int:
    """log2 of the number of ranks; raises `InputError` unless that is a whole number."""
    power = ranks.bit_length() - 1
    if ranks != 1 << power:
        raise InputError(
            f"{algorithm} needs a power of two of ranks, not {ranks}; take {1 << power} or {2 << power}, or another "
            f"algorithm (ring runs on any number)"
        )
    return power
