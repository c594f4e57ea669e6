"""What goes to NCCL, or on the CPU to Gloo, because no schedule is run for it."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist


class Fallback:
    """The backends that torch has, made when they are first needed; every reason to need one is said once."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.made: dict[str, Any] = {}
        self.said: set[str] = set()

    def backend(self, device: str, why: str) -> Any:
        """The one for ``cuda`` or ``cpu``."""
        name = "NCCL" if device == "cuda" else "Gloo"
        if why not in self.said and self.rank == 0:
            warnings.warn(f"blinksim: {why}; {name} does it", stacklevel=4)
        self.said.add(why)
        if name not in self.made:
            store = dist.PrefixStore(name, self.store)
            if name == "NCCL":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = self.timeout
                self.made[name] = dist.ProcessGroupNCCL(store, self.rank, self.size, options)
            else:
                self.made[name] = dist.ProcessGroupGloo(store, self.rank, self.size, self.timeout)
        return self.made[name]

    def close(self) -> None:
        """Ends them."""
        for backend in self.made.values():
            for end in ("shutdown", "_shutdown"):
                if hasattr(backend, end):
                    getattr(backend, end)()
                    break
        self.made.clear()
