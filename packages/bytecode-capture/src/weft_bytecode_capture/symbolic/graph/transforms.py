"""The levels of function transforms (``torch.vmap``, ``torch.func``) that a captured program enters.

Torch's own Python of a transform is evaluated with the program.  What it comes down to is calls that enter
and leave levels, and that make a level's tensors of others: these are nodes of the graph, and are made at
once, so that fake tensors stand for others just as the program's tensors do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.fx

from ..._torch.transforms import (
    BATCHES,
    DUAL_LEVEL_CALLS,
    FORWARD_MODE,
    GRADIENTS,
    LEVEL_CALLS,
    LEVEL_STATES,
    TransformState,
    is_of_level,
)
from ...unsupported import BreakEarlier, Unsupported

KIND = "function transform"


class TransformLevels:
    """The levels of one evaluation."""

    def __init__(self) -> None:
        self._entry = TransformState()
        self._in_dual_level = False
        self._entered: list[tuple[Any, int]] = []  # by which function, and where in the root frame

    @property
    def active(self) -> bool:
        """Whether the program is in a level."""
        return bool(self._entered)

    @property
    def has_batches(self) -> bool:
        """Whether the program is in a level of ``vmap``."""
        return any(function is BATCHES for function, _ in self._entered)

    @property
    def has_gradients(self) -> bool:
        """Whether the program is in a level of ``grad`` or ``vjp``."""
        return any(function is GRADIENTS for function, _ in self._entered)

    @property
    def has_forward_mode(self) -> bool:
        """Whether the program is in a level of forward-mode gradients."""
        return any(
            function is FORWARD_MODE or function in DUAL_LEVEL_CALLS
            for function, _ in self._entered
        )

    def call(
        self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], position: int
    ) -> Any:
        """Enter or leave a level by a function of ``LEVEL_CALLS``, at the root frame's ``position``."""
        if LEVEL_CALLS[function] < 0 and not self._entered:
            raise Unsupported(KIND, "a level left that was entered before")
        try:
            value = function(*arguments, **keywords)
        except RuntimeError as error:
            raise Unsupported(KIND, str(error)) from error
        if function in DUAL_LEVEL_CALLS:
            self._in_dual_level = LEVEL_CALLS[function] > 0
        if LEVEL_CALLS[function] > 0:
            self._entered.append((function, position))
        else:
            self._entered.pop()
        return value

    def require_left(self) -> None:
        """
        :raises BreakEarlier: the program is still in a level.
        """
        if self._entered:
            error = Unsupported(KIND, "a level that is entered and not left")
            raise BreakEarlier(self._entered[0][1], error)

    def check(self, outputs: Iterable[Any], made_at: Mapping[Any, int]) -> None:
        """
        :raises BreakEarlier: a tensor that stands for others in a level is among ``outputs``.
        """
        for output in outputs:
            fake = getattr(output, "fake", None)
            if isinstance(fake, torch.Tensor) and is_of_level(fake):
                error = Unsupported(KIND, "a tensor that stands for others leaves the transform")
                raise BreakEarlier(made_at[output.node], error)

    def restore(self) -> None:
        """Leave all levels, where the evaluation ends before the program does."""
        if self._entered:
            self._entry.restore(dual=self._in_dual_level)
            self._entered.clear()


def leaving_transforms(
    graph_module: torch.fx.GraphModule, function: Callable[..., Any]
) -> Callable[..., Any]:
    """``function``, which runs the graph; an exception leaves the levels that it has entered.

    A program that tells how it fails has no levels: it computes what they come down to.
    """
    if hasattr(function, "left_changes"):
        return function
    targets = {node.target for node in graph_module.graph.nodes if node.op == "call_function"}
    if targets.isdisjoint(LEVEL_CALLS) and targets.isdisjoint(LEVEL_STATES):
        return function

    dual = not targets.isdisjoint(DUAL_LEVEL_CALLS)
    entry = TransformState()

    def run(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except BaseException:  # after an interrupt too
            entry.restore(dual=dual)
            raise

    return run
