"""Changes of a tensor's layout in place, made behind a graph that has its own view of the tensor."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from . import without_overrides


@dataclass(frozen=True)
class AsGiven:
    """Makes a view of a tensor, with the layout that it has when a call begins.

    The version counter, which the view shares, is moved by ``changes`` at once: what autograd saves of the
    view is not out of date when the layouts change behind the graph.
    """

    changes: int

    @property
    def __name__(self) -> str:
        return "as_given"

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        with without_overrides(), _with_histories():
            if self.changes and not tensor.is_inference():
                for _ in range(self.changes):
                    torch.autograd.graph.increment_version(tensor)
            return tensor.view_as(tensor)


def change_layout(tensor: Any, name: str, *arguments: Any) -> None:
    """Call one of a tensor's methods that change its layout; :class:`AsGiven` has counted the change."""
    keeps: AbstractContextManager[Any] = nullcontext()
    if not tensor.is_inference():
        keeps = _unsafe_preserve_version_counter(tensor)
    with without_overrides(), _with_histories(), keeps:
        getattr(tensor, name)(*arguments)


def _with_histories() -> AbstractContextManager[Any]:
    return nullcontext() if torch.is_inference_mode_enabled() else torch.enable_grad()
