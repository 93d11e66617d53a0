"""Whether code behind a graph may write to tensors without autograd being told: ``x.data.mul_(2)``."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Mapping
from typing import Any

import torch.fx

from ..symbolic.capture_options import FrameInput

READ_AS_EAGER = "read_as_eager"
"""Set in the ``meta`` of a graph's output where backward has to read what eager's would.

What is written to ``x.data`` between a graph and its backward is seen in what eager's autograd holds of
``x``, and not in what it has computed from it.
"""

_WAYS = frozenset({"data", "set_data", "set_"})
"""Attributes of tensors by which memory is written to, or exchanged, and no version counted."""

_CALLS_DEEP = 3
"""How far calls of the program's own functions are followed, by the names of globals."""


def mark_to_read_as_eager(graph_module: torch.fx.GraphModule) -> None:
    """Let backward of a captured graph read what eager's would."""
    (output,) = graph_module.graph.find_nodes(op="output")
    output.meta[READ_AS_EAGER] = True


def may_write_behind(frame: FrameInput, is_break: bool) -> bool:
    """Whether what runs behind a frame's graph may write to tensors without autograd being told.

    That is what its callers do, and the frame itself behind a break.
    """
    if is_break and may_write_untold(frame.code, frame.globals):
        return True
    return frame.callers_may_write()


def may_write_untold(
    code: types.CodeType, names: Mapping[str, Any], depth: int = _CALLS_DEEP
) -> bool:
    """Whether ``code``, or what it calls by a name among the globals ``names``, has such an attribute."""
    if not _WAYS.isdisjoint(code.co_names) and any(
        instruction.argval in _WAYS
        for instruction in dis.get_instructions(code)
        if instruction.opname.endswith(("_ATTR", "_METHOD"))
    ):
        return True
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    if any(may_write_untold(constant, names, depth) for constant in inner):
        return True
    if not depth:
        return False
    called = (names.get(name) for name in code.co_names)
    return any(
        may_write_untold(function.__code__, function.__globals__, depth - 1)
        for function in called
        if isinstance(function, types.FunctionType) and not _is_torchs(function)
    )


def _is_torchs(function: types.FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] == "torch"


def callers_may_write(originals: Mapping[int, tuple[types.CodeType, types.CodeType]]) -> bool:
    """Whether a running frame may do so when its call is over: those whose code is among ``originals``.

    By the identity of transformed code that is, with the code that it stands for.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        known = originals.get(id(frame.f_code))
        if known is not None and may_write_untold(known[1], frame.f_globals):
            return True
        frame = frame.f_back
    return False
