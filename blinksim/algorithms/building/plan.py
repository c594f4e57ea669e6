"""What the builders share: ranks to devices, and routes for rank pairs."""

from __future__ import annotations

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
        pairs, where = _distinct(keys, self.n * self.n)
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


def _distinct(keys: npt.NDArray[np.int64], most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The sorted distinct keys, all below `most`, and the place of every key among them."""
    if most > 4 * len(keys):
        return np.unique(keys, return_inverse=True)
    used = np.zeros(most, dtype=bool)
    used[keys] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1)[keys]


def log2_ranks(algorithm: str, ranks: int) -> int:
    """log2 of the number of ranks; raises `InputError` unless that is a whole number."""
    power = ranks.bit_length() - 1
    if ranks != 1 << power:
        raise InputError(
            f"{algorithm} needs a power of two ranks, not {ranks}; take {1 << power} or {2 << power}, or another "
            f"algorithm (ring runs on any number)"
        )
    return power
