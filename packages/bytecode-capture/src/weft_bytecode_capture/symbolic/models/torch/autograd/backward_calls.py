"""``loss.backward()``: the gradients of the leaves that a tensor was computed from, added to their ``grad``.

In the graph it is ``torch.autograd.grad`` of these leaves, and what autograd does at each of them then.  A
leaf without ``grad`` is given the gradient, in memory of its own and laid out as the leaf is; to one that has
some it is added in place.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.fx
from weft_guards import AttributeSource, Source

from ....._torch import (
    is_process_group_made,
    set_grad_enabled,
    storage_identity,
)
from ....._torch.symbols import has_symbolic_layout, is_known_contiguous
from .....unsupported import BreakEarlier, Unsupported
from ....graph.answers import guard_leaf
from ....graph.histories import computed_from, guard_without_hooks, with_history
from ....graph.purity import possibly_written, region_graphs
from ....graph.storages import has_history, leaves, node_values, storages
from ....protocol import Evaluator
from ....variables.base import Variable
from ....variables.constant import ConstantVariable
from ...containers.sequences import TupleVariable
from ...table import model
from ..tensor import TensorVariable
from .gradient_calls import BACKWARD, gradients_of, leads_through_regions, tensors_among
from .hooks import autograds_order, call_hooks, call_with_leaf, hooked_gradient

_NONE: Variable = ConstantVariable(None)
_FALSE: Variable = ConstantVariable(False)


@model(torch.Tensor.backward)
def _backward_of_tensor(
    evaluator: Evaluator,
    self: Variable,
    gradient: Variable = _NONE,
    retain_graph: Variable = _NONE,
    create_graph: Variable = _FALSE,
    inputs: Variable = _NONE,
) -> Variable:
    return _backward(evaluator, self, gradient, retain_graph, create_graph, _NONE, inputs)


@model(torch.autograd.backward)
def _backward(
    evaluator: Evaluator,
    tensors: Variable,
    grad_tensors: Variable = _NONE,
    retain_graph: Variable = _NONE,
    create_graph: Variable = _FALSE,
    grad_variables: Variable = _NONE,
    inputs: Variable = _NONE,
) -> Variable:
    asked = [] if inputs.is_none() else list(tensors_among(evaluator, [inputs]))
    try:
        if not grad_variables.is_none():
            raise _refusal("grad_variables")
        if create_graph.truth(evaluator):
            raise _refusal("create_graph")  # of which eager warns
        results = list(tensors_among(evaluator, [tensors]))
        history = computed_from(evaluator, (node for node, _ in results))
        evaluator.graph.marked_leaves.require_none_among(history)
        found = _leaves(evaluator, [fake for _, fake in results])
        if not inputs.is_none():
            fakes = {id(fake) for _, fake in asked}
            found = [leaf for leaf in found if id(leaf.fake) in fakes]
            if not asked or len(found) < len(fakes):
                raise _refusal("inputs that are no leaves, or that nothing leads to")
        if not found:
            raise _refusal("nothing requires gradients")
        if is_process_group_made():
            raise _refusal("data parallel modules may have hooks where gradients are added up")
        hooks = [_hooks(evaluator, leaf) for leaf in found]
        if any(hooks) and leads_through_regions(evaluator, tensors):
            raise _refusal("through regions, to tensors with hooks")
        given = {"outputs": tensors, "inputs": TupleVariable(found), "retain_graph": retain_graph}
        given |= {"grad_outputs": grad_tensors, "allow_unused": ConstantVariable(True)}
        if not inputs.is_none() and evaluator.graph.hooks.behind([fake for _, fake in results]):
            raise _refusal("inputs, and tensors with hooks")
        call_hooks(evaluator, given, found)
        order = autograds_order(evaluator, given, found, found) if any(hooks) else []
        gradients = gradients_of(evaluator, given, calls_hooks=any(hooks)).iterate(evaluator)
        for place in order:
            before, row = hooks[place].before, gradients[place]
            gradients[place] = hooked_gradient(evaluator, before, row, found)
        read = storages(fake for _, fake in tensors_among(evaluator, [grad_tensors, *gradients]))
        read |= _differentiated(evaluator, (node for node, _ in results))
        copied = {place for place in order if hooks[place].before}  # which a hook may have kept
        _accumulate(evaluator, found, gradients, read, copied)
        for place in order:
            call_with_leaf(evaluator, hooks[place].after, found[place])
        return _NONE
    except BreakEarlier:
        raise
    except Unsupported as error:
        raise with_history(evaluator, asked, error) from error


def _refusal(why: str) -> Unsupported:
    return Unsupported(BACKWARD, f"backward: {why}")


def _leaves(evaluator: Evaluator, results: Iterable[torch.Tensor]) -> list[TensorVariable]:
    """The leaves from which autograd's graph leads to some of ``results``.

    :raises Unsupported: one of them is not known, or is none in eager.
    """
    known = {id(leaf.fake): leaf for leaf in evaluator.graph.new_leaves.made}
    for value, variable, _ in evaluator.builder.wrapped():
        if isinstance(variable, TensorVariable) and variable.fake.requires_grad and value.is_leaf:
            known[id(variable.fake)] = variable
    found: dict[int, TensorVariable] = {}
    histories = evaluator.graph.region_histories
    for fake in _leaf_fakes(histories.behind(list(results))):
        if histories.knows(fake):
            continue
        leaf = known.get(id(fake))
        if leaf is None:
            raise _refusal("by a history that began before the call")
        found[id(fake)] = leaf
    return list(found.values())


def _leaf_fakes(results: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    try:
        starts = [(result, result.grad_fn) for result in results if result.requires_grad]
    except RuntimeError as error:  # views whose history autograd refuses to tell
        raise _refusal(str(error)) from error
    found = [result for result, start in starts if start is None]
    pending = [start for _, start in starts if start is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found.append(variable)
        behind = dict.fromkeys(node for node, _ in node.next_functions if node is not None)
        fresh = [node for node in behind if node not in seen]
        seen.update(fresh)
        pending += reversed(fresh)
    return found


@dataclass(frozen=True)
class _Hooks:
    """The hooks of a leaf: those that are given its gradient, and those that are called once it has it."""

    before: Sequence[Variable] = ()
    after: Sequence[Variable] = ()

    def __bool__(self) -> bool:
        return bool(self.before or self.after)


def _hooks(evaluator: Evaluator, leaf: TensorVariable) -> _Hooks:
    """
    :raises Unsupported: more happens at a leaf than that its gradient is kept.
    """
    if type(leaf) is not TensorVariable or leaf.fake.layout is not torch.strided:
        raise _refusal(f"a gradient for {leaf!r}")
    for source, tensor, fake in evaluator.graph.given:
        if fake is leaf.fake:
            guard_leaf(evaluator, source, tensor)
            kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
            return _Hooks(*(_hooks_of_kind(evaluator, source, tensor, kind) for kind in kinds))
    return _Hooks()


def _hooks_of_kind(
    evaluator: Evaluator, source: Source, tensor: torch.Tensor, kind: str
) -> Sequence[Variable]:
    hooks = getattr(tensor, kind)
    if not hooks:
        guard_without_hooks(evaluator, source, tensor, kind)
        return ()
    known = evaluator.builder.wrap(hooks, AttributeSource(source, kind))
    return known.call_method(evaluator, "values", [], {}).iterate(evaluator)


def _differentiated(evaluator: Evaluator, results: Iterable[torch.fx.Node]) -> set[int]:
    """The storages of all that operators took and gave where gradients were on, on the way to ``results``."""
    recorded = set[torch.fx.Node]()
    mode = evaluator.graph.modes.gradients_on_entry
    for node in evaluator.graph.outermost.nodes:
        if node.target is set_grad_enabled:
            mode = bool(node.args[0])
        elif mode and _gives_history(node):
            recorded.add(node)
    return storages(leaves(node_values(computed_from(evaluator, results, recorded))))


def _gives_history(node: torch.fx.Node) -> bool:
    """Whether backward may go through ``node``: a region may do all that it does without gradients."""
    if not region_graphs(node):
        return True
    values = leaves(node_values([node, *possibly_written(node)]))
    return any(isinstance(value, torch.Tensor) and has_history(value) for value in values)


def _accumulate(
    evaluator: Evaluator,
    found: Sequence[TensorVariable],
    gradients: Sequence[Variable],
    read: set[int],
    copied: Container[int],
) -> None:
    """Give each leaf its gradient; ``read``: the storages that backward may read.

    ``copied``: the places of gradients that leaves get copies of.
    """
    graph = evaluator.graph
    holders = _holders(evaluator, gradients)
    with graph.modes.without_gradients():
        for place, (leaf, gradient) in enumerate(zip(found, gradients, strict=True)):
            if not isinstance(gradient, TensorVariable):
                continue
            if gradient.fake.layout is not torch.strided:
                raise _refusal("a sparse gradient")
            kept = leaf.get_attribute(evaluator, "grad")
            if isinstance(kept, TensorVariable):
                _add(evaluator, kept, gradient, read)
            else:
                own = (
                    _copy(evaluator, gradient, leaf)
                    if place in copied
                    else _own(evaluator, gradient, leaf, holders)
                )
                leaf.set_attribute(evaluator, "grad", own)


def _holders(evaluator: Evaluator, gradients: Sequence[Variable]) -> dict[int, set[int]]:
    """The tensors of the graph but ``gradients``, by their storages."""
    own = {g.node for g in gradients if isinstance(g, TensorVariable)}
    found: dict[int, set[int]] = {}
    for value in leaves(node_values(n for n in evaluator.graph.outermost.nodes if n not in own)):
        if isinstance(value, torch.Tensor):
            found.setdefault(storage_identity(value), set()).add(id(value))
    return found


def _own(
    evaluator: Evaluator,
    gradient: TensorVariable,
    leaf: TensorVariable,
    holders: dict[int, set[int]],
) -> TensorVariable:
    """The gradient that a leaf gets: a copy, if somebody else has it or it lies otherwise."""
    if not _lies_as(gradient.fake, leaf.fake):
        return _copy(evaluator, gradient, leaf)
    others = holders.setdefault(storage_identity(gradient.fake), set())
    if others - {id(gradient.fake)}:
        raise _refusal("a view as a gradient")  # eager's leaf shares its memory
    if others:
        return _copy(evaluator, gradient, leaf)
    others.add(id(gradient.fake))
    return gradient


def _add(
    evaluator: Evaluator, kept: TensorVariable, gradient: TensorVariable, read: set[int]
) -> None:
    same = kept.fake.dtype == gradient.fake.dtype and kept.fake.layout is torch.strided
    if not same or kept.fake.requires_grad or storage_identity(kept.fake) in read:
        raise _refusal(f"a gradient that is added to {kept!r}")
    evaluator.graph.call_method(evaluator, "add_", kept, [gradient], {})


def _copy(evaluator: Evaluator, gradient: TensorVariable, leaf: TensorVariable) -> TensorVariable:
    """The gradient in memory of its own, laid out as autograd lays it out."""
    graph = evaluator.graph
    contiguous = ConstantVariable(torch.contiguous_format)
    if _is_dense(leaf.fake) and not is_known_contiguous(leaf.fake):
        made = graph.call_function(evaluator, torch.empty_like, [leaf], {})
        graph.call_method(evaluator, "copy_", made, [gradient], {})
    else:
        made = graph.call_method(evaluator, "clone", gradient, [], {"memory_format": contiguous})
    assert isinstance(made, TensorVariable)
    return made


def _lies_as(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Whether autograd takes a gradient as it lies."""
    if has_symbolic_layout(leaf) or not _is_dense(leaf):
        return is_known_contiguous(gradient)
    rows = zip(leaf.shape, leaf.stride(), gradient.stride(), strict=True)
    return all(size == 1 or wanted == stride for size, wanted, stride in rows)


def _is_dense(fake: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(fake))
