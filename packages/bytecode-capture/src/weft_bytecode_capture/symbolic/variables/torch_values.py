"""Values of torch that are neither tensors nor functions: number formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...unsupported import Unsupported
from ..builder import register_constant_types
from .base import Variable
from .classes import CLASS_CALLS
from .constant import ConstantVariable
from .tensor import SizeVariable

if TYPE_CHECKING:
    from ..evaluator import Evaluator

register_constant_types(torch.finfo, torch.iinfo)


def _register_constant_class(kind: Any) -> None:
    """A class of immutable values: calls with constants are made at once."""

    def call(
        evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
    ) -> Variable:
        positional, named = evaluator.snapshots(arguments, keywords, kind.__qualname__)
        return ConstantVariable(evaluator.pure(kind, *positional, **named))

    CLASS_CALLS[kind] = call


for _kind in (torch.finfo, torch.iinfo, torch.device):
    _register_constant_class(_kind)


def _new_size(
    evaluator: Evaluator, arguments: list[Variable], keywords: dict[str, Variable]
) -> Variable:
    if len(arguments) > 1 or keywords:
        raise Unsupported("arguments of a builtin class", "torch.Size")
    return SizeVariable(arguments[0].iterate(evaluator) if arguments else [])


CLASS_CALLS[torch.Size] = _new_size
