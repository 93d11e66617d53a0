"""What ``torch.Tensor`` has by a name: the program may put something of its own there."""

from __future__ import annotations

import types
from typing import Any

import torch
from weft_guards import AttributeSource, ConstantSource, IsObject

from ....unsupported import Unsupported
from ...protocol import Evaluator

_CLASS = ConstantSource("torch.Tensor", torch.Tensor)


def found_in_class(evaluator: Evaluator, name: str) -> Any:
    """What the class has, None for nothing; guarded, unless a library's code asks."""
    found = getattr(torch.Tensor, name, None)
    if found is not None and not evaluator.globals.trusted:
        evaluator.guard(AttributeSource(_CLASS, name), IsObject(found))
    return found


def require_torchs(evaluator: Evaluator, name: str) -> None:
    """Guard what is answered by the metadata of tensors, not by a call of what the class has.

    :raises Unsupported: that is not torch's own.
    """
    found = found_in_class(evaluator, name)
    function = found.fget if isinstance(found, property) else found
    if isinstance(function, types.FunctionType) and not function.__module__.startswith("torch."):
        raise Unsupported("attribute of a tensor", f"torch.Tensor.{name}, which was replaced")
