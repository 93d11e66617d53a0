"""Function transforms, ``torch.vmap`` and ``torch.func``: what torch's Python of them calls."""

from __future__ import annotations

from typing import Any

import torch

from ...._torch.transforms import (
    DUAL_LEVEL_CALLS,
    LEVEL_CALLS,
    LEVEL_QUERIES,
    LEVEL_STATES,
    LEVEL_WRAPPERS,
    load_batching_rules,
    load_forward_rules,
)
from ....unsupported import Unsupported
from ...graph.transforms import KIND
from ...polyfills.torch_functions import linear_map
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ...variables.graph_arguments import graph_argument
from ..containers.sequences import TupleVariable
from ..table import model, models
from .context_managers import ContextVariable
from .tensor import TensorVariable


def _register_state(setter: Any, getter: Any) -> None:
    @model(getter)
    def _get(evaluator: Evaluator) -> Variable:
        return ConstantVariable(getter())

    @model(setter)
    def _set(evaluator: Evaluator, value: Variable, /) -> None:
        wanted = value.as_constant()
        if getter() != wanted:
            if not evaluator.graph.transforms.active:
                raise Unsupported(KIND, f"{setter.__name__} outside of a level")
            setter(wanted)
            evaluator.graph.node(evaluator, "call_function", setter, (wanted,), {})


@models(*LEVEL_CALLS)
def _level(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    graph, root = evaluator.graph, evaluator.state.root
    if graph.is_in_region:
        raise Unsupported(KIND, "inside a region")
    if function in DUAL_LEVEL_CALLS:
        load_forward_rules()
    pairs = [graph_argument(evaluator, argument) for argument in arguments]
    named = {name: value.as_constant() for name, value in keywords.items()}
    position = root.index if root is not None else 0
    value = graph.transforms.call(function, tuple(pair[1] for pair in pairs), named, position)
    nodes = tuple(pair[0] for pair in pairs)
    graph.node(evaluator, "call_function", function, nodes, named)
    return ConstantVariable(value)


@models(*LEVEL_WRAPPERS)
def _wrapper(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    return evaluator.graph.call_function(evaluator, function, arguments, keywords)


@models(*LEVEL_QUERIES)
def _query(function: Any, evaluator: Evaluator, tensor: Variable) -> Variable:
    if not isinstance(tensor, TensorVariable):
        raise Unsupported(KIND, f"{function.__name__}({tensor!r})")
    return ConstantVariable(function(tensor.fake))


for _setter, _getter in LEVEL_STATES.items():
    _register_state(_setter, _getter)


@model(load_batching_rules)
def _load_batching_rules(evaluator: Evaluator) -> None:
    load_batching_rules()


class WithoutHooksVariable(ContextVariable):
    """``disable_saved_tensors_hooks`` of a transform: captured code that enters hooks breaks anyway."""

    kind = object


@model(torch.autograd.graph.disable_saved_tensors_hooks)
def _disable_hooks(evaluator: Evaluator, error_message: Variable) -> Variable:
    return WithoutHooksVariable()


@model(torch.func.linearize)
def _linearize(evaluator: Evaluator, function: Variable, *primals: Variable) -> Variable:
    """Eager computes once what no direction changes, as constants: gradients don't reach what it is of."""
    output = function.call(evaluator, list(primals), {})
    leaves = output.iterate(evaluator) if output.python_type() in (tuple, list) else [output]
    for leaf in leaves:
        if not isinstance(leaf, TensorVariable) or leaf.fake.requires_grad:
            raise Unsupported(KIND, f"linearize that gives {leaf!r}")
    given: list[Variable] = [function, TupleVariable(list(primals))]
    return TupleVariable([output, evaluator.wrap_known(linear_map).call(evaluator, given, {})])
