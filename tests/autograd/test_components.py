"""Results of one graph that no gradient connects: backward of one visits nothing behind the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import weft

Program = Callable[..., Any]


def apart(a: Any, b: Any) -> Any:
    return a.sin() * 2, b.exp()


def with_a_write(a: Any, b: Any) -> Any:
    b.mul_(2)
    return a.cos(), b * 3


def with_random_numbers(a: Any, b: Any) -> Any:
    return torch.dropout(a, 0.5, True) * a, torch.dropout(b.exp(), 0.5, True)


def with_views(a: Any, b: Any) -> Any:
    c = b * 2
    return a.sin(), c[1:], c.view(1, 3), torch.ones(2)


def hooks(function: Program, x: Any, y: Any, log: list[Any]) -> None:
    a, b = x * 1, y * 1
    a.register_hook(lambda g: log.append(("a", g.clone())))
    b.register_hook(lambda g: log.append(("b", g.clone())))
    results = function(a, b)
    results[0].sum().backward()
    log.append((x.grad.clone(), y.grad))
    results[1].sum().backward()
    log.append((x.grad, y.grad))


def no_derivative(function: Program, x: Any, y: Any, log: list[Any]) -> None:
    results = function(x * 1, y // 1)
    results[0].sum().backward()
    log.append(x.grad.clone())
    results[1].sum().backward()


def repeated(function: Program, x: Any, y: Any, log: list[Any]) -> None:
    results = function(x * 1, y * 1)
    results[0].sum().backward(retain_graph=True)
    results[0].sum().backward()
    results[1].sum().backward()
    log.append((x.grad, y.grad))


def at_once(function: Program, x: Any, y: Any, log: list[Any]) -> None:
    results = function(x * 1, y * 1)
    (results[0].sum() * results[1].sum()).backward()
    log.append((x.grad, y.grad))


def of_gradients(function: Program, x: Any, y: Any, log: list[Any]) -> None:
    results = function(x * 1, y * 1)
    (gradient,) = torch.autograd.grad(results[0].sum(), x, create_graph=True)
    gradient.sum().backward()
    results[1].sum().backward()
    log.append((x.grad, y.grad))


def observed(program: Program, drive: Callable[..., None]) -> list[Any]:
    x, y = (torch.linspace(a, a + 1, 3, requires_grad=True) for a in (0.1, 0.7))
    torch.manual_seed(0)
    log: list[Any] = []
    try:
        drive(program, x, y, log)
    except RuntimeError as error:
        log.append(str(error))
    return log


def _name(event: Any) -> Any:
    """What an event is, without numbers."""
    if isinstance(event, tuple):
        return [_name(part) for part in event]
    return None if isinstance(event, torch.Tensor) else str(event)


def _tensors(events: Any) -> Iterator[torch.Tensor]:
    for event in events:
        if isinstance(event, tuple):
            yield from _tensors(event)
        elif isinstance(event, torch.Tensor):
            yield event


@pytest.mark.filterwarnings("ignore:weft. gradients of gradients")
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed sizes", "symbolic sizes"])
@pytest.mark.parametrize("drive", [hooks, no_derivative, repeated, at_once, of_gradients])
@pytest.mark.parametrize("program", [apart, with_a_write, with_random_numbers, with_views])
def test_backward_is_eagers(program: Program, drive: Callable[..., None], dynamic: bool) -> None:
    if drive is of_gradients and program is with_a_write:
        pytest.skip("gradients of gradients of a graph that writes to its inputs are refused")
    compiled = weft.compile(program, fullgraph=True, dynamic=dynamic)
    found, wanted = observed(compiled, drive), observed(program, drive)
    assert [_name(event) for event in found] == [_name(event) for event in wanted]
    torch.testing.assert_close([*_tensors(found)], [*_tensors(wanted)])


def test_a_gradient_that_only_a_view_of_the_argument_has_is_absent() -> None:
    def program(x: Any, y: Any) -> Any:
        z = x * 2
        z[0] = 0
        return z, y[...]

    def gradients(function: Program) -> Any:
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        return torch.autograd.grad(function(x, y)[0].sum(), (x, y), allow_unused=True)

    assert gradients(program)[1] is None
    assert gradients(weft.compile(program, fullgraph=True))[1] is None
