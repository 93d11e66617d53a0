"""Everything private of torch that this package reaches.  Checked on torch 2.11 and 2.13."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload as OpOverload
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map

LARGE = 1 << 23
"""Bytes from which a copy is worth a launch of its own: the kernel for many copies is slower by the byte."""


def copies_of(sources: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A copy of each, in few launches; their elements don't overlap.

    Small floats are multiplied by one: that makes all results of a list in one call, where copying takes
    tensors that Python has made one by one.
    """
    found: list[torch.Tensor | None] = [None] * len(sources)
    small: dict[torch.dtype, list[int]] = {}
    for k, source in enumerate(sources):
        if source.is_floating_point() and source.numel() * source.itemsize < LARGE:
            small.setdefault(source.dtype, []).append(k)
    for numbers in small.values():
        if len(numbers) == 1:
            continue  # a kernel for many copies has few programs for one
        copies = torch._foreach_mul([sources[k] for k in numbers], 1)
        for k, made in zip(numbers, copies, strict=True):
            found[k] = made if made.stride() == sources[k].stride() else None
    others = [k for k, made in enumerate(found) if made is None]
    targets = [_like(sources[k]) for k in others]
    copy_all(targets, [sources[k] for k in others])
    for k, target in zip(others, targets, strict=True):
        found[k] = target
    return [made for made in found if made is not None]


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Uninitialised memory of the same size and strides, which don't overlap."""
    return torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source to its target, of the same dtype, in few launches.

    Those of a dtype together: torch copies lists of several dtypes one by one.
    """
    small: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        if target.numel() * target.itemsize >= LARGE:
            target.copy_(source)
        else:
            alike = small.setdefault(target.dtype, ([], []))
            alike[0].append(target)
            alike[1].append(source)
    for targets, sources in small.values():
        if len(targets) == 1:
            targets[0].copy_(sources[0])
        else:
            torch._foreach_copy_(targets, sources)


def holders(storages: Sequence[torch.UntypedStorage]) -> list[int]:
    """How many tensors, and objects for storages, hold each of these."""
    return [*map(torch._C._storage_Use_Count, [storage._cdata for storage in storages])]


class HeldStorages:
    """Storages that nobody but their owners holds while each is held ``at_most`` so many times.

    Asked at each call about hundreds of them, so in loops of C alone.
    """

    def __init__(self, storages: Sequence[torch.UntypedStorage], at_most: Sequence[int]) -> None:
        self._storages = [*storages]
        self._handles = [storage._cdata for storage in storages]
        self._at_most = [*at_most]

    def are_held_by_others(self) -> bool:
        counts = map(torch._C._storage_Use_Count, self._handles)
        return any(map(operator.gt, counts, self._at_most))


def is_view(tensor: torch.Tensor) -> bool:
    """Whether the tensor was made as a view of another, which it holds."""
    return tensor._is_view()


def set_grad_enabled(enabled: bool) -> None:
    """Record gradients on this thread from now on, or don't: a tenth of what ``torch.no_grad`` takes."""
    torch._C._set_grad_enabled(enabled)


def current_device() -> int:
    """The index of this thread's GPU; CUDA is initialised.

    A tenth of what ``torch.cuda.current_device`` takes, which initialises CUDA if need be.
    """
    index: int = torch._C._cuda_getDevice()
    return index


def current_stream(device: int) -> int:
    """The address of the current stream of a GPU, without an object for it."""
    address: int = torch._C._cuda_getCurrentRawStream(device)
    return address


def free_library_workspaces() -> None:
    """Free what the library of matmuls keeps for each stream: it takes memory anew when it works on one."""
    torch._C._cuda_clearCublasWorkspaces()


def end_allocating(pool: Any) -> None:
    """Take torch's allocator back from the memory pool ``pool``, unless it is back already."""
    with contextlib.suppress(RuntimeError):  # which is all that says so
        torch._C._cuda_endAllocateToPool(current_device(), pool)
