"""Records the graphs of regions, and runs graphs under a recorder."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from weft_functionalize import SYMBOLIC_TYPES, inner_gradients, is_gradient_rule, keep_history

from .._torch import OpOverload, rename_data_dependent
from ..joint_recorder import JointRecorder
from ..replay import GRADIENTS_DISABLED, OWN_FORMULA
from .inner_calls import run_inner_gradients

Values = dict[torch.fx.Node, Any]

RegionRule = Callable[[JointRecorder, torch.fx.Node, Sequence[Any]], tuple[Any, ...]]


def run_nodes(
    module: torch.fx.GraphModule, recorder: JointRecorder, values: Values, rule: RegionRule
) -> list[Any]:
    """Run the calls of a functional graph under ``recorder``, which is active; what the graph returns.

    ``values`` has what stands for its placeholders, and gets all others.  ``rule`` runs region operators.
    """
    for node in module.graph.nodes:
        if node.op == "get_attr":
            values[node] = getattr(module, str(node.target))
        elif node.op == "call_function":
            recorder.provenance = node
            values[node] = _run_node(node, recorder, values, rule)
    recorder.provenance = None
    (output,) = module.graph.find_nodes(op="output")
    return [values.get(r, r) if isinstance(r, torch.fx.Node) else r for r in _returned(output)]


def _returned(output: torch.fx.Node) -> Sequence[Any]:
    returned = output.args[0]
    return returned if isinstance(returned, (tuple, list)) else (returned,)


def _run_node(
    node: torch.fx.Node, recorder: JointRecorder, values: Values, rule: RegionRule
) -> Any:
    args: Any = torch.fx.map_arg(node.args, values.__getitem__)
    if isinstance(node.meta.get("val"), SYMBOLIC_TYPES) and node.target is not operator.getitem:
        return recorder.add_number(node, args)
    kwargs: Any = torch.fx.map_arg(node.kwargs, values.__getitem__)
    if node.target is operator.getitem:
        return args[0][args[1]]
    if node.target is inner_gradients:
        return run_inner_gradients(recorder, *args)
    if is_gradient_rule(node.target) or node.target is keep_history:
        assert callable(node.target)
        return node.target(*args)
    if isinstance(node.target, OpOverload) and not node.target._schema.returns:  # an assertion
        return recorder.append(node.target, recorder.nodes_in(args), kwargs, None)
    with torch.set_grad_enabled(torch.is_grad_enabled() and GRADIENTS_DISABLED not in node.meta):
        if OWN_FORMULA in node.meta:
            assert isinstance(node.target, OpOverload)
            return node.target(*args, **kwargs)
        if isinstance(node.target, OpOverload):
            result = recorder.call(node.target, args, kwargs)
            if HAS_SIZES_OF_DATA.intersection(node.target.tags):
                _know_sizes(recorder, result, node.meta["val"])
            return result
        return rule(recorder, node, args)


HAS_SIZES_OF_DATA = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
"""Tags of operators that give sizes or numbers that depend on data."""


def _know_sizes(recorder: JointRecorder, made: Any, known: Any) -> None:
    """Let sizes that an operator has given anew be those by which the rest of the graph knows them."""
    if isinstance(made, (tuple, list)):
        for item, other in zip(made, known, strict=True):
            _know_sizes(recorder, item, other)
    elif isinstance(made, torch.Tensor):
        for size, other in zip(made.shape, known.shape, strict=True):
            rename_data_dependent(size, other)
        recorder.numbers.note_result(recorder.node_of(made))  # by the new names


def record_region(
    outer: JointRecorder,
    parameters: Sequence[Any],
    names: Sequence[str],
    run: Callable[[JointRecorder, list[Any]], Sequence[Any]],
) -> torch.fx.GraphModule:
    """The graph of what ``run`` does under a recorder of its own, with ``parameters`` as placeholders.

    Parameters are fake tensors, whose metadata the placeholders get, and symbolic integers; ``run`` gets the
    placeholders' values, and gives tensors and integers.
    """
    recorder = outer.for_region()
    values = []
    with outer.paused(), torch.no_grad():
        for name, value in zip(names, parameters, strict=True):
            own = value.detach() if isinstance(value, torch.Tensor) else value
            recorder.add_placeholder(name, own)
            values.append(own)
        with recorder:
            results = run(recorder, values)
        recorder.finish([recorder.nodes_in(result) for result in results])
    return recorder.module("Region")


def with_parameters(
    module: torch.fx.GraphModule, position: int, values: Sequence[Any]
) -> torch.fx.GraphModule:
    """A copy of a region with more placeholders, which it does not use, from ``position`` on."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    added = False
    placeholders = module.graph.find_nodes(op="placeholder")
    for node in module.graph.nodes:
        index = placeholders.index(node) if node.op == "placeholder" else len(placeholders)
        if index >= position and not added:
            added = True
            for value in values:
                extra = graph.placeholder("kept")
                extra.target = extra.name
                extra.meta["val"] = value
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return torch.fx.GraphModule(module, graph, "Region")
