"""The modes of torch that context managers switch.

``torch.no_grad``, ``torch.enable_grad`` and ``torch.set_grad_enabled`` are Python classes, evaluated like
any other: what they come down to is one call that switches the mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from weft_guards import Source

from ..._torch import set_grad_enabled
from ...unsupported import Unsupported
from ..builder import register_object
from .base import Variable
from .builtins import builtin
from .constant import ConstantVariable

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from ..evaluator import Evaluator


@builtin(set_grad_enabled)
def _set_grad_enabled(evaluator: Evaluator, enabled: Variable) -> Variable:
    evaluator.graph.set_grad_mode(bool(enabled.as_constant()))
    return ConstantVariable(None)


def set_grad_mode(enabled: bool) -> Callable[[Emitter], None]:
    """The effect of a frame that is left, or broken, with another mode than it began with."""

    def emit(emitter: Emitter) -> None:
        emitter.load_callable(set_grad_enabled)
        emitter.load_constant(enabled)
        emitter.call(1)
        emitter.pop()

    return emit


@register_object(torch.inference_mode, torch.autocast)
def _wrap_context_manager(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    raise Unsupported(
        "context manager of torch",
        f"{value.__qualname__}",
        "switching the mode inside a captured function is not captured yet",
        ("switch it around the call of the compiled function",),
    )
