"""``torch.utils.checkpoint``: a call of the function."""

from __future__ import annotations

import torch.utils.checkpoint

from .....unsupported import Unsupported
from ....graph.transforms import KIND
from ....protocol import Evaluator
from ....variables.base import Variable
from ...table import model
from .contexts import needs_gradient


@model(torch.utils.checkpoint.checkpoint)
def _checkpoint(
    evaluator: Evaluator,
    function: Variable,
    /,
    *inputs: Variable,
    use_reentrant: Variable | None = None,
    context_fn: Variable | None = None,
    **keywords: Variable,
) -> Variable:
    """What is kept for the backward pass is for the compiler to decide."""
    for name in ("preserve_rng_state", "determinism_check", "debug", "early_stop"):
        keywords.pop(name, None)
    if evaluator.graph.transforms.has_gradients:
        raise Unsupported(KIND, "a checkpoint in a gradient, which raises")
    is_known = use_reentrant is not None and use_reentrant.is_constant()
    if use_reentrant is None or not is_known or use_reentrant.is_none() or context_fn is not None:
        raise Unsupported("call", "checkpoint with context_fn or without use_reentrant")
    if use_reentrant.as_constant():
        if keywords:
            raise Unsupported("call", "checkpoint with keywords and use_reentrant=True")
        if not any(map(needs_gradient, inputs)):
            raise Unsupported("checkpoint without gradients", repr(function))
    return function.call(evaluator, list(inputs), keywords)
