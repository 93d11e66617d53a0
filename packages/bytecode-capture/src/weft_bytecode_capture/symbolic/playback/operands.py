"""A call's arguments: which may be played back, and when two calls' are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..._torch import storage_identity
from ..._torch.fakes import FakeTensor, is_strided
from ..._torch.symbols import expression_of
from ..graph.storages import version_of
from ..models.containers.mappings import DictVariable
from ..models.containers.sequences import ListVariable, TupleVariable
from ..models.functions.python_functions import KnownFunctionVariable
from ..models.numbers.symbolic_number import SymbolicNumberVariable
from ..models.objects.user_objects import UserObjectVariable
from ..models.torch.nn_module import ModuleInstanceVariable
from ..models.torch.tensor import TensorVariable
from ..variables.base import Variable
from ..variables.builder import same_constant
from ..variables.constant import ConstantVariable

Form = list[Any]
"""How arguments nest, in a list that is compared."""


def flattened(
    arguments: Sequence[Variable], keywords: Mapping[str, Variable]
) -> tuple[Form, list[Variable]] | None:
    """The form of a call's arguments, and what is in them; None where an argument is no plain value.

    A list or an object that captured code made can change, and would have to be compared deeply.
    """
    form: Form = [len(arguments), *keywords]
    found: list[Variable] = []
    for argument in (*arguments, *keywords.values()):
        if not _flatten(argument, form, found):
            return None
    return form, found


def _flatten(variable: Variable, form: Form, found: list[Variable]) -> bool:
    kind = type(variable)
    if kind is TupleVariable and variable.source is None and variable.is_read:  # type: ignore[attr-defined]
        items = variable._items  # type: ignore[attr-defined]
        form.append(len(items))
        return all(_flatten(item, form, found) for item in items)
    form.append(kind)
    found.append(variable)
    if isinstance(variable, TensorVariable):
        return is_plain_tensor(variable)
    if kind is ConstantVariable:
        return True
    if kind is SymbolicNumberVariable:
        return variable.quotient is None  # type: ignore[attr-defined]
    return kind in _OBJECTS and variable.source is not None


_OBJECTS = frozenset(
    {ModuleInstanceVariable, UserObjectVariable, KnownFunctionVariable}
    | {TupleVariable, ListVariable, DictVariable}
)
"""Objects from outside, which say when they are read or written to."""


def is_plain_tensor(variable: Variable) -> bool:
    """Whether a tensor is all that its fake says."""
    return (
        type(variable) is TensorVariable
        and type(variable.fake) is FakeTensor
        and not variable.attributes
        and not variable.is_regional
        and variable.element is None
        and variable.changed is None
        and is_strided(variable.fake)
        and variable.fake.constant is None
    )


def is_untouched_module(variable: Variable) -> bool:
    """Whether captured code has left a module as it came from outside."""
    return (
        type(variable) is ModuleInstanceVariable
        and not variable.attributes
        and variable.storage is None
    )


def look(fake: torch.Tensor) -> tuple[Any, ...]:
    """All that evaluation may ask of a tensor but its contents."""
    assert isinstance(fake, FakeTensor)
    return (
        fake.dtype,
        _plain(fake.shape),
        _plain(fake.stride()),
        *_plain((fake.storage_offset(), fake.untyped_storage().nbytes())),
        fake.fake_device,
        fake.requires_grad,
        not fake.requires_grad or fake.is_leaf,
        type(fake.grad_fn) if fake.requires_grad else None,
        fake.is_inference(),
        fake._is_view(),
        fake.is_conj(),
        fake.is_neg(),
        version_of(fake),
    )


def _plain(numbers: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        n if type(n) is int else expression_of(n) if isinstance(n, torch.SymInt) else n
        for n in numbers
    )


def aliasing(variables: Sequence[Variable]) -> list[int]:
    """For each tensor, the first that has the same memory."""
    first: dict[int, int] = {}
    return [
        first.setdefault(storage_identity(variable.fake), place)
        for place, variable in enumerate(variables)
        if isinstance(variable, TensorVariable)
    ]


def are_alike(old: Variable, new: Variable) -> bool:
    """Whether two arguments of one type, apart from modules and how tensors look, are the same."""
    if old is new:
        return True
    if isinstance(old, ConstantVariable) and isinstance(new, ConstantVariable):
        return same_constant(old.value, new.value)
    if isinstance(old, TensorVariable):  # what is found somewhere is that very tensor
        return old.source is None and new.source is None
    if isinstance(old, SymbolicNumberVariable) and isinstance(new, SymbolicNumberVariable):
        same = expression_of(old.value) == expression_of(new.value)
        return same and old.number_node is new.number_node and old.source == new.source
    return is_untouched_module(old) and is_untouched_module(new)
