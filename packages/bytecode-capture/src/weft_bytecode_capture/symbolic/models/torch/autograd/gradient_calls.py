"""Functions of torch by which a program works on autograd's graph itself.

``torch.autograd.grad`` is a call of the graph like others: on fake tensors autograd runs as it will on the
program's, and later stages record which operators it runs.  A graph knows nothing of histories outside: the
call runs in eager where a gradient might come by one.  So do the other functions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.fx
from weft_guards import AttributeSource, IsObject

from ....._torch.transforms import is_of_level
from .....gradient_rule import gradients_past_hooks
from .....unsupported import OPERATOR_REJECTS, BreakEarlier, Unsupported
from ....graph.answers import guard_leaf
from ....graph.histories import (
    computed_from,
    guard_without_hooks,
    has_history_outside,
    with_history,
)
from ....graph.purity import REGION_OPERATORS, writes
from ....graph.storages import has_history, leaves, node_values
from ....protocol import Evaluator
from ....regions.branches.assumed_decisions import assumed
from ....variables.base import Keywords, Variable
from ....variables.constant import ConstantVariable
from ....variables.graph_arguments import graph_argument
from ...containers.sequences import TupleVariable, flattened
from ...table import model, models
from ..tensor import TensorVariable, wrap_graph_result

BACKWARD = "backward pass inside the function"
_HOOK = "hook of a tensor"

_CALLS: dict[Any, tuple[str, str]] = {
    torch.autograd.graph.register_multi_grad_hook: (_HOOK, "tensors"),
    torch.autograd.graph.get_gradient_edge: ("attribute of a tensor", "tensor"),
}
"""The kind of break that each is, and its parameter of tensors whose place in autograd's graph it asks."""


def tensors_among(
    evaluator: Evaluator, values: Iterable[Variable]
) -> Iterator[tuple[Any, torch.Tensor]]:
    """The graph's tensors that ``values`` are, or that lists and tuples among them hold."""
    for value in flattened(evaluator, values):
        if isinstance(value, TensorVariable):
            yield value.node, value.fake


@models(*_CALLS)
def _call(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    kind, parameter = _CALLS[function]
    given = _by_name(function, arguments, keywords)
    tensors = list(tensors_among(evaluator, [given[parameter]] if parameter in given else []))
    raise with_history(evaluator, tensors, Unsupported(kind, function.__qualname__))


def _by_name(function: Any, arguments: Iterable[Variable], keywords: Keywords) -> dict[str, Any]:
    try:
        return inspect.signature(function).bind(*arguments, **keywords).arguments
    except TypeError as error:
        raise Unsupported("call", f"{function.__qualname__}: {error}") from error


_SEVERAL = ("outputs", "inputs", "grad_outputs")
"""The arguments that are a tensor or several, in whatever can be iterated over."""


@model(torch.autograd.grad)
def _gradients(evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable) -> Variable:
    given = _by_name(torch.autograd.grad, arguments, keywords)
    outputs = [given["outputs"]] if "outputs" in given else []
    if evaluator.graph.hooks.behind([fake for _, fake in tensors_among(evaluator, outputs)]):
        raise _refusal("by tensors with hooks")
    return gradients_of(evaluator, given)


def gradients_of(evaluator: Evaluator, given: Keywords, *, calls_hooks: bool = False) -> Variable:
    """What ``torch.autograd.grad`` gives for arguments by name.

    ``calls_hooks``: the caller sees to the hooks of tensors from outside.
    """
    listed = {name: _listed(evaluator, given[name]) for name in _SEVERAL if name in given}
    tensors = list(tensors_among(evaluator, listed.values()))
    asked = list(tensors_among(evaluator, [v for n, v in listed.items() if n == "inputs"]))
    try:
        if not any(is_of_level(fake) for _, fake in tensors):
            _check(evaluator, given, listed, asked, calls_hooks)
            if leads_through_regions(evaluator, listed["outputs"]):
                return _through_regions(evaluator, {**given, **listed}, calls_hooks)
        with torch.autograd.set_multithreading_enabled(False):  # other threads know no modes
            function = gradients_past_hooks if calls_hooks else torch.autograd.grad
            found = evaluator.graph.call_function(evaluator, function, [], {**given, **listed})
        _require_no_leaves(evaluator, found, tensors)
        return found
    except BreakEarlier:
        raise
    except Unsupported as error:
        raise with_history(evaluator, asked, error) from error


def _listed(evaluator: Evaluator, value: Variable) -> Variable:
    if isinstance(value, TensorVariable) or value.is_none():
        return value
    return TupleVariable(value.iterate(evaluator))


def _check(
    evaluator: Evaluator,
    given: Keywords,
    listed: Keywords,
    asked: list[tuple[torch.fx.Node, torch.Tensor]],
    calls_hooks: bool,
) -> None:
    """
    :raises Unsupported: a graph's gradients would not be eager's.
    """
    graph = evaluator.graph
    if graph.is_in_region:
        raise _refusal("inside a region")
    if graph.transforms.active:
        raise _refusal("of tensors from outside of a transform")
    if "is_grads_batched" in given and given["is_grads_batched"].truth(evaluator):
        raise _refusal("is_grads_batched")
    if "only_inputs" in given and not given["only_inputs"].truth(evaluator):
        raise _refusal("only_inputs=False")  # of which eager warns
    for value in flattened(evaluator, listed.values()):
        if type(value) is not TensorVariable and not value.is_none():
            raise _refusal(f"of {value!r}")
    results = list(tensors_among(evaluator, [listed["outputs"]]))
    graph.marked_leaves.require_unmarked(node for node, _ in (*results, *asked))
    ids = {id(fake) for _, fake in asked}
    asked_outside = [row for row in graph.given if id(row[2]) in ids and row[1].requires_grad]
    for source, tensor, _ in asked_outside:
        if not calls_hooks:
            guard_without_hooks(evaluator, source, tensor)
        if not tensor.is_leaf:
            if tensor.retains_grad:
                raise _refusal("of a tensor that retains its gradient")
            evaluator.guard(AttributeSource(source, "retains_grad"), IsObject(False))
    if not asked_outside:
        return
    behind = graph.region_histories.behind([result for _, result in results])
    for source, tensor, fake in graph.given:
        guard_leaf(evaluator, source, tensor)
        is_alone = all(row[2] is fake for row in asked_outside)
        if not is_alone and has_history_outside(tensor, fake, behind):
            raise _refusal("by a history that began before the call")


def leads_through_regions(evaluator: Evaluator, outputs: Variable) -> bool:
    """Whether gradients of ``outputs`` may go through a branch or a loop of the graph."""
    results = (node for node, _ in tensors_among(evaluator, [outputs]))
    return any(map(_gives_history, computed_from(evaluator, results)))


def _through_regions(evaluator: Evaluator, given: Keywords, calls_hooks: bool) -> Variable:
    """What ``torch.autograd.grad`` gives where regions are on the way, of which autograd's graph ends.

    Fakes of the gradients lie as the inputs do; the stage that derives gradients of regions sees to that.

    :raises Unsupported: data says which gradients there are, or a graph's would not be eager's.
    """
    graph, histories = evaluator.graph, evaluator.graph.region_histories
    if calls_hooks or graph.hooks.are_any:
        raise _refusal("through regions, and tensors with hooks")
    flags = ("create_graph", "materialize_grads", "allow_unused", "retain_graph")
    create, materialize, unused, retain = (
        name in given and given[name].truth(evaluator) for name in flags
    )
    if create or materialize:
        raise _refusal("through regions, of gradients that have some")
    rows = {n: list(tensors_among(evaluator, [given[n]])) for n in ("outputs", "inputs")}
    outputs, inputs = ([fake for _, fake in rows[name]] for name in ("outputs", "inputs"))
    if not all(fake.requires_grad for fake in (*outputs, *inputs)):
        raise _refusal("of what requires none")
    reached = histories.reached(outputs, inputs, functools.partial(assumed, evaluator))
    if len(reached) < len(inputs) and not unused:
        raise _refusal("of what is not used")
    tangents = given.get("grad_outputs", ConstantVariable(None))
    _let_go(evaluator, outputs, tangents, retain)
    keywords: dict[str, Any] = {"retain_graph": retain, "allow_unused": True}
    pair = graph_argument(evaluator, tangents)
    nodes = [tuple(node for node, _ in rows[name]) for name in ("outputs", "inputs")]
    graph.modes.before_operator()
    evaluator.note_handlers()
    node = graph.node(evaluator, "call_function", torch.autograd.grad, (*nodes, pair[0]), keywords)
    with graph.fake_mode, torch.no_grad():
        found = tuple(
            torch.empty_like(fake, requires_grad=False) if k in reached else None
            for k, fake in enumerate(inputs)
        )
    node.meta["example_value"] = found
    return wrap_graph_result(evaluator, node, found)


def _let_go(
    evaluator: Evaluator, outputs: list[torch.Tensor], tangents: Variable, retains: bool
) -> None:
    """Have autograd check the call and let go of what leads to the regions, as it does in eager.

    :raises Unsupported: it raises.
    """
    graph = evaluator.graph
    given = None if tangents.is_none() else graph_argument(evaluator, tangents)[1]
    try:
        with graph.fake_mode, torch.autograd.set_multithreading_enabled(False):
            leaves = graph.region_histories.leaves_of(outputs)
            torch.autograd.grad(outputs, leaves, given, retain_graph=retains, allow_unused=True)
    except RuntimeError as error:
        # On fakes what a loop's body writes is one tensor in all iterations: later stages see better.
        if "modified by an inplace operation" not in str(error):
            raise Unsupported(OPERATOR_REJECTS, str(error)) from error


def _gives_history(node: torch.fx.Node) -> bool:
    """Whether a node is a region that gradients may lead through: of no such history is known."""
    if node.target not in REGION_OPERATORS:
        return False
    operands = node.all_input_nodes if writes(node) else []
    made = [v for v in node_values(node.users) if isinstance(v, torch.Tensor)]
    changed = [v for v in leaves(node_values(operands)) if isinstance(v, torch.Tensor)]
    return any(v.requires_grad for v in made) or any(map(has_history, changed))


def _require_no_leaves(
    evaluator: Evaluator, found: Variable, given: list[tuple[torch.fx.Node, torch.Tensor]]
) -> None:
    """
    :raises Unsupported: some of the gradients are zeros that require gradients, which no graph makes.
    """
    known = {id(fake) for _, fake in given}
    for _, fake in tensors_among(evaluator, [found]):
        is_leaf = fake.requires_grad and not has_history(fake)
        if is_leaf and id(fake) not in known and not is_of_level(fake):
            raise _refusal("with materialize_grads and create_graph")


def _refusal(why: str) -> Unsupported:
    return Unsupported(BACKWARD, f"grad {why}")
