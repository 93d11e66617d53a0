"""``copy.copy`` and ``copy.deepcopy`` of values that have no copying methods of their own."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
from weft_guards import AttributeSource, IsObject, LengthIs, StoragesApart, storage_address

from ...._torch import storage_identity
from ....sources import FillsStorage, fills_storage
from ....unsupported import Unsupported
from ...policy import untagged
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.keys import HashedKey
from ..containers.deques import DequeVariable
from ..containers.mappings import DictVariable, MappingProxyVariable, OrderedDictVariable
from ..containers.sequences import ListVariable, TupleVariable
from ..containers.sets import FrozenSetVariable, SetVariable, new_set
from ..containers.unread_tuples import is_tuple
from ..functions.identified_functions import BuiltinFunctionVariable
from ..functions.python_functions import FunctionVariable
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..table import model
from ..torch.nn_module import ModuleInstanceVariable
from .class_attributes import guard_default, is_builtin_descriptor
from .classes import ClassVariable
from .modules import ModuleVariable
from .user_objects import UserObjectVariable

_HOOKS = (
    "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__",
    "__getnewargs__", "__getnewargs_ex__",
)  # fmt: skip
_SHARED = (
    ClassVariable,
    FunctionVariable,
    BuiltinFunctionVariable,
    ModuleVariable,
    SymbolicNumberVariable,
)

_OF_MODULES = (
    vars(torch.nn.Module).get("__getstate__"),  # leaves out what ``compile`` has made
    untagged(torch.nn.Module.__setstate__),  # adds what modules of older versions lack
)
_INSTANCES = (UserObjectVariable, ModuleInstanceVariable)
_COMPILED = "_compiled_call_impl"

Copier = Callable[[Variable], Variable]


def _same(part: Variable) -> Variable:
    return part


@model(copy.copy)
def _copy(evaluator: Evaluator, value: Variable) -> Variable:
    if _is_tensor(value):
        return _second_tensor(evaluator, value)
    return _copied(evaluator, value, _same, _same_object)


def _same_object(value: Variable, made: Variable) -> None:
    """A shallow copy meets no object twice."""


@model(copy.deepcopy)
def _deepcopy(evaluator: Evaluator, value: Variable) -> Variable:
    memo: dict[int, Variable] = {}

    def remember(original: Variable, made: Variable) -> None:
        memo[id(original)] = made

    tensors: list[Any] = []  # those that share a storage have copies that do

    def deep(part: Variable) -> Variable:
        known = memo.get(id(part))
        if (
            known is None
            and _is_tensor(part)
            and all(_are_apart(evaluator, part, one) for one in tensors)
        ):
            tensors.append(part)
            known = _copied_tensor(evaluator, part)
        if known is None and _is_parameter(part):
            known = _copied_parameter(evaluator, part)
        if known is None:
            known = _copied(evaluator, part, deep, remember)
        memo[id(part)] = known
        return known

    made = deep(value)
    sources = tuple(tensor.source for tensor in tensors if tensor.source is not None)
    if len(sources) > 1:
        evaluator.guard(sources[0], StoragesApart(sources, ()))
    return made


def _copied(
    evaluator: Evaluator,
    value: Variable,
    part: Copier,
    remember: Callable[[Variable, Variable], None],
) -> Variable:
    """A copy whose parts are what ``part`` makes of the original's."""
    if isinstance(value, SetVariable):
        return _copied_set(evaluator, value, part)
    if value.is_constant() or isinstance(value, _SHARED):
        return value
    if is_tuple(value):
        items = [part(item) for item in value.items(evaluator)]
        unchanged = all(new is old for new, old in zip(items, value.items(evaluator), strict=True))
        return value if unchanged else TupleVariable(items)
    if type(value) is ListVariable:
        made = ListVariable()
        remember(value, made)
        made.items(evaluator).extend(part(item) for item in value.items(evaluator))
        return made
    if isinstance(value, DictVariable) and not isinstance(value, MappingProxyVariable):
        new = value.new_like({})
        remember(value, new)
        if isinstance(value, OrderedDictVariable) and isinstance(new, OrderedDictVariable):
            attributes = value.all_attributes(evaluator)
            new.attributes.update((name, part(held)) for name, held in attributes.items())
        new.entries.update(_copied_entries(evaluator, value, part))
        return new
    if type(value) is DequeVariable:
        made = DequeVariable(longest=value.longest)
        remember(value, made)
        made.items(evaluator).extend(part(item) for item in value.items(evaluator))
        return made
    if isinstance(value, UserObjectVariable) and type(value) in _INSTANCES:
        return _copied_instance(evaluator, value, part, remember)
    raise Unsupported("copy of a value", repr(value))


def _copied_entries(
    evaluator: Evaluator, value: DictVariable, part: Copier
) -> dict[HashedKey, Variable]:
    return {key: part(entry) for key, entry in value.all_entries(evaluator).items()}


def _copied_set(evaluator: Evaluator, value: SetVariable, part: Copier) -> Variable:
    """A shallow copy has the table; a deep one is made of a list of the elements' copies."""
    if part is _same:
        is_frozen = isinstance(value, FrozenSetVariable)
        return value if is_frozen else new_set(evaluator, type(value), value)
    made = type(value).of(evaluator, [part(element) for element in value.elements(evaluator)])
    made.order_known = value.order_known
    return made


def _copied_instance(
    evaluator: Evaluator,
    value: UserObjectVariable,
    part: Copier,
    remember: Callable[[Variable, Variable], None],
) -> Variable:
    """A new instance of the class with the attributes; ``__init__`` does not run."""
    for name in _HOOKS:
        found = evaluator.state.find_in_type(value.kind, name)
        if found is None or is_builtin_descriptor(found[1]):
            guard_default(evaluator, value.kind, name, found)
            continue
        if not any(untagged(found[1]) is function for function in _OF_MODULES):
            raise Unsupported("copy of a value", f"{value!r}, by its {name}")
    if any(
        isinstance(raw, types.MemberDescriptorType)
        for base in value.kind.__mro__
        for raw in vars(base).values()
    ):
        raise Unsupported("copy of a value", f"{value!r}, which has slots")
    storage = value.storage
    if isinstance(storage, (SetVariable, DequeVariable)):
        raise Unsupported("copy of a value", f"{value!r}, whose class is called for a copy")
    made = UserObjectVariable(value.kind)
    remember(value, made)
    if storage is not None:
        made.hold(_copied(evaluator, storage, part, _same_object))
    for key, entry in value.instance_dictionary().all_entries(evaluator).items():
        name = key.variable.as_constant()
        if name != _COMPILED or not issubclass(value.kind, torch.nn.Module):
            made.attributes[name] = part(entry)
    return made


def _is_tensor(value: Variable) -> bool:
    return value.node is not None and value.python_type() is torch.Tensor


def _is_parameter(value: Variable) -> bool:
    return value.node is not None and value.python_type() is torch.nn.Parameter


def _copied_parameter(evaluator: Evaluator, value: Any) -> Variable:
    """As ``Parameter.__deepcopy__`` makes it: a leaf without the gradient, and nothing that was attached."""
    if value.attributes.keys() - {"grad"}:
        raise Unsupported("copy of a value", repr(value))
    requires_grad = value.get_attribute(evaluator, "requires_grad")
    data = evaluator.call_method(value.get_attribute(evaluator, "data"), "clone")
    made = evaluator.wrap_known(torch.nn.Parameter)
    return made.call(evaluator, [data, requires_grad], {})


def _are_apart(evaluator: Evaluator, value: Any, other: Any) -> bool:
    """Whether two tensors have a storage each; of two from outside a guard has to hold it."""
    if value.source is not None and other.source is not None:
        value, other = (evaluator.builder.value_of(tensor) for tensor in (value, other))
        address = storage_address(value)
        return bool(address) and address != storage_address(other)
    return storage_identity(value.fake) != storage_identity(other.fake)


def _second_tensor(evaluator: Evaluator, value: Any) -> Variable:
    """The shallow copy of a tensor without gradients: another with the storage, of which no write tells."""
    fake = value.fake
    if fake.requires_grad:
        raise Unsupported("copy of a value", repr(value))
    _require_plain(evaluator, value)
    made: Variable = value.get_attribute(evaluator, "data")
    return made


def _require_plain(evaluator: Evaluator, value: Any) -> None:
    """Refuse tensors of which a copy is more than their elements: those with attributes, bits, or a level."""
    fake = value.fake
    is_plain = fake.layout == torch.strided and not (fake.is_conj() or fake.is_neg())
    levels = evaluator.graph.transforms.active or evaluator.state.overrides.modes
    is_inference = fake.is_inference() or torch.is_inference_mode_enabled()
    in_region = evaluator.graph.is_in_region
    if not is_plain or levels or in_region or is_inference or value.attributes:
        raise Unsupported("copy of a value", repr(value))
    if value.source is not None:
        if evaluator.builder.value_of(value).__dict__:
            raise Unsupported("copy of a value", repr(value))
        evaluator.guard(AttributeSource(value.source, "__dict__"), LengthIs(0))


def _copied_tensor(evaluator: Evaluator, value: Any) -> Variable:
    """The copy of a tensor with a storage for itself and neither gradients nor attributes."""
    fake = value.fake
    _require_plain(evaluator, value)
    if value.source is None:
        size = fake.numel() * fake.element_size()
        has_more = fake.storage_offset() != 0 or fake.untyped_storage().nbytes() != size
    else:
        given = evaluator.builder.value_of(value)
        has_more = given.grad is not None or not fills_storage(given)
        evaluator.guard(value.source, FillsStorage())
        evaluator.guard(AttributeSource(value.source, "grad"), IsObject(None))
    if fake.requires_grad or has_more:
        raise Unsupported("copy of a value", repr(value))
    made: Any = evaluator.call_method(value, "clone")
    if made.fake.stride() != fake.stride():
        raise Unsupported("copy of a value", repr(value))
    return made  # type: ignore[no-any-return]
