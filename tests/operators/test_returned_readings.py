"""Returned views that read memory as another dtype, or conjugated: of inputs and of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from torch.utils._pytree import tree_leaves


def _of_result(x: Tensor) -> Any:
    y = x * 2
    z = torch.view_as_complex(y)
    return y, z, z.conj(), z.conj().imag


VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "complex": lambda x: torch.view_as_complex(x),
    "complex part": lambda x: torch.view_as_complex(x[1:]).T,
    "complex of result": lambda x: torch.view_as_complex(x + 1),
    "conjugates of result": _of_result,
    "integers": lambda x: (x.view(torch.int32)[1], x.view(torch.float64).T),
    "bytes of result": lambda x: (lambda y: (y, y.view(torch.int8)[:, 1:]))(x * 2),
    "written": lambda x: (torch.view_as_complex(x).mul_(1j), x)[0],
}


def _tensor(size: int, offset: int) -> Tensor:
    memory = torch.arange(size * 8.0 + offset).sin()
    return memory[offset:].view(size, 4, 2)


@pytest.mark.parametrize("name", VIEWS)
def test_readings(name: str) -> None:
    function = VIEWS[name]
    log = weft.CompileLog()
    compiled = weft.compile(function, dynamic=True, fullgraph=True)
    with weft.observe(log):
        for size, offset in ((3, 0), (4, 0), (3, 2), (5, 2)):
            mine, plain = _tensor(size, offset), _tensor(size, offset)
            results = [tree_leaves(compiled(mine)), tree_leaves(function(plain))]
            for found, wanted in zip(*results, strict=True):
                torch.testing.assert_close(found, wanted, check_stride=True)
                assert (found.is_conj(), found.is_neg()) == (wanted.is_conj(), wanted.is_neg())
                assert found.storage_offset() == wanted.storage_offset()
            torch.testing.assert_close(mine, plain)
            shared = [
                [value.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()]
                + [value.untyped_storage().data_ptr() == values[0].untyped_storage().data_ptr()]
                for values, given in zip(results, (mine, plain), strict=True)
                for value in values
            ]
            assert shared[: len(shared) // 2] == shared[len(shared) // 2 :]
    assert log.graphs and all(graph.eager_reason is None for graph in log.graphs)


@pytest.mark.parametrize("name", [name for name in VIEWS if "com" in name or "conj" in name])
def test_gradients(name: str) -> None:
    function = VIEWS[name]
    x = _tensor(3, 0).clone().requires_grad_()

    def gradient(called: Callable[[Tensor], Any]) -> Tensor:
        weights = (
            t.abs() ** 2 * torch.arange(t.numel()).reshape(t.shape) for t in tree_leaves(called(x))
        )
        return torch.autograd.grad(sum(map(torch.sum, weights)), x)[0]

    torch.testing.assert_close(gradient(weft.compile(function, dynamic=True)), gradient(function))


@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in place"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_random_slopes(in_place: bool, training: bool) -> None:
    """The slopes that ``rrelu`` draws are those that gradients are scaled by."""
    x = torch.randn(20, requires_grad=True)

    def scale(x: Tensor) -> Tensor:
        return torch.nn.functional.rrelu(x.clone(), 0.1, 1.0, training, in_place)

    def results(called: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        y = called(x)
        return y.detach(), torch.autograd.grad(y, x, torch.arange(20.0))[0]

    found = results(weft.compile(scale, dynamic=True, fullgraph=True))
    torch.testing.assert_close(found, results(scale))
