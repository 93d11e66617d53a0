"""Functions of torch by which a program works on autograd's graph itself: they run in eager."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ....._torch.transforms import is_of_level
from .....unsupported import Unsupported
from ....graph.histories import with_history
from ....protocol import Evaluator
from ....variables.base import Variable
from ...containers.sequences import SequenceVariable
from ...table import models
from ..tensor import TensorVariable

_BACKWARD = "backward pass inside the function"
_HOOK = "hook of a tensor"

_CALLS: dict[Any, tuple[str, str]] = {
    torch.autograd.grad: (_BACKWARD, "inputs"),
    torch.autograd.backward: (_BACKWARD, "inputs"),
    torch.autograd.graph.register_multi_grad_hook: (_HOOK, "tensors"),
    torch.autograd.graph.get_gradient_edge: ("attribute of a tensor", "tensor"),
}
"""The kind of break that each is, and its parameter of tensors whose place in autograd's graph it asks."""


def tensors_among(
    evaluator: Evaluator, values: Iterable[Variable]
) -> Iterator[tuple[Any, torch.Tensor]]:
    """The graph's tensors that ``values`` are, or that lists and tuples among them hold."""
    for value in values:
        if isinstance(value, SequenceVariable):
            yield from tensors_among(evaluator, value.items(evaluator))
        elif isinstance(value, TensorVariable):
            yield value.node, value.fake


@models(*_CALLS)
def _call(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    kind, parameter = _CALLS[function]
    names = inspect.signature(function).parameters
    given = dict(zip(names, arguments, strict=False)) | keywords
    tensors = list(tensors_among(evaluator, [given[parameter]] if parameter in given else []))
    if function is torch.autograd.grad and any(is_of_level(fake) for _, fake in tensors):
        return evaluator.graph.call_function(evaluator, function, arguments, keywords)
    raise with_history(evaluator, tensors, Unsupported(kind, function.__qualname__))
