"""Python functions: from outside the frame, made in it, and bound methods."""

from __future__ import annotations

import types
from typing import Any

from weft_guards import (
    AttributeSource,
    CellContentsSource,
    ConstantSource,
    DictContains,
    IsObject,
    ItemSource,
    LengthIs,
    SameObject,
    Source,
    TypeIs,
)

from ....code_objects.dialects import DIALECT
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...policy import is_library_module
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import register_wrapper
from ...variables.constant import ConstantVariable
from ...variables.hashing import identity_key
from ...variables.keys import HashedKey
from ...variables.python_protocols import find_raw, no_attribute, nothing_to_delete
from ..builtins.methods import BuiltinMethodVariable
from ..containers.mappings import AttributeDictVariable, DictVariable, keyword_arguments
from ..containers.sequences import TupleVariable
from ..objects.finalizers import require_no_finalizer
from ..table import is_polyfill
from .bound_methods import BoundMethodVariable
from .cells import CellVariable, known_cell


class FunctionVariable(Variable):
    """A Python function whose calls are evaluated with the caller."""

    kind = types.FunctionType

    def code(self, evaluator: Evaluator) -> types.CodeType:
        raise NotImplementedError

    def globals_dictionary(self, evaluator: Evaluator) -> dict[str, Any]:
        raise NotImplementedError

    def qualified_name(self) -> str:
        raise NotImplementedError

    def default_count(self, evaluator: Evaluator) -> int:
        raise NotImplementedError

    def default(self, evaluator: Evaluator, index: int) -> Variable:
        """Default number ``index`` of the positional parameters that have one."""
        raise NotImplementedError

    def keyword_default(self, evaluator: Evaluator, name: str) -> Variable | None:
        raise NotImplementedError

    def closure_cells(self, evaluator: Evaluator) -> list[CellVariable]:
        raise NotImplementedError

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        return evaluator.inline_call(self, arguments, keywords)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name == "__call__":
            return self.call(evaluator, arguments, keywords)
        if name == "__get__" and len(arguments) in (1, 2) and not keywords:
            receiver = arguments[0]
            return self if receiver.is_none() else BoundMethodVariable(self, receiver)
        return super().call_method(evaluator, name, arguments, keywords)

    def __repr__(self) -> str:
        return f"Function({self.qualified_name()})"


class KnownFunctionVariable(FunctionVariable):
    """A function that existed before the frame, known by identity."""

    def __init__(self, value: types.FunctionType, source: Source) -> None:
        self.value = value
        self.source = source
        self.written: dict[str, Variable] = {}  # attributes
        self._trusted = isinstance(source, ConstantSource) and is_library_module(value.__module__)

    def _own(self, name: str) -> Source:
        assert self.source is not None
        return AttributeSource(self.source, name)

    def identify(self, evaluator: Evaluator) -> None:
        """Guard that it is this very function: what follows depends on more than its parts."""

    def code(self, evaluator: Evaluator) -> types.CodeType:
        if not self._trusted:
            evaluator.guard(self._own("__code__"), IsObject(self.value.__code__))
        return self.value.__code__

    def globals_dictionary(self, evaluator: Evaluator) -> dict[str, Any]:
        return self.value.__globals__

    def qualified_name(self) -> str:
        return self.value.__qualname__

    def default_count(self, evaluator: Evaluator) -> int:
        return len(self.value.__defaults__ or ())

    def default(self, evaluator: Evaluator, index: int) -> Variable:
        assert self.value.__defaults__ is not None
        defaults = self.value.__defaults__
        if is_polyfill(self.value):
            return evaluator.wrap_known(defaults[index])
        source = self._own("__defaults__")
        if not self._trusted:
            evaluator.guard(source, IsObject(defaults))
        return evaluator.builder.wrap(defaults[index], ItemSource(source, index))

    def keyword_default(self, evaluator: Evaluator, name: str) -> Variable | None:
        defaults = self.value.__kwdefaults__ or {}
        if name not in defaults:
            return None
        return evaluator.builder.wrap(defaults[name], ItemSource(self._own("__kwdefaults__"), name))

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        return identity_key(self, self.value)

    def guard_signature(self, evaluator: Evaluator) -> None:
        """Guard everything that ``inspect.signature`` reads."""
        if self._trusted:
            return
        evaluator.guard(self._own("__code__"), IsObject(self.value.__code__))
        for name in ("__defaults__", "__kwdefaults__"):
            evaluator.guard(self._own(name), IsObject(getattr(self.value, name)))

    def closure_cells(self, evaluator: Evaluator) -> list[CellVariable]:
        cells = []
        for index, cell in enumerate(self.value.__closure__ or ()):
            source = ItemSource(self._own("__closure__"), index)
            cells.append(known_cell(evaluator, cell, source, CellContentsSource(source)))
        return cells

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        own = evaluator.builder.known(self.value.__dict__)
        if own is not None or find_raw(types.FunctionType, name) is not None:
            raise Unsupported("attribute write", f"{self!r}.{name}")
        require_no_finalizer(self.value.__dict__.get(name), self)
        self.written[name] = value
        evaluator.side_effects.mutated(self)

    def emit_mutation(self, emitter: Emitter) -> None:
        for name, value in self.written.items():
            emitter.load_variable(value)
            emitter.load_variable(self)
            emitter.store_attribute(name)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        value = self.value
        if name in self.written:
            return self.written[name]
        if name == "__dict__" and self.written:
            raise Unsupported("attribute of a function", f"{self!r}.{name}, which changed")
        if name == "__class__":
            return evaluator.wrap_known(types.FunctionType)
        if name not in value.__dict__ and find_raw(types.FunctionType, name) is None:
            if not self._trusted:
                from weft_guards import HasAttribute

                assert self.source is not None
                evaluator.guard(self.source, HasAttribute(name, False))
            no_attribute(evaluator, "function", name)
        if name in _OWN_METHODS:
            return BuiltinMethodVariable(self, name)
        if name == "__closure__":
            raise Unsupported("attribute of a function", f"{self!r}.{name}")
        own = evaluator.builder.known(value.__dict__)
        if isinstance(own, DictVariable) and (own.written or own.deleted):
            raise Unsupported("attribute of a function", f"{self!r}.{name}, its __dict__ changed")
        return evaluator.builder.wrap(self._read(name), self._own(name))

    def _read(self, name: str) -> Any:
        try:
            return getattr(self.value, name)
        except Exception as error:  # of code of the program, which annotations are since 3.14
            text = f"{self!r}.{name}, which raises {type(error).__name__}"
            raise Unsupported("attribute of a function", text) from error


DEFAULTS, KEYWORD_DEFAULTS, ANNOTATIONS, CLOSURE, ANNOTATE = 1, 2, 4, 8, 16
"""What the compiler gives a new function, by flag."""


class NewFunctionVariable(FunctionVariable):
    """A function made by ``def`` or ``lambda`` in captured code."""

    def __init__(self, code: types.CodeType, dictionary: dict[str, Any]) -> None:
        self._code = code
        self._dictionary = dictionary
        self._closure: list[CellVariable] = []
        self._closure_tuple: Variable | None = None
        self._defaults: list[Variable] = []
        self._keyword_defaults: dict[str, Variable] = {}
        self._annotations: Variable | None = None  # names and values, alternating
        self._annotate: Variable | None = None  # a function that gives them (3.14)
        self.attributes: dict[str, Variable | None] = {}  # written; None: deleted

    def give(self, evaluator: Evaluator, flag: int, value: Variable) -> None:
        """What ``MAKE_FUNCTION`` does for one of its flags, ``SET_FUNCTION_ATTRIBUTE`` since 3.13."""
        if flag == CLOSURE:
            self._closure_tuple = value
            for cell in value.iterate(evaluator):
                assert isinstance(cell, CellVariable)
                self._closure.append(cell)
        elif flag == ANNOTATIONS:
            self._annotations = value
        elif flag == ANNOTATE:
            self._annotate = value
        elif flag == KEYWORD_DEFAULTS:
            assert isinstance(value, DictVariable)
            self._keyword_defaults = keyword_arguments(evaluator, value)
        else:
            assert flag == DEFAULTS
            self._defaults = value.iterate(evaluator)

    def held(self) -> list[Variable | None]:
        """What it holds: cells, defaults and attributes."""
        defaults = (*self._defaults, *self._keyword_defaults.values())
        return [*self._closure, *defaults, *self.attributes.values()]

    def code(self, evaluator: Evaluator) -> types.CodeType:
        return self._code

    def globals_dictionary(self, evaluator: Evaluator) -> dict[str, Any]:
        return self._dictionary

    def qualified_name(self) -> str:
        return self._code.co_qualname

    def default_count(self, evaluator: Evaluator) -> int:
        return len(self._defaults)

    def default(self, evaluator: Evaluator, index: int) -> Variable:
        return self._defaults[index]

    def keyword_default(self, evaluator: Evaluator, name: str) -> Variable | None:
        return self._keyword_defaults.get(name)

    def closure_cells(self, evaluator: Evaluator) -> list[CellVariable]:
        return self._closure

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        written = self.attributes.get(name)
        if written is not None:
            return written
        if name == "__name__":
            return ConstantVariable(self._code.co_name)
        if name == "__defaults__":
            return TupleVariable(self._defaults) if self._defaults else ConstantVariable(None)
        if name == "__code__":
            return ConstantVariable(self._code)
        if name == "__closure__":
            return self._closure_tuple or ConstantVariable(None)
        if name == "__doc__":
            return ConstantVariable(DIALECT.docstring(self._code))
        if name == "__module__":
            return ConstantVariable(self._dictionary.get("__name__"))
        if name == "__qualname__":
            return ConstantVariable(self._code.co_qualname)
        if name == "__annotations__":
            return self._annotation_dictionary(evaluator)
        if name == "__annotate__" and find_raw(types.FunctionType, name) is not None:
            return self._annotate or ConstantVariable(None)
        if name == "__dict__":
            return FunctionDictVariable(self)
        if name in _OWN_METHODS:
            return BuiltinMethodVariable(self, name)
        if find_raw(types.FunctionType, name) is None:
            no_attribute(evaluator, "function", name)
        if name == "__type_params__":  # 3.12; those of def f[T]() are written
            return TupleVariable()
        return super().get_attribute(evaluator, name)

    def _annotation_dictionary(self, evaluator: Evaluator) -> Variable:
        if self._annotate is not None:
            values = ConstantVariable(VALUES)
            made = evaluator.call_function(self._annotate, [values])
            self.attributes["__annotations__"] = made
            return made
        made = DictVariable()
        flat = self._annotations.iterate(evaluator) if self._annotations is not None else []
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            made.store(evaluator, name, value)
        self.attributes["__annotations__"] = made
        return made

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        is_own = find_raw(types.FunctionType, name) is not None
        if name == "__annotate__" and is_own:  # functools.wraps since 3.14
            self._annotate = None if value.is_none() else value
            self._annotations = None
            self.attributes.pop("__annotations__", None)
            return
        if name == "__code__":
            self._replace_code(value)
            return
        if name not in _WRITABLE and is_own:
            raise Unsupported("attribute write", f"{self!r}.{name}")
        self.attributes[name] = value

    def _replace_code(self, value: Variable) -> None:
        """As decorators of contexts do since torch 2.15; names and docstring stay those of the former."""
        code = value.as_constant() if value.is_constant() else None
        if not isinstance(code, types.CodeType) or len(code.co_freevars) != len(self._closure):
            raise Unsupported("attribute write", f"{self!r}.__code__")
        former = {
            "__name__": self._code.co_name,
            "__qualname__": self._code.co_qualname,
            "__doc__": DIALECT.docstring(self._code),
        }
        for name, text in former.items():
            self.attributes.setdefault(name, ConstantVariable(text))
        self._code = code

    def delete_attribute(self, evaluator: Evaluator, name: str) -> None:
        if find_raw(types.FunctionType, name) is not None:
            raise Unsupported("attribute deletion", f"{self!r}.{name}")
        if self.attributes.get(name) is None:
            nothing_to_delete(evaluator, types.FunctionType, name)
        self.attributes[name] = None

    def reconstruct(self, emitter: Emitter) -> None:
        written = {name: value for name, value in self.attributes.items() if value is not None}
        if written:
            emitter.load_callable(_with_attributes)
        emitter.load_callable(_make_function)
        emitter.load_object(self._code)
        emitter.load_object(self._dictionary)
        emitter.load_elements("tuple", self._defaults)
        emitter.load_map(self._keyword_defaults)
        emitter.load_elements("tuple", self._closure)
        emitter.load_variable(self._annotations or TupleVariable())
        emitter.load_variable(self._annotate or ConstantVariable(None))
        emitter.call(7)
        if written:
            emitter.load_map(written)
            emitter.call(2)


class FunctionDictVariable(AttributeDictVariable):
    """``function.__dict__`` of a function made in captured code, whose attributes are the only storage."""

    def __init__(self, function: NewFunctionVariable) -> None:
        super().__init__()
        self.function = function

    def all_entries(self, evaluator: Evaluator) -> dict[HashedKey, Variable]:
        return {
            HashedKey(ConstantVariable(name), (name,)): value
            for name, value in self.function.attributes.items()
            if value is not None and name not in _WRITABLE
        }

    def store(self, evaluator: Evaluator, key: Variable, value: Variable) -> None:
        name = key.as_constant()
        if find_raw(types.FunctionType, name) is not None:
            raise Unsupported("attribute of a function", f"{self.function!r}.__dict__[{name!r}]")
        self.function.attributes[name] = value

    def mutate(self, evaluator: Evaluator) -> dict[HashedKey, Variable]:
        raise Unsupported("attribute of a function", f"change of {self.function!r}.__dict__")

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_variable(self.function)
        emitter.load_attribute("__dict__")


_OWN_METHODS = ("__call__", "__get__")
_WRITABLE = (
    "__name__", "__qualname__", "__doc__", "__module__", "__annotations__", "__type_params__",
)  # fmt: skip


VALUES = 1  # what a function that gives annotations is asked for, as annotationlib numbers it


def _with_attributes(
    function: types.FunctionType, attributes: dict[str, Any]
) -> types.FunctionType:
    for name, value in attributes.items():
        setattr(function, name, value)
    return function


def _make_function(
    code: types.CodeType,
    dictionary: dict[str, Any],
    defaults: tuple[Any, ...],
    keyword_defaults: dict[str, Any],
    closure: tuple[types.CellType, ...],
    annotations: tuple[Any, ...],
    annotate: types.FunctionType | None,
) -> types.FunctionType:
    function = types.FunctionType(code, dictionary, None, defaults or None, closure or None)
    function.__qualname__ = code.co_qualname
    function.__kwdefaults__ = keyword_defaults or None
    if annotate is not None:
        function.__annotate__ = annotate  # type: ignore[attr-defined]
    else:
        function.__annotations__ = dict(zip(annotations[::2], annotations[1::2], strict=True))
    return function


# Functions from outside the frame: known by identity, or by what they are made of where they vary.
#
# A program that passes a new ``lambda`` in every call passes other functions of the same code.  Where an
# earlier compilation found another function at the same place, the guards check what the function is made of:
# code, globals, defaults, and the contents of the cells that are read.


class VaryingFunctionVariable(KnownFunctionVariable):
    """A function that stands for all of the same code."""

    source: Source

    def identify(self, evaluator: Evaluator) -> None:
        evaluator.guard(self.source, IsObject(self.value, weak=True))

    def globals_dictionary(self, evaluator: Evaluator) -> dict[str, Any]:
        evaluator.guard(self._own("__globals__"), IsObject(self.value.__globals__))
        return self.value.__globals__

    def default_count(self, evaluator: Evaluator) -> int:
        self._guard_defaults(evaluator)
        return super().default_count(evaluator)

    def default(self, evaluator: Evaluator, index: int) -> Variable:
        assert self.value.__defaults__ is not None
        self._guard_defaults(evaluator)
        place = ItemSource(self._own("__defaults__"), index)
        return evaluator.builder.wrap(self.value.__defaults__[index], place)

    def _guard_defaults(self, evaluator: Evaluator) -> None:
        defaults, place = self.value.__defaults__, self._own("__defaults__")
        if defaults is None:
            evaluator.guard(place, IsObject(None))
        else:
            evaluator.guard(place, TypeIs(tuple))
            evaluator.guard(place, LengthIs(len(defaults)))

    def keyword_default(self, evaluator: Evaluator, name: str) -> Variable | None:
        defaults, place = self.value.__kwdefaults__, self._own("__kwdefaults__")
        if defaults is None:
            evaluator.guard(place, IsObject(None))
        elif name not in defaults:
            evaluator.guard(place, DictContains(name, False))
        return super().keyword_default(evaluator, name)

    def closure_cells(self, evaluator: Evaluator) -> list[CellVariable]:
        # Cells are told apart by the names of their variables: one that the frame's own code has as well
        # may be the frame's cell in one call and another in the next.
        if set(self.value.__code__.co_freevars) & set(evaluator.state.frame.code.co_freevars):
            self.identify(evaluator)
        for index, cell in enumerate(self.value.__closure__ or ()):
            known = evaluator.builder.known(cell)
            source = ItemSource(self._own("__closure__"), index)
            if known is not None and known.source not in (None, source):
                evaluator.guard(source, SameObject(known.source))
        return super().closure_cells(evaluator)

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        self.identify(evaluator)
        return super().hashed_key(evaluator)


@register_wrapper(types.FunctionType)
def _wrap_function(evaluator: Evaluator, value: types.FunctionType, source: Source) -> Variable:
    if evaluator.state.frame.history.object_changed(source, value):
        evaluator.guard(source, TypeIs(types.FunctionType))
        return VaryingFunctionVariable(value, source)
    evaluator.guard(source, IsObject(value, weak=True))
    return KnownFunctionVariable(value, source)
