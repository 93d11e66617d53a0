"""Functions that are called with gradients disabled and enable them for a part of what they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft
from torch import Tensor


def partly(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    constant = x * w
    with torch.enable_grad():
        tracked = (constant * w).sin()
        view = tracked[0]
        other = w * 3
    after = tracked * 2
    after.add_(1)
    return constant, tracked, view, after, other


def write(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """The argument gets a history where gradients are enabled, and new data where they are not."""
    with torch.enable_grad():
        x.mul_(w)
    x.add_(1)
    return (x * w,)


def outcome(program: Callable[..., Any]) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(2))
    w.requires_grad_()
    with torch.no_grad():
        results = [*program(x, w), x]
        assert not torch.is_grad_enabled()
    tracked = [r for r in results if r.requires_grad]
    torch.stack([(k + 1) * r.sum() for k, r in enumerate(tracked)]).sum().backward()
    return [[r.requires_grad for r in results], *results, w.grad]


def check(program: Callable[..., Any]) -> None:
    want, got = outcome(program), outcome(weft.compile(program, fullgraph=True))
    assert got[0] == want[0]
    torch.testing.assert_close(got[1:], want[1:])


def reads_beside_a_write(x: Tensor, part: Tensor) -> Tensor:
    part.mul_(3)
    with torch.enable_grad():
        return x * x


def reads_what_is_written(x: Tensor, part: Tensor) -> Tensor:
    x.mul_(3)
    with torch.enable_grad():
        return part * x.sum()


def reads_before_a_write(x: Tensor, part: Tensor) -> Tensor:
    with torch.enable_grad():
        result = x % 3
    part.mul_(3)
    return result


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "program", [reads_beside_a_write, reads_what_is_written, reads_before_a_write]
)
def test_arguments_that_share_memory_are_written_without_gradients(
    program: Callable[..., Tensor], dynamic: bool
) -> None:
    """A graph of sizes that vary runs as it is for such a call: it records writes as eager does."""

    def gradients(program: Callable[..., Tensor]) -> Tensor:
        leaf = torch.arange(1.0, 6, requires_grad=True)
        x = leaf * 1
        part = x[1:]
        with torch.no_grad():
            result = program(x, part)
        return torch.autograd.grad(result.sum() + x.sum(), leaf)[0]

    assert gradients(weft.compile(program, dynamic=dynamic)).equal(gradients(program))


def last_of_a_loop(x: Tensor, y: Tensor, n: int) -> Tensor:
    with torch.no_grad():
        for _ in range(n):
            last = torch.broadcast_tensors(x, y)[0]
    return last + 3


def instead_of_another(x: Tensor, y: Tensor, n: int) -> Tensor:
    last = y
    with torch.no_grad():
        for _ in range(n):
            last = x.contiguous()
    return last + 3


def enabled_in_a_loop(x: Tensor, y: Tensor, n: int) -> Tensor:
    with torch.no_grad():
        for _ in range(n):
            with torch.enable_grad():
                last = x * 2
    return last + 3


def until_small(x: Tensor, y: Tensor, n: int) -> Tensor:
    last = y
    with torch.no_grad():
        while y.abs().sum() > n:
            last, y = x, y / 2
    return last + 3


def one_of_two(x: Tensor, y: Tensor, n: int) -> Tensor:
    with torch.no_grad():
        last = x if y.sum() > n else y
    return last + 3


@pytest.mark.parametrize(
    "program",
    [last_of_a_loop, instead_of_another, enabled_in_a_loop, until_small, one_of_two],
    ids=lambda program: program.__name__,
)
def test_what_leaves_a_region_without_gradients_keeps_those_that_it_has(
    program: Callable[..., Tensor],
) -> None:
    compiled = weft.compile(program)
    for n in (3, 1, 30):
        for needed in (False, True):
            x, y = torch.ones(4, 4, requires_grad=needed), torch.full((4, 4), 2.0)
            wanted, found = program(x, y, n), compiled(x, y, n)
            assert found.requires_grad == wanted.requires_grad
            assert found.equal(wanted)
            if wanted.requires_grad:
                gradients = [torch.autograd.grad(one.sum(), x)[0] for one in (found, wanted)]
                assert gradients[0].equal(gradients[1])


def test_some_results_have_gradients() -> None:
    check(partly)


def test_an_argument_is_written_in_both_modes() -> None:
    check(write)
