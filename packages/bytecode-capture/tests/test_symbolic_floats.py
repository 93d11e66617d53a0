"""Floats that change between calls: one graph for all of them, equal to plain Python to the last bit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
import torch
from test_symbolic_sizes import Compiled

X = torch.tensor([[1.5, -2.0, 0.0], [math.inf, math.nan, -0.0]])
RATES = (0.1, 0.3, 0.07, 1e-9, 2.5, 1e30, 3.0)


class Holder:
    def __init__(self, **values: object) -> None:
        vars(self).update(values)


def scaled(x: torch.Tensor, rate: float) -> object:
    return x * rate + rate


def as_scalar_arguments(x: torch.Tensor, rate: float) -> object:
    return (
        torch.add(x, x, alpha=-rate),
        torch.sub(x, 1, alpha=rate),
        x.clamp(min=-rate, max=rate),
        torch.addcmul(x, x, x, value=rate),
        x.pow(rate),
        torch.where(x > rate, x, rate),
        torch.full((2,), rate),
    )


def with_promotion(x: torch.Tensor, rate: float) -> object:
    whole = torch.arange(3)
    return (
        whole * rate,
        whole.sum() + rate,
        x.double() * rate,
        x.half() * rate,
        (x > 0) * rate,
        torch.tensor(2.0) * rate,
    )


def arithmetic(x: torch.Tensor, rate: float) -> object:
    decay = 1 - rate * 0.9
    step = -rate / (1.0 + rate**2) + 0.1 + rate + 0.2
    return x * decay + abs(step), x - math.sqrt(rate), rate + 0.1 + 0.2 - 0.3, pow(2.0, -rate)


def with_sizes(x: torch.Tensor, rate: float) -> object:
    return x * (rate / x.size(0)) + rate * len(x) ** 0.5


def returned(x: torch.Tensor, rate: float) -> object:
    return {"x": x + 1, "rate": rate, "half": rate / 2}["half"], [rate, -rate]


PROGRAMS = (scaled, as_scalar_arguments, with_promotion, arithmetic, with_sizes, returned)


@pytest.mark.parametrize("function", PROGRAMS)
def test_two_graphs_serve_every_float(function: Callable[..., object]) -> None:
    compiled = Compiled(function)
    for rate in RATES:
        compiled.check(X, rate)
    assert compiled.count == 2


@pytest.mark.parametrize("function", PROGRAMS)
def test_dynamic_true_needs_one_graph(function: Callable[..., object]) -> None:
    compiled = Compiled(function, dynamic=True)
    for rate in RATES:
        compiled.check(X, rate)
    assert compiled.count == 1


def test_dynamic_false_has_a_graph_for_each_float() -> None:
    compiled = Compiled(scaled, dynamic=False)
    for rate in RATES[:4]:
        compiled.check(X, rate)
    assert compiled.count == 4


def test_special_floats_have_graphs_of_their_own() -> None:
    compiled = Compiled(scaled)
    for rate in (0.5, 0.25, math.nan, math.inf, -math.inf, 0.125, -0.0, 0.0, math.nan, math.inf):
        compiled.check(X, rate)
    assert compiled.count == 5  # the first, any finite one, NaN and the infinities


SUMS: dict[str, Callable[[float, float], object]] = {
    "constants": lambda a, b: sum([0.1] * 10),
    "constants from a float": lambda a, b: sum([1e16, 1.0, -1e16, True, 3], 0.1),
    "complex": lambda a, b: sum([0.1j] * 10 + [0.1, 1]),
    "one": lambda a, b: sum([a]),
    "two": lambda a, b: sum([a, b]),
    "two after numbers": lambda a, b: sum([2, a, True, 3, b]),
    "two from zero": lambda a, b: sum((a, b), 0.0),
    "of a generator": lambda a, b: sum(n for n in (a, b) if n > 0),
    "of constants, then one": lambda a, b: sum([1, 2, a]),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_cpythons(name: str) -> None:
    compiled = Compiled(lambda x, a, b: (x * a, SUMS[name](a, b)))
    for a, b in ((0.1, 0.7), (0.3, 1e16), (1e-9, 0.2), (2.5, 1e30)):
        compiled.check(X, a, b)


def test_longer_sums_break_the_graph_where_cpython_makes_up_for_rounding() -> None:
    compensates = sum([0.1] * 10) == 1.0  # since 3.12
    compiled = Compiled(lambda x, a: (x * a, sum([a, 1e16, a, -1e16])), fullgraph=not compensates)
    for a in (0.1, 0.7, 0.3):
        compiled.check(X, a)


def test_powers_have_one_graph() -> None:
    compiled = Compiled(lambda x, power: (x**power, power ** x.abs()))
    for power in (0.3, 0.7, 1.0, 2.0, 0.5, 3.0):
        compiled.check(X.abs(), power)
    assert compiled.count == 2


def test_a_zero_keeps_its_sign() -> None:
    compiled = Compiled(lambda x, rate: (x * 0 + rate, math.copysign(1.0, rate)))
    for rate in (0.5, -0.0, 0.0, -0.0):
        compiled.check(torch.ones(1), rate)


def test_a_zero_that_an_operator_has_to_know_keeps_its_sign() -> None:
    compiled = Compiled(
        lambda x, rate: (x * 0 + rate, torch.nn.functional.pad(x, (1, 0), value=rate))
    )
    for rate in (0.5, 0.0, -0.0, 0.0, 2.0, -0.0):
        compiled.check(-torch.ones(1), rate)


def test_comparisons_are_guarded_as_they_fall() -> None:
    def stepped(x: torch.Tensor, rate: float) -> object:
        if rate > 0.5:
            return x * 2
        return x * rate if rate != 0 else x

    compiled = Compiled(stepped)
    for rate in (0.1, 0.2, 0.3, 0.7, 0.9, 0.0, 0.25, -0.0):
        compiled.check(X, rate)
    assert compiled.count == 5  # 0.1, below a half, above, each zero


def test_what_is_computed_may_overflow_or_raise_later() -> None:
    def inverse(x: torch.Tensor, rate: float) -> object:
        return x * (1 / (rate - 1.0)), rate * 1e300 * 1e10

    compiled = Compiled(inverse, fullgraph=False)
    for rate in (0.1, 0.2, 1e-5, 1e9):
        compiled.check(X, rate)
    for run in (compiled.compiled, compiled.function):
        with pytest.raises(ZeroDivisionError):
            run(X, 1.0)


def test_a_root_of_a_negative_number_raises_as_python_does() -> None:
    def root(x: torch.Tensor, rate: float) -> object:
        return x + math.sqrt(rate)

    compiled = Compiled(root, fullgraph=False)
    for rate in (4.0, 2.0, 3.0):
        compiled.check(X, rate)
    for run in (compiled.compiled, compiled.function):
        with pytest.raises(ValueError, match=r"math domain error|nonnegative"):
            run(X, -1.0)
    assert compiled.compiled(X, 9.0)[0, 0] == 4.5


def test_a_float_power_of_a_negative_base_is_complex() -> None:
    compiled = Compiled(lambda x, rate: (x + 1, rate**0.5), fullgraph=False)
    for rate in (4.0, 2.0, -3.0, 5.0):
        compiled.check(torch.ones(2), rate)


def test_floats_in_attributes_and_items_become_symbolic() -> None:
    holder = Holder(rate=0.5, groups=[{"rate": 0.5}])

    def function(x: torch.Tensor) -> object:
        return x * holder.rate - holder.groups[0]["rate"]

    compiled = Compiled(function)
    for rate in RATES:
        holder.rate = rate
        holder.groups[0]["rate"] = rate / 3
        compiled.check(X)
    assert compiled.count == 2


def test_a_float_that_stays_is_a_constant() -> None:
    compiled = Compiled(lambda x, rate, eps: x * rate + eps)
    for rate in RATES:
        compiled.check(X, rate, 1e-5)
    texts = {str(guard.predicate) for guard in compiled.reports[-1].guards}
    assert "EqualsConstant(expected=1e-05)" in texts


def test_what_needs_the_number_itself_is_compiled_for_it() -> None:
    compiled = Compiled(lambda x, rate: ({rate: 1}, x + 1), fullgraph=False)
    for rate in (1.5, 2.5, 3.5, 1.5):
        compiled.check(X, rate)
    assert compiled.count == 3


def test_texts_and_integers_of_floats_are_made_in_each_call() -> None:
    compiled = Compiled(lambda x, rate: (f"{rate:.2f}", int(rate), math.exp(rate) * x))
    for rate in (1.5, 2.5, 3.5, 1.5):
        compiled.check(X, rate)
    assert compiled.count == 2


def test_an_integer_step_scales_a_rate() -> None:
    compiled = Compiled(lambda x, rate, step: x * (rate * 0.99**step) / (1 - 0.9**step))
    for step, rate in enumerate(RATES, 1):
        compiled.check(X, rate, step)
    assert compiled.count == 2


def test_writes_of_floats_are_replayed() -> None:
    holder = Holder(rate=0.5, log=[])

    def function(x: torch.Tensor) -> object:
        holder.log.append(holder.rate)
        holder.rate *= 0.9
        return x * holder.rate

    compiled = Compiled(function)
    for _ in range(4):
        holder.rate, holder.log = 0.5, []
        wanted = [function(X) for _ in range(4)], holder.rate, holder.log
        holder.rate, holder.log = 0.5, []
        found = [compiled.compiled(X) for _ in range(4)], holder.rate, holder.log
        assert found[1:] == wanted[1:]
        torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0, equal_nan=True)
    assert compiled.count == 2


def test_floats_live_through_a_graph_break() -> None:
    def function(x: torch.Tensor, rate: float) -> object:
        half = rate / 2
        x = x + rate
        time.sleep(0)
        return x * half

    compiled = Compiled(function, fullgraph=False)
    for rate in RATES:
        compiled.check(X, rate)
    assert compiled.count <= 4
