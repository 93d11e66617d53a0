"""Reads at places that no input decides are slices: beside eager, with gradients, and in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
import weft_functionalize
from weft_bytecode_capture import capture
from weft_loop_ir import slice_known_indices

aten = torch.ops.aten
READS = (aten.index_select.default, aten.embedding.default, aten.index.Tensor)


def selected(x: torch.Tensor) -> torch.Tensor:
    return torch.index_select(x, 1, torch.arange(3, dtype=torch.long))


def of_negative_dim(x: torch.Tensor) -> torch.Tensor:
    return x.index_select(-1, torch.arange(1, 6, 2))


def backwards(x: torch.Tensor) -> torch.Tensor:
    return x[:, torch.arange(4, 0, -1)]


def one_place(x: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(2, 3)]


def rows(x: torch.Tensor) -> torch.Tensor:
    return F.embedding(torch.arange(3), x[..., 0])


def rows_of_a_batch(x: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(1, 4).unsqueeze(0).expand(2, 3)
    return F.embedding(positions, x[..., 0])


def square(x: torch.Tensor) -> torch.Tensor:
    return x[:, torch.arange(3)[:, None].expand(3, 2)]


def written_after(x: torch.Tensor) -> torch.Tensor:
    y = x.index_select(0, torch.arange(4))
    y.add_(1)
    return y * x


SLICED = [selected, of_negative_dim, backwards, one_place, rows, rows_of_a_batch, square]


def uneven(x: torch.Tensor) -> torch.Tensor:
    return x[:, torch.arange(3) * torch.arange(3)]


def repeated(x: torch.Tensor) -> torch.Tensor:
    return x[:, torch.arange(3) * 0 + 1]


def negative(x: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(-2, 1)]


def by_floats(x: torch.Tensor) -> torch.Tensor:
    return x[(torch.arange(3) * 1.0).long()]


def padded(x: torch.Tensor) -> torch.Tensor:
    return F.embedding(torch.arange(3), x[..., 0], padding_idx=1)


def padded_at_first(x: torch.Tensor) -> torch.Tensor:
    return F.embedding(torch.arange(3), x[..., 0], padding_idx=0)


LEFT = [padded_at_first, uneven, repeated, negative, by_floats, padded]
LAYOUTS = {
    "contiguous": lambda: torch.rand(4, 5, 6),
    "transposed": lambda: torch.rand(6, 5, 4).permute(2, 1, 0),
    "with gaps": lambda: torch.rand(8, 5, 12)[::2, :, ::2],
    "expanded": lambda: torch.rand(4, 1, 6).expand(4, 5, 6),
}


def reads_of(function: Callable[..., Any], x: torch.Tensor) -> tuple[int, int]:
    """How many reads at an index a function's graph has, and how many of them become slices."""
    found: list[tuple[int, int]] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graph = weft_functionalize.functionalize(module, inputs).graph_module.graph
        sliced = slice_known_indices(graph)
        graph.lint()
        left = sum(node.target in READS for node in graph.nodes)
        found.append((left + sliced, sliced))
        return module

    capture(function, backend=backend)(x)
    ((reads, sliced),) = found
    return reads, sliced


@pytest.mark.parametrize("function", SLICED)
def test_runs_of_places_are_slices(function: Callable[..., Any]) -> None:
    assert reads_of(function, torch.rand(4, 5, 6)) == (1, 1)


@pytest.mark.parametrize("function", LEFT)
def test_other_places_are_read_one_by_one(function: Callable[..., Any]) -> None:
    assert reads_of(function, torch.rand(4, 5, 6)) == (1, 0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", [*SLICED, *LEFT, written_after])
def test_beside_eager(function: Callable[..., Any], layout: str) -> None:
    compiled = weft.compile(function, fullgraph=True)
    values = LAYOUTS[layout]().detach()
    wanted = function(values)
    with torch.no_grad():
        got = compiled(values)
    assert torch.equal(got, wanted) and got.stride() == wanted.stride()
    assert got.untyped_storage().data_ptr() != values.untyped_storage().data_ptr()
    if layout == "expanded":
        return
    gradients = []
    for call in (function, compiled):
        x = values.clone().requires_grad_()
        result = call(x)
        weights = torch.linspace(-1, 1, result.numel()).view(result.shape)
        gradients.append(torch.autograd.grad((result * weights).sum(), x)[0])
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("read", [selected, rows])
def test_a_place_outside_raises_as_in_eager(read: Callable[..., Any]) -> None:
    x = torch.rand(2, 2, 2)
    with pytest.raises((IndexError, RuntimeError)) as wanted:
        read(x)
    with pytest.raises(type(wanted.value)):
        weft.compile(read)(x)
