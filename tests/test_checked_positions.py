"""Positions out of range in calls that write to an input: eager's error, and eager's values in the inputs.

They are too large to be copied at each call in case it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from torch.nn import functional as F

N = 6000
WRITES: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "index_put_": lambda x, i, y: x.index_put_((i,), y[:1]),
    "index_put_ adding": lambda x, i, y: x.index_put_((i,), y, accumulate=True),
    "a number": lambda x, i, y: x.__setitem__(i, 1.0),
    "index_add_": lambda x, i, y: x.index_add_(0, i, y),
    "index_copy_": lambda x, i, y: x.index_copy_(0, i, y),
    "index_fill_": lambda x, i, y: x.index_fill_(0, i, 2.0),
    "index_reduce_": lambda x, i, y: x.index_reduce_(0, i, y, "amax"),
    "scatter_": lambda x, i, y: x.scatter_(0, i, y),
    "scatter_ of a number": lambda x, i, y: x.scatter_(0, i, 3.0),
    "scatter_add_": lambda x, i, y: x.scatter_add_(0, i, y),
    "scatter_reduce_": lambda x, i, y: x.scatter_reduce_(0, i, y, "amin"),
    "put_": lambda x, i, y: x.put_(i, y),
    "after a write": lambda x, i, y: x.add_(1).index_add_(0, i, y).mul_(2),
    "before a write": lambda x, i, y: (y[i], x.add_(1))[0],
    "beside a write": lambda x, i, y: (x.add_(1), y.gather(0, i))[1],
    "of what was written": lambda x, i, y: x.add_(1).gather(0, i),
    "several": lambda x, i, y: (x.scatter_(0, i, y), y.index_add_(0, i - 1, x))[0],
    "computed": lambda x, i, y: x.index_copy_(0, i * 2 - i, y),
    "summed": lambda x, i, y: (x.mul_(2), y[i].sum())[1],
    "after a product": lambda x, i, y: x.scatter_(0, i, y * _product(y).sum()),
    "before a product": lambda x, i, y: (x.scatter_add_(0, i, y), _product(x))[1],
    "before random numbers": lambda x, i, y: (x.index_copy_(0, i, y), F.dropout(x, 0.5))[1],
    "after random numbers": lambda x, i, y: F.dropout(y, 0.5).gather(0, i - 1),
    "of rows": lambda x, i, y: x.view(-1, 4).index_add_(0, i[::4] // 4, y.view(-1, 4)),
}


def _product(x: Tensor) -> Tensor:
    matrix = x[:5625].view(75, 75)
    return matrix @ matrix @ matrix


POSITIONS = (N, -1, -N, -N - 1, 10**12)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes(write: Callable[[Tensor, Tensor, Tensor], Any], dynamic: bool) -> None:
    compiled = weft.compile(write, dynamic=dynamic)
    raised = 0
    for number in (N // 2, *POSITIONS):
        index = torch.arange(N)
        index[N // 2] = number
        expected, found = (_outcome(function, index) for function in (write, compiled))
        raised += expected[0] is not None
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1:], expected[1:], rtol=1e-5, atol=1e-6)
    assert raised


def _outcome(function: Callable[..., Any], index: Tensor) -> tuple[Any, ...]:
    x, y = torch.linspace(-1, 1, N), torch.linspace(2, 3, N)
    torch.manual_seed(0)
    error, result = None, None
    try:
        result = function(x, index, y)
    except Exception as caught:
        error = type(caught), str(caught)
    return error, result, x, y, torch.rand(2)


READS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "index_select": lambda y, i: y.index_select(0, i),
    "index": lambda y, i: y[i],
    "gather": lambda y, i: y.gather(0, i),
    "take": lambda y, i: y.take(i),
    "index_add": lambda y, i: y.index_add(0, i, y),
    "index_fill": lambda y, i: y.index_fill(0, i, 2.0),
    "index_copy": lambda y, i: y.index_copy(0, i, y),
    "scatter": lambda y, i: y.scatter(0, i, y),
    "targets": lambda y, i: F.cross_entropy(y.view(1, N).expand(3, N), i[N // 2 - 1 : N // 2 + 2]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reads_with_gradients_beside_a_write(read: Callable[[Tensor, Tensor], Any]) -> None:
    def program(x: Tensor, index: Tensor, y: Tensor) -> Any:
        x.add_(1)
        return read(y, index)

    def training(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, index, y: function(x, index, y.requires_grad_())

    compiled = weft.compile(program)
    for number in (N // 2, N, -1, -N - 1):
        index = torch.arange(N)
        index[N // 2] = number
        expected, found = (_outcome(training(run), index) for run in (program, compiled))
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1:], expected[1:], rtol=1e-5, atol=1e-6)


def _flipped(y: Tensor) -> Tensor:
    return y.index_select(0, torch.arange(y.shape[0]).flip(0))


OF_DATA: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "nonzero": lambda x, y: (_flipped(x.nonzero()), y.mul_(2)),
    "unique": lambda x, y: (y.zero_(), x.unique().index_fill(0, torch.tensor([0]), 3)),
    "a mask": lambda x, y: (y.add_(1), _flipped(x[x > 0]), y.sum()),
    "a number": lambda x, y: (y.add_(1), x.index_select(0, torch.arange(x.argmax().item()))),
    "of what is written": lambda x, y: (x.add_(1), _flipped(x[x > 2])),
    "two": lambda x, y: (y.mul_(2), _flipped(_flipped(x[x > 0]).nonzero()), y.nonzero()),
}


@pytest.mark.parametrize("program", OF_DATA.values(), ids=OF_DATA)
def test_positions_in_what_depends_on_data(program: Callable[[Tensor, Tensor], Any]) -> None:
    compiled = weft.compile(program, fullgraph=True, options={"verify": True})
    for x in ([2.0, 0.0, 3.0], [3.0, 1.0, 0.0], [1.0, 2.0, 3.0, 4.0]):
        given = [(torch.tensor(x), torch.ones(3)) for _ in range(2)]
        expected, found = (f(*a) for f, a in zip((program, compiled), given, strict=True))
        torch.testing.assert_close((found, given[1]), (expected, given[0]), rtol=0, atol=0)


def test_other_errors_after_writes() -> None:
    """What else is raised comes from the program, which has done some of its work."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return torch.linalg.cholesky(x.view(75, 80)[:, :75]) + y.index_select(0, x[:75].long())

    x = torch.zeros(N)
    with pytest.raises(torch.linalg.LinAlgError):
        weft.compile(program)(x, torch.zeros(75))
    assert x.eq(x[0]).all()
    assert x[0] <= 1


def test_overlapping_inputs() -> None:
    """The graph runs by operators then, whose error leaves what eager leaves."""

    def program(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        y.mul_(2)
        return x.index_add_(0, index, torch.ones(N))

    compiled = weft.compile(program)
    compiled(torch.zeros(N), torch.ones(N), torch.arange(N))
    found = []
    for function in (program, compiled):
        whole, index = torch.ones(N + 5), torch.arange(N)
        index[-1] = N
        with pytest.raises(IndexError, match="index out of range in self"):
            function(whole[:N], whole[5:], index)
        found.append(whole)
    torch.testing.assert_close(*found)
