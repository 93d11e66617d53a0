"""``torch.utils.checkpoint``: a call of the function."""

from __future__ import annotations

from typing import Any

import torch.utils.checkpoint
from weft_guards import IsObject, Source

from ...unsupported import Unsupported
from ..builder import register_object
from ..protocol import Evaluator
from .autograd_contexts import needs_gradient
from .base import Arguments, Keywords, Variable
from .constant import ConstantVariable
from .identified_functions import IdentifiedFunctionVariable


class CheckpointVariable(IdentifiedFunctionVariable):
    """``torch.utils.checkpoint.checkpoint``: a call of the function.

    What is kept for the backward pass is for the compiler to decide.
    """

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        function, *inputs = arguments
        rest = dict(keywords)
        reentrant = rest.pop("use_reentrant", ConstantVariable(None))
        for name in ("preserve_rng_state", "determinism_check", "debug", "early_stop"):
            rest.pop(name, None)
        if "context_fn" in rest or not reentrant.is_constant() or reentrant.as_constant() is None:
            raise Unsupported("call", f"{self!r} with context_fn or without use_reentrant")
        if reentrant.as_constant():
            if rest:
                raise Unsupported("call", f"{self!r} with keywords and use_reentrant=True")
            if not any(map(needs_gradient, inputs)):
                raise Unsupported("checkpoint without gradients", repr(function))
        return function.call(evaluator, inputs, rest)


@register_object(torch.utils.checkpoint.checkpoint)
def _wrap_checkpoint(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return CheckpointVariable(value, source)
