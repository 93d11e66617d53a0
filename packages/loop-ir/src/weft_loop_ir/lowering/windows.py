"""The part of a tensor that ``select_scatter`` and ``slice_scatter`` replace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy

from weft_loop_ir.expressions import to_expression
from weft_loop_ir.lowering.context import LoweringContext
from weft_loop_ir.lowering.tensors import TensorValue
from weft_loop_ir.lowering.views import clamp_start, normalize_dim, select_index, slice_dim


@dataclass(frozen=True)
class Window:
    """The elements ``start, start + step, ...`` of dimension ``dim``.

    With ``drops_dim`` it is one element, and what replaces it has no dimension ``dim``.
    """

    dim: int
    start: sympy.Expr
    step: sympy.Expr
    drops_dim: bool

    def extent(self, source: TensorValue) -> sympy.Expr:
        """How many elements of ``dim`` ``source`` replaces."""
        return sympy.S.One if self.drops_dim else source.size[self.dim]

    def view(self, base: TensorValue, source: TensorValue) -> TensorValue:
        """The elements of ``base`` that ``source`` replaces, in ``source``'s shape."""
        if self.drops_dim:
            return select_index(base, self.dim, self.start)
        return slice_dim(base, self.dim, self.start, self.step, self.extent(source))


def selected(context: LoweringContext, base: TensorValue, dim: int, index: Any) -> Window:
    d = normalize_dim(dim, len(base.size))
    return Window(d, context.from_start(index, base.size[d]), sympy.S.One, True)


def sliced(
    context: LoweringContext,
    base: TensorValue,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> Window:
    d = normalize_dim(dim, len(base.size))
    return Window(d, clamp_start(context, start, base.size[d]), to_expression(step), False)
