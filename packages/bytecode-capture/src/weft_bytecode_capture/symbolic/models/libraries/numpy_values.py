"""NumPy: scalars are constants, arrays from outside and of tensors are tensors that share their memory.

A function of NumPy runs during capture where all it is given is constant, arrays of constants included.  Of
other arrays it becomes the function of torch that gives the same, for those in the tables below:
floating-point arrays of one type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy
import torch
from weft_guards import AttributeSource, IsObject, Source, TypeIs

from ...._torch.symbols import size_hint
from ....frame.emitter import Emitter
from ....sources import ConvertedSource
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import (
    held_by_identity,
    is_scalar,
    register_constant_types,
    register_object,
    register_scalar_types,
    register_wrapper,
)
from ...variables.constant import OPERATORS, ConstantVariable, register_special
from ...variables.python_protocols import pure_call
from ..builtins.methods import BuiltinMethodVariable
from ..containers.deques import DequeVariable
from ..containers.sequences import ListVariable, TupleVariable
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..objects.classes import ClassVariable
from ..objects.opaque import RefusedVariable
from ..table import model, models
from ..torch.listed_tensors import tensor_of_list, tensor_of_number
from ..torch.tensor import TensorVariable
from ..torch.torch_function import TorchFunctionVariable
from .numpy_constants import SCALARS, KnownArrayVariable, known_result, numpy_arguments

_NUMPY = "NumPy array"

register_scalar_types(*SCALARS)
register_constant_types(*{type(numpy.dtype(kind)) for kind in SCALARS})


@register_special(numpy.dtype, "binary operation")
def _compared_dtype(
    evaluator: Evaluator, dtype: Variable, operator: str, other: Variable, reflected: bool
) -> Variable:
    """A dtype is compared with the dtype that the other operand names: a class, a list of fields."""
    if not isinstance(other, ClassVariable):
        raise Unsupported("operator of a builtin type", f"{dtype!r} {operator} {other!r}")
    operands = (dtype.as_constant(), other.value)
    function = OPERATORS[operator]
    return evaluator.wrap_result(
        evaluator.pure(function, *(reversed(operands) if reflected else operands))
    )


@register_special(numpy.generic, "binary operation")
def _with_sequence(
    evaluator: Evaluator, scalar: Variable, operator: str, other: Variable, reflected: bool
) -> Variable | None:
    """A scalar makes an array of a list or tuple, and compares or computes with each element."""
    if isinstance(other, KnownArrayVariable):
        return other.binary_operation(evaluator, operator, scalar, not reflected)
    if isinstance(other, (ListVariable, TupleVariable)):
        raise Unsupported(_NUMPY, f"of {other!r}, {operator} {scalar!r}")
    return None


# Of constants, computed during capture; None: no function of torch gives the same on arrays.
_ELEMENTWISE: dict[Any, Callable[..., Any] | None] = {
    numpy.sin: torch.sin, numpy.cos: torch.cos, numpy.tan: torch.tan, numpy.tanh: torch.tanh,
    numpy.arcsin: torch.asin, numpy.arccos: torch.acos, numpy.arctan: torch.atan,
    numpy.sinh: torch.sinh, numpy.cosh: torch.cosh, numpy.exp: torch.exp, numpy.exp2: torch.exp2,
    numpy.expm1: torch.expm1, numpy.log: torch.log, numpy.log2: torch.log2, numpy.log10: torch.log10,
    numpy.log1p: torch.log1p, numpy.sqrt: torch.sqrt, numpy.square: torch.square,
    numpy.abs: torch.abs, numpy.negative: torch.neg, numpy.floor: torch.floor,
    numpy.ceil: torch.ceil, numpy.trunc: torch.trunc, numpy.rint: torch.round,
    numpy.isnan: torch.isnan, numpy.isinf: torch.isinf, numpy.isfinite: torch.isfinite,
    numpy.add: torch.add, numpy.subtract: torch.sub, numpy.multiply: torch.mul,
    numpy.divide: torch.div, numpy.maximum: torch.maximum, numpy.minimum: torch.minimum,
    numpy.power: torch.pow, numpy.arctan2: torch.atan2, numpy.sign: None, numpy.mod: None,
    numpy.floor_divide: None, numpy.hypot: None, numpy.deg2rad: None, numpy.rad2deg: None,
    numpy.gcd: None, numpy.lcm: None,
}  # fmt: skip
# The name of a method of arrays that the function is, which takes an axis.
_REDUCTIONS = {
    numpy.sum: "sum", numpy.mean: "mean", numpy.max: "max", numpy.min: "min", numpy.prod: "prod",
}  # fmt: skip
_OF_CONSTANTS = (
    numpy.round, numpy.clip, numpy.cumsum, numpy.cumprod, numpy.argmax, numpy.argmin,
    numpy.array, numpy.asarray, numpy.zeros, numpy.ones, numpy.full, numpy.arange, numpy.linspace,
    numpy.eye, numpy.concatenate, numpy.stack, numpy.any, numpy.all, numpy.std, numpy.var,
    numpy.result_type, numpy.isscalar, numpy.issubdtype, numpy.ndim, numpy.size, numpy.shape,
    numpy.meshgrid, numpy.repeat, numpy.tile, numpy.outer, numpy.dot, numpy.matmul, numpy.interp,
    numpy.logspace, numpy.hanning, numpy.hamming, numpy.tri, numpy.triu, numpy.tril, numpy.diag,
    numpy.ascontiguousarray, numpy.where, numpy.expand_dims, numpy.squeeze, numpy.pad, numpy.roll,
    numpy.flip, numpy.sort, numpy.argsort, numpy.unique, numpy.transpose, numpy.reshape, numpy.ravel,
    numpy.hstack, numpy.vstack, numpy.split, numpy.diff, numpy.zeros_like, numpy.ones_like,
    numpy.full_like, numpy.array_equal, numpy.allclose, numpy.isclose, numpy.linalg.norm,
    numpy.broadcast_to, numpy.swapaxes, numpy.moveaxis, numpy.median, numpy.indices,
    numpy.bincount, numpy.searchsorted, numpy.digitize, numpy.histogram, numpy.geomspace, numpy.kron,
    numpy.einsum, numpy.cross, numpy.percentile, numpy.nan_to_num, numpy.copy, numpy.identity,
    numpy.logical_and, numpy.logical_or, numpy.logical_not, numpy.blackman,
)  # fmt: skip
_MAX_LITERAL = 10_000  # elements of an array that the graph makes from a list
_FLOATING = (torch.float32, torch.float64)


@models(*_ELEMENTWISE, *_REDUCTIONS, *_OF_CONSTANTS)
def _call(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """A function of NumPy without effects."""
    label = f"numpy.{function.__name__}"
    if function in _CONVERSIONS and len(arguments) == 1 and not keywords:
        converted = _array_of_tensor(evaluator, function, arguments[0])
        if converted is not None:
            return converted
    combine = _OF_ARRAYS.get(function)
    if combine is not None and _holds_array(evaluator, arguments):
        return combine(evaluator, list(arguments), keywords)
    if not any(isinstance(argument, ArrayVariable) for argument in arguments):
        operands = [*arguments, *keywords.values()]
        positional, named = numpy_arguments(evaluator, list(arguments), keywords, label)
        return known_result(evaluator, evaluator.pure(function, *positional, **named), operands)
    arguments = tuple(_as_tensor_array(evaluator, argument) for argument in arguments)
    of_tensors = _ELEMENTWISE.get(function)
    if of_tensors is not None and not keywords:
        return elementwise(evaluator, of_tensors, list(arguments))
    first = arguments[0]
    if function in _REDUCTIONS and isinstance(first, ArrayVariable):
        return first.call_method(evaluator, _REDUCTIONS[function], [*arguments[1:]], keywords)
    raise Unsupported(_NUMPY, f"{label}({', '.join(map(repr, arguments))})")


_CONVERSIONS = (numpy.array, numpy.asarray, numpy.ascontiguousarray)


def _array_of_tensor(evaluator: Evaluator, function: Any, value: Variable) -> Variable | None:
    """``numpy.asarray(tensor)`` and ``numpy.array(tensor)``: the tensor's array, and a copy of it."""
    if isinstance(value, TensorVariable):
        value = value.call_method(evaluator, "numpy", [], {})
    if not isinstance(value, ArrayVariable) or value.is_scalar():
        return None
    if function is numpy.asarray:
        return value
    if not value.tensor.fake.is_contiguous():
        raise Unsupported(_NUMPY, f"numpy.{function.__name__}({value!r})")
    return value if function is not numpy.array else value.call_method(evaluator, "copy", [], {})


def _as_tensor_array(evaluator: Evaluator, value: Variable) -> Variable:
    """An array of constants as one that the graph has."""
    if isinstance(value, KnownArrayVariable):
        return array_of(literal_tensor(evaluator, value.own()))
    return value


def _holds_array(evaluator: Evaluator, arguments: Iterable[Variable]) -> bool:
    """Whether an argument, or an element of a list or tuple, is an array that the graph computes."""
    for value in arguments:
        if isinstance(value, ArrayVariable):
            return True
        is_sequence = isinstance(value, (ListVariable, TupleVariable))
        if is_sequence and _holds_array(evaluator, value.iterate(evaluator)):
            return True
    return False


def _joined(
    function: Callable[..., Any], evaluator: Evaluator, arguments: Arguments, keywords: Keywords
) -> Variable:
    """``concatenate`` and ``stack``: of arrays of one floating-point type."""
    first, *rest = arguments
    axis = rest[0] if rest else keywords.get("axis", ConstantVariable(0))
    parts = [_as_tensor_array(evaluator, part) for part in first.iterate(evaluator)]
    tensors = [part.tensor for part in parts if isinstance(part, ArrayVariable)]
    kinds = {tensor.fake.dtype for tensor in tensors}
    is_plain = len(kinds) == 1 and kinds <= set(_FLOATING) and _is_python_number(axis)
    if not is_plain or len(tensors) < len(parts) or len(rest) > 1 or keywords.keys() > {"axis"}:
        raise Unsupported(_NUMPY, f"{function.__name__} of {first!r}")
    if not all(tensor.fake.dim() and tensor.fake.is_contiguous() for tensor in tensors):
        raise Unsupported(_NUMPY, f"{function.__name__} of scalars, or in another order")
    given: Arguments = [ListVariable(tensors), axis]
    return array_of(evaluator.graph.call_function(evaluator, function, given, {}))


def _clipped(evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
    """``clip`` between Python numbers, or from one of them on."""
    first, *limits = arguments
    plain = all(_is_python_number(limit) or limit.is_none() for limit in limits)
    if keywords or not plain or len(limits) != 2 or not _is_floating(first):
        raise Unsupported(_NUMPY, f"clip of {first!r}")
    assert isinstance(first, ArrayVariable)
    given: Arguments = [first.tensor, *limits]
    return array_of(evaluator.graph.call_function(evaluator, torch.clamp, given, {}))


def _chosen(evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
    """``where`` of a mask and two values, arrays of one floating-point type or Python numbers."""
    values = [_as_tensor_array(evaluator, value) for value in arguments]
    mask, *sides = values
    arrays = [side for side in sides if _is_floating(side)]
    kinds = {side.tensor.fake.dtype for side in arrays if isinstance(side, ArrayVariable)}
    plain = all(side in arrays or _is_python_number(side) for side in sides)
    is_mask = isinstance(mask, ArrayVariable) and mask.tensor.fake.dtype == torch.bool
    tensors = [value.tensor for value in values if isinstance(value, ArrayVariable)]
    is_mask = is_mask and all(tensor.fake.is_contiguous() for tensor in tensors)
    if keywords or len(sides) != 2 or not plain or len(kinds) != 1 or not is_mask:
        raise Unsupported(_NUMPY, f"where({', '.join(map(repr, arguments))})")
    given = [value.tensor if isinstance(value, ArrayVariable) else value for value in values]
    return array_of(evaluator.graph.call_function(evaluator, torch.where, given, {}))


def _is_floating(value: Variable) -> bool:
    return isinstance(value, ArrayVariable) and value.tensor.fake.dtype in _FLOATING


_OF_ARRAYS: dict[Any, Callable[[Evaluator, Arguments, Keywords], Variable]] = {
    numpy.concatenate: partial(_joined, torch.cat),
    numpy.stack: partial(_joined, torch.stack),
    numpy.clip: _clipped,
    numpy.where: _chosen,
}
"""Functions of arrays that are one function of torch, with other arguments."""


def elementwise(
    evaluator: Evaluator, function: Callable[..., Any], arguments: Arguments
) -> Variable:
    """The torch function of arrays of one floating-point type, and Python numbers."""
    arguments = [_as_tensor_array(evaluator, argument) for argument in arguments]
    kinds = {value.tensor.fake.dtype for value in arguments if isinstance(value, ArrayVariable)}
    plain = all(isinstance(v, ArrayVariable) or _is_python_number(v) for v in arguments)
    if not plain or len(kinds) != 1 or not kinds <= set(_FLOATING):
        raise Unsupported(_NUMPY, f"{function.__name__}({', '.join(map(repr, arguments))})")
    operands = [v.tensor if isinstance(v, ArrayVariable) else v for v in arguments]
    if function in _OF_TENSORS:
        dtype = ConstantVariable(kinds.pop())
        operands = [_with_tensor(evaluator, operand, dtype) for operand in operands]
    return array_of(evaluator.graph.call_function(evaluator, function, operands, {}))


_CPU = ConstantVariable(torch.device("cpu"))
_OF_TENSORS = (torch.maximum, torch.minimum, torch.atan2)
"""Functions of torch that take no number beside a tensor."""


def _with_tensor(evaluator: Evaluator, operand: Variable, dtype: Variable) -> Variable:
    """A number as a tensor without dimensions, of the type that NumPy gives it beside an array."""
    if isinstance(operand, TensorVariable):
        return operand
    return evaluator.graph.call_function(
        evaluator, torch.full, [TupleVariable([]), operand], {"dtype": dtype, "device": _CPU}
    )


def _is_python_number(variable: Variable) -> bool:
    return variable.is_constant() and type(variable.as_constant()) in (int, float)


def array_of(result: Variable) -> Variable:
    """The array of a new tensor; NumPy gives scalars where no dimension is left."""
    if not isinstance(result, TensorVariable):
        raise Unsupported(_NUMPY, repr(result))
    return ArrayVariable(result, None)


class ArrayVariable(Variable):
    """An array with the memory of ``tensor``; one of no dimension is a NumPy scalar."""

    def __init__(self, tensor: TensorVariable, source: Source | None) -> None:
        self.tensor = tensor
        self.source = source

    def is_scalar(self) -> bool:
        return self.tensor.fake.dim() == 0

    def _dtype(self) -> numpy.dtype[Any]:
        return torch.empty(0, dtype=self.tensor.fake.dtype).numpy().dtype

    def python_type(self) -> type:
        return self._dtype().type if self.is_scalar() else numpy.ndarray

    def length(self, evaluator: Evaluator) -> int:
        return self.tensor.length(evaluator)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        if not _is_floating(self) or self.is_scalar():
            raise Unsupported("iteration", repr(self))
        return [array_of(row) for row in self.tensor.iterate(evaluator)]

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "shape":
            shape = self.tensor.get_attribute(evaluator, "shape")
            return TupleVariable(shape.iterate(evaluator))
        if name == "ndim":
            return self.tensor.get_attribute(evaluator, "ndim")
        if name == "size":
            return self.tensor.call_method(evaluator, "numel", [], {})
        if name == "dtype":
            return ConstantVariable(self._dtype())
        if name == "T" and self.tensor.fake.dim() == 2:
            return array_of(self.tensor.get_attribute(evaluator, "T"))
        if name in _METHODS or name in _NUMBERS:
            return BuiltinMethodVariable(self, name)
        raise Unsupported(_NUMPY, f"{self!r}.{name}")

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name in _NUMBERS and not arguments and not keywords:
            return self._number(evaluator, name)
        computes = name in _REDUCTIONS.values()
        if name not in _METHODS or (computes and self.tensor.fake.dtype not in _FLOATING):
            raise Unsupported(_NUMPY, f"{self!r}.{name}()")
        if name == "__getitem__":
            key = arguments[0]
            parts = key.iterate(evaluator) if isinstance(key, TupleVariable) else [key]
            if not all(map(_is_view_index, parts)):
                raise Unsupported(_NUMPY, f"{self!r}[{arguments[0]!r}]")
        method, own_name = _METHODS[name]
        return array_of(method(self, own_name, evaluator, arguments, keywords))

    def _reduce(
        self, name: str, evaluator: Evaluator, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        given = dict(keywords)
        if arguments:
            given["axis"] = arguments[0]
        if len(arguments) > 1 or not given.keys() <= {"axis", "keepdims"}:
            raise Unsupported(_NUMPY, f"{self!r}.{name}() with {sorted(given)}")
        axis = given.get("axis", ConstantVariable(None))
        if axis.is_none():
            if "keepdims" in given:
                raise Unsupported(_NUMPY, f"{self!r}.{name}() with keepdims and no axis")
            return self.tensor.call_method(evaluator, name, [], {})
        if name == "prod" and not _is_python_number(axis):
            raise Unsupported(_NUMPY, f"{self!r}.prod() over several axes")
        named = {"dim": axis}
        if "keepdims" in given:
            named["keepdim"] = given["keepdims"]
        return self.tensor.call_method(evaluator, _TORCH_NAMES.get(name, name), [], named)

    def as_operand(self, evaluator: Evaluator) -> Variable | None:
        is_number = self.is_scalar() and self.tensor.fake.dtype != torch.bool
        return self._number(evaluator, "item") if is_number else None

    def _number(self, evaluator: Evaluator, name: str) -> Variable:
        """``float(scalar)``, ``scalar.item()``: the number that a scalar is, as data gives it."""
        is_floating = self.tensor.fake.dtype in _FLOATING
        if not self.is_scalar() or (name == "__index__" and is_floating):
            raise Unsupported(_NUMPY, f"{self!r}.{name}()")
        return self.tensor.call_method(evaluator, name, [], {})

    def truth(self, evaluator: Evaluator) -> bool:
        if not self.is_scalar():
            raise Unsupported(_NUMPY, f"truth of {self!r}")
        return self.tensor.truth(evaluator)

    def _forward(
        self, name: str, evaluator: Evaluator, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if keywords or (name == "permute" and not arguments):
            raise Unsupported(_NUMPY, f"{self!r}.{name}() with {sorted(keywords)}")
        return self.tensor.call_method(evaluator, name, arguments, {})

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        function = OPERATORS.get(operator)
        if operator not in _OPERATORS or function is None:
            raise Unsupported(_NUMPY, f"{operator} of {self!r}")
        fake = self.tensor.fake
        is_number = self.is_scalar() and fake.dtype != torch.bool and not fake.is_complex()
        if is_number and isinstance(other, TensorVariable):
            # NumPy leaves it to the tensor, for which a scalar is a number.
            number = self._number(evaluator, "item")
            operands = (other, number) if reflected else (number, other)
            return evaluator.binary_operation(operator, *operands)
        pair: list[Variable] = [other, self] if reflected else [self, other]
        return elementwise(evaluator, function, pair)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(_scalar_of if self.is_scalar() else torch.Tensor.numpy, self.tensor)

    def __repr__(self) -> str:
        return f"array({self.tensor!r})"


def _scalar_of(tensor: torch.Tensor) -> Any:
    return tensor.numpy()[()]


def _is_view_index(part: Variable) -> bool:
    if isinstance(part, SymbolicNumberVariable):
        return part.python_type() is int and size_hint(part.value) is not None
    index = part.snapshot()
    return index is None or index is Ellipsis or type(index) in (int, slice)


_NUMBERS = frozenset(("item", "__float__", "__int__", "__bool__", "__index__"))
_OPERATORS = frozenset(("add", "sub", "mul", "truediv", "pow", "lt", "le", "gt", "ge"))
_TORCH_NAMES = {"max": "amax", "min": "amin"}


_METHODS: dict[str, tuple[Callable[..., Variable], str]] = {
    **{name: (ArrayVariable._reduce, name) for name in _REDUCTIONS.values()},
    "reshape": (ArrayVariable._forward, "reshape"),
    "copy": (ArrayVariable._forward, "clone"),
    "transpose": (ArrayVariable._forward, "permute"),
    "__getitem__": (ArrayVariable._forward, "__getitem__"),
}


# Between arrays and tensors.


def literal_tensor(evaluator: Evaluator, value: numpy.ndarray[Any, Any]) -> Variable:
    """A new tensor with the elements of an array, as the graph makes it."""
    if value.dtype.type not in SCALARS or value.ndim == 0 or value.size > _MAX_LITERAL:
        raise Unsupported(_NUMPY, f"of type {value.dtype} and {value.ndim} dimensions")
    dtype = torch.from_numpy(numpy.empty(0, value.dtype)).dtype
    literal = evaluator.wrap_result(value.tolist())
    return evaluator.graph.call_function(
        evaluator, torch.tensor, [literal], {"dtype": ConstantVariable(dtype)}
    )


@held_by_identity(register_object(torch.from_numpy, torch.as_tensor, torch.tensor))
class ArrayConversionVariable(TorchFunctionVariable):
    """``torch.from_numpy``, ``torch.as_tensor`` and ``torch.tensor``."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        first = arguments[0] if arguments else None
        if isinstance(first, KnownArrayVariable):
            if len(arguments) > 1 or not keywords.keys() <= {"dtype", "device"}:
                raise Unsupported(_NUMPY, f"{self!r}({first!r})")
            made = literal_tensor(evaluator, first.own())
            assert isinstance(made, TensorVariable)
            wanted = keywords.get("dtype", ConstantVariable(None)).as_constant()
            if self.value is not torch.tensor and wanted in (None, made.fake.dtype):
                first.share()
            return made.call_method(evaluator, "to", [], keywords) if keywords else made
        if isinstance(first, ArrayVariable):
            copies_scalar = self.value is torch.tensor and not keywords
            if (first.is_scalar() and not copies_scalar) or len(arguments) > 1:
                raise Unsupported(_NUMPY, f"{self!r}({first!r})")
            tensor: Variable = first.tensor
            if self.value is torch.tensor:
                tensor = evaluator.graph.call_method(evaluator, "clone", tensor, (), {})
            return tensor.call_method(evaluator, "to", [], keywords) if keywords else tensor
        if self.value is torch.from_numpy:
            raise Unsupported(_NUMPY, f"{self!r}({', '.join(map(repr, arguments))})")
        if type(first) is DequeVariable:  # a sequence like others to these functions
            first = ListVariable(first.iterate(evaluator))
            arguments = [first, *arguments[1:]]
        if first is not None and "dtype" not in keywords and _holds_scalar(evaluator, first):
            raise Unsupported(_NUMPY, f"{self!r}({first!r}), whose type NumPy's scalars decide")
        for made_of in (tensor_of_list, tensor_of_number):
            result = made_of(evaluator, arguments, keywords)
            if result is not None:
                return result
        return super().call(evaluator, arguments, keywords)


def _holds_scalar(evaluator: Evaluator, variable: Variable) -> bool:
    """Whether a value is a NumPy scalar or a list or tuple with one in it."""
    if isinstance(variable, (ListVariable, TupleVariable)):
        if isinstance(variable, ListVariable) and variable.form is not None:
            return False  # what loops fill lists with is none
        return any(_holds_scalar(evaluator, item) for item in variable.iterate(evaluator))
    return variable.is_constant() and is_scalar(variable.as_constant())


@model(torch.Tensor.numpy)
def _numpy(
    evaluator: Evaluator, tensor: TensorVariable, /, *, force: Variable | None = None
) -> Variable:
    """An array with the tensor's memory."""
    fake = tensor.fake
    plain = fake.device.type == "cpu" and not fake.requires_grad and not fake.is_conj()
    is_array = plain and not fake.is_neg() and fake.dim() > 0 and fake.dtype in _FLOATING
    if force is not None or not is_array:
        raise tensor.refused_method(evaluator, "numpy")
    return ArrayVariable(tensor, None)


@register_wrapper(numpy.ndarray)
def _wrap_array(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    """An array from outside: a tensor made of it at each call, with guards on its layout."""
    evaluator.guard(source, TypeIs(numpy.ndarray))
    if value.dtype.type not in SCALARS or value.ndim == 0 or not value.flags.writeable:
        return RefusedVariable(value, source, _NUMPY, f"of type {value.dtype}")
    try:
        tensor = torch.from_numpy(value)
    except (TypeError, ValueError) as error:
        raise Unsupported(_NUMPY, source.name(), str(error)) from error
    writeable = AttributeSource(AttributeSource(source, "flags"), "writeable")
    evaluator.guard(writeable, IsObject(True))
    place = ConvertedSource(source, torch.from_numpy)
    given = evaluator.graph.add_input(evaluator, tensor, place)
    assert isinstance(given, TensorVariable)
    return ArrayVariable(given, source)


@models(*SCALARS, numpy.dtype, numpy.finfo, numpy.iinfo)
def _new(
    kind: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    return pure_call(evaluator, kind, arguments, keywords)
