"""NCCL's collectives on the same GPUs from the same process: the comparison for a schedule.

Buffers are those of the collective's definition, as in `blinksim.gpu.programs.layout`: a vector of `count` elements, of
which allgather sends and reducescatter receives the rank's part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blinksim.errors import InfeasibleError, MissingError
from blinksim.gpu.execution.gpu_devices import require_cupy
from blinksim.gpu.programs.dtypes import ElementType

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
_TYPES = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6}
_TYPES |= {"float32": 7, "float64": 8, "bfloat16": 9}
_OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3}


class Nccl:
    """One communicator per GPU. Set NCCL_NVLS_ENABLE and the like before the first one is made.

    Raises `MissingError` without NCCL in CuPy.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self.cupy = require_cupy()
        from cupy.cuda import nccl

        if not hasattr(nccl, "NcclCommunicator"):
            raise MissingError("CuPy found no NCCL library: pip install nvidia-nccl-cu12 (or -cu13 for CUDA 13)")
        self.nccl, self.gpus = nccl, list(gpus)
        self.communicators = nccl.NcclCommunicator.initAll(self.gpus)
        self.streams = []
        for gpu in self.gpus:
            with self.cupy.cuda.Device(gpu):
                self.streams.append(self.cupy.cuda.Stream(non_blocking=True))

    @property
    def version(self) -> str:
        """Such as 2.28.9."""
        number = int(self.nccl.get_version())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def launch(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        count: int,
        kind: ElementType,
        op: str,
        collective: str = "allreduce",
        root: int = 0,
    ) -> None:
        """Queues one collective on every GPU. count: elements of the vector, a multiple of the ranks where it is cut.

        Raises `InfeasibleError` for a collective that NCCL has no call for.
        """
        if collective not in COLLECTIVES:
            raise InfeasibleError(f"NCCL has no call for {collective}; it has {', '.join(COLLECTIVES)}")
        part, number, how = count // len(self.gpus), _TYPES[kind.name], _OPS[op]
        self.nccl.groupStart()
        for gpu, comm, stream, sent, got in zip(
            self.gpus, self.communicators, self.streams, inputs, outputs, strict=True
        ):
            a, b, queue = sent.data.ptr, got.data.ptr, stream.ptr
            with self.cupy.cuda.Device(gpu):
                match collective:
                    case "allreduce":
                        comm.allReduce(a, b, count, number, how, queue)
                    case "allgather":
                        comm.allGather(a, b, part, number, queue)
                    case "reducescatter":
                        comm.reduceScatter(a, b, part, number, how, queue)
                    case "broadcast":
                        comm.broadcast(a, b, count, number, root, queue)
                    case _:
                        comm.reduce(a, b, count, number, how, root, queue)
        self.nccl.groupEnd()

    def finish(self) -> None:
        for stream in self.streams:
            stream.synchronize()

    def close(self) -> None:
        for communicator in self.communicators:
            communicator.destroy()
