"""Arguments in every form that an operator takes, with symbolic sizes: strings, lists of one, any sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _compare(function: Callable[..., Any], *calls: tuple[Any, ...], graphs: int = 1) -> None:
    """Values, dtypes and strides as eager's in calls of several sizes, by ``graphs`` programs at most."""
    log = weft.CompileLog()
    compiled = weft.compile(function, dynamic=True, fullgraph=True)
    with weft.observe(log):
        for arguments in calls:
            expected = function(*arguments)
            torch.testing.assert_close(compiled(*arguments), expected, check_stride=True)
    assert 1 <= len(log.graphs) <= graphs
    assert all(report.eager_reason is None for report in log.graphs)


@pytest.mark.parametrize("padding", ["valid", "same", 1, [1]], ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_padding_of_convolutions(dims: int, padding: Any) -> None:
    images = [torch.randn(b, 3, *range(6 + b, 6 + b + dims)) for b in (2, 3)]
    weight = torch.randn(4, 3, *(3, 3, 3)[:dims])
    _compare(lambda x, w: CONVOLUTIONS[dims](x, w, padding=padding), *((x, weight) for x in images))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_as_operators(dims: int) -> None:
    """Lists of one number reach the operator itself."""
    images = [torch.randn(b, 4, *range(8 + b, 8 + b + dims)) for b in (2, 3)]
    weight = torch.randn(4, 2, *(3,) * dims)

    def convolve(x: Tensor, w: Tensor) -> Tensor:
        return torch.convolution(x, w, None, [2], [1], [2], False, [0], 2)

    _compare(convolve, *((x, weight) for x in images))


def test_steps_of_either_sign() -> None:
    """A quotient of numbers that are passed rounds as Python's does, whatever the divisor's sign."""

    def count(start: int, stop: int, step: int) -> Tensor:
        return torch.arange(start, stop, step, dtype=torch.float32)

    steps = ((0, 8, 2), (2, 11, 3), (0, -8, -4), (1, -8, -3), (10, 0, -3), (9, 0, -4))
    _compare(count, *steps, graphs=2)  # one for each sign


def test_remainders_by_numbers_of_either_sign() -> None:
    def fill(x: Tensor, a: int, b: int) -> Tensor:
        return x + a // b + 10 * (a % b)

    pairs = [(a, b) for a in (7, -7, 8) for b in (2, -3, 4, -4)]
    _compare(fill, *((torch.zeros(3), *pair) for pair in pairs))


def test_amounts_of_a_roll() -> None:
    """Backward is given a number that is computed of the amount, and not the amount."""

    def roll(x: Tensor, amount: int) -> Tensor:
        return x.roll(amount, 0)

    compiled = weft.compile(roll, dynamic=True)
    for size, amount in ((5, 2), (6, 1), (7, -3)):
        x = torch.randn(size, 3, requires_grad=True)
        tangent = torch.randn(size, 3)
        (expected,) = torch.autograd.grad(roll(x, amount), x, tangent)
        (found,) = torch.autograd.grad(compiled(x, amount), x, tangent)
        torch.testing.assert_close(found, expected)


NUMBERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "elu": lambda x, n: F.elu(x, n),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n),
    "linalg.vector_norm": lambda x, n: torch.linalg.vector_norm(x, n, 1),
    "softplus": lambda x, n: F.softplus(x, n, n),
    "std": lambda x, n: torch.std(x, correction=n),
    "var_mean": lambda x, n: torch.var_mean(x, 1, correction=n)[0],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_kernels_are_made_for(name: str) -> None:
    """What an operator's kernel depends on may vary all the same: then it is torch's kernel."""
    calls = ((torch.randn(size, 4), n) for size, n in ((3, 2), (4, 3), (5, 2)))
    _compare(NUMBERS[name], *calls, graphs=2)  # fakes of some compare the number


def test_sizes_by_a_factor() -> None:
    """Sizes that are rounded products of floats are numbers again where a stage has no form for them."""

    def enlarge(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=1.7)

    compiled = weft.compile(enlarge, dynamic=True)
    for size in (5, 6):
        x = torch.randn(2, 3, size)
        torch.testing.assert_close(compiled(x), enlarge(x))


def test_positions_of_either_sign() -> None:
    def scatter(x: Tensor, place: int) -> Tensor:
        twice = torch.select_scatter(x * 2, x[0], 0, place)
        return torch.slice_scatter(twice, x[:1], 0, place, place + 1)

    places = ((5, 2), (6, -3), (7, 1))
    _compare(scatter, *((torch.randn(size, 4), place) for size, place in places), graphs=2)


def test_strides_beyond_64_bits() -> None:
    """Whether promised strides overlap is asked of sizes so large that their product is no int64."""

    def convolve(x: Tensor, w: Tensor, step: int, border: int) -> Tensor:
        return F.conv_transpose3d(x, w, stride=step, padding=border)

    images = ((torch.randn(2, 4, n, 4, 5), torch.randn(4, 2, 3, 3, 3), 2, 1) for n in (3, 4))
    _compare(convolve, *images)


def test_flags_in_place_of_numbers() -> None:
    _compare(lambda x: x + torch.arange(False, True, True), (torch.zeros(3),), (torch.zeros(5),))


def test_polygamma_in_place() -> None:
    def write(x: Tensor, order: int) -> Tensor:
        return x.clone().polygamma_(order)

    _compare(write, (torch.rand(3, 4) + 1, 2), (torch.rand(5, 4) + 1, 2))


def test_a_float_that_an_operator_fixes() -> None:
    """The operator's fake asks for the number's value, so that it is none of the graph's symbols."""

    def draw(x: Tensor, mean: float, deviation: float) -> Tensor:
        torch.manual_seed(0)
        return x.clone().log_normal_(mean, deviation)

    calls = [(torch.zeros(n), 1.5, deviation) for n, deviation in ((3, 0.25), (4, 0.5), (5, 0.5))]
    compiled = weft.compile(draw, dynamic=True)
    for arguments in calls:
        torch.testing.assert_close(compiled(*arguments), draw(*arguments))


@pytest.mark.parametrize("size", [3, 4])
def test_gradients_that_check_for_errors(size: int) -> None:
    """The gradient solves linear equations, and raises where it can't."""
    x = torch.randn(size, size, dtype=torch.float64, requires_grad=True)

    def spread(x: Tensor) -> Tensor:
        return torch.linalg.eig(x)[1].abs().sum()

    (expected,) = torch.autograd.grad(spread(x), x)
    (found,) = torch.autograd.grad(weft.compile(spread, dynamic=True)(x), x)
    torch.testing.assert_close(found, expected)


MADE_IN = {
    "zeros": lambda o: torch.zeros(2, 3, out=o),
    "ones": lambda o: torch.ones((2, 3), out=o),
    "full": lambda o: torch.full((2, 3), 1.75, out=o),
    "eye": lambda o: torch.eye(2, 3, out=o),
    "a row": lambda o: torch.zeros(3, out=o[0]),
    "columns": lambda o: torch.eye(2, out=o[:, 1:]),
    "linspace": lambda o: torch.linspace(0, 5, 6, out=torch.empty(6, dtype=o.dtype)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("name", MADE_IN)
def test_what_is_made_in_a_given_tensor(name: str, dtype: torch.dtype) -> None:
    """Of its dtype, in one graph."""

    def program(o: Tensor) -> Any:
        return MADE_IN[name](o), o * 1

    given = [torch.full((2, 3), 3).to(dtype) for _ in range(2)]
    if name == "linspace" and dtype == torch.bool:  # eager has none
        with pytest.raises(RuntimeError, match="not implemented for 'Bool'"):
            weft.compile(program)(given[1])
        return
    wanted, found = program(given[0]), weft.compile(program, fullgraph=True)(given[1])
    torch.testing.assert_close((found, given[1]), (wanted, given[0]), rtol=0, atol=1e-3)
    assert found[0] is given[1] or found[0]._base is given[1] or name == "linspace"
