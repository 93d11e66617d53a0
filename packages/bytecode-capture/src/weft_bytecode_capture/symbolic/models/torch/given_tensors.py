"""Tensors that a program finds: inputs of the graph, or held by it where a module has them."""

from __future__ import annotations

from typing import Any

import torch
from weft_guards import (
    ArgumentSource,
    AttributeSource,
    ClosureSource,
    ConstantSource,
    ItemSource,
    Scope,
    Source,
)

from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_wrapper


def _is_passed(source: Source) -> bool:
    """Whether a tensor is read anew in each call: a gradient, an argument or a part of one."""
    if isinstance(source, AttributeSource) and source.attribute == "grad":
        return True
    while isinstance(source, ItemSource) or (
        isinstance(source, AttributeSource) and source.attribute == "__self__"
    ):
        source = source.base
    return isinstance(source, (ArgumentSource, ClosureSource))


def _has_owner(evaluator: Evaluator, source: Source) -> bool:
    """Whether a tensor is a module's or an optimizer's, with which compiled code that holds it goes.

    The graph holds no other: nothing would tell when the program has let go of it.
    """
    if isinstance(source, ConstantSource):
        return not source.is_weak  # the guards hold it
    frame = evaluator.state.frame
    scope = Scope(frame.arguments, frame.globals, frame.builtins, frame.closure)
    base: Source | None = getattr(source, "base", None)
    while base is not None:
        if isinstance(base.evaluate(scope), (torch.nn.Module, torch.optim.Optimizer)):
            return True
        base = getattr(base, "base", None)
    return False


@register_wrapper(torch.Tensor, torch.nn.Parameter)
def _wrap_tensor(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    is_passed = _is_passed(source) or not _has_owner(evaluator, source)
    if is_passed or evaluator.graph.shapes.is_replaced(value, source):
        return evaluator.graph.add_input(evaluator, value, source)
    return evaluator.graph.add_attribute(evaluator, value, source)
