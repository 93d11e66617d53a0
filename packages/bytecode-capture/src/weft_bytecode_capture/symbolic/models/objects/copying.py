"""``copy.copy`` and ``copy.deepcopy`` of values that have no copying methods of their own."""

from __future__ import annotations

import copy
import copyreg
import types
from collections.abc import Callable
from typing import Any

import torch
from weft_guards import (
    AttributeSource,
    ConstantSource,
    DictContains,
    IsObject,
    LengthIs,
    StoragesApart,
    storage_address,
)

from ...._torch import storage_identity
from ....sources import FillsStorage, fills_storage
from ....unsupported import Unsupported
from ...policy import untagged
from ...polyfills.copying import slot_names
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
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
from .addresses import AddressVariable
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

_ASKED = ("__getattr__", "__getattribute__")  # what an object may say of hooks that its class lacks

_OF_MODULES = (
    vars(torch.nn.Module)["__getattr__"],
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
def _deepcopy(evaluator: Evaluator, value: Variable, memo: Variable | None = None) -> Variable:
    if isinstance(memo, MemoVariable):
        return memo.copier(value)
    if memo is not None and not memo.is_none():
        raise Unsupported("arguments of a builtin function", "deepcopy")
    copier = _DeepCopier(evaluator)
    made = copier(value)
    sources = tuple(tensor.source for tensor in copier.tensors if tensor.source is not None)
    if len(sources) > 1:
        evaluator.guard(sources[0], StoragesApart(sources, ()))
    return made


class _DeepCopier:
    """One call of ``deepcopy``, with the copies that it has made so far."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._copies: dict[int, tuple[Variable, Variable]] = {}  # by the original's id
        self.tensors: list[Any] = []  # those that share a storage have copies that do
        self.memo = MemoVariable(self)

    def known(self, original: Variable) -> Variable | None:
        row = self._copies.get(id(original))
        return None if row is None else row[1]

    def remember(self, original: Variable, made: Variable) -> None:
        self._copies[id(original)] = original, made

    def __call__(self, part: Variable) -> Variable:
        evaluator, known = self._evaluator, self.known(part)
        if known is not None:
            return known
        apart = _is_tensor(part) and all(_are_apart(evaluator, part, one) for one in self.tensors)
        if apart:
            self.tensors.append(part)
            known = _copied_tensor(evaluator, part)
        elif _is_parameter(part):
            known = _copied_parameter(evaluator, part)
        if known is None:
            known = _copied(evaluator, part, self, self.remember)
        self.remember(part, known)
        return known


class MemoVariable(DictVariable):
    """The ``memo`` that methods for copies are given: the copy of each original by its address."""

    def __init__(self, copier: _DeepCopier) -> None:
        super().__init__()
        self.copier = copier

    def lookup(self, evaluator: Evaluator, key: Variable) -> Variable | None:
        original = _at_address(evaluator, key)
        if original is None:
            return super().lookup(evaluator, key)
        return self.copier.known(original)

    def contains(self, evaluator: Evaluator, key: Variable) -> bool:
        return self.lookup(evaluator, key) is not None

    def store(self, evaluator: Evaluator, key: Variable, value: Variable) -> None:
        original = _at_address(evaluator, key)
        if original is None:
            super().store(evaluator, key, value)
        else:
            self.copier.remember(original, value)

    def length(self, evaluator: Evaluator) -> int:
        raise Unsupported("copy of a value", "of which all that is copied is asked for")

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        raise Unsupported("copy of a value", "of which all that is copied is asked for")

    def reconstruct(self, emitter: Any) -> None:
        raise Unsupported("value cannot be rebuilt after a graph", "the memo of a copy")


def _at_address(evaluator: Evaluator, key: Variable) -> Variable | None:
    """The object whose address a key is, as far as the evaluator knows it."""
    if isinstance(key, AddressVariable):
        return key.held
    if not key.is_constant() or type(key.as_constant()) is not int:
        return None
    rows = evaluator.builder.wrapped()
    return next((known for value, known, _ in rows if id(value) == key.as_constant()), None)


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
    storage = value.storage
    if not is_plain_instance(evaluator, value):
        return _copied_by_protocol(evaluator, value, part)
    made = UserObjectVariable(value.kind)
    remember(value, made)
    if storage is not None:
        made.hold(_copied(evaluator, storage, part, _same_object))
    for key, entry in value.instance_dictionary().all_entries(evaluator).items():
        name = key.variable.as_constant()
        if name != _COMPILED or not issubclass(value.kind, torch.nn.Module):
            made.attributes[name] = part(entry)
    return made


def is_plain_instance(evaluator: Evaluator, value: UserObjectVariable) -> bool:
    """Whether nothing but its attributes, and a builtin base's elements, makes a copy of it."""
    is_plain = not isinstance(value.storage, (SetVariable, DequeVariable))  # whose class is called
    for name in (*_HOOKS, *_ASKED):
        found = evaluator.state.find_in_type(value.kind, name)
        if found is None or is_builtin_descriptor(found[1]):
            guard_default(evaluator, value.kind, name, found)
        elif not any(untagged(found[1]) is function for function in _OF_MODULES):
            is_plain = False
    has_slots = any(
        isinstance(raw, types.MemberDescriptorType)
        for base in value.kind.__mro__
        for raw in vars(base).values()
    )
    if not is_plain or has_slots:
        return False
    _require_no_reducer(evaluator, value.kind)
    return True


def _copied_by_protocol(evaluator: Evaluator, value: UserObjectVariable, part: Copier) -> Variable:
    """A copy by the methods of its class, ``__reduce_ex__`` if there is no other: as ``copy`` makes it."""
    memo: Variable = part.memo if isinstance(part, _DeepCopier) else ConstantVariable(None)
    if isinstance(part, _DeepCopier):
        copier = value.find_attribute(evaluator, "__deepcopy__")
        given = memo
    else:
        copier = evaluator.wrap_known(value.kind).find_attribute(evaluator, "__copy__")
        given = value
    if copier is not None:
        return copier.call(evaluator, [given], {})
    _require_no_reducer(evaluator, value.kind)
    reducer = value.get_attribute(evaluator, "__reduce_ex__")
    reduced = reducer.call(evaluator, [ConstantVariable(4)], {})
    if reduced.python_type() is str:
        return value
    rebuild = evaluator.wrap_known(vars(copy)["_reconstruct"])
    return rebuild.call(evaluator, [value, memo, *reduced.iterate(evaluator)], {})


def _require_no_reducer(evaluator: Evaluator, kind: type) -> None:
    """Refuse a class for which ``copyreg.pickle`` has registered a function."""
    table = ConstantSource("copyreg.dispatch_table", copyreg.dispatch_table)
    if kind in copyreg.dispatch_table:
        raise Unsupported("copy of a value", f"of {kind.__qualname__}, by a registered function")
    evaluator.guard(table, DictContains(kind, False))


@model(slot_names)
def _slot_names(evaluator: Evaluator, kind: Variable, /) -> Variable:
    assert isinstance(kind, ClassVariable)
    return evaluator.wrap_result(list(slot_names(kind.value)))


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
