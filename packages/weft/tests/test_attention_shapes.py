"""Attention of matrices, of many batch dims, and with heads that all read: the library's, as eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import weft
from torch.nn import functional as F
from weft.attention_shapes import give_four_dims
from weft.known_masks import ATTENTION

L, S, E = 5, 7, 8

SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "matrices": ((), (), ()),
    "images": ((3,), (3,), (3,)),
    "images with keys for all": ((3,), (), (3,)),
    "heads that share keys and values": ((2, 4), (2, 1), (2, 1)),
    "images that share keys": ((2, 4), (1, 4), (2, 4)),
    "a query for all": ((1, 1), (2, 4), (2, 4)),
    "five dims": ((2, 3, 4), (2, 3, 4), (2, 3, 4)),
    "five dims, shared": ((2, 3, 4), (3, 1), (2, 1, 4)),
    "six dims": ((2, 1, 3, 4), (2, 1, 3, 4), (2, 1, 3, 4)),
    "no images": ((0, 3, 4), (0, 3, 4), (0, 3, 4)),
}
MASKS: dict[str, tuple[int, ...] | None] = {
    "no mask": None,
    "a mask": (L, S),
    "a mask of a line": (1, S),
    "a mask for each head": (1, L, S),
    "a mask of four dims": (1, 1, L, S),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", SHAPES)
def test_results(name: str, mask: str) -> None:
    size, batches = MASKS[mask], SHAPES[name]
    if size is not None and len(size) > 2 + max(map(len, batches)):
        pytest.skip("eager refuses it")
    bias = None if size is None else torch.randn(size, dtype=torch.float64)
    operands = [
        torch.randn(*batch, rows, E, dtype=torch.float64).requires_grad_()
        for batch, rows in zip(batches, (L, S, S), strict=True)
    ]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, bias, is_causal=size is None, scale=0.3)

    result, expected = weft.compile(attend, fullgraph=True)(*operands), attend(*operands)
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.stride()
    tangent = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(result, operands, tangent),
        torch.autograd.grad(expected, operands, tangent),
    )


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_of_large_scores(name: str, scale: float) -> None:
    """The library's backward computes scores of float32 anew, in another order than forward did.

    A score of 1e5 differs then by 0.01 or more, and so does each weight: eager's matmuls keep weights.
    """
    operands = [
        (scale * torch.randn(*batch, rows, E)).requires_grad_()
        for batch, rows in zip(SHAPES[name], (L, S, S), strict=True)
    ]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    if len(SHAPES[name][0]) == 2 and len({*SHAPES[name]}) == 1:
        pytest.skip("eager calls the library, too")
    result, expected = weft.compile(attend, fullgraph=True)(*operands), attend(*operands)
    tangent = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(result, operands, tangent),
        torch.autograd.grad(expected, operands, tangent),
        rtol=1e-4,
        atol=1e-5 * scale,
    )


def test_calls_have_four_dims() -> None:
    found: list[torch.Size] = []

    def backend(graph_module: torch.fx.GraphModule, inputs: list[object]) -> Any:
        give_four_dims(graph_module)
        (node,) = graph_module.graph.find_nodes(op="call_function", target=ATTENTION)

        class Sizes(torch.fx.Interpreter):
            def run_node(self, n: torch.fx.Node) -> Any:
                result = super().run_node(n)
                if n is node:
                    found.append(result.shape)
                return result

        return lambda *arguments: Sizes(graph_module).run(*arguments)

    for batch in ((), (3,), (2, 3, 4)):
        q = torch.randn(*batch, L, E)
        weft.compile(lambda q: F.scaled_dot_product_attention(q, q, q), backend=backend)(q)
    assert found == [(1, 1, L, E), (1, 3, L, E), (6, 4, L, E)]


@pytest.mark.parametrize(
    "shape", [(0, 4, 3), (1, 0, 3), (3, 4, 0), (0, 3), (4, 0), (0, 2, 3, 4, 3)]
)
def test_operands_without_elements(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    result = weft.compile(F.scaled_dot_product_attention, fullgraph=True)(x, x, x)
    expected = F.scaled_dot_product_attention(x, x, x)
    assert (result.shape, result.stride()) == (expected.shape, expected.stride())
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert gradient.shape == shape


def test_what_is_left() -> None:
    def dropped(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    def grouped(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    torch.manual_seed(0)
    expected = dropped(torch.ones(3, L, E))
    torch.manual_seed(0)
    torch.testing.assert_close(weft.compile(dropped)(torch.ones(3, L, E)), expected)
    q, k = torch.randn(2, 4, L, E), torch.randn(2, 2, L, E)
    torch.testing.assert_close(weft.compile(grouped)(q, k), grouped(q, k))


def test_lengths_that_vary() -> None:
    def attend(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q[:, :1], q[:, :1]) + 1

    compiled = weft.compile(attend, dynamic=True)
    for n in (4, 7, 9):
        q = torch.randn(3, 2, n, E)
        torch.testing.assert_close(compiled(q), attend(q))


def test_errors_are_eagers() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k)

    q, k = torch.randn(2, 3, L, E), torch.randn(2, 2, L, E)
    with pytest.raises(RuntimeError) as expected:
        attend(q, k)
    with pytest.raises(RuntimeError) as found:
        weft.compile(attend)(q, k)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "no images"])
@pytest.mark.parametrize("is_inside", [False, True])
def test_results_may_be_written_to(name: str, is_inside: bool) -> None:
    """Eager's matmuls don't read in backward what they gave, as the library's kernels do."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        result = F.scaled_dot_product_attention(q, k, v)
        return result.mul_(3) if is_inside else result

    given = [
        torch.randn(*batch, rows, E, dtype=torch.float64).requires_grad_()
        for batch, rows in zip(SHAPES[name], (L, S, S), strict=True)
    ]
    found, expected = weft.compile(attend, fullgraph=True)(*given), attend(*given)
    for result in (found, expected):
        result.add_(1)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(
        *(torch.autograd.grad(result.square().sum(), given) for result in (found, expected))
    )


def test_operands_may_be_written_to() -> None:
    """Eager's matmuls save copies in float32, where the library's kernels save operands in 16 bits.

    With torch 2.15 eager calls the library's kernel, and refuses.
    """

    def attend(x: torch.Tensor) -> torch.Tensor:
        result = F.scaled_dot_product_attention(x, x, x)
        x.mul_(2)
        return result

    found, refusals = [], []
    for function in (weft.compile(attend), attend):
        leaf = torch.linspace(0, 1, 2 * L * E, dtype=torch.bfloat16).view(2, L, E).requires_grad_()
        result = function(leaf * 1)
        try:
            found.append((result, *torch.autograd.grad(result.sum(), leaf)))
        except RuntimeError as error:
            found.append((result,))
            refusals.append(str(error))
    torch.testing.assert_close(*found)
    assert all("modified by an inplace operation" in refusal for refusal in refusals)
