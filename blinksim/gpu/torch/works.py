"""Tensors as vectors of a group, handles of its calls, and fallback backends (NCCL, on the CPU Gloo)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from blinksim.gpu.jobs.gpu_backend import GpuBackend
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES, ElementType

_KINDS = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int32: "int32",
    torch.int64: "int64",
}
_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}


def kind_to_reduce(tensor: torch.Tensor) -> ElementType | None:
    """The element type in which a tensor can be reduced; None if there is none."""
    name = _KINDS.get(tensor.dtype)
    return ELEMENT_TYPES[name] if name else None


def kind_to_move(tensor: torch.Tensor) -> tuple[ElementType, int]:
    """The element type in which a tensor can be moved, and how many elements that makes: bytes, for unknown types."""
    kind = kind_to_reduce(tensor)
    return (kind, tensor.numel()) if kind else (ELEMENT_TYPES["uint8"], tensor.numel() * tensor.element_size())


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it whose elements follow each other in memory."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def divide(tensor: torch.Tensor, by: int) -> None:
    """In place; whole numbers are cut off, as by NCCL."""
    if tensor.dtype.is_floating_point:
        tensor.div_(by)
    else:
        tensor.div_(by, rounding_mode="trunc")


def as_bytes(tensor: torch.Tensor) -> Any:
    """The memory of a dense CPU tensor as a NumPy array."""
    flat = tensor.detach().view(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, dtype=np.uint8)


def stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensors one behind the other, as a vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def put_back(tensor: torch.Tensor, vector: torch.Tensor) -> None:
    """What a call left in a dense copy."""
    if vector is not tensor:
        tensor.copy_(vector)


def reduction(tensors: Sequence[torch.Tensor], op: Any) -> tuple[str, str, bool]:
    """How a schedule reduces tensors by an op of torch: why it does not, or ""; the reduction, and True for a mean."""
    name = next((name for known, name in _OPS.items() if op == known), None)
    if name is None:
        return f"no schedule is run with {op}", "sum", False
    kinds = [tensor.dtype for tensor in tensors if kind_to_reduce(tensor) is None]
    return f"no schedule reduces {kinds[0]}" if kinds else "", name, op == dist.ReduceOp.AVG


def uneven(call: str, lists: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> str:
    """Why a call on lists of tensors is not that of a group, or ""."""
    alike = len({(tensor.numel(), tensor.dtype) for tensor in (*lists, *others)}) == len(others) == 1
    return "" if alike else f"{call} of tensors of different sizes or types"


def unequal(wholes: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], ranks: int) -> str:
    """Why the parts of an allgather or reduce_scatter do not make up its whole vectors, or ""."""
    for whole, part in zip(wholes, parts, strict=True):
        if whole.numel() != ranks * part.numel() or whole.dtype != part.dtype:
            return f"tensors of {whole.numel()} and {part.numel()} elements on {ranks} ranks"
    return ""


# As PyTorch's own generated code asks for it; not part of its documented interface.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_NO_TIMEOUT = timedelta(milliseconds=-1)


def current_stream(gpu: int) -> int:
    """The address of the current stream; the objects of `torch.cuda.current_stream` would cost microseconds."""
    return int(_raw_stream(gpu)) if _raw_stream else int(torch.cuda.current_stream(gpu).cuda_stream)


class QueuedOn:
    """What a call waits for: all that has been queued on a stream of a backend so far.

    tensors: those that the call uses. Their memory must not be used for others before the call is done. So they are
    kept until a stream waits for the call, behind which others come; if none ever does, the allocator is told.
    """

    def __init__(self, backend: GpuBackend, stream: Any, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors: Sequence[torch.Tensor] = tensors
        self.backend, self.stream, self.event = backend, stream, backend.mark()

    def hold_back_current_stream(self) -> None:
        """Has the current stream wait for the call."""
        self.backend.precede(self.event, current_stream(self.backend.gpu))
        self.tensors = ()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            for tensor in self.tensors:
                tensor.record_stream(self.stream)
            self.backend.take_back(self.event)


class RanOn:
    """What a call on a stream of the caller's is waited for by: what comes behind it there need not wait."""

    def __init__(self, backend: GpuBackend, stream: int) -> None:
        self.backend, self.address = backend, stream

    @cached_property
    def event(self) -> Any:
        """Made when it is asked for, which few do."""
        return self.backend.mark(self.address)

    @cached_property
    def stream(self) -> Any:
        return torch.cuda.ExternalStream(self.address, torch.device("cuda", self.backend.gpu))

    def hold_back_current_stream(self) -> None:
        """Has the current stream wait for the call, if it is another."""
        current = current_stream(self.backend.gpu)
        if current != self.address:
            self.backend.precede(self.event, current)


class GroupWork(dist.Work):
    """A call that is queued on a stream, or done.

    Waiting makes the current stream wait for it, and not the host, unless `blocking` is set.

    results: what the call gives. queued: where it is queued; None if it is done. check: raises if the group has failed.
    """

    def __init__(
        self,
        results: Sequence[torch.Tensor],
        queued: QueuedOn | RanOn | None,
        check: Callable[[], None],
        blocking: bool = False,
    ) -> None:
        super().__init__()
        self.results, self.queued, self.check, self.blocking = list(results), queued, check, blocking
        self.future: Any = None

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        self.check()
        queued = self.queued
        if queued is not None:
            queued.hold_back_current_stream()
            if self.blocking:
                queued.event.synchronize()
                self.check()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.queued is None or bool(self.queued.event.done)

    def is_success(self) -> bool:
        return self.exception() is None

    def exception(self) -> Any:
        try:
            self.check()
        except Exception as error:
            return error
        return None

    def get_future(self) -> Any:
        """A future of CUDA tensors has those who wait for it wait for the stream on which it was set."""
        if self.future is None:
            if self.queued is None:
                self.future = torch.futures.Future()
                self.future.set_result(self.results)
            else:
                self.future = torch.futures.Future(devices=[self.queued.stream.device])
                with torch.cuda.stream(self.queued.stream):
                    self.future.set_result(self.results)
        return self.future

    def result(self) -> list[torch.Tensor]:
        return self.results


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
            warnings.warn(f"blinksim: {why}; {name} does it", stacklevel=3)
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
