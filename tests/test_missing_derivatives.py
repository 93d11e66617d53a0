"""Operators that autograd has no derivative of, in graphs with gradients: eager raises in backward only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import weft

Program = Callable[..., Any]

_SIZE = (4, 4)


def _symmetric(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(4, dtype=x.dtype)


def _loss_of_nothing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(x[:0], y[:0]).nan_to_num()


# Without a derivative with respect to x, some to y neither; each gives a tensor that requires gradients.
OPERATORS: dict[str, Program] = {
    "x // 2": lambda x, y: x // 2,
    "2 // x": lambda x, y: 2 // x,
    "x // y": lambda x, y: x // y,
    "floor_divide": torch.floor_divide,
    "heaviside": torch.heaviside,
    "igamma": torch.igamma,
    "igammac": torch.special.gammaincc,
    "zeta": lambda x, y: torch.special.zeta(x + 1.5, y),
    "zeta of both": lambda x, y: torch.special.zeta(x + 1.5, x),
    "geqrf": lambda x, y: torch.geqrf(x)[1],
    "geqrf, both": lambda x, y: torch.geqrf(x)[0] + torch.geqrf(x)[1],
    "unique": lambda x, y: torch.unique(x),
    "beside a loss of nothing": lambda x, y: torch.unique(x) + _loss_of_nothing(x, y),
    "unique with counts": lambda x, y: torch.unique(x, return_counts=True)[0],
    "unique of rows": lambda x, y: torch.unique(x, dim=0),
    "unique_consecutive": lambda x, y: torch.unique_consecutive(x),
    "histogram": lambda x, y: torch.histogram(x, bins=4, range=(0.0, 3.0)).hist,
    "bernoulli with p": lambda x, y: torch.bernoulli(x, 1.0),
    "ldl_factor": lambda x, y: torch.linalg.ldl_factor(_symmetric(x)).LD,
    "chunk_cat": lambda x, y: torch._chunk_cat([x, y], 0, 2),
}

# The same by writes: what they write has a derivative (of zeros), or no other one.
WRITES: dict[str, Program] = {
    "floor_divide_": lambda x, y: (x * 2).floor_divide_(y),
    "heaviside_": lambda x, y: (x * 2).heaviside_(y),
    "bernoulli_": lambda x, y: (x * 2).bernoulli_(1.0),
    "bernoulli_ of a part": lambda x, y: _write_part(x, lambda part: part.bernoulli_(1.0)),
    "floor_divide_ of a part": lambda x, y: _write_part(x, lambda part: part.floor_divide_(2)),
    "nextafter_": lambda x, y: (x * 2).nextafter_(y),
    "overwritten": lambda x, y: _written_over(x // 2, lambda z: z.fill_(3)),
    "overwritten step": lambda x, y: _written_over(torch.heaviside(x, y), lambda z: z.zero_()),
    "overwritten by another": lambda x, y: _written_over(x // y, lambda z: z.copy_(y)),
    "overwritten variance": lambda x, y: _written_over(torch.unique(x).var(0), lambda z: z.zero_()),
    "overwritten element by element": lambda x, y: _written_over(x // 2, _set_all),
    "complex part": lambda x, y: _write_part(torch.complex(x, y), lambda part: part.mul_(2)).real,
}


def _write_part(x: torch.Tensor, write: Program) -> torch.Tensor:
    whole = x * 2
    write(whole[1])
    return whole


def _written_over(value: torch.Tensor, write: Program) -> torch.Tensor:
    write(value)
    return value


def _set_all(value: torch.Tensor) -> None:
    value[:] = 2


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    weft.reset()
    yield
    weft.reset()


def _inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(_SIZE, dtype=torch.float64, generator=generator) + 0.5
    y = torch.rand(_SIZE, dtype=torch.float64, generator=generator) + 0.5
    return x.requires_grad_(), y.requires_grad_()


def _same(found: Any, wanted: Any) -> None:
    if wanted is None or isinstance(wanted, (str, tuple)):
        assert found == wanted
        return
    assert found.requires_grad == wanted.requires_grad
    torch.testing.assert_close(found, wanted)


def _outcome(run: Callable[[], Any]) -> Any:
    """What ``run`` gives, or type and message of what it raises."""
    try:
        return run()
    except RuntimeError as error:
        return type(error), str(error)


def _beside_eager(program: Program, differentiate: Callable[[Any, Any, Any], Any]) -> list[Any]:
    """Eager's results, what ``differentiate`` gives or raises, and both gradients; weft's are the same."""
    outcomes = []
    for function in (weft.compile(program), program):
        x, y = _inputs()
        results = function(x, y)
        found = _outcome(lambda: differentiate(results, x, y))  # noqa: B023
        kept = (None, None) if isinstance(found, tuple) else (x.grad, y.grad)  # not after an error
        outcomes.append([*results, found, *kept])
    for found, wanted in zip(*outcomes, strict=True):
        _same(found, wanted)
    return outcomes[1]


pytestmark = pytest.mark.filterwarnings("ignore:.*The graph runs eagerly")


@pytest.fixture(params=[*OPERATORS, *WRITES])
def operator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Program:
    if (
        request.param in WRITES
    ):  # these may be refused: the graph then runs as captured, with a warning
        monkeypatch.delenv("WEFT_STRICT")
    return (OPERATORS | WRITES)[request.param]


def test_backward_by_it_is_eagers_error_or_gradient(operator: Program) -> None:
    def program(x: Any, y: Any) -> Any:
        return operator(x, y) * 2, (x * y).sin()

    _beside_eager(program, lambda results, x, y: (results[0].sum() + results[1].sum()).backward())


@pytest.mark.parametrize("name", OPERATORS)
def test_eager_raises(name: str) -> None:
    def program(x: Any, y: Any) -> Any:
        return (OPERATORS[name](x * 2, y),)

    *_, found, _, _ = _beside_eager(program, lambda results, x, y: results[0].sum().backward())
    assert isinstance(found, tuple) and issubclass(found[0], RuntimeError)
    assert "derivative for" in found[1]


def test_backward_of_other_results_is_right(operator: Program) -> None:
    def program(x: Any, y: Any) -> Any:
        z = x * y
        return operator(z, y.exp()), z.sin(), y * 2

    def first(results: Any, x: Any, y: Any) -> Any:
        results[1].sum().backward()

    *_, x_gradient, _ = _beside_eager(program, first)
    assert x_gradient is not None
    *_, x_gradient, _ = _beside_eager(program, lambda results, x, y: results[2].sum().backward())
    assert x_gradient is None


def test_gradient_of_what_has_a_derivative(operator: Program) -> None:
    """``torch.autograd.grad`` visits only what leads to the inputs that are asked for."""

    def program(x: Any, y: Any) -> Any:
        return operator(x, y).sum() + (y * y).sum(), x * 2

    def differentiate(results: Any, x: Any, y: Any) -> Any:
        (gradient,) = torch.autograd.grad(results[0], [y])
        return gradient

    _beside_eager(program, differentiate)


def test_gradient_with_respect_to_a_result_of_eager(operator: Program) -> None:
    """The same for tensors that are no leaves."""
    compiled = weft.compile(lambda x, y: (operator(x, y).sum() + (y * y).sum(),))
    gradients = []
    for function in (compiled, lambda x, y: (operator(x, y).sum() + (y * y).sum(),)):
        x, y = _inputs()
        z, w = x * 1, y * 1
        (result,) = function(z, w)
        gradients.append(_outcome(lambda: torch.autograd.grad(result, [w])[0]))  # noqa: B023
    _same(*gradients)


def test_detached_or_compared(operator: Program) -> None:
    def program(x: Any, y: Any) -> Any:
        z = operator(x * 2, y.exp())
        return z.detach() + 1, z > 1, (x * y).sin(), operator(x.detach(), y.detach())

    *_, x_gradient, _ = _beside_eager(program, lambda results, x, y: results[2].sum().backward())
    assert x_gradient is not None


def test_parameter_that_leads_nowhere_else() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(4.0))

        def forward(self, x: torch.Tensor) -> Any:
            return self.weight // 2, x * 2

    model = Model()
    compiled = weft.compile(model, fullgraph=True)
    x = torch.ones(4, requires_grad=True)
    rounded, doubled = compiled(x)
    assert rounded.requires_grad
    doubled.sum().backward(retain_graph=True)
    assert model.weight.grad is None
    with pytest.raises(RuntimeError, match="derivative for aten::floor_divide is not implemented"):
        rounded.sum().backward()


def test_writes_without_gradients_beside_it() -> None:
    """Of a leaf that is made inside, a running sum and a gradient: none hides that backward is an error."""

    def program(x: Any, y: Any) -> Any:
        leaf = y.detach().clone().requires_grad_()
        with torch.no_grad():
            y.add_(1)
        keys = (leaf @ x).view(1, 1, 4, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(keys, keys, keys)
        (slope,) = torch.autograd.grad(mixed.sum(), leaf, create_graph=True)
        return slope, torch.special.zeta(x + 1.5, y).sum() + slope.detach().sum()

    for k in (0, 1):
        _beside_eager(program, lambda results, x, y: results[k].sum().backward())  # noqa: B023
