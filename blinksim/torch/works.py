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

    results: what the call gives. stream: on which it is queued, current when this is made; None if it is done. check:
    raises if the group has failed.
    """

    def __init__(
        self, results: Sequence[torch.Tensor], stream: Any, check: Callable[[], None], blocking: bool = False
    ) -> None:
        super().__init__()
        self.results, self.stream, self.check, self.blocking = list(results), stream, check, blocking
        # A future of CUDA tensors records where the current stream is, and has those who wait for it wait for that.
        devices = [stream.device] if stream is not None else []
        self.future: Any = torch.futures.Future(devices=devices)
        self.future.set_result(self.results)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        self.check()
        self.future.wait()
        if self.blocking and self.stream is not None:
            torch.cuda.current_stream(self.stream.device).synchronize()
            self.check()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.stream is None or bool(self.stream.query())

    def is_success(self) -> bool:
        return self.exception() is None

    def exception(self) -> Any:
        try:
            self.check()
        except Exception as error:
            return error
        return None

    def get_future(self) -> Any:
        return self.future

    def result(self) -> list[torch.Tensor]:
        return self.results
