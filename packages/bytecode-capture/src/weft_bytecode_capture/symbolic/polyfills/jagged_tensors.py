"""Operations on jagged tensors as operations on their values and offsets.

Values have no batch: dimension ``d`` of a jagged tensor is ``d - 1`` of its values.  The ragged one has the
rows of all sequences there.  Each function gives None for what is left to eager, which may refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._torch.jagged import LONGEST, SHORTEST, is_jagged, make_jagged, parts_of


def _like(tensor: Any, values: Tensor) -> Any:
    """A jagged tensor of other values with the same sequences; an empty cache is not shared."""
    _, offsets, dim, cache = parts_of(tensor)
    return make_jagged(values, offsets, dim, cache or {})


def rows_of(offsets: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Of each of ``total`` rows the number of its sequence, and its place there."""
    row = torch.arange(total, device=offsets.device)
    sequence = torch.searchsorted(offsets[1:], row, right=True).clamp(max=offsets.shape[0] - 2)
    return sequence, row - offsets[sequence]


def _inside(offsets: Tensor, length: int) -> Tensor:
    """Which of ``length`` places each sequence has, ``[batch, length]``."""
    return torch.arange(length, device=offsets.device) < offsets.diff().unsqueeze(1)


def _padded(rows: Tensor, offsets: Tensor, length: int, value: float) -> Tensor:
    """``rows [total, ...]`` as ``[batch, length, ...]``."""
    batch, total = offsets.shape[0] - 1, rows.shape[0]
    if total == 0:
        return rows.new_full((batch, length, *rows.shape[1:]), value)
    index = offsets[:-1].unsqueeze(1) + torch.arange(length, device=offsets.device)
    outside = ~_inside(offsets, length)
    outside = outside.reshape(outside.shape + (1,) * (rows.dim() - 1))
    return rows[index.clamp(max=total - 1)].masked_fill(outside, value)


def _longest(offsets: Tensor, cache: dict[str, Tensor]) -> int:
    """The length of the longest sequence.

    Where data says it the graph checks that it is more than one, which attention's operators ask; other calls
    run as they were written.
    """
    if LONGEST in cache:
        return cache[LONGEST].shape[0]
    length = int(offsets.diff().max().item())
    torch._check(length > 1)
    return length


def to_padded(input: Any, padding: float, output_size: Sequence[int] | None = None) -> Tensor:
    values, offsets, dim, cache = parts_of(input)
    if output_size is not None:
        length = output_size[dim]
    else:  # without a known length there is room for all rows
        length = cache[LONGEST].shape[0] if LONGEST in cache else values.size(0)
    padded = _padded(values.movedim(dim - 1, 0), offsets, length, padding)
    return padded.transpose(dim, 1) if dim > 1 else padded


def from_jagged(
    values: Tensor,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    jagged_dim: int | None = None,
    min_seqlen: int | None = None,
    max_seqlen: int | None = None,
) -> Any:
    dim = 1 if jagged_dim is None else jagged_dim
    if is_jagged(values) or not 1 <= dim <= values.dim():
        return None
    if offsets is None:
        if lengths is None:
            return None
        offsets = F.pad(lengths.cumsum(0), (1, 0))
    elif lengths is not None:  # sequences with holes between them
        return None
    if offsets.dim() != 1 or offsets.device != values.device:
        return None
    cache = {}
    if min_seqlen is not None:
        cache[SHORTEST] = torch.zeros(min_seqlen, 0)
    if max_seqlen is not None:
        cache[LONGEST] = torch.zeros(max_seqlen, 0)
    return make_jagged(values, offsets, dim, cache)


def new_jagged(
    tensor_list: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Any:
    if requires_grad or pin_memory or not isinstance(tensor_list, list):
        return None
    for part in tensor_list:
        if not isinstance(part, Tensor):
            return None
    return as_jagged([part.detach() for part in tensor_list], dtype, device, layout)


def as_jagged(ts: Any, dtype: Any = None, device: Any = None, layout: Any = None) -> Any:
    if layout is not torch.jagged or not isinstance(ts, list) or not ts:
        return None
    first = ts[0]
    for part in ts:
        if not isinstance(part, Tensor) or is_jagged(part) or part.dim() != first.dim():
            return None
        if first.dim() == 0 or part.shape[1:] != first.shape[1:]:
            return None  # another dimension is ragged
        if part.device != first.device or part.dtype != first.dtype:
            return None
    values = torch.cat(ts).to(
        device=first.device if device is None else device,
        dtype=first.dtype if dtype is None else dtype,
    )
    lengths = [part.shape[0] for part in ts]
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    offsets = torch.tensor(bounds, device=values.device)
    cache = {
        SHORTEST: torch.zeros(min(lengths), 0),
        LONGEST: torch.zeros(max(lengths), 0),
    }
    return make_jagged(values, offsets, 1, cache)


def on_values(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """An operation on each element: ``function`` of the values, beside what is broadcast to them."""
    like: Any = None
    for argument in arguments:
        if like is None and is_jagged(argument):
            like = argument
    given = None if like is None else _values_beside(like, arguments)
    return None if given is None else _like(like, function(*given, **keywords))


def in_place(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """An operation that writes to the values of its first argument, which it gives."""
    given = _values_beside(arguments[0], arguments) if is_jagged(arguments[0]) else None
    if given is None:
        return None
    function(*given, **keywords)
    return arguments[0]


def _values_beside(like: Any, arguments: Sequence[Any]) -> list[Any] | None:
    """The arguments of an operation on values: of jagged tensors theirs, which are of the same sequences."""
    values, offsets, dim, _ = parts_of(like)
    given: list[Any] = []
    for argument in arguments:
        if is_jagged(argument):
            others, other_offsets, other_dim, _ = parts_of(argument)
            if other_offsets is not offsets or other_dim != dim or others.dim() != values.dim():
                return None
            given.append(others)
        elif isinstance(argument, Tensor):
            fitting = _broadcast(argument, values, offsets, dim)
            if fitting is None:
                return None
            given.append(fitting)
        else:
            given.append(argument)
    return given


def _broadcast(other: Tensor, values: Tensor, offsets: Tensor, dim: int) -> Tensor | None:
    """A plain tensor as it is broadcast beside values."""
    squeezed = other
    while squeezed.dim() > 0 and squeezed.shape[0] == 1:
        squeezed = squeezed.squeeze(0)
    if values.dim() >= squeezed.dim() + dim:
        return squeezed
    of_each = dim == 1 and other.dim() == values.dim() + 1
    if not of_each or other.shape[0] != offsets.shape[0] - 1 or other.shape[1] != 1:
        return None
    return other.squeeze(1)[rows_of(offsets, values.shape[0])[0]]


def reflected_sub(input: Any, other: Any) -> Any:
    return on_values(torch.rsub, (input, other), {})


def reflected_div(input: Any, other: Any) -> Any:
    return on_values(torch.mul, (on_values(torch.reciprocal, (input,), {}), other), {})


def reflected_pow(input: Any, other: Any) -> Any:
    return on_values(torch.pow, (other, input), {})


def linear(input: Any, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not is_jagged(input) or is_jagged(weight) or is_jagged(bias):
        return None
    values, _, dim, _ = parts_of(input)
    return None if dim == values.dim() else _like(input, F.linear(values, weight, bias))


def matmul(input: Any, other: Any) -> Any:
    if not is_jagged(input) or is_jagged(other) or other.dim() != 2:
        return None
    values, _, dim, _ = parts_of(input)
    return None if dim == values.dim() else _like(input, values @ other)


def embedding(
    input: Any,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if not is_jagged(input) or is_jagged(weight) or max_norm is not None or sparse:
        return None
    values = parts_of(input)[0]
    return _like(input, F.embedding(values, weight, padding_idx, None, 2.0, scale_grad_by_freq))


def _is_normalized_behind(input: Any, shape: Sequence[int]) -> bool:
    values, _, dim, _ = parts_of(input)
    return values.dim() >= 2 and len(shape) <= values.dim() - dim


def layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    if not is_jagged(input) or not _is_normalized_behind(input, normalized_shape):
        return None
    return _like(input, F.layer_norm(parts_of(input)[0], normalized_shape, weight, bias, eps))


def rms_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    if not is_jagged(input) or not _is_normalized_behind(input, normalized_shape):
        return None
    return _like(input, F.rms_norm(parts_of(input)[0], normalized_shape, weight, eps))


def softmax(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    if dim is None:
        return None
    values, offsets, ragged, cache = parts_of(input)
    inner = _inner(input, dim)
    if inner is not None:
        return _like(input, F.softmax(values, inner, dtype=dtype))
    if ragged != 1 or dim not in (1, -values.dim()) or dtype is not None:
        return None
    length = _longest(offsets, cache)
    if LONGEST not in cache:  # noted, as eager does
        cache[LONGEST] = torch.zeros(length, 0)
    sequence, place = rows_of(offsets, values.shape[0])
    return _like(input, _padded(values, offsets, length, -torch.inf).softmax(1)[sequence, place])


def log_softmax(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    inner = None if dim is None else _inner(input, dim)
    if inner is None:
        return None
    return _like(input, F.log_softmax(parts_of(input)[0], inner, dtype=dtype))


def _inner(input: Any, dim: int) -> int | None:
    """The values' dimension for one that is neither the batch nor ragged, else None."""
    values, _, ragged, _ = parts_of(input)
    dim = dim + values.dim() + 1 if dim < 0 else dim
    return None if dim in (0, ragged) or not 0 < dim <= values.dim() else dim - 1


def transpose(input: Any, dim0: int, dim1: int) -> Any:
    values, offsets, ragged, cache = parts_of(input)
    first = dim0 + values.dim() + 1 if dim0 < 0 else dim0
    second = dim1 + values.dim() + 1 if dim1 < 0 else dim1
    if not (0 < first <= values.dim() and 0 < second <= values.dim()):
        return None
    moved = second if ragged == first else first if ragged == second else ragged
    return make_jagged(values.transpose(first - 1, second - 1), offsets, moved, cache or {})


def unflatten(input: Any, dim: int, sizes: Sequence[int]) -> Any:
    values, _, ragged, _ = parts_of(input)
    inner = _inner(input, dim)
    if inner is None or inner < ragged:
        return None
    return _like(input, values.unflatten(inner, sizes))


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    _, _, ragged, _ = parts_of(input)
    first, last = _inner(input, start_dim), _inner(input, end_dim)
    if first is None or last is None or first < ragged:
        return None
    return _like(input, parts_of(input)[0].flatten(first, last))


def view(input: Any, *shape: Any) -> Any:
    sizes = _view_of(input, shape)
    return None if sizes is None else _like(input, parts_of(input)[0].view(sizes))


def reshape(input: Any, *shape: Any) -> Any:
    sizes = _view_of(input, shape)
    return None if sizes is None else _like(input, parts_of(input)[0].reshape(sizes))


def _view_of(input: Any, shape: Any) -> list[int] | None:
    """Sizes of values for a shape that begins with the batch and the ragged size, else None."""
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = shape[0]
    values, offsets, ragged, _ = parts_of(input)
    if ragged != 1 or len(shape) < 3 or shape[0] != offsets.shape[0] - 1:
        return None
    if not is_ragged_size(input, shape[1]):
        return None
    return [values.shape[0], *shape[2:]]


def is_ragged_size(input: Any, size: Any) -> bool:
    """Whether a size in a shape is the ragged one, -1 among them."""
    return bool(size == -1 or size == input.shape[parts_of(input)[2]])


def chunk(input: Any, chunks: int, dim: int = 0) -> Any:
    inner = _inner(input, dim)
    if inner is None:
        return None
    return tuple([_like(input, part) for part in parts_of(input)[0].chunk(chunks, inner)])


def split(tensor: Any, split_size_or_sections: Any, dim: int = 0) -> Any:
    inner = _inner(tensor, dim)
    if inner is None:
        return None
    parts = parts_of(tensor)[0].split(split_size_or_sections, inner)
    return tuple([_like(tensor, part) for part in parts])


def unbind(input: Any, dim: int = 0) -> Any:
    """The sequences, as many rows of the values as data says."""
    values, offsets, ragged, _ = parts_of(input)
    if dim not in (0, -1 - values.dim()):
        return None
    return values.split(offsets.diff().tolist(), ragged - 1)


def unsqueeze(input: Any, dim: int) -> Any:
    values, _, ragged, _ = parts_of(input)
    dim = dim + values.dim() + 2 if dim < 0 else dim
    return _like(input, values.unsqueeze(dim - 1)) if dim > ragged else None


def cat(tensors: Any, dim: int = 0) -> Any:
    first = tensors[0]
    if not is_jagged(first):
        return None
    _, offsets, ragged, _ = parts_of(first)
    inner = _inner(first, dim)
    if inner is None:
        return None
    values = []
    for tensor in tensors:
        if not is_jagged(tensor):
            return None
        others, other_offsets, other_ragged, _ = parts_of(tensor)
        if other_offsets is not offsets or other_ragged != ragged:
            return None
        values.append(others)
    return _like(first, torch.cat(values, inner))


def sum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    values, _, ragged, _ = parts_of(input)
    if dim is None:
        return None if keepdim else values.sum(dtype=dtype)
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    if not isinstance(dim, int):
        return None
    if dim == ragged or dim + values.dim() + 1 == ragged:
        return to_padded(input, 0).sum(ragged, keepdim=keepdim, dtype=dtype)
    inner = _inner(input, dim)
    if inner is None or not (keepdim or inner >= ragged):
        return None
    return _like(input, values.sum(inner, keepdim=keepdim, dtype=dtype))


def mean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    values, offsets, ragged, _ = parts_of(input)
    if dim is None:
        return None if keepdim else values.mean(dtype=dtype)
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    if not isinstance(dim, int):
        return None
    if dim == ragged or dim + values.dim() + 1 == ragged:
        if ragged != 1 or dtype is not None:
            return None
        total = to_padded(input, 0).sum(1, keepdim=keepdim)
        lengths = offsets.diff()
        return total / lengths.reshape(lengths.shape + (1,) * (total.dim() - 1))
    inner = _inner(input, dim)
    if inner is None or not (keepdim or inner >= ragged):
        return None
    return _like(input, values.mean(inner, keepdim=keepdim, dtype=dtype))


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Of heads in front of the ragged dimension: padded, with a mask of the places that there are.

    On the CPU eager computes it one by one and refuses a causal mask; elsewhere its kernels note lengths.
    """
    if not (is_jagged(query) and is_jagged(key) and is_jagged(value)):
        return None
    q, offsets, dim, cache = parts_of(query)
    k, key_offsets, key_dim, key_cache = parts_of(key)
    v, value_offsets, value_dim, _ = parts_of(value)
    on_cpu = q.device.type == "cpu"
    if attn_mask is not None or dropout_p > 0 or enable_gqa or (is_causal and on_cpu):
        return None
    if (dim, key_dim, value_dim) != (2, 2, 2) or (q.dim(), k.dim(), v.dim()) != (3, 3, 3):
        return None
    if value_offsets is not key_offsets or q.dtype != k.dtype or q.dtype != v.dtype:
        return None
    length = _longest(offsets, cache)
    key_length = length if key_offsets is offsets else _longest(key_offsets, key_cache)
    mask = _inside(key_offsets, key_length).unsqueeze(1).unsqueeze(1)
    if is_causal:
        places = torch.arange(length, device=q.device).unsqueeze(1)
        mask = mask & (torch.arange(key_length, device=q.device) <= places)
    found = F.scaled_dot_product_attention(
        _heads(q, offsets, length),
        _heads(k, key_offsets, key_length),
        _heads(v, key_offsets, key_length),
        attn_mask=mask,
        scale=scale,
    )
    sequence, place = rows_of(offsets, q.shape[1])
    known = {name: cache[name] for name in (SHORTEST, LONGEST) if name in cache}
    if not on_cpu:
        known[LONGEST] = torch.zeros(length, 0)
        if SHORTEST not in known:
            known[SHORTEST] = torch.zeros(int(offsets.diff().min().item()), 0)
    rows = found.transpose(1, 2)[sequence, place]
    return make_jagged(rows.transpose(0, 1), offsets, 2, known)


def _heads(values: Tensor, offsets: Tensor, length: int) -> Tensor:
    """``values [heads, total, size]`` as ``[batch, heads, length, size]``."""
    return _padded(values.transpose(0, 1), offsets, length, 0.0).transpose(1, 2)
