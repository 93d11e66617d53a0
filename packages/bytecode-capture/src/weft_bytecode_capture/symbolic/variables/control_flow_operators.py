"""``torch.cond`` and ``while_loop``, called by the program: their functions are evaluated as regions."""

from __future__ import annotations

from typing import Any

import torch
from weft_guards import IsObject, Source

from ..._torch import while_loop
from ...unsupported import Unsupported
from ..builder import register_object
from ..protocol import Evaluator
from ..regions.called import call_branch, call_loop
from .base import Arguments, Keywords, Variable
from .identified_functions import IdentifiedFunctionVariable
from .tensor import TensorVariable


class ConditionalVariable(IdentifiedFunctionVariable):
    """``torch.cond(predicate, true, false, operands)``."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        names = ("pred", "true_fn", "false_fn", "operands")
        given = {**dict(zip(names, arguments, strict=False)), **keywords}
        if not set(names[:3]) <= given.keys() <= set(names) or len(arguments) > len(names):
            raise Unsupported("call", f"{self!r} with other arguments")
        operands = given["operands"].iterate(evaluator) if "operands" in given else []
        predicate = given["pred"]
        sides = given["true_fn"], given["false_fn"]
        if isinstance(predicate, TensorVariable):
            return call_branch(evaluator.frame, predicate, sides, operands)
        return sides[0 if predicate.truth(evaluator) else 1].call(evaluator, operands, {})


class WhileLoopVariable(IdentifiedFunctionVariable):
    """``while_loop(condition, body, carried)``."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        names = ("cond_fn", "body_fn", "carried_inputs")
        given = {**dict(zip(names, arguments, strict=False)), **keywords}
        if given.keys() != set(names) or len(arguments) > len(names):
            raise Unsupported("call", f"{self!r} with other arguments")
        condition, body, carried = (given[name] for name in names)
        return call_loop(evaluator.frame, condition, body, carried.iterate(evaluator))


@register_object(torch.cond)
def _wrap_cond(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return ConditionalVariable(value, source)


@register_object(while_loop)
def _wrap_while_loop(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return WhileLoopVariable(value, source)
