"""Tensors that have gradients or none, as data decides: those that a branch writes what has some into."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from .answers import Given
from .storages import version_of


@dataclass(frozen=True)
class _Written:
    """A tensor that a call may write to, and its history before; whether that gives it gradients for sure."""

    tensor: torch.Tensor
    history: torch.autograd.graph.Node | None
    is_sure: bool


class OptionalGradients:
    """Of which tensors of a graph data decides whether they have gradients.

    A fake tensor has gradients where some call may give its tensor some.  Data decides of none before
    ``depend_on_data`` is set.
    """

    def __init__(self, given: list[Given]) -> None:
        self.depend_on_data = False
        self._given = given
        self._made_in: dict[Any, torch.fx.Graph] = {}  # nodes of autograd's, by writes in regions
        self._conditional = set[Any]()  # those of tensors that may have no gradients else
        self._run: list[
            torch.fx.Graph
        ] = []  # the bodies of loops that have an iteration in any call

    def before_write(self, tensors: Iterable[torch.Tensor]) -> list[_Written]:
        """What a call in a region may write to, with the histories it has before."""
        wholes = [whole if (whole := t._base) is not None else t for t in tensors]
        return [_Written(whole, whole.grad_fn, self._is_sure(whole)) for whole in wholes]

    def after_write(self, before: list[_Written], region: torch.fx.Graph) -> None:
        """Note which of them have another history now: they have it where the region has run."""
        for written in before:
            tensor = written.tensor
            if tensor.requires_grad and tensor.grad_fn is not written.history:
                self._made_in[tensor.grad_fn] = region
                if not written.is_sure:
                    self._conditional.add(tensor.grad_fn)
                    self.depend_on_data = True

    def note_run(self, region: torch.fx.Graph) -> None:
        """A region that stands in the outermost graph runs in every call."""
        self._run.append(region)

    def made_in(self, node: torch.autograd.graph.Node) -> torch.fx.Graph | None:
        """The region, which may not run, with a write that gave a tensor this history; None where none is."""
        region = self._made_in.get(node)
        return None if region in self._run else region

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
