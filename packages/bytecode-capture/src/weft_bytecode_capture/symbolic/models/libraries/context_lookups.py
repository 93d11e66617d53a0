"""How ``contextlib.ExitStack`` finds a context manager's methods: by ``inspect``'s static lookup (3.15)."""

from __future__ import annotations

import contextlib
from typing import Any

from ...captured_exception import CapturedException
from ...protocol import Evaluator
from ...variables.base import Variable
from ..objects.instance_protocols import InstanceProtocols
from ..table import models

_LOOKUPS = [vars(contextlib)[name] for name in ("_lookup_special",) if hasattr(contextlib, name)]


@models(*_LOOKUPS)
def _look_up(
    function: Any, evaluator: Evaluator, obj: Variable, name: Variable, default: Variable
) -> Variable:
    """The method of the class, bound to ``obj``; ``default`` where the class has none."""
    text = name.as_constant()
    if isinstance(obj, InstanceProtocols):
        found = obj.special(evaluator, text)
        return default if found is None else found
    try:
        return obj.get_attribute(evaluator, text)
    except CapturedException as error:
        if error.exception.python_type() is not AttributeError:
            raise
        return default
