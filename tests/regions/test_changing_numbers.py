"""Numbers that are others in each call, within loops and branches: the second compilation takes them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft_aot_autograd
import weft_functionalize
import weft_loop_ir
from weft_bytecode_capture import capture

from .changing_numbers import FLOATS, INTEGERS, decayed, scheduled, sides, stepped
from .test_loop_lengths import Counting

PAIRS = [(0.1, 0.11), (0.25, 0.26), (0.037, 0.05), (0.3, 0.31), (0.011, 0.02)]
WHOLE = [(7,), (9,), (4,), (11,), (3,)]
HALVES = (torch.float16, torch.bfloat16)


class Evaluating(Counting):
    """As :class:`Counting`, up to the schedule, which the reference evaluator runs."""

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        functional = weft_functionalize.functionalize(graph, inputs)
        forward = weft_aot_autograd.trace_inference(functional)
        schedule = weft_loop_ir.schedule(weft_loop_ir.lower(forward.graph_module))
        weft_loop_ir.verify(schedule)

        def run(*users: Any) -> tuple[Any, ...]:
            every: list[Any] = [functional.lifted.get(i) for i in range(len(functional.inputs))]
            for index, value in zip(functional.user_input_indices, users, strict=True):
                every[index] = value
            return weft_loop_ir.evaluate(schedule, every, use_arena=True)

        return weft_functionalize.wrap(functional, run, functional.lifted)


def check(
    function: Callable[..., Any],
    calls: Sequence[tuple[float, ...]],
    backend: Counting,
    dtype: torch.dtype = torch.float64,
) -> None:
    """Each call has eager's results and effects, of two graphs with regions, the first for one number."""
    compiled = capture(function, backend=backend)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype in HALVES else {}
    for number, numbers in enumerate(calls):
        generator = torch.Generator().manual_seed(number)
        theirs = (torch.rand(5, 3, generator=generator) + 0.1).to(dtype)
        mine = theirs.clone()
        with torch.no_grad():
            wanted, got = function(theirs, *numbers), compiled(mine, *numbers).result
        torch.testing.assert_close(got, wanted, **tolerance)
        torch.testing.assert_close(mine, theirs, **tolerance)
        assert _kinds(got) == _kinds(wanted)
    assert len(backend.graphs) == 2
    for graph in backend.graphs:
        targets = {getattr(node.target, "__name__", "") for node in graph.graph.nodes}
        assert targets & {"cond", "while_loop", "where"}  # that of sides which give numbers alone


def _kinds(result: Any) -> list[type]:
    return [type(part) for part in result] if isinstance(result, tuple) else [type(result)]


@pytest.mark.parametrize("function", FLOATS, ids=lambda f: f.__name__)
def test_floats(function: Callable[..., Any]) -> None:
    check(function, PAIRS, Evaluating())


@pytest.mark.parametrize("function", INTEGERS, ids=lambda f: f.__name__)
def test_integers(function: Callable[..., Any]) -> None:
    check(function, WHOLE, Evaluating())


NATIVE = [f for f in FLOATS if f.__name__ in ("stepped", "until_close_as_numbers", "scheduled")]
NATIVE += [f for f in FLOATS if f.__name__ in ("decayed", "number_by_side", "operators")]


@pytest.mark.parametrize("function", [*NATIVE, *INTEGERS[1:3]], ids=lambda f: f.__name__)
@pytest.mark.native
def test_native_programs(function: Callable[..., Any]) -> None:
    check(function, WHOLE if function in INTEGERS else PAIRS, Counting(), torch.float32)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("function", [stepped, scheduled, decayed, sides], ids=lambda f: f.__name__)
def test_half_precision(function: Callable[..., Any], dtype: torch.dtype) -> None:
    check(function, PAIRS, Evaluating(), dtype)


def test_a_number_that_a_loop_changes_is_rounded_as_eager_does() -> None:
    """Where it is added or compared a Python number is rounded, where it is a factor it is not."""

    def arithmetic(x: torch.Tensor, a: float) -> Any:
        t, factor = a, a
        for _ in range(16):
            t = t + 0.0
            added, taken = x + t, t - x
            product, quotient, share = x * t, x / t, t / x
            less, equal = x < t, x == t
        return added, taken, product, quotient, share, less, equal, t, factor

    for dtype in (*HALVES, torch.float32):
        compiled = capture(arithmetic, backend=Evaluating())
        for a in (0.1, 0.3, 0.7, 1.7):
            x = torch.tensor([0.1, 0.3, 0.7, 1.7, 2.0, -5.0], dtype=dtype)
            with torch.no_grad():
                got, wanted = compiled(x, a).result, arithmetic(x, a)
            for mine, theirs in zip(got[:-2], wanted[:-2], strict=True):
                assert torch.equal(mine, theirs)
            assert got[-2:] == wanted[-2:]


class Damped(torch.nn.Module):
    """A loop that reads an attribute that changes."""

    rate = 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = x - self.rate * torch.tanh(x)
        return x


def test_an_attribute_of_a_module() -> None:
    module, backend = Damped(), Evaluating()
    compiled = capture(module.forward, backend=backend)
    for rate in (0.1, 0.2, 0.3, 0.4):
        module.rate = rate
        x = torch.rand(4, 3)
        torch.testing.assert_close(compiled(x).result, module(x))
    assert len(backend.graphs) == 2


def trained(x: torch.Tensor, w: torch.Tensor, a: float) -> torch.Tensor:
    for i in range(16):
        x = x - a * torch.tanh(x @ w) / (i + 1)
        a = a * 0.9
    return x * a


def trained_by_side(x: torch.Tensor, w: torch.Tensor, a: float) -> torch.Tensor:
    y = x @ w
    if y.sum() > a:
        y = y * a
    else:
        y = y.sin() - a
    return y


def trained_until(x: torch.Tensor, w: torch.Tensor, a: float) -> torch.Tensor:
    for _ in range(30):
        x = torch.tanh(x @ w) * (1 - a)
        if x.abs().max() < a * 2:
            break
    return x


@pytest.mark.parametrize("function", [trained, trained_by_side, trained_until])
def test_gradients(function: Callable[..., Any]) -> None:
    backend = Counting()
    compiled = capture(function, backend=backend)
    for number, rate in enumerate((0.1, 0.25, 0.037, 0.3)):
        generator = torch.Generator().manual_seed(number)
        given = [torch.rand(n, 3, generator=generator).double() - 0.3 for n in (4, 3)]
        found = []
        for call in (function, lambda *arguments: compiled(*arguments).result):
            leaves = [value.clone().requires_grad_() for value in given]
            result = call(*leaves, rate)
            result.square().sum().backward()
            found.append((result.detach(), *(leaf.grad for leaf in leaves)))
        torch.testing.assert_close(found[1], found[0])
    assert len(backend.graphs) == 2
