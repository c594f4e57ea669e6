"""Maximum flow, the only oracle of the exact bounds: OR-Tools' push-relabel on whole numbers.

Push-relabel: Goldberg and Tarjan, A new approach to the maximum-flow problem, J. ACM 35 (1988).
"""

from __future__ import annotations

import numpy as np
from ortools.graph.python.max_flow import SimpleMaxFlow

from blinksim.errors import InputError
from blinksim.graphs.arrays import Bools, Ints


class Flow:
    """One maximum flow and its cuts. value: of the flow."""

    def __init__(self, vertices: int, tail: Ints, head: Ints, capacity: Ints, source: int, sink: int) -> None:
        """Solves at once; `capacity` in whole units, one per arc, guarded against overflow by the caller."""
        self._vertices = vertices
        self._solver = SimpleMaxFlow()
        self._solver.add_arcs_with_capacity(tail, head, capacity)
        status = self._solver.solve(source, sink)
        if status != SimpleMaxFlow.Status.OPTIMAL:
            raise InputError(f"a maximum flow over {len(tail)} links failed ({status.name}); round the bandwidths")
        self.value: int = self._solver.optimal_flow()

    def side(self, *, sink: bool = False) -> Bools:
        """The vertices on the source's (or the sink's) side of that least cut which is nearest to it."""
        inside, solver = np.zeros(self._vertices, dtype=bool), self._solver
        inside[solver.get_sink_side_min_cut() if sink else solver.get_source_side_min_cut()] = True
        return inside

    def carried(self) -> Ints:
        """What every arc carries, in the order in which the arcs were given."""
        return np.asarray(self._solver.flows(np.arange(self._solver.num_arcs())), dtype=np.int64)
