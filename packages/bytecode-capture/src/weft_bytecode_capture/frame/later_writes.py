"""What code behind a graph may do to its results: write without autograd being told, or set hooks."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Mapping, Set
from typing import Any

import torch.fx

from ..symbolic.capture_options import FrameInput

READ_AS_EAGER = "read_as_eager"
"""Set in the ``meta`` of a graph's output where backward has to read what eager's would.

What is written to ``x.data`` between a graph and its backward is seen in what eager's autograd holds of
``x``, and not in what it has computed from it.
"""

VIEWS_AS_EAGER = "views_as_eager"
"""Set in the ``meta`` of a graph's output where what eager has as a view has to be one.

A hook of a view that is written to sees what goes through the view itself, and not what the write hands on.
"""

_HOOKS = frozenset({"register_hook"})

_WAYS = frozenset({"data", "set_data", "set_"})
"""Attributes of tensors by which memory is written to, or exchanged, and no version counted."""

_CALLS_DEEP = 3
"""How far calls of the program's own functions are followed, by the names of globals."""


def mark_to_read_as_eager(graph_module: torch.fx.GraphModule) -> None:
    """Let backward of a captured graph read what eager's would."""
    (output,) = graph_module.graph.find_nodes(op="output")
    output.meta[READ_AS_EAGER] = True


def mark_for_later(graph_module: torch.fx.GraphModule, frame: FrameInput, is_break: bool) -> None:
    """Note in a captured graph what the code behind a break may do that results are to be ready for."""
    if is_break and may_have(frame.code, frame.globals, _HOOKS):
        (output,) = graph_module.graph.find_nodes(op="output")
        output.meta[VIEWS_AS_EAGER] = True


def may_write_behind(frame: FrameInput, is_break: bool) -> bool:
    """Whether what runs behind a frame's graph may write to tensors without autograd being told.

    That is what its callers do, and the frame itself behind a break.
    """
    if is_break and may_have(frame.code, frame.globals, _WAYS):
        return True
    return frame.callers_may_write()


def may_have(
    code: types.CodeType, names: Mapping[str, Any], wanted: Set[str], depth: int = _CALLS_DEEP
) -> bool:
    """Whether ``code``, or what it calls by a name among the globals ``names``, has one of the attributes."""
    if not wanted.isdisjoint(code.co_names) and any(
        instruction.argval in wanted
        for instruction in dis.get_instructions(code)
        if instruction.opname.endswith(("_ATTR", "_METHOD"))
    ):
        return True
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    if any(may_have(constant, names, wanted, depth) for constant in inner):
        return True
    if not depth:
        return False
    called = (names.get(name) for name in code.co_names)
    return any(
        may_have(function.__code__, function.__globals__, wanted, depth - 1)
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
        if known is not None and may_have(known[1], frame.f_globals, _WAYS):
            return True
        frame = frame.f_back
    return False
