"""What a recorder notes of each placeholder, and what a tensor of a module is."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

from .functional_graph import InputKind


@dataclass(frozen=True, eq=False)
class RecordedInput:
    """A placeholder: its node, where it comes from, its fake value and, if lifted, its tensor."""

    node: torch.fx.Node
    kind: InputKind
    target: str
    position: int | None
    value: Any
    tensor: torch.Tensor | None
    requires_grad: bool


def kind_of(module: torch.nn.Module, path: str, tensor: torch.Tensor) -> InputKind:
    """What the ``tensor`` at ``path`` of ``module`` is to it."""
    if not path:
        return InputKind.CONSTANT
    if isinstance(tensor, torch.nn.Parameter):
        return InputKind.PARAMETER
    owner_path, _, name = path.rpartition(".")
    owner = operator.attrgetter(owner_path)(module) if owner_path else module
    is_buffer = isinstance(owner, torch.nn.Module) and name in owner._buffers
    return InputKind.BUFFER if is_buffer else InputKind.CONSTANT
