"""``json``: texts of values that are known, and what known texts say."""

from __future__ import annotations

import json
from typing import Any

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ..table import model

_KIND = "call of a builtin function"
_SCALARS = (type(None), bool, int, float, str)


@model(json.dumps)
def _dumps(evaluator: Evaluator, obj: Variable, /, **options: Variable) -> Variable:
    plain = obj.printable(evaluator)
    named = {name: option.printable(evaluator) for name, option in options.items()}
    if not _is_known(plain) or not all(map(_is_known, named.values())):
        raise Unsupported(_KIND, f"json.dumps({obj!r})")
    return evaluator.wrap_constant(evaluator.pure(json.dumps, plain, **named))


@model(json.loads)
def _loads(evaluator: Evaluator, s: Variable, /) -> Variable:
    if not s.is_constant() or type(s.as_constant()) not in (str, bytes):
        raise Unsupported(_KIND, f"json.loads({s!r})")
    return evaluator.wrap_result(evaluator.pure(json.loads, s.as_constant()))


def _is_known(value: Any) -> bool:
    """Whether a value is of plain classes all through, so that no code of the program's is asked."""
    if type(value) is dict:
        return all(map(_is_known, (*value.keys(), *value.values())))
    return type(value) in _SCALARS or (type(value) in (list, tuple) and all(map(_is_known, value)))
