"""What eager refuses and fake tensors let pass raises eager's error, there and after what came before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "product": lambda x: torch.mm(x, x.double()),
    "product of a vector": lambda x: x @ x[0].double(),
    "linear": lambda x: torch.nn.functional.linear(x, x.long()),
    "product in place": lambda x: x.addmm_(x, x.half()),
    "result in place": lambda x: x.long().mul_(1.5),
    "part": lambda x: x.select(0, 3),
    "part of a part": lambda x: x[1:].select(0, -3),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["weft", "eager"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_errors_where_nobody_reads_the_result(
    call: Callable[[torch.Tensor], Any], backend: str, dynamic: bool | None
) -> None:
    def program(x: torch.Tensor, done: list[str]) -> torch.Tensor:
        done.append("before")
        x.add_(1)
        call(x)
        done.append("after")
        return x + 1

    compiled = weft.compile(program, backend=backend, dynamic=dynamic)
    outcomes = []
    for function in (program, compiled):
        x, done = torch.ones(3, 3), list[str]()
        with pytest.raises((RuntimeError, IndexError)) as raised:
            function(x, done)
        outcomes.append((raised.type, str(raised.value), x.tolist(), done))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][3] == ["before"]


VALUES: dict[str, Callable[[torch.Tensor], Any]] = {
    "one_hot": lambda x: torch.nn.functional.one_hot(x.long(), 3) * 2,
    "one_hot of a transposed": lambda x: torch.nn.functional.one_hot(x.long().mT, 4),
    "one_hot of a constant": lambda x: x[0] + torch.nn.functional.one_hot(torch.tensor([0, 5]), 3),
    "quantile": lambda x: torch.arange(4.0).quantile(x),
    "quantile along a dim": lambda x: torch.quantile(x, x[0], 0, True),
    "nanquantile": lambda x: torch.nanquantile(torch.ones(1), q=x.reshape(-1)),
    "embedding": lambda x: torch.nn.functional.embedding(x.long(), torch.ones(3, 2)),
    "nll_loss": lambda x: torch.nn.functional.nll_loss(x, x[0].long()),
    "cross_entropy": lambda x: torch.nn.functional.cross_entropy(x, x[0].long()),
    "take": lambda x: torch.arange(3).take(x.long()),
    "gather": lambda x: x.gather(1, x.long()),
    "remainder": lambda x: torch.arange(3) % x.long(),
    "floor_divide": lambda x: 4 // x.long(),
    "bincount": lambda x: torch.bincount(x.reshape(-1).long()),
    "binary_cross_entropy": lambda x: torch.nn.functional.binary_cross_entropy(x, x),
    "repeat_interleave": lambda x: x.repeat_interleave(x[0].long(), 0),
    "masked_scatter": lambda x: torch.ones(9).masked_scatter(x.reshape(-1) > 1, torch.arange(2.0)),
}
NUMBERS = (-7.0, -1.0, -1e-9, 0.0, 0.5, 1.0, 1.0001, 2.0, 3.0, 1e6, float("nan"))


@pytest.mark.parametrize("call", VALUES.values(), ids=VALUES)
def test_errors_of_values(call: Callable[[torch.Tensor], Any]) -> None:
    compiled = weft.compile(call)
    outcomes = set()
    for number in NUMBERS:
        x = torch.full((3, 3), number)
        x[1] = 1
        expected, found = (_outcome_of(function, x) for function in (call, compiled))
        assert found[0] == expected[0], number
        torch.testing.assert_close(found[1], expected[1], equal_nan=True)
        outcomes.add(expected[0] is None)
    assert False in outcomes


def _outcome_of(function: Callable[..., Any], x: torch.Tensor) -> tuple[Any, Any]:
    try:
        return None, function(x.clone())
    except Exception as error:
        return (type(error), str(error)), None


def test_autocast_makes_dtypes_one() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):
            return x @ y

    x = torch.rand(3, 3)
    compiled = weft.compile(program, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, x.bfloat16()), program(x, x.bfloat16()))


PASSED: dict[str, tuple[Callable[[torch.Tensor, Any], Any], tuple[Any, ...]]] = {
    "factor": (
        lambda x, n: F.interpolate(x[None, None], scale_factor=n, mode="bilinear"),
        (2.0, 0.1, 1.5),
    ),
    "factor of nearest": (lambda x, n: F.interpolate(x[None], scale_factor=n), (2.0, 0.2, 0.5)),
    "filled integers": (lambda x, n: x.to(torch.int8).fill_(n), (1, 127, 128, -128, -129, 5)),
    "masked halves": (lambda x, n: x.half().masked_fill(x > 1, n), (1.0, 6e4, 7e4, -7e4)),
    "classes of floats": (lambda x, n: F.one_hot(x, n), (2, 3)),
    "classes": (lambda x, n: F.one_hot(x.long(), n), (4, 1, 5)),
    "share that is dropped": (lambda x, n: F.dropout(x, n), (0.5, 1.0, 0.25, 0.0, 1.5)),
    "share of attention": (
        lambda x, n: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=n),
        (0.5, 1.0, 0.25),
    ),
    "slope": (lambda x, n: F.celu(x, n), (1.0, 2.0, 0.0, -1.0)),
    "share of channels": (lambda x, n: F.dropout1d(x, n), (0.5, 1.0, 0.25, 0.0)),
}


INF, NAN = float("inf"), float("nan")

NUMBERS_OF_DATA: dict[str, tuple[Callable[[torch.Tensor, Any], Any], tuple[Any, ...]]] = {
    name: (lambda x, n, call=call: call(x, n.item()), tuple(map(torch.tensor, numbers)))
    for name, call, numbers in (
        ("filled", lambda x, n: x.to(torch.int8).fill_(n), (1, 127, 128, -129)),
        ("full", lambda x, n: torch.full((2,), n, dtype=torch.uint8) + x[0, :2], (1, 256, -256)),
        ("masked", lambda x, n: x.int().masked_fill(x > 1, n), (5, 2**31, -(2**31))),
        ("filled by floats", lambda x, n: x.to(torch.int8).fill_(n), (1.5, 127.9, 128.5, NAN)),
        ("full of floats", lambda x, n: x.int().new_full((2,), n), (-1.5, 3e9, -INF)),
    )
}
NUMBERS_OF_DATA["full of a tensor"] = (
    lambda x, n: torch.full((2,), n, dtype=torch.uint8),
    (torch.tensor(2.5), torch.tensor(256.0), torch.tensor(-1.0)),
)
PASSED |= {f"{name} of data": case for name, case in NUMBERS_OF_DATA.items()}


@pytest.mark.filterwarnings("ignore::weft.WeftWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PASSED)
def test_numbers_that_vary(name: str, dynamic: bool | None, monkeypatch: Any) -> None:
    """Errors, results, and how far the random numbers have come, of each number that is passed."""
    monkeypatch.setenv("WEFT_STRICT", "0")  # eager raises: the graph is refused
    program, numbers = PASSED[name]

    def outcome(function: Callable[..., Any], number: Any) -> Any:
        torch.manual_seed(0)
        try:
            result = function(torch.arange(9.0).view(3, 3) % 3, number)
        except (RuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return result, torch.rand(2)

    compiled = weft.compile(program, dynamic=dynamic)
    for number in numbers:
        expected, found = outcome(program, number), outcome(compiled, number)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)


def test_gradients_where_a_margin_that_is_passed_is_just_met() -> None:
    def loss(x: torch.Tensor, margin: float) -> torch.Tensor:
        return F.multi_margin_loss(x, torch.tensor([1, 0]), margin=margin)

    compiled = weft.compile(loss, dynamic=True)
    for margin in (1.0, -1.0, 0.5):
        outcomes = []
        for function in (compiled, loss):
            x = torch.tensor([[0.5, 0.0, 1.0], [0.5, 0.0, -0.5]], requires_grad=True)
            result = function(x, margin)
            outcomes.append((result.detach(), *torch.autograd.grad(result, x)))
        torch.testing.assert_close(outcomes[0], outcomes[1])
