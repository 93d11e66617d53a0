"""``torch.autograd.Function.apply``: the forward, inlined."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ....._torch import APPLY, APPLY_TAKES_KEYWORDS
from ....._torch.transforms import requires_grad_below
from .....unsupported import Unsupported
from ....graph.transforms import KIND
from ....protocol import Evaluator
from ....variables.base import Keywords, Variable
from ...containers.sequences import TupleVariable
from ...objects.classes import ClassVariable
from ...table import model
from ..tensor import TensorVariable
from .gradient_calls import tensors_among
from .gradients import (
    AutogradContextVariable,
    GradientCapture,
    has_backward,
    needs_gradient,
)


def _apply(evaluator: Evaluator, kind: Any, /, *inputs: Variable, **keywords: Variable) -> Variable:
    """Evaluate the forward, and where gradients are wanted the backward as its rule."""
    owner = evaluator.wrap_known(kind)
    assert isinstance(owner, ClassVariable)
    arguments = list(inputs)
    if evaluator.graph.transforms.active:
        _check_transforms(evaluator, kind, arguments)
    separate = kind.setup_context is not torch.autograd.Function.setup_context
    if keywords and not (separate and APPLY_TAKES_KEYWORDS):
        raise Unsupported("call", f"{kind.__qualname__}.apply with keywords")
    if separate:
        arguments = _with_defaults(evaluator, kind, arguments, keywords)
    given = list(tensors_among(evaluator, arguments))
    if given and evaluator.graph.rules.in_backward and has_backward(kind):
        raise Unsupported("call", f"{kind.__qualname__}.apply where gradients may have gradients")
    evaluator.graph.marked_leaves.require_unmarked(node for node, _ in given)
    context = AutogradContextVariable(kind._backward_cls, arguments)
    gradients = None
    if torch.is_grad_enabled() and any(map(needs_gradient, arguments)):
        gradients = GradientCapture(evaluator, owner, context, arguments)
    forward = owner.get_attribute(evaluator, "forward")
    with evaluator.graph.modes.without_gradients():
        if separate:
            result = forward.call(evaluator, arguments, {})
            setup = owner.get_attribute(evaluator, "setup_context")
            setup.call(evaluator, [context, TupleVariable(arguments), result], {})
        else:
            result = forward.call(evaluator, [context, *arguments], {})
        result = _outputs(evaluator, context, arguments, result)
        if gradients is not None:
            gradients.differentiate(result)
    if gradients is not None:
        gradients.attach()
    return result


def _check_transforms(evaluator: Evaluator, kind: Any, arguments: list[Variable]) -> None:
    """Refuse what a transform does not do by the forward itself.

    :raises Unsupported: the class's own gradient or rule for batches would be asked.
    """
    levels = evaluator.graph.transforms
    fakes = [fake for _, fake in tensors_among(evaluator, arguments)]
    if levels.has_forward_mode or any(map(requires_grad_below, fakes)):
        raise Unsupported(KIND, f"{kind.__qualname__}: an autograd function's gradient")
    if levels.has_batches and not kind.generate_vmap_rule:
        raise Unsupported(KIND, f"{kind.__qualname__}: an autograd function's rule for batches")


def _outputs(
    evaluator: Evaluator,
    context: AutogradContextVariable,
    inputs: list[Variable],
    result: Variable,
) -> Variable:
    """What apply makes of the forward's result: an input that comes back unchanged becomes a view."""

    def output(value: Variable) -> Variable:
        if not isinstance(value, TensorVariable):
            return value
        if any(value is v for v in inputs) and not any(value is v for v in context.dirty):
            return evaluator.graph.call_method(evaluator, "view_as", value, [value], {})
        return value

    if result.python_type() is tuple:
        return TupleVariable([output(value) for value in result.iterate(evaluator)])
    return output(result)


def _with_defaults(
    evaluator: Evaluator, kind: Any, inputs: list[Variable], keywords: Keywords
) -> list[Variable]:
    """The arguments of the forward with its defaults filled in, as its separate context setup sees them."""
    try:
        bound = inspect.signature(kind.forward).bind(*inputs, **keywords)
    except TypeError as error:
        evaluator.raise_python_error(error)
    given = set(bound.arguments)
    bound.apply_defaults()
    if bound.kwargs:
        raise Unsupported("call", f"{kind.__qualname__}.apply with keywords")
    for name, value in bound.arguments.items():
        if name not in given and not isinstance(value, tuple):
            bound.arguments[name] = evaluator.wrap_result(value)
    return list(bound.args)


def _apply_function(
    evaluator: Evaluator, owner: Variable, /, *inputs: Variable, **keywords: Variable
) -> Variable:
    """``apply`` where it is a function in Python, which takes the class."""
    if not isinstance(owner, ClassVariable):
        raise Unsupported("call", f"Function.apply of {owner!r}")
    return _apply(evaluator, owner.value, *inputs, **keywords)


if isinstance(APPLY, classmethod):
    model(APPLY.__func__)(_apply_function)
else:
    model(APPLY)(_apply)
