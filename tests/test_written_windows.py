"""Writes through ``as_strided`` views, with sizes that vary: gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft

from tests.staged_backend import by_operators

# Each writes to a window of the (rows, 2) tensor ``o``; ``x`` is what ``o`` is computed of.
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "number": lambda o, x: o.as_strided((2,), (1,)).add_(2.0),
    "factor": lambda o, x: o.as_strided((2,), (1,), 1).mul_(3.0),
    "values with gradients": lambda o, x: o.as_strided((2, 2), (2, 1)).copy_(x[:2].exp()),
    "every second": lambda o, x: o.as_strided((3,), (2,), 1).mul_(x[:3, 0]),
    "size that varies": lambda o, x: o.as_strided((o.shape[0],), (2,)).mul_(x[:, 1]),
    "start that varies": lambda o, x: o.as_strided((2,), (1,), o.shape[0]).fill_(2.0),
    "transposed": lambda o, x: o.as_strided((2, 3), (1, 2)).sin_(),
    "transposed memory": lambda o, x: o.t().as_strided((2, 3), (1, 2)).mul_(2.0),
    "twice": lambda o, x: o.as_strided((3,), (1,)).sin_().as_strided((2,), (1,)).mul_(x[0]),
}


@pytest.mark.parametrize("dynamic", [True, False, None])
@pytest.mark.parametrize("name", WRITES)
def test_gradients_of_written_windows(name: str, dynamic: bool | None) -> None:
    def program(x: Any) -> Any:
        o = x / 2 + 0
        WRITES[name](o, x)
        return o * o

    compiled = weft.compile(program, dynamic=dynamic)
    for rows in (3, 5):
        found = []
        for function in (compiled, program):
            x = torch.linspace(0.5, 2.0, rows * 2, dtype=torch.float64).view(rows, 2)
            result = function(x.requires_grad_())
            weights = torch.linspace(0.5, 1.5, rows * 2, dtype=torch.float64).view(rows, 2)
            (gradient,) = torch.autograd.grad((result * weights).sum(), [x])
            found.append((result, gradient))
        torch.testing.assert_close(*found)
    weft.reset()


@pytest.mark.parametrize("dynamic", [True, False])
def test_gradients_of_the_operator(dynamic: bool) -> None:
    """A call of ``as_strided_scatter`` has the operator's own gradient, which is not that of a write."""

    def program(x: Any, y: Any) -> Any:
        once = torch.as_strided_scatter(x.exp(), y, (2, 2), (2, 1), 1)
        once.as_strided((2,), (3,)).mul_(y[0])
        return torch.as_strided_scatter(once.sin(), y.cos(), y.shape, (1, 2))

    compiled = weft.compile(program, dynamic=dynamic)
    for rows in (3, 5):
        found = []
        for function in (compiled, program):
            x = torch.linspace(0.5, 2.0, rows * 2, dtype=torch.float64).view(rows, 2)
            y = torch.linspace(-1.0, 1.0, 4, dtype=torch.float64).view(2, 2)
            inputs = [x.requires_grad_(), y.requires_grad_()]
            result = function(*inputs)
            (first,) = torch.autograd.grad(result.sin().sum(), [x], create_graph=True)
            found.append((result, first, *torch.autograd.grad(first.sum() + result.sum(), inputs)))
        torch.testing.assert_close(*found)
    weft.reset()


PLACES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda m: m[:7],
    "part": lambda m: m[3:10],
    "part of one column": lambda m: m[3:10].view(7, 1),
    "gaps": lambda m: m[::3][:7],
    "gaps in a part": lambda m: m[2:16].view(7, 2)[:, 1:],
}

# Each reads or writes a window of the memory of ``x`` before or behind another write.
OF_ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "read": lambda x: x.mul_(2).as_strided((4,), (1,)) + 0,
    "written": lambda x: (x.as_strided((4,), (1,)).mul_(2), x + 0),
    "behind a write to a view": lambda x: (x.flatten()[:1].fill_(9), x.as_strided((2,), (1,)) + 0),
    "of a view, written": lambda x: (
        v := x.view(-1)[:2] if x.is_contiguous() else x[:2],
        x.add_(1),
        v.as_strided((2,), (1,)).add_(-1.25),
        x.sum(),
    ),
    "behind two writes": lambda x: (
        v := x.flatten()[:2],
        x.flatten()[:1].fill_(5),
        v.as_strided((2,), (1,)).add_(-1.25),
        x.sum(),
    ),
    "every second written": lambda x: (x[::2].mul_(2), x.as_strided((x.shape[0],), (1,)).mean()),
    "of a scatter": lambda x: torch.select_scatter(x, x[1] * 5, 0, 0).as_strided((2,), (1,)) + 0,
    "of a scatter, from its start": lambda x: (
        v := torch.slice_scatter(x, x[:2] * 5, 0, 0, 2),
        v.as_strided((2,), (1,), v.storage_offset()) + 0,
    ),
    "of a scatter's view, written": lambda x: (
        v := torch.slice_scatter(x, x[:2] * 5, 0, 0, 2),
        v[:1].as_strided((2,), (1,)).add_(1),
    ),
}


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(25):
        x.as_strided((2,), (1,)).add_(0.5)
    return x + 0


OF_ARGUMENTS["in a loop"] = in_a_loop


@pytest.mark.parametrize("name", OF_ARGUMENTS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
def test_windows_of_parts_of_memory(place: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_STRICT", raising=False)  # a write to what is in gaps is eager's
    program = OF_ARGUMENTS[name]
    if "scatter" in name and "gaps" in place:
        pytest.skip("what is between the elements of an operator's result is nobody's")
    compiled = weft.compile(lambda x: program(x))
    found = []
    for function in (program, compiled, compiled):
        memory = torch.arange(24.0)
        result = function(PLACES[place](memory))
        found.append((result, memory))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])
    weft.reset()


def test_windows_of_arguments_that_begin_inside_their_memory() -> None:
    """A view is that of the version which it was made of, whose memory begins elsewhere."""

    def program(x: Any) -> Any:
        row = x.as_strided((x.shape[1],), (1,))
        x.mul_(2.0)
        again = row.as_strided((2, 2), (1, 2))
        row.add_(1)
        return row.fmod(3), again * 2, again

    for first, dynamic in ((2, False), (3, True)):
        found = []
        for function in (weft.compile(program, dynamic=dynamic, backend=by_operators), program):
            x = torch.arange(20.0)[first : first + 10].view(5, 2)
            found.append((function(x.t()), x._base))
        torch.testing.assert_close(*found)


# Tensors whose elements are one number until a write: the window is of a copy with memory of its own.
FILLED: dict[str, Callable[[Any], Any]] = {
    "filled": lambda x: x.new_zeros(2, 2).fill_(x.sum()),
    "copied into": lambda x: (x[:2] * 2).copy_(x.sum()),
    "a row copied into all": lambda x: (x[:2] * 2).copy_(x[0]),
    "expanded": lambda x: x.sum().expand(2, 2).contiguous(),
}
WINDOWS: dict[str, Callable[[Any], Any]] = {
    "an element": lambda w: w.select(0, 0).fill_(3.0),
    "an element of a view": lambda w: w.view(-1)[0].mul_(3.0),
    "all": lambda w: w.mul_(3.0),
    "twice": lambda w: (w[0].mul_(3.0), w[1].add_(1.0)),
    "where data says": lambda w: w.masked_fill_(w > 0, 0.5),
}


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("filled", FILLED)
def test_windows_of_filled_tensors(filled: str, window: str, dynamic: bool) -> None:
    def program(x: Any) -> Any:
        whole = FILLED[filled](x)
        part = whole.as_strided((2,), (1,))
        WINDOWS[window](part)
        return part, whole, part * 2

    compiled = weft.compile(program, dynamic=dynamic, backend=by_operators)
    for rows in (3, 5):
        x = torch.linspace(0.5, 2.0, rows * 2, dtype=torch.float64).view(rows, 2)
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    weft.reset()
