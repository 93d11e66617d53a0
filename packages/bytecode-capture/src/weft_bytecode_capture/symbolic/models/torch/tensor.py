"""Tensors: nodes of the graph, known by their fake tensors."""

from __future__ import annotations

import operator as operator_module
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from weft_guards import (
    AttributeSource,
    Source,
)

from ...._torch.symbols import expression_of, has_unbacked_symbols, unbacked_symbols
from ...._torch.transforms import is_of_level
from ....frame.emitter import Emitter
from ....sources import ConvertedSource, plain_tensor
from ....unsupported import OPERATOR_REJECTS, Unsupported
from ...graph.answers import HELD_ATTRIBUTES, HELD_METHODS, gradient_of, guard_leaf, guard_offset
from ...graph.histories import raise_for_view, with_history
from ...graph.known_contents import known_contents
from ...protocol import Evaluator
from ...regions.loops.iteration_sizes import (
    differ_by_iteration,
    is_known_inside,
    size_known_inside,
    size_variable,
)
from ...shapes import DataSymbolSource
from ...variables.base import Arguments, Keywords, Variable
from ...variables.constant import OPERATORS, ConstantVariable
from ...variables.hashing import outside_key
from ...variables.keys import HashedKey
from ...variables.python_protocols import no_attribute, operand_of
from ..builtins.methods import BuiltinMethodVariable
from ..containers.sequences import ListVariable, TupleVariable
from ..numbers.data_numbers import known_truth
from ..numbers.representations import NumberVariable
from ..numbers.symbolic_integer import has_symbolic_integer
from ..table import model_of
from .numbers_read import number_of_data
from .own_attributes import WithAttributes
from .own_generators import OwnGenerator
from .tensor_class import found_in_class, require_torchs
from .tensor_subscripts import (
    otherwise_subscripted,
    require_assignable,
    require_ordinary_slices,
    selected_part,
)
from .torch_values import SizeVariable, StructSequenceVariable

if TYPE_CHECKING:
    from ...graph.changed_leaves import ChangedLeaf
    from ...regions.elements import ElementCopy

# Of the attributes of tensors that guards hold, what the iterations of a loop may change.
_GRADIENT_METADATA = frozenset({"requires_grad", "is_leaf", "grad_fn"})
_TENSOR_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
_VALUE = "value of a tensor as a Python object"
_STORAGE = "storage of a tensor"
_HOOK = "hook of a tensor"
# Methods that a graph cannot hold, and the kind of break that each is.
REFUSED_METHODS = {
    **dict.fromkeys(("item", "tolist", "numpy", "__array__"), _VALUE),
    **dict.fromkeys(("__bool__", "__int__", "__float__", "__index__", "__complex__"), _VALUE),
    **dict.fromkeys(("data_ptr", "storage", "untyped_storage", "set_", "resize_"), _STORAGE),
    **dict.fromkeys(("share_memory_", "resize_as_", "pin_memory"), _STORAGE),
    **dict.fromkeys(("apply_", "map_", "map2_"), "Python function applied to each element"),
    "backward": "backward pass inside the function",
    "register_hook": _HOOK,
    "register_post_accumulate_grad_hook": _HOOK,
    "retain_grad": _HOOK,
    "requires_grad_": "change of requires_grad",
}


_ITS_OWN = frozenset(
    {
        "detach_", "grad", "grad_fn", "is_leaf", "register_hook", "register_post_accumulate_grad_hook",
        "requires_grad_", "retain_grad", "retains_grad", "set_",
    }
)  # fmt: skip
"""What a tensor and a view of all of it have apart."""


class TensorVariable(WithAttributes):
    """A tensor of the graph; ``fake`` has its metadata, ``node`` is where its value comes from."""

    is_regional = False  # what a region is given or gives: which object it is may depend on data
    element: ElementCopy | None = None  # of what the graph has a copy in its place
    changed: ChangedLeaf | None = None  # how a leaf from outside is no more what it was

    def __init__(self, node: torch.fx.Node, fake: torch.Tensor, source: Source | None) -> None:
        self._node = node
        self.fake = fake
        self.source = source
        self.attributes = {}

    @property
    def node(self) -> torch.fx.Node:
        if self.element is not None:
            self.element.check_read()
        if self.changed is not None:
            self.changed.check_read()
        return self._node

    @node.setter
    def node(self, node: torch.fx.Node) -> None:
        self._node = node

    def python_type(self) -> type:
        return torch.nn.Parameter if isinstance(self.fake, torch.nn.Parameter) else torch.Tensor

    def as_constant(self) -> Any:
        raise Unsupported(_VALUE, repr(self))

    def same_object(self, evaluator: Evaluator, other: Variable) -> bool | None:
        if not isinstance(other, TensorVariable) or not (self.is_regional or other.is_regional):
            return None
        if self.fake.dtype != other.fake.dtype or self.fake.dim() != other.fake.dim():
            return False
        raise Unsupported("identity of a tensor that a region gives", f"{self!r} is {other!r}")

    def truth(self, evaluator: Evaluator) -> bool:
        if is_of_level(self.fake):  # what stands for several has no truth, and the graph knows none
            raise Unsupported("branch on a tensor's value", repr(self))
        is_one = evaluator.graph.shapes.specialise(self.fake.numel() == 1)
        known = known_truth(self.node) if is_one else None
        if is_one and known is None:
            contents = known_contents(evaluator, self)
            known = None if contents is None else bool(contents)
        if known is None and is_one:
            known = evaluator.assumed(self)
        if known is None:
            raise Unsupported("branch on a tensor's value", repr(self))
        return known

    def length(self, evaluator: Evaluator) -> int:
        require_torchs(evaluator, "__len__")
        if evaluator.state.overrides.modes:
            found = evaluator.state.overrides.overridden(
                evaluator, torch.Tensor.__len__, [self], {}
            )
            if found is not None:
                return int(found.as_constant())
        if self.fake.dim() == 0:
            evaluator.raise_error(TypeError, "len() of a 0-d tensor")
        return int(evaluator.graph.shapes.specialise(self.fake.shape[0]))

    def length_variable(self, evaluator: Evaluator) -> Variable:
        """A number that varies where the number of rows differs between calls, and no mode says another."""
        require_torchs(evaluator, "__len__")
        rows = self.fake.shape[0] if self.fake.dim() else 0
        modes = evaluator.state.overrides.modes
        if isinstance(rows, torch.SymInt) and (unbacked_symbols(rows) or not modes):
            return self.call_method(evaluator, "size", [ConstantVariable(0)], {})
        return super().length_variable(evaluator)

    def iterate(self, evaluator: Evaluator) -> list[Variable]:
        require_torchs(evaluator, "__iter__")
        if evaluator.state.overrides.modes:
            self.call_method(evaluator, "dim", [], {})  # as torch.Tensor.__iter__ does
        if self.fake.dim() == 0:
            evaluator.raise_error(TypeError, "iteration over a 0-d tensor")
        rows = self.call_method(evaluator, "unbind", [ConstantVariable(0)], {})
        return rows.iterate(evaluator)

    def iterator(self, evaluator: Evaluator) -> Variable:
        return TupleVariable(self.iterate(evaluator)).iterator(evaluator)  # as in eager

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if evaluator.state.overrides.modes and not callable(getattr(torch.Tensor, name, None)):
            found = evaluator.state.overrides.overridden(
                evaluator, getattr, [self, ConstantVariable(name)], {}
            )
            if found is not None:
                return found
        if not callable(getattr(torch.Tensor, name, None)):
            require_torchs(evaluator, name)
        self._require_itself(name)
        if name == "shape":
            return self._query(evaluator, "size")
        if name == "nbytes":
            elements = self._query(evaluator, "numel")
            itemsize = ConstantVariable(self.fake.itemsize)
            return evaluator.binary_operation("mul", elements, itemsize)
        if name in _GRADIENT_METADATA:
            self._check_gradients_known(evaluator, name)
            if self.node in evaluator.graph.marked_leaves:
                return ConstantVariable(None if name == "grad_fn" else True)
            if evaluator.graph.marked_leaves and evaluator.graph.is_in_region:
                raise Unsupported("question about gradients inside a region", f"{self!r}.{name}")
            evaluator.graph.marked_leaves.require_unmarked([self.node])
        if name == "is_leaf":
            self._guard_leaf(evaluator)
        if name in HELD_ATTRIBUTES:
            return evaluator.wrap_result(self._held_attribute(evaluator, name))
        if name in _TENSOR_ATTRIBUTES:
            read = self.changed.memory_of(self) if name == "data" and self.changed else self
            return evaluator.graph.call_function(
                evaluator, getattr, [read, ConstantVariable(name)], {}
            )
        if name == "grad":
            return self._gradient(evaluator)
        if name == "__class__":
            return evaluator.wrap_known(self.python_type())
        if name == "grad_fn" and self._has_no_history(evaluator):
            return ConstantVariable(None)
        if not hasattr(torch.Tensor, name):
            found_own = self.own_attribute(evaluator, name)
            return found_own or no_attribute(evaluator, self.python_type().__name__, name)
        if not callable(getattr(torch.Tensor, name)):
            raise with_history(
                evaluator,
                [(self.node, self.fake)] if name == "grad_fn" else [],
                Unsupported("attribute of a tensor", f"{self!r}.{name}"),
            )
        return BuiltinMethodVariable(self, name)

    def _require_itself(self, name: str) -> None:
        """Refuse what is asked of an argument of a derived class, for which a view of it stands."""
        stands_in = isinstance(self.source, ConvertedSource) and self.source.convert is plain_tensor
        if stands_in and name in _ITS_OWN:
            raise Unsupported("tensor of unusual kind", f"{self!r}.{name}")

    def _held_attribute(self, evaluator: Evaluator, name: str) -> Any:
        try:
            return getattr(self.fake, name)
        except RuntimeError as error:  # ``is_leaf`` of a view that was written to since
            raise_for_view(evaluator, error, self.fake)
            raise Unsupported(OPERATOR_REJECTS, f"{name}: {error}") from error

    def _has_no_history(self, evaluator: Evaluator) -> bool:
        if self.node in evaluator.graph.new_leaves or not self.fake.requires_grad:
            return True
        self._guard_leaf(evaluator)
        return bool(self._held_attribute(evaluator, "is_leaf"))

    def _guard_leaf(self, evaluator: Evaluator) -> None:
        for source, tensor, fake in evaluator.graph.given:
            if fake is self.fake:
                guard_leaf(evaluator, source, tensor)

    def _check_gradients_known(self, evaluator: Evaluator, name: str) -> None:
        """Refuse to tell in a region what a later iteration may find otherwise."""
        builder, fake = evaluator.graph, self.fake
        optional = builder.optional_gradients
        if fake.requires_grad and self.source is None and optional.may_lack(fake):
            raise Unsupported("question about gradients that depend on data", f"{self!r}.{name}")
        inside = builder.is_in_region and torch.is_grad_enabled()
        may_differ = fake.dtype.is_floating_point or fake.dtype.is_complex
        if inside and may_differ and not (fake.requires_grad and fake.is_leaf):
            raise Unsupported("question about gradients inside a region", f"{self!r}.{name}")

    def _query(self, evaluator: Evaluator, name: str, *arguments: Any, **keywords: Any) -> Variable:
        """What a method that asks for metadata gives; symbolic numbers in it are nodes."""
        if name == "storage_offset":
            guard_offset(evaluator, self.fake)
        evaluator.state.aliases.strides.before(evaluator.state.cache, name)
        value = evaluator.pure(getattr(self.fake, name), *arguments, **keywords)
        evaluator.graph.shapes.note_relations()
        node = self.node

        def number(part: Any, *place: Any) -> Variable:
            if differ_by_iteration(evaluator.frame, [part]):
                return size_variable(evaluator.frame, part)
            if is_known_inside(evaluator.frame, part):
                return size_known_inside(evaluator.frame, node, (name, *place), keywords, part)
            return evaluator.graph.number(
                part,
                lambda graph: (
                    graph.call_method(name, (node, *place), keywords)
                    if node.graph is graph
                    else None
                ),
                None,
            )

        if isinstance(value, tuple) and all(type(part) in (int, torch.SymInt) for part in value):
            items = [number(part, position) for position, part in enumerate(value)]
            return SizeVariable(items) if isinstance(value, torch.Size) else TupleVariable(items)
        if isinstance(value, torch.SymInt):
            return number(value, *arguments)
        return wrap_graph_result(evaluator, None, value)

    def _gradient(self, evaluator: Evaluator) -> Variable:
        evaluator.graph.hooks.check_read(self)
        if "grad" in self.attributes:
            return self.attributes["grad"]
        if self.source is None:
            is_new = self.node in evaluator.graph.new_leaves
            if is_new or not self.fake.requires_grad:
                return ConstantVariable(None)
            if not self._held_attribute(evaluator, "is_leaf"):
                return ConstantVariable(None)
            raise Unsupported("attribute of a tensor", f"{self!r}.grad")
        value = gradient_of(evaluator, self.source, evaluator.builder.value_of(self))
        return evaluator.builder.wrap(value, AttributeSource(self.source, "grad"))

    def hashed_key(self, evaluator: Evaluator) -> HashedKey:
        return outside_key(evaluator, self)

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if (
            name == "requires_grad"
            and self._has_requires_grad(evaluator, value)
            and self._held_attribute(evaluator, "is_leaf")
        ):
            self._guard_leaf(evaluator)
            return
        if name == "requires_grad" and self._is_marked(evaluator, [value], {}):
            return
        if name == "data" and value is self:
            return  # as module.to() does where there is nothing to convert
        if name in ("data", "grad") and self.source is None:
            evaluator.graph.marked_leaves.require_none_among([self.node])
        if name == "data" and evaluator.graph.changed_leaves.give_memory(evaluator, self, value):
            return
        if name == "grad" and self._takes_gradient(evaluator, value):
            self.write_attribute(evaluator, name, value)
            return
        if hasattr(torch.Tensor, name):
            raise Unsupported("attribute write", f"{self!r}.{name}")
        self.write_attribute(evaluator, name, value)

    def _takes_gradient(self, evaluator: Evaluator, value: Variable) -> bool:
        """Whether a write to ``grad`` is captured: None, or a tensor as eager takes it."""
        if evaluator.graph.is_in_region or not self.fake.is_leaf:
            return False
        if self.source is None and self.node not in evaluator.graph.new_leaves:
            return False
        self._guard_leaf(evaluator)
        if self.source is not None and not evaluator.builder.value_of(self).is_leaf:
            return False
        if type(value) is not TensorVariable:
            return value.is_none()
        own, given = self.fake, value.fake
        same = own.requires_grad and all(
            getattr(own, k) == getattr(given, k) for k in ("dtype", "device", "layout")
        )
        return same and own.shape == given.shape and value is not self

    def _changes_nothing(
        self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords
    ) -> bool:
        given = [*arguments, *keywords.values()] or [ConstantVariable(True)]
        is_call = len(given) == 1 and keywords.keys() <= {"requires_grad"}
        return is_call and self._has_requires_grad(evaluator, given[0])

    def _is_marked(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> bool:
        """Whether the program says of a tensor that it requires gradients, and a graph has it so."""
        wanted = (
            arguments[0] if arguments else keywords.get("requires_grad", ConstantVariable(True))
        )
        if evaluator.graph.changed_leaves.let_require(evaluator, self, wanted):
            return True
        if not wanted.is_constant() or wanted.as_constant() is not True:
            return False
        if self.source is not None:
            return bool(evaluator.graph.marked_inputs.mark(evaluator, self))
        return self.becomes_leaf(evaluator)

    def becomes_leaf(self, evaluator: Evaluator) -> bool:
        """Let a tensor that the graph has made require gradients; False where the graph cannot have it so."""
        graph = evaluator.graph
        if evaluator.state.options.make_leaves and graph.new_leaves.become(evaluator, self):
            return True
        return graph.marked_leaves.mark(evaluator, self.node, self.fake)

    def _has_requires_grad(self, evaluator: Evaluator, value: Variable) -> bool:
        if self.node in evaluator.graph.marked_leaves:
            if not (value.is_constant() and value.as_constant() is True):
                evaluator.graph.marked_leaves.require_unmarked([self.node])
            return True
        return value.is_constant() and value.as_constant() is self.fake.requires_grad

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        method = found_in_class(evaluator, name)
        if method is not None:
            found = evaluator.state.overrides.overridden(
                evaluator, method, [self, *arguments], keywords
            )
            if found is not None:
                return found
        self._require_itself(name)
        if name == "requires_grad_":
            self._check_gradients_known(evaluator, name)
        if name == "requires_grad_" and self._changes_nothing(evaluator, arguments, keywords):
            return self
        if name == "requires_grad_" and self._is_marked(evaluator, arguments, keywords):
            return self
        model = model_of(method)
        if model is not None and isinstance(method, FunctionType):
            return model.call(evaluator, [self, *arguments], keywords)
        if model is not None:
            return model.call(evaluator, arguments, keywords, self)
        number = number_of_data(evaluator, self, name, arguments, keywords)
        if number is not None:
            return number
        if name in REFUSED_METHODS and not (
            (name == "requires_grad_" and is_of_level(self.fake))
            or (name == "resize_" and self.source is not None)
        ):
            raise self.refused_method(evaluator, name)
        if name == "_is_view" and self.source is None and not evaluator.graph.is_in_region:
            return ConstantVariable(self.fake._is_view())
        if name in HELD_METHODS:
            positional, named = evaluator.snapshots(arguments, keywords, name)
            return self._query(evaluator, name, *positional, **named)
        if name in ("__getitem__", "__setitem__"):
            return self._subscript(evaluator, name, arguments, keywords)
        if not callable(getattr(torch.Tensor, name, None)):
            no_attribute(evaluator, "Tensor", name)
        if isinstance(generator := keywords.get("generator"), OwnGenerator):
            given = {key: value for key, value in keywords.items() if key != "generator"}
            return generator.fill(evaluator, self, name, arguments, given)
        read = self.changed.memory_of(self) if name == "detach" and self.changed else self
        return evaluator.graph.call_method(evaluator, name, read, arguments, keywords)

    def refused_method(self, evaluator: Evaluator, name: str) -> Unsupported:
        """What is raised for a method that no graph has."""
        nodes = [(self.node, self.fake)] if REFUSED_METHODS[name] == _HOOK else []
        return with_history(
            evaluator, nodes, Unsupported(REFUSED_METHODS[name], f"{self!r}.{name}()")
        )

    def _subscript(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        from ...regions.elements import has_position, symbolic_subscript, with_numbers
        from .numbers_in_lists import with_listed_tensors, with_tensors_of_places

        arguments = [with_listed_tensors(evaluator, self, arguments[0]), *arguments[1:]]
        if evaluator.graph.shapes.any_symbolic and not evaluator.graph.is_in_region:
            key = with_tensors_of_places(evaluator, self, arguments[0])
            arguments = [key, *arguments[1:]]
        has_positions = has_position(arguments[0])
        if has_positions:
            arguments = [with_numbers(evaluator.frame, arguments[0]), *arguments[1:]]
            has_positions = evaluator.graph.is_in_region and has_position(arguments[0])
        if has_positions or has_symbolic_integer(arguments[0]):
            return symbolic_subscript(evaluator.frame, self, arguments)
        require_ordinary_slices(evaluator, arguments[0])
        found = otherwise_subscripted(evaluator, self, name, arguments)
        if found is not None:
            return found
        part = selected_part(evaluator, self, arguments[0])
        if part is not None and name == "__getitem__":
            return part
        if part is not None:
            arguments = [ConstantVariable(Ellipsis), *arguments[1:]]
            return part.call_method(evaluator, name, arguments, keywords)
        operands = [self, *arguments]
        if name == "__setitem__":
            require_assignable(arguments[1])
        if name == "__getitem__":
            return evaluator.graph.call_function(
                evaluator, operator_module.getitem, operands, keywords
            )
        evaluator.graph.call_function(evaluator, operator_module.setitem, operands, keywords)
        return ConstantVariable(None)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        from ..numbers.tensor_number import TensorNumberVariable

        function = OPERATORS.get(operator) or getattr(operator_module, operator, None)
        if isinstance(other, TensorNumberVariable):
            return other.with_tensor(evaluator, operator, self, reflected)
        numbers = (TensorVariable, NumberVariable)
        pair = [other, self] if reflected else [self, other]
        if function is not None:
            found = evaluator.state.overrides.overridden(evaluator, function, pair, {})
            if found is not None:
                return found
        operand = operand_of(other)
        if function is None or not (isinstance(operand, numbers) or operand.is_constant()):
            return None
        return evaluator.graph.call_function(evaluator, function, pair, {})

    def reconstruct(self, emitter: Emitter) -> None:
        raise Unsupported("a tensor that is no output of the graph", repr(self))

    def __repr__(self) -> str:
        return f"Tensor({self._node.name}: {self.fake.dtype}{list(self.fake.shape)})"


def on_device(evaluator: Evaluator, tensor: TensorVariable, device: torch.device) -> TensorVariable:
    """A flag or a number in a tensor of the graph at hand, on a device: itself, if it is there."""
    if tensor.fake.device == device:
        return tensor
    return tensor_of(evaluator, "to", tensor, device)


def tensor_of(
    evaluator: Evaluator, target: Callable[..., Any] | str, *arguments: Any, **keywords: Any
) -> TensorVariable:
    """The tensor that a function gives, or a method by its name, of variables and Python's own values."""

    def given(value: Any) -> Variable:
        return value if isinstance(value, Variable) else evaluator.wrap_result(value)

    operands = [given(value) for value in arguments]
    named = {name: given(value) for name, value in keywords.items()}
    if isinstance(target, str):
        made = evaluator.graph.call_method(evaluator, target, operands[0], operands[1:], named)
    else:
        made = evaluator.graph.call_function(evaluator, target, operands, named)
    assert isinstance(made, TensorVariable)
    return made


def wrap_graph_result(
    evaluator: Evaluator,
    node: torch.fx.Node | None,
    value: Any,
    given: Mapping[int, Variable] = MappingProxyType({}),
) -> Variable:
    """The variable of what a node, or a query of a fake tensor, gives.

    ``given`` has the arguments that the very tensor may be: of a call in place, or with ``out=``.
    """
    if isinstance(value, torch.Tensor):
        assert node is not None
        node.meta["example_value"] = value
        if id(value) in given:
            return given[id(value)]
        variable = TensorVariable(node, value, None)
        note_data_dependent_sizes(evaluator, variable)
        if evaluator.state.aliases.elements:
            from ...regions.elements import note_element_view

            note_element_view(evaluator.frame, variable)
        return variable
    if isinstance(value, torch.Size):
        return SizeVariable([wrap_graph_result(evaluator, None, size) for size in value])
    if type(value) in (tuple, list):
        items = []
        for index, item in enumerate(value):
            part = node
            if node is not None:
                part = node.graph.call_function(operator_module.getitem, (node, index))
                part.meta["stack_trace"] = node.meta.get("stack_trace")
            items.append(wrap_graph_result(evaluator, part, item, given))
        return TupleVariable(items) if type(value) is tuple else ListVariable(items)
    if isinstance(value, tuple) and hasattr(type(value), "n_sequence_fields"):
        parts = wrap_graph_result(evaluator, node, tuple(value), given).iterate(evaluator)
        return StructSequenceVariable(type(value), parts)
    if isinstance(value, torch.SymBool):
        return ConstantVariable(evaluator.graph.shapes.specialise(value))
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return _wrap_number(evaluator, node, value)
    return evaluator.wrap_result(value)


def note_data_dependent_sizes(evaluator: Evaluator, tensor: TensorVariable) -> None:
    """Note where the code after the graph reads the sizes of a result that depend on data.

    :raises Unsupported: the sizes are not to be symbols, or are not all that depends on data.
    """
    fake, graph = tensor.fake, evaluator.graph
    shape: tuple[Any, ...] = tuple(fake.shape)
    sizes = [size for size in shape if isinstance(size, torch.SymInt)]
    if not any(map(has_unbacked_symbols, sizes)) or differ_by_iteration(evaluator.frame, sizes):
        return
    tensor.node.meta["data_dependent"] = True
    if evaluator.state.options.data_dependent_sizes:
        for dimension, size in enumerate(() if graph.is_in_region else shape):
            if isinstance(size, torch.SymInt) and expression_of(size).is_Symbol:
                graph.shapes.data.add(size, DataSymbolSource(tensor, dimension))
        if graph.shapes.data.know(*sizes, *fake.stride(), fake.storage_offset()):
            return
        if graph.is_in_region:  # in which it has to stay
            return
    raise Unsupported("result whose size depends on data", tensor.node.name)


def _wrap_number(evaluator: Evaluator, node: torch.fx.Node | None, value: Any) -> Variable:
    """A number that sizes determine; other numbers depend on data."""
    if differ_by_iteration(evaluator.frame, [value]):
        return size_variable(evaluator.frame, value)
    if has_unbacked_symbols(value):
        place = evaluator.graph.data_place
        if place is None or node is None:
            raise Unsupported("number that depends on data", str(value))
        node.meta["data_dependent"] = True
        evaluator.graph.shapes.data.add(value, place)
    if node is None:
        return ConstantVariable(evaluator.graph.shapes.specialise(value))
    return evaluator.graph.number(value, lambda graph: node if node.graph is graph else None, None)
