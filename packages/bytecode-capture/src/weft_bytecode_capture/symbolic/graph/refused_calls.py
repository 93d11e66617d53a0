"""Calls that no graph holds, by what they are given or what they raise of fake tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..._torch.fakes import DynamicOutputShapeException, needs_data, runs_on_no_fakes
from ...unsupported import OPERATOR_REJECTS, Unsupported
from ..models.torch.tensor import TensorVariable
from ..variables.base import Variable

_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


def require_dense(target: Any, values: Iterable[Any]) -> None:
    """Refuse sparse tensors and quantized ones among values, and in their lists and tuples.

    A fake sparse one has no elements, and one that is made quantized is a fake of floats: what is asked of
    them would be answered wrongly.
    """
    for value in values:
        if isinstance(value, (list, tuple)):
            require_dense(target, value)
            continue
        dtype = value
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                raise Unsupported("tensor of unusual kind", f"sparse, at {target}")
            dtype = value.dtype
        if isinstance(dtype, torch.dtype) and dtype in _QUANTIZED:
            raise Unsupported("tensor of unusual kind", f"quantized, at {target}")


def refuse_start_in_tensor(
    target: Any, arguments: Sequence[Variable], keywords: Mapping[str, Variable]
) -> None:
    """Break at ``narrow`` by a tensor: where its view begins, fakes make a number that nothing gives."""
    if getattr(target, "__name__", target) != "narrow":
        return
    start = keywords.get("start", arguments[2] if len(arguments) > 2 else None)
    if isinstance(start, TensorVariable):
        raise Unsupported("value of a tensor as a Python object", "the start of narrow()")


def refuse_no_classes(
    target: Any, arguments: Sequence[Variable], keywords: Mapping[str, Variable]
) -> None:
    """Break at ``one_hot`` of no classes, which eager refuses; what it is made of takes them."""
    if getattr(target, "__name__", target) != "one_hot" or not (arguments or keywords):
        return
    classes = keywords.get("num_classes", arguments[1] if len(arguments) > 1 else None)
    if getattr(classes, "value", None) == 0:
        raise Unsupported(OPERATOR_REJECTS, "one_hot of no classes")


def break_kind(error: Exception) -> str:
    """What it means that an operator raised ``error`` on fake tensors."""
    if isinstance(error, DynamicOutputShapeException):
        return "result whose size depends on data"
    if needs_data(error):
        return "number that depends on data"
    if runs_on_no_fakes(error):
        return "operator that cannot be evaluated on fake tensors"
    return OPERATOR_REJECTS
