"""Tables of builtin types' methods on variables, and methods bound to a variable."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft_guards import AttributeSource, EqualsConstant, Source, TypeIs

from ...unsupported import Unsupported
from ..builder import register_predicate
from .base import Variable
from .constant import ConstantVariable
from .values import find_raw

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from ..evaluator import Evaluator

Implementation = Callable[..., Variable | None]


class MethodTable:
    """The methods of a builtin type; an implementation takes the evaluator, the object, the arguments.

    None as a result stands for Python's None.
    """

    def __init__(self, kind: type, *bases: MethodTable) -> None:
        self.kind = kind
        self._rows: dict[str, tuple[Implementation, tuple[int, ...], tuple[str, ...]]] = {}
        for base in bases:
            self._rows.update(base._rows)

    def method(
        self, name: str, *counts: int, keywords: tuple[str, ...] = ()
    ) -> Callable[[Any], Any]:
        """Register a method that takes any of ``counts`` positional arguments (any number if none given)."""

        def register(implementation: Implementation) -> Implementation:
            self._rows[name] = (implementation, counts, keywords)
            return implementation

        return register

    def take(self, other: MethodTable, *names: str) -> None:
        """Register methods as another type has them."""
        for name in names:
            self._rows[name] = other._rows[name]

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def call(
        self,
        evaluator: Evaluator,
        variable: Variable,
        name: str,
        arguments: list[Variable],
        keywords: dict[str, Variable],
    ) -> Variable:
        row = self._rows.get(name)
        if row is None:
            if find_raw(self.kind, name) is None:
                evaluator.raise_error(
                    AttributeError,
                    f"{self.kind.__name__!r} object has no attribute {name!r}",
                    name=name,
                )
            raise Unsupported("method of a builtin type", f"{self.kind.__name__}.{name}")
        implementation, counts, accepted = row
        wrong_keyword = accepted != ("*",) and any(key not in accepted for key in keywords)
        if (counts and len(arguments) not in counts) or wrong_keyword:
            raise Unsupported(
                "arguments of a builtin method",
                f"{self.kind.__name__}.{name} with {len(arguments)} and {sorted(keywords)}",
            )
        result = implementation(evaluator, variable, *arguments, **keywords)
        return ConstantVariable(None) if result is None else result


class BuiltinMethodVariable(Variable):
    """A method of a builtin type bound to a variable: ``x.append``."""

    def __init__(self, receiver: Variable, name: str, source: Source | None = None) -> None:
        self.receiver = receiver
        self.name = name
        self.source = source

    def python_type(self) -> type:
        raw = find_raw(self.receiver.python_type(), self.name)
        return type([].__len__) if type(raw) is types.WrapperDescriptorType else type([].append)

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def call(
        self, evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        return self.receiver.call_method(evaluator, self.name, arguments, keywords)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        """Methods are equal if they are one method of one object."""
        from ..operations import is_same_object

        if operator not in ("eq", "ne") or not isinstance(other, BuiltinMethodVariable):
            return None
        equal = self.name == other.name and is_same_object(evaluator, self.receiver, other.receiver)
        return ConstantVariable(equal is (operator == "eq"))

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "__self__":
            return self.receiver
        if name == "__name__":
            return evaluator.wrap_constant(self.name)
        return super().get_attribute(evaluator, name)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_variable(self.receiver)
        emitter.load_attribute(self.name)

    def __repr__(self) -> str:
        return f"BuiltinMethod({self.receiver!r}.{self.name})"


def method_of(evaluator: Evaluator, variable: Variable, name: str) -> Variable:
    """The attribute of an object of an exact builtin type, which has no attributes but its methods."""
    kind = variable.python_type()
    if name == "__class__":
        return evaluator.wrap_known(kind)
    if find_raw(kind, name) is None:
        evaluator.raise_error(
            AttributeError, f"{kind.__name__!r} object has no attribute {name!r}", name=name
        )
    if name == "__doc__":
        return evaluator.wrap_constant(kind.__doc__)
    return BuiltinMethodVariable(variable, name)


def _is_bound(value: Any) -> bool:
    """Whether a builtin function is the method of an instance: ``[].append``."""
    return (
        type(value) is types.BuiltinFunctionType
        and not issubclass(type(value.__self__), (types.ModuleType, type, types.NoneType))
        and hasattr(type(value.__self__), value.__name__)  # pybind11 keeps its records there
    )


@register_predicate(_is_bound, 90)
def _wrap_bound_method(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    """Known by its receiver and name: a new method object is made by every ``x.append``."""
    evaluator.guard(source, TypeIs(types.BuiltinFunctionType))
    evaluator.guard(AttributeSource(source, "__name__"), EqualsConstant(value.__name__))
    receiver = evaluator.builder.wrap(value.__self__, AttributeSource(source, "__self__"))
    return BuiltinMethodVariable(receiver, value.__name__, source)
