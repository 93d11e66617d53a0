"""torch beside compiled calls: its profiler has an event for each of them, and its compiler stays out."""

from __future__ import annotations

import os
import types
from typing import Any

import torch.autograd.profiler
from torch._C._autograd import _record_function_with_args_enter as begin
from torch._C._autograd import _record_function_with_args_exit as end
from torch._C._dynamo.eval_frame import set_eval_frame

from .. import _frame_hook


def _begin_event(code: types.CodeType) -> Any:
    """An event that runs until :func:`end` is given it, named by the function and its place."""
    place = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    return begin(f"weft: {code.co_qualname} ({place})")


def connect() -> None:
    """Tell the frame hook what it needs of torch."""
    _frame_hook.connect(set_eval_frame, vars(torch.autograd.profiler), _begin_event, end)
