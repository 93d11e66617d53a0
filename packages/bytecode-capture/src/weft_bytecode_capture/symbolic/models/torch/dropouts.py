"""Dropout that drops nothing gives its operand, where torch's Python version of the operator gives a copy."""

from __future__ import annotations

from typing import Any

import torch

from ...protocol import Evaluator
from ...variables.base import Arguments, Keywords, Variable
from ..numbers.symbolic_number import SymbolicNumberVariable
from .tensor import TensorVariable

_PARAMETERS: dict[Any, tuple[str, ...]] = {
    torch.nn.functional.dropout: ("input", "p", "training"),
    torch.dropout: ("input", "p", "train"),
}


def undropped(
    evaluator: Evaluator, function: Any, arguments: Arguments, keywords: Keywords
) -> Variable | None:
    """The operand of a dropout that is not for training; None for calls that have to be made."""
    names = _PARAMETERS.get(function)
    if names is None or evaluator.state.overrides.modes:
        return None
    given = dict(zip(names, arguments, strict=False)) | keywords
    operand, share, training = (given.get(name) for name in names)
    if type(operand) is not TensorVariable or not (training is None or training.is_constant()):
        return None
    if isinstance(share, SymbolicNumberVariable):
        share = share.specialised()
    if share is not None and not share.is_constant():
        return None
    dropped: Any = 0.5 if share is None else share.as_constant()
    if type(dropped) not in (int, float) or not 0 <= dropped <= 1:
        return None  # eager's own error
    trains = training is None or training.as_constant()
    return None if trains and dropped > 0 else operand
