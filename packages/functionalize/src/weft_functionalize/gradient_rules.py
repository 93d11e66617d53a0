"""Operators by which a program gives results the gradients that it wrote for them.

A captured graph's target that has ``is_gradient_rule`` set is called with ``(results, inputs, saved, kept)``:
a tuple of tensors that have no history comes back as it is, computed from ``inputs`` as far as autograd is
concerned.  Its ``backward``, a torch-level graph module, takes the gradients of the results, then ``saved``,
then ``kept``, and gives those of the inputs.  A functional graph holds the same operator with a functional
``backward``: for values alone it is the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ._torch import OpOverload, known_equal
from .aten_recorder import AtenRecorder
from .functional_graph import FunctionalGraph, InputKind, OutputKind
from .tensor_ssa.alias_graph import aliased_argument
from .tensor_ssa.kept_history import drop_kept_histories
from .unsupported import Unsupported

Functionalize = Callable[[torch.fx.GraphModule, Sequence[Any]], FunctionalGraph]


def is_gradient_rule(target: Any) -> bool:
    """Whether a node's target is such an operator."""
    return getattr(target, "is_gradient_rule", False) is True


def convert_gradient_rules(recorder: AtenRecorder, functionalize: Functionalize) -> None:
    """Give each rule of the recorded graph a functional backward; literals in it become inputs."""
    for node in list(recorder.graph.nodes):
        if node.op != "call_function" or not is_gradient_rule(node.target):
            continue
        rule: Any = node.target
        graph: torch.fx.Graph = rule.backward.graph
        examples = [n.meta["example_value"] for n in graph.find_nodes(op="placeholder")]
        module = torch.fx.GraphModule(rule.backward, _with_own_results(graph), "Backward")
        functional = functionalize(module, examples)
        if functional.mutated_inputs or functional.shared_bases:
            raise Unsupported("backward that writes to what it is given", str(rule))
        _return_what_is_new(functional, len(node.args[0]))
        results, inputs, saved, kept = node.args
        literals = tuple(
            recorder.node_of(
                recorder.fake_of_literal(tensor)
                if functional.inputs[index].kind is InputKind.LITERAL
                else tensor
            )
            for index, tensor in functional.lifted.items()
        )
        node.target = rule.with_backward(FunctionalBackward.of(functional))
        node.args = (results, inputs, saved, (*kept, *literals))


def _with_own_results(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A copy of the graph whose results share no memory with anything."""
    copy = torch.fx.Graph()
    returned: Any = copy.graph_copy(graph, {})
    own = [
        copy.call_method("clone", (node,)) if isinstance(node, torch.fx.Node) else node
        for node in returned
    ]
    copy.output(tuple(own))
    return copy


def _return_what_is_new(functional: FunctionalGraph, count: int) -> None:
    """Return what is copied where the copy is all that reads it: memory that nothing else has.

    Not what depends on none of the ``count`` gradients that the backward is given: forward may keep that.
    """
    graph = functional.graph_module.graph
    placeholders = graph.find_nodes(op="placeholder")
    computed = {placeholders[index] for index in functional.user_input_indices[:count]}
    for node in graph.nodes:
        if node.op == "call_function" and not computed.isdisjoint(node.all_input_nodes):
            computed.add(node)
    (output,) = graph.find_nodes(op="output")
    for copy in output.all_input_nodes:
        if copy.target is not torch.ops.aten.clone.default or len(copy.users) > 1:
            continue
        (source,) = copy.all_input_nodes
        if source in computed and len(source.users) == 1 and _is_new(source, copy.meta["val"]):
            copy.replace_all_uses_with(source)
            graph.erase_node(copy)


def _is_new(node: torch.fx.Node, like: torch.Tensor) -> bool:
    """Whether the node's operator makes the memory of its result, which lies as ``like``."""
    value = node.meta["val"]
    if not isinstance(node.target, OpOverload) or node.target.namespace != "aten":
        return False
    if not isinstance(value, torch.Tensor) or aliased_argument(node.target) is not None:
        return False
    pairs = zip(value.stride(), like.stride(), strict=True)
    return all(known_equal(one, other) for one, other in pairs)


@dataclass(frozen=True)
class FunctionalBackward:
    """A functional backward as a function: its arguments, then its literals.

    ``order`` says where each placeholder of ``graph_module`` is among these, ``indices`` which of the graph's
    results each gradient is, None for one that is None.
    """

    graph_module: torch.fx.GraphModule
    order: tuple[int, ...]
    indices: tuple[int | None, ...]

    @classmethod
    def of(cls, functional: FunctionalGraph) -> FunctionalBackward:
        """That of a backward that has been made functional."""
        users = functional.user_input_indices
        places = {index: k for k, index in enumerate((*users, *functional.lifted))}
        results = (d for d in functional.outputs if d.kind is OutputKind.USER_OUTPUT)
        return cls(
            functional.graph_module,
            tuple(places[index] for index in range(len(places))),
            tuple(descriptor.graph_index for descriptor in results),
        )

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        results = torch.fx.Interpreter(self.graph_module).run(*(values[k] for k in self.order))
        return tuple(None if index is None else results[index] for index in self.indices)


def drop_gradient_rules(graph: torch.fx.Graph) -> None:
    """Let what uses the results use the values that they were made of, where gradients do not matter."""
    drop_kept_histories(graph)
    for node in list(graph.nodes):
        if node.op == "call_function" and is_gradient_rule(node.target):
            results: Any = node.args[0]
            for item in list(node.users):
                item.replace_all_uses_with(results[item.args[1]])
                graph.erase_node(item)
            graph.erase_node(node)
