"""``torch.cov`` and ``torch.corrcoef``: by their polyfills where no data decides what eager raises."""

from __future__ import annotations

import torch

from ...polyfills import covariances
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable
from ..table import model
from .tensor import TensorVariable

_DTYPES = frozenset(
    {
        torch.int16, torch.int32, torch.int64, torch.float32, torch.float64,
        torch.complex64, torch.complex128,
    }
)  # fmt: skip
"""Not those that round a count of observations."""


@model(torch.cov, torch.Tensor.cov)
def _cov(
    evaluator: Evaluator,
    input: Variable,
    *,
    correction: Variable | None = None,
    fweights: Variable | None = None,
    aweights: Variable | None = None,
) -> Variable:
    given = {"correction": correction, "fweights": fweights, "aweights": aweights}
    subtracted = correction or ConstantVariable(1)
    is_weighted = any(w is not None and not w.is_none() for w in (fweights, aweights))
    if is_weighted or not _is_ordinary(evaluator, input, subtracted):
        keywords = {name: value for name, value in given.items() if value is not None}
        return evaluator.graph.call_function(evaluator, torch.cov, [input], keywords)
    polyfill = evaluator.wrap_known(covariances.cov)
    return polyfill.call(evaluator, [input, subtracted], {})


@model(torch.corrcoef, torch.Tensor.corrcoef)
def _corrcoef(evaluator: Evaluator, input: Variable) -> Variable:
    if not _is_ordinary(evaluator, input, ConstantVariable(1)):
        return evaluator.graph.call_function(evaluator, torch.corrcoef, [input], {})
    return evaluator.wrap_known(covariances.corrcoef).call(evaluator, [input], {})


def _is_ordinary(evaluator: Evaluator, input: Variable, correction: Variable) -> bool:
    """Whether no level, mode or class stands between, and eager neither raises nor warns."""
    if type(input) is not TensorVariable or evaluator.state.overrides.modes:
        return False
    fake = input.fake
    if evaluator.graph.transforms.active or torch.is_autocast_enabled(fake.device.type):
        return False
    if fake.dtype not in _DTYPES or fake.layout != torch.strided or fake.dim() not in (1, 2):
        return False
    if not correction.is_constant() or type(correction.as_constant()) is not int:
        return False
    count = evaluator.call_method(input, "size", ConstantVariable(-1))
    return evaluator.binary_operation("gt", count, correction).truth(evaluator)
