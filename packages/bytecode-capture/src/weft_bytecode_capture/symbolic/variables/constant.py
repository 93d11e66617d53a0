"""Immutable constants: numbers, strings, None, enum members, dtypes and the like."""

from __future__ import annotations

import enum
import operator as operator_module
import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from weft_guards import ArgumentSource, AttributeSource, EqualsConstant, Source, TypeIs

from ...frame.emitter import Emitter
from ...unsupported import Unsupported
from ..models.table import model_of
from ..protocol import Evaluator
from .base import Arguments, Keywords, Variable
from .builder import (
    guard_constant,
    is_constant_value,
    is_scalar,
    register_constant_predicate,
    register_constant_types,
    register_wrapper_of_constants,
)
from .python_protocols import find_raw, pure_call

register_constant_types(
    *(type(info) for info in (sys.version_info, sys.float_info, sys.int_info, sys.hash_info))
)
register_constant_types(
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(Ellipsis),
    type(NotImplemented),
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    types.CodeType,
)
register_constant_predicate(lambda value: issubclass(type(value), enum.Enum))

_MARSHALLABLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


_F = TypeVar("_F", bound=Callable[..., Any])

_SPECIAL: dict[tuple[type, str], Callable[..., Any]] = {}


def register_special(kind: type, *names: str) -> Callable[[_F], _F]:
    """Register how constants of a kind read attributes, or what operators do with them.

    ``__getattribute__``, ``subscript`` and ``binary operation`` are the names; the function is called
    with the evaluator, the constant, and what the variable's method is given.
    """

    def register(special: _F) -> _F:
        _SPECIAL.update({(kind, name): special for name in names})
        return special

    return register


def _special(value: Any, name: str) -> Callable[..., Variable] | None:
    """What is registered for a constant of this kind, None for most."""
    # a member of an enumeration of strings is a string too, and follows enum's rules
    kinds = (enum.Enum,) if isinstance(value, enum.Enum) else type(value).__mro__
    found = (_SPECIAL.get((kind, name)) for kind in kinds)
    return next((special for special in found if special is not None), None)


class ConstantVariable(Variable):
    """An immutable value known exactly.  Operations on constants alone are done at once."""

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value = value
        self.source = source

    def python_type(self) -> type:
        return type(self.value)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        return self.value

    def truth(self, evaluator: Evaluator) -> bool:
        return bool(evaluator.pure(bool, self.value))

    def length(self, evaluator: Evaluator) -> int:
        return int(evaluator.pure(len, self.value))

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        if isinstance(self.value, range) and len(self.value) > 1_000_000:
            raise Unsupported("iteration", f"a range of {len(self.value)} elements")
        elements = evaluator.pure(list, self.value)
        return [evaluator.wrap_constant(element) for element in elements]

    def iterator(self, evaluator: Evaluator) -> Variable:
        from ..models.iterators.builtin_iterators import RangeIteratorVariable

        if isinstance(self.value, range):
            return RangeIteratorVariable(self.value)
        return super().iterator(evaluator)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        value = self.value
        special = _special(value, "__getattribute__")
        if special is not None:
            return special(evaluator, self, name)
        attribute = evaluator.pure(getattr, value, name)
        if is_constant_value(attribute):
            return evaluator.wrap_constant(attribute)
        if isinstance(attribute, type):
            return evaluator.wrap_known(attribute)
        if callable(attribute):
            from ..models.builtins.methods import BuiltinMethodVariable

            return BuiltinMethodVariable(self, name)
        if type(attribute) is tuple:
            return evaluator.wrap_result(attribute)
        raise Unsupported("attribute read", f"{value!r}.{name}")

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if isinstance(self.value, enum.Enum):
            raise Unsupported("attribute write", f"{self!r}.{name}")
        evaluator.pure(setattr, self.value, name, None)
        raise Unsupported("attribute write", f"{self.value!r}.{name}")

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        calls = find_raw(type(self.value), "__call__") is not None
        if isinstance(self.value, enum.Enum) and calls:
            return self.get_attribute(evaluator, "__call__").call(evaluator, arguments, keywords)
        if (
            type(self.value) is types.GenericAlias
            and self.value.__origin__.__module__ == "builtins"
        ):
            origin = evaluator.wrap_known(self.value.__origin__)  # list[int]()
            return origin.call(evaluator, arguments, keywords)
        model = model_of(find_raw(type(self.value), "__call__"))
        if model is not None and self.value._inst and isinstance(self.value.__origin__, type):
            return model.call(evaluator, [self, *arguments], keywords)
        if callable(self.value):
            raise Unsupported("call", repr(self.value))
        return evaluator.raise_error(
            TypeError, f"{type(self.value).__name__!r} object is not callable"
        )

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if isinstance(self.value, enum.Enum):
            return self._call_of_member(evaluator, name, arguments, keywords)
        special = _special(self.value, "subscript") if name == "__getitem__" else None
        if special is not None:
            return special(evaluator, self, *arguments)
        if name == "__getitem__" and len(arguments) == 1 and not arguments[0].is_constant():
            custom = arguments[0].binary_operation(evaluator, "getitem", self, True)
            if custom is not None:
                return custom
        model = model_of(find_raw(type(self.value), name))
        holds = isinstance(self.value, tuple)  # sys.version_info: no variable of a tuple
        if model is not None and model.of_builtin and not holds:
            return model.call(evaluator, arguments, keywords, self)
        if name == "join" and len(arguments) == 1 and not arguments[0].is_constant():
            arguments = [evaluator.collected(arguments[0])]
        positional, named = evaluator.snapshots(
            arguments, keywords, f"{type(self.value).__name__}.{name}"
        )
        if name == "__getitem__":
            return evaluator.wrap_result(
                evaluator.pure(operator_module.getitem, self.value, *positional)
            )
        if name == "__contains__":
            return evaluator.wrap_constant(
                evaluator.pure(operator_module.contains, self.value, *positional)
            )
        method = evaluator.pure(getattr, self.value, name)
        return evaluator.wrap_result(evaluator.pure(method, *positional, **named))

    def _call_of_member(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        """Call a method of an enumeration's member: the program's own, or one of enum's, which is pure."""
        from ..models.builtins.methods import BuiltinMethodVariable

        method = self.get_attribute(evaluator, name)
        if not isinstance(method, BuiltinMethodVariable):
            return method.call(evaluator, arguments, keywords)
        return pure_call(evaluator, getattr(self.value, name), arguments, keywords)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        special = _special(self.value, "binary operation")
        if special is not None and (isinstance(self.value, enum.Enum) or not other.is_constant()):
            return special(evaluator, self, operator, other, reflected)
        if not other.is_constant() or (other.is_made_of_numbers() and operator in _JOINING):
            return None
        function = OPERATORS[operator]
        left, right = self.value, other.as_constant()
        if reflected:
            left, right = right, left
        return evaluator.wrap_result(evaluator.pure(function, left, right))

    def reconstruct(self, emitter: Emitter) -> None:
        if type(self.value) in _MARSHALLABLE:
            emitter.load_constant(self.value)
        else:
            emitter.load_object(self.value)

    def __repr__(self) -> str:
        if isinstance(self.value, enum.Enum):  # one being made has no name yet
            return f"Constant({type(self.value).__qualname__}.{vars(self.value).get('_name_')})"
        return f"Constant({self.value!r})"


@register_wrapper_of_constants
def _wrap_constant(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    """A constant found at a source, guarded; an int or float that varies between calls is symbolic."""
    if type(value) in (int, float):
        number = evaluator.state.shapes.number(value, source, isinstance(source, ArgumentSource))
        if type(number) not in (int, float):
            return evaluator.graph.add_number(number, source)
    special = _special(value, "number from outside") if is_scalar(value) else None
    varying = special(evaluator, value, source) if special is not None else None
    if varying is not None:
        return varying
    if isinstance(value, range):
        evaluator.guard(source, TypeIs(range))
        for part in ("start", "stop", "step"):
            evaluator.guard(AttributeSource(source, part), EqualsConstant(getattr(value, part)))
    else:
        guard_constant(evaluator, value, source)
    return ConstantVariable(value, source)


_JOINING = ("add", "iadd")

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator_module, special)
    for name, special in {
        "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv",
        "mod": "mod", "pow": "pow", "matmul": "matmul", "and": "and_", "or": "or_", "xor": "xor",
        "lshift": "lshift", "rshift": "rshift", "lt": "lt", "le": "le", "eq": "eq", "ne": "ne",
        "gt": "gt", "ge": "ge", "iadd": "iadd", "isub": "isub", "imul": "imul", "itruediv": "itruediv",
        "ifloordiv": "ifloordiv", "imod": "imod", "ipow": "ipow", "imatmul": "imatmul", "iand": "iand",
        "ior": "ior", "ixor": "ixor", "ilshift": "ilshift", "irshift": "irshift",
    }.items()
}  # fmt: skip
"""Binary operators by the names that ``Variable.binary_operation`` uses."""

OPERATORS["getitem"] = operator_module.getitem
