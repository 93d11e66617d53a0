"""Windows, indices of triangles and their like, of sizes that vary: made on entry of the frame.

Their C++ takes plain integers, so that a graph would be of one size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ....sources import ComputedSource
from ...protocol import Evaluator
from ...variables.base import Keywords, Variable
from ...variables.constant import OPERATORS, ConstantVariable
from ..numbers.called_numbers import call_of_numbers, number_of_call
from ..numbers.representations import number_value
from ..numbers.symbolic_float import current_number
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..table import models
from .tensor import TensorVariable


def _below_diagonal(rows: int, columns: int, offset: int = 0) -> int:
    """How many elements ``tril_indices`` finds."""
    begin = min(max(-offset, 0), rows)
    full = min(max(columns - offset - 1, begin), rows)  # the first row that is taken whole
    return (full - begin) * (begin + full + 1 + 2 * offset) // 2 + (rows - full) * columns


def _above_diagonal(rows: int, columns: int, offset: int = 0) -> int:
    """How many elements ``triu_indices`` finds."""
    return rows * columns - _below_diagonal(rows, columns, offset - 1)


@dataclass(frozen=True)
class _Made:
    """Which arguments are sizes, and how many columns of two rows they make; None: as many elements."""

    sizes: slice
    columns: Callable[..., int] | None = None


_WINDOW = _Made(slice(0, 1))
_MADE: dict[Any, _Made] = {
    torch.bartlett_window: _WINDOW,
    torch.blackman_window: _WINDOW,
    torch.hamming_window: _WINDOW,
    torch.hann_window: _WINDOW,
    torch.kaiser_window: _WINDOW,
    torch.logspace: _Made(slice(2, 3)),
    torch.tril_indices: _Made(slice(0, 2), _below_diagonal),
    torch.triu_indices: _Made(slice(0, 2), _above_diagonal),
}
_OPTIONS = frozenset(("device", "dtype", "offset", "periodic"))


@models(*_MADE)
def _on_entry(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    made = _made_on_entry(evaluator, function, arguments, keywords)
    if made is None:
        return evaluator.graph.call_function(evaluator, function, arguments, keywords)
    return made


def _made_on_entry(
    evaluator: Evaluator, function: Any, arguments: tuple[Variable, ...], keywords: Keywords
) -> TensorVariable | None:
    """The tensor, a new one in each call; None where no size varies, or more than sizes tell what it is."""
    graph, row = evaluator.graph, _MADE[function]
    sizes = arguments[row.sizes]
    is_plain = not (graph.is_repeated or graph.transforms.active or evaluator.state.overrides.modes)
    if not is_plain or torch.is_inference_mode_enabled() or not keywords.keys() <= _OPTIONS:
        return None
    if not any(isinstance(size, SymbolicNumberVariable) for size in sizes):
        return None
    if not all(option.is_constant() for option in keywords.values()):
        return None
    options = {name: option.as_constant() for name, option in keywords.items()}
    call = call_of_numbers(evaluator, functools.partial(function, **options), arguments)
    if call is None or not all(_holds(size, "ge", 0) for size in sizes):
        return None
    shape = [*sizes[-1:]]
    if row.columns is not None:
        count = functools.partial(row.columns, offset=options.get("offset", 0))
        columns = number_of_call(evaluator, count, arguments[:2])
        if columns is None or len(arguments) > 2:
            return None
        shape = [ConstantVariable(2), columns]
    example = function(*map(current_number, arguments), **options)
    with graph.fake_mode, graph.shapes.rules():
        fake = torch.empty(
            [number_value(size) for size in shape], dtype=example.dtype, device=example.device
        )
    source = ComputedSource(call.each_time(), call.sources)
    return TensorVariable(graph.add_placeholder(source, fake), fake, source)


def _holds(size: Variable, comparison: str, bound: int) -> bool:
    if isinstance(size, SymbolicNumberVariable):
        return size.python_type() is int and size.holds(comparison, bound)
    return bool(OPERATORS[comparison](size.as_constant(), bound))
