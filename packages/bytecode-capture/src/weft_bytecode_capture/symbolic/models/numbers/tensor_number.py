"""Python numbers that the graph holds in tensors: what loops count and compute, what differs by branch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from numbers import Real
from typing import Any

import torch

from ...._torch.symbols import expression_of, unbacked_symbols
from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...graph.hoisting import before_branches, is_in_branch
from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import OPERATORS, ConstantVariable
from ...variables.python_protocols import COMPARISONS
from ..torch.tensor import TensorVariable, tensor_of
from .data_numbers import DataBooleanVariable, decision
from .representations import NumberVariable, is_invariant
from .symbolic_integer import SymbolicIntegerVariable
from .symbolic_number import SymbolicNumberVariable

_USE = "use of a number that the graph computes"
_MAX_INTEGER = 2**62 - 1  # that a loop may begin with
_MAX_STEP = 2**31  # no loop runs long enough for steps of this size to leave int64
_DTYPES: dict[type, torch.dtype] = {
    int: torch.int64,
    float: torch.float64,
    Real: torch.float64,
    bool: torch.bool,
}
_COMPARISONS: dict[str, Callable[..., Any]] = {name: getattr(torch, name) for name in COMPARISONS}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "truediv": torch.div,
}
_WITH_TENSORS = frozenset({*_ARITHMETIC, *_COMPARISONS})
_HALVES = frozenset({torch.float16, torch.bfloat16})


class TensorNumberVariable(NumberVariable):
    """An int, float or bool whose value only the graph knows: ``tensor`` is one without dimensions.

    It is int64, float64 or bool.  ``is_step``: an integer that constants were added to only, which no loop
    brings out of int64.  What Python would raise, or compute in whole numbers of any size, is unsupported,
    but for numbers that are ``unchecked``: with these it is infinity or nan, as torch computes it.
    ``is_positive``: it is above zero or NaN, whatever the data are.  ``known_as``: what torch's symbols know
    it as, where it is a size, or a comparison of sizes.

    A ``kind`` of :class:`numbers.Real`: data say whether it is an int or a float, as in
    ``0 if rho <= 5 else rho``.  A float64 holds it exactly, whichever it is.
    """

    rank = 5

    def __init__(
        self, tensor: TensorVariable, kind: type, is_step: bool = True, unchecked: bool = False
    ) -> None:
        self.tensor = tensor
        self.kind = kind
        self.is_step = is_step
        self.unchecked = unchecked
        self.is_positive = False
        self.known_as: torch.SymInt | torch.SymBool | None = None

    def python_type(self) -> type:
        if self.kind is Real:
            raise Unsupported(_USE, f"type of {self!r}")
        return super().python_type()

    def operand_type(self) -> type:
        return float if self.kind is Real else self.kind

    def held_in(self, tensor: TensorVariable) -> TensorNumberVariable:
        """A number of this kind, of which ``tensor`` has the value."""
        return TensorNumberVariable(tensor, self.kind, self.is_step, self.unchecked)

    def truth(self, evaluator: Evaluator) -> bool:
        found = evaluator.assumed(self)
        if found is None:
            raise Unsupported("decision by a number that the graph computes", repr(self))
        return found

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        if other.python_type() is not self.kind:
            return False
        raise Unsupported(_USE, f"{self!r} is {other!r}")

    def takes(self, other: Variable) -> bool:
        return not isinstance(other, TensorVariable)  # which knows how

    def operation(
        self, evaluator: Evaluator, operator: str, pair: tuple[Variable, Variable]
    ) -> Variable | None:
        return number_operation(evaluator, operator, pair)

    def with_tensor(
        self, evaluator: Evaluator, operator: str, tensor: TensorVariable, reflected: bool
    ) -> Variable | None:
        """The operation with a tensor, where the number is as exact as a Python number would be."""
        in_place = operator[0] == "i" and operator[1:] in _WITH_TENSORS
        plain = operator[1:] if in_place else operator
        if plain not in _WITH_TENSORS:
            raise Unsupported(_USE, f"{operator} of {tensor!r} and {self!r}")
        if plain == "truediv" and reflected:  # as torch computes it
            reciprocal = evaluator.graph.call_method(evaluator, "reciprocal", tensor, (), {})
            return evaluator.binary_operation("mul", reciprocal, self)
        example = example_of(tensor.fake, self.kind)
        if example is None:
            raise Unsupported(_USE, f"{operator} of {tensor!r} and {self!r}")
        with evaluator.graph.fake_mode:
            dtype = torch.result_type(tensor.fake, example)
        if dtype not in _HALVES or plain in _rounding(tensor.fake.device):
            number = cast_tensor(evaluator, self.tensor, dtype)
            return tensor.binary_operation(evaluator, operator, number, reflected)
        number = cast_tensor(evaluator, self.tensor, torch.float32)
        wide = cast_tensor(evaluator, tensor, torch.float32)
        made = wide.binary_operation(evaluator, plain, number, reflected)
        assert isinstance(made, TensorVariable)
        if in_place:
            return tensor.call_method(evaluator, "copy_", [made], {})
        return cast_tensor(evaluator, made, dtype)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if not arguments and not keywords:
            if name == "__float__" or (name == "__int__" and self.kind in (int, bool)):
                kind = float if name == "__float__" else int
                converted = cast_tensor(evaluator, self.tensor, _DTYPES[kind])
                return TensorNumberVariable(converted, kind, self.is_step, self.unchecked)
            if name in ("__neg__", "__abs__") and self.kind is float:
                function = torch.neg if name == "__neg__" else torch.abs
                made = _number(evaluator, function, [self.tensor], float)
                made.unchecked = self.unchecked
                return made
        raise Unsupported(_USE, f"{self!r}.{name}")

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(torch.Tensor.item, self.tensor)

    def __repr__(self) -> str:
        return f"TensorNumber({self.tensor!r})"


def _rounding(device: torch.device) -> frozenset[str]:
    """The operators that round a Python number to half precision first; others compute with it in float32."""
    return frozenset((*_COMPARISONS, *(("add", "sub") if device.type == "cpu" else ())))


def number_operation(
    evaluator: Evaluator, operator: str, pair: tuple[Variable, Variable]
) -> Variable:
    """An operation on two numbers, of which the graph computes one at least.

    :raises Unsupported: no operator on tensors gives what Python gives, for all values.
    """
    kinds = {number_kind(variable) for variable in pair}
    made: Variable | None = None
    if None in kinds:
        pass
    elif operator in _COMPARISONS:
        made = _compared(evaluator, operator, pair, int if kinds <= {int, bool} else float)
    elif float in kinds or operator == "truediv":
        made = _float_result(evaluator, operator, pair)
    elif Real not in kinds:
        made = _whole_result(evaluator, operator, pair)
    if made is None:
        raise Unsupported(_USE, f"{operator} of {pair[0]!r} and {pair[1]!r}")
    return made


def number_in_tensor(evaluator: Evaluator, variable: Variable) -> TensorNumberVariable | None:
    """A number as a tensor of the graph at hand; None for other values.

    :raises Unsupported: it is an integer that may not fit.
    """
    if isinstance(variable, TensorNumberVariable):
        return variable
    kind = number_kind(variable)
    if kind is None:
        return None
    if kind is int and not _is_within(evaluator, variable, _MAX_INTEGER):
        raise Unsupported("integer that may grow beyond a tensor's", repr(variable))
    tensor = tensor_of(evaluator, torch.full, (), variable, dtype=_DTYPES[kind])
    return TensorNumberVariable(tensor, kind)


def read_in_region(
    evaluator: Evaluator, tensor: TensorVariable, kind: type | None
) -> TensorNumberVariable | None:
    """The only element of ``tensor`` as a number in a tensor; None where it is another kind of number.

    ``kind`` is the type that the program asks for; None: the one that ``tensor.item()`` gives.
    """
    dtype = tensor.fake.dtype
    own = bool if dtype == torch.bool else float if dtype.is_floating_point else int
    is_one = all(type(size) is int and size == 1 for size in tensor.fake.shape)
    if dtype.is_complex or dtype == torch.uint64 or not is_one or (own is float and kind is int):
        return None
    dims, kind = tensor.fake.dim(), kind or own
    for method in ("detach", "clone"):
        tensor = tensor_of(evaluator, method, tensor)
    if dims:
        tensor = tensor_of(evaluator, "reshape", tensor, ())
    return TensorNumberVariable(cast_tensor(evaluator, tensor, _DTYPES[kind]), kind, is_step=False)


def as_predicate(evaluator: Evaluator, condition: TensorVariable) -> TensorVariable:
    """``bool(condition)`` as a bool tensor without dimensions."""
    if evaluator.graph.shapes.specialise(condition.fake.numel() != 1):
        raise Unsupported("truth value of a tensor with several elements", repr(condition))
    if condition.fake.dim():
        condition = tensor_of(evaluator, "reshape", condition, ())
    if condition.fake.dtype != torch.bool:
        condition = tensor_of(evaluator, "ne", condition, 0)
    return condition


def tested_tensor(evaluator: Evaluator, variable: Variable) -> Variable:
    """What has the truth of ``variable`` in the graph at hand, if that is a number that only data gives.

    Anything else as it is.
    """
    if isinstance(variable, DataBooleanVariable):
        kind = float if float in {v.python_type() for v in variable.operands} else int
        # The operands are numbers of the outermost graph.
        outside = before_branches(evaluator) if is_in_branch(evaluator) else nullcontext()
        with outside:
            variable = _compared(evaluator, variable.function.__name__, variable.operands, kind)
    return variable.tensor if isinstance(variable, TensorNumberVariable) else variable


def truth_in_tensor(
    evaluator: Evaluator, variable: Variable, wanted: bool
) -> TensorNumberVariable | None:
    """Whether the truth of a tensor, or of a number in one, is ``wanted``; None: no graph says it."""
    if not evaluator.state.options.keep_control_flow:
        return None
    variable = tested_tensor(evaluator, decision(variable))
    if not isinstance(variable, TensorVariable):
        return None
    predicate = as_predicate(evaluator, variable)
    method = "clone" if wanted else "logical_not"
    return TensorNumberVariable(tensor_of(evaluator, method, predicate), bool)


def number_by(
    evaluator: Evaluator, outcome: Variable, first: Variable, second: Variable
) -> TensorNumberVariable | None:
    """One of two numbers of a type, by a comparison in the graph; None for other values."""
    pair = first, second
    if isinstance(outcome, DataBooleanVariable) and {*map(number_kind, pair)} == {float}:
        test = tested_tensor(evaluator, outcome)
        assert isinstance(test, TensorVariable)
        outcome = TensorNumberVariable(test, bool)
    kind = common_kind(evaluator, pair)
    if not isinstance(outcome, TensorNumberVariable) or kind is None:
        return None
    one, other = (number_of_kind(evaluator, variable, kind) for variable in pair)
    chosen = tensor_of(evaluator, torch.where, outcome.tensor, one.tensor, other.tensor)
    return like_both(one, other, chosen)


def like_both(
    one: TensorNumberVariable, other: TensorNumberVariable, tensor: TensorVariable
) -> TensorNumberVariable:
    """What ``tensor`` holds, which is either of two numbers of a kind."""
    is_step, unchecked = one.is_step and other.is_step, one.unchecked or other.unchecked
    return TensorNumberVariable(tensor, one.kind, is_step, unchecked)


def common_kind(evaluator: Evaluator, pair: tuple[Variable, Variable]) -> type | None:
    """The kind of a number that is either of a pair; None where no tensor holds both, or one is no number."""
    first, second = map(number_kind, pair)
    kinds = {first, second}
    if first is second:
        return first
    whole = [variable for variable in pair if number_kind(variable) is int]
    are_exact = all(is_invariant(v) and _is_within(evaluator, v, 2**53) for v in whole)
    return Real if kinds <= {int, float, Real} and are_exact else None


def number_of_kind(evaluator: Evaluator, variable: Variable, kind: type) -> TensorNumberVariable:
    """A number as a tensor of the graph at hand, as one of ``kind``, which :func:`common_kind` gave."""
    number = number_in_tensor(evaluator, variable)
    assert number is not None
    tensor = cast_tensor(evaluator, number.tensor, _DTYPES[kind])
    return TensorNumberVariable(tensor, kind, number.is_step, number.unchecked)


def example_of(tensor: torch.Tensor, kind: type) -> Any:
    """A number of ``kind`` beside ``tensor``; None where its type would decide the dtype of a result."""
    if kind is not Real:
        return kind(1)
    return 1.0 if tensor.dtype.is_floating_point or tensor.dtype.is_complex else None


def number_kind(variable: Variable) -> type | None:
    """The type of a number that a tensor can hold, ``Real`` for an int or a float; None for anything else."""
    if isinstance(variable, TensorNumberVariable):
        kind: type = variable.kind
        return kind
    if isinstance(variable, NumberVariable):
        return variable.python_type()
    if type(variable) is not ConstantVariable:
        return None
    value = variable.as_constant()
    if type(value) not in _DTYPES or (type(value) is int and abs(value) > _MAX_INTEGER):
        return None
    return type(value)


def _is_within(evaluator: Evaluator, variable: Variable, bound: int) -> bool:
    """Whether an integer that no region computes is from ``-bound`` to ``bound``, guarded; others are."""
    if not isinstance(variable, SymbolicNumberVariable):
        return not variable.is_constant() or abs(variable.as_constant()) <= bound
    symbol = expression_of(variable.value)
    if bound == _MAX_INTEGER and symbol in evaluator.graph.shapes.data.are_sizes():
        return True
    return _holds(evaluator, "le", variable, bound) and _holds(evaluator, "ge", variable, -bound)


def _is_step(evaluator: Evaluator, variable: Variable) -> bool:
    """Whether no loop runs long enough for steps of this integer to leave int64, guarded."""
    if not isinstance(variable, SymbolicIntegerVariable):
        return _is_within(evaluator, variable, _MAX_STEP)
    from ...regions.loops.iteration_sizes import ends_hold

    value = variable.value
    is_low = ends_hold(evaluator.frame, value, lambda _, greatest: greatest <= _MAX_STEP)
    return is_low and ends_hold(evaluator.frame, value, lambda least, _: least >= -_MAX_STEP)


def _holds(evaluator: Evaluator, comparison: str, variable: Variable, bound: float) -> bool:
    """Whether a number that no region computes compares so with ``bound``, in every call from now on."""
    outcome = evaluator.binary_operation(comparison, variable, ConstantVariable(bound))
    return outcome.is_constant() and bool(outcome.as_constant())


def _operand(evaluator: Evaluator, variable: Variable, kind: type) -> Variable:
    """A number of type ``kind`` as an operand beside a tensor of that type."""
    if variable.is_constant():
        return ConstantVariable(kind(variable.as_constant()))
    if isinstance(variable, SymbolicNumberVariable) and variable.python_type() is kind:
        return variable
    number = number_in_tensor(evaluator, variable)
    assert number is not None
    return cast_tensor(evaluator, number.tensor, _DTYPES[kind])


def _whole_result(
    evaluator: Evaluator, operator: str, pair: tuple[Variable, Variable]
) -> Variable | None:
    """Arithmetic on integers; None where the result might not fit into a tensor."""
    known = [variable for variable in pair if not isinstance(variable, TensorNumberVariable)]
    if len(known) != 1 or not _is_step(evaluator, known[0]):
        return None
    if any(isinstance(v, TensorNumberVariable) and not v.is_step for v in pair):
        return None
    arguments = [_operand(evaluator, variable, int) for variable in pair]
    is_fixed = is_invariant(known[0])
    divides = operator in ("floordiv", "mod") and pair[1] is known[0]
    if divides and is_fixed and _holds(evaluator, "gt", pair[1], 0):
        function = torch.floor_divide if operator == "floordiv" else torch.remainder
        return _number(evaluator, function, arguments, int)
    if operator not in (("add", "sub", "mul") if is_fixed else ("add", "sub")):
        return None
    made = _number(evaluator, _ARITHMETIC[operator], _tensor_first(evaluator, arguments), int)
    made.is_step = operator != "mul"
    return made


def _compared(
    evaluator: Evaluator, operator: str, pair: tuple[Variable, Variable], kind: type
) -> Variable:
    if kind is float and not all(_is_exact(evaluator, variable) for variable in pair):
        raise Unsupported(_USE, f"{operator} of {pair[0]!r} and {pair[1]!r}")
    arguments = [_operand(evaluator, variable, kind) for variable in pair]
    if not any(isinstance(argument, TensorVariable) for argument in arguments):
        read = _as_read(evaluator, arguments[0]) if kind is int else None
        arguments = _tensor_first(evaluator, arguments) if read is None else [read, arguments[1]]
    function = _COMPARISONS[operator]
    if not isinstance(arguments[0], TensorVariable):
        function = _COMPARISONS[COMPARISONS[operator]]
        arguments.reverse()
    made = _number(evaluator, function, arguments, bool)
    sizes = [_as_symbols(variable) for variable in pair]
    if None not in sizes:
        compared = OPERATORS[operator](*sizes)
        made.known_as = compared if isinstance(compared, torch.SymBool) else None
    return made


def _as_read(evaluator: Evaluator, number: Variable) -> TensorVariable | None:
    """An integer as the graph read it from a tensor, which has 64 bits at most; None for any other."""
    if not isinstance(number, SymbolicNumberVariable):
        return None
    symbol = expression_of(number.value)
    if not symbol.is_Symbol or not unbacked_symbols(number.value):
        return None
    return tensor_of(evaluator, torch.full, (), number, dtype=torch.int64)


def _as_symbols(variable: Variable) -> int | torch.SymInt | None:
    """An integer as torch's symbols know it; None where they don't, and for other values."""
    if isinstance(variable, TensorNumberVariable):
        return variable.known_as if isinstance(variable.known_as, torch.SymInt) else None
    if isinstance(variable, NumberVariable):
        return variable.value if isinstance(variable.value, torch.SymInt) else None
    is_integer = variable.is_constant() and type(variable.as_constant()) is int
    return variable.as_constant() if is_integer else None


def _is_exact(evaluator: Evaluator, variable: Variable) -> bool:
    """Whether a float64 holds the number: Python compares integers with floats exactly."""
    is_integer = number_kind(variable) is int and is_invariant(variable)
    return not is_integer or _is_within(evaluator, variable, 2**53)


def _float_result(
    evaluator: Evaluator, operator: str, pair: tuple[Variable, Variable]
) -> Variable | None:
    """Arithmetic on floats; None for what raises at some floats."""
    unchecked = any(isinstance(v, TensorNumberVariable) and v.unchecked for v in pair)
    if operator == "pow" and not unchecked:
        return _power(evaluator, pair)
    if operator not in _ARITHMETIC and operator != "pow":
        return None
    if operator == "truediv" and not _is_never_zero(evaluator, pair[1]):
        return None
    if operator == "pow" and is_invariant(pair[0]) and not _holds(evaluator, "ge", pair[0], 0):
        return None  # complex, or not, as the exponent says
    function = _ARITHMETIC.get(operator, torch.pow)
    arguments = [_operand(evaluator, variable, float) for variable in pair]
    made = _number(evaluator, function, _tensor_first(evaluator, arguments), float)
    made.unchecked = unchecked
    return made


def _tensor_first(evaluator: Evaluator, arguments: Arguments) -> list[Variable]:
    """The operands with a tensor first, as torch's functions take them."""
    first = number_in_tensor(evaluator, arguments[0])
    return arguments if first is None else [first.tensor, *arguments[1:]]


def _is_never_zero(evaluator: Evaluator, divisor: Variable) -> bool:
    """Whether nothing is raised for a number that is a divisor."""
    if isinstance(divisor, TensorNumberVariable) and (divisor.unchecked or divisor.is_positive):
        return True
    if isinstance(divisor, SymbolicIntegerVariable):
        return divisor.is_never_zero()
    return is_invariant(divisor) and _holds(evaluator, "ne", divisor, 0)


def _power(evaluator: Evaluator, pair: tuple[Variable, Variable]) -> Variable | None:
    """A number to the power of a counter, where that is finite at every one of its values."""
    base, exponent = pair
    if not is_invariant(base) or not isinstance(exponent, SymbolicIntegerVariable):
        return None
    sign = "gt" if _holds(evaluator, "gt", base, 0) else "lt"
    is_small = _holds(evaluator, "le" if sign == "gt" else "ge", base, 1 if sign == "gt" else -1)
    if not is_small or not _holds(evaluator, sign, base, 0) or not exponent.is_never_negative():
        return None
    arguments = _tensor_first(evaluator, [_operand(evaluator, v, float) for v in pair])
    return _number(evaluator, torch.pow, arguments, float)


def _number(
    evaluator: Evaluator, function: Callable[..., Any], arguments: Arguments, kind: type
) -> TensorNumberVariable:
    return TensorNumberVariable(tensor_of(evaluator, function, *arguments), kind)


def cast_tensor(evaluator: Evaluator, tensor: TensorVariable, dtype: torch.dtype) -> TensorVariable:
    """``tensor``, converted where it is of another dtype."""
    if tensor.fake.dtype == dtype:
        return tensor
    return tensor_of(evaluator, "to", tensor, dtype)
