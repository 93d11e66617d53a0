"""``F.ctc_loss``: by its polyfill, for what eager computes with its own kernels."""

from __future__ import annotations

import torch

from ...protocol import Evaluator
from ...variables.base import Keywords, Variable
from ..table import bound_arguments, model
from .tensor import TensorVariable

_FUNCTION = torch.nn.functional.ctc_loss


@model(_FUNCTION)
def _ctc_loss(evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable) -> Variable:
    given = bound_arguments(_FUNCTION, arguments, keywords, "arguments of a builtin function")
    if not _is_ordinary(evaluator, given):
        return evaluator.graph.call_function(evaluator, _FUNCTION, arguments, keywords)
    from ...polyfills import ctc_losses  # at the first use

    polyfill = evaluator.wrap_known(ctc_losses.ctc_loss)
    with evaluator.graph.library_settings.unread():
        return polyfill.call(evaluator, [], given)


def _is_ordinary(evaluator: Evaluator, given: Keywords) -> bool:
    """Whether no level, mode or class stands between, and cuDNN takes no part: it has integers of 32 bits."""
    log_probs, targets = given["log_probs"], given["targets"]
    if type(log_probs) is not TensorVariable or type(targets) is not TensorVariable:
        return False
    if evaluator.state.overrides.modes or evaluator.graph.transforms.active:
        return False
    kind = log_probs.fake.device.type
    if kind not in ("cpu", "cuda") or torch.is_autocast_enabled(kind):
        return False
    if kind == "cuda" and targets.fake.dtype is not torch.int64:
        return False
    reduction = given.get("reduction")
    known = reduction is None or reduction.is_constant()
    wanted = "mean" if reduction is None or not known else reduction.as_constant()
    return wanted in ("mean", "sum", "none") and _fits(log_probs.fake, targets.fake)


def _fits(log_probs: torch.Tensor, targets: torch.Tensor) -> bool:
    floats = log_probs.dtype in (torch.float32, torch.float64)
    whole = not (targets.is_floating_point() or targets.is_complex())
    return floats and whole and log_probs.dim() in (2, 3) and targets.dtype is not torch.bool
