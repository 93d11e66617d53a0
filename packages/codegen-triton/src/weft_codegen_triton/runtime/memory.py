"""Copies of tensors that keep strides, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_TO_BE_FREED: ContextVar[int] = ContextVar("_TO_BE_FREED", default=0)
_RESULTS: ContextVar[Sequence[torch.Tensor]] = ContextVar("_RESULTS", default=())


@contextmanager
def writing_results_to(memory: Sequence[torch.Tensor]) -> Iterator[None]:
    """What is recorded in this context writes its results to ``memory``, but those that libraries make."""
    token = _RESULTS.set(memory)
    try:
        yield
    finally:
        _RESULTS.reset(token)


def empty_result(
    number: int,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Memory for the result ``number``: its own if a recording has given some, else new."""
    memory = _RESULTS.get()
    if memory:
        return memory[number]
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


@contextmanager
def freeing(size: int) -> Iterator[None]:
    """What is recorded in this context frees ``size`` bytes of its pool as it goes."""
    token = _TO_BE_FREED.set(size)
    try:
        yield
    finally:
        _TO_BE_FREED.reset(token)


def reserve(size: int, device: torch.device, multiplies: bool) -> None:
    """Let a recording's pool have a free block of ``size`` bytes, of which what follows takes parts.

    Blocks that are allocated one by one, each as large as needed, fit larger or smaller ones badly later.
    The block is as large as needed and no larger, so the library of matmuls, which a program that
    ``multiplies`` calls, takes the memory that it keeps before.  It is smaller by what is freed later.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        if multiplies:
            torch.cuda.current_blas_handle()
        size = max(0, size - _TO_BE_FREED.get())
        torch.empty(size, dtype=torch.uint8, device=device)  # free again at once


def _span(tensor: torch.Tensor) -> int:
    """How many elements lie between the tensor's first and last."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that the tensor spans, as one row."""
    return torch.as_strided(tensor, (_span(tensor),), (1,), tensor.storage_offset())


def empty_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Uninitialised memory for a copy, with the same strides."""
    memory = torch.empty(_span(tensor), dtype=tensor.dtype, device=tensor.device)
    return torch.as_strided(memory, tensor.size(), tensor.stride())


def copy_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same strides in memory of its own, expanded and overlapping elements included."""
    return torch.as_strided(_memory(tensor).clone(), tensor.size(), tensor.stride())


def spans_itself(tensor: torch.Tensor) -> bool:
    """Whether the tensor has one element for each place between its first and last."""
    return _span(tensor) == tensor.numel() and 0 not in tensor.stride()


def refill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy ``source`` to ``target``, which is as :func:`empty_memory` makes it of such a tensor."""
    _memory(target).copy_(_memory(source))
