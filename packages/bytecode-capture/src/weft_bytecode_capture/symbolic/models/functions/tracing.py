"""What shows a frame as it is: tracers, profilers, debuggers, frame objects, and the dict of its locals."""

from __future__ import annotations

import sys
from typing import Any

from ....code_objects.flow import reads_namespace_again
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ..table import model, models
from .seen_frames import seen_frame


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
    number = 0 if depth is None else depth.as_constant() if depth.is_constant() else None
    if type(number) is not int or number < 0:
        raise Unsupported(kind, context)
    return seen_frame(evaluator.frame, number)


_KEEPS_NAMESPACE = sys.version_info < (3, 13)
"""Whether a frame has one dict of its locals, in which what ``exec`` binds and others add stays."""


def namespace_is_seen(evaluator: Evaluator, function: Any, has_own: bool) -> Unsupported:
    """What to raise where the dict of a frame's locals is asked for, if the function ``has_own`` none.

    A resume function would have another dict than what the frame has had before.
    """
    code = evaluator.frame.code
    kind, context = "locals of a frame", f"{function.__name__}() in {code.co_qualname}"
    seen = _KEEPS_NAMESPACE and not has_own and evaluator.frame.parent is None
    return (FrameIsSeen if seen and reads_namespace_again(code) else Unsupported)(kind, context)
