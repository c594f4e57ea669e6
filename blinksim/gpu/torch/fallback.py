"""What goes to NCCL, or on the CPU to Gloo, because no schedule is run for it."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_TYPES = dist.ProcessGroup.BackendType


class Fallback:
    """Process groups over the backends that torch has, made when first needed; why one is needed is said once."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.made: dict[str, tuple[Any, Any]] = {}
        self.said: set[str] = set()

    def group(self, device: str, why: str) -> Any:
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
                backend = dist.ProcessGroupNCCL(store, self.rank, self.size, options)
            else:
                backend = dist.ProcessGroupGloo(store, self.rank, self.size, self.timeout)
            # A backend alone lacks some forms of calls in Python.
            group, kind = dist.ProcessGroup(store, self.rank, self.size), getattr(_TYPES, name.upper())
            group._set_default_backend(kind)
            group._register_backend(torch.device(device), kind, backend)
            self.made[name] = group, backend
        return self.made[name][0]

    def close(self) -> None:
        """Ends them."""
        for _, backend in self.made.values():
            for end in ("shutdown", "_shutdown"):
                if hasattr(backend, end):
                    getattr(backend, end)()
                    break
        self.made.clear()
