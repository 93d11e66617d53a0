"""Comparisons whose outcome chance cannot change: of a number drawn from [0, 1) with one outside.

``if torch.rand([]) < layerdrop`` with a ``layerdrop`` of zero needs no branch: the number is drawn, as in
eager, and never below zero.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx


@dataclass(frozen=True)
class _Range:
    """Numbers from ``least`` to ``most``; ``below``: less than ``most``."""

    least: float
    most: float
    below: bool = False


def known_truth(node: torch.fx.Node) -> bool | None:
    """What the comparison ``node``, which nothing reads yet, always gives; None if it depends on data."""
    compare = _COMPARISONS.get(node.target)
    if compare is None or node.users or node.kwargs or len(node.args) != 2:
        return None
    left, right = map(_range, node.args)
    return None if left is None or right is None else compare(left, right)


def _range(argument: Any) -> _Range | None:
    if type(argument) in (int, float):
        return _Range(argument, argument)
    if not isinstance(argument, torch.fx.Node) or argument.target is not torch.rand:
        return None
    is_plain = argument.kwargs.get("dtype") in (None, torch.float32, torch.float64)
    only_compared = all(
        user.target in _COMPARISONS for user in argument.users
    )  # and not written to
    return _Range(0, 1, below=True) if is_plain and only_compared else None


def _is_less(left: _Range, right: _Range) -> bool | None:
    if left.least >= right.most:
        return False
    return True if left.most < right.least or (left.below and left.most == right.least) else None


def _is_at_most(left: _Range, right: _Range) -> bool | None:
    if left.least > right.most or (right.below and left.least == right.most):
        return False
    return True if left.most <= right.least else None


_COMPARISONS: dict[Any, Callable[[_Range, _Range], bool | None]] = {
    operator.lt: _is_less,
    operator.le: _is_at_most,
    operator.gt: lambda left, right: _is_less(right, left),
    operator.ge: lambda left, right: _is_at_most(right, left),
}
