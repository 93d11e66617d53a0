"""Calls that change sizes and strides of a tensor from outside: one graph, and eager's tensors after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "unsqueeze_ by keyword": lambda x: x.unsqueeze_(dim=-1),
    "squeeze_": lambda x: x.unsqueeze_(1).squeeze_(),
    "squeeze_ of a dimension": lambda x: x.unsqueeze_(0).squeeze_(0),
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, -1),
    "transpose_ by keywords": lambda x: x.transpose_(dim1=1, dim0=0),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
    "swapdims_": lambda x: x.swapdims_(0, 1),
    "as_strided_": lambda x: x.as_strided_([2, 2], [3, 1]),
    "resize_ to fewer": lambda x: x.resize_(2, 2),
    "resize_ to as many": lambda x: x.resize_((3, 2)),
    "detach_": lambda x: x.detach_(),
    "function": lambda x: torch.Tensor.unsqueeze_(x, 0),
    "operator": lambda x: torch.ops.aten.unsqueeze_(x, 0),
    "with sizes of its own": lambda x: x.as_strided_((x.shape[-1], x.shape[0]), (1, x.shape[-1])),
}


def _first(rows: int = 2, columns: int = 3) -> torch.Tensor:
    return torch.arange(float(rows * columns), dtype=torch.float64).reshape(rows, columns).clone()


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.tolist(),
        tensor.requires_grad,
        tensor.is_leaf,
    )


def _check(function: Callable[..., Any], given: Callable[[], Any], calls: int = 3) -> None:
    """Compare calls of a function with a compiled one's: results, what is given, version counters."""
    found = []
    for run in (function, weft.compile(function, fullgraph=True)):
        values = given()
        rows = []
        for _ in range(calls):
            before = [v._version for v in values]
            results = run(*values)
            rows.append(
                (
                    [_facts(result) for result in results],
                    [[result is v for v in values] for result in results],
                    [_facts(v) for v in values],
                    [v._version - old for v, old in zip(values, before, strict=True)],
                    [v.untyped_storage().nbytes() for v in values],
                )
            )
        found.append(rows)
    assert found[1] == found[0]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("gradients", [True, False])
def test_argument_and_view_of_it(name: str, gradients: bool) -> None:
    change = CHANGES[name]

    def function(x: torch.Tensor, view: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = x * 2
        changed = change(x)
        return before, changed, x * x.shape[-1], view + 1, x[0]

    def given() -> tuple[torch.Tensor, ...]:
        x = _first()
        return x, x.view(6)[1:4]

    with torch.set_grad_enabled(gradients):
        # as_strided_ and resize_ leave fewer elements, of which the next call makes nothing
        _check(function, given, 1 if "unsqueeze" in name else 2)


@pytest.mark.parametrize("name", [n for n in CHANGES if "detach" not in n])
def test_view_as_argument(name: str) -> None:
    change = CHANGES[name]

    def function(view: torch.Tensor, base: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return change(view), view + 1, base * 2

    def given() -> tuple[torch.Tensor, ...]:
        base = _first(4, 3)
        return base[:2], base

    _check(function, given, 1)


@pytest.mark.parametrize("name", CHANGES)
def test_writes_around_the_change(name: str) -> None:
    change = CHANGES[name]

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.mul_(2)
        row = x[0]
        change(x)
        x[0] = 7
        row.add_(1)
        return x, row, x.sum()

    expected, x = _first(), _first()
    compiled = weft.compile(function, fullgraph=True)
    for left, right in zip(function(expected), compiled(x), strict=True):
        assert _facts(left) == _facts(right)
    assert _facts(expected) == _facts(x)


@pytest.mark.parametrize("name", CHANGES)
def test_attribute(name: str) -> None:
    change = CHANGES[name]

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", _first())
            self.weight = torch.nn.Parameter(torch.tensor(3.0, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            change(self.table)
            self.table.add_(1)
            return (self.table * self.weight).sum() + x

    eager, compiled = Module(), Module()
    run = weft.compile(compiled, fullgraph=True)
    # a buffer with gaps, which as_strided_ leaves, is not written to in a graph
    for _ in range(1 if "unsqueeze" in name or name == "as_strided_" else 3):
        results = eager(torch.ones(())), run(torch.ones(()))
        assert _facts(results[0]) == _facts(results[1])
        assert _facts(eager.table) == _facts(compiled.table)
        for result in results:
            result.backward()
        assert torch.equal(eager.weight.grad, compiled.weight.grad)


_GLOBAL = _first()


def test_global_and_closure() -> None:
    inner = _first()

    def function() -> tuple[torch.Tensor, ...]:
        _GLOBAL.t_()
        inner.unsqueeze_(0)
        return _GLOBAL + 1, inner + 1

    compiled = weft.compile(function, fullgraph=True)
    expected, other = _first(), _first()
    for _ in range(3):
        results = compiled()
        expected.t_()
        other.unsqueeze_(0)
        assert _facts(results[0]) == _facts(expected + 1)
        assert _facts(results[1]) == _facts(other + 1)
        assert _facts(inner) == _facts(other)
        assert _facts(_GLOBAL) == _facts(expected)


def test_two_names_of_one_tensor() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.unsqueeze_(0)
        return x + 1, y * y.dim()

    compiled = weft.compile(function, fullgraph=True)
    for same in (False, True, False):
        found = []
        for run in (function, compiled):
            x = _first()
            y = x if same else x.view_as(x)
            found.append(([*map(_facts, run(x, y))], _facts(x), _facts(y)))
        assert found[1] == found[0]


def test_sizes_that_vary() -> None:
    def function(x: torch.Tensor, n: int) -> tuple[torch.Tensor, Any, Any]:
        rows = x.shape[0]
        x.t_()
        x.as_strided_((rows, n), (n + 0, 1))
        return x * rows, x.shape[0] + rows, rows

    compiled = weft.compile(function, fullgraph=True, dynamic=True)
    for rows, columns in ((2, 3), (4, 5), (7, 3)):
        expected, x = _first(rows, columns), _first(rows, columns)
        left, right = function(expected, columns), compiled(x, columns)
        assert _facts(left[0]) == _facts(right[0])
        assert left[1:] == right[1:]
        assert _facts(expected) == _facts(x)


def test_sizes_that_vary_are_read_before_the_change() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int, int]:
        rows, columns = x.shape
        x.t_()
        return x + 1, rows * 10, columns

    compiled = weft.compile(function, fullgraph=True, dynamic=True)
    for rows, columns in ((2, 3), (4, 5), (7, 3)):
        assert compiled(_first(rows, columns))[1:] == (rows * 10, columns)


def test_gradients_of_what_is_saved() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.t_()
        return (x * w).sin().sum()

    compiled = weft.compile(function, fullgraph=True)
    found = []
    for run in (function, compiled):
        x, gradients = _first(), []
        for shape in ((3, 2), (2, 3), (3, 2)):
            w = torch.full(shape, 0.5, dtype=torch.float64, requires_grad=True)
            run(x, w).backward()
            gradients.append(w.grad)
        found.append(gradients)
    torch.testing.assert_close(found[1], found[0])


def test_write_after_the_call_is_seen_by_backward() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.t_()
        return (x * w).sin().sum()

    for run in (function, weft.compile(function, fullgraph=True)):
        x, w = _first(), torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
        result = run(x, w)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()


@pytest.mark.parametrize("name", [n for n in CHANGES if not n.startswith(("detach", "resize"))])
@pytest.mark.parametrize("writes", [True, False])
def test_tensor_with_a_history(name: str, writes: bool) -> None:
    change = CHANGES[name]

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        change(x)
        if writes:
            x.mul_(3)
        return x.cos().sum() + y.sum()

    compiled = weft.compile(function, fullgraph=True)
    found = []
    for run in (function, compiled):
        leaf = _first().requires_grad_()
        x = leaf * 1.5 + 0
        result = run(x)
        (result + x.exp().sum() * 1e-3).backward()
        found.append((_facts(x), result.detach(), leaf.grad))
    assert found[1][0][:3] == found[0][0][:3]
    torch.testing.assert_close(found[1][1:], found[0][1:])


@pytest.mark.parametrize(
    "name", ["unsqueeze_", "t_", "transpose_", "as_strided_", "resize_ to fewer"]
)
def test_leaf_that_requires_gradients(name: str) -> None:
    change = CHANGES[name]

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        change(x)
        return y

    messages = []
    for run in (function, weft.compile(function)):
        x = _first().requires_grad_()
        with pytest.raises(RuntimeError) as raised:
            run(x)
        messages.append(str(raised.value))
        assert x.shape == (2, 3)
    assert messages[0] == messages[1]


def test_error_of_the_change_itself() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x.unsqueeze_(9)
        return y

    with pytest.raises(IndexError):
        weft.compile(function)(_first())


def test_break_behind_the_change() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...], int]:
        columns = x.shape[1]
        x.t_()
        y = x + 1
        x.data_ptr()  # which no graph has
        return x * y, tuple(x.shape), columns

    compiled = weft.compile(function, dynamic=True)
    for rows, columns in ((2, 3), (4, 5)):
        expected, x = _first(rows, columns), _first(rows, columns)
        left, right = function(expected), compiled(x)
        assert _facts(left[0]) == _facts(right[0])
        assert left[1:] == right[1:]
        assert _facts(expected) == _facts(x)


def test_inside_a_loop_and_a_branch() -> None:
    def loop(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=x.dtype)
        for i in range(40):
            x.t_()
            total = total + x[0, 0] * i + x[0, 1]
        return total

    def branch(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 3:
            x.t_()
        return x + 1

    for function in (loop, branch):
        expected, x = _first(), _first()
        compiled = weft.compile(function)
        for _ in range(2):
            assert _facts(function(expected)) == _facts(compiled(x))
            assert _facts(expected) == _facts(x)


def test_inference_tensors() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.t_(), x + 1

    compiled = weft.compile(function, fullgraph=True)
    with torch.inference_mode():
        expected, x = _first(), _first()
        for _ in range(2):
            left, right = function(expected), compiled(x)
            assert right[0] is x
            assert _facts(left[1]) == _facts(right[1])
            assert _facts(expected) == _facts(x)


OF_LOOPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t_": lambda v: v.t_(),
    "unsqueeze_": lambda v: v.unsqueeze_(0),
    "of a row": lambda v: v[0].unsqueeze_(0),
    "swapaxes_": lambda v: v.swapaxes_(0, 1),
}


@pytest.mark.parametrize("name", OF_LOOPS)
def test_what_a_loop_takes_of_an_argument(name: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(25):
            v = x.chunk(2, 1)[0]
        return v, OF_LOOPS[name](v)

    found = []
    for run in (program, weft.compile(program)):
        x = _first(3, 4)
        found.append([_facts(result) for result in run(x)])
    assert found[0] == found[1]


def _zipped(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = []
    for row, _ in zip(x, x, strict=True):
        x.t_()
        rows.append(row)
    return rows[1], rows[2]


def _numbered(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found = x[0] * 0
    for i, row in enumerate(x):
        found = found + row * i
        x.transpose_(0, 1)
    return (found,)


def _of_its_own(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return _numbered(x.clone())


def _held(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = enumerate(x)
    first = next(rows)[1]
    x.squeeze_().t_()
    x[1] = -1  # its second column: what the rows have too
    return first, next(rows)[1], next(rows)[1]


def _given_back(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    own = x.clone()
    rows = zip(own, own, strict=True)
    own.t_()
    return tuple(row for row, _ in _unchanged(rows))


def _unchanged(rows: Any) -> Any:
    torch.random.initial_seed()  # a break
    return rows


@pytest.mark.parametrize("function", [_zipped, _numbered, _of_its_own, _held, _given_back])
@pytest.mark.parametrize("rows", [4, 24])
@pytest.mark.parametrize("dynamic", [None, True])
def test_rows_are_those_from_before_the_change(
    function: Callable[..., Any], rows: int, dynamic: bool | None
) -> None:
    expected, x = _first(rows, rows), _first(rows, rows)
    compiled = weft.compile(function, dynamic=dynamic)
    for left, right in zip(function(expected), compiled(x), strict=True):
        assert _facts(left) == _facts(right)
    assert _facts(expected) == _facts(x)
