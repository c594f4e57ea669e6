"""MXNet's key-value store: which way to add up the gradients of a network is best for keys of which size and number.

A host thread issues the copies of a key one after another, and trees and servers move an array whole, level by level.
Many small keys want few copies, and few large ones want all links busy (MXNet multi-tree wiki page, figures 2, 6
and 7; its trees: `blinksim.algorithms.mxnet`). What issuing one operation takes is an assumption, `operation` in
models/host-path.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InputError, unknown
from blinksim.schedule.model import Schedule
from blinksim.sources.host_constants import host_constants
from blinksim.sources.push_pulls import push_pulls
from blinksim.topology.graph import Topology

WAYS = ("single_tree", "multi_tree", "parameter_server", "ring")
FLOAT32 = 4
_MOST_ELEMENTS = 2**30


@dataclass(frozen=True)
class KeyValueStore:
    """The GPUs that add up gradients. topology: a selected machine of two ranks or more.

    operation_s: seconds of the host thread for each copy or kernel; None for the figure in models/host-path.yaml.
    """

    topology: Topology
    operation_s: float | None = None

    @cached_property
    def schedules(self) -> Mapping[str, tuple[Schedule, ...]]:
        """By way: what runs, in turns; the keys of the parameter server are spread over all GPUs."""
        wanted = Collective("allreduce")
        names = list(self.topology.members)
        tree = algorithm("mxnet").build
        server = algorithm("parameter_server").build
        # A server of each key: the ranks in another order, so that rank 0 is another GPU.
        servers = tuple(server(self.topology.select(names[r:] + names[:r]), wanted) for r in range(len(names)))
        return {
            "single_tree": (tree(self.topology, wanted, trees="single"),),
            "multi_tree": (tree(self.topology, wanted, trees="multi"),),
            "parameter_server": servers,
            "ring": (algorithm("ring").build(self.topology, wanted),),
        }

    def operations(self, way: str) -> int:
        """What a host thread issues for a key: a copy for every send; one kernel on every GPU for the ring (NCCL)."""
        if way not in WAYS:
            raise unknown("way", way, WAYS)
        return self.topology.ranks if way == "ring" else self.schedules[way][0].sends

    def time(self, way: str, elements: Sequence[int], before_wait: int = 1) -> float:
        """Seconds to push and pull keys of these numbers of float32, `before_wait` of them before the program waits.

        Raises `InputError` for another way, no keys, or keys without an element.
        """
        each = host_constants().seconds("operation") if self.operation_s is None else self.operation_s
        if any(count < 1 for count in elements):
            raise InputError("a key has 1 element or more")
        sizes = [FLOAT32 * count for count in elements]
        launch = each * self.operations(way)
        if way == "ring":
            return push_pulls(self.schedules[way], sizes, before_wait=before_wait, launch=launch)
        # Copies of whole arrays, or of whole slices.
        return push_pulls(self.schedules[way], sizes, before_wait=before_wait, launch=launch, pieces=1)

    def times(self, elements: Sequence[int], before_wait: int = 1) -> dict[str, float]:
        """`time` by every way, quickest first."""
        found = {way: self.time(way, elements, before_wait) for way in WAYS}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def crossover(
        self, low: str = "single_tree", high: str = "multi_tree", *, keys: int = 1, before_wait: int = 1
    ) -> int:
        """Elements of a key from which `high` is quicker for `keys` equal keys, to within 1 %.

        Raises `InputError` if it is quicker for 1 element already, or never up to 2^30.
        """

        def gains(count: int) -> bool:
            return self.time(high, [count] * keys, before_wait) < self.time(low, [count] * keys, before_wait)

        small, large = 1, _MOST_ELEMENTS
        if gains(small) or not gains(large):
            raise InputError(f"{low} and {high} do not cross between 1 and {large:,} elements")
        while large - small > max(1, small // 100):
            # Halfway on a logarithmic scale.
            middle = min(max(round((small * large) ** 0.5), small + 1), large - 1)
            small, large = (small, middle) if gains(middle) else (middle, large)
        return large
