"""``id()``: of an object that the frame makes, or of a tensor, a number that only tells it from others."""

from __future__ import annotations

import threading
import weakref

import torch

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ...variables.hashing import outside_key
from ...variables.keys import Address, HashedKey
from ...variables.operations import is_same_object
from ..containers.mappings import DictVariable
from ..containers.sequences import ListVariable
from ..containers.sets import SetVariable
from ..functions.python_functions import NewFunctionVariable
from ..table import model
from ..torch.tensor import TensorVariable
from .held_objects import is_held
from .user_objects import UserObjectVariable

_KIND = "id()"
_WHY = "addresses differ from run to run"


class AddressVariable(Variable):
    """The address of ``held``: equal to that of the very object, to no other of an object that lives."""

    kind = int

    def __init__(self, held: Variable) -> None:
        self.held = held

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        if operator not in ("eq", "ne") or not isinstance(other, AddressVariable):
            raise Unsupported(_KIND, f"{self!r} {operator} {other!r}", _WHY)
        same = is_same_object(evaluator, self.held, other.held)
        return ConstantVariable(same is (operator == "eq"))

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        if isinstance(self.held, TensorVariable):
            outside_key(evaluator, self.held)  # is told from the others from outside
        return HashedKey(self, None, Address(self.held))

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(id, self.held)

    def __repr__(self) -> str:
        return f"id({self.held!r})"


class ThreadNumberVariable(AddressVariable):
    """What ``get_ident()`` gives: the number of the thread that calls, the same in all of a call."""

    def __init__(self) -> None:
        super().__init__(self)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(threading.get_ident)

    def __repr__(self) -> str:
        return "get_ident()"


@model(threading.get_ident)
def _get_ident(evaluator: Evaluator) -> Variable:
    state = evaluator.state
    if state.thread_number is None:
        state.thread_number = ThreadNumberVariable()
    return state.thread_number


_WITH_IDENTITY = (UserObjectVariable, ListVariable, DictVariable, SetVariable, NewFunctionVariable)


@model(id)
def _id(evaluator: Evaluator, value: Variable, /) -> Variable:
    held = None if value.is_constant() else evaluator.builder.held_object(value)
    is_tensor = type(value) is TensorVariable and value.python_type() is torch.Tensor
    if held is not None and not is_tensor:
        return evaluator.wrap_constant(id(held[0]))
    is_new = value.source is None and isinstance(value, _WITH_IDENTITY)
    if value.is_constant() or not (is_new or is_tensor) or evaluator.graph.is_in_region:
        raise Unsupported(_KIND, repr(value), _WHY)
    addressed = evaluator.state.addressed
    # An address that nothing holds any more is compared with no other.
    addressed[:] = [reference for reference in addressed if reference() is not None]
    for reference in addressed:
        other = getattr(reference(), "held", value)
        # Another object may have the address of one that is gone.
        if other is not value and other.source is None and not is_held(evaluator, other):
            raise Unsupported(_KIND, f"of {value!r} after that of {other!r}", _WHY)
    address = AddressVariable(value)
    addressed.append(weakref.ref(address))
    return address
