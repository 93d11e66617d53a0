"""What ``object``'s methods do when called with an instance of a Python class."""

from __future__ import annotations

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ...variables.python_protocols import attribute_name
from ..table import model
from .user_objects import UserObjectVariable


def _instance(receiver: Variable, name: str) -> UserObjectVariable:
    if not isinstance(receiver, UserObjectVariable):
        raise Unsupported("method of a builtin type", f"object.{name} of {receiver!r}")
    return receiver


@model(
    *(
        vars(kind)["__getattribute__"]
        for kind in (dict, list, tuple, set, frozenset, str, int, float)
        if "__getattribute__" in vars(kind)  # some have none of their own since 3.13
    ),
    vars(object)["__getattribute__"],
)
def _getattribute(evaluator: Evaluator, receiver: Variable, name: Variable, /) -> Variable:
    instance = _instance(receiver, "__getattribute__")
    return instance.generic_get_attribute(evaluator, attribute_name(evaluator, name))


@model(vars(object)["__setattr__"])
def _setattr(evaluator: Evaluator, receiver: Variable, name: Variable, value: Variable, /) -> None:
    instance = _instance(receiver, "__setattr__")
    instance.generic_set_attribute(evaluator, attribute_name(evaluator, name), value)


@model(vars(object)["__delattr__"])
def _delattr(evaluator: Evaluator, receiver: Variable, name: Variable, /) -> None:
    instance = _instance(receiver, "__delattr__")
    instance.generic_set_attribute(evaluator, attribute_name(evaluator, name), None)


@model(vars(object)["__eq__"])
def _eq(evaluator: Evaluator, receiver: Variable, other: Variable, /) -> Variable:
    from ...variables.operations import is_same_object

    same = is_same_object(evaluator, receiver, other)
    return ConstantVariable(True if same else NotImplemented)
