"""Operators whose form in Python, which torch runs where sizes are symbols, computes something else."""

from __future__ import annotations

import contextlib
from typing import Any

from ._torch import without_python_forms

_DIFFERENT = frozenset({"multilabel_margin_loss", "multilabel_margin_loss_forward"})
"""By name of the function or the operator: the form counts labels that stand behind the first -1."""


def as_kernels_compute(function: Any) -> contextlib.AbstractContextManager[None]:
    """A context in which ``function`` is recorded as the operators that eager calls, or a call of one."""
    packet = getattr(function, "overloadpacket", function)
    if getattr(packet, "__name__", None) in _DIFFERENT:
        return without_python_forms()
    return contextlib.nullcontext()
