"""What the call of a node gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def run_call(kind: str, target: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """What a node of ``kind`` gives for these values: a method of the first by name, or a function."""
    if kind == "call_method":
        return getattr(arguments[0], target)(*arguments[1:], **keywords)
    return target(*arguments, **keywords)
