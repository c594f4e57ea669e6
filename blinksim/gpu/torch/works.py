"""Handles of calls, as torch.distributed expects them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from blinksim.gpu.jobs.gpu_backend import GpuBackend

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
