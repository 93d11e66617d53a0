"""Numbers of a call: sizes and strides of tensors, integers and floats passed, and expressions of them."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sympy
import torch

from . import _torch
from .sources import Scope, Source


class Quantity(enum.Enum):
    """Which number is meant of the value at a source."""

    SIZE = "size"
    STRIDE = "stride"
    VALUE = "value"


@dataclass(frozen=True)
class SymbolSource:
    """Where the number of a symbol is read: ``source.size(dimension)``, ``.stride(dimension)`` or the number
    itself, an int or float (``dimension`` is 0 then)."""

    source: Source
    quantity: Quantity
    dimension: int = 0

    def name(self) -> str:
        """As a user would write it: ``L['x'].size(0)``."""
        if self.quantity is Quantity.VALUE:
            return self.source.name()
        return f"{self.source.name()}.{self.quantity.value}({self.dimension})"

    def sources(self) -> tuple[Source, ...]:
        return (self.source,)

    def read(self, scope: Scope) -> int | float:
        """The number now.

        :raises TypeError: there is no tensor, or no plain int or float.
        """
        value = self.source.evaluate(scope)
        if self.quantity is Quantity.VALUE:
            if type(value) not in (int, float):
                raise TypeError(f"not a number but {type(value).__qualname__}")
            number: int | float = value
            return number
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"not a tensor but {type(value).__qualname__}")
        with _torch.without_torch_function():
            extents = value.shape if self.quantity is Quantity.SIZE else value.stride()
            return int(extents[self.dimension])


class Readable(Protocol):
    """What gives a number of a call: a :class:`SymbolSource`, or a computation on what others give."""

    def name(self) -> str: ...

    def sources(self) -> tuple[Source, ...]: ...

    def read(self, scope: Scope) -> int | float: ...


_COMPARISONS: dict[type[sympy.Basic], str] = {
    sympy.Eq: "==",
    sympy.Ne: "!=",
    sympy.Lt: "<",
    sympy.Le: "<=",
    sympy.Gt: ">",
    sympy.Ge: ">=",
}
_CONNECTIVES: dict[type[sympy.Basic], str] = {sympy.And: " and ", sympy.Or: " or "}


def expression_text(expression: sympy.Basic, names: dict[sympy.Symbol, str]) -> str:
    """A SymPy expression or condition as Python would have it, ``names`` in the places of symbols."""
    kind = type(expression)
    if kind in _CONNECTIVES:
        parts = sorted(expression_text(part, names) for part in expression.args)
        return _CONNECTIVES[kind].join(parts)
    if kind in _COMPARISONS:
        left, right = (expression_text(part, names) for part in expression.args)
        return f"{left} {_COMPARISONS[kind]} {right}"
    plain = {symbol: sympy.Symbol(name) for symbol, name in names.items()}
    return str(expression.xreplace(plain))


def expression_function(
    expression: sympy.Basic, symbols: Sequence[sympy.Symbol]
) -> Callable[..., Any]:
    """A function of numbers, in the order of ``symbols``: the value of the expression or condition."""
    names = [f"n{position}" for position in range(len(symbols))]
    renamed = {
        symbol: sympy.Symbol(name, **symbol.assumptions0)
        for symbol, name in zip(symbols, names, strict=True)
    }
    source = f"lambda {', '.join(names)}: {_torch.python_source(expression.xreplace(renamed))}"
    code = compile(source, __file__, "eval")  # as a function of this module, which is not captured
    function: Callable[..., Any] = eval(code, {"math": math, "torch": torch})
    return function
