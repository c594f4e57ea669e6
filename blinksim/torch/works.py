"""Handles of calls, as torch.distributed expects them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_NO_TIMEOUT = timedelta(milliseconds=-1)


class GroupWork(dist.Work):
    """A call that is queued on a stream, or done.

    Waiting makes the current stream wait for it, and not the host, unless `blocking` is set.

    results: what the call gives. stream: on which it is queued; None if it is done. check: raises if the group has
    failed.
    """

    def __init__(
        self, results: Sequence[torch.Tensor], stream: Any, check: Callable[[], None], blocking: bool = False
    ) -> None:
        super().__init__()
        self.results, self.stream, self.check, self.blocking = list(results), stream, check, blocking
        self.event: Any = None if stream is None else stream.record_event()
        self.future: Any = None

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        self.check()
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_event(self.event)
            if self.blocking:
                self.event.synchronize()
                self.check()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.event is None or bool(self.event.query())

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
            if self.stream is None:
                self.future = torch.futures.Future()
                self.future.set_result(self.results)
            else:
                self.future = torch.futures.Future(devices=[self.stream.device])
                with torch.cuda.stream(self.stream):
                    self.future.set_result(self.results)
        return self.future

    def result(self) -> list[torch.Tensor]:
        return self.results
