"""Scans of rows: the function that combines two is evaluated once, as the region of torch's operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ....unsupported import Unsupported
from ...models.containers.sequences import ListVariable
from ...models.torch.tensor import TensorVariable
from ...variables.base import Variable
from ..evaluation import check_unchanged
from ..state.python_state import ObjectStates
from ..subgraph import (
    Subgraph,
    add_region,
    call_region,
    give_gradients,
    parameter,
    regional,
)
from .control_flow_calls import attempt

if TYPE_CHECKING:
    from ...evaluator import FrameEvaluator


def call_scan(evaluator: FrameEvaluator, combine: Variable, rows: list[TensorVariable]) -> Variable:
    """The running combination of ``rows`` along their first dimension, a list of as many tensors.

    ``evaluator`` runs the polyfill that stands for the call; the region is its caller's.
    """
    with attempt(evaluator.parent or evaluator, "associative_scan"):
        gradients = [row.fake.requires_grad and torch.is_grad_enabled() for row in rows]
        while True:
            subgraph, parameters, results = _evaluated(evaluator, combine, rows, gradients)
            found = [result.fake.requires_grad for result in results]
            if not any(new and not old for new, old in zip(found, gradients, strict=True)):
                break
            gradients = [new or old for new, old in zip(found, gradients, strict=True)]
        nodes = [result.node for result in results]
        taken = subgraph.taken()
        taken += dict.fromkeys(n for n in nodes if n.graph is not subgraph.graph and n not in taken)
        module = subgraph.close([p.node for p in parameters], taken, tuple(nodes))
        arguments = (
            add_region(evaluator, "combine", module),
            tuple(row.node for row in rows),
            tuple(taken),
        )
        fakes = [
            _fresh(evaluator, row.fake, row.fake.shape, has_gradient)
            for row, has_gradient in zip(rows, gradients, strict=True)
        ]
        items = call_region(evaluator, torch.ops.higher_order.associative_scan, arguments, fakes)
        made = zip(items, fakes, strict=True)
        return ListVariable([TensorVariable(node, fake, None) for node, fake in made])


def _evaluated(
    evaluator: FrameEvaluator, combine: Variable, rows: list[TensorVariable], gradients: list[bool]
) -> tuple[Subgraph, list[TensorVariable], list[TensorVariable]]:
    """The graph of ``combine``, its parameters and results; ``gradients``: which left values have any."""
    subgraph = Subgraph(evaluator)
    states = ObjectStates(evaluator)
    flags = [*gradients, *(row.fake.requires_grad for row in rows)]
    parameters = []
    for row, has_gradient in zip([*rows, *rows], flags, strict=True):
        fake = _fresh(evaluator, row.fake, row.fake.shape[1:], has_gradient)
        parameters.append(regional(parameter(subgraph.graph, "row", fake), fake))
    with subgraph.active():
        given = evaluator.call_function(combine, list(parameters)).iterate(evaluator)
        check_unchanged(states)
    if len(given) != len(rows):
        raise Unsupported("scan whose function gives another number of values")
    results = []
    for value, like in zip(given, parameters, strict=False):
        if not isinstance(value, TensorVariable):
            raise Unsupported("scan whose function gives no tensor", repr(value))
        kinds = [(f.shape, f.dtype, f.device) for f in (value.fake, like.fake)]
        if kinds[0] != kinds[1]:
            raise Unsupported("scan whose function changes sizes or dtypes", f"{kinds[0]}")
        results.append(value)
    return subgraph, parameters, results


def _fresh(
    evaluator: FrameEvaluator, like: torch.Tensor, size: torch.Size, has_gradient: bool
) -> torch.Tensor:
    """A contiguous fake tensor of ``size`` with the dtype and device of ``like``."""
    with evaluator.graph.fake_mode:
        made = torch.empty(size, dtype=like.dtype, device=like.device)
    if has_gradient:
        give_gradients(evaluator, made)
    return made
