"""Values of torch that are neither tensors nor functions: number formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..builder import register_constant_types
from .base import Variable
from .classes import CLASS_CALLS
from .constant import ConstantVariable

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
