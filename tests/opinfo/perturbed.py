"""Calls that eager refuses: the operator database's own error inputs, and samples with one argument changed.

A change is to a tensor's rank, size, dtype or numbers, or to a number or a string among the other arguments.
What the database lists of errors is little; most checks of eager's kernels are met by a changed sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

_FAR = 10**4
_INDICES = {"negative": -1, "too far": _FAR, "too far before": -_FAR}


@dataclass(frozen=True)
class Attempt:
    """Arguments (input, positional, keywords) for an operator, and what was changed in them."""

    change: str
    arguments: Any


def listed_errors(op: Any) -> Iterator[Attempt]:
    """The error inputs that the database lists for ``op``."""
    if op.error_inputs_func is None:
        return
    for number, error in enumerate(op.error_inputs("cpu")):
        sample = getattr(error, "sample_input", None)
        if sample is not None and not isinstance(sample.input, torch.nn.Module):
            yield Attempt(f"listed {number}", (sample.input, sample.args, sample.kwargs))


def changed_samples(op: Any, dtype: torch.dtype, limit: int) -> Iterator[Attempt]:
    """The first ``limit`` samples of ``op``, with each argument in turn changed in each way."""
    samples = op.sample_inputs("cpu", dtype, requires_grad=False)
    for number, sample in enumerate(itertools.islice(samples, limit)):
        arguments = (sample.input, sample.args, sample.kwargs)
        yield from changed_arguments(arguments, f"sample {number}")


def changed_arguments(arguments: Any, label: str) -> Iterator[Attempt]:
    """A call's arguments with each in turn changed in each way."""
    leaves, structure = tree_flatten(arguments)
    for place, leaf in enumerate(leaves):
        for change, value in _changes(leaf):
            changed = [*leaves[:place], value, *leaves[place + 1 :]]
            yield Attempt(f"{label}, argument {place} {change}", tree_unflatten(changed, structure))


def _changes(leaf: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(leaf, torch.Tensor):
        if leaf.layout == torch.strided:
            yield from _changed_tensors(leaf)
    elif isinstance(leaf, bool) or leaf is None:
        return
    elif isinstance(leaf, int):
        yield from ((f"is {number}", number) for number in (-1, 0, leaf + 1, 100, -100))
    elif isinstance(leaf, float):
        yield from ((f"is {number}", number) for number in (0.0, -1.0, 2.0, float("nan")))
    elif isinstance(leaf, str):
        yield "is nonsense", "nonsense"


def _changed_tensors(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    yield "has a dim more", tensor.unsqueeze(0)
    if tensor.dim() and tensor.shape[0]:
        yield "has a dim less", tensor[0]
    for dim in dict.fromkeys((0, tensor.dim() - 1)) if tensor.dim() else ():
        yield f"is longer in dim {dim}", _longer(tensor, dim)
        yield f"is empty in dim {dim}", tensor.narrow(dim, 0, 0)
    for dtype in (torch.float64, torch.int32, torch.bool, torch.complex64):
        if dtype != tensor.dtype and (dtype != torch.bool or not tensor.is_floating_point()):
            yield f"is {dtype}", tensor.real.to(dtype) if tensor.is_complex() else tensor.to(dtype)
    if not tensor.numel():
        return
    if tensor.dtype in (torch.int64, torch.int32):
        for label, number in _INDICES.items():
            yield f"has a number that is {label}", _with_number(tensor, number)
        yield "is all zeros", torch.zeros_like(tensor)
    if tensor.is_floating_point():
        yield "is negative", -tensor.abs() - 1
        yield "has a NaN", _with_number(tensor, float("nan"))


def _longer(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """One more element in ``dim``: the first again."""
    if not tensor.shape[dim]:
        size = list(tensor.shape)
        size[dim] = 1
        return tensor.new_zeros(size)
    return torch.cat((tensor, tensor.narrow(dim, 0, 1)), dim)


def _with_number(tensor: torch.Tensor, number: float) -> torch.Tensor:
    """A copy whose last element is ``number``."""
    copy = tensor.clone(memory_format=torch.contiguous_format)
    copy.view(-1)[-1] = number
    return copy
