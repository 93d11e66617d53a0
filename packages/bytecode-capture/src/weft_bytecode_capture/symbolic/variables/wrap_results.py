"""Variables of values made during evaluation: results of pure functions and constants of code."""

from __future__ import annotations

from typing import Any

from ...unsupported import Unsupported
from ..models.containers.mappings import DictVariable
from ..models.containers.sequences import ListVariable, TupleVariable
from ..models.containers.sets import FrozenSetVariable, SetVariable
from ..models.containers.slices import SliceVariable
from ..protocol import Evaluator
from .base import Variable
from .builder import is_constant_value
from .constant import ConstantVariable
from .keys import HashedKey


def wrap_new_value(evaluator: Evaluator, value: Any) -> Variable:
    """A new object's variable: a constant, or a tuple, list, dict, set or slice of such."""
    if is_constant_value(value):
        return ConstantVariable(value)
    kind = type(value)
    if kind is slice:
        return SliceVariable(
            *(wrap_new_value(evaluator, part) for part in (value.start, value.stop, value.step))
        )
    if kind in (tuple, list):
        items = [wrap_new_value(evaluator, item) for item in value]
        return TupleVariable(items) if kind is tuple else ListVariable(items)
    if kind in (set, frozenset):
        items = [wrap_new_value(evaluator, item) for item in value]
        family = SetVariable if kind is set else FrozenSetVariable
        return family.of(evaluator, items)
    if kind is dict:
        return DictVariable(
            {
                HashedKey(wrap_new_value(evaluator, key), (key,)): wrap_new_value(evaluator, item)
                for key, item in value.items()
            }
        )
    if isinstance(value, type):
        return evaluator.wrap_known(value)
    raise Unsupported("value of unknown type", kind.__qualname__)


def wrap_code_constant(value: Any) -> Variable:
    """The variable of one of a code object's constants."""
    if type(value) not in (tuple, frozenset, slice):
        return ConstantVariable(value)
    if type(value) is slice:  # 3.14
        return SliceVariable(*map(wrap_code_constant, (value.start, value.stop, value.step)))
    if type(value) is tuple:
        return TupleVariable([wrap_code_constant(item) for item in value])
    keys = [HashedKey(wrap_code_constant(item), (item,)) for item in value]
    variable = FrozenSetVariable(frozenset(keys))
    # A set made in the order of another's iteration may come out in a different one.
    variable.order_known = [key.python_key for key in variable.members_in_order()] == [
        (item,) for item in value
    ]
    return variable
