"""Parameter server: all ranks send their vector to rank 0, which adds them up and sends the sum back to all.

What MXNet's device key-value store does for small keys (MXNet multi-tree wiki page, figure 2); cheap in
steps, expensive at the server's port.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import Algorithm
from blinksim.schedule.model import COPY, REDUCE

ENTRY = Algorithm(("allreduce",), "all to one rank and back")


def fill(plan: Plan) -> None:
    """Sends to rank 0, which is the server, and back."""
    vector = plan.add_chunk(Fraction(1))
    if len(clients := np.arange(1, plan.n)):
        plan.send(clients, 0, chunk=vector, op=REDUCE, step=0)
        plan.send(0, clients, chunk=vector, op=COPY, step=1)
