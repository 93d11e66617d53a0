"""Operators on as many elements as data decides (several, one, none), beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "squeeze": lambda x: x.nonzero().squeeze(),
    "squeeze of a dim": lambda x: (x.nonzero().squeeze(0), x.nonzero().squeeze(1)),
    "squeeze of dims": lambda x: x[x > 0].squeeze((0,)) + 1,
    "squeeze twice": lambda x: x[x > 0].nonzero().squeeze(1).squeeze(),
    "squeeze in place": lambda x: x.nonzero().squeeze_() + 1,
    "squeeze of where": lambda x: torch.where(x)[0].squeeze(),
    "squeezed and written": lambda x: _written(x.nonzero().squeeze()),
    "squeeze of one element at most": lambda x: _halves(torch.unique(x[:1] > 1)),
    "squeezed index": lambda x: x[x.nonzero().squeeze()],
    "squeezed list": lambda x: x.nonzero().squeeze().tolist(),
    "squeezed sum": lambda x: x[x > 0].view(1, -1).squeeze().sum(-1),
    "flattened and written": lambda x: _both(x.view(3, 1).nonzero(), Tensor.flatten),
    "made contiguous and written": lambda x: _both(x.view(1, 3).nonzero(), Tensor.contiguous),
    "rows flattened and written": lambda x: _both(x[x > 0].expand(3, -1), Tensor.flatten),
    "grid flattened and written": lambda x: _both(
        torch.meshgrid(x[x > 0], x[x > 0][:2])[1], Tensor.ravel
    ),
    "columns flattened": lambda x: _both(torch.stack([x, x])[:, x > 0].t(), Tensor.flatten),
    "columns made contiguous": lambda x: _both(
        torch.stack([x, x])[:, x > 0].t(), Tensor.contiguous
    ),
    "but one flattened": lambda x: _both(torch.stack([x, x])[:, x > 0].t()[1:], Tensor.flatten),
    "sum with two": lambda x: x[x > 0] + torch.ones(2),
    "broadcast": lambda x: x[x > 0].expand(3),
    "element": lambda x: x[x > 0].item(),
    "first": lambda x: x[x > 0][0],
    "maximum": lambda x: x[x > 0].max(),
    "mean": lambda x: (x[x > 0].mean(), x[x > 0].sum()),
    "beside matrices": lambda x: torch.cat([x[x > 0], torch.ones(2, 2)]),
    "strides": lambda x: (x.nonzero().is_contiguous(), x.nonzero().t().stride()),
    "roll": lambda x: x[x > 0].roll(1, 0),
    "diff": lambda x: x[x > 0].diff(),
    "cummax": lambda x: x[x > 0].cummax(0),
    "logsumexp": lambda x: x[x > 0].double().logsumexp(0).float(),  # rounded alike
    "cdist": lambda x: torch.cdist(x[x > 0][:, None], x[:, None]),
    "batch norm": lambda x: torch.nn.functional.batch_norm(
        x[x > 0][:, None], None, None, training=True
    ),
    "causal attention": lambda x: _attended(x[x > 0].view(1, 1, -1, 1)),
    "trapezoid": lambda x: torch.trapezoid(x[x > 0]),
    "counts of two": lambda x: torch.cat([x[x > 0].roll(1, 0), x[x < 2].roll(1, 0)]),
    "range": lambda x: _by_range(x[x > 0]),
    "all or nothing": lambda x: x[x.sum() > 0] + 1,
    "all or nothing of a number": lambda x: (x.sum()[x.sum() > 0], x[(x.sum() > 0,)].sum(0)),
    "all or nothing written": lambda x: _written_by_a_truth(x.clone(), x.sum() > 0),
    "length": lambda x: (len(x[x > 0]), x[x > 0].numel() == 1),
}
INPUTS = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0], [3.0, 1.0, 2.0]])


def _attended(x: Tensor) -> Tensor:
    """To as many digits as kernels for attention agree on: with torch 2.15 eager's rounds otherwise."""
    found = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    return found.round(decimals=5)


def _by_range(x: Tensor) -> Tensor:
    y = x.expand(2, -1).t().clone()
    y[range(len(x)), (x > 1).long()] = 0
    return y[range(len(x))]


def _halves(one: Tensor) -> Any:
    """That there is an element is known, too, from here on."""
    return one.chunk(2)[-1] | True, one.squeeze() | False, one.squeeze_(0)


def _both(x: Tensor, view_or_copy: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """What is written to is a view of ``x`` where it has one row."""
    y = view_or_copy(x)
    y.add_(1)
    return x, y


def _written(x: Tensor) -> Tensor:
    x.expand(2, *x.shape)[0].add_(1)
    return x


def _written_by_a_truth(x: Tensor, truth: Tensor) -> Tensor:
    x[~truth] = 5
    x[truth,] += x.flip(0)[truth] * 2
    x.sum()[truth] = torch.ones(1, dtype=torch.float64)
    return x


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_like_eager(program: Callable[[Tensor], Any]) -> None:
    compiled = weft.compile(program)
    for x in INPUTS:
        assert _seen(compiled, x) == _seen(program, x)


def _seen(program: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        found = program(x)
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error), str(error)
    if isinstance(found, Tensor):
        return found.tolist(), found.shape, found.stride()
    return str(found)


def test_what_an_operator_asks_of_a_count_is_checked() -> None:
    def rolled(x: Tensor) -> Tensor:
        return x[x > 0].roll(1, 0) * 2

    compiled, log = weft.compile(rolled), weft.CompileLog()
    with weft.observe(log):
        for x in torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 2.0], [3.0, 4.0, 5.0]]):
            assert torch.equal(compiled(x), rolled(x))
        assert len(log.graphs) == 1 and not log.graph_breaks
        for x in torch.tensor([[0.0, 0.0, 0.0], [3.0, 1.0, 2.0], [0.0, 0.0, 0.0]]):
            assert torch.equal(compiled(x), rolled(x))


def found_places(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero()[:, 0]


def marked(x: torch.Tensor) -> torch.Tensor:
    return x[x > 1]


def repeated(x: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(x, x.long().clamp(0, 2))


GIVEN: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.unique, torch.unique_consecutive, found_places, marked, repeated,
)  # fmt: skip

WRITES: tuple[Callable[[torch.Tensor], object], ...] = (
    torch.Tensor.zero_,
    lambda y: y.fill_(2).add_(1),
    lambda y: y[1:].zero_(),
    lambda y: y.view(-1, 1).mul_(3),
    lambda y: y.masked_fill_(y > 1, 0),
    lambda y: y.copy_(y.clone()),
    lambda y: y.sort()[0].zero_(),
    lambda y: torch.nn.functional.relu(y, inplace=True),
    lambda y: y.unsqueeze_(0),
    lambda y: y.bitwise_not_(),
    lambda y: y.sigmoid_(),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
@pytest.mark.parametrize("write", range(len(WRITES)))
@pytest.mark.parametrize("give", GIVEN, ids=lambda give: give.__name__)
def test_writes_to_what_has_a_size_of_data(
    give: Callable[..., torch.Tensor], write: int, dtype: torch.dtype
) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = give(x)
        WRITES[write](y)
        return y, y + 1, x

    compiled = weft.compile(program)
    for values in ([3.0, 1.0, 2.0, 1.0, 0.0], [2.0, 2.0, 2.0]):
        x = torch.tensor(values).to(dtype)
        assert attempted(compiled, x) == attempted(program, x.clone())


def attempted(function: Callable[..., Any], x: torch.Tensor) -> Any:
    try:
        return [result.tolist() for result in function(x)]
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error), str(error)


COUNTED_GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "cumsum of rows": lambda y: y.cumsum(0),
    "cumsum in float64": lambda y: y.cumsum(-1, dtype=torch.float64),
    "logcumsumexp": lambda y: y.logcumsumexp(0),
    "prod": lambda y: (y - y.detach()[:1, :1].sum()).prod(),
    "prod of rows": lambda y: y.prod(0),
    "prod of columns": lambda y: y.prod(1, keepdim=True),
    "log of sigmoid": torch.nn.functional.logsigmoid,
    "attention": lambda y: (y @ y.t()).softmax(-1) @ y,
    "matmul by columns": lambda y: y.t().contiguous() @ y,
}


@pytest.mark.parametrize("program", COUNTED_GRADIENTS.values(), ids=COUNTED_GRADIENTS)
@pytest.mark.parametrize("counts", [(3, 1, 0, 4), (0, 2)], ids=str)
def test_gradients_of_what_data_chooses(
    program: Callable[[Tensor], Tensor], counts: tuple[int, ...]
) -> None:
    def chosen(x: Tensor, mask: Tensor) -> Tensor:
        return program(x[mask] * 1.0)

    log = weft.CompileLog()
    compiled = weft.compile(chosen)
    for count in counts:
        x = torch.randn(5, 3).requires_grad_()
        results, gradients = [], []
        for function in (chosen, compiled):
            with weft.observe(log):
                results.append(function(x, torch.arange(5) < count))
            gradients.append(torch.autograd.grad(results[-1].exp().sum(), x)[0])
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*gradients)
        assert gradients[0].stride() == gradients[1].stride()
    assert not log.graph_breaks and len(log.graphs) == 1
