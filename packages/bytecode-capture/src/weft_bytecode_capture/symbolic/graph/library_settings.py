"""Settings of cuDNN that a program changes, as ``torch.backends.cudnn.flags`` does.

A change is made at once, so that what reads it is right, and undone when the frame has been evaluated.
Kernels of CUDA read a setting as they run, those of the CPU never.  So the graph holds no call that changes
one: an operator on CUDA breaks it while one is changed, and the frame itself sets what it leaves changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..._torch import pytree
from ..._torch.library_settings import SETTINGS
from ...unsupported import Unsupported

CHANGED = "operator under changed settings of cuDNN"
DEFAULTS = "change of torch's defaults"

Setting = tuple[Callable[..., Any], tuple[Any, ...]]
"""A setter and its arguments before the value."""


class LibrarySettings:
    """The settings that one evaluation changes; ``entry`` has those before its first change."""

    def __init__(self) -> None:
        self.entry: dict[Setting, Any] = {}
        self._unread = False

    def set(self, setter: Callable[..., Any], place: tuple[Any, ...], value: Any) -> None:
        """Call ``setter(*place, value)`` now.

        :raises Unsupported: a setting that is not cuDNN's, or torch does not take it.
        """
        if (setter, place) not in SETTINGS:
            raise Unsupported(DEFAULTS, f"{setter.__name__}{place}")
        try:
            if not self.entry:
                self.entry.update(_current())
            setter(*place, value)
        except RuntimeError as error:  # settings that contradict one another
            raise Unsupported(DEFAULTS, str(error)) from error

    def calls(self) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
        """The calls that bring the settings of the frame's entry to the present ones."""
        return [
            (setter, (*place, value))
            for (setter, place), value in (_current() if self.entry else {}).items()
            if value != self.entry[setter, place]
        ]

    def restore(self) -> None:
        """End with the settings of the frame's entry."""
        for (setter, place), value in self.entry.items():
            if SETTINGS[setter, place](*place) != value:
                setter(*place, value)
        self.entry.clear()

    @contextlib.contextmanager
    def unread(self) -> Iterator[None]:
        """What is recorded inside stands for an operator that does not run cuDNN's kernels."""
        before, self._unread = self._unread, True
        try:
            yield
        finally:
            self._unread = before

    def before_operator(self, target: Any, operands: Any) -> None:
        """Called before a node that computes.

        :raises Unsupported: its kernel may read a setting that is changed.
        """
        if not self.entry or self._unread or not self.calls():
            return
        tensors = (x for x in pytree.tree_leaves(operands) if isinstance(x, torch.Tensor))
        if any(x.device.type == "cuda" for x in tensors):
            raise Unsupported(CHANGED, str(getattr(target, "__name__", target)))


def _current() -> dict[Setting, Any]:
    return {setting: getter(*setting[1]) for setting, getter in SETTINGS.items()}
