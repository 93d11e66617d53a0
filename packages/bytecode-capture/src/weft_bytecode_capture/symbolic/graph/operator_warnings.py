"""Warnings of operators that run on fake tensors: the user's program has to give them, in each call.

Those of torch's Python (``mse_loss`` of two sizes) are given by the code around the graph, which runs none of
it, and so are those of C++ that kernels of the graph's own replace.  Others of C++ are given once, here:
kernels that the graph calls give them again by themselves.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ..._torch import OpOverload
from ..protocol import Evaluator
from . import node_calls

_OF_CPP = "(Triggered internally at"
_OF_REPLACED = re.compile(r"(?:(?:std|var)(?:_mean)?|cov)\(\): degrees of freedom is <= 0")
"""Warnings of C++ that no kernel gives of which a graph is made."""

_OPERATORS = sys.modules[OpOverload.__module__].__file__
"""What calls kernels of fakes.  With torch 2.15 these give the warnings of ``_OF_REPLACED``, before it
what chooses a kernel."""

_OF_FAKES = ("torch._", "weft_")
"""Modules that eager does not run."""


def note_warnings(evaluate: Callable[[], Any], found: list[warnings.WarningMessage]) -> Any:
    """What ``evaluate`` gives; ``found`` gains the warnings that it gives, whatever the filters say."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        value = evaluate()
    found.extend(given)
    return value


def warnings_of_python(
    evaluator: Evaluator, found: Sequence[warnings.WarningMessage]
) -> list[tuple[str, dict[str, Any], type[Warning], str, int]]:
    """Text, namespace, class, file and line of each that the code around the graph gives.

    The others are given at once.

    :raises Warning: by the user's filters.
    """
    later = []
    for warning in found:
        namespace, file, line = _place(evaluator, warning)
        if namespace is None:
            continue
        text = str(warning.message)
        if _OF_CPP in text and not _OF_REPLACED.match(text):
            name = namespace.get("__name__", "<string>")
            registry = namespace.setdefault("__warningregistry__", {})
            warnings.warn_explicit(text, warning.category, file, line, name, registry)
        else:
            later.append((text, namespace, warning.category, file, line))
    return later


def _place(
    evaluator: Evaluator, warning: warnings.WarningMessage
) -> tuple[dict[str, Any] | None, str, int]:
    """Where eager gives a warning: the user's line is in the place of the one that calls operators here."""
    replaced = _OF_REPLACED.match(str(warning.message))
    if warning.filename == node_calls.__file__ or (replaced and warning.filename == _OPERATORS):
        frame = evaluator.frame
        return frame.globals.dictionary, frame.code.co_filename, frame.location().line
    files = (vars(m) for m in list(sys.modules.values()) if _file(m) == warning.filename)
    namespace = next(files, None)
    if namespace is not None and str(namespace.get("__name__")).startswith(_OF_FAKES):
        namespace = None
    return namespace, warning.filename, warning.lineno


def _file(module: Any) -> Any:
    return getattr(module, "__dict__", {}).get("__file__")
