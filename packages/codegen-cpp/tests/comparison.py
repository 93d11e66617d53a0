"""One function beside eager in all the ways that matter: values and gradients, evaluated and compiled.

Sizes are numbers, or symbols that other sizes are put in for afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import weft_loop_ir
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from weft_codegen_cpp import CppCodegen

Function = Callable[..., Any]


def with_gradients(function: Function) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The function's results, and the gradients of its floating inputs for uneven tangents."""

    def both(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        given = function(*leaves)
        results = given if isinstance(given, tuple) else (given,)
        smooth = [r for r in results if r.requires_grad]
        wanted = [x for x in leaves if x.requires_grad]
        tangents = [_tangent(r) for r in smooth]
        gradients = torch.autograd.grad(smooth, wanted, tangents) if smooth else ()
        return (*(r.detach() for r in results), *gradients)

    return both


def _tangent(result: torch.Tensor) -> torch.Tensor:
    places = torch.arange(result.numel(), dtype=torch.float32).reshape(result.shape)
    return (places % 7 - 2.5).to(result.dtype)


def _fake(mode: FakeTensorMode, x: torch.Tensor, dynamic: Sequence[int] | None) -> torch.Tensor:
    dims = range(x.dim()) if dynamic is None else [d % x.dim() for d in dynamic]
    kinds = [DimDynamic.DYNAMIC if d in dims else DimDynamic.STATIC for d in range(x.dim())]
    context = StatelessSymbolicContext(dynamic_sizes=kinds)
    return mode.from_tensor(x, symbolic_context=context)


def schedule_of(
    function: Function, inputs: Sequence[torch.Tensor], symbolic: bool, dynamic: Any = None
) -> weft_loop_ir.Schedule:
    """The schedule, verified; with ``symbolic`` the sizes of the dims ``dynamic`` (all) are symbols."""
    if symbolic:
        mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False), allow_non_fake_inputs=True)
        fakes = [_fake(mode, x, dynamic) if x.dim() else mode.from_tensor(x) for x in inputs]
        with mode, enable_python_dispatcher():  # else some operators take sizes as numbers
            graph = make_fx(function)(*fakes)
    else:
        graph = make_fx(function, tracing_mode="fake")(*inputs)
    graph.graph.eliminate_dead_code()
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    weft_loop_ir.verify(schedule)
    return schedule


def check(
    codegen: CppCodegen,
    function: Function,
    samples: Sequence[Sequence[torch.Tensor]],
    symbolic: bool = False,
    dynamic: Any = None,
    tolerance: float | None = None,
) -> weft_loop_ir.Schedule:
    """Trace with the first sample, compare on all; without ``tolerance`` as dtypes need."""
    schedule = schedule_of(function, samples[0], symbolic, dynamic)
    program = codegen.compile(schedule, {})
    limits = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
    for inputs in samples if symbolic else samples[:1]:
        expected = function(*inputs)
        for results in (weft_loop_ir.evaluate(schedule, list(inputs)), program(*inputs)):
            for got, want in zip(results, expected, strict=True):
                torch.testing.assert_close(got, want, equal_nan=True, **limits)
                pairs = zip(got.stride(), want.stride(), want.shape, strict=True)
                assert want.numel() < 2 or all(n == 1 or a == b for a, b, n in pairs)
    return schedule
