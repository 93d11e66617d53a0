"""Freezing: parameters become constants of the graph, and what depends on them alone is computed once."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
import torch.fx

from weft_loop_ir._torch import OpOverload, must_keep, writes_argument
from weft_loop_ir.rewriting.fakes import call_before, insert_call, is_view

aten = torch.ops.aten

GROWTH = 4
"""A result with more times the elements of its operands is not kept."""


Rewrite = Callable[[torch.fx.GraphModule, Collection[torch.fx.Node]], None]


def freeze(
    graph_module: torch.fx.GraphModule,
    constants: Mapping[int, torch.Tensor],
    rewrite: Rewrite | None = None,
) -> torch.fx.GraphModule:
    """A copy of a functional ATen graph that holds ``constants``, given by placeholder, as attributes.

    Batch norms by running statistics become part of the convolutions before them, and nodes that depend on
    constants alone are computed here; views of constants stay views.  The placeholders stay, unused.  The
    copy holds as long as the constants' values do: their memory is shared where they are not folded.
    ``rewrite`` may change the copy in between: it is given the nodes that depend on constants alone, and what
    it makes of those is computed here too.
    """
    graph = torch.fx.Graph()
    output = graph.graph_copy(graph_module.graph, {}, return_output_node=True)
    assert isinstance(output, tuple)
    graph.output(output[0]).meta.update(output[1].meta)
    frozen = torch.fx.GraphModule(graph_module, graph)
    graph.eliminate_dead_code()  # statistics of batch norms that nothing reads
    folding = _Folding(frozen, _constants(graph, constants))
    folding.compute()
    _fold_batch_norms(graph, folding.values)
    folding.compute()
    if rewrite is not None:
        graph.eliminate_dead_code()
        rewrite(frozen, frozenset(folding.values))
        folding.compute()
    folding.hold_results()
    graph.eliminate_dead_code()
    graph.lint()
    return frozen


def has_effects(graph_module: torch.fx.GraphModule) -> bool:
    """Whether a functional ATen graph, or a region of it, does more than give results.

    It may draw random numbers, communicate or check something.
    """
    graphs = [m.graph for m in graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    targets = [node.target for graph in graphs for node in graph.nodes]
    return any(isinstance(target, OpOverload) and must_keep(target) for target in targets)


def _constants(
    graph: torch.fx.Graph, constants: Mapping[int, torch.Tensor]
) -> dict[torch.fx.Node, Any]:
    placeholders = graph.find_nodes(op="placeholder")
    return {placeholders[k]: tensor.detach() for k, tensor in constants.items()}


# ---- batch norms ---------------------------------------------------------------------------------------


def _fold_batch_norms(graph: torch.fx.Graph, values: Mapping[torch.fx.Node, Any]) -> None:
    """Scale the weights of convolutions instead of their results."""
    target = aten._native_batch_norm_legit_no_training.default
    for norm in graph.find_nodes(op="call_function", target=target):
        convolution = norm.args[0]
        if _is_foldable(convolution, norm, values):
            (result,) = norm.users
            result.replace_all_uses_with(_scaled(convolution, norm))


def _is_foldable(
    convolution: Any, norm: torch.fx.Node, values: Mapping[torch.fx.Node, Any]
) -> bool:
    if not isinstance(convolution, torch.fx.Node) or len(convolution.users) != 1:
        return False
    if convolution.target is not aten.convolution.default or bool(convolution.args[6]):
        return False  # a transposed convolution has its output channels elsewhere
    if len(norm.users) != 1 or next(iter(norm.users)).target is not operator.getitem:
        return False
    parameters = (*convolution.args[1:3], *norm.args[1:5])
    return bool(next(iter(norm.users)).args[1] == 0) and all(
        p is None or (isinstance(p, torch.fx.Node) and p in values) for p in parameters
    )


def _scaled(convolution: torch.fx.Node, norm: torch.fx.Node) -> torch.fx.Node:
    """The convolution that gives what ``norm`` gave, its weight and bias computed in the graph."""
    _, weight, bias, mean, variance, _, epsilon = norm.args
    kernel, first_bias = convolution.args[1:3]
    assert isinstance(kernel, torch.fx.Node) and isinstance(mean, torch.fx.Node)
    original = kernel.meta["val"]
    dtype = original.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    call: Callable[..., torch.fx.Node] = functools.partial(call_before, norm)

    def converted(node: Any, to: torch.dtype = wide) -> torch.fx.Node:
        return call(aten._to_copy.default, node, dtype=to)

    deviation = call(aten.sqrt.default, call(aten.add.Scalar, converted(variance), epsilon))
    scale = call(aten.reciprocal.default, deviation)
    if weight is not None:
        scale = call(aten.mul.Tensor, scale, converted(weight))
    shift = call(aten.neg.default, converted(mean))
    if first_bias is not None:
        shift = call(aten.add.Tensor, shift, converted(first_bias))
    shift = call(aten.mul.Tensor, shift, scale)
    if bias is not None:
        shift = call(aten.add.Tensor, shift, converted(bias))
    column = call(aten.view.default, scale, [-1, *[1] * (original.dim() - 1)])
    kernel = call(aten.mul.Tensor, converted(kernel), column)
    parameters = [converted(p, dtype) for p in (kernel, shift)]
    arguments = (convolution.args[0], *parameters, *convolution.args[3:])
    scaled = insert_call(norm, convolution.meta["val"], aten.convolution.default, *arguments)
    scaled.meta.update(convolution.meta)
    return scaled


# ---- folding -------------------------------------------------------------------------------------------


class _Folding:
    """Replaces what depends on constants alone; ``values`` are the tensors of such nodes."""

    def __init__(
        self, graph_module: torch.fx.GraphModule, values: dict[torch.fx.Node, Any]
    ) -> None:
        self.graph_module = graph_module
        self.graph = graph_module.graph
        self.values = values
        self.held = 0

    def compute(self) -> None:
        """Compute every node that depends on constants alone, unless it is known."""
        for node in self.graph.nodes:
            if node not in self.values and self._is_constant(node):
                self.values[node] = self._compute(node)

    def hold_results(self) -> None:
        """Replace those nodes that others read."""
        rest = [node for node in self.graph.nodes if node not in self.values]
        needed = [n for node in rest for n in node.all_input_nodes if n in self.values]
        found: dict[torch.fx.Node, None] = {}
        while needed:
            node = needed.pop()
            if node not in found:
                found[node] = None
                needed += node.all_input_nodes if is_view(node) else []
        for node in found:  # all are known before one is replaced
            if not is_view(node):
                self._hold(node)

    def _is_constant(self, node: torch.fx.Node) -> bool:
        operands = node.all_input_nodes
        if node.op != "call_function" or not operands:
            return False
        if not all(operand in self.values for operand in operands):
            return False
        target = node.target
        if target is operator.getitem:
            return True
        if not isinstance(target, OpOverload) or must_keep(target) or writes_argument(target):
            return False
        value = node.meta.get("val")
        if is_view(node) or not isinstance(value, torch.Tensor):
            return True
        size = sum(v.numel() for v in map(self.values.__getitem__, operands) if _is_tensor(v))
        return bool(value.numel() <= GROWTH * size)

    @torch.no_grad()
    def _compute(self, node: torch.fx.Node) -> Any:
        arguments = torch.fx.map_arg(node.args, self.values.__getitem__)
        keywords = torch.fx.map_arg(node.kwargs, self.values.__getitem__)
        assert callable(node.target)
        return node.target(*arguments, **keywords)

    def _hold(self, node: torch.fx.Node) -> None:
        """Make ``node``'s value an attribute that takes its place."""
        value = self.values[node]
        if not _is_tensor(value):
            return
        name = f"_frozen{self.held}"
        self.held += 1
        fake = node.meta["val"]
        if value.stride() != fake.stride():
            value = value.new_empty_strided(value.shape, fake.stride()).copy_(value)
        self.graph_module.register_buffer(name, value, persistent=False)
        with self.graph.inserting_before(self._first()):
            attribute = self.graph.get_attr(name)
        attribute.meta["val"] = fake
        node.replace_all_uses_with(attribute)

    def _first(self) -> torch.fx.Node:
        first: torch.fx.Node = next(n for n in self.graph.nodes if n.op != "placeholder")
        return first


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
