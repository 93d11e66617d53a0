"""Programs that use function transforms are one graph, and compute what they compute in eager."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from tests.staged_backend import by_operators

from .programs import NET, PROGRAMS, STACKED

OLD = torch.__version__ < "2.13"
"""Where sizes vary, the place of a diagonal is a number of data to its fakes: a break."""

PARAMETERS = (*NET.parameters(), *STACKED.values())


def arguments(rows: int = 4, *, train: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 3, dtype=torch.float64, generator=generator)
    y = torch.randn(3, 5, dtype=torch.float64, generator=generator)
    return x.requires_grad_(train), y.requires_grad_(train)


def assert_same(found: Any, expected: Any) -> None:
    """Equal trees; their tensors have equal values, strides and needs of gradients."""
    leaves, tree = pytree.tree_flatten(expected)
    others, other_tree = pytree.tree_flatten(found)
    assert other_tree == tree
    for other, leaf in zip(others, leaves, strict=True):
        torch.testing.assert_close(
            other, leaf, rtol=1e-11, atol=1e-11, check_stride=isinstance(leaf, Tensor)
        )
        assert not isinstance(leaf, Tensor) or other.requires_grad == leaf.requires_grad


def gradients(function: Callable[..., Any], given: Sequence[Tensor]) -> tuple[Any, ...]:
    """The results of a call, and the gradients of all that it is made of."""
    results = function(*given)
    leaves = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    made = (*given, *PARAMETERS)
    total = sum((leaf * torch.ones_like(leaf).cumsum(-1)).sum() for leaf in wanted if leaf.dim())
    total = total + sum(leaf * 2 for leaf in wanted if not leaf.dim())
    found = torch.autograd.grad(total, made, allow_unused=True) if wanted else ()  # type: ignore[arg-type]
    return results, found


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    program = PROGRAMS[name]
    compiled = weft.compile(program, fullgraph=True, backend=by_operators)
    for rows in (4, 4, 6):
        if rows != 4 and (name == "indexed" or (name == "jacobians_of_several" and OLD)):
            continue
        given = arguments(rows)
        assert_same(compiled(*given), program(*given))


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    program = PROGRAMS[name]
    given = arguments(train=True)
    found = gradients(weft.compile(program, fullgraph=True, backend=by_operators), given)
    assert_same(found, gradients(program, given))


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_gradients(name: str) -> None:
    program = PROGRAMS[name]
    given = arguments(train=True)
    with torch.no_grad():
        assert_same(
            weft.compile(program, fullgraph=True, backend=by_operators)(*given), program(*given)
        )


@pytest.mark.parametrize(
    "name",
    [
        "attention_mask", "ensemble", "gradients_of_samples_of_parameters", "images", "inner_step",
        "score_of_a_density", "second_derivatives_of_rows", "written_for_a_gradient",
    ],
)  # fmt: skip
@pytest.mark.native
def test_kernels(name: str) -> None:
    program = PROGRAMS[name]
    given = arguments(train=True)
    assert_same(gradients(weft.compile(program, fullgraph=True), given), gradients(program, given))


VARYING = ["chunks", "gradient_for_each_row", "inner_step", "pull_back", "push_forward", "rows"]


@pytest.mark.parametrize("name", VARYING)
def test_sizes_that_vary(name: str) -> None:
    """The number of rows is a symbol: one graph for all but what depends on it in Python."""
    program = PROGRAMS[name]
    graphs = []

    def backend(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph_module)
        return by_operators(graph_module, inputs)

    compiled = weft.compile(program, fullgraph=True, backend=backend)
    for rows in (4, 6, 7, 9):
        x, y = arguments(rows, train=True)
        weft.mark_dynamic(x, 0)
        assert_same(gradients(compiled, (x, y)), gradients(program, (x, y)))
    assert len(graphs) == (4 if name == "chunks" else 1)


def test_graphs_that_run_as_captured_leave_their_levels_on_errors() -> None:
    def program(x: Tensor, places: Tensor) -> Tensor:
        return torch.vmap(lambda row, k: torch.func.grad(lambda a: a[k].sum())(row))(x, places)

    x = arguments()[0]
    compiled = weft.compile(program, fullgraph=True, backend=lambda graph, _: graph.forward)
    places = torch.tensor([[0], [2], [1], [0]])
    assert_same(compiled(x, places), program(x, places))
    with pytest.raises(IndexError):
        compiled(x, places + 1)
    assert_same(torch.vmap(torch.sin)(x), x.sin())
    assert_same(compiled(x, places), program(x, places))


def test_what_outlives_its_transform_is_left_to_eager() -> None:
    def program(x: Tensor) -> Any:
        return torch.func.vjp(torch.sin, x * 2)[1]

    x = arguments()[0]
    pull = weft.compile(program, backend=by_operators)(x)
    assert_same(pull(x), program(x)(x))


class WithTangent(torch.autograd.Function):
    """Its tangent and its gradient are not those of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 11

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * 13


def test_tangents_of_a_function_are_its_own() -> None:
    def program(x: Tensor, tangent: Tensor) -> Any:
        with forward_ad.dual_level():
            result = WithTangent.apply(forward_ad.make_dual(x, tangent)) * 2
            return tuple(forward_ad.unpack_dual(result))

    x = torch.randn(3)
    for gradients in (False, True):
        inputs = (x.clone().requires_grad_(gradients), torch.ones(3))
        assert_same(weft.compile(program)(*inputs), program(*inputs))


def test_checkpoints_in_a_gradient_are_an_error() -> None:
    def program(x: Tensor) -> Any:
        run = functools.partial(checkpoint, torch.sin, use_reentrant=False)
        return torch.func.grad(lambda a: run(a).sum())(x)

    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        weft.compile(program, backend=by_operators)(arguments()[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_numbers_beside_scalars_that_are_batched(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.vmap(lambda r: r * 2)(x),
            torch.vmap(lambda r: r.cumsum(0) + 1)(x),
            torch.vmap(lambda r: 0.5 - r)(x),
            torch.vmap(lambda r: r < 1.5)(x),
        )

    x = torch.arange(4).to(dtype)
    for found, wanted in zip(weft.compile(program, fullgraph=True)(x), program(x), strict=True):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted)
