"""``eval`` of an expression that is known, among the names of the frame that calls it."""

from __future__ import annotations
import __future__

import types
import warnings
from typing import Any

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ..table import model
from .tracing import namespace_is_seen

_INHERITED = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
"""The flags of code that texts take over from the code that evaluates them."""

_TEXTS = (str, bytes)


@model(eval)
def _eval(evaluator: Evaluator, source: Variable, /, *namespaces: Variable) -> Variable:
    frame = evaluator.frame
    is_plain = not namespaces and source.is_constant() and type(source.as_constant()) in _TEXTS
    if not is_plain or frame.namespace is not None:
        raise namespace_is_seen(evaluator, eval, has_own=bool(namespaces))
    code = _compiled(evaluator, source.as_constant(), frame.code.co_flags & _INHERITED)
    names = {name: value for name, value in frame.locals.items() if name.isidentifier()}
    for name, cell in frame.cells.items():
        value = cell.read(evaluator)
        if value is not None:
            names[name] = value
    return evaluator.evaluated_text(code, names)


def _compiled(evaluator: Evaluator, text: str | bytes, flags: int) -> types.CodeType:
    stripped = text.lstrip(" \t") if isinstance(text, str) else text.lstrip(b" \t")
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        code: Any = evaluator.pure(compile, stripped, "<string>", "eval", flags, dont_inherit=True)
    if given:
        raise Unsupported("locals of a frame", f"eval({text!r}), of which the compiler warns")
    made: types.CodeType = code
    return made
