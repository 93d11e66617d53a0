"""Integer index expressions: what they are made of, conversion from torch's, and their values.

Index and size expressions contain only: ``Integer``, ``Symbol``, ``Add``, ``Mul``, ``Pow`` with a positive
integer exponent, ``Min``, ``Max``, and :class:`FloorDiv` and :class:`Mod` of this module.  All of them are
integers; a printer needs nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch

from weft_loop_ir._torch import is_known_one
from weft_loop_ir.unsupported import Unsupported


class FloorDiv(sympy.Function):  # type: ignore[misc]
    """``FloorDiv(a, b)`` is ``a // b`` rounded toward minus infinity, ``b`` positive."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
        if divisor == 1:
            return dividend
        if dividend == 0:
            return sympy.S.Zero
        if dividend.is_Integer and divisor.is_Integer:
            return sympy.Integer(int(dividend) // int(divisor))
        if dividend == divisor:
            return sympy.S.One
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        if self.args[0].is_nonnegative and self.args[1].is_positive:
            return True
        return None

    def _sympystr(self, printer: Any) -> str:
        dividend, divisor = (printer.parenthesize(a, 55) for a in self.args)
        return f"({dividend} // {divisor})"


class Mod(sympy.Function):  # type: ignore[misc]
    """``Mod(a, b)`` is ``a % b`` with the sign of ``b``, which is positive."""

    nargs = (2,)
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
        if divisor == 1 or dividend == 0 or dividend == divisor:
            return sympy.S.Zero
        if dividend.is_Integer and divisor.is_Integer:
            return sympy.Integer(int(dividend) % int(divisor))
        return None

    def _sympystr(self, printer: Any) -> str:
        dividend, divisor = (printer.parenthesize(a, 55) for a in self.args)
        return f"({dividend} % {divisor})"


@functools.lru_cache(maxsize=4096)
def integer(value: int) -> sympy.Integer:
    """``value`` as a SymPy integer."""
    return sympy.Integer(value)


@functools.lru_cache(maxsize=1024)
def loop_symbol(prefix: str, position: int) -> sympy.Symbol:
    """The loop symbol ``<prefix><position>``: an integer that is not negative."""
    return sympy.Symbol(f"{prefix}{position}", integer=True, nonnegative=True)


@functools.lru_cache(maxsize=65536)
def dot(
    index: tuple[sympy.Expr, ...], stride: tuple[sympy.Expr, ...], offset: sympy.Expr
) -> sympy.Expr:
    """``offset + sum(index * stride)``."""
    return sympy.Add(offset, *(i * s for i, s in zip(index, stride, strict=True)))


def product(factors: tuple[sympy.Expr, ...]) -> sympy.Expr:
    """The product of ``factors``, 1 when there is none."""
    result: sympy.Expr = sympy.S.One
    for factor in factors:
        result = result * factor
    return result


@functools.lru_cache(maxsize=8192)
def contiguous_stride(size: tuple[sympy.Expr, ...]) -> tuple[sympy.Expr, ...]:
    """Row-major strides for ``size``, as torch computes them (an extent of 0 counts as 1)."""
    strides: list[sympy.Expr] = []
    running: sympy.Expr = sympy.S.One
    for extent in reversed(size):
        strides.append(running)
        running = running * (sympy.S.One if extent == 0 else extent)
    return tuple(reversed(strides))


def unit_stride(expression: sympy.Expr, symbol: sympy.Symbol) -> bool:
    """Whether a step of ``symbol`` moves the index by one."""
    terms = [t for t in sympy.Add.make_args(expression) if symbol in t.free_symbols]
    return terms == [symbol]


def unit_strides(
    indices: Iterable[sympy.Expr], outer: sympy.Symbol, inner: sympy.Symbol
) -> tuple[int, int]:
    """How many of ``indices`` a step of ``outer`` moves by one, and how many a step of ``inner`` does."""
    along = [(unit_stride(index, outer), unit_stride(index, inner)) for index in indices]
    return sum(by_outer for by_outer, _ in along), sum(by_inner for _, by_inner in along)


def from_torch(expression: sympy.Expr) -> sympy.Expr:
    """Rewrite torch's symbolic integer functions to this module's.

    Raises :class:`~weft_loop_ir.Unsupported` for a function that index expressions can't contain.
    """
    if not expression.args:
        if expression.is_Integer or expression.is_Symbol:
            return expression
        raise _unsupported(expression)
    if type(expression).__name__ in ("TruncToInt", "FloorToInt"):
        return _integer_part(expression.args[0])
    arguments = [from_torch(a) for a in expression.args]
    name = type(expression).__name__
    if name in ("FloorDiv", "CleanDiv"):
        return _by_any_sign(FloorDiv, *arguments)[0]
    if name == "ModularIndexing":
        return Mod(FloorDiv(arguments[0], arguments[1]), arguments[2])
    if name in ("Mod", "PythonMod"):
        remainder, sign = _by_any_sign(Mod, *arguments)
        return sign * remainder
    if name == "Max":
        return sympy.Max(*arguments)
    if name == "Min":
        return sympy.Min(*arguments)
    if name in ("PowByNatural", "Pow") and arguments[1].is_Integer and arguments[1] >= 0:
        return sympy.Pow(*arguments)
    if name in ("Add", "Mul"):
        return expression.func(*arguments)
    raise _unsupported(expression)


def _by_any_sign(
    function: type[FloorDiv | Mod], dividend: sympy.Expr, divisor: sympy.Expr
) -> tuple[sympy.Expr, sympy.Expr]:
    """``function`` of a divisor made positive, the dividend's sign changed with it, and that sign.

    A number that is passed, such as the step of ``arange``, may have either.
    """
    if divisor.is_nonnegative:
        return function(dividend, divisor), sympy.S.One
    sign = sympy.Max(-1, sympy.Min(1, divisor))
    return function(sympy.expand(sign * dividend), sympy.Max(divisor, -divisor)), sign


def _integer_part(expression: sympy.Expr) -> sympy.Expr:
    """The integer part of an integer converted to float, times whole floats (a doubled size)."""
    whole: sympy.Expr = sympy.S.One
    for factor in sympy.Mul.make_args(expression):
        if type(factor).__name__ == "ToFloat":
            whole = whole * from_torch(factor.args[0])
        elif factor.is_Float and float(factor) == int(factor):
            whole = whole * integer(int(factor))
        else:
            raise _unsupported(expression)
    return whole


def _unsupported(expression: sympy.Expr) -> Unsupported:
    return Unsupported(
        "symbolic expression",
        str(expression),
        "Sizes are sums, products, quotients and remainders.",
    )


def to_expression(value: Any) -> sympy.Expr:
    """An int, ``torch.SymInt`` or index expression as an index expression; 1 where it is known to be that.

    The one way in for numbers of the traced graph: ``sympy.sympify`` of a ``torch.SymInt`` keeps torch's
    functions, which print like this module's and are none that a printer knows.
    """
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, sympy.Expr):
        return value
    return sympy.S.One if is_known_one(value) else from_torch(value.node.expr)


_FORMS = (sympy.Atom, sympy.Add, sympy.Mul, sympy.Pow, sympy.Min, sympy.Max, FloorDiv, Mod)


@functools.lru_cache(maxsize=8192)
def foreign_part(expression: sympy.Expr) -> sympy.Expr | None:
    """The first part that no index expression contains, such as a function of torch's; None in most."""
    parts = sympy.preorder_traversal(expression)
    return next((part for part in parts if not isinstance(part, _FORMS)), None)


def constant_float(value: torch.SymFloat) -> float | None:
    """The number that a symbolic float always is (a ratio in which the sizes cancel), None if it varies."""

    def rational(expression: sympy.Expr) -> sympy.Expr:
        arguments = [rational(a) for a in expression.args]
        name = type(expression).__name__
        if name == "ToFloat":
            return arguments[0]
        if name in ("FloatTrueDiv", "IntTrueDiv"):
            return arguments[0] / arguments[1]
        return expression.func(*arguments) if arguments else expression

    result = rational(value.node.expr)
    return float(result) if result.is_number else None


def to_int(value: sympy.Expr | int) -> Any:
    """A Python int when ``value`` is static, else ``value``: int arithmetic is fifty times faster."""
    if isinstance(value, sympy.Integer):
        return int(value)
    return value


# -- evaluation ----------------------------------------------------------------------------------------


def evaluate_expression(expression: sympy.Expr, sizes: Mapping[sympy.Symbol, int]) -> int:
    """An index expression over size symbols as an int."""
    if isinstance(expression, sympy.Integer):
        return int(expression)
    return int(evaluate_index(expression, sizes))


def evaluate_index(expression: sympy.Expr, values: Mapping[sympy.Symbol, Any]) -> Any:
    """An index expression, with ints or int64 tensors for its symbols."""
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if isinstance(expression, sympy.Symbol):
        return values[expression]
    arguments = [evaluate_index(a, values) for a in expression.args]
    if isinstance(expression, sympy.Add):
        return sum(arguments[1:], arguments[0])
    if isinstance(expression, sympy.Mul):
        result = arguments[0]
        for argument in arguments[1:]:
            result = result * argument
        return result
    if isinstance(expression, sympy.Pow):
        return arguments[0] ** arguments[1]
    if isinstance(expression, FloorDiv | Mod):
        return _divided(arguments[0], arguments[1], isinstance(expression, FloorDiv))
    if isinstance(expression, sympy.Min | sympy.Max):
        if all(isinstance(argument, int) for argument in arguments):  # which do not overflow
            return (min if isinstance(expression, sympy.Min) else max)(arguments)
        pick = torch.minimum if isinstance(expression, sympy.Min) else torch.maximum
        result = torch.as_tensor(arguments[0])
        for argument in arguments[1:]:
            result = pick(result, torch.as_tensor(argument))
        return result
    raise ValueError(f"not an index expression: {expression}")


def _divided(dividend: Any, divisor: Any, quotient: bool) -> Any:
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor if quotient else dividend % divisor
    if quotient:
        return torch.div(dividend, divisor, rounding_mode="floor")
    return torch.remainder(torch.as_tensor(dividend), divisor)
