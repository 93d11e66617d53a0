"""Nodes that look like nodes before are recorded as those were: graphs are what they are without that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor
from weft_functionalize import functionalize
from weft_functionalize.repeated_nodes import RepeatedNodes

from .beside_eager import check


def layers_alike(x: Tensor, y: Tensor) -> tuple[Tensor]:
    for _ in range(3):
        x = F.linear(x, y, None).relu() + F.layer_norm(x, (4,))
    return (x,)


def one_tensor_or_two(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return torch.add(x, y), torch.add(x, x), torch.add(y, x), torch.add(y, y), torch.cat([x, y, x])


def itself_or_a_copy(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a, b, c = x.contiguous(), y.t().contiguous(), x.t().contiguous()
    return a.to(torch.float32), b.to(torch.float32), c, x.reshape(4, 4), x.t().reshape(16)


def numbers_that_are_equal(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    whole = (x * 4).to(torch.int64)
    return (
        *(whole * 1, whole * 1.0, whole * True, whole + 0, whole + 0.0),
        *(torch.copysign(x, 0.0), torch.copysign(x, -0.0), torch.copysign(y, -0.0)),
    )


def several_results(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    first, second = x.topk(2), y.topk(2)
    rows, others, columns = x.split(2), y.split(2), torch.chunk(x, 2, 1)
    both = rows[0], rows[1], others[0], others[1], columns[0], columns[1]
    return *both, first[0], first[1], second[1], y.unbind(1)[3], x.unbind(1)[2]


def views_that_are_written_to(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a, b = x + 1, y + 1
    for tensor in (a, b, a):
        row = tensor[1]
        row.mul_(2)
        tensor.view(16)[3:].add_(x.view(16)[3:])
    return a, b, a[1], b[1]


def other_layouts(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    parts = x, x.t(), x[::2], x[1:3], y[:, 1], x[..., None], y[None]
    return tuple(F.gelu(part.transpose(0, -1)) * 2 for part in parts)


def attention(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    found = []
    for q in (x, y):
        heads = q.view(1, 2, 2, 4)
        found.append(F.scaled_dot_product_attention(heads, heads, heads, is_causal=True))
    return tuple(found)


PROGRAMS = (
    *(layers_alike, one_tensor_or_two, itself_or_a_copy, numbers_that_are_equal, several_results),
    *(views_that_are_written_to, other_layouts, attention),
)


def described(graph: torch.fx.Graph) -> list[tuple[Any, ...]]:
    """Nodes with what is known of their values, tensors of one storage by a number."""
    storages: dict[int, int] = {}

    def look(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [look(item) for item in value]
        if not isinstance(value, Tensor):
            return value
        place = storages.setdefault(value.untyped_storage()._cdata, len(storages))
        layout = value.shape, value.stride(), value.storage_offset(), value._is_view()
        return value.dtype, value.device, *layout, value._version, place

    return [(n.format_node(), look(n.meta.get("val")), sorted(n.meta)) for n in graph.nodes]


def run_each(
    self: RepeatedNodes, node: torch.fx.Node, args: Any, kwargs: Any, run: Callable[[], Any]
) -> Any:
    """In place of :meth:`RepeatedNodes.result`: nothing is repeated."""
    return run()


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_graphs_are_as_without(
    program: Callable[..., Any], gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with gradients on, where nothing is repeated."""
    module = torch.fx.symbolic_trace(program)
    inputs = [torch.rand(4, 4), torch.rand(4, 4)]
    with torch.set_grad_enabled(gradients):
        got = functionalize(module, inputs).graph_module.graph
        monkeypatch.setattr(RepeatedNodes, "result", run_each)
        wanted = functionalize(module, inputs).graph_module.graph
    assert described(got) == described(wanted)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_are_eagers(program: Callable[..., Any]) -> None:
    with torch.no_grad():
        check(torch.fx.symbolic_trace(program), torch.rand(4, 4), torch.rand(4, 4))


def test_settings_between_nodes_count() -> None:
    """Nodes that look alike are recorded anew where autocast has been entered between them."""
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    results = [graph.call_function(torch.matmul, (x, y)) for _ in range(2)]
    entering = "cpu", torch.bfloat16, True, True
    entered = graph.call_function(torch.amp.autocast_mode._enter_autocast, entering)
    results += [graph.call_function(torch.matmul, (x, y)) for _ in range(2)]
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (entered,))
    results += [graph.call_function(torch.matmul, (x, y)) for _ in range(2)]
    graph.output(tuple(results))
    module = torch.fx.GraphModule({}, graph)
    with torch.no_grad():
        functional = check(module, torch.rand(4, 4), torch.rand(4, 4))
    (output,) = functional.graph_module.graph.find_nodes(op="output")
    found = [value.meta["val"].dtype for value in output.args[0]]
    assert found == [torch.float32] * 2 + [torch.bfloat16] * 2 + [torch.float32] * 2
