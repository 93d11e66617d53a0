"""Views of a tensor that requires gradients only since: to autograd they are as views made under ``no_grad``.

They say that they require gradients, as their base does now, and what is computed from them gets a history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_guards import storage_address

from ...unsupported import BreakEarlier, Unsupported
from ..protocol import Evaluator
from .marked_leaves import KIND
from .storages import leaves


@dataclass(frozen=True, eq=False)
class _View:
    """A node that gives views, with how many others used it by then."""

    node: torch.fx.Node
    users: int
    position: int  # of the root frame's instruction that lets the base require gradients


class ViewsOfLeaves:
    """The views in one evaluation that were made before their base was let require gradients."""

    def __init__(self) -> None:
        self._views: list[_View] = []
        self._inputs: list[tuple[torch.Tensor, int]] = []  # let require gradients, and where

    def note(self, evaluator: Evaluator, base: torch.Tensor) -> None:
        """A tensor made in the graph requires gradients from now on."""
        root = evaluator.state.root
        assert root is not None
        for node in evaluator.graph.outermost.nodes:
            if any(_is_view_of(value, base) for value in leaves(node.meta.get("example_value"))):
                self._views.append(_View(node, len(node.users), root.index))

    def note_input(self, evaluator: Evaluator, tensor: torch.Tensor) -> None:
        """An argument requires gradients from now on."""
        root = evaluator.state.root
        assert root is not None
        self._inputs.append((tensor, root.index))

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Whether an argument is noted."""
        return any(noted is tensor for noted, _ in self._inputs)

    def check(self, outputs: Iterable[torch.fx.Node], inputs: Iterable[torch.Tensor]) -> None:
        """
        :raises BreakEarlier: a view is used since, or leaves the graph; or another argument may be one.
        """
        left = {*outputs}
        for view in self._views:
            if view.node in left or len(view.node.users) > view.users:
                self._refuse(view.position, view.node.name)
        for other in inputs if self._inputs else ():
            for tensor, position in self._inputs:
                address = storage_address(tensor)
                if other is not tensor and address and storage_address(other) == address:
                    self._refuse(position, "an argument in its memory")

    def _refuse(self, position: int, what: str) -> None:
        raise BreakEarlier(
            position, Unsupported(KIND, f"{what} may be a view that was made before")
        )


def _is_view_of(value: Any, base: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value._is_view() and value._base is base
