"""What calls are given lies as eager's operands do, also where an extent is 1: libraries ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_loop_ir import BufferView, ExternCall
from weft_loop_ir.expressions import to_expression
from weft_loop_ir.loop_graph import all_items

aten = torch.ops.aten

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "heads of one token": lambda x: x[:, :1].view(1, 1, 4, 16).transpose(1, 2),
    "heads of tokens": lambda x: x.view(1, 6, 4, 16).transpose(1, 2),
    "computed heads of one token": lambda x: (x[:, :1] * 2).view(1, 1, 4, 16).transpose(1, 2),
    "one token of heads": lambda x: x.view(1, 6, 4, 16).transpose(1, 2)[:, :, 2:3],
    "a head": lambda x: x.view(1, 6, 4, 16)[:, :, 1].unsqueeze(1),
    "a token in the middle": lambda x: x[0, 3].view(4, 16).unsqueeze(1).unsqueeze(0),
    "copied": lambda x: x[:, :1].reshape(1, 4, 16).unsqueeze(2).contiguous(),
    "permuted": lambda x: x.view(6, 1, 4, 16).permute(1, 2, 0, 3)[:, :, -1:],
    "flat and back": lambda x: x[:, :1].flatten().view(4, 1, 16).unsqueeze(0),
    "squeezed": lambda x: x[:, :1].unsqueeze(0).squeeze(0).view(1, 4, 1, 16),
}
"""Queries, keys and values ``[1, heads, tokens, 16]`` of ``[1, 6, 64]``."""


def _views(arguments: Any) -> Iterator[BufferView]:
    for argument in arguments:
        if isinstance(argument, BufferView):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _views(argument)


def _check(function: Callable[..., Any], *inputs: torch.Tensor, mode: str) -> None:
    graph = make_fx(function, tracing_mode=mode)(*inputs)  # type: ignore[arg-type]
    loop_graph = weft_loop_ir.lower(graph)
    by_name = {node.name: node for node in graph.graph.nodes}
    found = 0
    for call in all_items(loop_graph.nodes):
        if not isinstance(call, ExternCall) or call.origin not in by_name:
            continue
        operands = [n.meta["val"] for n in by_name[call.origin].all_input_nodes]
        for view, fake in zip(_views(call.arguments), operands, strict=True):
            found += 1
            expected = [to_expression(step) for step in fake.stride()]
            assert list(view.stride) == expected, f"{call.operator} {view}"
    assert found


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("key", VIEWS)
@pytest.mark.parametrize("query", list(VIEWS)[:3])
def test_strides_of_attention(query: str, key: str, mode: str) -> None:
    def attend(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        views = VIEWS[query](x), VIEWS[key](y), VIEWS[key](z)
        result: torch.Tensor = aten._scaled_dot_product_flash_attention_for_cpu(*views)[0]
        return result

    _check(attend, *(torch.randn(1, 6, 64) for _ in range(3)), mode=mode)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("view", VIEWS)
def test_strides_of_products(view: str, mode: str) -> None:
    def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.bmm(VIEWS[view](x)[0], y)

    x = torch.randn(1, 6, 64)
    _check(multiply, x, torch.randn(VIEWS[view](x).shape[1], 16, 40), mode=mode)
