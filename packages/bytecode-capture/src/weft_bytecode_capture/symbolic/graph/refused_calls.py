"""Calls that no graph holds, by what they are given or what they raise of fake tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..._torch import ASARRAY_KEEPS_FLAG
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


def refuse_by_arguments(
    target: Any, arguments: Sequence[Variable], keywords: Mapping[str, Variable]
) -> None:
    """Break at calls that eager has to make for the sake of their arguments, which fakes don't show."""
    name = getattr(target, "__name__", target)
    if not isinstance(name, str) or not (arguments or keywords):
        return
    name = name.partition(".")[0]
    if name == "narrow":
        _refuse_start_in_tensor(arguments, keywords)
    elif name == "one_hot":
        _refuse_no_classes(arguments, keywords)
    elif name == "batch_norm":
        _refuse_without_channels(arguments, keywords)
    elif name in ("asarray", "lift_fresh"):
        _refuse_given_back(name, arguments, keywords)


def _refuse_start_in_tensor(
    arguments: Sequence[Variable], keywords: Mapping[str, Variable]
) -> None:
    """Break at ``narrow`` by a tensor: where its view begins, fakes make a number that nothing gives."""
    start = keywords.get("start", arguments[2] if len(arguments) > 2 else None)
    if isinstance(start, TensorVariable):
        raise Unsupported("value of a tensor as a Python object", "the start of narrow()")


def _refuse_no_classes(arguments: Sequence[Variable], keywords: Mapping[str, Variable]) -> None:
    """Break at ``one_hot`` of no classes, which eager refuses; what it is made of takes them."""
    classes = keywords.get("num_classes", arguments[1] if len(arguments) > 1 else None)
    if getattr(classes, "value", None) == 0:
        raise Unsupported(OPERATOR_REJECTS, "one_hot of no classes")


def _refuse_without_channels(
    arguments: Sequence[Variable], keywords: Mapping[str, Variable]
) -> None:
    """Break at ``batch_norm`` of less than two dimensions, which eager refuses.

    Of sizes that are symbols torch reads the second without asking whether there is one, and may crash.
    """
    given = keywords.get("input", arguments[0] if arguments else None)
    if isinstance(given, TensorVariable) and given.fake.dim() < 2:
        raise Unsupported(OPERATOR_REJECTS, "batch_norm of less than two dimensions")


def _refuse_given_back(
    name: str, arguments: Sequence[Variable], keywords: Mapping[str, Variable]
) -> None:
    """Break where a function gives back the tensor that it is given, and may change its flag.

    With gradients disabled ``asarray`` makes a copy that says of gradients what the tensor says.
    """
    given = arguments[0] if arguments else None
    if not isinstance(given, TensorVariable):
        return
    changes = "requires_grad" in keywords or (given.fake.requires_grad and not ASARRAY_KEEPS_FLAG)
    copies = (keywords or len(arguments) > 1) and not torch.is_grad_enabled()
    if name == "lift_fresh" or changes or copies:
        raise Unsupported("tensor that a function gives back", f"{name} of a tensor")


def break_kind(error: Exception) -> str:
    """What it means that an operator raised ``error`` on fake tensors."""
    if isinstance(error, DynamicOutputShapeException):
        return "result whose size depends on data"
    if needs_data(error):
        return "number that depends on data"
    if runs_on_no_fakes(error):
        return "operator that cannot be evaluated on fake tensors"
    return OPERATOR_REJECTS
