"""``torch.cond`` and ``while_loop``, called by the program: their functions are evaluated as regions."""

from __future__ import annotations

import torch

from ...._torch import while_loop
from ...protocol import Evaluator
from ...regions.calls.control_flow_calls import call_branch, call_loop
from ...variables.base import Variable
from ..table import model
from .tensor import TensorVariable


@model(torch.cond)
def _cond(
    evaluator: Evaluator,
    pred: Variable,
    true_fn: Variable,
    false_fn: Variable,
    operands: Variable | None = None,
) -> Variable:
    given = [] if operands is None else operands.iterate(evaluator)
    if isinstance(pred, TensorVariable):
        return call_branch(evaluator.frame, pred, (true_fn, false_fn), given)
    return (true_fn if pred.truth(evaluator) else false_fn).call(evaluator, given, {})


@model(while_loop)
def _while_loop(
    evaluator: Evaluator, cond_fn: Variable, body_fn: Variable, carried_inputs: Variable
) -> Variable:
    carried = carried_inputs.iterate(evaluator)
    return call_loop(evaluator.frame, cond_fn, body_fn, carried)
