"""What shows a frame as it is: tracers, profilers, debuggers, and frame objects."""

from __future__ import annotations

import sys
from typing import Any

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ..table import model, models


class FrameIsSeen(Unsupported):
    """The frame shall be CPython's own: others, its resume functions for one, would be seen beside it."""


@models(sys.settrace, sys.setprofile, breakpoint)
def _set_tracer(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    raise FrameIsSeen("change of the tracer", f"{function.__name__}()")


@model(sys._getframe)
def _frame(evaluator: Evaluator, depth: Variable | None = None, /) -> Variable:
    kind, context = "frame object", f"of {evaluator.frame.code.co_qualname}"
    if evaluator.frame.parent is None and depth is None:
        raise FrameIsSeen(kind, context)
    raise Unsupported(kind, context)
