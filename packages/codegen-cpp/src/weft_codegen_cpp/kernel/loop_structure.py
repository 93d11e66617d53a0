"""Which of a kernel's loops becomes lanes, by its accesses, and what an iteration costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy
import torch
from weft_loop_ir import Kernel, LoopBody, LoopVariable
from weft_loop_ir.bodies import Cost, Store

from weft_codegen_cpp.kernel.expressions import coefficient, static_int

_ON_VECTORS = frozenset(
    (
        *("sigmoid", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos"),
        *("tanh", "erf"),
    )
)
"""Those that float32 has polynomials for; the others go lane by lane."""


def by_lane(operation: str, dtype: torch.dtype) -> bool:
    """Whether a function is a library's call for each lane, beside which one more is nothing."""
    return dtype.is_floating_point and (dtype != torch.float32 or operation not in _ON_VECTORS)


@dataclass(frozen=True)
class VectorPlan:
    """Which loop becomes lanes: an outer one, for the whole kernel, or one inner loop for each stage."""

    outer: sympy.Symbol | None
    inner: tuple[sympy.Symbol | None, ...]


def _score(symbol: sympy.Symbol, body: LoopBody, local: frozenset[str]) -> float:
    """How well the accesses of ``body`` suit lanes along ``symbol``: higher is better."""
    total = 0.0
    for access in body.accesses():
        if access.buffer in local:
            continue
        is_store = isinstance(access, Store)
        step = coefficient(access.index, symbol)
        if step == 1:
            total += 1.5 if is_store else 1.0
        elif step == 0:
            total += -1.0 if is_store else 0.25
        else:
            total -= 3.0 if is_store else 2.0
    return total


def _extent_penalty(variable: LoopVariable, lanes: int) -> float:
    size = static_int(variable.size)
    return 0.0 if size is None or size >= lanes else 2.5 * (1 - size / lanes)


def plan_vectors(kernel: Kernel, lanes: int) -> VectorPlan:
    """Choose by vote of the accesses; a tie goes to inner loops, then to the last loop."""
    local, bodies = frozenset(kernel.local_names), kernel.bodies
    weights = [1.0 if stage.inner or not _has_inner(kernel) else 0.1 for stage in kernel.stages]

    def outer_score(variable: LoopVariable) -> float:
        votes = sum(
            w * _score(variable.symbol, b, local) for w, b in zip(weights, bodies, strict=True)
        )
        return votes - _extent_penalty(variable, lanes) * len(bodies)

    best_outer = _best(kernel.outer, outer_score)
    inner: list[sympy.Symbol | None] = []
    inner_total = 0.0
    for stage, weight in zip(kernel.stages, weights, strict=True):
        best = _best(
            () if stage.is_sequential else stage.inner,
            lambda v, stage=stage: (
                _score(v.symbol, stage.body, frozenset())  # type: ignore[misc]
                - _extent_penalty(v, lanes)
            ),
        )
        inner.append(None if best is None else best[1].symbol)
        if best is not None:
            inner_total += weight * best[0]
    has_inner = any(symbol is not None for symbol in inner)
    if best_outer is not None and (not has_inner or best_outer[0] > inner_total):
        return VectorPlan(best_outer[1].symbol, tuple(None for _ in inner))
    return VectorPlan(None, tuple(inner))


def _has_inner(kernel: Kernel) -> bool:
    return any(stage.inner and not stage.is_sequential for stage in kernel.stages)


def _best(
    loops: Sequence[LoopVariable], score: Callable[[LoopVariable], float]
) -> tuple[float, LoopVariable] | None:
    best: tuple[float, LoopVariable] | None = None
    for variable in loops:
        value = score(variable)
        if best is None or value >= best[0]:
            best = (value, variable)
    return best


def stage_nanoseconds(body: LoopBody, lanes: int) -> float:
    """A rough cost of one element of ``body`` in nanoseconds, vectorised."""
    total = 0.0
    for instruction in body.walk():
        if instruction.operation.touches_memory:
            total += 0.12
        elif instruction.operation.cost is Cost.FUNCTION:
            total += 4.0 / lanes
        elif instruction.operation.cost is not Cost.FREE:
            total += 0.4 / lanes
    return total


def calls_functions(body: LoopBody) -> bool:
    """Whether ``body`` computes functions that keep a core's units busy by themselves."""
    return any(i.operation.cost is Cost.FUNCTION for i in body.walk())
