"""Tensors that have gradients or none, as data decides: those that a branch writes what has some into."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .answers import Given
from .storages import version_of


class OptionalGradients:
    """Of which tensors of a graph data decides whether they have gradients.

    A fake tensor has gradients where some call may give its tensor some.  Data decides of none before
    ``depend_on_data`` is set.
    """

    def __init__(self, given: list[Given]) -> None:
        self.depend_on_data = False
        self._given = given
        self._conditional = set[Any]()  # the nodes of autograd's that writes in regions made

    def before_write(
        self, tensors: Iterable[torch.Tensor]
    ) -> list[tuple[torch.Tensor, torch.autograd.graph.Node | None]]:
        """What a call in a region may give gradients that are not sure, and the histories it has before."""
        wholes = [whole if (whole := t._base) is not None else t for t in tensors]
        return [(whole, whole.grad_fn) for whole in wholes if not self._is_sure(whole)]

    def after_write(
        self, before: list[tuple[torch.Tensor, torch.autograd.graph.Node | None]]
    ) -> None:
        """Note which of them have another history now: they have it where the region has run."""
        for tensor, history in before:
            if tensor.requires_grad and tensor.grad_fn is not history:
                self._conditional.add(tensor.grad_fn)
                self.depend_on_data = True

    def may_lack(self, fake: torch.Tensor) -> bool:
        """Whether data may decide that ``fake``, which has gradients, has none.

        Those that an input has, which is guarded, its tensor is sure to have too.
        """
        return self.depend_on_data and not self._is_sure(fake)

    def _is_sure(self, fake: torch.Tensor) -> bool:
        """Whether an input gives ``fake`` gradients, through no write in a region."""
        inputs = {id(given) for _, _, given in self._given if given.requires_grad}
        if id(fake) in inputs and fake.is_leaf:
            return True
        if not fake.requires_grad or (fake._is_view() and version_of(fake)):
            return False  # autograd may refuse to say what the history of a view is
        waiting: list[Any] = [fake.grad_fn] if fake.grad_fn is not None else []
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            if node in self._conditional:
                continue
            if id(getattr(node, "variable", None)) in inputs:
                return True
            found = {following for following, _ in node.next_functions if following is not None}
            waiting += found - seen
            seen |= found
        return False
