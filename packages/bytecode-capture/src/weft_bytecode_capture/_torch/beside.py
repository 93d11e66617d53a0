"""torch beside compiled calls: its profiler has an event for each of them, and its compiler stays out.

The frame hook reads these names once this module is loaded.
"""

from __future__ import annotations

import os
import types
from typing import Any

import torch.autograd.profiler
from torch._C._autograd import _record_function_with_args_enter
from torch._C._autograd import _record_function_with_args_exit as end_event
from torch._C._dynamo.eval_frame import set_eval_frame

__all__ = ["PROFILER", "begin_event", "end_event", "set_eval_frame"]

PROFILER = vars(torch.autograd.profiler)
"""Where torch says whether a profiler is on."""


def begin_event(code: types.CodeType) -> Any:
    """An event that lasts until :func:`end_event` is given it, named by the function and its place."""
    place = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    return _record_function_with_args_enter(f"weft: {code.co_qualname} ({place})")
