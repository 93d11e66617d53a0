"""``pickle.dumps`` of plain constants: caches of methods have its bytes as keys, as those of gpytorch."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.constant import ConstantVariable

_NUMBERS = (type(None), bool, int, float, complex)
_TEXTS = (str, bytes)


def pickled_constant(
    evaluator: Evaluator, obj: Variable, protocol: Variable | None
) -> Variable | None:
    """The bytes of an object that only they tell apart from others; None of what holds more."""
    given = [obj] if protocol is None else [obj, protocol]
    try:
        positional, _ = evaluator.snapshots(given, {}, "dumps")
        texts = list(_texts(positional[0]))
    except (Unsupported, RecursionError):  # what holds itself is no constant
        return None
    if len(set(texts)) < len(texts):  # the bytes say which of them are one object
        return None
    return ConstantVariable(evaluator.pure(pickle.dumps, *positional))


def _texts(value: Any, is_outermost: bool = True) -> Iterator[str | bytes]:
    """The texts in a value.

    :raises Unsupported: it holds more than numbers and texts.
    """
    if type(value) in _TEXTS:
        yield value
    elif is_outermost and type(value) in (tuple, list, dict):
        for part in (*value.keys(), *value.values()) if type(value) is dict else value:
            yield from _texts(part, is_outermost=False)
    elif type(value) not in _NUMBERS:
        raise Unsupported("call of a builtin function", f"dumps of {type(value).__name__}")
