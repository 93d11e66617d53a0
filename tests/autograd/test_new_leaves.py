"""Leaves that a compiled function makes: they are in the graph, and are what eager's are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn

linear = nn.Linear(3, 3)
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def used_up(x: Tensor) -> Any:
    scale = nn.Parameter(torch.full((3,), 2.0))
    return linear(x * scale)


def returned(x: Tensor) -> Any:
    scale = nn.Parameter(torch.ones(3) * 2)
    return scale, (x * scale).sum(), scale


def of_computed(x: Tensor) -> Any:
    mean = nn.Parameter(x.detach().mean(0))
    return mean, (x - mean).square().sum()


def frozen(x: Tensor) -> Any:
    scale = nn.Parameter(torch.ones(3), requires_grad=False)
    return scale, x * scale


def of_an_argument(x: Tensor) -> Any:
    weight = nn.Parameter(x.detach())
    return weight, (weight * 2).sum()


def detached_argument(x: Tensor) -> Any:
    start = x.detach().requires_grad_()
    return start, start.exp().sum()


def by_method(x: Tensor) -> Any:
    shift = torch.zeros(3).requires_grad_()
    return shift, (x + shift).exp()


def by_keyword(x: Tensor) -> Any:
    shift = torch.zeros(3, requires_grad=True)
    return shift, (x + shift).exp()


def by_attribute(x: Tensor) -> Any:
    shift = torch.zeros(3)
    shift.requires_grad = True
    return shift, (x + shift).exp()


def with_nothing_else(x: Tensor) -> Any:
    return torch.full((2 * x.shape[0], 3), 0.5).requires_grad_()


def as_large_as_the_argument(x: Tensor) -> Any:
    noise = torch.ones_like(x).t().requires_grad_()
    return noise, (noise @ x).sum()


def written_without_gradients(x: Tensor) -> Any:
    weight = nn.Parameter(torch.empty(3, 3))
    nn.init.constant_(weight, 0.5)
    with torch.no_grad():
        weight[0] += 1
    return weight, x @ weight


def module_made_inside(x: Tensor) -> Any:
    layer = nn.Linear(3, 2)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer.weight, layer(x)


def asked(x: Tensor) -> Any:
    shift = torch.zeros(3).requires_grad_()
    facts = shift.is_leaf, shift.requires_grad, shift.grad_fn is None, shift.grad is None
    weight = nn.Parameter(torch.ones(3))
    kinds = type(weight) is nn.Parameter, isinstance(shift, nn.Parameter), weight.grad_fn is None
    return facts, kinds, x + shift * weight


def without_gradients(x: Tensor) -> Any:
    with torch.no_grad():
        shift = x.exp().requires_grad_()
        fixed = shift * 2
    return shift, fixed, shift * 3


def memory_of_the_data(x: Tensor) -> Any:
    data = torch.zeros(3)
    weight = nn.Parameter(data)
    data.add_(1)
    return data, weight, x * weight


def detached_result(x: Tensor) -> Any:
    hidden = linear(x).tanh().detach().requires_grad_()
    return hidden, hidden.square().sum()


def view_of_a_result(x: Tensor) -> Any:
    rows = x.detach().exp()[1:]
    rows.requires_grad_()
    return rows._is_view(), rows, (rows * 2).sum()


def turned_result_and_parameter(x: Tensor) -> Any:
    turned = x.detach().cos().t().requires_grad_()
    weight = nn.Parameter(x.detach().sin()[1:])
    return turned, turned.square().sum(), turned._is_view(), weight, weight._is_view()


ONE_GRAPH = [
    view_of_a_result, turned_result_and_parameter,
    used_up, returned, of_computed, frozen, of_an_argument, detached_argument, by_method, by_keyword,
    by_attribute, with_nothing_else, as_large_as_the_argument, written_without_gradients,
    asked, without_gradients, memory_of_the_data, detached_result,
]  # fmt: skip


def view_made_before(x: Tensor) -> Any:
    data = torch.zeros(4)
    view = data.view(2, 2)
    data.requires_grad_()
    return view, data, x.sum() * data


def part_of_an_argument(x: Tensor) -> Any:
    row = x[0].detach().requires_grad_()
    return row, row.exp()


def argument_written_after(x: Tensor) -> Any:
    weight = nn.Parameter(x.detach())
    with torch.no_grad():
        x.add_(1)
    return weight, (weight * 2).sum()


def argument_written_before(x: Tensor) -> Any:
    with torch.no_grad():
        x.add_(1)
    weight = nn.Parameter(x.detach())
    return weight, (weight * 2).sum()


def result_and_its_detached(x: Tensor) -> Any:
    hidden = linear(x).tanh()
    start = hidden.detach().requires_grad_()
    return hidden, start, start.square().sum()


def taken_back(x: Tensor) -> Any:
    shift = torch.zeros(3).requires_grad_()
    shift.requires_grad_(False)
    return shift, x + shift


def integers(x: Tensor) -> Any:
    try:
        return torch.zeros(3, dtype=torch.int64).requires_grad_()
    except RuntimeError:
        return x + 1


def changed_in_place(x: Tensor) -> Any:
    weight = nn.Parameter(torch.zeros(2, 3))
    with torch.no_grad():
        weight.t_()
    return weight, x @ weight


def in_a_branch(x: Tensor) -> Any:
    if x.sum() > 0:
        shift = torch.zeros(3).requires_grad_()
        return shift, x + shift
    return x, x * 2


def differentiated(x: Tensor) -> Any:
    start = torch.zeros(3, 1).requires_grad_()
    for _ in range(2):
        (slope,) = torch.autograd.grad((x.detach() @ start - 1).square().mean(), start)
        start = (start - 0.1 * slope).detach().requires_grad_()
    return start


def penalty(x: Tensor) -> Any:
    mixed = (x * 0.3 + 0.7).detach().requires_grad_()
    (slope,) = torch.autograd.grad(net(mixed).sum(), mixed, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()


OTHERS = [
    module_made_inside,  # torch.compile, once it has run, has a function of its own in each __init__
    view_made_before, part_of_an_argument, argument_written_after, argument_written_before,
    result_and_its_detached, taken_back, integers, changed_in_place, in_a_branch, differentiated, penalty,
]  # fmt: skip


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors_in(part)


def facts(value: Any) -> Any:
    if isinstance(value, tuple):
        return [facts(part) for part in value]
    if not isinstance(value, Tensor):
        return value
    return type(value), value.shape, value.stride(), value.requires_grad, value.is_leaf


def outcome(function: Callable[[Tensor], Any], rows: int) -> tuple[Any, list[Any]]:
    """Facts, and values: of the results, of gradients, and of all after a write to each result."""
    parameters = [*linear.parameters(), *net.parameters()]
    for parameter in parameters:
        parameter.grad = None
    torch.manual_seed(rows)
    x = torch.randn(rows, 3).requires_grad_()
    with torch.no_grad():
        x += 0  # a leaf may be written to like this
    results = function(x)
    tensors = [*tensors_in(results)]
    roots = [result.sum() for result in tensors if result.requires_grad]
    if roots:
        sum(roots).backward()
    leaves = [x, *parameters, *(result for result in tensors if result.is_leaf)]
    values = [result.detach().clone() for result in tensors]
    gradients = [leaf.grad for leaf in leaves]
    for number, result in enumerate(tensors):
        with torch.no_grad():
            result.detach().add_(number + 1)
        values += [other.detach().clone() for other in (*tensors, x)]
    same = [[one is other for one in tensors] for other in tensors]
    return (facts(results), same), [*values, *gradients]


def check(function: Callable[[Tensor], Any], compiled: Callable[[Tensor], Any]) -> None:
    for rows in (2, 2, 4, 5):
        (known, wanted), (seen, found) = outcome(function, rows), outcome(compiled, rows)
        assert seen == known
        for expected, value in zip(wanted, found, strict=True):
            torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("function", ONE_GRAPH)
def test_one_graph(function: Callable[[Tensor], Any]) -> None:
    log = weft.CompileLog()
    with weft.observe(log):
        check(function, weft.compile(function))
    assert not log.graph_breaks and len(log.graphs) <= 2
    assert not [graph.eager_reason for graph in log.graphs if graph.eager_reason]


@pytest.mark.parametrize("function", OTHERS)
def test_what_a_graph_cannot_hold_is_eagers(function: Callable[[Tensor], Any]) -> None:
    check(function, weft.compile(function))


def test_a_module_makes_its_parameters_in_its_first_call() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight: nn.Parameter | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.weight is None:
                self.weight = nn.Parameter(torch.ones(x.shape[-1]))
            return x * self.weight

    module = Lazy()
    log = weft.CompileLog()
    compiled = weft.compile(module)
    with weft.observe(log):
        for rows in (2, 2, 4):
            compiled(torch.ones(rows, 3)).sum().backward()
    assert [name for name, _ in module.named_parameters()] == ["weight"]
    assert module.weight is not None and module.weight.grad is not None
    assert module.weight.grad.tolist() == [8.0] * 3
    assert not log.graph_breaks


def test_gradients_of_gradients_through_a_new_leaf() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        start = (x * 2).detach().requires_grad_()
        return start, net(start).sum()

    slopes = []
    for run in (function, weft.compile(function)):
        net.zero_grad()
        torch.manual_seed(0)
        start, total = run(torch.randn(4, 3))
        (slope,) = torch.autograd.grad(total, start, create_graph=True)
        slope.square().sum().backward()
        slopes.append((slope.detach(), net[0].weight.grad, start.grad))
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("writes", [0, 1])
@pytest.mark.parametrize("make", [torch.Tensor.requires_grad_, torch.nn.Parameter])
def test_a_leaf_counts_the_writes_before_it(make: Any, writes: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        for _ in range(writes):
            y.mul_(2)
        made: torch.Tensor = make(y)
        return made

    x = torch.rand(3)
    result, wanted = weft.compile(program)(x), program(x)
    assert (result._version, result.is_leaf) == (wanted._version, wanted.is_leaf)
    torch.testing.assert_close(result, wanted)
