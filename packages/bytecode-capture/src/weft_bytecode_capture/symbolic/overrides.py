"""The ``__torch_function__`` protocol: code of the program's that stands in for an operation of torch.

Which function torch asks overrides for, and with which arguments, is torch's own knowledge: the operation
runs on stand-ins under a mode that notes what arrives.  The override is then evaluated like any other code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .._torch import has_overrides, push_torch_function_mode
from ..frame.emitter import Emitter
from ..unsupported import Unsupported
from .dispatch import dispatch, wrappers_in
from .faults import raise_fault
from .models.containers.mappings import new_keyword_dict
from .models.containers.sequences import ListVariable, TupleVariable
from .models.containers.slices import SliceVariable
from .models.objects.user_objects import UserObjectVariable
from .models.torch.jagged_tensors import RaggedSizeVariable
from .models.torch.subclass_tensors import SubclassTensorVariable
from .models.torch.tensor import TensorVariable
from .protocol import Evaluator
from .variables.base import Arguments, Keywords, Variable
from .variables.constant import ConstantVariable
from .variables.graph_arguments import graph_argument

OVERRIDE = "override of an operator"
NAME = "__torch_function__"
RAGGED = 1 << 40


_ASKING_MODES_ALONE = frozenset({torch.as_tensor, torch.asarray, torch.tensor})
"""Functions that make tensors of anything: torch asks no argument's class."""


class Overrides:
    """What the captured program has switched of the protocol; the innermost mode is the last."""

    def __init__(self) -> None:
        self.modes: list[Variable] = []
        self.of_arguments = True  # whether arguments' classes are asked

    def receivers(self, evaluator: Evaluator, arguments: Iterable[Variable]) -> list[Variable]:
        """The arguments whose classes are asked, one for each class, derived classes first."""
        found: list[Variable] = []
        for variable in _flat(evaluator, arguments) if self.of_arguments else ():
            if not is_overriding(evaluator, variable):
                continue
            kind = variable.python_type()
            kinds = [known.python_type() for known in found]
            if kind not in kinds:
                bases = (i for i, known in enumerate(kinds) if issubclass(kind, known))
                found.insert(next(bases, len(found)), variable)
        return found

    def overridden(
        self,
        evaluator: Evaluator,
        operation: Callable[..., Any],
        arguments: Sequence[Variable],
        keywords: Keywords,
    ) -> Variable | None:
        """What an override makes of ``operation(*arguments, **keywords)``; None if torch asks none."""
        asked = () if operation in _ASKING_MODES_ALONE else (*arguments, *keywords.values())
        receivers = self.receivers(evaluator, asked)
        if not receivers and not self.modes:
            return None
        stand_ins = _StandIns()
        call = stand_ins.dispatched(evaluator, operation, arguments, keywords)
        if call is None:
            return None
        function = evaluator.wrap_known(call[0], f"torch.{getattr(call[0], '__name__', '')}")
        return ask(evaluator, function, receivers, [stand_ins.variable(part) for part in call[1]])

    def dispatched(
        self,
        evaluator: Evaluator,
        operation: Callable[..., Any] | str,
        arguments: Sequence[Variable],
        keywords: Keywords,
    ) -> Variable | None:
        """What classes with ``__torch_dispatch__`` make of an operation; None without such arguments."""
        if not wrappers_in(evaluator, (*arguments, *keywords.values())):
            return None
        return dispatch(evaluator, operation, arguments, keywords)


def is_overriding(evaluator: Evaluator, variable: Variable) -> bool:
    """Whether a value's class overrides what operators do with it."""
    if not variable.may_override:
        return False
    if isinstance(variable, SubclassTensorVariable):
        return has_overrides(variable.kind)
    return (
        isinstance(variable, UserObjectVariable)
        and evaluator.state.find_in_type(variable.kind, NAME) is not None
    )


def ask(
    evaluator: Evaluator, function: Variable, receivers: list[Variable], arguments: Arguments
) -> Variable:
    """Call the mode's, then the receivers' overrides; ``arguments`` are a tuple and, if given, a dict."""
    overrides = evaluator.state.overrides
    types = TupleVariable([evaluator.wrap_known(v.python_type()) for v in receivers])
    packed = [function, types, *arguments]
    if overrides.modes:
        mode = overrides.modes.pop()
        try:
            result = mode.get_attribute(evaluator, NAME).call(evaluator, packed, {})
        finally:
            overrides.modes.append(mode)
        if not result.is_not_implemented():
            return result
    for receiver in receivers:
        result = _override_of(evaluator, receiver).call(evaluator, packed, {})
        if not result.is_not_implemented():
            return result
    raise Unsupported(OVERRIDE, f"no override implements {function!r}")


def emit_mode(mode: Variable, emitter: Emitter) -> None:
    """Emit code that enters a mode which the captured program has entered and not left."""
    emitter.run_call(push_torch_function_mode, mode)


def _override_of(evaluator: Evaluator, receiver: Variable) -> Variable:
    if isinstance(receiver, SubclassTensorVariable):
        return receiver.override(evaluator)
    return receiver.get_attribute(evaluator, NAME)


def _flat(evaluator: Evaluator, arguments: Iterable[Variable]) -> Iterator[Variable]:
    """Arguments, and the elements of lists and tuples of them."""
    for variable in arguments:
        if isinstance(variable, (ListVariable, TupleVariable)):
            yield from _flat(evaluator, variable.iterate(evaluator))
        else:
            yield variable


class _Noted(Exception):
    """An operation asked for an override: its function, then the arguments of the override."""


class _NotingMode(TorchFunctionMode):
    """Notes the first operation that asks for an override, and ends there."""

    def __torch_function__(self, func: Any, types: Any, *arguments: Any) -> Any:
        raise _Noted(func, arguments)


class _StandIn:
    """Stands in for an object whose class overrides operators."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, *arguments: Any) -> Any:
        raise _Noted(func, arguments)


class _StandIns:
    """Python values for the variables of one operation, and the way back."""

    def __init__(self) -> None:
        self._variables: dict[int, tuple[Any, Variable]] = {}

    def dispatched(
        self,
        evaluator: Evaluator,
        operation: Callable[..., Any],
        arguments: Sequence[Variable],
        keywords: Keywords,
    ) -> tuple[Any, tuple[Any, ...]] | None:
        """The function and the arguments that torch hands to an override of the operation."""
        positional = [self.value(evaluator, variable) for variable in arguments]
        named = {name: self.value(evaluator, variable) for name, variable in keywords.items()}
        try:
            with evaluator.graph.fake_mode, _NotingMode():
                operation(*positional, **named)
        except _Noted as noted:
            function, rest = noted.args
        except Exception as error:  # of operators on fakes, or the program's in an override
            raise_fault(error)
            raise Unsupported(OVERRIDE, f"{operation}: {error}") from error
        else:
            return None
        if (
            getattr(operation, "__module__", None) == "torch.nn.functional"
            and function is not operation
        ):
            raise Unsupported(OVERRIDE, f"{operation.__name__} calls others that are overridden")
        return function, rest

    def value(self, evaluator: Evaluator, variable: Variable) -> Any:
        if isinstance(variable, (ListVariable, TupleVariable)):
            items = [self.value(evaluator, item) for item in variable.iterate(evaluator)]
            return items if isinstance(variable, ListVariable) else tuple(items)
        if isinstance(variable, SubclassTensorVariable):
            return self._known(variable.plain.fake, variable)
        if isinstance(variable, TensorVariable):
            return self._known(variable.fake, variable)
        if is_overriding(evaluator, variable):
            return self._known(_StandIn(), variable)
        if isinstance(variable, RaggedSizeVariable):  # a number of its own, as it has none
            return self._known(RAGGED + len(self._variables), variable)
        value = graph_argument(evaluator, variable)[1]
        if variable.is_constant() or isinstance(variable, SliceVariable):
            return value
        return self._known(value, variable)

    def _known(self, value: Any, variable: Variable) -> Any:
        self._variables[id(value)] = (value, variable)
        return value

    def variable(self, value: Any) -> Variable:
        """The variable of a value that came back."""
        known = self._variables.get(id(value))
        if known is not None:
            return known[1]
        if type(value) is tuple:
            return TupleVariable([self.variable(item) for item in value])
        if type(value) is list:
            return ListVariable([self.variable(item) for item in value])
        if type(value) is dict:
            return new_keyword_dict({name: self.variable(item) for name, item in value.items()})
        if type(value) is slice:
            return SliceVariable(*map(self.variable, (value.start, value.stop, value.step)))
        return ConstantVariable(value)
