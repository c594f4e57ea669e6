"""Tensors as the vectors that a group moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

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


def reduction(op: Any) -> tuple[str, bool] | None:
    """The reduction for one of torch, and whether the sum is divided by the number of ranks; None if there is none."""
    for known, name in _OPS.items():
        if op == known:
            return name, known == dist.ReduceOp.AVG
    return None


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


def cannot_reduce(tensors: Sequence[torch.Tensor], op: Any, known: tuple[str, bool] | None) -> str:
    """Why no schedule reduces the tensors, or "". known: what `reduction` says of the op."""
    if known is None:
        return f"no schedule is run with {op}"
    kinds = [tensor.dtype for tensor in tensors if kind_to_reduce(tensor) is None]
    return f"no schedule reduces {kinds[0]}" if kinds else ""


def unequal(wholes: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], ranks: int) -> str:
    """Why the parts of an allgather or reduce_scatter do not make up its whole vectors, or ""."""
    for whole, part in zip(wholes, parts, strict=True):
        if whole.numel() != ranks * part.numel() or whole.dtype != part.dtype:
            return f"tensors of {whole.numel()} and {part.numel()} elements on {ranks} ranks"
    return ""
