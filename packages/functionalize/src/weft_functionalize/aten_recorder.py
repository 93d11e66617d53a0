"""Records the ATen operators that run on fake tensors into an FX graph."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from ._torch import (
    DeferredChecks,
    DispatchMode,
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    composed_of_others,
    is_list_operator,
    keeping_version,
    run_by_element,
    storage_identity,
)
from .functional_graph import InputKind, SharedMember
from .gradient_history import GradientHistory
from .histories_of_tensors import with_its_history
from .leaves import begin_history, give_gradients, is_leaf, leaf_for
from .new_nodes import append_call
from .options import StepObserver
from .recorded_inputs import RecordedInput, kind_of
from .refused_numbers import check_numbers
from .refused_operands import check_operands
from .refused_overlaps import check_overlaps, check_written_list
from .region_effort import RegionEffort
from .shared_inputs import FlatExample, flat_view, member_view
from .sizes_of_one import check_sizes_of_one
from .symbolic_numbers import SYMBOLIC_TYPES, NumberNodes, with_numbers
from .tensor_map import TensorMap, map_tensors
from .tensor_ssa.alias_graph import aliased_argument
from .tensor_ssa.custom_operators import is_from_library
from .tensor_ssa.functional_counterparts import functional_counterpart, written_arguments
from .tensor_ssa.region_aliases import RegionAlias
from .uninitialized_memory import fill_uninitialized
from .unsupported import Unsupported
from .writes_to_one_of_several import Gain, operator_sources, reached_by_write
from .written_operands import (
    is_write,
    keep_value,
    returned_operands,
    schema_results,
    written_layouts,
    written_operand,
    written_tensors,
)

aten = torch.ops.aten

OWN_FORMULA = "own_formula"
"""Key of a node's metadata: present where the program calls what may also stand for a write.

The gradient of the operator is not that of the write.
"""

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)

# Operators that replace or resize a tensor's storage: no functional form.
_STORAGE_MUTATIONS = frozenset(
    f"aten::{name}" for name in "set_ set_data resize_ resize_as_ swap_ set".split()
)

# Operators that ask for numbers: answered, not recorded.
_DEVICE = torch.ops.prim.device.default
_SIZE_QUERIES = frozenset(
    {
        aten.sym_size.int,
        aten.sym_stride.int,
        aten.sym_numel.default,
        aten.sym_storage_offset.default,
    }
)


# Operators whose gradients are torch's own; those of other namespaces may have one written in Python.
_TORCH_NAMESPACES = frozenset({"aten", "prim", "prims"})


class AtenRecorder(DispatchMode):
    """A dispatch mode that sits on top of a fake mode and appends each operator to ``graph``.

    ``source_node`` is the captured node being interpreted, whose provenance recorded nodes get, and
    ``gradients_enabled`` the gradient mode that it is called in.
    Nodes that run with gradients disabled keep this as metadata, if the program has them enabled anywhere.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        fake_mode: FakeTensorMode,
        *,
        enables_gradients: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = torch.fx.Graph()
        self.inputs: list[RecordedInput] = []
        self.source_node: torch.fx.Node | None = None
        self.fake_mode = fake_mode
        self.shared: dict[torch.fx.Node, tuple[SharedMember, ...]] = {}  # by the flat input
        self.shared_views: dict[torch.fx.Node, int] = {}  # positions of the inputs that they are
        self.regions: dict[str, torch.fx.GraphModule] = {}  # by the attribute that names them
        # Results of region operators that may be what operands or other results are.
        self.region_aliases: list[RegionAlias] = []
        # What eager gives where a region gives a dense tensor: results with gaps.
        self.result_layouts: dict[torch.fx.Node, torch.Tensor] = {}
        self.effort = RegionEffort.LEAST
        self.observe: StepObserver | None = None
        self.history = GradientHistory()  # its inputs are numbered as ``inputs``
        # What regions save, as this block's, and in a region what it saves itself; each with the number
        # of the first write behind that.
        self.saved: list[tuple[torch.Tensor, int]] = []
        self._module = module
        self._nodes: TensorMap[torch.fx.Node] = TensorMap()
        self._detached: TensorMap[torch.Tensor] = TensorMap()  # what each was detached from
        self._fakes: TensorMap[torch.Tensor] = TensorMap()  # of real tensors
        self._paths: dict[int, str] | None = None
        self._storages: set[int] = set()
        self._paused = False
        self.numbers = NumberNodes(self.graph)
        self._checks = DeferredChecks(fake_mode)
        self.gradients_enabled = torch.is_grad_enabled()
        self.with_gradients = self.gradients_enabled or enables_gradients

    # Inputs

    def add_user_input(self, position: int, source: torch.fx.Node, value: Any) -> Any:
        """Add the placeholder of a user input; returns what the captured graph's placeholder stands for."""
        fake: Any = value
        requires_grad = False
        if isinstance(value, torch.Tensor):
            requires_grad = value.requires_grad
            fake = self._own_fake(value)
        node = self._placeholder(str(source.target), fake)
        self._keep(node, source)
        self.inputs.append(
            RecordedInput(node, InputKind.USER_INPUT, "", position, fake, None, requires_grad)
        )
        if isinstance(fake, torch.Tensor):
            self._register(fake, node)
            self._note_input(fake)
        return fake

    def add_shared_input(self, position: int, hint: str, example: FlatExample) -> torch.fx.Node:
        """Add the placeholder of the flat tensor that stands for several user inputs."""
        with self.paused():
            first = self._fake_without_gradients(example.first)
            fake = flat_view(first, example.members).detach()
            if example.requires_grad and self.with_gradients:
                begin_history(fake)
        node = self._placeholder(hint, fake)
        self.inputs.append(
            RecordedInput(
                node, InputKind.USER_INPUT, "", position, fake, None, example.requires_grad
            )
        )
        self._register(fake, node)
        self._note_input(fake)
        self.shared[node] = example.members
        return node

    def _note_input(self, fake: torch.Tensor) -> None:
        """Note the input added last, which ``fake`` stands for."""
        self.history.note_input(len(self.inputs) - 1, fake)

    def view_shared_inputs(self, values: list[Any]) -> None:
        """Put the views that the flat tensors stand for in their places among ``values``."""
        for node, members in self.shared.items():
            flat = node.meta["val"]
            for member in members:
                with (
                    self,
                    torch.set_grad_enabled(self.with_gradients and not member.unrecorded),
                ):
                    view = member_view(flat, flat.storage_offset(), member)
                values[member.position] = view
                self.shared_views[self.node_of(view)] = member.position

    def complete_inputs(self, values: Sequence[Any]) -> list[Any]:
        """What stands for the captured graph's placeholders, of which ``values`` were added as inputs."""
        return list(values)

    def has_recorded(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` stands for a value of the graph."""
        return tensor in self._nodes

    def lift_attribute(self, module: torch.nn.Module, path: str) -> Any:
        """The fake tensor of a tensor attribute of a captured module, added as a placeholder once.

        ``module`` is the recorded one, or a region's that is recorded as a part of it.
        """
        value = operator.attrgetter(path)(module)
        if not isinstance(value, torch.Tensor):
            return value
        return self._lift(value, path) if module is self._module else self.fake_of(value)

    def _lift(self, tensor: torch.Tensor, path: str, kind: InputKind | None = None) -> torch.Tensor:
        known = self._fakes.get(tensor)
        if known is not None:
            return known
        fake = self._own_fake(tensor)
        with self.graph.inserting_before(self._insertion_point()):
            node = self._placeholder(path or f"constant_{len(self.inputs)}", fake)
        kind = kind or kind_of(self._module, path, tensor)
        self.inputs.append(
            RecordedInput(node, kind, path, None, fake, tensor, tensor.requires_grad)
        )
        self._fakes[tensor] = fake
        self._register(fake, node)
        self._note_input(fake)
        if self.with_gradients:
            self.history.note_stand_in(len(self.inputs) - 1, tensor)
        return fake

    def _placeholder(self, hint: str, value: Any) -> torch.fx.Node:
        """A placeholder whose name is ``hint``'s characters as an identifier, made unique."""
        name = re.sub(r"\W", "_", hint)
        node = self.graph.placeholder(name if name.isidentifier() else f"p_{name}")
        node.target = node.name
        node.meta["val"] = value
        return node

    def _insertion_point(self) -> torch.fx.Node:
        """Lifted placeholders come before the first user input, or else before everything."""
        for recorded in self.inputs:
            if recorded.kind is InputKind.USER_INPUT:
                return recorded.node
        for node in self.graph.nodes:
            if node.op != "placeholder":
                return node  # type: ignore[no-any-return]
        return self.graph._root

    def _own_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor with metadata of its own: tracing may change it."""
        if type(tensor) not in _PLAIN_TYPES:
            raise Unsupported("tensor subclass", type(tensor).__name__)
        if tensor.layout is not torch.strided:
            raise Unsupported("tensor layout", str(tensor.layout))
        with self.paused():
            own = self._fake_without_gradients(tensor)
            if tensor.requires_grad and self.with_gradients:
                if not is_leaf(tensor):
                    begin_history(own)
                    return own
                if tensor._is_view():  # then a view of this one is as a view of its base
                    own = own.as_strided(own.shape, own.stride(), own.storage_offset())
                own.requires_grad_()
            return own

    def give_gradients(self, *given: Gain) -> None:
        """Let tensors have gradients to sources, as those are before any of the tensors is changed."""
        with self.paused(), torch.enable_grad():
            leaves = [leaf_for(tensor) for tensor, _ in given]
            for (_, sources), leaf in zip(given, leaves, strict=True):
                self.history.note_made(leaf, sources)
            for (tensor, _), leaf in zip(given, leaves, strict=True):
                with keeping_version(tensor):
                    give_gradients(tensor, leaf)

    def _fake_without_gradients(self, tensor: torch.Tensor) -> torch.Tensor:
        fake = tensor
        if not isinstance(tensor, FakeTensor):
            fake = self.fake_mode.from_tensor(tensor, static_shapes=True)
        # What is done to one here is no write to other views of its base, such as the rows of unbind().
        return fake.data

    # Recording

    def note_step(self, name: str) -> None:
        """Show the block's graph after a step of its conversion to whoever asked for that."""
        if self.observe is not None:
            self.observe(name, self.graph)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs meanwhile is not recorded."""
        before = self._paused
        self._paused = True
        try:
            yield
        finally:
            self._paused = before

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The node that computes ``tensor``, which is lifted if it has not been seen."""
        node = self._nodes.get(tensor)
        if node is None:
            fake = self.fake_of(tensor)
            node = self._nodes[fake]
        return node

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor that stands for ``tensor`` here; a real one is lifted if it is new."""
        if tensor in self._nodes:
            return tensor
        known = self._fakes.get(tensor)
        if known is not None:
            return known
        if isinstance(tensor, FakeTensor):
            raise Unsupported("fake tensor that the graph did not compute", str(tensor))
        return self._lift(tensor, self._path_of(tensor))

    def fake_of_literal(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same for a tensor that an operator has just made of numbers."""
        if isinstance(tensor, FakeTensor) or self._path_of(tensor):
            return self.fake_of(tensor)
        return self._lift(tensor, "", InputKind.LITERAL)

    def is_of_input(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` lies in the memory of an input: a write to it is seen by the caller."""
        inputs = {
            storage_identity(i.value) for i in self.inputs if isinstance(i.value, torch.Tensor)
        }
        return storage_identity(tensor) in inputs

    def check_uncertain_version(self, tensor: torch.Tensor) -> None:
        """A region writes to ``tensor`` in some calls, as data says; a graph counts one write in all.

        :raises Unsupported: another graph may have saved the tensor for a backward that has yet to run.  It
            may have saved a parameter too, but who writes to one for some data does so behind backward.
        """
        if not tensor.requires_grad or not self.is_of_input(tensor):
            return
        if not any(
            i.kind is InputKind.PARAMETER and storage_identity(i.value) == storage_identity(tensor)
            for i in self.inputs
            if isinstance(i.value, torch.Tensor)
        ):
            raise Unsupported("write to a caller's tensor with gradients, as data says")

    def _path_of(self, tensor: torch.Tensor) -> str:
        if self._paths is None:
            named = [*self._module.named_parameters(), *self._module.named_buffers()]
            self._paths = {id(value): name for name, value in named}
        return self._paths.get(id(tensor), "")

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device  # torch asks each operand of an operator
        kwargs = kwargs or {}
        if self._paused or func.namespace == "prim" or func in _SIZE_QUERIES:
            return func(*args, **kwargs)
        if func is aten.lift_fresh.default:
            # The tensor is a literal of the program: each call of the graph starts from a new copy.
            with self:
                return aten.clone.default(self.fake_of_literal(args[0]))
        if is_list_operator(func):
            check_written_list(func, args[0])
            with self:
                return run_by_element(func, args, kwargs)
        if torch.is_inference_mode_enabled() and (formula := composed_of_others(func)) is not None:
            with self:
                return formula(*args, **kwargs)
        if func is aten.cudnn_batch_norm.default:
            # The library's form of an operator that has one for every device.
            with self:
                reserve = args[0].new_empty(0, dtype=torch.uint8)
                return (*aten.native_batch_norm.default(*args, **kwargs), reserve)
        fake_args = map_tensors(args, self.fake_of)
        fake_kwargs = map_tensors(kwargs, self.fake_of)
        if selected := check_sizes_of_one(func, fake_args, fake_kwargs):
            with self:
                return selected(args[0])
        if torch.Tag.inplace_view in func.tags:
            return self._record_metadata_mutation(func, args, fake_args, fake_kwargs)
        check_operands(func, fake_args, fake_kwargs)
        check_overlaps(func, fake_args, fake_kwargs)
        node_args, node_kwargs = self._as_nodes(fake_args), self._as_nodes(fake_kwargs)
        written = written_arguments(func)
        before = written_layouts(func, written, fake_args, fake_kwargs) if written else ()
        result = func(*fake_args, **fake_kwargs)
        check_numbers(func, fake_args, fake_kwargs, result)
        if written and before != written_layouts(func, written, fake_args, fake_kwargs):
            raise Unsupported("write that resizes a tensor", str(func))
        for tensor in written_tensors(
            func, returned_operands(func, written), fake_args, fake_kwargs
        ):
            self.history.note_write(tensor)
            if self.history.may_be_others(tensor):
                given = operator_sources((fake_args, fake_kwargs))
                self.give_gradients(*self.gaining_others(tensor, given))
        self.record_checks()
        node = self._append(func, node_args, node_kwargs, result)
        if func is aten.as_strided_scatter.default:
            node.meta[OWN_FORMULA] = True
        if func is aten.detach.default:
            self._detached[result] = fake_args[0]
        made = self._register_result(func, node, result, args, kwargs)
        with self:
            fill_uninitialized(func, made)
        return made

    def gaining_others(self, written: torch.Tensor, sources: Sequence[torch.Tensor]) -> list[Gain]:
        """What may be one with ``written``, and gains gradients to ``sources`` by a write to that."""
        reached = reached_by_write(self.graph, self.region_aliases, self._nodes[written], sources)
        for other, _ in reached:
            self.check_uncertain_version(other)
        return [pair for pair in reached if pair[1].possible]

    def record_checks(self) -> None:
        """Append assertions of what has been relied on of numbers that depend on data.

        What is known of a loop's counter, or of the result that is being made, no call has to check.
        """
        for condition in self._checks.new():
            if self.numbers.determines(condition):
                self.append_check(condition)

    def append_check(self, condition: Any) -> None:
        """Append the assertion of a symbolic condition."""
        message = f"a condition on data does not hold: {condition}"
        number = self.numbers.node_of(condition)
        if number is not True:  # what has been relied on since may imply it
            self._append(aten._assert_scalar.default, (number, message), {}, None)

    def append_region_operator(
        self, target: HigherOrderOperator, args: tuple[Any, ...], results: Sequence[Any]
    ) -> tuple[torch.fx.Node, list[torch.fx.Node]]:
        """Append a region operator's node; it, and nodes for its results (new tensors, or integers)."""
        node = self._append(target, args, {}, tuple(results))
        items = []
        for index, item in enumerate(results):
            value = self._append(operator.getitem, (node, index), {}, item)
            if isinstance(item, torch.Tensor):
                self._register(item, value)
            items.append(value)
        return node, items

    def record_gradient_rule(
        self, rule: Callable[..., tuple[torch.Tensor, ...]], args: tuple[Any, ...]
    ) -> tuple[torch.Tensor, ...]:
        """Append a gradient rule's node: from now on its items stand for the results that it was given."""
        args = map_tensors(args, self.fake_of)
        with self.paused():
            results = rule(*args)
        self.record_function(rule, args, results)
        return results

    def record_function(
        self, function: Callable[..., Any], args: tuple[Any, ...], results: Sequence[Any]
    ) -> torch.fx.Node:
        """Append a call of what is no operator: from now on its items stand for ``results``."""
        node = self._append(function, self._as_nodes(args), {}, tuple(results))
        for index, result in enumerate(results):
            if isinstance(result, torch.Tensor):
                self._register(result, self._append(operator.getitem, (node, index), {}, result))
        return node

    def add_region(self, name: str, region: torch.fx.GraphModule) -> torch.fx.Node:
        """Name a region's module, the graph's attribute ``name``; a ``get_attr`` node of it."""
        attribute = f"{name}_{len(self.regions)}"
        self.regions[attribute] = region
        node = self.graph.create_node("get_attr", attribute)
        node.meta["val"] = region
        return node

    def append_call(self, func: Any, args: Any, kwargs: Any, value: Any) -> torch.fx.Node:
        """Append a call on nodes, and let it stand for the tensor ``value``, if it is one."""
        node = self._append(func, args, kwargs, value)
        if isinstance(value, torch.Tensor):
            self._register(value, node)
        return node

    def _append(self, func: Any, args: Any, kwargs: Any, value: Any) -> torch.fx.Node:
        if func is aten._to_copy.default and not isinstance(args[0], torch.fx.Node):
            # a number, for which torch.vmap's rules make a tensor of the other operand's dtype
            func, kwargs = (
                aten.scalar_tensor.default,
                {"dtype": value.dtype, "device": value.device},
            )
            args = args[:1]
        node = append_call(self.graph, func, args, kwargs)
        node.meta["val"] = value
        if self.with_gradients and not self._records_gradients(func):
            node.meta["gradients_disabled"] = True
        if self.source_node is not None:
            self._keep(node, self.source_node)
        self.numbers.note_result(node)
        return node

    def _records_gradients(self, func: Any) -> bool:
        """Whether the program runs ``func`` with gradients enabled.

        An operator with a gradient written in Python runs below that, where they are disabled.
        """
        written_in_python = isinstance(func, OpOverload) and func.namespace not in _TORCH_NAMESPACES
        return self.gradients_enabled if written_in_python else torch.is_grad_enabled()

    @staticmethod
    def _keep(node: torch.fx.Node, source: torch.fx.Node) -> None:
        for key in ("stack_trace", "nn_module_stack"):
            if key in source.meta:
                node.meta[key] = source.meta[key]

    def _as_nodes(self, value: Any) -> Any:
        """Arguments with the nodes of their fake tensors and symbolic numbers."""
        return with_numbers(map_tensors(value, self._node_of_fake), self.numbers.node_of)

    def _node_of_fake(self, tensor: torch.Tensor) -> torch.fx.Node:
        return self._nodes[with_its_history(tensor, self._detached)]

    def _register(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        self._nodes[tensor] = node
        self._storages.add(storage_identity(tensor))

    def _register_result(
        self, func: OpOverload, node: torch.fx.Node, result: Any, args: Any, kwargs: Any
    ) -> Any:
        """Note which node each result is; an operator that returns what it wrote returns that object."""
        returns = schema_results(func)
        if isinstance(result, torch.Tensor):
            if is_write(returns[0]):
                return written_operand(func, returns[0], args, kwargs)
            self._register_new(func, result, node)
            if is_from_library(func) and written_arguments(func):
                return self._copied(result)
            return result
        if isinstance(result, (tuple, list)):
            items = [
                self._register_item(func, node, index, item, returns, args, kwargs)
                for index, item in enumerate(result)
            ]
            return type(result)(items) if type(result) in (tuple, list) else tuple(items)
        if isinstance(result, SYMBOLIC_TYPES) and func is not aten._local_scalar_dense.default:
            raise Unsupported("symbolic number computed from data", str(func))
        return result

    def _copied(self, result: torch.Tensor) -> torch.Tensor:
        """A copy of an operator's result, which may be viewed and returned where that may not."""
        with self.paused():
            copy: torch.Tensor = aten.clone.default(result)
        node = self._append(aten.clone.default, (self._nodes[result],), {}, copy)
        if self.gradients_enabled:
            node.meta.pop("gradients_disabled", None)  # the operator itself runs below autograd
        self._register(copy, node)
        return copy

    def _register_item(
        self,
        func: OpOverload,
        node: torch.fx.Node,
        index: int,
        item: Any,
        returns: Any,
        args: Any,
        kwargs: Any,
    ) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        if len(returns) > 1 and is_write(returns[index]):
            return written_operand(func, returns[index], args, kwargs)
        value = self._append(operator.getitem, (node, index), {}, item)
        self._register_new(func, item, value)
        return item

    def _register_new(self, func: OpOverload, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        if tensor.layout is not torch.strided:
            raise Unsupported("tensor layout", f"{tensor.layout} from {func}")
        if aliased_argument(func) is None and storage_identity(tensor) in self._storages:
            raise Unsupported("result that shares storage with an undeclared tensor", str(func))
        self._register(tensor, node)

    def _record_metadata_mutation(
        self, func: OpOverload, args: Any, fake_args: Any, fake_kwargs: Any
    ) -> Any:
        """``x.t_()`` makes the object ``x`` another view: record the view, and what ``x`` now is."""
        if func._schema.name in _STORAGE_MUTATIONS:
            raise Unsupported("change of a tensor's storage", str(func))
        view = functional_counterpart(func)
        if view is None or not isinstance(args[0], FakeTensor):
            raise Unsupported("change of a tensor's metadata", str(func))
        fake = fake_args[0]
        node = self._nodes[fake]
        keep_value(node, fake)
        if any(recorded.node is node for recorded in self.inputs):
            raise Unsupported("change of an input's metadata", str(func))
        node_args, node_kwargs = self._as_nodes(fake_args), self._as_nodes(fake_kwargs)
        func(*fake_args, **fake_kwargs)
        self._nodes[fake] = self._append(view, node_args, node_kwargs, fake)
        return args[0]
