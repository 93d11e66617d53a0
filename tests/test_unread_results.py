"""Results that nothing reads: what eager refuses for sizes that depend on data is refused all the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch.nn import functional as F

# The first operand has 75 elements, but capture does not know that: it is what ``unique`` gives.
REFUSED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "broadcast": lambda u, x: x + u,
    "broadcast_tensors": lambda u, x: torch.broadcast_tensors(x, u),
    "where": lambda u, x: torch.where(u > 0, u, torch.ones(3)),
    "comparison": lambda u, x: u == torch.ones(3),
    "chain": lambda u, x: ((u + torch.ones(3)) * 2).relu(),
    "matmul": lambda u, x: x @ u,
    "linear": lambda u, x: F.linear(u, torch.ones(4, 5)),
    "conv1d": lambda u, x: F.conv1d(u[None], torch.ones(1, 1, 200)),
    "layer_norm": lambda u, x: F.layer_norm(u, (4,)),
    "cat": lambda u, x: torch.cat([u[None], x[0, 0]]),
    "stack": lambda u, x: torch.stack([u, x[0, 0, 0]]),
    "view": lambda u, x: u.view(2, -1),
    "reshape": lambda u, x: u.reshape(3),
    "expand": lambda u, x: u.expand(3),
    "split": lambda u, x: u.split([3, 4]),
    "narrow": lambda u, x: u.narrow(0, 70, 8),
    "topk": lambda u, x: u.topk(80),
    "unfold": lambda u, x: u.unfold(0, 80, 1),
    "select": lambda u, x: u[100],
    "write": lambda u, x: x[0, 0, 0].copy_(u),
    "write of a result": lambda u, x: u.add_(torch.ones(3)),
    "vmap": lambda u, x: torch.vmap(lambda row: row + u)(x),
    "vmap of vmap": lambda u, x: torch.vmap(torch.vmap(lambda row: row * u))(x),
    "max of none": lambda u, x: u[u > 1e9].max(),
    "amax of none": lambda u, x: u[u > 1e9].amax(),
    "min of none along": lambda u, x: u[u > 1e9].min(0),
    "argmin of none": lambda u, x: u[u > 1e9].argmin(),
    "aminmax of none": lambda u, x: u[u > 1e9].aminmax(),
    "median of none along": lambda u, x: u[u > 1e9].median(0),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("handled", [False, True])
def test_unread_result_is_refused(name: str, handled: bool) -> None:
    refused = REFUSED[name]

    def program(x: torch.Tensor, log: list[Any]) -> Any:
        u = torch.unique(x[0, :2, :, :])[:75]
        if not handled:
            refused(u, x)
            return log
        try:
            y = x.sin()
            refused(u, y)
        except (RuntimeError, IndexError) as error:
            log.append(y)
            return type(error)
        return None

    def outcome(function: Callable[..., Any], log: list[Any]) -> Any:
        try:
            return function(x.clone(), log)
        except (RuntimeError, IndexError) as error:
            return type(error), str(error)

    x = torch.linspace(-2, 2, 7 * 3 * 40 * 16).view(7, 3, 40, 16)
    expected_log: list[Any] = []
    expected = outcome(program, expected_log)
    assert expected is not None and expected is not expected_log  # eager refuses it
    compiled = weft.compile(program)
    for _ in range(2):
        log: list[Any] = []
        assert outcome(compiled, log) == expected
        torch.testing.assert_close(log, expected_log)


WHOLE = torch.arange(24).view(1, 2, 3, 4)
DTYPES_REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "nearest": lambda x: F.interpolate(x.bool(), scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x[0, 0], torch.tensor([0, 1, 2])),
    "avg_pool2d": lambda x: F.avg_pool2d(x.bool(), 2),
}


@pytest.mark.parametrize("name", DTYPES_REFUSED)
def test_unread_result_of_symbolic_sizes_is_refused_for_its_dtype(name: str) -> None:
    refused = DTYPES_REFUSED[name]

    def program(x: torch.Tensor) -> Any:
        try:
            refused(x)
        except (RuntimeError, NotImplementedError) as error:
            return str(error)
        return x + 1

    compiled = weft.compile(program, dynamic=True)
    assert isinstance(program(WHOLE), str)
    for given in (WHOLE, WHOLE[..., :3]):
        assert compiled(given) == program(given)
