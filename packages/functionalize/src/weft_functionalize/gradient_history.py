"""What eager's autograd does with a program, seen while the program runs on fake tensors.

Which tensors it holds for backward, and so protects from later writes; which inputs it gives gradients to
when a result has one; and whether an input that is written to gets another history.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ._torch import saved_tensor_hooks_enabled, storage_identity
from .tensor_map import TensorMap

# A node of autograd's graph.
_Function = Any


class GradientHistory:
    """Observes one recording.  Inputs are told apart by number."""

    def __init__(self) -> None:
        self._held: dict[int, torch.Tensor] = {}  # by storage, which lives as long as this
        self._input_of: dict[_Function, int] = {}
        self._leaves: TensorMap[int] = TensorMap()
        self._edges: dict[int, tuple[_Function, int]] = {}
        self._opaque: set[_Function] = set()
        self._rewritten: frozenset[int] = frozenset()
        self._is_complete = True

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Note the tensors that autograd saves meanwhile: in a region, which results do not lead to."""
        if not saved_tensor_hooks_enabled():
            yield
            return
        with torch.autograd.graph.saved_tensors_hooks(self._hold, lambda tensor: tensor):
            yield

    def _hold(self, tensor: torch.Tensor) -> torch.Tensor:
        self._held[storage_identity(tensor)] = tensor
        return tensor

    def note_results(self, results: Sequence[Any]) -> None:
        """Note the tensors that autograd has saved for the gradients of ``results``."""
        tensors = (value for value in results if isinstance(value, torch.Tensor))
        for function in self._functions([t.grad_fn for t in tensors if t.grad_fn is not None]):
            for tensor in _saved_tensors(function):
                self._hold(tensor)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether autograd saved a tensor in this memory: it raises if that is written to before backward."""
        return storage_identity(tensor) in self._held

    def note_input(self, index: int, tensor: torch.Tensor) -> None:
        """``tensor`` stands for the input ``index``, before anything has used it."""
        if not tensor.requires_grad:
            return
        self._edges[index] = _edge(tensor)
        self.note_stand_in(index, tensor)

    def note_stand_in(self, index: int, tensor: torch.Tensor) -> None:
        """``tensor``, which a module holds, may stand for the input ``index`` in autograd's graph."""
        if not tensor.requires_grad:
            return
        if tensor.grad_fn is None:
            self._leaves[tensor] = index
        else:
            self._input_of[tensor.grad_fn] = index

    def note_opaque(self, tensor: torch.Tensor) -> None:
        """What ``tensor`` was computed from is not in its history."""
        self._opaque.add(tensor.grad_fn)

    def note_region_writes(self, indices: frozenset[int]) -> None:
        """Regions, which autograd has not run, write to the inputs ``indices`` or to values computed here."""
        self._rewritten, self._is_complete = indices, False

    def changes(self, index: int, tensor: torch.Tensor) -> bool:
        """Whether the input, now ``tensor``, has gradients by another history than it came with."""
        if not tensor.requires_grad:
            return False
        return index in self._rewritten or self._edges.get(index) != _edge(tensor)

    def reached(self, tensor: torch.Tensor) -> frozenset[int] | None:
        """The inputs that have a gradient, be it zero, when ``tensor`` alone has; None if it isn't known."""
        if not tensor.requires_grad:
            return frozenset()
        if not self._is_complete:
            return None
        if tensor.grad_fn is None:
            own = self._leaves.get(tensor)
            return frozenset() if own is None else frozenset({own})
        functions = self._functions([tensor.grad_fn])
        if not self._opaque.isdisjoint(functions):
            return None
        found = (self._input_number(function) for function in functions)
        return frozenset(index for index in found if index is not None)

    def _input_number(self, function: _Function) -> int | None:
        """The input whose gradient ``function`` takes."""
        leaf = getattr(function, "variable", None)
        return self._input_of.get(function) if leaf is None else self._leaves.get(leaf)

    def _functions(self, pending: list[_Function]) -> set[_Function]:
        """``pending`` and what they lead to, up to the inputs' own."""
        seen = set(pending)
        while pending:
            function = pending.pop()
            if function in self._input_of:
                continue
            fresh = [f for f, _ in function.next_functions if f is not None and f not in seen]
            seen.update(fresh)
            pending += fresh
        return seen


def _saved_tensors(function: _Function) -> Iterator[torch.Tensor]:
    """What a node of autograd's has saved; not what has been written to since, where backward raises."""
    for name in dir(function):
        if not name.startswith("_saved_") and name != "saved_tensors":
            continue
        try:
            value = getattr(function, name)
        except RuntimeError:
            continue
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, torch.Tensor):
                yield item


def _edge(tensor: torch.Tensor) -> tuple[_Function, int]:
    return tensor.grad_fn, tensor.output_nr
