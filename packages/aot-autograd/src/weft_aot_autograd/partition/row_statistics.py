"""What backward needs of a row's logarithms of probabilities is two numbers, not the row computed twice."""

from __future__ import annotations

import torch
import torch.fx

from ..splice import splice
from .recompute_policy import COMPUTED_IN_FORWARD
from .split import ancestors

aten = torch.ops.aten

_TARGET = aten._log_softmax.default


def write_out_log_softmax(graph: torch.fx.Graph) -> None:
    """Put the largest element of each row and the logarithm of its sum where both graphs can read them.

    As one operator it is kept whole, or computed again from what it reads: both statistics, row by row.
    What forward computes of gradients, as in blocks of rows, reads it there.
    """
    gradients = [node for node in graph.nodes if node.meta.get(COMPUTED_IN_FORWARD)]
    read_there = ancestors(gradients, stop=())
    for node in graph.find_nodes(op="call_function", target=_TARGET):
        value = node.meta["val"]
        if value.dim() and node not in read_there:
            with torch.no_grad(), value.fake_mode:
                splice(node, {_TARGET: _log_softmax})


def _log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    shifted = wide - wide.amax(dim, keepdim=True)
    result = shifted - shifted.exp().sum(dim, keepdim=True).log()
    return result if half_to_float else result.to(x.dtype)
