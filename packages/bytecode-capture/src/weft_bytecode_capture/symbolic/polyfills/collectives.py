"""What functions of ``torch.distributed`` do in a graph.

Each starts an operator of communication, waits for it, and writes where the function does.  The two are apart
in the graph, so that later stages start it as early and wait for it as late as its neighbours let them.
Arguments have been checked; ``op`` is the reduction's name, ``src`` a rank of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
