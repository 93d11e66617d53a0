"""Gradients through loops and branches that stay in the graph: against eager PyTorch, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.fx
import weft
from weft.pipeline import Pipeline

Make = Callable[[int], Sequence[torch.Tensor]]


@pytest.fixture
def compiled_regions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many region operators each graph has that went through all stages."""
    counts: list[int] = []
    compile_graph = Pipeline.compile_graph

    def counting(self: Pipeline, module: torch.fx.GraphModule, *rest: Any) -> Any:
        program = compile_graph(self, module, *rest)
        names = ("cond", "while_loop")
        counts.append(sum(str(node.target) in names for node in module.graph.nodes))
        return program

    monkeypatch.setattr(Pipeline, "compile_graph", counting)
    return counts


def _run(
    function: Callable[..., Any], arguments: Sequence[torch.Tensor], parameters: Sequence[Any]
) -> list[Any]:
    """Results, arguments (which may be written to), and all gradients of a sum of squares."""
    for parameter in parameters:
        parameter.grad = None
    results = function(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    visible = [t for t in (*results, *arguments) if t.requires_grad and not t.is_leaf]
    flags = [t.requires_grad for t in (*results, *arguments)]
    sum((k + 1) * (t * t).sum() for k, t in enumerate(visible)).backward()  # type: ignore[union-attr]
    leaves = [a for a in arguments if a.is_leaf]
    return [flags, *results, *arguments, *(t.grad for t in (*parameters, *leaves))]


def check(
    function: Callable[..., Any],
    make: Make,
    parameters: Sequence[torch.Tensor] = (),
    lengths: Sequence[int] = (20,),
) -> None:
    compiled = weft.compile(function)
    for length in lengths:
        torch.manual_seed(length)
        expected = _run(function, make(length), parameters)
        torch.manual_seed(length)
        actual = _run(compiled, make(length), parameters)
        assert actual[0] == expected[0]
        for ours, theirs in zip(actual[1:], expected[1:], strict=True):
            assert (ours is None) == (theirs is None)
            if theirs is not None:
                torch.testing.assert_close(ours, theirs)


def _tensor(*shape: int, gradient: bool = False) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=gradient)


class _Recurrent(torch.nn.Module):
    """The last state of a cell of 3 inputs and 4 units, whose time loop is in Python."""

    def __init__(self, kind: type[torch.nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = kind(3, 4, dtype=torch.float64)  # type: ignore[call-arg]

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        for t in range(x.shape[0]):
            h = self.cell(x[t], h)
        return h


class _Rows(_Recurrent):
    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        for row in x:
            h = self.cell(row, h)
        return h


class _States(_Recurrent):
    def forward(  # type: ignore[override]
        self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        found = []
        for t in range(x.shape[0]):
            h, c = self.cell(x[t], (h, c))
            found.append(h)
        return torch.stack(found), c


@pytest.mark.parametrize("kind", [torch.nn.RNNCell, torch.nn.GRUCell])
@pytest.mark.parametrize("learned", [False, True])
def test_a_recurrent_cell_trains_in_a_rolled_loop(
    kind: type[torch.nn.Module], learned: bool, compiled_regions: list[int]
) -> None:
    model = _Recurrent(kind)

    def make(length: int) -> Sequence[torch.Tensor]:
        return _tensor(length, 2, 3, gradient=learned), _tensor(2, 4, gradient=learned)

    check(model, make, list(model.parameters()))
    assert compiled_regions == [1]


def test_the_length_may_change_without_another_graph(compiled_regions: list[int]) -> None:
    model = _Rows(torch.nn.RNNCell)

    def make(length: int) -> Sequence[torch.Tensor]:
        return _tensor(length, 2, 3, gradient=True), _tensor(2, 4)

    check(model, make, list(model.parameters()), lengths=(20, 30, 25, 60))
    assert compiled_regions == [1, 1]


def test_a_list_of_states_and_two_carried_tensors(compiled_regions: list[int]) -> None:
    model = _States(torch.nn.LSTMCell)

    def make(length: int) -> Sequence[torch.Tensor]:
        return _tensor(length, 2, 3), _tensor(2, 4), _tensor(2, 4, gradient=True)

    check(model, make, list(model.parameters()))
    assert compiled_regions == [1]


def test_rows_written_and_read_back(compiled_regions: list[int]) -> None:
    def recurrence(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for t in range(2, x.shape[0]):
            out[t] = torch.tanh(out[t - 1] + out[t - 2] - x[t]) * w
        return out

    def make(length: int) -> Sequence[torch.Tensor]:
        return _tensor(length, 3, gradient=True), _tensor(3, gradient=True)

    check(recurrence, make)
    assert compiled_regions == [1]


def test_an_argument_written_in_a_loop_gets_its_history(compiled_regions: list[int]) -> None:
    def make(length: int) -> Sequence[torch.Tensor]:
        return _tensor(length, 3, gradient=True), _tensor(length, 3)

    def fill(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        for t in range(x.shape[0]):
            out[t] += x[t] * x[t].sin()
        return out.sum()

    check(fill, make)
    assert compiled_regions == [1]


def test_nested_loops_and_a_window_of_rows(compiled_regions: list[int]) -> None:
    def smooth(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x[0])
        for _ in range(18):
            for t in range(1, x.shape[0] - 1):
                total = torch.sin(total + (x[t - 1 : t + 2] * w).sum(0))
        return total

    def make(length: int) -> Sequence[torch.Tensor]:
        return _tensor(length, 3, gradient=True), _tensor(3, 3, gradient=True)

    check(smooth, make)
    assert compiled_regions == [1]


def _settled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        h = torch.tanh(h @ w + x[t])
        if h.sum() > 1.5:
            break
    return h


def _halting(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Adaptive computation: a state is weighted until the weights sum to enough."""
    spent = torch.zeros(x.shape[1], dtype=x.dtype)
    out = torch.zeros_like(x[0])
    h = x[0]
    for _ in range(20):
        h = torch.sin(h @ w)
        weight = torch.sigmoid(h.sum(-1))
        out = out + weight.unsqueeze(-1) * h
        spent = spent + weight
        if (spent > 2).all():
            break
    return out, spent


def _gathered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Backward reads positions that forward has kept: those of iterations that did not run are none."""
    h = x[0]
    for t in range(x.shape[0]):
        index = (h.detach().abs().sum(-1) * 10).long() % 3
        h = torch.tanh(h * w[index] + x[t])
        if h.norm() > 2.2:
            break
    return h


@pytest.mark.parametrize("program", [_settled, _halting, _gathered])
def test_a_loop_that_a_tensor_ends_early(
    program: Callable[..., Any], compiled_regions: list[int]
) -> None:
    def make(seed: int) -> Sequence[torch.Tensor]:
        torch.manual_seed(seed)
        return _tensor(20, 2, 3, gradient=True), _tensor(3, 3, gradient=True)

    check(program, make, lengths=range(8))
    assert compiled_regions == [1]


def _damped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x[0]
    while h.norm() > 0.5:
        h = h * 0.7 + 0.01 * (h @ w)
    return h * 2


def _damped_and_counted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, n = x[0], 0
    while n < 30 and h.abs().max() > 0.1:
        h = h @ w * 0.3
        n += 1
    return h * n


def _pondered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Adaptive computation: each row goes on until its weights sum to enough."""
    h = x[0]
    spent, out = torch.zeros(h.shape[0], dtype=x.dtype), torch.zeros_like(h)
    while (spent < 2).any():
        h = torch.sin(h @ w)
        weight = torch.sigmoid(h.sum(-1)) + 0.1
        out = out + weight.unsqueeze(-1) * h
        spent = spent + weight
    return out


@pytest.mark.parametrize("program", [_damped, _damped_and_counted, _pondered])
def test_a_loop_without_a_bound(program: Callable[..., Any], compiled_regions: list[int]) -> None:
    def make(seed: int) -> Sequence[torch.Tensor]:
        torch.manual_seed(seed)
        return _tensor(3, 2, 3, gradient=True), _tensor(3, 3, gradient=True)

    check(program, make, lengths=range(4))
    assert compiled_regions == [1]


def test_a_fixed_point_without_gradients_and_a_step_with(compiled_regions: list[int]) -> None:
    """A deep equilibrium: the search is a region that no gradient flows through."""

    def equilibrium(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            z = torch.zeros_like(x)
            following = torch.tanh(x)
            while (following - z).norm() > 1e-8:
                z = following
                following = torch.tanh(z @ w * 0.2 + x)
        return torch.tanh(z @ w * 0.2 + x)

    def make(seed: int) -> Sequence[torch.Tensor]:
        torch.manual_seed(seed)
        return _tensor(5, 3, gradient=True), _tensor(3, 3, gradient=True)

    check(equilibrium, make, lengths=range(3))
    assert compiled_regions == [1]


def test_a_loop_that_counts_down_by_two(compiled_regions: list[int]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = w
        for t in range(x.shape[0] - 1, 0, -2):
            h = h * x[t] + w
        return h

    def make(length: int) -> Sequence[torch.Tensor]:
        return torch.rand(length, 3, dtype=torch.float64, requires_grad=True), _tensor(
            3, gradient=True
        )

    check(function, make, lengths=(40,))
    assert compiled_regions == [1]


def test_random_masks_are_the_same_in_backward(compiled_regions: list[int]) -> None:
    def dropped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = w
        for t in range(x.shape[0]):
            h = torch.nn.functional.dropout(h * x[t], 0.3) + w
        return h

    def make(length: int) -> Sequence[torch.Tensor]:
        return _tensor(length, 5, gradient=True), _tensor(5, gradient=True)

    check(dropped, make)
    assert compiled_regions == [1]


def test_a_detached_state_has_no_gradient(compiled_regions: list[int]) -> None:
    def truncated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = w * 2
        total = torch.zeros_like(w)
        for t in range(x.shape[0]):
            h = (h * x[t]).detach() + w
            total = total + h
        return total

    def make(length: int) -> Sequence[torch.Tensor]:
        return _tensor(length, 3), _tensor(3, gradient=True)

    check(truncated, make)
    assert compiled_regions == [1]


def test_gradients_of_gradients_through_a_loop() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for t in range(x.shape[0]):
            w = torch.tanh(w * x[t]) + w * w * 0.01
        return w.sum()

    def second(f: Callable[..., torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(1)
        x, w = _tensor(20, 3), _tensor(3, gradient=True)
        (first,) = torch.autograd.grad(f(x, w), w, create_graph=True)
        (found,) = torch.autograd.grad((first * first).sum(), w)
        return found

    with pytest.warns(UserWarning, match="gradients of gradients"):
        actual = second(weft.compile(function))
    torch.testing.assert_close(actual, second(function))


def test_gradients_off_inside_and_around_a_loop(compiled_regions: list[int]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = w
            for t in range(x.shape[0]):
                scale = scale * 0.9 + x[t]
        return scale * w

    def make(length: int) -> Sequence[torch.Tensor]:
        return _tensor(length, 3), _tensor(3, gradient=True)

    check(function, make)
    assert compiled_regions == [1]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_branch_trains_on_the_side_taken(sign: float, compiled_regions: list[int]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if x.detach().sum() > 0:
            y = torch.tanh(y @ w) * x
        else:
            y = (y * x) @ w.exp()
        return y * 2

    def make(length: int) -> Sequence[torch.Tensor]:
        x = (sign * torch.rand(length, 3, dtype=torch.float64)).requires_grad_()
        return x, _tensor(3, 3, gradient=True)

    check(function, make)
    assert compiled_regions == [1]


def test_branches_inside_a_loop(compiled_regions: list[int]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(w)
        for t in range(x.shape[0]):
            if x[t, 0] > 0:
                h = torch.tanh(h + w) * x[t]
            else:
                h = h * w.cos() + x[t] * 0.1
        return h

    def make(length: int) -> Sequence[torch.Tensor]:
        return _tensor(length, 3, gradient=True), _tensor(3, gradient=True)

    check(function, make)
    assert compiled_regions == [1]


def test_parameters_of_one_side_only_have_no_gradient_elsewhere(
    compiled_regions: list[int],
) -> None:
    def function(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * v if x.sum() > 0 else x * w

    def make(length: int) -> Sequence[torch.Tensor]:
        return _tensor(length), _tensor(length, gradient=True), _tensor(length, gradient=True)

    check(function, make, lengths=(3, 4, 5, 6))
    assert compiled_regions == [1, 1]  # the second has a symbolic size


def _of_each(function: Callable[..., Any], make: Make) -> list[list[bool]]:
    """For each result alone, which arguments have no gradient."""
    found = []
    for k in range(len(function(*make(0)))):
        arguments = make(0)
        function(*arguments)[k].sum().backward()
        found.append([a.grad is None for a in arguments])
    return found


def test_arguments_that_only_other_results_depend_on(compiled_regions: list[int]) -> None:
    """Through loops and branches, and what they write: eager has no gradient there, rather than zeros."""

    def function(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Any:
        first, second, rows = v * 1, w * 1, torch.zeros_like(x)
        for t in range(x.shape[0]):
            first = torch.tanh(first + x[t])
            second = second * 0.9
            rows[t] = first
        if w.detach().sum() > 0:
            first, second = first * 2, second.sin()
        else:
            first, second = first.cos(), second * 3
        return first, second, rows

    def make(_: int) -> Sequence[torch.Tensor]:
        torch.manual_seed(0)
        return _tensor(20, 3, gradient=True), _tensor(3, gradient=True), _tensor(3, gradient=True)

    assert _of_each(weft.compile(function), make) == _of_each(function, make)
    assert compiled_regions == [2]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_results_that_change_places_on_a_side(sign: float, compiled_regions: list[int]) -> None:

    def function(v: torch.Tensor, w: torch.Tensor) -> Any:
        first, second = v * 2, w * 3
        if v.detach().sum() > 0:
            first, second = second.sin(), first.cos()
        else:
            first, second = first.sin(), second.cos()
        return first, second

    def make(_: int) -> Sequence[torch.Tensor]:
        return tuple((sign * torch.ones(3)).requires_grad_() for _ in range(2))

    assert _of_each(weft.compile(function), make) == _of_each(function, make)
    assert compiled_regions == [1]


def _solved(x: torch.Tensor) -> Any:
    scale = torch.zeros(3, dtype=torch.float64)  # gains gradients in the first iteration

    def scaled() -> torch.Tensor:
        return x + scale

    for _ in range(20):
        scale = scaled().tanh()
        if scale.sum() > 2:
            break
    return scale, scaled()


def _first_bound_in_a_cell(x: torch.Tensor) -> Any:
    def half() -> torch.Tensor:
        return part * 0.5

    for i in range(20):
        part = x * i
        whole = half() + x
    return part, whole


def _written_by_a_closure(x: torch.Tensor) -> Any:
    count, state = 0, x

    def step() -> None:
        nonlocal count, state
        state = state * 0.9 + x
        count += 1

    while state.abs().sum() < 1000 and count < 30:
        step()
    return state * count


@pytest.mark.parametrize("function", [_solved, _first_bound_in_a_cell, _written_by_a_closure])
def test_cells_of_closures_that_have_gradients(
    function: Callable[..., Any], compiled_regions: list[int]
) -> None:
    check(function, lambda length: [_tensor(3, gradient=True)], lengths=(20, 21))
    assert len(compiled_regions) == 1 and compiled_regions[0]
