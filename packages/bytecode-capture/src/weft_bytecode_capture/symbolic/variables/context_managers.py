"""Context managers of torch.  None is captured yet: entering one breaks the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from weft_guards import Source

from ...unsupported import Unsupported
from ..builder import register_object

if TYPE_CHECKING:
    from ..evaluator import Evaluator
    from .base import Variable


@register_object(
    torch.no_grad,
    torch.enable_grad,
    torch.inference_mode,
    torch.set_grad_enabled,
    torch.autocast,
)
def _wrap_context_manager(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    raise Unsupported(
        "context manager of torch",
        f"{value.__qualname__}",
        "switching the mode inside a captured function is not captured yet",
        ("switch it around the call of the compiled function",),
    )
