"""Programs on tensors whose sizes data decides: results, gradients and errors beside eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch.utils._pytree import tree_leaves

T = torch.Tensor
Program = Callable[..., Any]


def carried(x: T) -> T:
    v = x[x > 0]
    for _ in range(3):
        v = torch.stack([v, v], 0)
    return v


def carried_expanded(x: T) -> tuple[T, T]:
    v = x[x > 0]
    w = v.unsqueeze(0).expand(3, -1).unsqueeze(1)
    i = torch.tensor(0)
    while i < 5:
        w = w.clone() * 0.9
        i = i + 1
        v = v.flip(0)
    return w, v


def rewritten(x: T) -> tuple[T, T, T]:
    i = x.nonzero()
    for _ in range(3):
        x = x.index_put((i[:, 0], i[:, 1]), x[i[:, 0], i[:, 1]] * 0.5)
    return x, i.t(), i.T.contiguous()


def norms(x: T) -> tuple[T, ...]:
    v = x[x > 0]
    return torch.linalg.vector_norm(v), v.norm(), v.softmax(0), v.std(), v.var(), v.max()


def scans(x: T) -> tuple[T, ...]:
    v = x[x > 0]
    return v.cumsum(0), v.cumprod(0), v.sort()[0], v.flip(0), v.roll(1)


def products(x: T) -> tuple[T, ...]:
    v = x[x > 0]
    outer = torch.outer(v, v)
    return outer @ outer, v @ v, F.linear(v[:, None], x[:, :1]), torch.outer(x[0], v)


def normalized(x: T) -> tuple[T, ...]:
    v = x[x > 0][:, None].expand(-1, 4)
    return F.layer_norm(v, (4,)), F.batch_norm(v, None, None, training=True)


def reshaped(x: T) -> tuple[T, ...]:
    v = x[x > 0]
    return (F.pad(v, (0, 3)), v.view(-1, 1), v.unflatten(0, (-1, 1)), v.repeat(2, 2), *v.chunk(2))


def embedded(x: T) -> tuple[T, ...]:
    return torch.diag_embed(x[x[:, 0] < 9], 1), x[x[:, 0] < 9].tril(), x[x[:, 0] < 9].diag()


def decided(x: T) -> T:
    v = x[x > 0]
    return v * 2 if v else v - 1


def compared(x: T) -> T:
    return x if x[x > 0] > 0 else x * 2


PROGRAMS = (
    carried,
    carried_expanded,
    rewritten,
    norms,
    scans,
    products,
    normalized,
    reshaped,
    embedded,
    decided,
    compared,
)


def outcome(function: Program, inputs: Sequence[T], requires_grad: bool) -> Any:
    """Results and gradients, or the error."""
    given = [x.clone().requires_grad_(requires_grad) for x in inputs]
    try:
        results = [r for r in tree_leaves(function(*given)) if isinstance(r, T)]
    except weft.StageError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error), str(error)
    if not requires_grad:
        return results
    loss = sum(r.sin().sum() for r in results if r.requires_grad)
    return results, torch.autograd.grad(loss, given, allow_unused=True, materialize_grads=True)


def check(function: Program, compiled: Program, inputs: Sequence[T], requires_grad: bool) -> None:
    expected = outcome(function, inputs, requires_grad)
    found = outcome(compiled, inputs, requires_grad)
    if isinstance(expected[0], type):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program: Program, dynamic: bool | None, requires_grad: bool) -> None:
    compiled = weft.compile(program, dynamic=dynamic)
    for count in (9, 1):
        x = -torch.rand(16, dtype=torch.float64) - 0.1
        x[torch.randperm(16)[:count]] *= -1
        check(program, compiled, [x.view(4, 4)], requires_grad)


FITTING: tuple[Program, ...] = (
    lambda x, a, w: torch.outer(w, a) @ torch.outer(x[x > 0], w),
    lambda x, a, w: a + x[x > 0],
    lambda x, a, w: torch.cat([a[None], x[x > 0][None]]),
    lambda x, a, w: torch.dot(a, x[x > 0]),
    lambda x, a, w: (x[x > 0] * 2 + a).view(a.shape[0], 1) @ x[x > 0][None],
)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("number", range(len(FITTING)))
def test_sizes_of_data_that_must_fit_an_input(number: int, requires_grad: bool) -> None:
    program = FITTING[number]
    compiled = weft.compile(program, dynamic=True)
    for size, count in ((6, 6), (5, 5), (5, 6), (7, 6), (1, 6), (6, 1), (0, 3), (0, 1)):
        x = -torch.ones(12, dtype=torch.float64)
        x[:count] = torch.rand(count, dtype=torch.float64) + 0.1
        inputs = [x, torch.randn(size).double(), torch.randn(3).double()]
        check(program, compiled, inputs, requires_grad)


def views_of_divided(x: T, y: T) -> tuple[T, ...]:
    v = x / (y.nonzero() + 1)
    return v[...], v, v[0]


def views_of_positions(x: T, y: T) -> tuple[T, ...]:
    n = y.nonzero()
    return x * n.size(0), n.view(-1), n


@pytest.mark.parametrize("program", [views_of_divided, views_of_positions])
def test_programs_with_gradients_give_sizes_beside_tensors(program: Program) -> None:
    """Without an error, for which the frame would run as it was written."""
    x, y = torch.ones(4, requires_grad=True), torch.tensor([1.0, 0, 2, 3])
    compiled = weft.compile(program)
    check(lambda x: program(x, y), lambda x: compiled(x, y), [x], requires_grad=True)
    recorded = [r.grad_fn.name() for r in compiled(x, y) if r.grad_fn is not None]
    assert "CompiledFunctionBackward" in recorded
