"""Writes whose operands overlap what is written: refused exactly where eager raises an error for them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import pytest
import torch
import torch.fx
from beside_eager import check
from torch.nn import functional as F
from weft_functionalize import Unsupported, functionalize

FIRST_TWO = torch.tensor([0, 1])
ZEROS = torch.zeros(2, 4, dtype=torch.int64)
ROWS = torch.tensor([1, 0, 3, 2])

Write = Callable[[torch.Tensor], torch.Tensor]


def _twice(tensor: torch.Tensor, write: Write) -> torch.Tensor:
    """A write to a tensor that is an operand too."""
    return write(tensor)


# Of a matrix of four by four.
WRITES: dict[str, Write] = {
    "next rows": lambda y: y[1:].add_(y[:3]),
    "other rows": lambda y: y[2:].add_(y[:2]),
    "itself": lambda y: y.mul_(y),
    "its first row": lambda y: y.sub_(y[0]),
    "row after row": lambda y: y[1:].sub_(y[0]),
    "an element of it": lambda y: y.div_(y[0, 0]),
    "an element beside it": lambda y: y[1:].div_(y[0, 0]),
    "transposed": lambda y: y.add_(y.t()),
    "with another dimension": lambda y: y.view(1, 16).add_(y.view(16)),
    "the same view": lambda y: y[0].view(4, 1).mul_(y[0].view(4, 1)),
    "columns, which are not dense": lambda y: y[:, ::2].add_(y[:, 1::2]),
    "nothing": lambda y: y[:0].add_(y[:1]),
    "copy": lambda y: y[1:].copy_(y[:3]),
    "copy of a row of it": lambda y: y[1:].copy_(y[2]),
    "clamp": lambda y: y[1:].clamp_(y[:3]),
    "lerp": lambda y: y[1:].lerp_(y[:3], 0.5),
    "addcmul": lambda y: y[1:].addcmul_(y[:3], y[:3]),
    "comparison": lambda y: y[1:].eq_(y[:3]),
    "fill": lambda y: y.view(-1)[:3].fill_(y[0, 0]),
    "masked_fill": lambda y: y[1:].masked_fill_(y[1:] > 0, y[2, 0]),
    "scatter": lambda y: y[1:3].scatter_(0, ZEROS, y[:2]),
    "scatter_add": lambda y: y[1:3].scatter_add_(0, ZEROS, y[:2]),
    "scatter_reduce": lambda y: y[1:3].scatter_reduce_(0, ZEROS, y[:2], "amax"),
    "index_put": lambda y: y[1:].index_put_((FIRST_TWO,), y[:2]),
    "index_add": lambda y: y[1:].index_add_(0, FIRST_TWO, y[:2]),
    "index_copy": lambda y: y[1:].index_copy_(0, FIRST_TWO, y[:2]),
    "nothing into itself": lambda y: _twice(y[:0], lambda e: e.scatter_(0, e.long(), e)),
    "nothing into a view": lambda y: _twice(y[:0], lambda e: e.scatter_(0, e.long(), e[:])),
    "no rows to itself": lambda y: _twice(y[:0], lambda e: e.index_add_(0, FIRST_TWO[:0], e)),
    "no columns over itself": lambda y: _twice(y[:, :0], lambda e: e.index_copy_(0, ROWS, e)),
    "no elements at places": lambda y: _twice(y[:0], lambda e: e.put_(e.long(), e)),
    "a mask of nothing": lambda y: _twice(y[:0], lambda e: e.masked_scatter_(e > 0, e)),
    "cumsum": lambda y: y[1:].cumsum_(0),
    "every second row": lambda y: y[:2].add_(y[::2]),
    "columns of other columns": lambda y: y[:, :3:2].mul_(y[:, :2]),
    "a row of its column": lambda y: y[0].copy_(y[:, 0]),
    "a column of its row": lambda y: y[:, 0].sub_(y[0]),
    "a diagonal of the last column": lambda y: y.diagonal().mul_(y[:, 3]),
    "a row of the diagonal": lambda y: torch.add(y.diagonal(), 1, out=y[0]),
    "a row of its column, elsewhere": lambda y: y[1].copy_(y[:, 0]),
    "columns of every second": lambda y: y[:, :2].add_(y[:, ::2]),
    "sum into an operand": lambda y: torch.sum(y, 0, out=y[2]),
    "matmul into an operand": lambda y: torch.mm(y, y, out=y),
    "vector of the result": lambda y: y[0].addmv_(y[1:].t()[:, :3], y[0, :3]),
    "masked_scatter of itself": lambda y: y.masked_scatter_(y > 0, y),
    "put of itself": lambda y: y.put_(torch.arange(16).view(4, 4), y),
    "gather into another row": lambda y: torch.gather(y[0], 0, FIRST_TWO, out=y[1, :2]),
    "stack": lambda y: torch.stack([y[0], y[1]], out=y[1:3]),
    "addr": lambda y: y.addr_(y[0], y[1]),
}
WRITES |= {
    f"{name} {way}": functools.partial(write, view)
    for way, view in {
        "of itself": lambda x: (x, x),
        "of the same view": lambda x: (x[:2], x[:2]),
        "of the next": lambda x: (x[:2], x[1:3]),
        "beside it": lambda x: (x[:2], x[2:]),
    }.items()
    for name, write in {
        "scatter": lambda view, y: _on(view, y, lambda a, b: a.scatter_(0, ZEROS, b)),
        "scatter with a reduction": lambda view, y: _on(
            view, y, lambda a, b: a.scatter_reduce_(0, ZEROS, b, "amax")
        ),
        "scatter_add": lambda view, y: _on(view, y, lambda a, b: a.scatter_add_(0, ZEROS, b)),
        "index_add": lambda view, y: _on(
            view, y, lambda a, b: a.index_add_(1, FIRST_TWO, b[:, :2])
        ),
        "index_copy": lambda view, y: _on(view, y, lambda a, b: a.index_copy_(1, ROWS, b)),
        "index_reduce": lambda view, y: _on(
            view, y, lambda a, b: a.index_reduce_(1, ROWS, b, "amax")
        ),
        "index_put": lambda view, y: _on(view, y, lambda a, b: a.t().index_put_((ROWS,), b.t())),
        "index_put adding": lambda view, y: _on(
            view, y, lambda a, b: a.t().index_put_((ROWS,), b.t(), accumulate=True)
        ),
        "copy": lambda view, y: _on(view, y, lambda a, b: a.copy_(b)),
        "add into": lambda view, y: _on(view, y, lambda a, b: torch.add(b, 1, out=a)),
        "cumsum into": lambda view, y: _on(view, y, lambda a, b: torch.cumsum(b, 0, out=a)),
        "softmax into": lambda view, y: _on(view, y, lambda a, b: torch.softmax(b, 1, out=a)),
        "index_select into": lambda view, y: _on(
            view, y, lambda a, b: torch.index_select(b, 1, ROWS, out=a)
        ),
    }.items()
}


def _on(
    view: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    y: torch.Tensor,
    write: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    return write(*view(y))


class Program(torch.nn.Module):
    def __init__(self, write: Write) -> None:
        super().__init__()
        self.write = write

    def forward(self, y: torch.Tensor) -> tuple[torch.Tensor]:
        self.write(y)
        return (y + 1,)


@pytest.mark.parametrize("name", WRITES)
def test_refused_where_eager_raises(name: str) -> None:
    module = torch.fx.symbolic_trace(Program(WRITES[name]))
    y = torch.linspace(-1, 2, 16).reshape(4, 4)
    try:
        module(y.clone())
    except RuntimeError:
        with pytest.raises(Unsupported, match="overlaps what is written"):
            functionalize(module, [y])
    else:
        with contextlib.suppress(Unsupported) if name in ANY_ORDER else contextlib.nullcontext():
            check(module, y)


ANY_ORDER = frozenset(
    {
        *("a row of its column, elsewhere", "columns of every second"),
        *("columns of other columns", "sum into an operand"),
        *("matmul into an operand", "vector of the result", "masked_scatter of itself"),
        *("softmax into of the next", "index_add of itself", "index_add of the same view"),
        "index_add of the next",
    }
)
"""What eager computes depends on the order in which its kernel goes over the elements."""


TWO_WRITTEN: dict[str, Callable[[torch.Tensor], object]] = {
    "results into one": lambda y: torch.aminmax(y[0], out=(y[0, 0], y[0, 0])),
    "statistics": lambda y: F.batch_norm(y * 2, y[0], y[0], training=True),
    "statistics that overlap": lambda y: F.batch_norm(
        y[:, :2] * 2, y[0, :2], y[0, 1:3], None, None, True
    ),
}


@pytest.mark.parametrize("name", TWO_WRITTEN)
def test_two_that_are_written_lie_apart(name: str) -> None:
    module = torch.fx.symbolic_trace(Program(TWO_WRITTEN[name]))
    with pytest.raises(Unsupported, match="overlaps what is written"):
        functionalize(module, [torch.linspace(-1, 2, 16).reshape(4, 4)])


def test_both_happen() -> None:
    raised = []
    for name, write in WRITES.items():
        try:
            write(torch.linspace(-1, 2, 16).reshape(4, 4))
        except RuntimeError:
            raised.append(name)
    assert 35 <= len(raised) <= len(WRITES) - 20


INDICES: dict[str, Write] = {
    "scatter": lambda i: i.scatter_(0, i, torch.ones_like(i)),
    "scatter a number": lambda i: i.scatter_(0, i, 2),
    "index_add": lambda i: i.index_add_(0, i, torch.ones_like(i)),
    "index_copy": lambda i: i.index_copy_(0, i, torch.ones_like(i)),
    "index_put": lambda i: i.index_put_((i,), torch.ones_like(i)),
    "put": lambda i: i.put_(i, torch.ones_like(i)),
    "a view of it": lambda i: i[:2].index_copy_(0, i[1:], torch.ones_like(i[1:])),
}


@pytest.mark.parametrize("name", INDICES)
def test_indices_that_lie_where_is_written(name: str) -> None:
    module = torch.fx.symbolic_trace(Program(INDICES[name]))
    index = torch.tensor([2, 1, 0])
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        module(index.clone())
    with pytest.raises(Unsupported, match="overlaps what is written"):
        functionalize(module, [index])


def subtracts_from_a_row(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y[0].sub_(1)
    return (y + 1,)


def makes_what_overlaps_itself(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = y.new_empty_strided((4, 4), (0, 1))
    rows[0].copy_(y[0])
    return (rows + 1,)


OVERLAPPING = {
    "a repeated row": torch.ones(1, 4).expand(3, 4),
    "windows": torch.arange(6.0).as_strided((3, 4), (1, 1)),
}


@pytest.mark.parametrize("example", OVERLAPPING.values(), ids=OVERLAPPING)
def test_inputs_that_overlap_themselves_are_not_written(example: torch.Tensor) -> None:
    module = torch.fx.symbolic_trace(subtracts_from_a_row)
    with pytest.raises(Unsupported) as raised:
        functionalize(module, [example])
    assert raised.value.kind == "write to a tensor that overlaps itself"
    assert raised.value.hint


def test_expanded_inputs_with_gradients_are_not_written() -> None:
    """They were a fault: autograd refuses to write to a view of a leaf, and eager's is none."""
    rows = torch.ones(4, requires_grad=True).exp().expand(3, 4)
    with pytest.raises(Unsupported, match="overlaps itself"):
        functionalize(torch.fx.symbolic_trace(subtracts_from_a_row), [rows])


def test_what_a_program_makes_to_overlap_itself_is_not_written() -> None:
    with pytest.raises(Unsupported, match="overlaps itself"):
        functionalize(torch.fx.symbolic_trace(makes_what_overlaps_itself), [torch.ones(4, 4)])


@pytest.mark.parametrize(
    "y", [torch.ones(1, 4).expand(1, 4), torch.ones(4, 8)[:, ::2], torch.ones(4, 4).t()]
)
def test_those_with_gaps_or_other_orders_are_written(y: torch.Tensor) -> None:
    check(torch.fx.symbolic_trace(subtracts_from_a_row), y)


LISTS: dict[str, Callable[[torch.Tensor], object]] = {
    "multiplied": lambda v: torch._foreach_mul_([v, v], 3.0),
    "with another between": lambda v: torch._foreach_exp_([v, v * 2, v]),
    "by tensors": lambda v: torch._foreach_add_([v, v], [v * 2, v * 3]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_to_write_to_that_have_a_tensor_twice(name: str) -> None:
    """Where there are gradients, of which eager's differ from those of two writes."""

    class Listed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            v = x * 2
            LISTS[name](v)
            return (v,)

    module = torch.fx.symbolic_trace(Listed())
    check(module, torch.linspace(-1, 1, 4))
    with pytest.raises(Unsupported, match="one tensor twice"):
        functionalize(module, [torch.linspace(-1, 1, 4).requires_grad_()])
