"""The operations that loop bodies are made of, and the rules about their dtypes.

Every operation is a method of :class:`OpsHandler`, and has its rules in the table
:data:`~weft_loop_ir.bodies.OPERATIONS`.  All operands of an elementwise operation have the same
dtype, which is the result's, except that comparisons and ``logical_*``, ``isnan``, ``isinf``, ``signbit``
give bool and the condition of ``where`` is bool: lowering inserts ``to_dtype`` wherever eager promotes.
float16, bfloat16 and both kinds of float8 appear only as the operand or result of ``load``, ``store`` and
``to_dtype`` (and ``to_dtype_bitcast``): arithmetic on them is done in float32, as eager's kernels do.
Complex never appears.  Integer arithmetic wraps.  Floating-point semantics are eager's: NaN propagates
through ``maximum`` and ``minimum`` and through the reductions ``max`` and ``min``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import sympy
import torch

from weft_loop_ir.bodies.instructions import CombineFunction
from weft_loop_ir.bodies.operations import (
    ATOMIC_MODES,
    FLOAT8,
    HALVES,
    OPERATIONS,
    REDUCTIONS,
    STORAGE_ONLY,
)
from weft_loop_ir.size_float import SizeFloat

V = TypeVar("V")

__all__ = [
    "ATOMIC_MODES",
    "ELEMENTWISE",
    "FLOAT8",
    "HALVES",
    "REDUCTIONS",
    "STORAGE_ONLY",
    "TOO_LARGE_IN_FLOAT8",
    "OpsHandler",
    "define_elementwise",
]

ELEMENTWISE = tuple(name for name, operation in OPERATIONS.items() if operation.is_elementwise)
"""``round`` is half-to-even; ``sign`` is ``torch.sign``.  ``truediv`` is on floats only; ``floordiv``,
``remainder`` round toward minus infinity as Python's, ``truncdiv``, ``fmod`` toward zero as C's.  Integer
division by zero follows eager's error where it has one: lowering leaves such operators extern."""

TOO_LARGE_IN_FLOAT8 = {
    dtype: int(torch.tensor([1e30]).to(dtype).view(torch.uint8)) for dtype in FLOAT8
}
"""The bits of a number that is too large: infinity, or the largest for ``e4m3fn`` (NaN in torch 2.11)."""


def define_elementwise(
    handler: type, operations: Iterable[str], make: Callable[[str, bool], Callable[..., Any]]
) -> None:
    """Give ``handler`` a method for each of ``operations`` that it has not defined itself.

    ``make(operation, to_bool)`` is the method; ``to_bool`` says that the result is a bool.
    """
    for operation in operations:
        if operation not in vars(handler):
            method = make(operation, OPERATIONS[operation].gives_bool)
            method.__name__ = operation
            setattr(handler, operation, method)


class OpsHandler(Protocol[V]):
    """The methods besides :data:`ELEMENTWISE`, which take and return ``V``."""

    def load(self, buffer: str, index: sympy.Expr) -> V: ...

    def store(self, buffer: str, index: sympy.Expr, value: V, mode: str | None = None) -> None:
        """Write one element.

        ``mode`` in :data:`ATOMIC_MODES` combines it with what is there, safe across outer iterations.
        """

    def reduction(self, kind: str, dtype: torch.dtype, value: V) -> V:
        """Reduce ``value`` over the stage's inner loops, accumulating in ``dtype``."""
        ...

    def scan(self, combine_function: CombineFunction, number: int, *values: V) -> V:
        """Value ``number`` of the ``values`` combined of the stage's inner loop up to this iteration."""
        ...

    def fold(self, combine_function: CombineFunction, number: int, *values: V) -> V:
        """Value ``number`` of the ``values`` of all the stage's inner loop combined: a reduction's result."""
        ...

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> V: ...

    def index_expr(self, expression: sympy.Expr, dtype: torch.dtype) -> V: ...

    def scalar(self, number: SizeFloat, dtype: torch.dtype) -> V:
        """A number that is the same for the whole call, computed as a double and converted."""
        ...

    def to_dtype(self, value: V, dtype: torch.dtype) -> V:
        """Convert as ``Tensor.to`` does."""
        ...

    def to_dtype_bitcast(self, value: V, dtype: torch.dtype) -> V: ...

    def where(self, condition: V, value: V, other: V) -> V: ...

    def indirect(self, value: V, symbol: sympy.Symbol, size: sympy.Expr, check: bool) -> None:
        """Bind ``symbol``, used in later index expressions, to an integer value.

        A negative value counts from the end (``size`` is added).  With ``check`` a value out of range is
        an IndexError at run time.
        """

    def masked(self, mask: V, body: Callable[[], V], other: bool | int | float) -> V:
        """``body()`` where ``mask``, else ``other``; loads in the body happen only where the mask holds."""
        ...

    def rand(self, seed: V, offset: V) -> V:
        """Uniform float32 in [0, 1) from a counter-based generator (Philox), by seed and offset."""
        ...

    def randn(self, seed: V, offset: V) -> V: ...
