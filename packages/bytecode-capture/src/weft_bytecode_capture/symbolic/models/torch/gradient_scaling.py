"""The operator of ``torch.amp.GradScaler`` that writes to a list of gradients: by its polyfill."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...._torch import unscale_gradients
from ....unsupported import Unsupported
from ...polyfills import gradient_scaling
from ...protocol import Evaluator
from ...variables.base import Variable
from ..table import model
from .tensor import TensorVariable

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@model(unscale_gradients)
def _unscale(
    evaluator: Evaluator, gradients: Variable, found_inf: Variable, inv_scale: Variable
) -> Variable:
    rows = gradients.iterate(evaluator)
    if not _is_ordinary(evaluator, rows, [found_inf, inv_scale]):
        raise Unsupported("arguments of a builtin function", unscale_gradients.__name__)
    polyfill = evaluator.wrap_known(gradient_scaling.unscale)
    with evaluator.graph.modes.without_gradients():
        return polyfill.call(evaluator, [gradients, found_inf, inv_scale], {})


def _is_ordinary(
    evaluator: Evaluator, gradients: Sequence[Variable], numbers: Sequence[Variable]
) -> bool:
    """Whether eager takes them, and no level, mode or class stands between."""
    tensors = [*gradients, *numbers]
    if evaluator.state.overrides.modes or evaluator.graph.transforms.active:
        return False
    fakes = [v.fake for v in tensors if type(v) is TensorVariable]
    if len(fakes) < len(tensors) or any(fake.requires_grad for fake in fakes):
        return False
    if len({(fake.device, fake.layout) for fake in fakes}) > 1:
        return False
    if any(n.dtype is not torch.float32 for n in fakes[len(gradients) :]):
        return False
    if any(n.shape not in ((), (1,)) for n in fakes[len(gradients) :]):
        return False
    strided = fakes[0].layout is torch.strided
    return strided and all(fake.dtype in _DTYPES for fake in fakes[: len(gradients)])
