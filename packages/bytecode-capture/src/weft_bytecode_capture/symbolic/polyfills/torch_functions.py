"""Functions of torch in plain Python; where models call them, arguments have been checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._torch import pytree, safe_softmax
from ..._torch.transforms import GRADIENTS_OF_TRANSFORM
from ..models.table import polyfill

# ``torch.associative_scan`` flattens containers, puts the scanned dimension first and in order, and has
# :func:`scan_rows` scan, which capture knows as the graph's own operator.


def associative_scan(
    combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, is_reverse: bool
) -> Any:
    """``xs``: tensors of one size in containers; results in the same, in a layout of their own."""
    leaves, spec = pytree.tree_flatten(xs)
    count = len(leaves)
    rows = [leaf.movedim(dim, 0) for leaf in leaves]
    if is_reverse:
        rows = [row.flip([0]) for row in rows]

    def combine(*values: Tensor) -> list[Tensor]:
        left = pytree.tree_unflatten(values[:count], spec)
        right = pytree.tree_unflatten(values[count:], spec)
        return pytree.tree_leaves(combine_fn(left, right))

    if rows[0].size(0) > 1:
        rows = scan_rows(combine, rows)
    if is_reverse:
        rows = [row.flip([0]) for row in rows]
    return pytree.tree_unflatten([row.movedim(0, dim) for row in rows], spec)


def scan_rows(combine: Callable[..., list[Tensor]], rows: list[Tensor]) -> list[Tensor]:
    """The running combination of rows: the first row as it is, each later one with what precedes it.

    ``combine`` takes the left values, then the right ones, without the scanned dimension.
    """
    results = [[row[0] for row in rows]]
    for position in range(1, rows[0].size(0)):
        results.append(combine(*results[-1], *(row[position] for row in rows)))
    return [torch.stack(column) for column in zip(*results, strict=True)]


# Parts of torch's function transforms in plain Python.


@polyfill(GRADIENTS_OF_TRANSFORM)
def _gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    grad_outputs: Sequence[torch.Tensor] | None = None,
    retain_graph: bool = False,
    create_graph: bool = True,
) -> tuple[torch.Tensor, ...]:
    """The gradients of what needs any; zeros for an input that nothing is computed from."""
    seeds = [None] * len(outputs) if grad_outputs is None else grad_outputs
    pairs = [(o, s) for o, s in zip(outputs, seeds, strict=False) if o.requires_grad]
    found: Sequence[torch.Tensor | None] = [None] * len(inputs)
    if pairs:
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            inputs,
            [seed for _, seed in pairs],
            retain_graph=retain_graph,
            create_graph=create_graph,
            allow_unused=True,
        )
    return tuple(
        torch.zeros_like(i) if g is None else g for i, g in zip(inputs, found, strict=True)
    )


def linear_map(func: Callable[..., Any], primals: tuple[Any, ...]) -> Callable[..., Any]:
    """What ``torch.func.linearize`` gives beside the value, where that has no gradients.

    It goes forward again; in a graph what is computed twice is one.
    """

    def along(*tangents: Any) -> Any:
        return torch.func.jvp(func, primals, tangents)[1]

    return along


# ``flex_attention``: scores are computed in float32 (float64 for float64), changed and masked by the
# program's own functions, which see positions as tensors that broadcast.


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    scale: float | None,
) -> Tensor:
    """``query [b, h, l, e]``, ``key [b, g, s, e]``, ``value [b, g, s, d]``: ``[b, h, l, d]``.

    Rows without a visible key give zeros.
    """
    group = query.size(1) // key.size(1)
    if group > 1:
        key = key[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)
        value = value[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    if scale is None:
        scale = 1.0 / math.sqrt(query.size(-1))
    scores = query.to(kind) @ key.to(kind).transpose(-2, -1) * scale
    device, size = query.device, scores.shape
    batch = torch.arange(size[0], device=device).view(-1, 1, 1, 1)
    head = torch.arange(size[1], device=device).view(-1, 1, 1)
    row = torch.arange(size[2], device=device).view(-1, 1)
    column = torch.arange(size[3], device=device)
    if score_mod is not None:
        scores = score_mod(scores, batch, head, row, column)
    if mask_mod is not None:
        scores = torch.where(mask_mod(batch, head, row, column), scores, -math.inf)
    weights = safe_softmax(scores.to(kind).expand(size), -1)
    return weights.to(query.dtype) @ value


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor | None:
    """``torch.istft``; None for what eager has an error or a warning for, whatever the data.

    The sum of windows must not be 0 where a frame is divided by it, of which only data can tell.
    """
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    if input.dim() not in (2, 3) or not input.is_complex() or not 0 < hop <= width <= n_fft:
        return None
    bins, frames = input.shape[-2:]
    is_half = bins != n_fft if onesided is None else onesided
    if input.numel() == 0 or bins != (n_fft // 2 + 1 if is_half else n_fft):
        return None
    if is_half if return_complex else n_fft % 2 == 1:
        return None
    if window is not None and (
        window.shape != (width,)
        or window.device != input.device
        or (window.is_complex() and not return_complex)
    ):
        return None
    total = n_fft + hop * (frames - 1)
    start = n_fft // 2 if center else 0
    end = total - start if length is None else start + length
    if not start < end <= total:
        return None
    if window is None:
        window = torch.ones(width, dtype=input.dtype.to_real(), device=input.device)
    if width != n_fft:
        left = (n_fft - width) // 2
        window = torch.nn.functional.pad(window, (left, n_fft - width - left))
    rows = (input.unsqueeze(0) if input.dim() == 2 else input).transpose(1, 2)
    norm = "ortho" if normalized else None
    if return_complex:
        rows = torch.fft.ifft(rows, norm=norm)
    else:
        rows = torch.fft.irfft(rows[..., : n_fft // 2 + 1], n_fft, norm=norm)
    rows = rows * window.view(1, 1, n_fft)
    weights = window.pow(2).expand(1, frames, n_fft)
    signal: Tensor = _overlapping(rows, [rows.shape[0], total], 1, n_fft, hop)[:, start:end]
    envelope = _overlapping(weights, [1, total], 1, n_fft, hop)[:, start:end]
    torch._check((envelope.abs().min() < 1e-11).long().item() == 0)
    signal = signal / envelope
    return signal.squeeze(0) if input.dim() == 2 else signal


_overlapping: Any = torch.ops.aten.unfold_backward.default


# Functions of ``torch.distributed`` each start an operator of communication, wait for it, and write where
# they do.  The two are apart in the graph, so that later stages start it as early and wait for it as late as
# its neighbours let them.  ``op`` is the reduction's name, ``src`` a rank of the group.

_operators: Any = torch.ops._c10d_functional


def all_reduce(tensor: Tensor, op: str, group: Any) -> None:
    started = _operators.all_reduce(tensor, op, group.group_name)
    tensor.copy_(_operators.wait_tensor(started))


def broadcast(tensor: Tensor, src: int, group: Any) -> None:
    started = _operators.broadcast(tensor, src, group.group_name)
    tensor.copy_(_operators.wait_tensor(started))


def all_gather_single(output_tensor: Tensor, input_tensor: Tensor, group: Any) -> None:
    row = input_tensor.reshape(1, input_tensor.numel())
    started = _operators.all_gather_into_tensor(row, group.size(), group.group_name)
    output_tensor.copy_(_operators.wait_tensor(started).view(output_tensor.shape))


def all_gather(tensor_list: Sequence[Tensor], tensor: Tensor, group: Any) -> None:
    row = tensor.unsqueeze(0)
    started = _operators.all_gather_into_tensor(row, group.size(), group.group_name)
    for output, part in zip(tensor_list, _operators.wait_tensor(started).unbind(), strict=True):
        output.copy_(part)


def reduce_scatter_single(output: Tensor, input: Tensor, op: str, group: Any) -> None:
    rows = input.reshape(group.size(), output.numel())
    started = _operators.reduce_scatter_tensor(rows, op, group.size(), group.group_name)
    output.copy_(_operators.wait_tensor(started).view(output.shape))


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int],
    input_split_sizes: Sequence[int],
    group: Any,
) -> None:
    started = _operators.all_to_all_single(
        input, output_split_sizes, input_split_sizes, group.group_name
    )
    output.copy_(_operators.wait_tensor(started))
