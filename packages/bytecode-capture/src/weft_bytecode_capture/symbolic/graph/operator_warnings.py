"""Warnings of operators that run on fake tensors: the user's program has to give them, in each call.

Those of torch's Python (``mse_loss`` of two sizes) are given by the code around the graph, which runs none of
it, and so are those of C++ that kernels of the graph's own replace.  Others of C++ are given once, here:
kernels that the graph calls give them again by themselves.
"""

from __future__ import annotations

import contextvars
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..._torch import OpOverload
from ...captured_graph import SpecialiseSizes
from ..protocol import Evaluator
from . import node_calls

_OF_CPP = "(Triggered internally at"
_OF_REPLACED = re.compile(r"(?:((?:std|var)(?:_mean)?)|cov)\(\): degrees of freedom is <= 0")
"""Warnings of C++ that no kernel of a graph gives; the group: those that eager's kernels give."""

_SYMBOL = re.compile(r"\b[suz]\d+\b")
"""What texts of sizes have in the place of one that varies."""

WARN_OF_TOO_FEW: frozenset[OpOverload] = frozenset(
    getattr(torch.ops.aten, name).correction for name in ("std", "var", "std_mean", "var_mean")
)
"""What warns of fewer elements than it can be of, in kernels, which fakes do not run in each capture."""

_noting: contextvars.ContextVar[bool] = contextvars.ContextVar("weft_noting", default=False)

_FEW = 256
"""No correction is thought to be as large as this."""

_OF_FAKES = ("torch._", "weft_")
"""Modules that eager does not run."""


def note_warnings(evaluate: Callable[[], Any], found: list[warnings.WarningMessage]) -> Any:
    """What ``evaluate`` gives; ``found`` gains the warnings that it gives, whatever the filters say."""
    token = _noting.set(True)
    try:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            value = evaluate()
    finally:
        _noting.reset(token)
    found.extend(given)
    return value


def warn_of_too_few(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Give the warning that the kernel of ``operator``, of ``WARN_OF_TOO_FEW``, gives for these fakes.

    Nobody is to see it where no warnings are noted.
    """
    if not _noting.get():
        return
    fake = arguments[0]
    dims = arguments[1] if len(arguments) > 1 else keywords.get("dim")
    reduced = {dim % fake.dim() for dim in dims} if dims and fake.dim() else range(fake.dim())
    shape = [size if dim in reduced else 1 for dim, size in enumerate(fake.shape)]
    if not all(type(size) is int and size < _FEW for size in shape):
        return
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        # By torch's own function: what operators warn of as they are dispatched waits for the outermost one.
        function = getattr(torch, operator.overloadpacket.__name__)
        options = {name: value for name, value in keywords.items() if name != "dim"}
        function(torch.zeros((), dtype=fake.dtype).expand(shape), dims, **options)
    for warning in given:
        warnings.warn_explicit(warning.message, warning.category, __file__, warning.lineno)


def warnings_of_python(
    evaluator: Evaluator, found: Sequence[warnings.WarningMessage]
) -> list[tuple[str, dict[str, Any], type[Warning], str, int]]:
    """Text, namespace, class, file and line of each that the code around the graph gives.

    The others are given at once.

    :raises Warning: by the user's filters.
    :raises SpecialiseSizes: one names sizes that vary.
    """
    later = []
    for warning in found:
        namespace, file, line = _place(evaluator, warning)
        if namespace is None:
            continue
        text = str(warning.message)
        if evaluator.graph.shapes.any_symbolic and _SYMBOL.search(text):
            raise SpecialiseSizes(text)
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
    if replaced and replaced.group(1) and warning.filename != __file__:
        return None, warning.filename, warning.lineno  # a fake's, in one capture of many
    if warning.filename in (node_calls.__file__, __file__):
        frame = evaluator.frame
        return frame.globals.dictionary, frame.code.co_filename, frame.location().line
    files = (vars(m) for m in list(sys.modules.values()) if _file(m) == warning.filename)
    namespace = next(files, None)
    if namespace is not None and str(namespace.get("__name__")).startswith(_OF_FAKES):
        namespace = None
    return namespace, warning.filename, warning.lineno


def _file(module: Any) -> Any:
    return getattr(module, "__dict__", {}).get("__file__")
