"""Functions of torch whose C++ takes sizes as plain integers, from functions that take symbols.

Each gives None for what is left to eager: arguments that it refuses among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """By the kernel that gives indices too, which eager has for gradients; without it is contiguous."""
    if return_indices or not input.is_floating_point():
        return None
    result: Tensor = F.max_pool1d(
        input, kernel_size, stride, padding, dilation, ceil_mode, return_indices=True
    )[0]
    if input.is_cuda or (input.requires_grad and torch.is_grad_enabled()):
        return result
    return result.contiguous()


def avg_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor | None:
    return None if padding != 0 or ceil_mode else _mean_of_window(input, kernel_size, 1)


def avg_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor | None:
    if padding != 0 or ceil_mode or divisor_override is not None:
        return None
    return _mean_of_window(input, kernel_size, 2)


def _mean_of_window(input: Tensor, kernel_size: Any, dims: int) -> Tensor | None:
    """An average pooling of a single window, which is the whole input."""
    if not isinstance(kernel_size, tuple) or len(kernel_size) != dims:
        return None
    if input.dtype not in (torch.float32, torch.float64) or not input.is_contiguous():
        return None
    if input.dim() - dims not in (1, 2) or input.numel() == 0:
        return None
    if tuple(input.shape[-dims:]) != tuple(kernel_size):
        return None
    return input.mean(tuple(range(-dims, 0)), keepdim=True)


def pad_sequence(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor | None:
    return _padded(sequences, max, batch_first, padding_value, padding_side)


def pad_sequence_of_data(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor | None:
    """With lengths that data decides: which of them is the longest is not decided, but computed."""
    return _padded(sequences, _max_of_data, batch_first, padding_value, padding_side)


def _max_of_data(lengths: list[int]) -> Any:
    longest = torch.tensor(lengths).max().item()
    for length in lengths:
        torch._check(longest >= length)
    return longest


def _are_alike(sequences: Sequence[Tensor], padding_side: str) -> bool:
    """Whether eager takes them, and gives nothing but a plain tensor of their dtype."""
    if len(sequences) == 0 or padding_side not in ("left", "right"):
        return False
    first = sequences[0]
    dims = first.dim()
    if not 1 <= dims <= 3:
        return False
    for each in sequences:
        if each.dtype != first.dtype or each.device != first.device or each.dim() != dims:
            return False
        if each.shape[1:] != first.shape[1:]:
            return False
    return True


def _padded(
    sequences: Sequence[Tensor],
    longest_of: Callable[[list[int]], Any],
    batch_first: bool,
    padding_value: float,
    padding_side: str,
) -> Tensor | None:
    if not _are_alike(sequences, padding_side):
        return None
    longest = longest_of([each.shape[0] for each in sequences])
    rows = []
    for each in sequences:
        missing = longest - each.shape[0]
        sides = (missing, 0) if padding_side == "left" else (0, missing)
        rows.append(F.pad(each, (*(0, 0) * (each.dim() - 1), *sides), value=padding_value))
    return torch.stack(rows, 0 if batch_first else 1)


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
) -> Tensor | None:
    """From both ends to the middle, as the kernel does, in the result's dtype."""
    kind = torch.get_default_dtype() if dtype is None else dtype
    if steps < 2 or kind not in (torch.float32, torch.float64):
        return None
    places = torch.arange(steps, dtype=kind, device=device)
    first = torch.full((), start, dtype=kind, device=device)
    last = torch.full((), end, dtype=kind, device=device)
    step = (last - first) / (steps - 1)
    return torch.where(
        places < steps // 2, first + step * places, last - step * (steps - 1 - places)
    )


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor | None:
    """``gather`` where all sizes but that of ``dim`` are broadcast."""
    if indices.dtype != torch.int64 or input.device != indices.device:
        return None
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    if input.dim() != indices.dim() or not -input.dim() <= dim < input.dim():
        return None
    at = dim % input.dim()
    shape = []
    for place in range(input.dim()):
        size, other = input.shape[place], indices.shape[place]
        if place != at and size != other and size != 1 and other != 1:
            return None
        shape.append(other if size == 1 else size)
    shape[at] = input.shape[at]
    operand = input.expand(shape)
    shape[at] = indices.shape[at]
    return operand.gather(at, indices.expand(shape))


def one_hot(tensor: Tensor, num_classes: int) -> Tensor | None:
    """A comparison with all classes, of what is read at the places of the classes themselves."""
    if tensor.dtype != torch.int64 or num_classes < 1:
        return None
    classes = torch.arange(num_classes, device=tensor.device)
    known = classes.gather(0, tensor.reshape(-1)).view(tensor.shape)
    return (known.unsqueeze(-1) == classes).to(torch.int64)


def one_hot_of_all(tensor: Tensor, num_classes: int = -1) -> Tensor | None:
    """Where no count is given: with as many classes as the largest one says, which data does."""
    if tensor.dtype != torch.int64 or tensor.numel() == 0:
        return None
    return torch.nn.functional.one_hot(tensor, int(tensor.max()) + 1)
