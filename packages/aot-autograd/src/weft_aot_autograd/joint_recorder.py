"""Records what runs under autograd on fake tensors, forward and backward, as one pure ATen graph."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from weft_functionalize import NumberNodes, is_float_symbol, known_equal

from ._torch import (
    FakeTensor,
    HigherOrderOperator,
    LazyGraphModule,
    OpOverload,
    UnsupportedOperatorException,
    backward_number,
    schema_arguments,
)
from .custom_formulas import call_with_gradient_operator
from .decomposition_table import LOSS_GRADIENTS, DecompositionTable, gradient_of_no_elements
from .differentiable_forms import call_differentiably
from .formula_errors import refuse_subtraction
from .recording import COMPUTED_IN_BACKWARD, QUESTIONS, NodeRecorder
from .unsupported import Unsupported
from .written_memory import WrittenMemory, geometry_of, same_geometry

aten = torch.ops.aten

_DETACH = aten.detach.default
_DEVICE = torch.ops.prim.device.default
_QUESTIONS = QUESTIONS | {aten._has_same_storage_numel.default}


class JointRecorder(NodeRecorder):
    """Records below autograd: what the backward formulas call is recorded as the forward is.

    A write to memory that was made here becomes a new version of this memory, and of what shares it.  With
    ``gradient_operators`` each formula of a custom operator is one call, as ``custom_formulas`` says.
    ``marks_formulas``: what formulas compute is marked as :data:`COMPUTED_IN_BACKWARD`.
    """

    def __init__(
        self,
        table: DecompositionTable,
        *,
        is_region: bool = False,
        gradient_operators: bool = False,
        marks_formulas: bool = False,
    ) -> None:
        super().__init__(torch.fx.Graph())
        self._marks_formulas = marks_formulas
        self._runs_in = backward_number()
        self._in_program = False
        self.is_region = is_region
        self.gradient_operators = gradient_operators
        self.table = table  # for the joint graphs of regions
        self.regions: dict[str, torch.fx.GraphModule] = {}  # by the attribute that names them
        self.call: Callable[[OpOverload, Any, Any], Any] = call_differentiably
        if gradient_operators:
            self.call = functools.partial(call_with_gradient_operator, self)
        self._paused = False
        self._last_placeholder: torch.fx.Node | None = None
        self._memory = WrittenMemory()

    def for_region(self) -> JointRecorder:
        """A recorder of a region's graph, by the same rules."""
        return JointRecorder(self.table, is_region=True, gradient_operators=self.gradient_operators)

    def append(
        self, target: Callable[..., Any], args: Any, kwargs: Any, value: Any
    ) -> torch.fx.Node:
        node = super().append(target, args, kwargs, value)
        if self.is_in_backward and self._marks_formulas:
            node.meta[COMPUTED_IN_BACKWARD] = True
        return node

    @property
    def is_in_backward(self) -> bool:
        """Whether what is recorded belongs to backward: formulas call it, and the program does not ask."""
        return not self._in_program and backward_number() != self._runs_in

    @contextlib.contextmanager
    def in_program(self) -> Iterator[None]:
        """What formulas call meanwhile is a part of the program, which asks for gradients itself."""
        self._in_program = True
        try:
            yield
        finally:
            self._in_program = False

    def know(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        super().know(tensor, node)
        self._memory.know(tensor, node, is_given=node.op == "placeholder")

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        written = self._memory.current(tensor)
        if written is not None:
            whole, geometry = written
            own = geometry_of(tensor)
            node = self._elements(whole, tensor.dtype)
            if node is not whole or not same_geometry(own, geometry):
                arguments = (node, *self.nodes_in(own))
                with self.paused(), torch.no_grad():
                    node = self.append(aten.as_strided.default, arguments, {}, tensor.detach())
            self.know(tensor, node)
        return super().node_of(tensor)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs meanwhile is not recorded."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def add_region(self, name: str, region: torch.fx.GraphModule) -> torch.fx.Node:
        """Name a region's module, the graph's attribute ``name``; a ``get_attr`` node of it."""
        attribute = f"{name}_{len(self.regions)}"
        self.regions[attribute] = region
        node = self.graph.create_node("get_attr", attribute)
        node.meta["val"] = region
        return node

    def add_region_operator(
        self, like: torch.fx.Node, args: tuple[Any, ...], results: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Append a call of the region operator of ``like``; ``results`` are new tensors, or numbers."""
        assert isinstance(like.target, HigherOrderOperator)
        node = self.append(like.target, args, {}, tuple(results))
        for index, item in enumerate(results):
            if isinstance(item, torch.Tensor):
                self.know(item, self.append(operator.getitem, (node, index), {}, item))
        return tuple(results)

    def fresh(self, like: torch.Tensor) -> torch.Tensor:
        """A fake tensor with storage of its own in the layout of ``like``."""
        with self.paused():
            return torch.empty_strided(
                like.shape, like.stride(), dtype=like.dtype, device=like.device
            )

    def alias_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` without its place in autograd's graph: the same node."""
        with self.paused(), torch.no_grad():
            alias = tensor.detach()
        self.know(alias, self.node_of(tensor))
        return alias

    def finish(self, results: Sequence[Any]) -> None:
        """Append the output node; the nodes' values keep metadata only: autograd's graph is freed."""
        self.graph.output(tuple(results))
        with self.paused(), torch.no_grad():
            for node in self.graph.nodes:
                value = node.meta.get("val")
                if isinstance(value, (tuple, list)):
                    node.meta["val"] = tuple(map(_detached, value))
                else:
                    node.meta["val"] = _detached(value)
            (output,) = self.graph.find_nodes(op="output")
            output.meta["val"] = torch.fx.map_arg(tuple(results), lambda node: node.meta["val"])

    def module(self, name: str) -> torch.fx.GraphModule:
        """The finished graph with its regions."""
        return LazyGraphModule(dict(self.regions), self.graph, name)

    def add_placeholder(self, name: str, value: Any) -> torch.fx.Node:
        """A further input of the graph, after the others and before anything that is computed."""
        with self.graph.inserting_after(self._last_placeholder or self.graph._root):
            node = self._last_placeholder = self.graph.placeholder(name)
        node.target = node.name
        node.meta["val"] = value.detach() if isinstance(value, torch.Tensor) else value
        if isinstance(value, torch.Tensor):
            self.know(value, node)
        self.numbers = NumberNodes(self.graph)
        return node

    def add_number(self, node: torch.fx.Node, arguments: Sequence[Any]) -> Any:
        """The number that the functional graph's ``node`` computes; what is read of it becomes nodes.

        ``arguments`` are the values of the node's arguments: a number that is read of one's data gets a
        node at once.
        """
        number = node.meta["val"]
        if node.target is aten._local_scalar_dense.default:
            self.append(node.target, (self.node_of(arguments[0]),), {}, number)
            return number
        if is_float_symbol(number):
            assert callable(node.target)
            values: Any = torch.fx.map_arg(node.args, lambda argument: argument.meta["val"])
            self.numbers.define(number, node.target, values)
        return number

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
        if self._paused and func in LOSS_GRADIENTS:
            return _fake_result(func, args, kwargs)
        if self._paused or func in _QUESTIONS or func.namespace == "prim":
            return func(*args, **kwargs)
        if func is _DETACH and backward_number() >= 0:  # of what autograd has saved
            alias = func(*args)
            self.know(alias, self.node_of(args[0]))
            return alias
        if func._schema.is_mutable:
            return self._record_write(func, args, kwargs)
        refuse_subtraction(func, args)
        result = _fake_result(func, args, kwargs)
        self.record(func, args, kwargs, result)
        return result

    def _keep_value(self, tensor: torch.Tensor) -> None:
        """Let the node of ``tensor`` have what it computed, which ``tensor`` may not be any more."""
        node = self.node_of(tensor)
        with self.paused(), torch.no_grad():
            before = tensor.detach()
        if node.meta["val"] is tensor:
            node.meta["val"] = before
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, torch.fx.Node):
            results = source.meta["val"]
            source.meta["val"] = tuple(before if r is tensor else r for r in results)

    def _record_write(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Record the operator's functional form: the written tensor stands for the result from now on."""
        pure = _functional_form(func)
        written = args[0] if args else None
        if pure is None or not isinstance(written, torch.Tensor):
            raise Unsupported("write in a backward formula", str(func))
        if not self._memory.may_write(written):
            raise Unsupported("write to given memory in a backward formula", str(func))
        node_args, node_kwargs = self.nodes_in(args), self.nodes_in(kwargs)
        self._keep_value(written)
        func(*args, **kwargs)
        node = self.append(pure, node_args, node_kwargs, written)
        self._nodes[written] = node
        if torch.Tag.inplace_view in func.tags:  # ``x.t_()``: the same elements, seen otherwise
            return written
        whole, geometry = self._memory.whole(written)
        own = geometry_of(written)
        elements = self._elements(whole, written.dtype)
        if elements is whole and same_geometry(own, geometry):
            whole = node
        else:
            arguments = (elements, node, *self.nodes_in(own))
            like, replaced = whole.meta["val"], elements.meta["val"]
            scattered = self.append(aten.as_strided_scatter.default, arguments, {}, replaced)
            if elements is not whole:
                scattered = self.append(aten.view_as_complex.default, (scattered,), {}, like)
            whole = scattered
        self._memory.write(written, whole)
        return written

    def _elements(self, whole: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        """Memory as elements of a dtype: a formula may write to the real part of complex numbers."""
        like = whole.meta["val"]
        if like.dtype == dtype:
            return whole
        if not like.is_complex() or like.dtype.to_real() != dtype:
            raise Unsupported(
                "memory of two dtypes in a backward formula", f"{like.dtype}, {dtype}"
            )
        with self.paused(), torch.no_grad():
            numbers = torch.view_as_real(like.detach())
            return self.append(aten.view_as_real.default, (whole,), {}, numbers)


def _resized(gradient: torch.Tensor, output_size: Any, input_size: Any, *_: Any) -> torch.Tensor:
    """The gradient of an image that was resized, laid out as the result's is."""
    layout = torch.contiguous_format
    if not gradient.is_contiguous():
        channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(gradient.dim())
        if channels_last is not None and gradient.is_contiguous(memory_format=channels_last):
            layout = channels_last
    return torch.empty(
        input_size, dtype=gradient.dtype, device=gradient.device, memory_format=layout
    )


def _like_input(gradient: torch.Tensor, tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


_SHAPE_RULES: dict[OpOverload, Callable[..., torch.Tensor]] = {
    # torch's asks for counts
    aten.log_sigmoid_backward.default: lambda gradient, x, _: gradient * x,
    aten.multilabel_margin_loss_backward.default: _like_input,
    **{
        getattr(aten, f"{name}_backward").default: _resized
        for name in (
            *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
            "upsample_bicubic2d",
            *(f"upsample_nearest{rank}d" for rank in (1, 2, 3)),
            *(f"_upsample_nearest_exact{rank}d" for rank in (1, 2, 3)),
        )
    },
}
"""Of operators for which torch has none that takes symbols."""


def _fake_result(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """What ``func`` gives for fake tensors; with symbolic sizes it needs a rule for that."""
    rule = _SHAPE_RULES.get(func)
    if rule is not None:
        return rule(*args, **kwargs)
    if func in LOSS_GRADIENTS and known_equal(args[1].numel(), 0):
        return gradient_of_no_elements(*args, **kwargs)
    try:
        return func(*args, **kwargs)
    except UnsupportedOperatorException as error:
        raise Unsupported("operator without a shape rule", str(func)) from error


def _detached(value: Any) -> Any:
    """``value`` without a place in autograd's graph: most of backward's values have none.

    It is the same tensor but for views, which take another.
    """
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    return value.detach() if value._is_view() else value.detach_()


def _functional_form(func: OpOverload) -> OpOverload | None:
    """The overload of the same arguments that does not write, for ``name_`` operators."""
    namespace, _, name = func._schema.name.partition("::")
    if not name.endswith("_") or len(func._schema.returns) != 1:
        return None
    packet = getattr(getattr(torch.ops, namespace), name[:-1], None)
    overloads = packet.overloads() if packet is not None else ()
    for overload in sorted(overloads, key=lambda other: other != func._overloadname):
        pure: OpOverload = getattr(packet, overload)
        if not pure._schema.is_mutable and _signature(pure) == _signature(func):
            return pure
    return None


def _signature(func: OpOverload) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in schema_arguments(func)]
