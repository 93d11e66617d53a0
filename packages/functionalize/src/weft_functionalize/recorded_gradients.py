"""Records calls of ``torch.autograd.grad`` whose gradients go through branches and loops.

Elsewhere autograd runs on fake tensors, and the recorder sees the operators that it calls.  What a region
gives has no history here but what it is computed from: the call stays one node of the functional graph, and
the stage that knows gradients of regions writes it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .aten_recorder import AtenRecorder
from .tensor_ssa.inner_gradients import LEAVES, inner_gradients
from .unsupported import Unsupported

_KIND = "gradients through a region"
_PARAMETERS = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "allow_unused")


def record_inner_gradients(
    recorder: AtenRecorder, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Record a call of ``torch.autograd.grad`` with such arguments; NotImplemented where it meets no region.

    :raises Unsupported: data says which gradients there are, or the call asks for more than regions give.
    """
    given = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    outputs, inputs = (_listed(given[name]) for name in ("outputs", "inputs"))
    leaves = recorder.history.region_leaves(outputs)
    if not leaves:
        return NotImplemented
    if given.get("create_graph"):
        raise Unsupported(_KIND, "create_graph")
    tangents = given.get("grad_outputs")
    tangents = None if tangents is None else _listed(tangents)
    reached = recorder.history.reached_among(outputs, inputs, _expected(recorder))
    if not (given.get("allow_unused") or all(reached)):
        raise Unsupported(_KIND, "an input that is not used")
    retains = bool(given.get("retain_graph"))
    for tensor, number in recorder.saved:
        recorder.history.check_writes(tensor, number)
    if not retains:  # backward has let go of them
        recorder.saved.clear()
    with recorder.paused():
        try:  # autograd lets go as in eager; where it raises, the program is to
            torch.autograd.grad(outputs, leaves, tangents, retain_graph=retains, allow_unused=True)
        except RuntimeError as error:
            raise Unsupported(_KIND, str(error)) from error
        results = [
            torch.empty_like(value, requires_grad=False) if is_reached else None
            for value, is_reached in zip(inputs, reached, strict=True)
        ]
    node = recorder.record_function(
        inner_gradients, (outputs, inputs, tangents, tuple(reached)), results
    )
    placeholders = {id(recorded.value): recorded.node for recorded in recorder.inputs}
    node.meta[LEAVES] = [
        placeholders.get(id(value)) if value.grad_fn is None else None for value in inputs
    ]
    return tuple(results)


def _expected(recorder: AtenRecorder) -> list[bool] | None:
    """Which gradients the capture has found, and lets each call check; None where it didn't say."""
    source = recorder.source_node
    found = None if source is None else source.meta.get("example_value")
    return [value is not None for value in found] if isinstance(found, tuple) else None


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
